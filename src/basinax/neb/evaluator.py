"""A potential of paths, which asks another potential for their images.

To the loop a path is one structure: the images' atoms, one image after another.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jaxtyping import Float

from basinax.models.evaluators.protocol import (
    AbstractEvaluator,
    AbstractSession,
    Answer,
    Evaluated,
    EvaluationError,
    Request,
    taken,
)
from basinax.neb.forces import Chain, band_forces, tangent_weights
from basinax.neb.paths import NUMBER, Band
from basinax.neb.spline import Grid
from basinax.numerics.rounding import BLOCK
from basinax.structures.batch import in_parts, padded_size, row_starts, rows_of_sizes
from basinax.structures.machine import machine
from basinax.systems.index import index_of_sizes


class OfImages(tuple[dict[str, Any], ...]):
    """The results of each image of a path by ASE's names; never changed, so copies share them."""

    def __deepcopy__(self, memo: Any) -> "OfImages":
        return self


class Ends(NamedTuple):
    """The results of both end points of a path."""

    results: tuple[dict[str, Any], dict[str, Any]]
    message: str = ""
    """The reason if an end point could not be evaluated."""


@dataclasses.dataclass(frozen=True, eq=False)
class PathEvaluator(AbstractEvaluator):
    """The potential of paths."""

    inner: AbstractEvaluator
    """The potential of the images."""
    bands: Sequence[Band] | Mapping[int, Band]
    """The paths by their numbers, as are the next ones."""
    ends: Sequence[Ends] | Mapping[int, Ends]
    method: str
    climb: Float[np.ndarray, "paths"] | Mapping[int, float]
    """The highest image of a path climbs from the first step on at which the largest force on the
    path is smaller (eV/Å): inf for always, -inf for never."""
    dtype: Any
    last: dict[int, OfImages] = dataclasses.field(default_factory=dict)
    """The results of each path's images at its last point, by the number of the path."""

    @property
    def is_conservative(self) -> bool:
        return False  # a path has no energy whose derivatives the forces are

    @property
    def uses(self) -> frozenset[str]:
        return self.inner.uses

    @property
    def n_at_once(self) -> int:
        return self.inner.n_at_once

    def on(self, devices: Sequence[Any]) -> Self:
        return dataclasses.replace(self, inner=self.inner.on(devices))

    @property
    def is_string(self) -> bool:
        return self.method == "string"

    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        numbers = [a.info[NUMBER] for a in atoms]
        bands, ends = [self.bands[k] for k in numbers], [self.ends[k] for k in numbers]
        climb = np.array([self.climb[k] for k in numbers])
        here = dataclasses.replace(self, bands=bands, ends=ends, climb=climb)
        images = [image for k in numbers for image in self.bands[k].images]
        return _Session(here, numbers, self.inner.open(images, [False] * len(images)))

    def numbered(self, numbers: Sequence[int], last: dict[int, OfImages]) -> Self:
        """The same with paths of these numbers, whose last results come into `last`."""
        bands, ends, climb = (
            dict(zip(numbers, x, strict=True)) for x in (self.bands, self.ends, self.climb)
        )
        return dataclasses.replace(self, bands=bands, ends=ends, climb=climb, last=last)


class _Asked(NamedTuple):
    """A path whose images are being evaluated."""

    positions: Float[np.ndarray, "images atoms 3"]
    found: list[Evaluated | None]
    """The results of the images that move."""


