"""The stretches, bends and torsions of a structure, over periodic images, from its geometry alone.

Bonds are pairs within 1.3 of the sum of their covalent radii, between elements that bond
covalently; in molecules also between such an element and a metal with at most six of them. Another
pair with a metal is held by a spring alone. In periodic structures, pairs more than three bonds
apart are contacts; the fragments of a molecule are joined by the shortest contacts instead. Lists
are ordered by atom numbers, then shifts, so equal lists are equal arrays.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from ase.data import covalent_radii
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from basinax.internal.arithmetic import product
from basinax.internal.primitives import cross
from basinax.neighbors.search import ordered_pairs
from basinax.systems.plan import ranges

COVALENT = np.isin(
    np.arange(len(covalent_radii)),
    [1, 2, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 32, 33, 34, 35, 36, 51, 52, 53, 54],
)
"""Elements, by atomic number, whose bonds to each other bend and twist."""

IONIC = np.isin(np.arange(len(covalent_radii)), [3, 11, 12, 19, 20, 37, 38, 55, 56, 87, 88])
"""Alkali and alkaline-earth metals, which are held by springs in molecules, too."""

BOND, SPRING, CONTACT = 1.3, 1.8, 3.0
"""Largest distances of bonds, springs and contacts, in sums of covalent radii."""

NEAREST = 0.3
"""A structure with a nearer pair, in sums of covalent radii, has no coordinates: no bond is as
short, and its force constant would be meaningless."""

LINEAR = -0.9961946980917455
"""Bends with a smaller cosine, that of 175°, are near-linear."""

LINEAR_OF_PLANAR = -0.9659258262890683
"""Likewise, that of 165°, at atoms that may be hypervalent: at square-planar ones an ordinary bend
leaves a direction without a coordinate."""

MANY_BONDS, MOST_BONDS = 4, 6
"""Only atoms with at most so many bonds have bends; the second where hypervalent. One end of a bond
with torsions has at most the first."""

FLAT = 0.3
"""The largest volume of the unit vectors of three bonds at a flat centre."""

STRETCH, METAL, WEAK_CONTACT = 0, 1, 2
"""Kinds of stretches."""

FEW = 100
"""Molecules of at most this many atoms try all pairs, which is faster than a search."""


class Standing(NamedTuple):
    """The geometry of a structure from which a list is made."""

    numbers: Int[np.ndarray, "atoms"]
    positions: Float[np.ndarray, "atoms 3"]
    cell: Float[np.ndarray, "3 3"]
    pbc: Bool[np.ndarray, "3"]


class Images(NamedTuple):
    """Atoms in any cell, the home cell included."""

    atoms: Int[np.ndarray, "images"]
    shifts: Int[np.ndarray, "images 3"]

    def take(self, at: Any) -> "Images":
        return Images(self.atoms[at], self.shifts[at])

    def shifted(self, shifts: np.ndarray) -> "Images":
        return Images(self.atoms, self.shifts + shifts)


class NearPairs(NamedTuple):
    """Near pairs, each once, from the end with the lower number in the home cell."""

    i: Int[np.ndarray, "pairs"]
    far: Images
    kinds: Int[np.ndarray, "pairs"]
    """The kind of each pair; contacts may still be within three bonds."""

    def take(self, at: Any) -> "NearPairs":
        return NearPairs(self.i[at], self.far.take(at), self.kinds[at])


class Candidates(NamedTuple):
    """All coordinates that the pairs allow, independent of angles."""

    pairs: NearPairs
    links: Int[np.ndarray, "links 2"]
    every: "InternalList"
    """All angles are among its bends."""
    sides: Int[np.ndarray, "2 sides"]
    """Ends and starts of the sides of all angles: of angles, of the first three atoms of torsions
    and of their last three all first sides, then all second ones; then of impropers the three."""


class InternalList(NamedTuple):
    """Coordinates as numbers of images, whose atoms and cells are `owners` and `shifts`."""

    owners: Int[np.ndarray, "images"]
    shifts: Int[np.ndarray, "images 3"]
    kinds: Int[np.ndarray, "stretches"]
    stretches: Int[np.ndarray, "stretches 2"]
    bends: Int[np.ndarray, "bends 3"]
    linear: Int[np.ndarray, "linear 3"]
    torsions: Int[np.ndarray, "torsions 4"]
    flat: Int[np.ndarray, "flat 4"]
    """Impropers: two of the three neighbours, the centre, and the third neighbour."""
    degrees: Int[np.ndarray, "atoms"]
    """The number of bonds of each atom."""
    candidates: Candidates | None = None
    """The candidates from which the list was made."""
    decisions: Bool[np.ndarray, "candidates"] = np.zeros(0, bool)
    """Which angles are near-linear, which torsions can twist and which impropers are flat."""

    def is_same(self, other: "InternalList") -> bool:
        return all(map(np.array_equal, self[:-2], other[:-2]))


class Bonds:
    """Bonds from each of their ends, sorted by that end."""

    def __init__(self, n_atoms: int, ends: np.ndarray, others: Images):
        order = np.argsort(_codes(ends, others.atoms, others.shifts), kind="stable")
        self.n_atoms, self.ends, self.others = n_atoms, ends[order], others.take(order)
        self.degrees = np.bincount(ends, minlength=n_atoms)
        self._starts = np.cumsum(self.degrees) - self.degrees

    def onward(self, images: Images) -> tuple[np.ndarray, np.ndarray, Images]:
        """All bonds of these images: numbers of image and bond, and the image at the end."""
        counts = self.degrees[images.atoms]
        at = np.repeat(np.arange(len(counts)), counts)
        bonds = ranges(self._starts[images.atoms], counts)
        return at, bonds, self.others.take(bonds).shifted(images.shifts[at])


def list_of(structure: Standing, before: InternalList | None = None) -> InternalList:
    """The coordinates of a structure; returns the list `before` if it is the same."""
    pairs = _pairs(structure)
    if pairs is None:
        made = _nothing(len(structure.numbers))
    else:
        known = None if before is None else before.candidates
        candidates = _candidates(structure, pairs, known)
        decisions = _decisions(structure, candidates)
        if (
            before is not None
            and candidates is before.candidates
            and np.array_equal(decisions, before.decisions)
        ):
            return before
        made = _chosen(candidates, decisions)
    return before if before is not None and made.is_same(before) else made


def _nothing(n_atoms: int) -> InternalList:
    none = [np.zeros((0, width), int) for width in (2, 3, 3, 4, 4)]
    images = np.zeros(0, int), np.zeros((0, 3), int)
    return InternalList(*images, np.zeros(0, int), *none, degrees=np.zeros(n_atoms, int))


def _pairs(structure: Standing) -> NearPairs | None:
    """The pairs that are bonds, springs or contacts; None if a pair is too near."""
    numbers, positions, cell, pbc = structure
    radii, is_covalent = covalent_radii[numbers], COVALENT[numbers]
    i, far = _near(structure, _reach(radii, is_covalent, pbc))
    apart = positions.take(far.atoms, 0) - positions.take(i, 0)
    if pbc.any():
        apart += product(far.shifts, cell)
    relative = np.sqrt((apart * apart).sum(1)) / (radii[i] + radii[far.atoms])
    if (relative < NEAREST).any():
        return None
    are_covalent = is_covalent[i] & is_covalent[far.atoms]
    if not (pbc.any() or is_covalent.all()):
        are_covalent |= _are_ligated(numbers, i, far.atoms, relative < BOND)
    kinds = np.where(are_covalent, WEAK_CONTACT, METAL)
    kinds[are_covalent & (relative < BOND)] = STRETCH
    contact = CONTACT if pbc.any() else BOND
    chosen = relative < np.where(are_covalent, contact, SPRING)
    return NearPairs(i, far, kinds).take(np.flatnonzero(chosen))


def _are_ligated(
    numbers: np.ndarray, i: np.ndarray, far: np.ndarray, is_near: np.ndarray
) -> Bool[np.ndarray, "pairs"]:
    """The mask of pairs of a covalent element and a metal that bonds to few of these."""
    is_covalent = COVALENT[numbers]
    mixed = is_covalent[i] != is_covalent[far]
    metals = np.where(is_covalent[i], far, i)
    n_bonds = np.bincount(metals[mixed & is_near], minlength=len(numbers))
    is_ligated = ~IONIC[numbers] & (n_bonds > 0) & (n_bonds <= MOST_BONDS)
    return mixed & is_ligated[metals]


def _reach(radii: np.ndarray, is_covalent: np.ndarray, pbc: np.ndarray) -> float:
    """The largest distance in Å of a pair of any kind."""
    largest = 2 * radii.max()
    reach = 0.0 if is_covalent.all() else SPRING * largest
    if is_covalent.any():
        part = CONTACT if pbc.any() else BOND
        reach = max(reach, part * 2 * radii[is_covalent].max())
    return float(reach)


def _near(structure: Standing, radius: float) -> tuple[np.ndarray, Images]:
    """Pairs within at least this radius, each once, from the lower end in the home cell.

    Raises LinAlgError if positions and cell allow no list.
    """
    numbers, positions, cell, pbc = structure
    n = len(numbers)
    if not pbc.any() and n <= FEW:
        return _all_pairs(n)
    found = ordered_pairs(positions, cell, pbc, radius)
    if found is None:
        raise np.linalg.LinAlgError
    i, far = found.receivers, Images(found.senders, found.shifts)
    lead = np.sign(far.shifts) @ [9, 3, 1]  # the sign of the first shift that is not 0
    kept = (i < far.atoms) | ((i == far.atoms) & (lead > 0))
    return i[kept], far.take(kept)


@functools.lru_cache(FEW)
def _all_pairs(n_atoms: int) -> tuple[np.ndarray, Images]:
    i, k = np.triu_indices(n_atoms, 1)
    return i, Images(k, np.zeros((len(k), 3), int))


def _candidates(structure: Standing, pairs: NearPairs, before: Candidates | None) -> Candidates:
    """All possible coordinates; returns `before` if the pairs are the same."""
    alike = before if before is not None and _are_equal(pairs, before.pairs) else None
    if alike is not None and not len(alike.links):
        return alike
    numbers, positions, _, pbc = structure
    radii, is_covalent = covalent_radii[numbers], COVALENT[numbers]
    links = np.zeros((0, 2), int)
    if not pbc.any():
        links = _links(positions, radii, pairs)
    if alike is not None and np.array_equal(links, alike.links):
        return alike
    bonds = _from_both_ends(len(numbers), pairs.take(pairs.kinds == STRETCH))
    is_bonded = pairs.kinds == WEAK_CONTACT
    is_bonded[is_bonded] = _within_three_bonds(bonds, pairs.take(is_bonded))
    stretched = pairs.take(~is_bonded)
    can_bend = bonds.degrees <= np.where(_may_be_hypervalent(numbers), MOST_BONDS, MANY_BONDS)
    ends = pairs.i, pairs.far.atoms
    can_twist = (pairs.kinds == STRETCH) & can_bend.take(ends).all(0)
    can_twist &= (bonds.degrees.take(ends) <= MANY_BONDS).any(0)
    halves = pairs.take(can_twist)
    stretched, bonds = _joined(stretched, links, bonds, is_covalent)
    home = Images(stretched.i, np.zeros((len(stretched.i), 3), int))
    groups = [(home, stretched.far), _angles(bonds, can_bend), _torsions(bonds, halves)]
    groups.append(_three_bonds(bonds, can_bend))
    images, (stretches, angles, torsions, flat) = _numbered(structure, groups)
    every = InternalList(
        *images, stretched.kinds, stretches, angles, angles[:0], torsions, flat, bonds.degrees
    )
    at = np.concatenate([angles, torsions[:, :3], torsions[:, 1:]])
    out = [flat[:, [end, 2]] for end in (0, 1, 3)]
    sides = np.concatenate([at[:, :2], at[:, :0:-1], *out]).T.copy()
    return Candidates(pairs, links, every, sides)


def _may_be_hypervalent(numbers: np.ndarray) -> Bool[np.ndarray, "atoms"]:
    """Atoms that may have more than four bonds: of the third period on."""
    return numbers > 10


def _are_equal(a: NearPairs, b: NearPairs) -> bool:
    return all(map(np.array_equal, (a.i, *a.far, a.kinds), (b.i, *b.far, b.kinds)))


def _from_both_ends(n_atoms: int, pairs: NearPairs) -> Bonds:
    i, far = pairs.i, pairs.far
    others = Images(np.r_[far.atoms, i], np.concatenate([far.shifts, -far.shifts]))
    return Bonds(n_atoms, np.r_[i, far.atoms], others)


def _within_three_bonds(bonds: Bonds, pairs: NearPairs) -> Bool[np.ndarray, "pairs"]:
    """The mask of pairs that two or three bonds join."""
    first, _, two = bonds.onward(bonds.others)
    second, _, three = bonds.onward(two)
    starts = bonds.ends[first]
    every = [(starts, two), (starts[second], three), (pairs.i, pairs.far)]
    columns = zip(*[(a, b.atoms, b.shifts) for a, b in every], strict=True)
    codes = _codes(*map(np.concatenate, columns))
    n = len(pairs.i)
    return np.isin(codes[-n:], codes[:-n]) if n else np.zeros(0, bool)


def _links(
    positions: np.ndarray, radii: np.ndarray, pairs: NearPairs
) -> Int[np.ndarray, "links 2"]:
    """The shortest contacts, in sums of radii, that join a molecule's fragments."""
    n = len(positions)
    ends = np.ones(len(pairs.i)), (pairs.i, pairs.far.atoms)
    n_fragments, label = connected_components(coo_array(ends, (n, n)), directed=False)
    if n_fragments <= 1:
        return np.zeros((0, 2), int)
    a, b = np.triu_indices(n, 1)
    relative = np.linalg.norm(positions[a] - positions[b], axis=1) / (radii[a] + radii[b])
    low, high = np.minimum(label[a], label[b]), np.maximum(label[a], label[b])
    code = low * n_fragments + high
    order = np.lexsort((relative, code))
    order = order[(low != high)[order]]
    first = order[np.unique(code[order], return_index=True)[1]]
    # Add 1: SciPy takes a weight of 0 for a missing edge.
    weights = coo_array((1 + relative[first], (low[first], high[first])), (n_fragments,) * 2)
    tree = minimum_spanning_tree(weights.tocsr()).tocoo()
    wanted = np.minimum(*tree.coords) * n_fragments + np.maximum(*tree.coords)
    chosen = first[np.isin(code[first], wanted)]
    return np.stack([a[chosen], b[chosen]], 1)


