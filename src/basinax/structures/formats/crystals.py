"""CIF files: the setting of the space group that a file means, and the elements of its sites.

ASE takes the first setting of a number, whatever the cell, and knows few symbols. Spglib's table
has all settings; those that the metric of the cell does not have are ruled out.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import spglib
from ase import Atoms
from ase.data import atomic_numbers
from ase.io.cif import CIFBlock, parse_cif

OPERATIONS = (
    "_space_group_symop_operation_xyz",
    "_space_group_symop.operation_xyz",
    "_symmetry_equiv_pos_as_xyz",
)
NUMBERS = ("_space_group_it_number", "_space_group.it_number", "_symmetry_int_tables_number")
SYMBOLS = (
    "_space_group_name_h-m_alt",
    "_symmetry_space_group_name_h-m",
    "_space_group.name_h-m_alt",
    "_space_group.name_h-m_full",
    "_space_group_name_h-m_full",
)
HALL = ("_space_group_name_hall", "_space_group.name_hall", "_symmetry_space_group_name_hall")
CHOICES = (
    "_space_group_it_coordinate_system_code",
    "_space_group.it_coordinate_system_code",
    "_symmetry_space_group_setting",
)
PLACES = ("_atom_site_fract_x", "_atom_site_fract_y", "_atom_site_fract_z")

ANGLES = ("_cell_angle_alpha", "_cell_angle_beta", "_cell_angle_gamma")
"""Angles of a cell, whose default is 90 degrees."""

UNREAD = {
    "_space_group_symop_magn": "magnetic",
    "_space_group_symop_ssg": "modulated",
    "_cell_modulation": "modulated",
}
"""What begins the names of entries that ASE ignores, and their structures."""

SYSTEMS = ("_space_group_crystal_system", "_symmetry_cell_setting")
"""Names of entries, in lower case."""

LETTERS = {"s": "1", "z": "2"}
"""Names of the origins in some databases."""

MONOCLINIC, CUBIC = range(3, 16), range(195, 231)

UNLIKE = 0.02
"""The relative deviation of a cell's metric beyond which it lacks a symmetry."""

Say = Callable[[str], None]


