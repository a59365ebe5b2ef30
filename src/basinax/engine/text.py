"""Potentials from text such as `lennard-jones:epsilon=0.01,sigma=3.4`, for the command line."""

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from basinax.config.specs import (
    alike,
    choose_alike,
    make,
    optimizer_from,
    optimizers_by_name,
    parse,
)
from basinax.engine.python import potential_of_file
from basinax.models.evaluators.calculator import ASECalculator
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.models.jax_model import JaxModel
from basinax.optimizers.protocol import AbstractTransform
from basinax.potentials import (
    EAM,
    EMT,
    AbstractPotential,
    Buckingham,
    LennardJones,
    Morse,
    StillingerWeber,
    Tersoff,
    ZhouEAM,
    stillinger_weber,
    tersoff,
)
from basinax.potentials.tables.eam_files import Format
from basinax.structures.cells.kinds import AbstractCell, Frechet, Strain, UnitCell


def potential_from(text: str) -> AbstractPotential | AbstractEvaluator:
    """The potential of a text: its name, and its options as `NAME:KEY=VALUE,...`.

    An option for one element or pair has it after a dot. Element symbols select published
    parameters; with neither symbols nor `epsilon`, Lennard-Jones uses those of all noble gases. EMT
    and Zhou's EAM have only published parameters; EMT without symbols uses all its elements.
    Buckingham has named sets.

    `eam:FILE` reads a file of tables. The rest of the text is the path, except `,format=alloy` (or
    fs, eam) at the end, for a name with another ending. `tersoff:FILE` and `stillinger-weber:FILE`
    read LAMMPS's formats; `,elements=Si-C` at the end selects elements. Symbols instead of a file
    select published parameters.

    `ase:MODULE:CALLABLE` imports a class or function that makes ASE calculators; options after a
    comma are its arguments. `nequix:FILE` is a model of the package nequix; behind the file,
    `,dtype=float64` evaluates it in double precision and `,shapes=fine` in more shapes.
    `python:FILE.py:NAME` runs a file and takes from it a potential, an ASE calculator, or a
    function that makes one of these.

    >>> potential_from("lennard-jones:epsilon=0.0104,sigma=3.4,cutoff=8.5").cutoff
    8.5
    >>> mixture = potential_from(
    ...     "lennard-jones:epsilon.Ar=0.0104,epsilon.Kr=0.0140,epsilon.Ar-Kr=0.0119,sigma=3.5"
    ... )
    >>> neon_and_argon = potential_from("lennard-jones:Ne,Ar,cutoff=9")
    >>> alloy = potential_from("zhou:Cu,Ni")
    >>> gold_in_copper = potential_from("emt:Cu,Au")
    >>> silica = potential_from("buckingham:BKS,cutoff=10")
    >>> salt = potential_from("buckingham:A.Na-Cl=1000,rho.Na-Cl=0.32,q.Na=1,q.Cl=-1,alpha=0.2")
    >>> carbide = potential_from("tersoff:Si,C")
    >>> calculator = potential_from("ase:ase.calculators.emt:EMT,asap_cutoff=true")

    Raises:
        ValueError: the name, an option or an element is unknown, a number is out of range, a file
            is broken, or a package is missing.
        OSError: the file does not exist.
    """
    name, _, rest = text.partition(":")
    from_file = _FILES.get(alike(name.strip(), _FILES))
    if from_file is not None:
        return from_file(rest)
    spec = parse(text)
    maker = choose_alike("potential", spec.name, _FILES | _MAKERS)
    options = _per_species(spec.options)
    if maker is LennardJones and not {"epsilon", "sigma"} & set(options):
        maker = LennardJones.named
    if maker is Buckingham and spec.words:
        maker = Buckingham.named
    if maker in (LennardJones.named, Buckingham.named, EMT, ZhouEAM):
        maker = functools.partial(maker, *spec.words)
    elif spec.words:
        raise ValueError(f"potential {spec.name}: expected KEY=VALUE, got {spec.words[0]!r}")
    return make("potential", spec.name, maker, options)


def named_potential(potential: Any) -> Any:
    """The potential, made from its text if it is one."""
    return potential_from(potential) if isinstance(potential, str) else potential


def named_optimizer(optimizer: Any) -> Any:
    """The optimizer, made from its text if it is one."""
    return optimizer_from(optimizer) if isinstance(optimizer, str) else optimizer


def named_model(potential: Any, optimizer: Any) -> tuple[Any, Any]:
    """The potential and the optimizer, made from their texts.

    An optimizer in the place of the potential is that of structures with their own calculators.
    """
    if optimizer is None and _is_optimizer(potential):
        potential, optimizer = None, potential
    return named_potential(potential), named_optimizer(optimizer)


def _is_optimizer(value: Any) -> bool:
    if isinstance(value, str):
        known = optimizers_by_name()
        return alike(value.partition(":")[0].strip(), known) in known
    return isinstance(value, AbstractTransform)


def cell_from(text: str) -> AbstractCell:
    """The moving cell of a text: its name, and its options as `NAME:KEY=VALUE,...`.

    A mask is six digits (xx, yy, zz, yz, xz, xy), 1 for entries that may move.

    >>> cell_from("frechet:pressure=0.01").pressure
    0.01
    >>> cell_from("unit-cell:mask=110001").movable().sum()
    np.int64(4)

    Raises:
        ValueError: the name or an option is unknown, or a value out of range.
    """
    spec = parse(text)
    if spec.words:
        raise ValueError(f"cell {spec.name}: expected KEY=VALUE, got {spec.words[0]!r}")
    maker = choose_alike("cell", spec.name, CELLS)
    options = dict(spec.options)
    if "mask" in options:
        digits = re.search(r"mask\s*=\s*([^,]*)", text)
        options["mask"] = _flags(digits[1].strip() if digits else "")
    return make("cell", spec.name, maker, options)