def _joined(
    stretched: NearPairs, links: np.ndarray, bonds: Bonds, is_covalent: np.ndarray
) -> tuple[NearPairs, Bonds]:
    """Add the links to stretches and bonds; links of covalent elements bend but never twist."""
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
    return NearPairs(np.r_[i, links[:, 0]], far, kinds), more


def _numbered(
    structure: Standing, groups: list[tuple[Images, ...]]
) -> tuple[Images, list[np.ndarray]]:
    """The distinct images, and the groups as numbers of these images."""
    every = [x for group in groups for x in group]
    if not structure.pbc.any():
        n = len(structure.numbers)
        images, numbers = Images(np.arange(n), np.zeros((n, 3), int)), [x.atoms for x in every]
    else:
        atoms, shifts = map(np.concatenate, zip(*every, strict=True))
        codes = _codes(atoms, shifts)
        _, first, found = np.unique(codes, return_index=True, return_inverse=True)
        ends = np.cumsum([len(x.atoms) for x in every])[:-1]
        images, numbers = Images(atoms[first], shifts[first]), np.split(found.ravel(), ends)
    of_each = iter(numbers)
    return images, [np.stack([next(of_each) for _ in group], 1) for group in groups]


def _codes(*columns: np.ndarray) -> np.ndarray:
    """One integer per row of integer columns, in the order of the rows."""
    rows = np.concatenate([c[:, None] if c.ndim == 1 else c for c in columns], axis=1)
    lowest = rows.min(0, initial=0)
    sizes = rows.max(0, initial=0) - lowest + 1
    if math.prod(sizes.tolist()) >= 2**63:  # where atoms are unwrapped over many images
        return np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    return np.ravel_multi_index((rows - lowest).T, sizes)


