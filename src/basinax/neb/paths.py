"""Paths between two structures: they are read, checked, interpolated and joined into one system."""

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms, FixCartesian, FixedLine, FixedPlane, FixScaled
from jaxtyping import Float

from basinax.numerics.settings import SIZE, at_least, known, require_whole, shown
from basinax.results.snapshot import Template
from basinax.structures.constraints.hosted import forces_under
from basinax.structures.read import check_are_several, intake, to_nearest_images

FIXING = FixAtoms, FixCartesian, FixedLine, FixedPlane, FixScaled
"""The constraints of an image: those that act on atoms one by one."""

NUMBER, IMAGES, ARRAYS = "number", "images", "arrays"
"""Keys in the `info` of a path: its number among those of a call, and of each of its images the
info and the arrays, but numbers and positions."""

OF_ATOMS = "numbers", "positions"
"""The arrays that a path itself has; those of its images may differ in all others."""

SAME_CELL = 1e-8
"""The largest difference in Å between cells of images, as in ASE."""

SAME_LENGTH = 1e-6
"""The largest difference between ways of one length, relative to it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Band:
    """The images of one path, checked, as they came or were interpolated, without jumps."""

    images: list[Atoms]
    springs: Float[np.ndarray, "images-1"]
    """Spring constants in eV/Å²."""

    @property
    def n_atoms(self) -> int:
        return len(self.images[0])

    def constrained(self, image: int, forces: np.ndarray) -> np.ndarray:
        """Forces on an image under its constraints, as ASE's `get_forces` gives them."""
        return forces_under(self.images[image], forces)

    def joined(self, number: int) -> Atoms:
        """All images as one structure, of which the end points are fixed; see `images_of`.

        Args:
            number: that of the path among the paths of a call.
        """
        first, *others = map(_bare, self.images)
        joined = first
        for image in others:
            joined += image
        starts = np.arange(len(self.images)) * self.n_atoms
        atoms = np.arange(self.n_atoms)
        ends = np.concatenate([atoms, atoms + starts[-1]])
        constraints: list[Any] = [FixAtoms(indices=ends)]
        for constraint in self.images[0].constraints:
            of_all = copy.deepcopy(constraint)
            of_all.index = np.concatenate([constraint.index + start for start in starts])
            constraints.append(of_all)
        joined.set_constraint(constraints)
        joined.info = {
            NUMBER: number,
            IMAGES: [image.info for image in self.images],
            ARRAYS: [_further_arrays(image) for image in self.images],
        }
        return joined


def _bare(image: Atoms) -> Atoms:
    """A copy with nothing but elements, positions, cell and pbc."""
    bare = image.copy()
    bare.set_constraint()
    bare.arrays = {name: bare.arrays[name] for name in OF_ATOMS}
    return bare


def _further_arrays(image: Atoms) -> dict[str, np.ndarray]:
    return {name: x.copy() for name, x in image.arrays.items() if name not in OF_ATOMS}