class _Session(AbstractSession):
    def __init__(self, of: PathEvaluator, numbers: list[int], inner: AbstractSession):
        """Args: of: with the paths of this session, which have these numbers among all."""
        self._of, self._numbers, self._inner = of, numbers, inner
        self._starts = np.cumsum([0, *(len(of.bands[k].images) for k in range(len(of.bands)))])
        """The number of each path's first image."""
        self._asked: dict[int, _Asked] = {}
        self._failed: list[Answer] = []
        self._climbing: set[int] = set()
        self._parts = _parts(of)

    def ask(self, requests: Sequence[Request]) -> None:
        of_images = []
        for request in requests:
            number, band = request.number, self._of.bands[request.number]
            if message := self._of.ends[number].message:
                self._failed.append((number, EvaluationError(message)))
                continue
            n_images = len(band.images)
            positions = request.positions.reshape(n_images, -1, 3)
            self._asked[number] = _Asked(positions, [None] * (n_images - 2))
            of_images += [
                request._replace(number=int(self._starts[number]) + k, positions=positions[k])
                for k in range(1, n_images - 1)
            ]
        self._inner.ask(of_images)

    def answers(self, timeout: float) -> list[Answer]:
        answers, self._failed = self._failed, []
        whole = []
        for at, found in [] if answers else self._inner.answers(timeout):
            number = int(np.searchsorted(self._starts, at, side="right")) - 1
            image = at - int(self._starts[number])
            if number not in self._asked:  # another image has failed
                continue
            found = _checked(found, self._of.bands[number].n_atoms)
            if isinstance(found, EvaluationError):
                self._end_images(number)
                answers.append((number, EvaluationError(f"image {image}: {found}")))
                continue
            path = self._asked[number]
            path.found[image - 1] = found
            if None not in path.found:
                whole.append(number)
        return answers + self._forces(whole)

    def phase(self) -> str:
        return self._inner.phase()

    def end(self, number: int) -> None:
        self._climbing.discard(number)
        self._failed = [answer for answer in self._failed if answer[0] != number]
        self._end_images(number)

    def close(self) -> None:
        self._inner.close()

    def _end_images(self, number: int) -> None:
        if self._asked.pop(number, None) is not None:
            for at in range(*self._starts[number : number + 2].tolist()):
                self._inner.end(at)

    def _forces(self, numbers: list[int]) -> list[Answer]:
        """The answers to paths of which every image is evaluated."""
        answers, waiting = [], set(numbers)
        for part in self._parts:
            own = [number for number in part.numbers if number in waiting]
            if own:
                answers += self._of_part(part, own)
        return answers

    def _of_part(self, part: "_Part", numbers: list[int]) -> list[Answer]:
        of, asked = self._of, {number: self._asked.pop(number) for number in numbers}
        dtype = np.dtype(of.dtype)
        positions, forces = np.zeros((2, *part.shape), dtype)
        weights = np.zeros((2, len(part.chain.moves)), dtype)
        energies, highest = {}, {}
        for number, path in asked.items():
            band, images = of.bands[number], part.images(number)
            found = [x for x in path.found if x is not None]
            ends = of.ends[number].results
            energies[number] = np.array(
                [ends[0]["energy"], *(x.energy for x in found), ends[1]["energy"]]
            )
            inner = energies[number][1:-1]
            # Of equal energies ASE takes the last.
            highest[number] = len(inner) - int(np.argmax(inner[::-1]))
            weights[:, images] = tangent_weights(of.method, energies[number], highest[number])
            for k, rows in enumerate(part.rows(number)):
                positions[rows] = path.positions[k]
                if 0 < k < len(band.images) - 1:
                    forces[rows] = band.constrained(k, found[k - 1].forces)
        made = band_forces(of.method, part.chain, positions, forces, (weights[0], weights[1]))
        relaxing, climbing, largest = (np.asarray(x, np.float64) for x in jax.device_get(made))
        answers = []
        for number, path in asked.items():
            rows = part.rows(number)
            if largest[part.images(number)].max() < of.climb[number]:
                self._climbing.add(number)
            force = [relaxing[r] for r in rows]
            if number in self._climbing:
                force[highest[number]] = climbing[rows[highest[number]]]
            first, last = of.ends[number].results
            results = OfImages([first, *(x.properties() for x in path.found if x), last])
            of.last[self._numbers[number]] = results
            energy = float(energies[number][highest[number]])
            answer = Evaluated(energy, np.concatenate(force), None, {"images": results})
            answers.append((number, answer))
        return answers


