"""Moving cells as further rows of the parameters; the optimizer itself needs no change.

The degrees of freedom, their scale and their forces are those of ASE's filters (`UnitCellFilter`,
`FrechetCellFilter`, `StrainFilter`): positions in the undeformed cell, and the deformation F, its
logarithm or a strain. A system with a fixed cell has no such rows, and keeps its bits.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from basinax.minimize.criteria import Evidence
from basinax.neighbors.search import LARGEST_CELL, MOST_IMAGES, TO_SPARE
from basinax.numerics.rounding import rounded
from basinax.optimizers.conjugate_gradient import ConjugateGradient
from basinax.optimizers.lbfgs import LBFGS
from basinax.optimizers.protocol import (
    AbstractAround,
    AbstractTransform,
    apply_updates,
    needed,
    select_systems,
)
from basinax.potentials import Properties
from basinax.structures.batch import Batch
from basinax.structures.cells.kinds import Kind, is_open
from basinax.structures.constraints.applied import Constraints, constrained
from basinax.structures.constraints.fix_symmetry import loses_symmetry
from basinax.structures.constraints.protocol import Turn, Turning
from basinax.structures.matrices import (
    VOIGT,
    VOIGT_OF_ENTRIES,
    Matrices,
    cofactors,
    derived_exponential,
    determinant,
    exponential,
    inverse,
    logarithm,
    multiply,
    row_norms,
    transposed,
    turned_rows,
)
from basinax.structures.read import Structure, cells_of
from basinax.systems import segment
from basinax.systems.index import SystemIndex, index_of_ids

CELL_ROWS = 3
"""The largest number of rows that move the cell of a system."""

Rows = Float[Array, "rows 3"]


class Dofs(NamedTuple):
    """The degrees of freedom of atoms and cells that an optimizer moves."""

    positions: Rows
    """The positions in the undeformed cell, in Å."""

    cell: Float[Array, "cell_rows 3"]
    """For a moving cell, F or its logarithm times the cell factor, three rows; or strains xx, yy,
    zz and yz, xz, xy, two rows."""


class Observed(NamedTuple):
    """Properties of each system besides the enthalpy and its gradient."""

    energies: Float[Array, "systems"]
    """The energy without pV, in eV."""

    stress: Float[Array, "systems 3 3"]
    """The stress of the potential, in eV/Å³."""

    residual_stress: Float[Array, "systems 3 3"]
    """The part of stress and pressure that moves the cell, in eV/Å³; 0 for a fixed cell."""


class CellConstraints(eqx.Module):
    """Gradients and steps under constraints of atoms and masks of cells."""

    constraints: Constraints | None
    moves: "CellMoves"

    def of_gradient(self, gradient: Dofs, prefix: Dofs, params: Dofs) -> Dofs:
        """The gradient under the constraints; masks were applied when the cell's rows were made."""
        index, positions = cast(Any, prefix.positions), gradient.positions
        if self.constraints is not None:
            # With the kind "strain" atoms follow the cell and have no directions of their own.
            turning = None if self.moves.kind == "strain" else self.moves.turning(params)
            positions = self.constraints.of_gradient(positions, index, turning=turning)
        if self.moves.kind == "strain":
            is_free = index.spread(self.moves.is_free, False, positions)
            positions = jnp.where(is_free, 0.0, positions)
        return gradient._replace(positions=positions)

    def of_step(self, step: Dofs, prefix: Dofs, params: Dofs) -> Dofs:
        """Positions move by the constrained part of a Cartesian step in the cell after the step."""
        positions, cell = step
        if self.constraints is not None:
            cell = self.moves.changed_step(cell, self.constraints.of_cell_step)
        step = Dofs(positions, self.moves.masked_step(cell, params))
        if self.constraints is None:
            return step
        is_turned, end = self.moves.kind != "strain", apply_updates(params, step)
        turning = self.moves.turning_of_step(end) if is_turned else None
        index = cast(Any, prefix.positions)
        return step._replace(positions=self.constraints.of_step(positions, index, turning=turning))


