"""Moving cells: degrees of freedom and forces of ASE's filters, and the bits of a batch."""

import ase.optimize
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.emt import EMT as ASEEMT
from ase.cluster import Icosahedron
from ase.constraints import FixAtoms
from ase.filters import FrechetCellFilter, StrainFilter, UnitCellFilter
from scipy.linalg import expm_frechet
from structures import rattled

import basinax
from basinax import Status
from basinax.atoms import (
    EMT,
    Batch,
    Frechet,
    LennardJones,
    NeighborTable,
    Strain,
    UnitCell,
    _matrices as matrices,
    relax,
)
from basinax.atoms._cell import Dofs, cell_moves

FILTERS = {UnitCell: UnitCellFilter, Frechet: FrechetCellFilter, Strain: StrainFilter}
MASKED = (True, True, False, False, False, True)
OPTIONS = {
    "plain": {},
    "pressure": {"pressure": 0.05},
    "mask": {"mask": MASKED, "pressure": 0.01},
    "hydrostatic": {"hydrostatic_strain": True, "pressure": 0.02},
    "constant volume": {"constant_volume": True, "cell_factor": 3.0},
}


def sheared(atoms: Atoms, seed: int = 0, width: float = 0.04) -> Atoms:
    atoms = rattled(atoms, seed)
    strain = np.eye(3) + np.random.default_rng(seed).normal(0, width, (3, 3))
    atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
    return atoms


METALS = {
    "primitive": sheared(bulk("Al"), 1),
    "cubic": sheared(bulk("Cu", cubic=True), 2),
    "alloy": sheared(bulk("Cu", cubic=True) * (2, 1, 1), 3),
}
METALS["alloy"].symbols[:4] = "Au"


def filtered(atoms: Atoms, cell):
    """ASE's filter of the same options, with ASE's EMT."""
    atoms = atoms.copy()
    atoms.calc = ASEEMT()
    if isinstance(cell, Strain):
        return StrainFilter(atoms, mask=None if cell.mask is None else [int(m) for m in cell.mask])
    factor = {UnitCell: "cell_factor", Frechet: "exp_cell_factor"}[type(cell)]
    return FILTERS[type(cell)](
        atoms,
        mask=cell.mask,
        scalar_pressure=cell.pressure,
        hydrostatic_strain=cell.hydrostatic_strain,
        constant_volume=cell.constant_volume,
        **{factor: cell.cell_factor},
    )


def batch_of(atoms: list[Atoms], cells, dtype=None):
    batch = Batch.from_atoms(atoms, dtype)
    moves = cell_moves(cells[0].kind, atoms, cells, batch.n_systems, batch.positions.dtype)
    return batch, moves


@jax.jit
def evaluated(batch, moves, neighbors, dofs):
    positions, cells = moves.structure(dofs, batch.index)
    here = Batch(positions, batch.numbers, cells, batch.pbc, batch.index)
    enthalpies, gradient, observed = moves.of_properties(
        dofs, EMT()(here, neighbors, stress=True), here
    )
    return enthalpies, gradient, observed, moves.forces(dofs, gradient, batch.index), here


def at(batch, moves, dofs):
    """What is found at `dofs`, with lists made there."""
    positions, cells = moves.structure(dofs, batch.index)
    here = Batch(positions, batch.numbers, cells, batch.pbc, batch.index)
    return evaluated(batch, moves, NeighborTable(here, EMT().cutoff, 0.3).to_device(), dofs)


@pytest.mark.parametrize("name", METALS)
@pytest.mark.parametrize("options", [o for o in OPTIONS])
@pytest.mark.parametrize("kind", [UnitCell, Frechet, Strain])
def test_degrees_of_freedom_and_forces_are_those_of_ase(kind, options, name):
    if kind is Strain and options not in ("plain", "mask"):
        pytest.skip("ASE's StrainFilter has only a mask")
    options = OPTIONS[options] | ({"pressure": 0.0} if kind is Strain else {})
    atoms, cell = METALS[name], kind(**options)
    batch, moves = batch_of([atoms], [cell])
    theirs, n = filtered(atoms, cell), len(atoms)
    start, step = theirs.get_positions(), np.random.default_rng(9).normal(0, 0.05, (n + 3, 3))
    rows = moves.start(batch.positions)
    if kind is Strain:
        strains = np.reshape([cell.movable()[i, j] for i, j in matrices.VOIGT], (2, 3))
        theirs.set_positions(0.2 * step[-2:])
        moved = Dofs(rows.positions, rows.cell + np.where(strains, 0.2 * step[-2:], 0))
    else:
        step[-3:] = np.where(cell.movable(), step[-3:] + step[-3:].T, 0)
        theirs.set_positions(start + step)
        padded = np.zeros(rows.positions.shape)
        padded[:n] = step[:n]
        moved = Dofs(rows.positions + padded, rows.cell + step[-3:])
    enthalpies, gradient, observed, forces, here = at(batch, moves, moved)
    close = {"rtol": 0, "atol": 1e-11}  # a few ulp of numbers up to some hundreds
    np.testing.assert_allclose(here.cells[0], theirs.atoms.cell.array, **close)
    np.testing.assert_allclose(here.positions[:n], theirs.atoms.positions, **close)
    np.testing.assert_allclose(enthalpies[0], theirs.get_potential_energy(), **close)
    expected, got = theirs.get_forces(), [-gradient.cell]
    if kind is not Strain:
        got = [-gradient.positions[:n], -gradient.cell]
    np.testing.assert_allclose(np.concatenate(got), expected, **close)
    np.testing.assert_allclose(forces[:n], theirs.atoms.get_forces(), **close)
    np.testing.assert_allclose(observed.energies[0], theirs.atoms.get_potential_energy(), **close)