def _checked(answer: Evaluated | EvaluationError, n_atoms: int) -> Evaluated | EvaluationError:
    """The results of an image, or an error if they are not finite."""
    found = taken(answer, n_atoms, ["energy", "forces"])
    if isinstance(found, EvaluationError):
        return found
    if np.isfinite(found.energy) and np.isfinite(found.forces).all():
        return found
    return EvaluationError("its energy or a force is not finite")


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """Paths whose forces are computed together; their images lie one after another."""

    chain: Any
    first_images: dict[int, int]
    """The first image of each path, by the number of the path."""
    starts: np.ndarray
    """The first row of each image."""
    bands: Sequence[Band] | Mapping[int, Band]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of positions."""
        return len(self.chain.before), 3

    @property
    def numbers(self) -> list[int]:
        return list(self.first_images)

    def images(self, number: int) -> slice:
        first = self.first_images[number]
        return slice(first, first + len(self.bands[number].images))

    def rows(self, number: int) -> list[slice]:
        """The rows of each image of a path."""
        n_atoms = self.bands[number].n_atoms
        return [slice(start, start + n_atoms) for start in self.starts[self.images(number)]]


def _parts(of: PathEvaluator) -> list[_Part]:
    """The paths in parts of one shape, or of few; no bit depends on them."""

    def rows_of(number: int) -> int:
        return rows_of_sizes(map(len, of.bands[number].images))

    parts = in_parts(range(len(of.bands)), rows_of, machine().max_rows)
    return [_part(numbers, of) for numbers in parts]


def _part(numbers: list[int], of: PathEvaluator) -> _Part:
    bands, dtype = of.bands, np.dtype(of.dtype)
    sizes = [bands[number].n_atoms for number in numbers for _ in bands[number].images]
    n_rows = padded_size(rows_of_sizes(sizes), BLOCK)
    n_images = padded_size(len(sizes))
    starts = row_starts(sizes)
    before = np.arange(n_rows, dtype=np.int32)
    after = before.copy()
    springs, moves = np.zeros((2, n_images), dtype), np.zeros(n_images, bool)
    first_images: dict[int, int] = {}
    image = 0
    for number in numbers:
        band, first_images[number] = bands[number], image
        for k in range(len(band.images) - 1):
            here, there = (
                slice(start, start + band.n_atoms) for start in starts[image + k : image + k + 2]
            )
            after[here], before[there] = np.arange(n_rows)[there], np.arange(n_rows)[here]
        image += len(band.images)
        springs[0, first_images[number] + 1 : image] = band.springs
        springs[1, first_images[number] : image - 1] = band.springs
        moves[first_images[number] + 1 : image - 1] = True
    index = index_of_sizes(sizes + [0] * (n_images - len(sizes)), align=BLOCK, n_rows=n_rows)
    arrays: dict[str, Any] = {"before": before, "after": after, "moves": moves}
    arrays |= {"springs_before": springs[0], "springs_after": springs[1]}
    grid = _grid([bands[number] for number in numbers], starts, n_rows) if of.is_string else None
    return _Part(Chain(index=index, grid=grid, **arrays), first_images, starts, bands)


def _grid(bands: list[Band], starts: np.ndarray, n_rows: int) -> Any:
    """The grid of paths whose images begin at these rows."""
    sizes = np.array([len(band.images) for band in bands], np.int32)
    n_atoms = np.array([band.n_atoms for band in bands], np.int32)
    of_images = np.full((sizes.max(), len(bands)), n_rows, np.int32)
    ends = sizes.cumsum()
    for path, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        of_images[:size, path] = starts[end - size : end]
    most_atoms = int(n_atoms.max())
    places = jnp.asarray(of_images), jnp.asarray(sizes), jnp.asarray(n_atoms)
    return Grid.of(*places, most_atoms, n_rows)