class CellMoves(eqx.Module):
    """The motion of the cells of a batch; made by `cell_moves`."""

    kind: Kind = eqx.field(static=True)
    index: SystemIndex
    """The system of each row of `Dofs.cell`."""
    reference: Matrices
    """The undeformed cells, in Å."""
    is_free: Bool[Array, "systems"]
    mask: Bool[Array, "systems 3 3"]
    is_hydrostatic: Bool[Array, "systems"]
    keeps_volume: Bool[Array, "systems"]
    pressure: Float[Array, "systems"]
    factor: Float[Array, "systems"]
    inverse_factor: Float[Array, "systems"]
    unit: Float[Array, "systems"]
    """See `Scaled`."""
    loses_symmetry: Bool[Array, "systems"]
    """Systems whose cell may lose a symmetry although constraints keep it in their steps."""
    is_open: Bool[Array, "systems"] | None
    """Systems whose mask a logarithm may violate (see `kinds.is_open`), or None."""

    def start(self, positions: Rows) -> Dofs:
        """The undeformed point."""
        factor = jnp.where(jnp.eye(3, dtype=bool)[None], self.factor[:, None, None], 0.0)
        at_rest = factor if self.kind == "unit-cell" else jnp.zeros_like(factor)
        return Dofs(positions, self._rows(at_rest))

    def prefix(self, index: SystemIndex) -> Any:
        """The index prefix of `Dofs`."""
        return Dofs(cast(Any, index), cast(Any, self.index))

    def places(self, rows: np.ndarray, systems: np.ndarray) -> Any:
        """The rows of `Dofs` before, from those of atoms and the numbers of systems before."""
        each = np.arange(self.index.n_rows // len(systems), dtype=np.int32)
        return Dofs(cast(Any, rows), cast(Any, (systems[:, None] * len(each) + each).ravel()))

    def masked_step(self, step: Rows, dofs: Dofs) -> Rows:
        """A step of `dofs.cell` under the masks."""
        # A frozen entry is -0.0: adding -0.0 keeps every number, and the sign of a zero.
        masked = jnp.where(self._rows(self.mask.astype(step.dtype)) > 0, step, -0.0)
        if self.is_open is None:
            return masked
        # The deformation is masked; ASE continues from its logarithm.
        end = self._deformation(dofs._replace(cell=dofs.cell + step))
        end = self._rows(rounded(logarithm(end) * self.factor[:, None, None]))
        is_open = jnp.broadcast_to(self.is_open[:, None, None], self.mask.shape)
        is_open = self._rows(is_open.astype(step.dtype)) > 0
        return jnp.where(is_open, end - dofs.cell, masked)

    def changed_step(self, step: Rows, change: Callable[[Matrices], Matrices]) -> Rows:
        """A step of `dofs.cell` after a linear function of steps of F."""
        if self.kind != "strain":
            return change(step.reshape(-1, 3, 3)).reshape(step.shape)
        # Shears of F are half of the strains. Twice the others has no rounding.
        unit, strains = jnp.eye(3, dtype=bool)[None], _of_voigt(step)
        twice = change(jnp.where(unit, 2.0 * strains, strains))
        return self._rows(jnp.where(unit, 0.5 * twice, twice))

    def structure(self, dofs: Dofs, index: SystemIndex) -> tuple[Rows, Matrices]:
        """Positions and cells in Å; a fixed cell keeps its bits."""
        turn = transposed(self._deformation(dofs))
        is_free = index.spread(self.is_free, False, dofs.positions)
        positions = jnp.where(is_free, turned_rows(dofs.positions, turn, index), dofs.positions)
        cells = multiply(self.reference, turn)
        return positions, jnp.where(self.is_free[:, None, None], cells, self.reference)

    def turning(self, dofs: Dofs) -> Turning:
        """The map from the gradient by `dofs.positions` to the Cartesian gradient."""

        def turn():
            deformation = self._deformation(dofs)
            return Turn(self.is_free, inverse(deformation), deformation, self.loses_symmetry)

        return turn

    def turning_of_step(self, dofs: Dofs) -> Turning:
        """The map from a step of `dofs.positions` that ends at `dofs` to the Cartesian step."""

        def turn():
            turn = transposed(self._deformation(dofs))
            return Turn(self.is_free, turn, inverse(turn), self.loses_symmetry)

        return turn

    def is_lost(self, here: Batch, cutoff: Float[Array, ""]) -> Bool[Array, "systems"]:
        """The mask of cells that have collapsed or exploded so far that no list can be made.

        The decision depends on the cell alone, not on the positions or reach of its list.
        """
        unit = jnp.eye(3, dtype=here.cells.dtype)[None]
        cells = jnp.where(self.is_free[:, None, None], here.cells, unit)
        heights = _heights(cells, here.pbc)
        near = jnp.where(here.pbc, 2 * rounded(cutoff / heights) + 1, 1.0)
        n_images = rounded(rounded(near[:, 0] * near[:, 1]) * near[:, 2])
        largest = jnp.max(jnp.abs(cells), axis=(1, 2))
        # NaN fails both comparisons, so a cell with NaN counts as lost.
        is_kept = (n_images <= TO_SPARE * MOST_IMAGES) & (largest <= LARGEST_CELL)
        return self.is_free & ~is_kept

    def nothing_observed(self) -> Observed:
        zeros = jnp.zeros_like(self.reference)
        return Observed(zeros[:, 0, 0], zeros, zeros)

    def of_properties(
        self,
        dofs: Dofs,
        properties: Properties,
        here: Batch,
        is_lost: Bool[Array, "systems"] | None = None,
    ) -> tuple[Float[Array, "systems"], Dofs, Observed]:
        """The enthalpies in eV, their gradient, and further results.

        Args:
            properties: the potential's properties of `here`, stresses included.
            here: the batch at `structure(dofs)`.
            is_lost: systems without possible lists, whose results become NaN, or None.
        """
        # Forces become derivatives by undeformed positions, and stress plus pressure become
        # derivatives by the rows of the cell. Systems with a fixed cell keep their forces.
        # Cells without a volume are fixed, and their stress is NaN.
        is_moving = self.is_free[:, None, None]
        stress = jnp.where(is_moving, cast(Matrices, properties.stress), 0.0)
        keep = here.constraints
        held = stress if keep is None else keep.of_stress(stress, self.turning(dofs))
        forces, index = properties.forces, here.index
        deformation = self._deformation(dofs)
        turned = turned_rows(forces, deformation, index)
        is_free = index.spread(self.is_free, False, forces)
        by_positions = -jnp.where(is_free, turned, forces)

        volumes = jnp.abs(determinant(here.cells))
        enthalpies = properties.energies + rounded(self.pressure * volumes)
        enthalpies = jnp.where(self.is_free, enthalpies, properties.energies)
        volume, pressure = volumes[:, None, None], self.pressure[:, None, None]
        total = held + jnp.where(jnp.eye(3, dtype=bool)[None], pressure, 0.0)
        by_cell, virial = self._cell_forces(dofs, deformation, -rounded(volume * total))
        by_cell = -rounded(by_cell * self.inverse_factor[:, None, None])
        over = rounded(1 / volumes)[:, None, None]
        residual = jnp.where(is_moving, -rounded(virial * over), 0.0)
        said = enthalpies, by_cell, Observed(properties.energies, stress, residual)
        if is_lost is None:
            return enthalpies, Dofs(by_positions, self._rows(by_cell)), said[2]
        by_positions = jnp.where(index.spread(is_lost, False, by_positions), jnp.nan, by_positions)
        nothing = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), said)
        enthalpies, by_cell, observed = select_systems(is_lost, nothing, said)
        return enthalpies, Dofs(by_positions, self._rows(by_cell)), observed

    def forces(self, dofs: Dofs, gradient: Dofs, index: SystemIndex) -> Rows:
        """The forces in eV/Å from which a gradient was made."""
        turn = inverse(self._deformation(dofs))
        is_free = index.spread(self.is_free, False, gradient.positions)
        turned = turned_rows(gradient.positions, turn, index)
        return -jnp.where(is_free, turned, gradient.positions)

    def _cell_forces(self, dofs, deformation, virial) -> tuple[Matrices, Matrices]:
        """The forces on the cell's rows, and the virial after constraints and masks; both in eV."""
        if self.kind == "unit-cell":
            virial = multiply(virial, transposed(inverse(deformation)))
            virial = self._traceless(self._masked(self._hydrostatic(virial)))
            return virial, virial
        virial = self._masked(self._hydrostatic(virial))
        if self.kind == "strain":
            virial = self._traceless(virial)
            return virial, virial
        by_deformation = multiply(virial, inverse(transposed(deformation)))
        logarithm = transposed(self._matrices(dofs))
        by_logarithm = derived_exponential(logarithm, by_deformation)[1]
        return self._traceless(by_logarithm), self._traceless(virial)

    def _deformation(self, dofs: Dofs) -> Matrices:
        """F; rows are multiplied by its transpose."""
        matrices = self._matrices(dofs)
        unit = jnp.eye(3, dtype=matrices.dtype)[None]
        if self.kind == "strain":
            change = jnp.where(unit > 0, matrices, matrices * 0.5)
        else:
            full = exponential(matrices) if self.kind == "frechet" else matrices
            change = full - unit
        return unit + jnp.where(self.mask & self.is_free[:, None, None], change, 0.0)

    def _matrices(self, dofs: Dofs) -> Matrices:
        """The rows of each cell as a matrix, without the cell factor; 0 for a fixed cell."""
        rows = dofs.cell
        matrices = _of_voigt(rows) if self.kind == "strain" else rows.reshape(-1, 3, 3)
        matrices = jnp.where(self.is_free[:, None, None], matrices, 0.0)
        return rounded(matrices * self.inverse_factor[:, None, None])

    def _rows(self, matrices: Matrices) -> Float[Array, "cell_rows 3"]:
        """Matrices as rows of cells; 0 for a fixed cell."""
        matrices = jnp.where(self.is_free[:, None, None], matrices, 0.0)
        if self.kind == "strain":
            matrices = jnp.stack([matrices[:, i, j] for i, j in VOIGT], 1)
        return matrices.reshape(-1, 3)

    def _hydrostatic(self, virial: Matrices) -> Matrices:
        third = _third_of_trace(virial)
        return jnp.where(self.is_hydrostatic[:, None, None], third, virial)

    def _masked(self, virial: Matrices) -> Matrices:
        return jnp.where(self.mask, virial, 0.0)

    def _traceless(self, virial: Matrices) -> Matrices:
        less = virial - _third_of_trace(virial)
        return jnp.where(self.keeps_volume[:, None, None], less, virial)