@pytest.mark.parametrize("width", [1e-3, 0.1, 1.0, 20.0])
def test_exponentials_and_their_derivatives_are_those_of_scipy(width):
    random = np.random.default_rng(0)
    a, direction = random.normal(size=(2, 40, 3, 3)) * [[[[width]]], [[[1.0]]]]
    got = jax.jit(matrices.derived_exponential)(a, direction)
    expected = [expm_frechet(*pair) for pair in zip(a, direction, strict=True)]
    for x, of_scipy in zip(got, zip(*expected, strict=True), strict=True):
        scale = np.abs(of_scipy).max(axis=(1, 2), keepdims=True)
        # Squaring doubles an error each time; 20 needs nine of it.
        np.testing.assert_allclose(x / scale, of_scipy / scale, rtol=0, atol=1e-12)


def test_exponentials_of_matrices_out_of_range_are_nan():
    a = np.stack([np.full((3, 3), x) for x in (1e4, np.nan, np.inf)])
    assert np.isnan(matrices.exponential(jnp.asarray(a))).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_matrices_have_the_same_bits_alone_in_a_batch_and_op_by_op(dtype):
    random = np.random.default_rng(1)
    widths = 10.0 ** random.uniform(-3, 1, (50, 1, 1))
    a, b = (random.normal(size=(2, 50, 3, 3)) * widths).astype(dtype)

    def all_of(a, b):
        return (
            matrices.derived_exponential(a, b),
            matrices.inverse(a),
            matrices.multiply(a, b),
            matrices.determinant(a),
            matrices.frobenius_norm(a),
        )

    batched = jax.jit(all_of)(a, b)
    with jax.disable_jit():
        op_by_op = all_of(jnp.asarray(a), jnp.asarray(b))
    jax.tree.map(np.testing.assert_array_equal, batched, op_by_op)
    alone = [jax.jit(all_of)(a[k : k + 1], b[k : k + 1]) for k in range(50)]
    together = jax.tree.map(lambda *x: np.concatenate(x), *alone)
    jax.tree.map(np.testing.assert_array_equal, batched, together)


# --- whole relaxations

ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)


def broken() -> Atoms:
    return Atoms("Ar2", [[0, 0, 0], [0, 0, 0]], cell=[9, 9, 9], pbc=True)


def held_slab() -> Atoms:
    atoms = fcc111("Ar", (2, 2, 3), a=5.2, vacuum=9.0, periodic=True)
    atoms.set_constraint(FixAtoms(range(4)))
    return rattled(atoms, 4)


def several(kind) -> tuple[list[Atoms], list]:
    """Cells that move in many ways, fixed ones, and systems without any."""
    argon = bulk("Ar", "fcc", a=5.2)
    pairs = [
        (sheared(argon, 1), kind()),
        (sheared(argon.repeat((1, 2, 3)), 2), kind(pressure=0.01)),
        (sheared(bulk("Ar", cubic=True, a=5.3), 3), kind(mask=MASKED)),
        (held_slab(), kind(mask=(1, 1, 0, 0, 0, 1))),
        (sheared(bulk("Ar", cubic=True, a=5.3).repeat((1, 2, 2)), 5), None),
        (rattled(Icosahedron("Ar", 2, 5.4), 6), kind()),
        (sheared(bulk("Ar", cubic=True, a=5.1), 7), kind(hydrostatic_strain=True)),
        (sheared(bulk("Ar", cubic=True, a=5.1), 8), kind(constant_volume=True)),
        (broken(), kind()),
        (sheared(bulk("Ar", cubic=True, a=5.2), 9), kind(pressure=-0.02)),
    ]
    return [a for a, _ in pairs], [c for _, c in pairs]