def _of_all(images: Any, which: Any) -> Any:
    """The chosen entries of each array of images."""
    return tuple(each.take(which) for each in images)


def _angles(bonds: Bonds, can_bend: np.ndarray) -> tuple[Images, Images, Images]:
    """Every pair of bonds of an atom in the home cell."""
    centres = Images(bonds.ends, np.zeros((len(bonds.ends), 3), int))
    at, other, k = bonds.onward(centres)
    kept = (other < at) & can_bend[bonds.ends[at]]
    return _of_all((bonds.others.take(at), centres.take(at), k), kept)


def _torsions(bonds: Bonds, halves: NearPairs) -> tuple[Images, Images, Images, Images]:
    """All torsions i-j-k-l about bonds j-k."""
    j, k = Images(halves.i, np.zeros((len(halves.i), 3), int)), halves.far
    at, _, i = bonds.onward(j)
    j, k = j.take(at), k.take(at)
    i, j, k = _of_all((i, j, k), ~_are_same(i, k))
    at, _, l = bonds.onward(k)  # noqa: E741
    i, j, k = _of_all((i, j, k), at)
    return _of_all((i, j, k, l), ~_are_same(l, j) & ~_are_same(l, i))


def _three_bonds(bonds: Bonds, can_bend: np.ndarray) -> tuple[Images, Images, Images, Images]:
    """Centres with three bonds: two neighbours, the centre, the third neighbour."""
    centres = np.flatnonzero((bonds.degrees == 3) & can_bend)
    home = Images(centres, np.zeros((len(centres), 3), int))
    _, _, others = bonds.onward(home)
    a, b, c = (others.take(slice(at, None, 3)) for at in range(3))
    return a, b, home, c


