"""Elastic tensors: central differences of stresses, all strained cells in one batch.

Each structure's tensor has the bits that it has alone.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms, units
from ase.constraints import FixCom, FixSymmetry
from ase.spacegroup.symmetrize import check_symmetry
from jaxtyping import Float

from basinax.engine.evaluate import NOT_FINITE, checked, evaluated, unlistable_by
from basinax.engine.relax import relax
from basinax.minimize.status import Status
from basinax.numerics.settings import PART, POSITIVE, one_number, require_switch
from basinax.numerics.switches import own_switches
from basinax.results.table import AbstractTable, named, text_of
from basinax.structures.batch import available_dtype
from basinax.structures.cells.kinds import fixes_directions
from basinax.structures.charges import Unused, uses_of
from basinax.structures.matrices import VOIGT
from basinax.structures.read import has_volume, name_of

KELVIN = np.sqrt([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
"""Voigt's stresses times these, and his strains divided by these, turn by orthogonal matrices."""

MISSING = np.full(6, np.nan)
"""The stress of a structure that could not be evaluated."""

SPANNED = 0.1
"""Strains span a direction if their singular value along it is above this part of the largest."""


class Modulus(NamedTuple):
    """A modulus of a polycrystal in eV/Å³."""

    voigt: float
    """The upper bound, of uniform strain."""
    reuss: float
    """The lower bound, of uniform stress."""

    @property
    def hill(self) -> float:
        """The mean of the bounds."""
        return (self.voigt + self.reuss) / 2


@dataclasses.dataclass(frozen=True, eq=False)
class Elasticity:
    """The elastic constants of one crystal."""

    atoms: Atoms
    """A copy of the structure as passed."""
    tensor: Float[np.ndarray, "6 6"]
    """Elastic constants in eV/Å³ in ASE's order xx, yy, zz, yz, xz, xy, symmetric; shear strains
    are Voigt's, 2ε. NaN if a stress is missing."""
    stress: Float[np.ndarray, "6"]
    """The stress of the unstrained cell in eV/Å³; it shifts constants by its own size."""
    message: str = ""
    """The reason why the crystal or a strained cell could not be evaluated, or that its ions did
    not converge."""

    def to_gpa(self) -> Float[np.ndarray, "6 6"]:
        """The tensor in GPa."""
        return self.tensor / units.GPa

    @property
    def is_stable(self) -> bool:
        """Whether each strain raises the energy (Born's criterion)."""
        return bool(np.isfinite(self.tensor).all() and np.linalg.eigvalsh(self.tensor)[0] > 0)

    @property
    def compliance(self) -> Float[np.ndarray, "6 6"]:
        """The inverse of the tensor in Å³/eV; NaN if there is none."""
        try:
            return np.linalg.inv(self.tensor)
        except np.linalg.LinAlgError:
            return np.full((6, 6), np.nan)

    @property
    def bulk_modulus(self) -> Modulus:
        """For a single crystal under pressure, the Reuss value is exact."""
        c, s = self.tensor, self.compliance
        return Modulus(float(c[:3, :3].sum() / 9), float(1 / s[:3, :3].sum()))

    @property
    def shear_modulus(self) -> Modulus:
        """That of a polycrystal without texture."""
        c, s = self.tensor, self.compliance
        voigt = (3 * np.trace(c[:3, :3]) - c[:3, :3].sum() + 6 * np.trace(c[3:, 3:])) / 30
        reuss = 15 / (6 * np.trace(s[:3, :3]) - 2 * s[:3, :3].sum() + 3 * np.trace(s[3:, 3:]))
        return Modulus(float(voigt), float(reuss))


class AtomsElasticity(AbstractTable, tuple[Elasticity, ...]):
    """The result of `elastic`: one `Elasticity` per structure, in the order of the input."""

    __slots__ = ()

    def to_dict(self) -> dict[str, list[Any]]:
        """A table as columns, one entry per structure.

        The columns are `formula`, `atoms` (their number), `bulk_modulus_GPa` and
        `shear_modulus_GPa` (Hill), `stable`, `max_stress_GPa` (of the unstrained cell) and
        `message`.
        """
        return {
            **named([e.atoms for e in self]),
            "bulk_modulus_GPa": [float(e.bulk_modulus.hill / units.GPa) for e in self],
            "shear_modulus_GPa": [float(e.shear_modulus.hill / units.GPa) for e in self],
            "stable": [e.is_stable for e in self],
            "max_stress_GPa": [float(np.abs(e.stress).max() / units.GPa) for e in self],
            "message": [e.message for e in self],
        }

    def __repr__(self) -> str:
        return text_of(self.to_dict())