def _of_voigt(rows: Rows) -> Matrices:
    """The symmetric matrices whose entries are two rows each."""
    entries = rows.reshape(-1, 6)
    return jnp.stack([entries[:, k] for k in VOIGT_OF_ENTRIES], 1).reshape(-1, 3, 3)


def _heights(cells: Matrices, pbc: Bool[Array, "systems 3"]) -> Float[Array, "systems 3"]:
    """The distances between opposite faces of each cell along its periodic directions, in Å.

    Open directions do not count: the faces then belong to an area, or are the ends of a length.
    """
    areas = cofactors(cells)
    normals = rounded(areas / row_norms(areas)[:, :, None])
    # An open direction has no vector; use the normal of the other two.
    closed = jnp.where(pbc[:, :, None], cells, normals)
    volumes = jnp.abs(determinant(closed))[:, None]
    heights = rounded(volumes / row_norms(cofactors(closed)))
    is_wire = jnp.sum(pbc, axis=1, keepdims=True, dtype=jnp.int32) == 1
    return jnp.where(is_wire, row_norms(cells), heights)


def _third_of_trace(m: Matrices) -> Matrices:
    """A third of the trace on the diagonal."""
    third = rounded((m[:, 0, 0] + m[:, 1, 1] + m[:, 2, 2]) * (1 / 3))
    return jnp.where(jnp.eye(3, dtype=bool)[None], third[:, None, None], 0.0)


