"""What the text of a file says, where ASE reads something else or nothing.

One table has a function for each format that needs one. The others have expressions for entries
that are refused, and for total charges and spins.
"""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers
from ase.units import Bohr

from basinax.structures.formats.lammps import structures_of_data
from basinax.structures.formats.names import element_of
from basinax.structures.formats.pdb import structures_of_pdb

Read = Callable[[str], list[Atoms]]
Say = Callable[[str], None]

FLAGS = re.MULTILINE | re.IGNORECASE

NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[de][-+]?\d+)?)"

OF_DMOL = {
    "a cell of two dimensions": r"^PBC=2D",
    "atoms that only symmetry adds": r"^PBC\s.*\(\s*(?!P\s*1\s*\))[^)]+\)",
}

UNIQUE = {"atoms that only symmetry adds": r"^\s*\$data.*\n.*\n\s*(?!c1\b)\w+"}

REFUSED = {
    "abinit-in": {
        "lengths in Å behind xcart": r"\bxcart\b[-+\s\d.edED]*angstr",
        "scaled axes": r"\bscalecart\b",
    },
    "abinit-out": {
        "cells of several data sets": r"^ +(acell|rprim)[\d?_]",
        "a cell that changed, and not its last one": r"\A(?=[\s\S]*^ +optcell\s+[1-9])"
        r"(?![\s\S]*values of variables after computation)",
    },
    "aims": {
        "constraints of lattice vectors": r"^\s*lattice_vector\b.*\n"
        r"(?:(?!\s*(?:atom|lattice_vector)).*\n)*?\s*constrain_relaxation",
    },
    "castep-cell": {
        "constraints that couple atoms": r"%block\s+ionic_constraints\s*\n(?:(?!%end).*\n)*?"
        r"\s*(\d+)\s+(\w+\s+\d+)\b.*\n(?:(?!%end).*\n)*?\s*\1\s+(?!\2\b)\w+\s+\d",
        "lengths in a0": r"%block\s+(lattice|positions)\w+\s*\n\s*a0\b",
        "sites that elements share": r"^.*\bmixture\s*[:=]",
    },
    "cfg": {"another length than 1 Å": r"^\s*A\s*=\s*(?!1(\.0*)?\b)[\d.]+"},
    "cp2k-restart": {"a section without an end": r"\A(?![\s\S]*&SUBSYS[\s\S]*&END SUBSYS)"},
    "cube": {"lengths in Å": r"\A.*\n.*\n.*\n\s*-\d"},
    "dftb": {
        "a geometry in another file": r"format\s*\{\s*<<",
        "a geometry in another format": r"\bgeometry\s*=\s*(?!gen)\w+format",
        "names that are spelt in small letters": r"^\s*"
        r"(?!(?-i:Periodic\s*=\s*Yes|TypesAndCoordinates|LatticeVectors|TypeNames))"
        r"(periodic\s*=\s*yes|typesandcoordinates|latticevectors|typenames)\b",
        "other lengths than Å": r"\b(TypesAndCoordinates|LatticeVectors)\b"
        r"\s*(?!\[\s*(angstrom|aa|å)\s*\])[\[={]",
    },
    "dlp-history": {"the steps of a run": r"\A"},
    "dmol-arc": OF_DMOL,
    "dmol-car": OF_DMOL,
    "espresso-in": {
        "a cell in units of A": r"\A(?=[\s\S]*^[^!\n]*\ba\s*=)[\s\S]*^\s*cell_parameters\s*$",
    },
    "gamess-us-in": {"lengths in bohr": r"\bunits\s*=\s*bohr", **UNIQUE},
    "gamess-us-punch": UNIQUE,
    "gaussian-in": {
        "lengths in bohr": r"^[ \t]*#(?:.*\S.*\n)*?.*\bunits\s*=?\s*(\([^)]*|[\w,]*)\b(au|bohr)\b",
        "several jobs": r"^--link1--(?![\s\S]*geom)",
    },
    "lammps-dump-binary": {"numbers of types in place of elements": r"\A"},
    "lammps-dump-text": {
        "numbers of types in place of elements": r"^ITEM: ATOMS(?!.*\b(element|mass)\b)",
        "other units than metal and real": r"^ITEM: UNITS\s+(?!metal|real)\w+",
    },
    "mol": {"a table of version V3000": r"\A.*\n.*\n.*\n.*V3000"},
    "nwchem-in": {
        "a line that the next one continues": r"^\s*geometry\b.*\\\s*$",
        "a matrix of internal coordinates": r"^\s*zmatrix\b",
        "atoms that only symmetry adds": r"^\s*symmetry\s+(?!c1\b|group\s+c1\b)\w+",
    },
    "octopus-in": {
        "lengths in Å": r"^\s*units(input)?\s*=\s*[\"']?ev",
        "lengths in Å in another file": r"\A(?![\s\S]*^\s*UnitsXYZFiles\s*=\s*bohr)"
        r"[\s\S]*^\s*(xyz|pdb)coordinates\s*=",
    },
    "res": {
        "atoms that only symmetry adds": r"^(SYMM\b|LATT\s++(?!-1\b))",
        "no LATT -1, and thus a centre of inversion": r"\A(?![\s\S]*^LATT\b)",
    },
    "sdf": {"a table of version V3000": r"\A.*\n.*\n.*\n.*V3000"},
    "turbomole": {
        "a cell": r"^\$(periodic|cell|lattice)\b",
        "a list of atoms without an end": r"^\$coord\b(?![\s\S]*^\$)",
        "other lengths than bohr": r"^\$coord\b.*\b(angs|frac)",
    },
    "xsd": {"atoms that only symmetry adds": r'NumImageMappings="(?!0")'},
}
"""The text of entries without which ASE reads another structure."""