@own_switches()
def elastic(
    atoms: Iterable[Atoms],
    potential: Any = None,
    *,
    strain: float = 2e-3,
    symmetrize: bool = False,
    symprec: float = 0.01,
    relax_ions: bool = False,
    optimizer: Any = None,
    fmax: float = 2e-5,
    max_steps: int = 500,
    dtype: Any = None,
) -> AtomsElasticity:
    """Elastic tensors of crystals, whose cells should be relaxed.

    Args:
        atoms: structures that are periodic in three directions; none is changed.
        potential: as for `evaluate`, with stresses.
        strain: the size of the strains, of both signs; the error is of second order.
        symmetrize: strain only in directions that crystal symmetry, found by spglib, does not make
            equal, and give the tensor this symmetry. It is that of atoms with their charges and
            moments if the potential uses them. Where ions relax under constraints other than
            `FixCom` and `FixSymmetry`, which may break it, the crystal is strained in all.
        symprec: the tolerance of spglib in Å.
        relax_ions: relax the ions in each strained cell, under their constraints but `FixSymmetry`;
            otherwise they are clamped to the strain.
        optimizer: of these relaxations, as for `relax`; refused without them.
        fmax: as for `relax`. The default strain makes forces of about 0.02 eV/Å, and `fmax` must be
            far below these.
        max_steps: as for `relax`.
        dtype: as for `evaluate`.

    Raises:
        TypeError, ValueError, NotImplementedError: a structure or an argument is unusable; the
            message has the reason.

    >>> from ase.build import bulk
    >>> from basinax.atoms import EMT, elastic
    >>> (copper,) = elastic([bulk("Cu", a=3.59)], EMT(), symmetrize=True, dtype="float64")
    >>> copper.to_gpa()[[0, 0, 3], [0, 1, 3]].round().tolist()
    [172.0, 115.0, 90.0]
    """
    require_switch(relax_ions, "relax_ions")
    require_switch(symmetrize, "symmetrize")
    if optimizer is not None and not relax_ions:
        raise TypeError("optimizer relaxes ions in strained cells: pass relax_ions=True, too")
    strain = one_number(strain, "strain", PART)
    symprec = one_number(symprec, "symprec", POSITIVE)
    structures, evaluator, potential = checked(atoms, potential)
    for k, a in enumerate(structures):
        _check_crystal(a, k, relax_ions=relax_ions)
    of_points: dict[str, Any] = {"stress": True, "dtype": available_dtype(dtype)}
    lost = unlistable_by(structures, evaluator, potential, **of_points)
    uses, crystals = uses_of(evaluator or potential), dict[int, _Crystal]()
    for k, a in enumerate(structures):
        if k not in lost:
            is_symmetric = symmetrize and not (relax_ions and _may_break_symmetry(a))
            try:
                turns = _turns(a, uses, symprec) if is_symmetric else np.eye(6)[None]
            except ValueError as error:
                lost[k] = str(error)
            else:
                crystals[k] = _Crystal(a, turns, _needed(turns), strain)
    strained = [copy for crystal in crystals.values() for copy in crystal.strained()]
    if relax_ions:
        options = {"fmax": fmax, "max_steps": max_steps, "dtype": dtype, "stress": True}
        with warnings.catch_warnings(action="ignore", category=Unused):  # `checked` has warned
            found = relax(strained, potential, optimizer, **options)
    else:
        found = evaluated(strained, evaluator, potential, **of_points)
    points = _points_of(found, are_relaxed=relax_ions)
    return AtomsElasticity(
        _unknown(a, lost[k]) if k in lost else crystals[k].elasticity(points)
        for k, a in enumerate(structures)
    )


def _check_crystal(atoms: Atoms, number: int, *, relax_ions: bool) -> None:
    """Raise if the structure of this number has no elastic constants here."""
    if not (atoms.pbc.all() and has_volume(atoms)):
        raise ValueError(
            f"{name_of(atoms, number)} has pbc={atoms.pbc.tolist()}: elastic constants need three"
            " periodic directions"
        )
    if relax_ions and fixes_directions(atoms):
        raise NotImplementedError(
            f"{name_of(atoms, number)} has FixScaled along some cell vectors, which a strain turns:"
            " use FixCartesian, or fix the atoms in all directions"
        )


FAILURES = {Status.CONVERGED: "", Status.NOT_FINITE: NOT_FINITE}
"""Messages of points by their status, where they are not those of ions that did not converge."""


class _Point(NamedTuple):
    """What was found of one strained cell."""

    stress: Float[np.ndarray, "6"]
    """In eV/Å³; NaN where there is none, or an evaluation was not finite."""
    message: str


def _points_of(found: Any, *, are_relaxed: bool) -> Iterator[_Point]:
    """The points of a result of `relax` or `evaluate`."""
    statuses = found.status if are_relaxed else [Status.CONVERGED] * len(found)
    each = zip(found.atoms, found.energies, found.messages, statuses, strict=True)
    for a, energy, message, status in each:
        is_usable = np.isfinite(energy) and not message
        stress = a.calc.results.get("stress", MISSING) if is_usable else MISSING
        yield _Point(stress, message or FAILURES.get(status, "ions did not converge"))


