"""Equal structures: equal energies, and equal distances between their atoms."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import vesin
from ase import Atoms

from basinax.numerics.settings import SIZE, one_number
from basinax.structures.read import listed, name_of

REACH = 6.0
"""The largest distance, in Å, that is compared in periodic structures."""

Distances = dict[tuple[int, int], np.ndarray]
"""Sorted distances in Å between atoms of two elements, by their atomic numbers."""


def unique(
    structures: Sequence[Atoms] | Any, *, energy: float = 1e-3, distance: float = 0.02
) -> list[list[int]]:
    """Find structures that are equal up to order, rotation, reflection and periodic images.

    Two structures are equal if they have the same elements, their energies differ by at most
    `energy`, and their sorted distances by at most `distance`: all distances without periodic
    directions, and those up to 6 Å otherwise. A structure equals its mirror image. Different cells
    of one crystal are not recognised.

    Args:
        structures: the result of `relax`, or structures with calculators that hold energies.
        energy: in eV.
        distance: in Å.

    Returns:
        The numbers of equal structures, the lowest energy first, in groups by increasing energy.
        Structures without a finite energy are left out.

    Raises:
        TypeError: `structures` is no list of structures.
        ValueError: a tolerance is negative or not finite, or a structure has no calculator.

    >>> from ase.build import molecule
    >>> from basinax.atoms import EMT, evaluate
    >>> water, turned = molecule("H2O"), molecule("H2O")
    >>> turned.rotate(30, "x")
    >>> unique(evaluate([water, molecule("CH4"), turned], EMT()).atoms)
    [[1], [0, 2]]
    """
    for name, tolerance in (("energy", energy), ("distance", distance)):
        one_number(tolerance, name, SIZE)
    atoms = listed(getattr(structures, "atoms", structures))
    for k, a in enumerate(atoms):
        if a.calc is None:
            raise ValueError(f"{name_of(a, k)} has no energy: relax or evaluate it before")
    energies = np.array([a.get_potential_energy() for a in atoms], float)
    groups: list[list[int]] = []
    kept: list[Distances] = []
    """The distances of the first member of each group."""
    first = 0
    order = np.argsort(energies, kind="stable")
    for k in order[np.isfinite(energies[order])].tolist():
        # Groups are sorted by energy: skip groups whose energy is too low to match.
        while first < len(groups) and energies[groups[first][0]] < energies[k] - energy:
            first += 1
        own = _distances(atoms[k], distance)
        for group, theirs in zip(groups[first:], kept[first:], strict=True):
            if _are_same(atoms[group[0]], atoms[k], theirs, own, distance):
                group.append(k)
                break
        else:
            groups.append([k])
            kept.append(own)
    return groups


def _distances(atoms: Atoms, tolerance: float) -> Distances:
    """All distances of an open structure; in a periodic one, up to slightly beyond `REACH`."""
    if atoms.pbc.any():
        i, j, d = vesin.ase_neighbor_list("ijd", atoms, REACH + tolerance)
    else:
        i, j = np.triu_indices(len(atoms), 1)
        d = np.linalg.norm(atoms.positions[i] - atoms.positions[j], axis=1)
    pairs = np.sort(np.stack([atoms.numbers[i], atoms.numbers[j]], axis=1), axis=1)
    elements, which = np.unique(pairs, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return {(int(a), int(b)): np.sort(d[which == n]) for n, (a, b) in enumerate(elements)}


def _are_same(a: Atoms, b: Atoms, of_a: Distances, of_b: Distances, tolerance: float) -> bool:
    if sorted(a.numbers) != sorted(b.numbers) or (a.pbc.sum() != b.pbc.sum()):
        return False
    nothing = np.zeros(0)
    for elements in of_a.keys() | of_b.keys():
        ours, theirs = of_a.get(elements, nothing), of_b.get(elements, nothing)
        n = min(len(ours), len(theirs))
        if n and np.abs(ours[:n] - theirs[:n]).max() > tolerance:
            return False
        # Further distances of the longer list must lie at the reach, where the other may lack them.
        rest = np.concatenate([ours[n:], theirs[n:]])
        if rest.size and (not a.pbc.any() or rest.min() < REACH):
            return False
    return True