ONE_STRUCTURE = {
    "gen": r"^\s*\d+\s+[csf]\s*$",
    "lammps-data": r"^\s*Atoms\b",
    "mol": r"^M  END",
    "nwchem-in": r"^\s*geometry\b",
    "res": r"^CELL\b",
    "sdf": r"^M  END",
    "vasp": r"^[ \t]*[-+.\d]+[ \t]*\n(?:(?:[ \t]*[-+.\dED]+){3}[ \t]*\n){3}[ \t]*[A-Z]",
}
"""A text that each structure has once, for formats of which ASE reads one structure."""

UNREAD = {
    "abinit-in": {"fixed atoms": r"^\s*(natfix|iatfix)"},
    "abinit-out": {"fixed atoms": r"^\s*(natfix|iatfix)"},
    "castep-cell": {
        "external pressure": r"^\s*%block\s+external_pressure",
        "fixed atoms": r"^\s*fix_all_ions\s*[:=]?\s*\.?t",
    },
    "cp2k-restart": {"constraints": r"^\s*&constraint\b"},
    "dftb": {"fixed atoms": r"^[^#\n]*\bMovedAtoms\s*=\s*(?!1:-1)"},
    "eon": {"periodicity, which its files do not say": r"\A"},
    "gamess-us-out": {
        "fixed coordinates": r"^\s*INPUT CARD>.*\bifreez\b",
        "geometries behind the first": r"\bruntyp\s*=\s*(irc|surface|drc|md)\b",
    },
    "gamess-us-punch": {"geometries behind the first": r"\bDATA FROM NSERCH"},
    "gaussian-out": {
        "constraints": r"^\s*!.*\bfrozen\b",
        "fixed atoms": rf"^ [A-Z]\w*(?:\([^)]*\))?\s+-1(?:\s+{NUMBER}){{3}}\s*$",
    },
    "nwchem-in": {
        "active atoms": r"^\s*set\s+\"?geometry:actlist",
        "constraints": r"^\s*constraints\b",
        "open shells": r"^\s*(nopen\s+[1-9]"
        r"|(doublet|triplet|quartet|quintet|sextet|septet|octet)\b)",
    },
    "nwchem-out": {
        "fixed atoms": r"^\s*(set\s+\"?geometry:actlist|constraints\b.*\n\s*(fix|spring)\b)",
        "open shells": r"^\s*(open shells\s*=\s*[1-9]"
        r"|alpha\s+electrons\s*=\s*(\d+)\s+beta\s+electrons\s*=\s*(?!\2\s)\d)",
    },
    "onetep-in": {"constraints": r"^\s*%block\s+species_constraints"},
    "orca-output": {"constraints": r"^\|\s*\d+>[^#\n]*\bconstraints\b"},
    "xsd": {"fixed atoms": r"RestrictedProperties="},
}
"""The text of entries that ASE ignores but a relaxation needs."""

