"""Which stretches, bends and torsions a structure has, over periodic images, from it alone.

Bonds are pairs within 1.3 of the sum of their covalent radii, of elements that bond covalently; a
pair with another element is held by a spring alone. In periodic structures pairs farther than three
bonds apart are contacts; a molecule in fragments is joined by the shortest ones instead. All is in
the order of numbers of atoms, then shifts, so equal lists are equal arrays.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from ase.data import covalent_radii
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

from basinax.atoms._neighbors.search import pairs_of, tasks_of

COVALENT = np.isin(
    np.arange(len(covalent_radii)),
    [1, 2, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 32, 33, 34, 35, 36, 51, 52, 53, 54],
)
"""By atomic number: elements that bond to their like by bonds that bend and twist."""

BOND, SPRING, CONTACT = 1.3, 1.8, 3.0
"""Distances, in sums of covalent radii, within which there are such."""

NEAREST = 0.3
"""A structure with a pair nearer than this, in sums of covalent radii, has no coordinates: no bond
is as short, and its force constant says nothing."""

LINEAR = np.cos(np.radians(175.0))
"""Cosines below are of near-linear bends."""

MOST_BONDS = 4
"""Only atoms with so many bonds, at most, have bends and torsions."""

FLAT = 0.15
"""The largest volume that the unit vectors of three bonds span at a flat centre."""

STRETCH, METAL, WEAK_CONTACT = 0, 1, 2
"""Kinds of stretches."""


class Structure(NamedTuple):
    """Where a structure stands when a list is made of it."""

    numbers: Int[np.ndarray, "atoms"]
    positions: Float[np.ndarray, "atoms 3"]
    cell: Float[np.ndarray, "3 3"]
    pbc: Bool[np.ndarray, "3"]


class Images(NamedTuple):
    """Atoms in cells other than the home cell, some may be in it."""

    atoms: Int[np.ndarray, "images"]
    shifts: Int[np.ndarray, "images 3"]

    def take(self, at: Any) -> "Images":
        return Images(self.atoms[at], self.shifts[at])

    def shifted(self, shifts: np.ndarray) -> "Images":
        return Images(self.atoms, self.shifts + shifts)


class InternalList(NamedTuple):
    """Coordinates as numbers of images, which `owners` and `shifts` tell."""

    owners: Int[np.ndarray, "images"]
    shifts: Int[np.ndarray, "images 3"]
    kinds: Int[np.ndarray, "stretches"]
    stretches: Int[np.ndarray, "stretches 2"]
    bends: Int[np.ndarray, "bends 3"]
    linear: Int[np.ndarray, "linear 3"]
    torsions: Int[np.ndarray, "torsions 4"]
    flat: Int[np.ndarray, "flat 4"]
    """Impropers: two of the three neighbours, the centre, and the third."""
    degrees: Int[np.ndarray, "atoms"]
    """How many bonds each atom has."""

    def is_same(self, other: "InternalList") -> bool:
        return all(np.array_equal(a, b) for a, b in zip(self, other, strict=True))


class Bonds:
    """Bonds from each of their ends, sorted by it."""

    def __init__(self, n_atoms: int, ends: np.ndarray, others: Images):
        order = np.argsort(_codes(ends, others.atoms, others.shifts), kind="stable")
        self.n_atoms, self.ends, self.others = n_atoms, ends[order], others.take(order)
        self.degrees = np.bincount(ends, minlength=n_atoms)
        self._starts = np.cumsum(self.degrees) - self.degrees

    def onward(self, images: Images) -> tuple[np.ndarray, np.ndarray, Images]:
        """All bonds from these images: from which, which bond, and where it leads."""
        counts = self.degrees[images.atoms]
        at = np.repeat(np.arange(len(counts)), counts)
        bonds = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        bonds += self._starts[images.atoms][at]
        return at, bonds, self.others.take(bonds).shifted(images.shifts[at])


def list_of(structure: Structure) -> InternalList:
    """The coordinates of a structure that stands there."""
    numbers, positions, cell, pbc = structure
    radii, is_covalent = covalent_radii[numbers], COVALENT[numbers]
    i, far = _near(structure, _reach(radii, is_covalent, pbc))
    apart = positions[far.atoms] + far.shifts @ cell - positions[i]
    relative = np.linalg.norm(apart, axis=1) / (radii[i] + radii[far.atoms])
    if (relative < NEAREST).any():
        return _nothing(len(numbers))
    are_covalent = is_covalent[i] & is_covalent[far.atoms]
    is_bond = are_covalent & (relative < BOND)
    is_spring = ~are_covalent & (relative < SPRING)
    bonds = _from_both_ends(len(numbers), i[is_bond], far.take(is_bond))
    kinds = np.where(is_spring, METAL, STRETCH)
    chosen = is_bond | is_spring
    if pbc.any():
        is_contact = are_covalent & ~is_bond & (relative < CONTACT)
        is_contact[is_contact] = ~_within_three_bonds(bonds, i[is_contact], far.take(is_contact))
        kinds[is_contact] = WEAK_CONTACT
        chosen |= is_contact
    can_bend = bonds.degrees <= MOST_BONDS
    halves = is_bond & can_bend[i] & can_bend[far.atoms]
    halves = i[halves], far.take(halves)
    stretched = i[chosen], far.take(chosen), kinds[chosen]
    if not pbc.any():
        links = _links(positions, radii, *stretched[:2])
        stretched, bonds = _joined(stretched, links, bonds, is_covalent)
    return _numbered(structure, bonds, can_bend, stretched, halves)


def _nothing(n_atoms: int) -> InternalList:
    none = [np.zeros((0, width), int) for width in (2, 3, 3, 4, 4)]
    images = np.zeros(0, int), np.zeros((0, 3), int)
    return InternalList(*images, np.zeros(0, int), *none, degrees=np.zeros(n_atoms, int))


def _reach(radii: np.ndarray, is_covalent: np.ndarray, pbc: np.ndarray) -> float:
    """Within which there may be pairs of any kind, in Å."""
    largest = 2 * radii.max()
    reach = 0.0 if is_covalent.all() else SPRING * largest
    if is_covalent.any():
        part = CONTACT if pbc.any() else BOND
        reach = max(reach, part * 2 * radii[is_covalent].max())
    return float(reach)


def _near(structure: Structure, radius: float) -> tuple[np.ndarray, Images]:
    """Pairs within a radius, and more, each once, from its lower end in the home cell.

    Raises LinAlgError where positions and cell allow no list.
    """
    numbers, positions, cell, pbc = structure
    n = len(numbers)
    if not pbc.any():
        i, k = np.triu_indices(n, 1)
        return i, Images(k, np.zeros((len(k), 3), int))
    (task,) = tasks_of([positions], cell[None], pbc[None], radius, float(np.finfo(float).eps))
    if task is None:
        raise np.linalg.LinAlgError
    found = pairs_of([(0, task)], np.zeros(1, int), n, reverse=False)
    i, k = np.repeat(np.arange(n), found.lengths[:n]), found.images
    further = np.maximum(k - n - 1, 0)
    is_further = (k >= n)[:, None]
    if not len(found.image_rows):
        far = Images(k, np.zeros((len(k), 3), int))
    else:
        far = Images(
            np.where(k >= n, found.image_rows[further], k),
            np.where(is_further, found.shifts[found.image_shifts[further]], 0),
        )
    lead = np.sign(far.shifts) @ [9, 3, 1]  # of the first shift that is not 0
    kept = (i < far.atoms) | ((i == far.atoms) & (lead > 0))
    return i[kept], far.take(kept)


def _from_both_ends(n_atoms: int, i: np.ndarray, far: Images) -> Bonds:
    others = Images(np.r_[far.atoms, i], np.concatenate([far.shifts, -far.shifts]))
    return Bonds(n_atoms, np.r_[i, far.atoms], others)


def _within_three_bonds(bonds: Bonds, i: np.ndarray, far: Images) -> Bool[np.ndarray, "pairs"]:
    """Which pairs two or three bonds join."""
    first, _, two = bonds.onward(bonds.others)
    second, _, three = bonds.onward(two)
    starts = bonds.ends[first]
    every = [(starts, two), (starts[second], three), (i, far)]
    columns = zip(*[(a, b.atoms, b.shifts) for a, b in every], strict=True)
    codes = _codes(*map(np.concatenate, columns))
    return np.isin(codes[-len(i) :], codes[: -len(i)]) if len(i) else np.zeros(0, bool)


def _links(
    positions: np.ndarray, radii: np.ndarray, i: np.ndarray, far: Images
) -> Int[np.ndarray, "links 2"]:
    """The shortest contacts, in sums of radii, that make one of a molecule's fragments."""
    n = len(positions)
    n_fragments, label = _fragments(n, i, far.atoms)
    if n_fragments <= 1:
        return np.zeros((0, 2), int)
    a, b = np.triu_indices(n, 1)
    relative = np.linalg.norm(positions[a] - positions[b], axis=1) / (radii[a] + radii[b])
    low, high = np.minimum(label[a], label[b]), np.maximum(label[a], label[b])
    code = low * n_fragments + high
    order = np.lexsort((relative, code))
    order = order[(low != high)[order]]
    first = order[np.unique(code[order], return_index=True)[1]]
    # A weight of 0 would be no edge.
    weights = coo_array((1 + relative[first], (low[first], high[first])), (n_fragments,) * 2)
    tree = minimum_spanning_tree(weights.tocsr()).tocoo()
    wanted = np.minimum(*tree.coords) * n_fragments + np.maximum(*tree.coords)
    chosen = first[np.isin(code[first], wanted)]
    return np.stack([a[chosen], b[chosen]], 1)