class Setting(NamedTuple):
    """A space group on given axes with a given origin."""

    hall: int
    """The number in spglib's table, from 1 to 530."""
    number: int
    names: frozenset[str]
    choice: str
    """The axes, cell or origin, as in the International Tables: `H`, `b2`, `2`, `1cab`."""
    hall_symbol: str

    @property
    def operations(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rotations and translations of coordinates."""
        with warnings.catch_warnings(action="ignore"):  # spglib warns of errors of later releases
            found: Any = spglib.get_symmetry_from_database(self.hall)
        return list(zip(found["rotations"], found["translations"], strict=True))


def crystals(text: str, say: Say) -> Iterator[Atoms]:
    """The structures of a CIF file.

    Args:
        say: called with what the user has to know.

    Raises:
        ValueError: a structure's space group or elements contradict each other.
    """
    for block in parse_cif(io.StringIO(text)):
        if block.has_structure():
            yield _meant(block, say).get_atoms()


def _meant(block: CIFBlock, say: Say) -> CIFBlock:
    """The block with entries that ASE reads as they are meant."""
    if "_cell_length_a" in block:  # ASE has no cell without all angles
        given: Any = dict.fromkeys(ANGLES, 90.0) | dict(block)
        block = CIFBlock(block.name, given)
    tags = dict(block) | _elements(block)
    _check_order(block)
    _check_whole(block)
    if block.get_cell().rank == 3:
        tags = _with_operations(block, tags, say)
    return CIFBlock(block.name, tags)


def _check_order(block: CIFBlock) -> None:
    groups = block.get("_atom_site_disorder_group", [])
    names = {str(x) for x in _listed(groups)} - {".", "?", "0"}
    if names and "_atom_site_occupancy" not in block:
        raise ValueError("its atoms belong to groups of a disorder: keep one group of each")


def _check_whole(block: CIFBlock) -> None:
    """Raise ValueError if ASE would leave out atoms."""
    for name in block:
        if what := next((what for start, what in UNREAD.items() if name.startswith(start)), None):
            raise ValueError(f"its symmetry is that of a {what} structure, which ASE does not read")
    places = [x for name in PLACES for x in _listed(block.get(name, []))]
    if wrong := next((x for x in places if isinstance(x, str)), None):
        raise ValueError(f"a coordinate of its sites is {wrong}, which is no number")
    if "dum" in map(str, _listed(block.get("_atom_site_calc_flag", []))):
        raise ValueError("some of its sites are dummies, which ASE takes for atoms")
    attached = [str(x) for x in _listed(block.get("_atom_site_attached_hydrogens", []))]
    if {*attached} - {".", "?", "0"}:
        raise ValueError(
            "some of its hydrogen atoms have no positions: they are attached to others"
        )


# --- elements


def _elements(block: CIFBlock) -> dict[str, Any]:
    """The elements of sites, if ASE would take another: it reads FE as fluorine."""
    name = "_atom_site_type_symbol"
    types = [str(x) for x in _listed(block.get(name, []))]
    labels = types or [str(x) for x in _listed(block.get("_atom_site_label", []))]
    formula = block.get("_chemical_formula_sum", "")
    held = {x.capitalize() for x in re.findall("[A-Za-z]+", str(formula))}
    meant = [_element(label, held, is_type=bool(types)) for label in labels]
    return {name: meant} if meant != labels and None not in meant else {}


def _element(label: str, held: set[str], *, is_type: bool) -> str | None:
    """The element of a site's label, such as `FE3+`, `O1` and `Ca2`; None leaves it to ASE.

    Args:
        held: the elements of the formula; may be empty.
    """
    letters = re.match("[A-Za-z]+", label)
    if letters is None:
        return None
    two, one = letters[0][:2].capitalize(), letters[0][0].upper()
    fitting = [x for x in dict.fromkeys((two, one)) if x in atomic_numbers or x == "D"]
    fitting = [x for x in fitting if x in held] or fitting
    if not fitting:
        return None
    # Mixed case is unambiguous: "Ca1" is calcium.
    if len(fitting) > 1 and not (is_type or letters[0][1].islower()):
        raise ValueError(
            f"its site {label} may be {fitting[0]} or {fitting[1]}: add _atom_site_type_symbol"
        )
    return fitting[0]


# --- space groups


def _with_operations(block: CIFBlock, tags: dict[str, Any], say: Say) -> dict[str, Any]:
    """The entries with operations of symmetry, if ASE would find others or none."""
    try:
        ours = block.get_spacegroup(subtrans_included=True)
        found = _keys(ours.get_symop())
    except Exception:  # every reader of ASE raises errors of its own
        found = None
    given = _first(block, OPERATIONS)
    if given is not None:
        if found is not None:
            return tags
        number, operations = 1, _listed(given)
    else:
        setting = _setting(block, say)
        if setting is None or _keys(setting.operations) == found:
            return tags
        number, operations = setting.number, [_as_text(*x) for x in setting.operations]
    others = {*OPERATIONS, *NUMBERS, *SYMBOLS, *HALL, *CHOICES, *SYSTEMS}
    tags = {name: value for name, value in tags.items() if name not in others}
    return tags | {NUMBERS[0]: number, OPERATIONS[0]: operations}


def _setting(block: CIFBlock, say: Say) -> Setting | None:
    """The setting that the block means; None leaves it to ASE."""
    candidates, choice, name = _candidates(block)
    if not candidates:
        return None
    cell = block.get_cell().array
    metric = cell @ cell.T
    fitting = [x for x in candidates if _has(metric, x)]
    if not fitting:
        say(f"the cell does not have the symmetry of its space group {name}")
        return None
    chosen = [x for x in fitting if choice in (x.choice, x.choice[:1])] or fitting
    first = chosen[0]
    if any(x.choice[:1] == "2" for x in chosen) and first.choice[:1] == "1":
        say(f"the first of two origins of {name} is taken, since the file does not say which")
    return first


def _candidates(block: CIFBlock) -> tuple[list[Setting], str, str]:
    """The settings that entries allow; the choice among them, and the group's name."""
    known = _settings()
    number = _first(block, NUMBERS)
    number = int(number) if str(number).isdigit() else None
    symbol, choice = _split(str(_first(block, SYMBOLS) or ""))
    choice = choice or str(_first(block, CHOICES) or "").lower()
    name = str(_first(block, SYMBOLS) or number)
    of_number = [x for x in known if x.number == number]
    hall = _plain(str(_first(block, HALL) or ""))
    if of_hall := [x for x in known if hall and x.hall_symbol == hall]:
        return of_hall, choice, name
    named = [x for x in known if symbol in x.names] or [
        x for x in known if x.number in CUBIC and symbol in {y.replace("-", "") for y in x.names}
    ]
    if symbol and of_number:
        is_known, named = bool(named), [x for x in named if x in of_number]
        if not named:
            why = "which differ" if is_known else "and no setting has this symbol"
            raise ValueError(f"its space group is {name} and number {number}, {why}")
    if choice in ("1", "2") and any(x.choice == "H" for x in named or of_number):
        choice = {"1": "H", "2": "R"}[choice]  # ASE's meaning
    return named or of_number, choice.upper() if choice in ("h", "r") else choice, name


@cache
def _settings() -> list[Setting]:
    """All settings of all groups."""
    found = []
    for hall in range(1, 531):
        with warnings.catch_warnings(action="ignore"):
            kind: Any = spglib.get_spacegroup_type(hall)
        full, names = kind.international_full, {_plain(kind.international_full)}
        if kind.number in MONOCLINIC:
            names.add(_plain(full.replace(" 1 ", " ").removesuffix(" 1")))
        else:
            names.add(_plain(kind.international_short))
            # Before 1992 one of both glides stood in place of e.
            names |= {name.replace("e", glide) for name in names for glide in "abc"}
        found.append(
            Setting(hall, kind.number, frozenset(names), kind.choice, _plain(kind.hall_symbol))
        )
    return found


def _split(symbol: str) -> tuple[str, str]:
    """The symbol and the choice behind it, each in a plain form."""
    parts = re.fullmatch(r"(.*?)(?:\s*:\s*([\w-]+)|\s+([SZHR]))?", symbol.strip())
    assert parts is not None
    choice = (parts[2] or parts[3] or "").lower()
    return _plain(parts[1]), LETTERS.get(choice, choice)


def _plain(symbol: str) -> str:
    return re.sub(r"[\s_'\"~]", "", symbol).lower()


def _has(metric: np.ndarray, setting: Setting) -> bool:
    """Whether the metric tensor is the same in all axes that the group makes equal."""
    rotations = np.array([rotation for rotation, _ in setting.operations])
    turned = rotations.transpose(0, 2, 1) @ metric @ rotations
    return bool(np.abs(turned - metric).max() < UNLIKE * np.abs(metric).max())


def _keys(operations: Any) -> set[Any]:
    """The operations as a set; translations count in 24ths of the cell."""
    return {
        (*np.ravel(rotation).astype(int), *np.rint(24 * np.asarray(shift)).astype(int) % 24)
        for rotation, shift in operations
    }


def _as_text(rotation: np.ndarray, shift: np.ndarray) -> str:
    """An operation such as `-y+1/3,x-y,z`."""
    rows = []
    for row, t in zip(rotation, shift, strict=True):
        terms = [f"{'-' if k < 0 else '+'}{axis}" for k, axis in zip(row, "xyz", strict=True) if k]
        part = Fraction(float(t)).limit_denominator(24) % 1
        rows.append("".join(terms).removeprefix("+") + (f"+{part}" if part else ""))
    return ",".join(rows)


def _first(tags: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The first entry that says something."""
    said = (tags.get(name) for name in names)
    return next((x for x in said if x not in (None, "", ".", "?", [])), None)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