OF_DFT = r"&DFT\b(?:(?!&END DFT)[\s\S])*?^\s*"

OF_CONTRL = r"\$contrl\b(?:(?!\$end)[\s\S])*?\b"

OF_ALL = r"(?!.*\b(?:fragment|model|mid)\b)"
"""Behind a total of Gaussian that is not of a part of the atoms."""

TOTALS = {
    "abinit-in": (rf"^(?:[^#!\n]*\s)?(?:cell)?charge\s+{NUMBER}", None),
    "abinit-out": (rf"^ +(?:cell)?charge +{NUMBER}\s*$", None),
    "cjson": (rf'"totalCharge"\s*:\s*{NUMBER}', r'"totalSpinMultiplicity"\s*:\s*(\d+)'),
    "cp2k-restart": (rf"{OF_DFT}CHARGE\s+{NUMBER}", rf"{OF_DFT}MULTIPLICITY\s+(\d+)"),
    "dftb": (rf"^\s*Charge\s*=\s*{NUMBER}", None),
    "espresso-in": (rf"^[^!\n]*\btot_charge\s*=\s*{NUMBER}", None),
    "gamess-us-in": (rf"{OF_CONTRL}icharg\s*=\s*{NUMBER}", rf"{OF_CONTRL}mult\s*=\s*(\d+)"),
    "gamess-us-out": (
        rf"^\s*CHARGE OF MOLECULE\s*=\s*{NUMBER}",
        r"^\s*(?:SPIN|STATE) MULTIPLICITY\s*=\s*(\d+)",
    ),
    "gaussian-out": (
        rf"^\s*Charge\s*=\s*{NUMBER}\s+Multiplicity\s*=\s*\d+{OF_ALL}",
        rf"^\s*Charge\s*=\s*\S+\s+Multiplicity\s*=\s*(\d+){OF_ALL}",
    ),
    "nwchem-in": (rf"^\s*charge\s+{NUMBER}", r"^\s*mult\s+(\d+)"),
    "nwchem-out": (rf"^\s*charge\s*[:=]\s*{NUMBER}", r"^\s*spin multiplicity\s*:\s*(\d+)"),
    "octopus-in": (rf"^\s*ExcessCharge\s*=\s*{NUMBER}", None),
    "onetep-in": (rf"^\s*charge\b\s*[:=]?\s*{NUMBER}", None),
    "orca-output": (rf"\bTotal Charge\s+Charge\s+\.+\s+{NUMBER}", r"Mult\s+\.{3,}\s+(\d+)"),
    "turbomole": (rf"^\$eht\b.*\bcharge\s*=\s*{NUMBER}", None),
}
"""The text of a total charge in e, and of a spin multiplicity, in files of programs."""


def structures_of(name: str, path: Path, text: str, read: Read, say: Say) -> list[Atoms]:
    """The structures of a text as its format means them.

    Args:
        name: ASE's name of the format, one of `MENDED`.
        path: the file, which other files may stand beside.
        read: ASE's reader.
        say: called with what the user has to know.

    Raises:
        ValueError: ASE would read another structure than the file holds.
    """
    for what, pattern in REFUSED.get(name, {}).items():
        if re.search(pattern, text, FLAGS):
            raise ValueError(f"it has {what}, which ASE does not read")
    mend = MENDS.get(name)
    images = read(text) if mend is None else mend(text, path, read, say)
    for what, pattern in UNREAD.get(name, {}).items():
        if images and re.search(pattern, text, FLAGS):
            say(f"ASE does not read its {what}")
    of_charge, of_spin = TOTALS.get(name, (None, None))
    charge = _only("total charges", of_charge, text, say)
    spin = _only("spins", of_spin, text, say)
    for atoms in images:
        _add_totals(atoms, charge, int(spin) if spin else None)
    if images and (total := images[0].info.get("charge")):
        say(f"its total charge of {total:g} e is kept in info['charge']")
    return images