def _fragments(n_atoms: int, a: np.ndarray, b: np.ndarray) -> tuple[int, np.ndarray]:
    """How many parts hang together, and in which each atom is."""
    label = np.arange(n_atoms)
    while len(a):
        lowest = np.minimum(label[a], label[b])
        before = label.copy()
        np.minimum.at(label, label[a], lowest)
        np.minimum.at(label, label[b], lowest)
        label = label[label]
        if np.array_equal(label, before):
            break
    parts, label = np.unique(label, return_inverse=True)
    return len(parts), label


def _joined(stretched, links: np.ndarray, bonds: Bonds, is_covalent: np.ndarray):
    """The stretches and bonds with links; those of covalent elements bend, and none twist."""
    if not len(links):
        return stretched, bonds
    i, far, kinds = stretched
    a, b = links.T
    is_bond = is_covalent[a] & is_covalent[b]
    none = np.zeros((len(a), 3), int)
    far = Images(np.r_[far.atoms, b], np.concatenate([far.shifts, none]))
    kinds = np.r_[kinds, np.where(is_bond, WEAK_CONTACT, METAL)]
    a, b, none = a[is_bond], b[is_bond], none[is_bond]
    others = Images(
        np.r_[bonds.others.atoms, b, a], np.concatenate([bonds.others.shifts, none, none])
    )
    more = Bonds(bonds.n_atoms, np.r_[bonds.ends, a, b], others)
    return (np.r_[i, links[:, 0]], far, kinds), more


