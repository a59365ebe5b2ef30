"""Charge and spin of structures, and the warning of a potential that does not use them."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import atomic_masses

from basinax.numerics.settings import warn
from basinax.structures.read import name_of

USABLE = frozenset({"charge", "spin", "charges", "magmoms", "masses"})
"""What the numbers of a potential may depend on, besides elements, positions and cell: `charge` and
`spin` of the structure, `charges`, `magmoms` and `masses` of its atoms."""

WHOLE = 0.01
"""A sum of charges that is as close to a whole number is that number (e)."""

ISOTOPE = 2e-3
"""The relative deviation of a mass from its element's beyond which it is another isotope's."""


class Unused(UserWarning):
    """A potential does not use what a structure carries."""


def charge_of(atoms: Atoms) -> float:
    """The total charge in e: `info["charge"]`, or else the sum of initial charges.

    Raises:
        ValueError: `info["charge"]` is no number, or initial charges are not finite.
    """
    if (given := _number_of(atoms, "charge")) is not None:
        return given
    total = math.fsum(atoms.arrays.get("initial_charges", ()))
    if not math.isfinite(total):
        raise ValueError("the sum of its initial charges is not finite")
    return float(round(total)) if abs(total - round(total)) < WHOLE else total


def spin_of(atoms: Atoms) -> float:
    """The multiplicity 2S + 1: `info["spin"]`, or else one more than the sum of initial moments.

    A crystal whose info says nothing has 0, for no multiplicity.

    Raises:
        ValueError: `info["spin"]` is no number.
    """
    if (given := _number_of(atoms, "spin")) is not None:
        return given
    if atoms.pbc.any():
        return 0.0
    moments = atoms.arrays.get("initial_magmoms", np.zeros(1))
    return 1.0 + round(float(np.linalg.norm(np.sum(moments, axis=0))))


TOTALS = {"charge": charge_of, "spin": spin_of}

OF_ATOMS = ("initial_charges", "initial_magmoms", "masses")
"""ASE's names of arrays that a potential may not use."""


def check_totals(atoms: Sequence[Atoms], names: Sequence[str] = tuple(TOTALS)) -> None:
    """Raise ValueError, with its name, if a structure's charge or spin is no number."""
    for k, a in enumerate(atoms):
        for name in names:
            try:
                TOTALS[name](a)
            except ValueError as error:
                raise ValueError(f"{name_of(a, k)}: {error}") from None


def _number_of(atoms: Atoms, name: str) -> float | None:
    """The number in `info`, or None."""
    value = atoms.info.get(name)
    if value is None:
        return None
    try:
        return float(np.asarray(value, float).reshape(()))
    except (TypeError, ValueError):
        raise ValueError(f"info[{name!r}] must be a number, got {value!r:.60}") from None


def uses_of(potential: Any) -> frozenset[str]:
    """The names of `USABLE` that a potential uses; all for code of others, which may use any."""
    return getattr(potential, "uses", USABLE)


def unused_of(atoms: Atoms, uses: frozenset[str]) -> Iterator[str]:
    """What a structure carries besides what is used, in words.

    Initial moments of a crystal are a guess for calculators, and are left out.
    """
    of_system = {"charge": 0, "spin": 1}
    of_atoms = {"charges": ("initial_charges", "charge")}
    if not atoms.pbc.any():
        of_atoms["magmoms"] = "initial_magmoms", "spin"
    words = {"charges": "charges", "magmoms": "magnetic moments"}
    for name, (array, total) in of_atoms.items():
        if array in atoms.arrays and atoms.arrays[array].any() and not uses & {name, total}:
            yield words[name]
    if "masses" not in uses and "masses" in atoms.arrays:
        own = atomic_masses[atoms.numbers]
        if (np.abs(atoms.arrays["masses"] - own) > ISOTOPE * own).any():
            yield "masses of isotopes"
    for name, usual in of_system.items():
        try:
            value = _number_of(atoms, name)
        except ValueError:
            continue  # something else of this name
        if name not in uses and value not in (None, 0, usual):
            yield f"{name} {value:g}"


def unused_by_words(
    atoms: Sequence[Atoms],
    name_of: Callable[[int], str],
    uses: frozenset[str],
) -> str:
    """What of several structures is not used, with the names of structures; empty if nothing."""
    having: dict[str, list[str]] = {}
    for k, a in enumerate(atoms):
        for word in unused_of(a, uses):
            having.setdefault(word, []).append(name_of(k))
    return "; ".join(f"{word} (of {some_of(of)})" for word, of in having.items())


def some_of(names: list[str]) -> str:
    more = len(names) - 1
    return names[0] + (f" and {more} more" if more else "")


def warn_of_unused(atoms: Sequence[Atoms], potential: Any, noun: str = "system") -> bool:
    """Warn once of charges and spins that the potential does not use; return whether any are.

    Masses, which move no minimum, are left out.

    Args:
        noun: what a structure is called.
    """
    if all(
        a.arrays.keys().isdisjoint(OF_ATOMS) and a.info.keys().isdisjoint(TOTALS) for a in atoms
    ):
        return False
    uses = uses_of(potential) | {"masses"}
    if unused := unused_by_words(atoms, lambda k: name_of(atoms[k], k, noun), uses):
        kind = type(potential).__name__
        warn(f"{kind} does not use {unused}", Unused)
    return bool(unused)