def count(name: str, text: str) -> int:
    """The number of structures in a text, for formats of which ASE reads one."""
    return len(re.findall(ONE_STRUCTURE.get(name, r"\A"), text, FLAGS))


def _only(what: str, pattern: str | None, text: str, say: Say) -> float | None:
    """The number that a text says; None if it says none, or several."""
    said = re.findall(pattern, text, FLAGS) if pattern else []
    found = sorted({float(x.lower().replace("d", "e")) for x in said})
    if len(found) > 1:
        listed = ", ".join(f"{x:g}" for x in found)
        say(f"it says several {what} ({listed}), and none is kept: split it into one file a job")
    return found[0] if len(found) == 1 else None


def _add_totals(atoms: Atoms, charge: float | None, spin: int | None) -> None:
    """Add a total charge and a spin to the info, unless those of a neutral closed shell."""
    if charge:
        atoms.info["charge"] = int(charge) if charge == int(charge) else charge
    if spin and (spin > 1 or charge):
        atoms.info["spin"] = spin


# --- one function for each format


def _abinit(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    return read(re.sub(r"!.*", "", text))  # which ASE takes for no comment


def _output_of_abinit(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    """The structure with the last cell, of which ASE takes the first, without its scale, for Å."""
    begin, mark, echo = text.partition("echo values of preprocessed input variables")
    scales, vectors = (
        list(re.finditer(rf"^ +{name}((?:\s+{NUMBER}){{{n}}}){end}", echo, FLAGS))
        for name, n, end in (("acell", 3, r"\s+Bohr\b"), ("rprim", 9, ""))
    )
    if not (scales and vectors):
        raise ValueError("it has no acell in bohr, or no rprim, of all data sets")
    lengths, axes = (np.array(found[-1][1].split(), float) for found in (scales, vectors))
    cell = lengths[:, None] * axes.reshape(3, 3) * Bohr
    start, stop = vectors[0].span(1)
    rows = " ".join(map(str, cell.ravel().tolist()))
    return read(f"{begin}{mark}{echo[:start]} {rows}{echo[stop:]}")


def _output_of_espresso(text: str, _: Path, read: Read, say: Say) -> list[Atoms]:
    """The structures with what the flags behind their positions fix, as in inputs."""
    from ase.io.espresso import convert_constraint_flags

    images = read(text)
    row = rf"[ \t]*[A-Za-z]\S*(?:[ \t]+{NUMBER}){{3}}.*\n?"
    blocks = re.finditer(rf"^ATOMIC_POSITIONS.*\n((?:{row})+)", text, FLAGS)
    sizes, steps = {len(atoms) for atoms in images}, [x[1].splitlines() for x in blocks]
    steps = [lines for lines in steps if len(lines) in sizes]  # the last one may be cut off
    first, *others = {tuple(" ".join(x.split()[4:7]) for x in lines) for lines in steps} or {()}
    if others or (any(first) and len(sizes) > 1):
        say("the flags of its positions differ between its steps, and none is kept")
    elif any(first):
        for atoms in images:
            masks = [tuple(map(int, x.split())) or None for x in first]
            atoms.set_constraint(convert_constraint_flags(masks))
    return images


STEP_OF_GAMESS = (
    r"(?:NSERCH=|\bLOCATED \*)(?:(?!NSERCH=|\bLOCATED \*)[\s\S])*?"
    r"COORDINATES OF ALL ATOMS ARE \(ANGS\).*\n.*\n.*\n"
    rf"((?:[ \t]*[A-Z]\S*(?:[ \t]+{NUMBER}){{4}}[ \t]*\n)+)"
)


def _output_of_gamess(text: str, _: Path, read: Read, say: Say) -> list[Atoms]:
    """The last geometry of an optimisation, of which ASE reads the first."""
    images, steps = read(text), list(re.finditer(STEP_OF_GAMESS, text, FLAGS))
    rows = [line.split() for line in (steps[-1][1].splitlines() if steps else [])]
    if rows and [row[0].capitalize() for row in rows] != images[0].get_chemical_symbols():
        say("its first geometry is read, since its last one has other atoms")
    elif rows:
        lines = (
            f"{name} {charge} {' '.join(str(float(x) / Bohr) for x in place)}\n"
            for name, charge, *place in rows
        )
        images = read(f"{text}\nATOM ATOMIC COORDINATES\n\n{''.join(lines)}\n")
    return images


def _cjson(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    """The structure in its own vectors, where ASE makes others from lengths and angles."""
    images = read(text)
    for atoms in images:
        if vectors := re.search(r'"cellVectors"\s*:\s*\[([^]]*)\]', text):
            is_scaled = re.search(r'"3d"\s*:', text, FLAGS) is None
            atoms.set_cell(np.array(json.loads(f"[{vectors[1]}]"), float).reshape(3, 3), is_scaled)
    return images


def _res(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    images = read(text)
    symbols = re.search(r"^SFAC(.*)", text, FLAGS)
    names = "|".join(re.findall(r"\b[A-Za-z]{1,2}\b", symbols[1] if symbols else ""))
    rows = re.findall(rf"^(?:{names})\d*[a-z]?\s+\d+\s+(\S+\s+\S+\s+\S+.*)$", text, FLAGS)
    for atoms in images:
        if len(rows) > len(atoms):
            raise ValueError(f"ASE reads {len(atoms)} of its {len(rows)} atoms")
        if any(float(x) not in (1.0, 11.0) for row in rows for x in row.split()[3:4]):
            raise ValueError("some of its sites are not whole atoms: their occupancies are not 1")
    return images


def _cif(text: str, _: Path, __: Read, say: Say) -> list[Atoms]:
    from basinax.structures.formats.crystals import crystals  # spglib takes time to import

    return list(crystals(text, say))


def _cube(text: str, _: Path, read: Read, say: Say) -> list[Atoms]:
    images = read(text)
    if any(atoms.pbc.any() for atoms in images) and "castep" not in text[:400].lower():
        say("the box of its grid is taken as a periodic cell")
    return images


def _config_of_dl_poly(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    images, said = read(text), text.splitlines()[1].split()[2:3]
    for atoms in images:
        _check_count("second", said[0] if said else "", len(atoms))
        rests = atoms.arrays["dlp4_labels"]
        names = [f"{x}{rest}" for x, rest in zip(atoms.symbols, rests, strict=True)]
        atoms.symbols = _elements([(name, "") for name in names])  # ASE reads CU as carbon
    return images


def _restart_of_cp2k(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    """The structure, with the elements of its kinds, periodic as its cell says."""
    images = read(text)
    block = re.search(r"&COORD\b.*\n((?:(?!\s*&END).*\n)*)", text, FLAGS)
    rows = [row.upper().split() for row in (block[1].splitlines() if block else [])]
    names = [row[0] for row in rows if row]
    kind = r"&KIND\s+(\S+)\s*\n(?:(?!\s*&END).*\n)*?\s*ELEMENT\s+(\w+)"
    elements = {
        name.upper(): element.capitalize() for name, element in re.findall(kind, text, FLAGS)
    }
    for atoms in images:
        if len(names) == len(atoms):
            known = zip(names, atoms.symbols, strict=True)
            atoms.symbols = [elements.get(name, symbol) for name, symbol in known]
    said = re.search(r"&CELL\b(?:(?!&END CELL)[\s\S])*?^\s*PERIODIC\s+(\w+)", text, FLAGS)
    for atoms in images:
        atoms.pbc = [axis in (said[1].upper() if said else "XYZ") for axis in "XYZ"]
    return images


def _dump(text: str, _: Path, read: Read, say: Say) -> list[Atoms]:
    """The structures; LAMMPS writes C for every type where a dump does not say its element."""
    images = read(text)
    first = re.search(r"^ITEM: ATOMS(.*)\n((?:[^I].*\n?)*)", text, re.MULTILINE)
    names = first[1].split() if first else []
    if first and {"type", "element"} <= {*names}:
        rows = [row.split() for row in first[2].splitlines()]
        types = {row[names.index("type")] for row in rows}
        if len(types) > 1 and {row[names.index("element")] for row in rows} == {"C"}:
            say(f"its {len(types)} types are all C, as LAMMPS writes where a dump has no elements")
    return images


def _check_count(line: str, said: str, n_atoms: int) -> None:
    """Raise ValueError if a line of a file says another number of atoms than it has."""
    if said.isdigit() and int(said) != n_atoms:
        raise ValueError(f"its {line} line says {said}, and it has lines of {n_atoms} atoms")


def _gaussian(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    from ase.io.gaussian import GaussianConfiguration

    text = re.sub(r"^([ \t]*[-+]?\d+)[ \t]*,[ \t]*(?=\d+[ \t]*$)", r"\1 ", text, flags=FLAGS)
    images = read(text)
    found = GaussianConfiguration.parse_gaussian_input(io.StringIO(text)).get_parameters()
    for atoms in images:
        _add_totals(atoms, found.get("charge"), found.get("mult"))
    return images


GRO_ROW = re.compile(r".{20}(?:.{4}\..{3}){3}")


def _gromacs(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    lines = text.rstrip().splitlines()
    said = "".join(lines[1:2]).strip()
    if said == str(len(lines) - 2) and GRO_ROW.match(lines[-1]):  # as ASE writes it without a cell
        lines.append("0 0 0")
    rows = lines[2:-1]
    if said != str(len(rows)):
        raise ValueError(f"its second line says {said!r}, and it has lines of {len(rows)} atoms")
    if not all(map(GRO_ROW.match, rows)):
        raise ValueError("its columns are wider than eight characters, which ASE does not read")
    images = read("\n".join(lines) + "\n")  # ASE takes the last line for the cell
    for atoms in images:
        pairs = zip(atoms.arrays["atomtypes"], atoms.arrays["residuenames"], strict=True)
        atoms.symbols = _elements([(str(name), str(residue)) for name, residue in pairs])
        atoms.pbc = atoms.cell.array.any(axis=1)  # a box of 0 is none
    return images


def _gromos(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    rows = re.findall(r"^POSITION.*\n((?:(?!END).*\n)*)", text, re.MULTILINE)
    rows = [line.split() for part in rows for line in part.splitlines()]
    images = read(text)
    for atoms in images:
        atoms.symbols = _elements([(row[2], row[1]) for row in rows])
    return images


def _elements(names: list[tuple[str, str]]) -> list[str]:
    """The elements of atoms from their names and their residues'."""
    known = {pair: element_of(*pair) for pair in dict.fromkeys(names)}
    for (name, residue), symbol in known.items():
        if symbol is None:
            of_residue = f" of residue {residue}" if residue else ""
            raise ValueError(f"the element of atom {name}{of_residue} is not clear")
    return [str(known[pair]) for pair in names]


def _data(text: str, _: Path, read: Read, say: Say) -> list[Atoms]:
    return structures_of_data(text, read, say)


def _mol(text: str, _: Path, read: Read, say: Say) -> list[Atoms]:
    """The molecule with its formal charges and unpaired electrons."""
    images = read(re.sub(r"^((?:[ \d.-]{10}){3} )[DT] ", r"\1H ", text, flags=re.MULTILINE))
    lines = text.splitlines()
    of_codes = {"1": 3, "2": 2, "3": 1, "5": -1, "6": -2, "7": -3}
    for atoms in images:
        _check_count("fourth", lines[3][:3].strip(), len(atoms))
        rows = lines[4 : 4 + len(atoms)]
        listed = re.findall(r"^M  (CHG|RAD)\s+\d+((?:\s+\d+\s+[-+]?\d+)+)", text, re.MULTILINE)
        charges = np.array([of_codes.get(row[36:39].strip(), 0) for row in rows])
        n_radicals = sum(row[36:39].strip() == "4" for row in rows)
        if listed:  # then the columns of the atoms do not count
            charges[:], n_radicals = 0, 0
        for kind, values in listed:
            pairs = np.array(values.split(), int).reshape(-1, 2)
            if kind == "CHG":
                charges[pairs[:, 0] - 1] = pairs[:, 1]
            else:
                n_radicals += np.maximum(pairs[:, 1] - 1, 0).sum()
        if charges.any():
            atoms.set_initial_charges(charges)
        if n_radicals:
            atoms.info["spin"] = int(n_radicals) + 1
        if re.search(r"2D\s*$|^.{20}2D", lines[1]) and not atoms.positions[:, 2].any():
            say("it is a drawing in two dimensions, whose lengths mean nothing")
    return images


UNITS = {"a": 1.0, "n": 10.0, "p": 0.01, "b": Bohr, "au": Bohr, "at": Bohr}
"""Lengths in Å, by the first letters of their names in NWChem."""


def _nwchem(text: str, _: Path, read: Read, __: Say) -> list[Atoms]:
    head = re.search(r"^\s*geometry\b(?:.*?\bunits?\s+(\w+))?.*\n([\s\S]*?)^\s*end\b", text, FLAGS)
    is_periodic = re.search(r"^\s*system\b", text, FLAGS) is not None
    n_ends = len(re.findall(r"^\s*end\b", text[head.start() :], FLAGS)) if head else 0
    if head is None or n_ends < 1 + is_periodic:  # ASE would search for hours
        raise ValueError("it has no geometry, or one without an end")
    if not is_periodic:
        text = re.sub(r"^(\s*end)[ \t]*\n", r"\1\n\n", text, flags=FLAGS)  # which ASE looks for
    images = read(text)
    unit = (head[1] or "a").lower()
    scale = UNITS.get(unit[:2], UNITS.get(unit[:1], 1.0))
    for atoms in images:
        n_rows = len(re.findall(r"^\s*[a-z]\w*(?:[ \t]+[-+]?\d*\.?\d+\S*){3}", head[2], FLAGS))
        if n_rows > len(atoms):
            raise ValueError(f"ASE reads {len(atoms)} of its {n_rows} atoms")
        if scale != 1.0 and atoms.pbc.any():
            raise ValueError(f"its cell is in {head[1]}, which ASE takes for Å")
        atoms.positions *= scale
    return images


def _vasp(text: str, path: Path, read: Read, say: Say) -> list[Atoms]:
    """The structure, with the elements that its first line or a POTCAR names in VASP 4."""
    lines = text.split("\n")
    counts = lines[5].partition("!")[0].split() if len(lines) > 5 else []
    if counts and counts[0].isdigit():
        symbols = [word for word in lines[0].split() if word in atomic_numbers]
        if len(symbols) != len(counts):
            from ase.io.vasp import atomtypes_outpot

            try:
                symbols = atomtypes_outpot(str(path), len(counts))
            except Exception as error:  # no such file, or none that can be read
                raise ValueError(
                    "it does not name its elements: add a line with them above their numbers"
                ) from error
        say(f"its elements {' '.join(symbols)} are taken from its first line or from a POTCAR")
        lines.insert(5, " ".join(symbols))
    if len(lines) > 7 and lines[7].strip()[:1] in ("s", "S"):
        pattern = re.compile(r"(?<!\S)\.?f(alse)?\.?(?!\S)", re.IGNORECASE)
        lines[8:] = [pattern.sub("F", line) for line in lines[8:]]
    return read("\n".join(lines))


Mend = Callable[[str, Path, Read, Say], list[Atoms]]

MENDS: dict[str, Mend] = {
    "abinit-in": _abinit,
    "abinit-out": _output_of_abinit,
    "cif": _cif,
    "cjson": _cjson,
    "cp2k-restart": _restart_of_cp2k,
    "cube": _cube,
    "dlp4": _config_of_dl_poly,
    "espresso-out": _output_of_espresso,
    "gamess-us-out": _output_of_gamess,
    "gaussian-in": _gaussian,
    "gromacs": _gromacs,
    "gromos": _gromos,
    "lammps-data": _data,
    "lammps-dump-text": _dump,
    "mol": _mol,
    "nwchem-in": _nwchem,
    "proteindatabank": lambda text, _, read, say: structures_of_pdb(text, read, say),
    "res": _res,
    "sdf": _mol,
    "vasp": _vasp,
}

MENDED = frozenset({*REFUSED, *ONE_STRUCTURE, *UNREAD, *TOTALS, *MENDS})
"""Formats whose texts are looked through."""
