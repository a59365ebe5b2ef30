"""Tables of embedded-atom potentials from files in the formats setfl and funcfl of DYNAMO.

The formats are those of LAMMPS, https://docs.lammps.org/pair_eam.html. Words are read one after
another, wherever lines end, as ASE reads them.
"""

import os
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, get_args

import numpy as np
from ase.data import atomic_numbers, chemical_symbols
from ase.units import Bohr, Hartree
from jaxtyping import Float

from basinax.potentials.tables.files import lines_of

Format = Literal["alloy", "fs", "eam"]
"""setfl with a density per element, setfl with a density per pair, funcfl."""

SUFFIXES: dict[str, Format] = {
    ".alloy": "alloy",
    ".setfl": "alloy",
    ".set": "alloy",
    ".fs": "fs",
    ".eam": "eam",
    ".funcfl": "eam",
}

LEAST = 5
"""Points that a table must have: a cubic spline that begins at the second needs four."""


class Tables(NamedTuple):
    """The tables of a file, over its elements in its order."""

    elements: list[str]
    drho: float
    dr: float
    """In Å."""
    cutoff: float
    """In Å."""
    embedding: Float[np.ndarray, "elements densities"]
    """In eV, at densities from 0."""
    density: Float[np.ndarray, "elements elements distances"]
    """The density of a neighbour of the second element at an atom of the first; from 0 Å."""
    pair: Float[np.ndarray, "elements elements distances"]
    """Distance times pair energy, in eV Å; symmetric."""


def read_tables(path: str | os.PathLike[str], format: Format | None = None) -> Tables:
    """The tables of a file, in the format that its name ends in if `format` is None.

    Raises:
        ValueError: the format is unknown, or the file breaks it or has units other than metal;
            names the file and the line.
        OSError: there is no such file.
    """
    path = Path(path)
    found = SUFFIXES.get(path.suffix) if format is None else format
    if found is None or found not in get_args(Format):
        raise ValueError(
            f"{path}: format must be one of {', '.join(get_args(Format))}, or None where the name"
            f" ends in one of {', '.join(SUFFIXES)}; got {format!r}"
        )
    return _funcfl(_Words(path, 1)) if found == "eam" else _setfl(_Words(path, 3), found)


class _Grid(NamedTuple):
    n_rho: int
    drho: float
    n_r: int
    dr: float
    cutoff: float