CELLS = {"frechet": Frechet, "strain": Strain, "unit-cell": UnitCell}


def _flags(digits: str) -> tuple[bool, ...]:
    if len(digits) != 6 or set(digits) - {"0", "1"}:
        raise ValueError(f"mask must be six digits 0 or 1 (xx, yy, zz, yz, xz, xy), got {digits!r}")
    return tuple(digit == "1" for digit in digits)


_MAKERS = {
    "buckingham": Buckingham,
    "eam": EAM,
    "emt": EMT,
    "lennard-jones": LennardJones,
    "morse": Morse,
    "stillinger-weber": StillingerWeber,
    "tersoff": Tersoff,
    "zhou": ZhouEAM,
}


def _from_tables(text: str) -> EAM:
    """The potential of `FILE` or `FILE,format=FORMAT`; paths may contain `,` and `=`."""
    path, comma, format = text.rpartition(",format=")
    if not comma:
        path, format = text, None
    if not path:
        raise ValueError("potential eam: expected eam:FILE or eam:FILE,format=alloy, got no file")
    return EAM.read(path, cast(Format | None, format))


def _from_triplets(maker: Any, named: Any, text: str) -> AbstractPotential:
    """The potential of `FILE`, `FILE,elements=A-B` or of elements with published parameters."""
    path, comma, elements = text.rpartition(",elements=")
    if comma:
        return maker.read(path, elements.split("-"))
    words = [word.strip() for word in text.split(",")]
    if set(words) <= set(named):
        return maker.named(*words)
    if not text:
        known = ", ".join(named)
        raise ValueError(f"expected a file or elements of {known} behind the colon, got nothing")
    return maker.read(text)


def _calculator(text: str) -> ASECalculator:
    """A calculator of `MODULE:CALLABLE` or `MODULE:CALLABLE,OPTION=VALUE,...`."""
    module, colon, call = text.partition(":")
    name, _, options = call.partition(",")
    if not (colon and module and name):
        raise ValueError(
            f"potential ase: expected ase:MODULE:CALLABLE[,OPTION=VALUE,...], got {text!r}"
        )
    spec = parse(f"{name}:{options}" if options else name)
    if spec.words:
        raise ValueError(f"potential ase: expected OPTION=VALUE, got {spec.words[0]!r}")
    try:
        make = getattr(importlib.import_module(module), spec.name)
    except ImportError as error:
        raise ValueError(f"potential ase: {module} cannot be imported: {error}") from error
    except AttributeError:
        raise ValueError(f"potential ase: {module} has no {spec.name}") from None
    return ASECalculator(functools.partial(make, **spec.options))


def _nequix(text: str) -> JaxModel:
    """The model of `FILE`, with options as `,dtype=float64,shapes=fine` behind it."""
    path, options = text, {}
    while found := re.fullmatch(r"(.*),(dtype|shapes)=([^,]*)", path, re.DOTALL):
        path, options[found[2]] = found[1], found[3]
    if not path:
        raise ValueError(f"potential nequix: expected {POTENTIALS['nequix']}, got no file")
    allowed = {"dtype": ("float32", "float64"), "shapes": ("few", "fine")}
    for name, value in options.items():
        if value not in allowed[name]:
            either = " or ".join(allowed[name])
            raise ValueError(f"potential nequix: {name} must be {either}, got {value!r}")
    try:
        return JaxModel.nequix(path, **options)
    except FileNotFoundError as error:
        if "," not in path:
            raise
        raise FileNotFoundError(f"{error}: expected {POTENTIALS['nequix']}") from None
    except ImportError as error:
        raise ValueError(f"potential nequix: {error}") from error


POTENTIALS: dict[str, Callable[..., Any] | str] = _MAKERS | {
    "ase": "ase:MODULE:CALLABLE[,OPTION=VALUE,...]",
    "eam": "eam:FILE[,format=alloy|fs|eam]",
    "nequix": "nequix:FILE[,dtype=float64][,shapes=fine]",
    "python": "python:FILE.py:NAME",
    "stillinger-weber": "stillinger-weber:ELEMENT,... or stillinger-weber:FILE[,elements=A-B]",
    "tersoff": "tersoff:ELEMENT,... or tersoff:FILE[,elements=A-B]",
}
"""The maker of each potential, or the form of its text where that has no options."""

_FILES: dict[str, Callable[[str], AbstractPotential | AbstractEvaluator]] = {
    "ase": _calculator,
    "eam": _from_tables,
    "nequix": _nequix,
    "python": potential_of_file,
    "stillinger-weber": functools.partial(_from_triplets, StillingerWeber, stillinger_weber.NAMED),
    "tersoff": functools.partial(_from_triplets, Tersoff, tersoff.NAMED),
}


def _per_species(options: dict[str, Any]) -> dict[str, Any]:
    """`sigma.Ar` and `sigma.Ar-Kr` become entries of one mapping."""
    gathered: dict[str, Any] = {}
    for key, value in options.items():
        name, dot, species = key.partition(".")
        if isinstance(gathered.get(name, {}), Mapping) is not bool(dot) and name in gathered:
            raise ValueError(f"{name} is given for all atoms, and for some: expected one of both")
        if not dot:
            gathered[name] = value
            continue
        first, dash, second = species.partition("-")
        gathered.setdefault(name, {})[(first, second) if dash else first] = value
    return gathered
