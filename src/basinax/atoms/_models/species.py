"""The elements that a model knows."""

from collections.abc import Sequence

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers, chemical_symbols


def numbers_of(species: Sequence[str | int]) -> frozenset[int]:
    """The atomic numbers of elements given by symbols or numbers.

    Raises:
        ValueError: an entry is no element.
        TypeError: a text was given in place of a sequence.
    """
    if isinstance(species, str):
        raise TypeError(f"species must be a sequence such as ('H', 'C'), got {species!r}")
    numbers = set()
    for one in species:
        number = atomic_numbers.get(one) if isinstance(one, str) else int(one)
        if number is None or not 0 < number < len(chemical_symbols):
            raise ValueError(f"species: {one!r} is no element")
        numbers.add(number)
    return frozenset(numbers)


def check_species(atoms: Sequence[Atoms], known: frozenset[int]) -> None:
    """Raise ValueError if a structure has an element that the model does not know."""
    if not known:
        return
    for k, a in enumerate(atoms):
        unknown = sorted(set(np.unique(a.numbers).tolist()) - known)
        if unknown:
            names = ", ".join(chemical_symbols[z] for z in unknown)
            raise ValueError(
                f"system {k} ({a.symbols}): the model does not know {names}; it knows"
                f" {_in_few(sorted(known))}"
            )


def _in_few(numbers: Sequence[int]) -> str:
    symbols = [chemical_symbols[z] for z in numbers]
    few = ", ".join(symbols[:20])
    return few if len(symbols) <= 20 else f"{few} and {len(symbols) - 20} others"