def _are_same(a: Images, b: Images) -> Bool[np.ndarray, "images"]:
    return (a.atoms == b.atoms) & (a.shifts == b.shifts).all(1)


def _decisions(structure: Standing, candidates: Candidates) -> Bool[np.ndarray, "candidates"]:
    """Which candidates are what at the structure's geometry."""
    every, x = candidates.every, structure.positions
    if structure.pbc.any():
        x = x[every.owners] + product(every.shifts, structure.cell)
    ends, starts = candidates.sides
    vectors = x.take(ends, 0) - x.take(starts, 0)
    units = vectors / np.sqrt((vectors * vectors).sum(1, keepdims=True))
    n, n_twists, n_flat = (len(at) for at in (every.bends, every.torsions, every.flat))
    sides, flat = np.split(units, [len(units) - 3 * n_flat])
    first, second = sides.reshape(2, -1, 3)
    cosines = (first * second).sum(1)
    can_twist = (np.abs(cosines[n:]) <= -LINEAR).reshape(2, n_twists).all(0)
    u, v, w = flat.reshape(3, -1, 3)
    is_flat = np.abs((u * cross(v, w)).sum(1)) < FLAT
    centres = structure.numbers[every.owners[every.bends[:, 1]]]
    is_linear = cosines[:n] < np.where(_may_be_hypervalent(centres), LINEAR_OF_PLANAR, LINEAR)
    return np.concatenate([is_linear, can_twist, is_flat])


def _chosen(candidates: Candidates, decisions: Bool[np.ndarray, "candidates"]) -> InternalList:
    """The candidates that are coordinates."""
    every = candidates.every
    groups = every.bends, every.torsions, every.flat
    is_linear, can_twist, is_flat = np.split(decisions, np.cumsum([*map(len, groups)])[:-1])
    return every._replace(
        bends=every.bends[~is_linear],
        linear=every.bends[is_linear],
        torsions=every.torsions[can_twist],
        flat=every.flat[is_flat],
        candidates=candidates,
        decisions=decisions,
    )