class _Words:
    """The words of a file behind its header, taken one after another."""

    def __init__(self, path: Path, n_header: int):
        self.path = path
        lines = lines_of(path)
        split = [line.split() for line in lines[n_header:]]
        self._words = [word for words in split for word in words]
        numbers = np.arange(n_header + 1, n_header + 1 + len(split))
        self._lines = np.repeat(numbers, [len(words) for words in split])
        self._at, self._last = 0, len(lines)

    def fail(self, message: str, at: int) -> NoReturn:
        line = self._lines[at] if at < len(self._words) else self._last
        raise ValueError(f"{self.path}, line {line}: {message}")

    def take(self, n: int, what: str) -> list[str]:
        """The next n words."""
        words = self._words[self._at : self._at + n]
        if len(words) < n:
            self.fail(f"the file ends in {what}, after {len(words)} of {n}", len(self._words))
        self._at += n
        return words

    def numbers(self, n: int, what: str) -> np.ndarray:
        """The next n numbers."""
        words = self.take(n, what)
        try:
            values = np.array(words, float)
        except ValueError:
            values = np.array([_as_float(word) for word in words])
        wrong = ~np.isfinite(values)
        if wrong.any():
            k = int(np.argmax(wrong))
            self.fail(f"expected {what}, a finite number, got {words[k]!r}", self._at - n + k)
        return values

    def integer(self, what: str) -> int:
        (word,) = self.take(1, what)
        try:
            return int(word)
        except ValueError:
            self.fail(f"expected {what}, an integer, got {word!r}", self._at - 1)

    def element(self) -> str:
        (word,) = self.take(1, "the symbols of elements")
        if atomic_numbers.get(word, 0) < 1:
            self.fail(f"{word!r} is no chemical element", self._at - 1)
        return word

    def grid(self) -> _Grid:
        """The numbers of densities and distances, and their steps."""
        at = self._at
        n_rho = self.integer("the number of densities")
        (drho,) = self.numbers(1, "the step of the densities")
        n_r = self.integer("the number of distances")
        if max(n_rho, n_r) > len(self._words):
            self.fail(
                f"tables of {n_rho} densities and {n_r} distances do not fit into the"
                f" {len(self._words)} words of the file",
                at,
            )
        dr, cutoff = self.numbers(2, "the step of the distances and the cutoff")
        if not (n_rho >= LEAST and n_r >= LEAST and min(drho, dr, cutoff) > 0):
            self.fail(
                f"tables need at least {LEAST} points, positive steps and a positive cutoff: got"
                f" {n_rho} densities by {drho}, {n_r} distances by {dr} Å, cutoff {cutoff} Å",
                at,
            )
        # Some files give n dr as their last distance.
        if cutoff > n_r * dr * (1 + 1e-9):
            self.fail(f"the cutoff, {cutoff} Å, lies beyond {n_r} distances by {dr} Å", at)
        return _Grid(n_rho, float(drho), n_r, float(dr), float(cutoff))

    def end(self) -> None:
        left = len(self._words) - self._at
        if left:
            self.fail(f"{left} words more than the sizes of the tables say", self._at)


def _as_float(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return np.nan


def _setfl(words: _Words, format: Format) -> Tables:
    n = words.integer("the number of elements")
    if n < 1:
        words.fail(f"expected at least one element, got {n}", 0)
    elements = [words.element() for _ in range(n)]
    if len(set(elements)) < n:
        words.fail(f"an element stands twice in {' '.join(elements)}", 1)
    grid = words.grid()
    # Read all numbers before making tables: a header may promise more than the file holds.
    embeddings, densities, pairs = [], [], {}
    for element in elements:
        words.integer(f"the atomic number of {element}")
        words.numbers(2, f"the mass and lattice constant of {element}")
        words.take(1, f"the lattice of {element}")
        embeddings.append(words.numbers(grid.n_rho, f"the embedding energy of {element}"))
        for _ in range(n) if format == "fs" else [0]:
            densities.append(words.numbers(grid.n_r, f"the density of {element}"))
    for i in range(n):
        for j in range(i + 1):
            what = f"r times the pair energy of {elements[i]} and {elements[j]}"
            pairs[i, j] = pairs[j, i] = words.numbers(grid.n_r, what)
    words.end()
    pair = np.array([[pairs[i, j] for j in range(n)] for i in range(n)])
    # A file lists densities by the neighbour's element, which is the second axis of the table.
    density = np.array(densities).reshape(n, -1, grid.n_r).swapaxes(0, 1)
    density = np.array(np.broadcast_to(density, pair.shape))
    return Tables(elements, grid.drho, grid.dr, grid.cutoff, np.array(embeddings), density, pair)


def _funcfl(words: _Words) -> Tables:
    number = words.integer("the atomic number")
    if not 0 < number < len(chemical_symbols):
        words.fail(f"{number} is the atomic number of no element", 0)
    words.numbers(2, "the mass and lattice constant")
    words.take(1, "the lattice")
    grid = words.grid()
    embedding = words.numbers(grid.n_rho, "the embedding energy")
    charge = words.numbers(grid.n_r, "the effective charge")
    density = words.numbers(grid.n_r, "the density")
    words.end()
    return Tables(
        [chemical_symbols[number]],
        grid.drho,
        grid.dr,
        grid.cutoff,
        embedding[None],
        density[None, None],
        (Hartree * Bohr * charge**2)[None, None],
    )