def same(a, i, b, j) -> bool:
    """Whether structure i of one result has the bits of structure j of another."""
    pairs = [(getattr(a, f)[i], getattr(b, f)[j]) for f in ("energies", "fmax", "steps", "status")]
    ours, theirs = a.atoms[i], b.atoms[j]
    pairs += [(ours.positions, theirs.positions), (ours.cell.array, theirs.cell.array)]
    pairs += [(ours.calc.results[key], theirs.calc.results[key]) for key in theirs.calc.results]
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


@pytest.mark.parametrize(
    ("kind", "dtype", "those_alone"),
    [
        (Frechet, np.float64, range(10)),
        (UnitCell, np.float32, [0, 3, 4]),
        (Strain, np.float64, [2, 4]),
    ],
)
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(kind, dtype, those_alone):
    """400 steps, past the minimum; order, skin and how often lists are made anew differ."""
    atoms, cells = several(kind)
    settings = {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, ARGON, cell=cells, **settings)
    assert batch.status[8] == Status.NOT_FINITE
    assert (batch.steps == 400).sum() >= 5
    alone = {k: relax([atoms[k]], ARGON, cell=[cells[k]], **settings) for k in those_alone}
    assert [k for k in those_alone if not same(batch, k, alone[k], 0)] == []
    thin = relax(atoms[::-1], ARGON, cell=cells[::-1], skin=0.1, **settings)
    assert [k for k in range(len(atoms)) if not same(batch, -1 - k, thin, k)] == []


def test_a_cell_that_explodes_ends_with_a_status():
    """It is torn apart; another beside it does not mind."""
    atoms = [sheared(bulk("Ar", "fcc", a=5.3), 9) for _ in range(2)]
    result = relax(atoms, ARGON, cell=Frechet(pressure=[-0.2, 0.0]), fmax=1e-3)
    assert result.status.tolist() == [Status.NOT_FINITE, Status.CONVERGED]


@pytest.mark.parametrize("stretch", [0.4, 2.2])
def test_the_enthalpy_of_a_lost_cell_is_nan(stretch):
    batch, moves = batch_of([METALS["cubic"]] * 3, [UnitCell(), UnitCell(), None])
    dofs = moves.start(batch.positions)
    lost = dofs._replace(cell=dofs.cell.at[:3].multiply(stretch))
    enthalpies, *_ = at(batch, moves, lost)
    assert np.isnan(enthalpies).tolist() == [True, False, False]


def test_a_place_that_is_taken_again_remembers_no_cell(monkeypatch):
    """Twenty structures go through a batch with room for three."""
    atoms, cells = (2 * x for x in several(Frechet))
    for seed, a in enumerate(atoms):
        a.rattle(0.05, seed=seed)
    settings = {"cell": cells, "fmax": 0.002, "keep_best": True, "max_steps": 200}
    together = relax(atoms, ARGON, **settings)
    monkeypatch.setattr("basinax.atoms._relax.MAX_ROWS", 48)
    monkeypatch.setattr("basinax.atoms._relax._n_cores", lambda: 1)
    streamed = relax(atoms, ARGON, **settings)
    assert [i for i in range(len(atoms)) if not same(together, i, streamed, i)] == []


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        (basinax.FIRE(), ase.optimize.FIRE),
        (basinax.LBFGS.ase(), ase.optimize.LBFGS),
        (basinax.BFGSLineSearch(), ase.optimize.BFGSLineSearch),
    ],
)
def test_steps_cells_and_stresses_are_those_of_ase(optimizer, reference):
    atoms = list(METALS.values())
    cells = [Frechet(), Frechet(pressure=0.02), Frechet(mask=(1, 1, 0, 0, 0, 1))]
    result = relax(atoms, EMT(), optimizer, cell=cells, fmax=0.01)
    for k, (a, cell) in enumerate(zip(atoms, cells, strict=True)):
        theirs = filtered(a, cell)
        run = reference(theirs, logfile=None)
        assert run.run(fmax=0.01, steps=500)
        ours = result.atoms[k]
        assert result.steps[k] == run.nsteps
        close = {"rtol": 0, "atol": 1e-9}  # some ulp, multiplied by 80 steps
        np.testing.assert_allclose(ours.cell.array, theirs.atoms.cell.array, **close)
        np.testing.assert_allclose(ours.positions, theirs.atoms.positions, **close)
        np.testing.assert_allclose(ours.get_stress(), theirs.atoms.get_stress(), **close)
        np.testing.assert_allclose(
            ours.get_potential_energy(), theirs.atoms.get_potential_energy(), **close
        )
