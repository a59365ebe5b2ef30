"""Contents of files that no potential uses, named in one warning."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import atomic_masses

from basinax.cli._console import print_warning

ISOTOPE = 2e-3
"""The relative deviation of a mass from its element's beyond which it is another isotope's."""


def warn_of_unused(atoms: list[Atoms], sources: list[str]) -> None:
    """List the contents of files that no potential uses, in one warning."""
    having: dict[str, list[str]] = {}
    for a, source in zip(atoms, sources, strict=True):
        for name in unused_of(a):
            having.setdefault(name, []).append(source)
    if having:
        named = "; ".join(f"{name} (of {some_of(of)})" for name, of in having.items())
        print_warning(f"the potential does not use {named}")


def some_of(sources: list[str]) -> str:
    more = len(sources) - 1
    return sources[0] + (f" and {more} more" if more else "")


def unused_of(atoms: Atoms) -> Iterator[str]:
    arrays = {"charges": "initial_charges", "magnetic moments": "initial_magmoms"}
    for name, array in arrays.items():
        if array in atoms.arrays and atoms.arrays[array].any():
            yield name
    own = atomic_masses[atoms.numbers]
    masses = atoms.arrays.get("masses", own)
    if (np.abs(masses - own) > ISOTOPE * own).any():
        yield "masses of isotopes"
    if _is_number(total := atoms.info.get("charge", 0)) and total != 0:
        yield f"charge {total:g}"
    if _is_number(spin := atoms.info.get("spin", 0)) and spin not in (0, 1):
        yield f"spin {spin:g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating)