def _numbered(structure: Structure, bonds: Bonds, can_bend, stretched, halves) -> InternalList:
    i, far, kinds = stretched
    home = Images(i, np.zeros((len(i), 3), int))
    angles = _angles(bonds, can_bend)
    is_linear = _cosines(structure, *angles) < LINEAR
    of_kind = [_of_all(angles, ~is_linear), _of_all(angles, is_linear)]
    every = [(home, far), *of_kind, _torsions(structure, bonds, *halves)]
    every.append(_flat(structure, bonds, can_bend))
    images, numbers = _images(structure, [x for group in every for x in group])
    stretches, bends, linear, torsions, flat = (
        np.stack([next(numbers) for _ in group], 1) for group in every
    )
    return InternalList(
        owners=images.atoms,
        shifts=images.shifts,
        kinds=kinds,
        stretches=stretches,
        bends=bends,
        linear=linear,
        torsions=torsions,
        flat=flat,
        degrees=bonds.degrees,
    )


def _images(structure: Structure, groups: list[Images]) -> tuple[Images, Iterator[np.ndarray]]:
    """The images that occur, each once, and their numbers in each group."""
    if not structure.pbc.any():
        n = len(structure.numbers)
        return Images(np.arange(n), np.zeros((n, 3), int)), iter([x.atoms for x in groups])
    atoms, shifts = map(np.concatenate, zip(*groups, strict=True))
    codes = _codes(atoms, shifts)
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    ends = np.cumsum([len(x.atoms) for x in groups])[:-1]
    return Images(atoms[first], shifts[first]), iter(np.split(numbers.ravel(), ends))