class Scaled(AbstractAround):
    """An optimizer whose rows of cells have units that suit cells of all sizes.

    In ASE's units, strains times the number of atoms N, the curvature falls with N, and a limit of
    rows allows strains of maxstep/N, so that large cells would crawl. These are strains times the
    root of N, by which cells are about as stiff as atoms. The units are powers of two, so nothing
    is rounded.
    """

    unit: Float[Array, "systems"]
    index: SystemIndex
    """The system of each row of the cells."""

    def update(self, updates, state, params=None, **extra):
        gradient = self._times(self.unit, updates)
        params = self._times(1 / self.unit, needed(params, "Scaled"))
        step, state = self.optimizer.update(gradient, state, params, **extra)
        return self._times(self.unit, step), state

    def _times(self, factors: Float[Array, "systems"], dofs: Dofs) -> Dofs:
        return dofs._replace(cell=segment.scale(dofs.cell, factors, self.index))


def with_cells(
    optimizer: AbstractTransform, constraints: Constraints | None, moves: CellMoves
) -> tuple[AbstractTransform, Callable[[Evidence], Evidence]]:
    """The optimizer, and the view of evidence for criteria, where cells move."""

    def is_own(part):  # the steps of others are ASE's
        is_lbfgs = isinstance(part, LBFGS) and part.is_scaled
        return is_lbfgs or isinstance(part, ConjugateGradient)

    def of_part(part):
        return Scaled(part, moves.unit, moves.index) if is_own(part) else part

    optimizer = jax.tree.map(of_part, optimizer, is_leaf=is_own)
    optimizer, view = constrained(optimizer, CellConstraints(constraints, moves))

    def shown(evidence: Evidence) -> Evidence:
        evidence = evidence if view is None else view(evidence)
        return evidence._replace(n_rows=evidence.index_prefix.positions.sizes)

    return optimizer, shown