class _Crystal(NamedTuple):
    """A crystal and its strained cells: one without strain, then two of each needed strain."""

    atoms: Atoms
    turns: Float[np.ndarray, "operations 6 6"]
    """Its point group, see `_turns`."""
    needed: list[int]
    """The numbers of strains, see `_needed`."""
    strain: float
    """Their size."""

    def strained(self) -> Iterator[Atoms]:
        yield _strained(self.atoms, 0, 0.0)
        for entry in self.needed:
            for size in (self.strain, -self.strain):
                yield _strained(self.atoms, entry, size)

    def elasticity(self, points: Iterator[_Point]) -> Elasticity:
        """The constants that follow from the next points."""
        own = [next(points) for _ in range(1 + 2 * len(self.needed))]
        stress, *pairs = (point.stress for point in own)
        slopes = (np.array(pairs[::2]) - np.array(pairs[1::2])) / (2 * self.strain)
        message = next((point.message for point in own if point.message), "")
        tensor = _tensor(self.turns, self.needed, slopes)
        return Elasticity(self.atoms.copy(), tensor, stress, message)


def _unknown(atoms: Atoms, message: str) -> Elasticity:
    return Elasticity(atoms.copy(), np.full((6, 6), np.nan), MISSING, message)


def _strained(atoms: Atoms, entry: int, size: float) -> Atoms:
    """A copy with one of Voigt's strains of its cell, and of its atoms with it."""
    matrix, (i, j) = np.eye(3), VOIGT[entry]
    matrix[i, j] += size / 2
    matrix[j, i] += size / 2
    copy = atoms.copy()
    copy.set_constraint([c for c in atoms.constraints if not isinstance(c, FixSymmetry)])
    copy.set_cell(atoms.cell.array @ matrix, apply_constraint=False)
    copy.set_positions(atoms.positions @ matrix, apply_constraint=False)
    copy.calc = atoms.calc
    return copy


def _may_break_symmetry(atoms: Atoms) -> bool:
    """Whether constraints may keep ions from relaxing as the symmetry of the crystal has them."""
    return not all(type(c) in (FixCom, FixSymmetry) for c in atoms.constraints)


def _marked(atoms: Atoms, uses: frozenset[str]) -> Atoms:
    """A copy in which an element stands for each kind of atoms, by what is used of them."""
    values = [atoms.numbers]
    if "charges" in uses:
        values.append(atoms.get_initial_charges())
    if "magmoms" in uses:
        values.append(atoms.get_initial_magnetic_moments())
    kinds = np.unique(np.column_stack(values), axis=0, return_inverse=True)[1].reshape(-1)
    copy = atoms.copy()
    copy.numbers = kinds + 1
    return copy


def _turns(
    atoms: Atoms, uses: frozenset[str], symprec: float
) -> Float[np.ndarray, "operations 6 6"]:
    """The point group of a crystal, as it acts on Kelvin's vectors of symmetric matrices.

    Args:
        uses: the names of what a potential uses of the atoms, besides elements and positions.
    """
    try:
        found = check_symmetry(_marked(atoms, uses), symprec)
    except Exception as error:  # spglib raises errors of its own
        raise ValueError(f"spglib finds no symmetry of {atoms.symbols}: {error}") from error
    if found is None:
        raise ValueError(f"spglib finds no symmetry of {atoms.symbols} with symprec={symprec}")
    cell = atoms.cell.array.T
    turns = cell @ found.rotations @ np.linalg.inv(cell)
    basis = np.zeros((6, 3, 3))
    for k, (i, j) in enumerate(VOIGT):
        basis[k, i, j] = basis[k, j, i] = 1 / KELVIN[k]
    return np.einsum("aij,nik,bkl,njl->nab", basis, turns, basis, turns, optimize=True)


def _needed(turns: Float[np.ndarray, "operations 6 6"]) -> list[int]:
    """The strains whose images under all operations span every strain."""
    needed, rank = [], 0
    for j in range(6):
        images = np.concatenate(turns[:, :, [*needed, j]], axis=1)
        sizes = np.linalg.svd(images, compute_uv=False)
        if (more := int((sizes > SPANNED * sizes[0]).sum())) > rank:
            needed, rank = [*needed, j], more
    return needed if rank == 6 else list(range(6))


def _tensor(
    turns: Float[np.ndarray, "operations 6 6"], needed: list[int], slopes: np.ndarray
) -> Float[np.ndarray, "6 6"]:
    """The least-squares tensor for all images of the strains and of the stresses that they cause.

    It has the crystal's symmetry, since an operation only permutes the images.

    Args:
        slopes: the derivative of the stress by each strain in eV/Å³ [strains, 6].
    """
    if not np.isfinite(slopes).all():
        return np.full((6, 6), np.nan)
    strains = np.concatenate(turns[:, :, needed] / KELVIN[needed], axis=1)
    stresses = np.concatenate(turns @ (slopes * KELVIN).T, axis=1)
    tensor = stresses @ np.linalg.pinv(strains) / np.outer(KELVIN, KELVIN)
    return (tensor + tensor.T) / 2