def images_of(joined: Template) -> list[Template]:
    """The images of a path, from the structure that holds all of them."""
    infos, further = joined.info[IMAGES], joined.info[ARRAYS]
    constraints = copy.deepcopy(joined.constraints[1:])
    for constraint in constraints:
        constraint.index = constraint.index[: len(constraint.index) // len(infos)]
    (numbers, *_) = np.split(joined.arrays["numbers"], len(infos))
    return [
        joined._replace(arrays={"numbers": numbers, **own}, info=info, constraints=constraints)
        for info, own in zip(infos, further, strict=True)
    ]


def read_bands(
    paths: Any, k: Any, n_images: int | None, interpolate: str, method: str
) -> list[Band]:
    """The paths, if each is one; see `neb` for the arguments and errors."""
    if interpolate not in ("idpp", "linear"):
        raise ValueError(f'interpolate must be "idpp" or "linear", got {shown(interpolate)}')
    if n_images is not None:
        require_whole(n_images, "n_images", at_least(3))
    check_are_several(paths)
    paths = list(paths)
    if paths and all(isinstance(path, Atoms) for path in paths):
        raise TypeError("paths must be a list of paths, got one path: pass [path]")
    springs = _one_a_path(k, len(paths))
    bands = []
    for number, (path, own) in enumerate(zip(paths, springs, strict=True)):
        try:
            bands.append(read_band(path, own, n_images, interpolate, method))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise type(error)(f"path {number}: {error}") from error
    return bands


def _one_a_path(k: Any, n_paths: int) -> list[Any]:
    """The spring constants of each path: one number, or those of its springs."""
    if isinstance(k, str) or (not isinstance(k, Sequence) and np.ndim(k) == 0):
        return [k] * n_paths
    if len(k) != n_paths:
        raise ValueError(
            "k must be one number, or have one entry (a number, or those of its springs) for each"
            f" of the {n_paths} paths, got {len(k)} entries"
        )
    return list(k)


def read_band(path: Any, k: Any, n_images: int | None, interpolate: str, method: str) -> Band:
    """One path, see `read_bands`; `k` is one number or those of its springs."""
    images = [structure.atoms for structure in intake(path)]
    _check_alike(images)
    if len(images) < 2:
        raise ValueError(
            f"a path needs two end points and images between them, got {len(images)} image"
        )
    if len(images) == 2 and n_images is None:
        raise ValueError(
            "it has two end points and no images between: pass n_images=7 (--images 7), say"
        )
    n_springs = (len(images) if len(images) > 2 else cast(int, n_images)) - 1
    springs = known(k)
    shapes = (), (n_springs,)
    if (
        springs is None
        or springs.dtype.kind not in "iuf"
        or springs.shape not in shapes
        or not SIZE.test(springs).all()
    ):
        raise ValueError(
            f"k must be a number of 0 or more, or one for each of the {n_springs} springs,"
            f" got {shown(k)}"
        )
    springs = np.broadcast_to(springs.astype(float), (n_springs,))
    is_given = len(images) > 2
    if not is_given:
        images = _interpolated(images, springs, interpolate, method)
    images = _unwrapped(images)
    at = _first_equal(images) if is_given else None
    if at is not None:
        raise ValueError(
            f"images {at} and {at + 1} are the same, so no path leads from one to the other: pass"
            " the two end points and n_images, and images are interpolated"
        )
    return Band(images, springs)


def _first_equal(images: list[Atoms]) -> int | None:
    """The first image whose atoms are where those of the next are, if any."""
    pairs = enumerate(itertools.pairwise(images))
    return next((k for k, (a, b) in pairs if np.array_equal(a.positions, b.positions)), None)


def _check_alike(images: list[Atoms]) -> None:
    first = images[0] if images else None
    for number, image in enumerate(images):
        assert first is not None
        if len(image) != len(first):
            raise ValueError(
                f"image {number} has {len(image)} atoms and image 0 has {len(first)}: images have"
                " the same atoms"
            )
        if (image.numbers != first.numbers).any():
            at = int(np.argmax(image.numbers != first.numbers))
            raise ValueError(
                f"image {number} has {image.symbols[at]} as atom {at}, image 0 has"
                f" {first.symbols[at]}: images have their atoms in one order"
            )
        if (image.pbc != first.pbc).any():
            raise ValueError(
                f"image {number} has pbc={image.pbc.tolist()}, image 0 {first.pbc.tolist()}"
            )
        if np.abs(image.cell.array - first.cell.array).max() > SAME_CELL:
            raise ValueError(
                f"the cell of image {number} differs from that of image 0: cells of a path are"
                " fixed and the same"
            )
        if [c.todict() for c in image.constraints] != [c.todict() for c in first.constraints]:
            raise ValueError(f"the constraints of image {number} differ from those of image 0")
        for constraint in image.constraints:
            if not isinstance(constraint, FIXING):
                names = ", ".join(kind.__name__ for kind in FIXING)
                raise NotImplementedError(
                    f"image {number} has the constraint {type(constraint).__name__}; paths accept"
                    f" {names}"
                )


def _interpolated(
    ends: list[Atoms], springs: np.ndarray, interpolate: str, method: str
) -> list[Atoms]:
    """Images between two end points, made by ASE, along the shortest ways between cells."""
    from ase.mep import NEB, idpp_interpolate

    first, last = (end.copy() for end in _unwrapped(ends))
    if method == "string" and np.array_equal(first.positions, last.positions):
        raise ValueError("its end points are the same: no string lies between them")
    images = [first, *(first.copy() for _ in springs[1:]), last]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # atoms on one place
            band = NEB(images, k=cast(Any, springs), method=method)
            # Not with mic: ASE takes longer ways in skewed cells.
            band.interpolate("linear")
            if interpolate == "idpp":
                mic = bool(first.pbc.any())
                idpp_interpolate(band, traj=cast(Any, None), log=cast(Any, None), mic=mic)
    except RuntimeError as error:
        raise ValueError("the constraints do not allow the interpolated images") from error
    at = next((k for k, image in enumerate(images) if not np.isfinite(image.positions).all()), None)
    if at is not None:
        raise ValueError(
            f"image {at} cannot be interpolated ({interpolate}): atoms meet. Give the images, or"
            " an image between as a path of three"
        )
    first.calc, last.calc = (end.calc for end in ends)
    return images


def _unwrapped(images: list[Atoms]) -> list[Atoms]:
    """Images of which each lies by the shortest ways from the one before, across boundaries.

    A way as given that is one of the shortest stays: of a hop by half a cell, rounding would
    decide the direction.
    """
    cell, pbc = images[0].cell, images[0].pbc
    found = images[:1]
    for image in images[1:]:
        way = image.positions - found[-1].positions
        shortest = to_nearest_images(way, cell.array, pbc)
        lengths, least = (np.linalg.norm(x, axis=1) for x in (way, shortest))
        is_longer = lengths > (1 + SAME_LENGTH) * least
        # Whole multiples of cell vectors, so that other atoms keep their bits.
        times = np.rint(np.linalg.solve(cell.complete().array.T, (shortest - way).T).T)
        times *= is_longer[:, None]
        if times.any():
            moved = image.copy()
            moved.positions += times @ cell.array
            moved.calc = image.calc
            image = moved
        found.append(image)
    return found
