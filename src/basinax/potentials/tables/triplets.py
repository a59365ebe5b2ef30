"""Parameters per triplet of elements, as LAMMPS has them: from files, as tables over species."""

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_numbers, chemical_symbols
from jaxtyping import Array, Float, PyTree

from basinax.numerics.settings import one_number
from basinax.potentials.tables.files import lines_of

Triplet = tuple[str, str, str]
"""The symbols of an atom and of two neighbours."""

T = TypeVar("T", bound=NamedTuple)


def read_triplets(
    path: str | os.PathLike[str], entry: type[T], elements: Sequence[str] | None = None
) -> dict[Triplet, T]:
    """The entries of a file: three symbols and the fields of `entry`, on one or several lines.

    Args:
        elements: the ones to have, or one symbol; all if None. Entries with others are left out,
            whatever they have in the places of numbers and call their atoms.

    Raises:
        ValueError: the file breaks the format, or its units are not metal; names the file and the
            line.
        OSError: there is no such file.
    """
    path, elements = Path(path), [elements] if isinstance(elements, str) else elements
    words = [
        (number, word)
        for number, line in enumerate(lines_of(path), 1)
        for word in line.partition("#")[0].split()
    ]
    width, found = 3 + len(entry._fields), {}
    for start in range(0, len(words), width):
        chunk = words[start : start + width]
        key = tuple(word for _, word in chunk[:3])
        if elements is not None and not set(elements).issuperset(key):
            found.setdefault(key, None)
            continue
        if found.get(key) is not None:
            _fail(path, chunk[0][0], f"{' '.join(key)} stands twice")
        found[key] = _entry_of(path, chunk, entry)
    if not found:
        raise ValueError(f"{path}: there is no entry in it")
    known = {symbol for key in found for symbol in key}
    for symbol in elements or ():
        if symbol not in known:
            raise ValueError(f"{path} has no {symbol}, only {', '.join(sorted(known))}")
    return {key: values for key, values in found.items() if values is not None}


def _entry_of(path: Path, words: list[tuple[int, str]], entry: type[T]) -> T:
    fields = entry._fields
    for k, (line, word) in enumerate(words[:3]):
        if atomic_numbers.get(word, 0) < 1:
            _fail(path, line, f"expected the symbol of element {k + 1} of an entry, got {word!r}")
    values = []
    for name, (line, word) in zip(fields, words[3:], strict=False):
        try:
            values.append(float(word))
        except ValueError:
            values.append(np.nan)
        if not np.isfinite(values[-1]):
            _fail(path, line, f"expected {name.rstrip('_')}, a finite number, got {word!r}")
    if len(words) < 3 + len(fields):
        wanted = f"an entry has 3 symbols and {len(fields)} numbers"
        _fail(path, words[-1][0], f"{wanted}, the last one ends after {len(words)} words")
    return entry._make(values)


def _fail(path: Path, line: int, message: str) -> NoReturn:
    raise ValueError(f"{path}, line {line}: {message}")


def tables_of(
    triplets: Mapping[Triplet, T],
) -> tuple[tuple[int, ...], dict[str, Float[np.ndarray, "species species species"]]]:
    """The atomic numbers that occur, ascending, and for each field a table over triplets of them.

    Raises:
        ValueError: a triplet is missing, a symbol is no element, or a number is not finite.
    """
    symbols = {symbol for key in triplets for symbol in key}
    for symbol in symbols:
        if atomic_numbers.get(symbol, 0) < 1:
            raise ValueError(f"{symbol!r} is no chemical element")
    if not symbols:
        raise ValueError("triplets must hold at least one entry, got none")
    species = tuple(sorted(atomic_numbers[symbol] for symbol in symbols))
    names = [chemical_symbols[z] for z in species]
    keys = list(itertools.product(names, names, names))
    missing = [key for key in keys if key not in triplets]
    if missing:
        raise ValueError(
            f"no parameters for {' '.join(missing[0])} (an atom and two neighbours): {len(missing)}"
            f" of the {len(keys)} triplets of {', '.join(names)} are missing"
        )
    fields = type(triplets[keys[0]])._fields
    values = np.empty((len(keys), len(fields)))
    for row, key in zip(values, keys, strict=True):
        of = " ".join(key)
        row[:] = [
            one_number(value, f"{name} of {of}")
            for name, value in zip(fields, triplets[key], strict=True)
        ]
    tables = values.T.reshape(-1, *(len(names),) * 3)
    return species, dict(zip(fields, tables, strict=True))


def check_range(
    species: tuple[int, ...],
    table: Float[np.ndarray, "species *neighbors"],
    is_right: np.ndarray,
    what: str,
) -> None:
    """Raises ValueError where a number is not right; names the elements."""
    if is_right.all():
        return
    at = tuple(np.argwhere(~is_right)[0])
    of = " ".join(chemical_symbols[species[k]] for k in at)
    raise ValueError(f"{what}, got {table[at]} for {of}")


def narrowed(
    tables: PyTree[Float[np.ndarray, "species *neighbors"]],
) -> PyTree[Float[Array, "species *narrow"]]:
    """The tables with one entry along each axis, past the first, on which none of them depends."""
    for axis in range(1, jax.tree.leaves(tables)[0].ndim):
        first = jax.tree.map(functools.partial(np.take, indices=[0], axis=axis), tables)
        is_same = jax.tree.map(lambda t, one: bool((t == one).all()), tables, first)
        tables = first if all(jax.tree.leaves(is_same)) else tables
    return jax.tree.map(lambda t: jnp.array(t, float), tables)