def _codes(*columns: np.ndarray) -> np.ndarray:
    """One integer a row, in the order of rows, of columns of integers."""
    rows = np.concatenate([c[:, None] if c.ndim == 1 else c for c in columns], axis=1)
    lowest = rows.min(0, initial=0)
    sizes = rows.max(0, initial=0) - lowest + 1
    return np.ravel_multi_index((rows - lowest).T, sizes)


def _of_all(images: Any, which: Any) -> Any:
    """The images that are chosen of each."""
    return tuple(each.take(which) for each in images)


def _angles(bonds: Bonds, can_bend: np.ndarray) -> tuple[Images, Images, Images]:
    """Every pair of bonds of an atom in the home cell."""
    centres = Images(bonds.ends, np.zeros((len(bonds.ends), 3), int))
    at, other, k = bonds.onward(centres)
    kept = (other < at) & can_bend[bonds.ends[at]]
    return _of_all((bonds.others.take(at), centres.take(at), k), kept)


def _torsions(structure: Structure, bonds: Bonds, j: np.ndarray, k: Images):
    """All i-j-k-l over bonds j-k whose angles are not near-linear."""
    home = Images(j, np.zeros((len(j), 3), int))
    at, _, i = bonds.onward(home)
    home, k = home.take(at), k.take(at)
    kept = ~_are_same(i, k) & (np.abs(_cosines(structure, i, home, k)) <= -LINEAR)
    i, home, k = _of_all((i, home, k), kept)
    at, _, l = bonds.onward(k)  # noqa: E741
    i, home, k = _of_all((i, home, k), at)
    kept = ~_are_same(l, home) & ~_are_same(l, i)
    kept &= np.abs(_cosines(structure, home, k, l)) <= -LINEAR
    return _of_all((i, home, k, l), kept)


def _flat(structure: Structure, bonds: Bonds, can_bend: np.ndarray):
    """Centres with three bonds in a plane: two neighbours, the centre, the third."""
    centres = np.flatnonzero((bonds.degrees == 3) & can_bend)
    home = Images(centres, np.zeros((len(centres), 3), int))
    _, _, others = bonds.onward(home)
    a, b, c = (others.take(slice(at, None, 3)) for at in range(3))
    u, v, w = (_units(_vectors(structure, home, x)) for x in (a, b, c))
    is_flat = np.abs((u * np.cross(v, w)).sum(1)) < FLAT
    return _of_all((a, b, home, c), is_flat)


def _are_same(a: Images, b: Images) -> Bool[np.ndarray, "images"]:
    return (a.atoms == b.atoms) & (a.shifts == b.shifts).all(1)


def _vectors(structure: Structure, start: Images, end: Images) -> np.ndarray:
    apart = structure.positions[end.atoms] - structure.positions[start.atoms]
    if not structure.pbc.any():
        return apart
    return apart + (end.shifts - start.shifts) @ structure.cell


def _units(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.sqrt((vectors * vectors).sum(1, keepdims=True))


def _cosines(structure: Structure, i: Images, j: Images, k: Images) -> np.ndarray:
    u, v = _units(_vectors(structure, j, i)), _units(_vectors(structure, j, k))
    return (u * v).sum(1)
