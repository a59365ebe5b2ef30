"""Parameters per element or per pair of elements, as tables over the species of a potential."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from basinax.numerics.settings import dtype_of, one_number

Parameter = float | Mapping[str | tuple[str, str], float]
"""One number for all atoms, or numbers per element ("Ar") and per pair (("Ar", "Kr"))."""


def species_of(**parameters: Parameter | None) -> tuple[int, ...]:
    """The atomic numbers that the parameters name, ascending; none if all are single numbers.

    Raises:
        ValueError: a name is no element.
        TypeError: a parameter is neither a number nor a mapping.
    """
    found = set()
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            if not value:
                raise ValueError(f"{name} must name at least one element, got an empty mapping")
            found |= {number for key in value for number in _pair_of(name, key)}
        elif isinstance(value, list | tuple) or (value is not None and np.ndim(value) != 0):
            raise TypeError(f"{name} must be a number or a mapping from elements, got {value!r}")
    return tuple(sorted(found))


def numbers_of(species: Sequence[str | int]) -> tuple[int, ...]:
    """The atomic numbers of elements given by symbols or numbers, in their order.

    Raises:
        ValueError: an entry is no element, or an element is named twice.
        TypeError: a text was given in place of a sequence.
    """
    if isinstance(species, str):
        raise TypeError(f"species must be a sequence such as ('H', 'C'), got {species!r}")
    numbers = []
    for one in species:
        is_number = np.issubdtype(dtype_of(one), np.integer)
        number = int(one) if is_number else atomic_numbers.get(str(one))
        if number is None or not 0 < number < len(chemical_symbols):
            raise ValueError(f"species: {one!r} is no element")
        if number in numbers:
            raise ValueError(f"species: {chemical_symbols[number]} is named twice")
        numbers.append(number)
    return tuple(numbers)


def check_symbols(
    elements: Iterable[Any], known: Collection[str] | None = None, lack: str = "no named parameters"
) -> None:
    """Raise TypeError where an element is not text, and ValueError where it is not known."""
    for element in elements:
        if not isinstance(element, str):
            raise TypeError(f'elements are named one by one, such as "Cu", "Au"; got {element!r}')
        if known is not None and element not in known:
            raise ValueError(f"{lack} for {element!r}, only for {', '.join(known)}")


def per_element(name: str, value: Parameter, species: tuple[int, ...]) -> np.ndarray:
    """[species]: the value of each element; NaN where none was given."""
    if not isinstance(value, Mapping):
        return np.full(max(len(species), 1), one_number(value, name))
    values = np.full(len(species), np.nan)
    for key, number in value.items():
        a, b = _pair_of(name, key)
        if a == b:
            values[species.index(a)] = one_number(number, name)
    return values


def per_pair(
    name: str, value: Parameter | None, species: tuple[int, ...], otherwise: np.ndarray
) -> np.ndarray:
    """[species, species]: the value of each pair, `otherwise`'s for a pair that was not given.

    Raises:
        ValueError: a pair has no value even so, or two that differ.
    """
    table = np.array(otherwise, float)
    if isinstance(value, Mapping):
        given: dict[tuple[int, int], float] = {}
        for key, number in value.items():
            a, b = sorted(species.index(z) for z in _pair_of(name, key))
            number = one_number(number, name)
            if given.setdefault((a, b), number) != number:
                raise ValueError(f"{name} has two values for {key}: {given[a, b]} and {number}")
            table[a, b] = table[b, a] = number
    elif value is not None:
        table[:] = one_number(value, name)
    if np.isnan(table).any():
        if not species:
            raise ValueError(f"{name} has no value: give a number")
        a, b = (chemical_symbols[species[k]] for k in np.argwhere(np.isnan(table))[0])
        raise ValueError(f"{name} has no value for the pair {a}-{b}: add {(a, b)!r}")
    return table


def check_positive(**tables: np.ndarray) -> None:
    """Raises ValueError where a table holds a number that is not positive and finite."""
    for name, table in tables.items():
        wrong = ~(np.isfinite(table) & (table > 0))
        if wrong.any():
            raise ValueError(f"{name} must be positive and finite, got {table[wrong][0]}")


def _pair_of(name: str, key: Any) -> tuple[int, int]:
    symbols = (key, key) if isinstance(key, str) else key
    if not (isinstance(symbols, tuple) and len(symbols) == 2):
        raise ValueError(f'{name}: {key!r} is neither an element ("Ar") nor a pair ("Ar", "Kr")')
    for symbol in symbols:
        if symbol not in atomic_numbers:
            raise ValueError(f"{name}: {symbol!r} is no chemical element")
    return atomic_numbers[symbols[0]], atomic_numbers[symbols[1]]