def cell_moves(
    kind: Kind,
    structures: Sequence[Structure],
    n_systems: int,
    dtype: Any,
    *,
    held: Bool[np.ndarray, "structures"] | None = None,
    has_open: bool | None = None,
) -> CellMoves:
    """How the cells of these structures move, in NumPy arrays.

    More systems, without rows, fill up the batch.

    Args:
        held: the mask of structures whose cells may move; all if None.
        has_open: whether there is room for cells that are open; if None, where one is.
    """
    cells = [s.cell if held is None or held[k] else None for k, s in enumerate(structures)]
    # Most structures share one cell's options.
    options = {id(cell): cell for cell in cells if cell is not None}
    which = {key: k for k, key in enumerate(options)}
    moving = np.array([k for k, cell in enumerate(cells) if cell is not None], int)
    own = np.array([which[id(cell)] for cell in cells if cell is not None], int)
    # One entry per system; padding and systems with a fixed cell keep these defaults.
    opened, free = np.zeros((2, n_systems), bool)
    reference, masks = np.tile(np.eye(3), (n_systems, 1, 1)), np.zeros((n_systems, 3, 3), bool)
    reference[: len(structures)] = cells_of([s.atoms for s in structures])[0]
    is_hydrostatic, keeps_volume, loses = np.zeros((3, n_systems), bool)
    pressure, factor, unit = np.zeros(n_systems), *np.ones((2, n_systems))
    free[moving] = True
    if options:
        n_atoms = np.array([len(structures[k]) for k in moving], float)
        usual = np.ones_like(n_atoms) if kind == "strain" else n_atoms
        factors = np.array([c.cell_factor for c in options.values()], float)[own]  # NaN for None
        factor[moving] = np.where(np.isnan(factors), usual, factors)
        wanted = 2.0 ** np.round(np.log2(usual / np.sqrt(n_atoms)))
        unit[moving] = np.where(np.isnan(factors), wanted, 1.0)
        masks[moving] = np.array([c.movable() for c in options.values()])[own]
        opened[moving] = np.array([is_open(c) for c in options.values()])[own]
        pressure[moving] = np.array([c.pressure for c in options.values()])[own]
        is_hydrostatic[moving] = np.array([c.hydrostatic_strain for c in options.values()])[own]
        keeps_volume[moving] = np.array([c.constant_volume for c in options.values()])[own]
    for k in moving.tolist():
        if structures[k].stages:
            loses[k] = loses_symmetry(structures[k].stages, masks[k])
    has_open = bool(opened.any()) if has_open is None else has_open
    ids = np.where(free, np.arange(n_systems), -1).repeat(2 if kind == "strain" else 3)
    arrays: dict[str, Any] = {
        "reference": reference.astype(dtype),
        "is_free": free,
        "mask": masks,
        "is_hydrostatic": is_hydrostatic,
        "keeps_volume": keeps_volume,
        "pressure": pressure.astype(dtype),
        "factor": factor.astype(dtype),
        "inverse_factor": (1 / factor).astype(dtype),
        "unit": unit.astype(dtype),
        "loses_symmetry": loses,
        "is_open": opened if has_open else None,
    }
    return CellMoves(kind=kind, index=index_of_ids(ids, n_systems), **arrays)
