"""Moving cells: degrees of freedom and forces of ASE's filters, and the bits of a batch."""

import dataclasses
import itertools

import ase.optimize
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.calculators.tersoff import Tersoff as ASETersoff, TersoffParameters
from ase.cluster import Icosahedron
from ase.constraints import FixAtoms, FixScaled, FixSymmetry
from ase.stress import full_3x3_to_voigt_6_stress
from scipy.linalg import expm, expm_frechet, logm

import basinax
from basinax import FIRE, EnergyChange, Status, rounded
from basinax.atoms import (
    EMT,
    Batch,
    Frechet,
    LennardJones,
    MaxAtomForce,
    MaxStress,
    NeighborTable,
    Properties,
    Strain,
    Tersoff,
    UnitCell,
    cell_from,
    relax,
)
from basinax.engine.moving_cells import CellMoves, Dofs, cell_moves
from basinax.neighbors.search import LARGEST_CELL
from basinax.potentials.tersoff import _mixed
from basinax.structures import matrices as matrices
from basinax.structures.read import intake
from comparison import filtered, same
from cover import exhaustive
from follow_ase import walk_of_ase
from structures import jitted, listed, rattled
from xla import both_ways, jit_as_users

pytestmark = pytest.mark.usefixtures("few_shapes")

MASKED = (True, True, False, False, False, True)
OPTIONS = [
    {},
    {"pressure": 0.05},
    {"mask": MASKED, "pressure": 0.01},
    {"hydrostatic_strain": True, "pressure": 0.02},
    {"constant_volume": True, "cell_factor": 3.0},
]


def sheared(atoms: Atoms, seed: int = 0, width: float = 0.04) -> Atoms:
    atoms = rattled(atoms, seed)
    strain = np.eye(3) + np.random.default_rng(seed).normal(0, width, (3, 3))
    atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
    return atoms


METALS = [
    sheared(bulk("Al"), 1),
    sheared(bulk("Cu", cubic=True), 2),
    sheared(bulk("Cu", cubic=True) * (2, 1, 1), 3),
]
METALS[-1].symbols[:4] = "Au"


def batch_of(atoms: list[Atoms], cells, dtype=None, **shape):
    batch = Batch.from_atoms(atoms, dtype, **shape)
    moves = cell_moves(cells[0].kind, intake(atoms, cells), batch.n_systems, batch.positions.dtype)
    return batch, moves


@jax.jit
def moved(batch, moves, dofs):
    positions, cells = moves.structure(dofs, batch.index)
    return Batch(positions, batch.numbers, cells, batch.pbc, batch.index)


@jax.jit
def on_cells(moves, dofs, properties, here):
    enthalpies, gradient, observed = moves.of_properties(dofs, properties, here)
    return enthalpies, gradient, observed, moves.forces(dofs, gradient, here.index), here


def at(batch, moves, dofs):
    """What is found at `dofs`, with lists made there."""
    here = moved(batch, moves, dofs)
    return on_cells(moves, dofs, jitted(EMT(), here, listed(here, EMT())), here)


@pytest.mark.parametrize("kind", [UnitCell, Frechet, Strain])
def test_degrees_of_freedom_and_forces_are_those_of_ase(kind):
    """Every option on every metal; ASE's `StrainFilter` has only a mask."""
    # As many as of the others: fewer would be further programs.
    options = 3 * [{}, {"mask": MASKED}] if kind is Strain else OPTIONS
    pairs = [(atoms, kind(**chosen)) for chosen in options for atoms in METALS]
    batch, moves = batch_of(*zip(*pairs, strict=True))
    starts = [int(np.argmax(np.asarray(batch.index.ids) == k)) for k in range(len(pairs))]
    dofs, random = moves.start(batch.positions), np.random.default_rng(9)
    positions, rows = np.array(dofs.positions), np.array(dofs.cell)
    n_rows, references = 2 if kind is Strain else 3, []
    for k, (atoms, cell) in enumerate(pairs):
        theirs, own = filtered(atoms, cell), slice(n_rows * k, n_rows * (k + 1))
        step = random.normal(0, 0.05, (len(theirs), 3))
        if kind is Strain:
            step *= 0.2 * np.reshape([cell.movable()[i, j] for i, j in matrices.VOIGT], (2, 3))
        else:
            step[-3:] = np.where(cell.movable(), step[-3:] + step[-3:].T, 0)
            positions[starts[k] : starts[k] + len(atoms)] += step[:-3]
        rows[own] += step[-n_rows:]
        theirs.set_positions(theirs.get_positions() + step)
        references.append(theirs)
    enthalpies, gradient, observed, forces, here = at(batch, moves, Dofs(positions, rows))

    close = {"rtol": 0, "atol": 1e-11}  # a few ulp of numbers up to some hundreds
    for k, theirs in enumerate(references):
        own = slice(starts[k], starts[k] + len(theirs.atoms))
        np.testing.assert_allclose(here.cells[k], theirs.atoms.cell.array, **close)
        np.testing.assert_allclose(here.positions[own], theirs.atoms.positions, **close)
        np.testing.assert_allclose(enthalpies[k], theirs.get_potential_energy(), **close)
        np.testing.assert_allclose(forces[own], theirs.atoms.get_forces(), **close)
        energy = theirs.atoms.get_potential_energy()
        np.testing.assert_allclose(observed.energies[k], energy, **close)
        expected, got = theirs.get_forces(), -gradient.cell[n_rows * k : n_rows * (k + 1)]
        np.testing.assert_allclose(got, expected[-n_rows:], **close)
        if kind is not Strain:
            np.testing.assert_allclose(-gradient.positions[own], expected[:-3], **close)
        if kind is Frechet:  # of the others, ASE keeps another one or none
            left = full_3x3_to_voigt_6_stress(observed.residual_stress[k])
            np.testing.assert_allclose(left, theirs.stress, **close)


def test_exponentials_and_their_derivatives_are_those_of_scipy():
    random = np.random.default_rng(0)
    widths = np.repeat([1e-3, 0.1, 1.0, 20.0], 20)[:, None, None]
    a, direction = random.normal(size=(80, 3, 3)) * widths, random.normal(size=(80, 3, 3))
    got = jax.jit(matrices.derived_exponential)(a, direction)
    expected = [expm_frechet(*pair) for pair in zip(a, direction, strict=True)]
    for x, of_scipy in zip(got, zip(*expected, strict=True), strict=True):
        scale = np.abs(of_scipy).max(axis=(1, 2), keepdims=True)
        # Squaring doubles an error each time; 20 needs nine of it.
        np.testing.assert_allclose(x / scale, of_scipy / scale, rtol=0, atol=1e-12)


def test_logarithms_are_those_of_scipy():
    """Of what is up to a hundred times as long, and turned by up to half a turn."""
    random = np.random.default_rng(0)
    widths = np.repeat([1e-3, 0.1, 1.0], 20)[:, None, None]
    a = np.array([expm(x) for x in random.normal(size=(60, 3, 3)) * widths])
    np.testing.assert_allclose(jax.jit(matrices.logarithm)(a), [logm(x) for x in a], atol=1e-12)


def test_exponentials_of_matrices_out_of_range_are_nan():
    a = np.stack([np.full((3, 3), x) for x in (1e4, np.nan, np.inf)])
    assert np.isnan(jax.jit(matrices.exponential)(a)).all()


@pytest.mark.exhaustive  # every day those of cells that move, below
def test_matrices_have_the_same_bits_alone_in_a_batch_and_op_by_op():
    """In float32; those of cells that move have them in both dtypes."""
    random = np.random.default_rng(1)
    widths = 10.0 ** random.uniform(-3, 1, (50, 1, 1))
    a, b = (random.normal(size=(2, 50, 3, 3)) * widths).astype(np.float32)

    def all_of(a, b):
        return (
            matrices.derived_exponential(a, b),
            matrices.inverse(a),
            matrices.logarithm(a),
            matrices.multiply(a, b),
            matrices.row_norms(a),
            matrices.determinant(a),
            matrices.frobenius_norm(a),
        )

    program = jit_as_users(all_of)
    batched = program(a, b)
    with jax.disable_jit():
        op_by_op = all_of(jnp.asarray(a), jnp.asarray(b))
    jax.tree.map(np.testing.assert_array_equal, batched, op_by_op)
    alone = [program(a[k : k + 1], b[k : k + 1]) for k in range(50)]
    together = jax.tree.map(lambda *x: np.concatenate(x), *alone)
    jax.tree.map(np.testing.assert_array_equal, batched, together)


# --- whole relaxations

ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
ASE_ARGON = {"epsilon": 0.0104, "sigma": 3.40, "rc": 8.5}


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


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("kind", "dtype", "chosen", "those_alone"),
    [
        exhaustive(Frechet, np.float64, range(10), [1, 4, 7]),
        # Few enough for the program of one.
        exhaustive(UnitCell, np.float32, [0, 1, 2, 9, 8], [0, 3]),
        exhaustive(Strain, np.float64, [0, 1, 2, 9, 8], [1, 2]),
    ],
)
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(kind, dtype, chosen, those_alone):
    """400 steps, past the minimum; order, skin and how often lists are made anew differ.

    Those of other constraints are alone in test_moving_constraints.py, one of each kind every day.
    """
    atoms, cells = ([x[k] for k in chosen] for x in several(kind))
    settings = {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, ARGON, FIRE(), cell=cells, **settings)
    assert batch.status[list(chosen).index(8)] == Status.NOT_FINITE
    assert (batch.steps == 400).sum() >= len(atoms) // 2
    alone = {k: relax([atoms[k]], ARGON, FIRE(), cell=[cells[k]], **settings) for k in those_alone}
    assert [k for k in those_alone if not same(batch, k, alone[k], 0)] == []
    thin = relax(atoms[::-1], ARGON, FIRE(), cell=cells[::-1], skin=0.1, **settings)
    assert [k for k in range(len(atoms)) if not same(batch, -1 - k, thin, k)] == []


@pytest.mark.exhaustive  # every day: whatever is said of a lost cell, below
def test_a_cell_that_explodes_ends_with_a_status():
    """It is torn apart; another beside it does not mind."""
    atoms = [sheared(bulk("Ar", "fcc", a=5.3), 9) for _ in range(2)]
    result = relax(atoms, ARGON, FIRE(), cell=Frechet(pressure=[-0.2, 0.0]), fmax=1e-3)
    assert result.status.tolist() == [Status.NOT_FINITE, Status.CONVERGED]
    assert np.isnan(result.energies[0])
    assert np.abs(result.atoms[0].cell.array).max() > LARGEST_CELL


MUCH = {
    "too dense": (bulk("Cu", a=1.75), 0.0),
    "too dilute": (bulk("Cu", a=7.6), 0.05),
    "a gas": (Atoms("Ar2", [[0, 0, 0], [3.8, 0, 0]], cell=[12, 12, 12], pbc=True), 0.005),
}
"""Cells whose volume changes by more than a factor of eight, and pressures."""


@pytest.mark.parametrize(
    ("names", "potential", "dtype"),
    [
        exhaustive(["too dense", "too dilute"], EMT(), np.float64),
        (["a gas"], ARGON, np.float64),
        exhaustive(["a gas"], ARGON, np.float32),
    ],
)
def test_cells_that_change_much_go_on_as_in_ase(names, potential, dtype, recorded):
    """ASE's steps in double precision, to 1e-8 Å; the bits of each alone, whatever the skin."""
    atoms, pressures = (list(x) for x in zip(*(MUCH[name] for name in names), strict=True))
    settings = {"fmax": 0.02, "dtype": dtype}
    other = METALS[0] if potential is not ARGON else broken()
    batch = relax(
        [*atoms, other], potential, FIRE(), cell=Frechet(pressure=[*pressures, 0.0]), **settings
    )
    assert batch.converged[: len(atoms)].all()
    stretch = [a.cell.volume / b.cell.volume for a, b in zip(atoms, batch.atoms, strict=False)]
    assert all(not 1 / 8 < x < 8 for x in stretch)
    cells = Frechet(pressure=[0.0, *pressures[::-1]])
    thin = relax([other, *atoms[::-1]], potential, FIRE(), cell=cells, skin=0.1, **settings)
    for k, (a, pressure) in enumerate(zip(atoms, pressures, strict=True)):
        assert same(batch, k, relax([a], potential, FIRE(), cell=Frechet(pressure), **settings), 0)
        assert same(batch, k, thin, len(atoms) - k)
        if dtype == np.float32:
            continue
        calculator = None if potential is not ARGON else ASELennardJones(**ASE_ARGON)
        held = filtered(a, Frechet(pressure), calculator)
        theirs = recorded(walk_of_ase, ase.optimize.FIRE, held, 0.02)
        assert theirs["steps"] == batch.steps[k]
        cell = batch.atoms[k].cell.array
        np.testing.assert_allclose(cell, theirs["cells"][-1], rtol=0, atol=1e-8)


def test_all_that_is_said_of_a_lost_cell_is_nan():
    """Fifteen systems, of which the first three have cells that move."""
    batch, moves = batch_of([METALS[1]] * 15, [*[UnitCell()] * 3, *[None] * 12])
    dofs = moves.start(batch.positions)
    here, n_systems = moved(batch, moves, dofs), batch.n_systems
    nothing = jnp.zeros(n_systems)
    properties = Properties(nothing, jnp.zeros((batch.n_rows, 3)), nothing, here.cells)
    is_lost = np.arange(n_systems) < 2
    enthalpies, gradient, observed = jax.jit(CellMoves.of_properties)(
        moves, dofs, properties, here, is_lost
    )
    ids = np.asarray(batch.index.ids)
    for x in (enthalpies, observed.energies, observed.stress, observed.residual_stress):
        is_nan = np.isnan(np.asarray(x)).reshape(n_systems, -1)
        assert (is_nan == is_lost[:, None]).all()
    assert np.isnan(gradient.cell[:6]).all() and not np.isnan(gradient.cell[6:9]).any()
    assert np.isnan(np.asarray(gradient.positions)[ids < 2]).all()
    assert not np.isnan(np.asarray(gradient.positions)[ids == 2]).any()


BOX = np.array([[3.0, 0, 0], [1.0, 3.0, 0], [0.5, 1.0, 3.0]])
"""Within 8.5 Å some 280 images of an atom."""

LOST = {
    "as it is": (BOX, (1, 1, 1), False),
    "a fifth": (BOX / 5, (1, 1, 1), True),
    "a hundred times as large": (100 * BOX, (1, 1, 1), False),
    "beyond all bounds": (1e5 * BOX, (1, 1, 1), True),
    "flat": (BOX * [[1], [1], [1e-3]], (1, 1, 1), True),
    "without a volume": (BOX * [[1], [1], [0.0]], (1, 1, 1), True),
    "flat, and open there": (BOX * [[1], [1], [1e-3]], (1, 1, 0), False),
    "leaning, and open there": (
        np.add(BOX, [[0, 0, 0], [0, 0, 0], [2000, 2000, 0]]),
        (1, 1, 0),
        False,
    ),
    "a wire": (BOX * [[1], [1e-3], [1e-3]], (1, 0, 0), False),
    "a wire that is too short": (BOX * [[1e-4], [1], [1]], (1, 0, 0), True),
    "NaN": (BOX * np.nan, (1, 1, 1), True),
}


@both_ways
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cells_are_lost_where_no_neighbours_can_be_listed(dtype, plainly, alone_by):
    """Whatever is not lost has a list, with a skin as large as the cutoff, too."""
    cells, pbc, lost = (np.array(x) for x in zip(*LOST.values(), strict=True))
    start = Atoms("Ar", cell=BOX, pbc=True)
    batch, moves = batch_of([start] * len(LOST), [UnitCell()] * len(LOST), dtype)
    n = len(LOST)
    all_cells, all_pbc = np.array(batch.cells), np.array(batch.pbc)
    all_cells[:n], all_pbc[:n] = cells, pbc
    here = dataclasses.replace(batch, cells=jnp.asarray(all_cells), pbc=jnp.asarray(all_pbc))
    got = np.asarray(plainly(CellMoves.is_lost)(moves, here, jnp.asarray(8.5, dtype)))
    assert dict(zip(LOST, got[:n].tolist(), strict=True)) == dict(
        zip(LOST, lost.tolist(), strict=True)
    )
    assert not got[n:].any()
    table = NeighborTable(batch, 8.5, 8.5, follows_cells=True)
    assert not table.rebuild(here, ~got & (np.arange(len(got)) < n)).any()


@pytest.mark.exhaustive  # every day test_moving_constraints.py has cells beside constraints
@pytest.mark.usefixtures("few_places")
def test_a_place_that_is_taken_again_remembers_no_cell():
    """Twenty structures go through a batch with room for four, or six come into one of their own.

    The slab is in both parts, as their program has room for its constraint.
    """
    atoms, cells = several(Frechet)
    settings = {"fmax": 0.01, "keep_best": True, "max_steps": 60}
    streamed = relax([*atoms, *atoms[::-1]], ARGON, FIRE(), cell=[*cells, *cells[::-1]], **settings)
    for part in ([3, 0, 1, 2, 4], [3, 5, 6, 7, 8, 9]):
        own = relax(
            [atoms[k] for k in part], ARGON, FIRE(), cell=[cells[k] for k in part], **settings
        )
        assert [k for i, k in enumerate(part) if not same(own, i, streamed, k)] == []
        assert [k for i, k in enumerate(part) if not same(own, i, streamed, -1 - k)] == []


def with_root_units(cell, n_atoms: int):
    """The cell with the factor that makes the units of optimizers that are not ASE's."""
    usual = 1 if isinstance(cell, Strain) else n_atoms
    unit = 2.0 ** np.round(np.log2(usual / np.sqrt(n_atoms)))
    return dataclasses.replace(cell, cell_factor=usual / unit)


@pytest.mark.parametrize(
    ("kind", "dtype", "optimizer"),
    [
        exhaustive(Frechet, np.float64, basinax.LBFGS()),
        exhaustive(UnitCell, np.float32, basinax.LBFGS()),
        exhaustive(Strain, np.float64, basinax.LBFGS()),
        exhaustive(Frechet, np.float32, basinax.ConjugateGradient()),
        exhaustive(UnitCell, np.float64, basinax.ConjugateGradient()),
    ],
)
def test_strains_count_times_the_root_of_the_number_of_atoms(kind, dtype, optimizer):
    """In 400 steps, with the bits that a structure has alone; a factor that is given stays."""
    atoms, cells = ([x[k] for k in (0, 1, 2, 4, 8, 9)] for x in several(kind))
    settings = {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, ARGON, optimizer, cell=cells, **settings)
    pairs = zip(cells, map(len, atoms), strict=True)
    given = [None if cell is None else with_root_units(cell, n) for cell, n in pairs]
    by_factor = relax(atoms, ARGON, optimizer, cell=given, **settings)
    for one, other in zip(batch.atoms, by_factor.atoms, strict=True):  # but `fmax` has units
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_array_equal(one.cell.array, other.cell.array)
    for k in (1, 2):
        alone = relax([atoms[k]], ARGON, optimizer, cell=[cells[k]], **settings)
        assert same(batch, k, alone, 0)


def test_lbfgs_takes_few_steps_in_large_cells():
    """In the units of ASE, the largest would take several times as many."""
    atoms = [sheared(bulk("Ar", cubic=True, a=5.4) * (n, n, n), n) for n in (1, 2, 3)]
    in_chain = basinax.chain(basinax.ClipByGlobalNorm(1e6), basinax.LBFGS())
    result = relax(atoms, ARGON, basinax.LBFGS(), cell=Frechet(), fmax=0.005)
    assert result.converged.all() and max(result.evaluations) <= 15
    chained = relax(atoms[:2], ARGON, in_chain, cell=Frechet(), fmax=0.005)
    assert all(same(result, k, chained, k) for k in (0, 1))
    of_ase = relax(atoms[1:2], ARGON, basinax.LBFGS.ase(), cell=Frechet(), fmax=0.005)
    assert of_ase.evaluations[0] > 40
    assert of_ase.energies[0] == pytest.approx(result.energies[1], abs=2e-3)


def end_of_ase(optimizer, held):
    """Where it ends, and what is found there."""
    end, there = walk_of_ase(optimizer, held, 0.005), held.atoms
    found = there.get_potential_energy(), there.get_potential_energies(), there.get_stress()
    return end | dict(zip(("energy", "energies", "stress"), found, strict=True))


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        (basinax.FIRE(), ase.optimize.FIRE),
        exhaustive(basinax.BFGSLineSearch(), ase.optimize.BFGSLineSearch),
    ],
)
def test_steps_cells_and_stresses_are_those_of_ase(optimizer, reference, recorded):
    """Argon, a slab with fixed layers among it, but with FIRE: metals."""
    cells = [Frechet(), Frechet(pressure=0.005), Frechet(mask=(1, 1, 0, 0, 0, 1))]
    argon = several(Frechet)[0]
    atoms = METALS if reference is ase.optimize.FIRE else [argon[0], argon[1], argon[3]]
    potential = EMT() if reference is ase.optimize.FIRE else ARGON
    result = relax(atoms, potential, optimizer, cell=cells, fmax=0.005)
    for k, (a, cell) in enumerate(zip(atoms, cells, strict=True)):
        calculator = ASELennardJones(**ASE_ARGON)
        held = filtered(a, cell, None if potential is not ARGON else calculator)
        theirs = recorded(end_of_ase, reference, held)
        ours = result.atoms[k]
        assert result.steps[k] == theirs["steps"]
        close = {"rtol": 0, "atol": 1e-9}  # some ulp, multiplied by 80 steps
        np.testing.assert_allclose(ours.cell.array, theirs["cells"][-1], **close)
        np.testing.assert_allclose(ours.positions, theirs["positions"][-1], **close)
        np.testing.assert_allclose(ours.get_stress(), theirs["stress"], **close)
        np.testing.assert_allclose(ours.get_potential_energy(), theirs["energy"], **close)
        np.testing.assert_allclose(ours.get_potential_energies(), theirs["energies"], **close)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    # Of UnitCell every day in test_moving_constraints.py, where a relaxation has Strain, too.
    [exhaustive(UnitCell, "float32"), (Frechet, "float64"), exhaustive(Strain, "float32")],
)
@both_ways
def test_what_moves_cells_has_the_same_bits_alone_in_a_batch_and_op_by_op(
    kind, dtype, plainly, alone_by
):
    atoms, cells = several(kind)
    cells[4] = kind(pressure=0.01)  # all but the open cluster move
    cells[3] = kind(mask=(1, 0, 0, 0, 0, 1))  # whose logarithm is found anew
    atoms[3].set_constraint()
    batch, moves = batch_of(atoms, cells, dtype)
    random, ids = np.random.default_rng(3), np.asarray(batch.index.ids)
    dofs = moves.start(batch.positions)
    rows = np.asarray(dofs.cell) + random.normal(0, 0.1, dofs.cell.shape)
    dofs = dofs._replace(cell=rows.astype(dtype))
    forces = np.where(ids[:, None] < len(atoms), random.normal(size=dofs.positions.shape), 0)
    stress = random.normal(0, 0.1, (batch.n_systems, 3, 3))

    def properties_of(rows, systems):
        energies = jnp.zeros(len(systems), dtype)
        f, s = forces[rows].astype(dtype), stress[systems].astype(dtype)
        return Properties(energies, jnp.asarray(f), energies, jnp.asarray(s))

    # In a sum with what comes out, a naked product would be contracted.
    def all_of(batch, moves, dofs, properties):
        here = moved(batch, moves, dofs)
        enthalpies, gradient, observed = moves.of_properties(dofs, properties, here)
        found = moves.forces(dofs, gradient, batch.index)
        ends = dofs.cell + moves.masked_step(rounded(dofs.cell * 0.1), dofs)
        ends = ends.reshape(len(enthalpies), -1)
        places = here.cells + 1, here.positions + gradient.positions
        return enthalpies, observed, ends, *places, found

    every = properties_of(np.arange(batch.n_rows), np.arange(batch.n_systems))
    got = jit_as_users(all_of)(batch, moves, dofs, every)
    slowly = plainly(all_of)(batch, moves, dofs, every)
    jax.tree.map(np.testing.assert_array_equal, got, slowly)
    per_system = 2 if kind is Strain else 3
    for k in (1, 3, 5):
        own, its_moves = batch_of([atoms[k]], [cells[k]], dtype, n_rows=64, n_systems=1)
        its_rows, at_rows = np.flatnonzero(ids == k), np.arange(len(atoms[k]))
        its_rows = np.concatenate([its_rows, np.full(own.n_rows - len(its_rows), len(ids) - 1)])
        its_dofs = Dofs(own.positions, dofs.cell[per_system * k : per_system * (k + 1)])
        alone = alone_by(all_of)(own, its_moves, its_dofs, properties_of(its_rows, np.array([k])))
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(alone), strict=True):
            in_batch = x[its_rows[at_rows]] if x.shape == dofs.positions.shape else x[k : k + 1]
            np.testing.assert_array_equal(in_batch, y[: len(in_batch)])


@pytest.mark.exhaustive  # every day of metals, above
@pytest.mark.usefixtures("few_short_shapes")
def test_silicon_and_its_carbide_relax_as_in_ase(recorded):
    """From lattice constants that are wrong by 3 %, sheared; minima of Tersoff (1988, 1989)."""
    silicon, carbide = bulk("Si", a=5.6), bulk("SiC", "zincblende", a=4.5)
    atoms = [sheared(silicon, 1, 0.02), sheared(carbide, 2, 0.02)]
    triplets = {key: _mixed(*key) for key in itertools.product(("Si", "C"), repeat=3)}
    result = relax(atoms, Tersoff(triplets), FIRE(), cell=Frechet(), fmax=0.001)
    parameters = {key: TersoffParameters(*triplet) for key, triplet in triplets.items()}
    for k, a in enumerate(atoms):
        held = filtered(a, Frechet(), ASETersoff(parameters))
        theirs = recorded(walk_of_ase, ase.optimize.FIRE, held, 0.001)
        assert result.steps[k] == theirs["steps"]
        cell = result.atoms[k].cell.array
        np.testing.assert_allclose(cell, theirs["cells"][-1], rtol=0, atol=1e-7)
    lattice = [(4 * a.cell.volume) ** (1 / 3) for a in result.atoms]
    np.testing.assert_allclose(lattice, [5.432, 4.321], rtol=0, atol=2e-3)


@pytest.mark.exhaustive  # every day beside other constraints: test_moving_constraints.py
def test_symmetries_are_kept_as_ase_keeps_them(recorded):
    """A tetragonal cell beside one whose symmetry nothing keeps."""
    atoms = bulk("Ar", cubic=True, a=5.2)
    atoms.set_cell(atoms.cell.array * [[1.0], [1.0], [1.05]], scale_atoms=True)
    atoms.set_constraint(FixSymmetry(atoms))
    free = sheared(bulk("Ar", cubic=True, a=5.2), 3)
    result = relax([free, atoms], ARGON, FIRE(), cell=Frechet(pressure=0.005), fmax=1e-3)
    held = filtered(atoms, Frechet(pressure=0.005), ASELennardJones(**ASE_ARGON))
    theirs = recorded(walk_of_ase, ase.optimize.FIRE, held, 1e-3)
    assert result.steps[1] == theirs["steps"]
    cell = result.atoms[1].cell.array
    np.testing.assert_allclose(cell, theirs["cells"][-1], rtol=0, atol=1e-9)
    alone = relax([atoms], ARGON, FIRE(), cell=Frechet(pressure=0.005), fmax=1e-3)
    assert same(result, 1, alone, 0)


@pytest.mark.exhaustive
def test_a_symmetric_cell_may_end_far_from_where_it_began():
    """By more than ASE lets one step of a cell that keeps its symmetry lead."""
    atoms = bulk("Ar", cubic=True, a=4.0)
    atoms.set_constraint(FixSymmetry(atoms))
    result = relax([atoms], ARGON, FIRE(), cell=Frechet(), fmax=1e-3)
    assert result.converged[0]
    lengths = result.atoms[0].cell.lengths()
    np.testing.assert_allclose(lengths, 5.26, rtol=0, atol=0.02)


# --- when a structure is done


def any_of(*tolerances):
    """Criteria for each structure, of which one of tolerance 0 is never met."""
    force, stress, energy, energy_of_all = np.array(tolerances)
    apart = MaxAtomForce(force) & MaxStress(stress)
    return apart | EnergyChange(energy) | EnergyChange(energy_of_all, per_row=False)


@pytest.mark.exhaustive
def test_forces_and_stress_have_tolerances_apart():
    """ASE's criterion counts the cell's rows on its scale; apart, stress has one of its own."""
    small = sheared(bulk("Ar", cubic=True, a=5.1), 5, 0.01)
    fixed = sheared(bulk("Ar", cubic=True, a=5.1).repeat((1, 2, 2)), 5, 0.01)

    def relaxed(**criterion):
        cells = [Frechet(pressure=0.003), None]
        result = relax([small, fixed], ARGON, FIRE(), cell=cells, **criterion)
        left = result.atoms[0].get_stress() + 0.003 * np.array([1, 1, 1, 0, 0, 0])
        return result, np.abs(left).max()

    whole, stress = relaxed(fmax=0.05)
    assert stress > 1e-4
    apart, stress = relaxed(convergence=any_of([0.05] * 2, [1e-4] * 2, [0.0] * 2, [0.0] * 2))
    assert 1e-6 < stress < 1e-4
    assert apart.steps[0] > whole.steps[0]
    assert apart.steps[1] == whole.steps[1] > 0


def test_an_energy_change_is_one_of_atoms_where_cells_move():
    """Of two alike, one ends by the change an atom and one by that of its four together."""
    atoms = [sheared(bulk("Ar", cubic=True, a=5.1), 7)] * 2
    # With a divisor of seven, rows of the cell counted too, the first would end at half the steps.
    criterion = any_of([0.0, 0.0], [0.0, 0.0], [2e-6, 0.0], [0.0, 8e-6])
    result = relax(atoms, ARGON, FIRE(), cell=Frechet(), convergence=criterion)
    assert result.steps[0] == result.steps[1] > 2


# --- what users get wrong


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Frechet(mask=(1, 0, 1)), "six booleans"),
        (lambda: Frechet(mask=(1, 1, 1, 2, 0, 0)), "mask must be six"),
        (lambda: UnitCell(mask=np.triu(np.ones((3, 3)))), "symmetric"),
        (lambda: Frechet(pressure=np.nan), "pressure must be finite"),
        (lambda: UnitCell(cell_factor=0), "cell_factor must be positive"),
        (lambda: Strain(hydrostatic_strain=True, constant_volume=True), "nothing of a cell"),
        (lambda: cell_from("frechett"), "frechet"),
        (lambda: cell_from("frechet:mask=1100"), "six digits"),
        (lambda: cell_from("frechet:presure=1"), "pressure"),
        (lambda: cell_from("frechet:Ar"), "KEY=VALUE"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_cells_that_cannot_move_are_refused_before_anything_runs():
    flat = Atoms("Ar2", [[0, 0, 0], [0, 0, 4]], cell=[5, 5, 0], pbc=[1, 1, 0])
    with pytest.raises(ValueError, match=r"system 1 .*no volume.*cell=None"):
        relax([bulk("Ar", a=5.3), flat], ARGON, FIRE(), cell="frechet")
    held = bulk("Ar", cubic=True, a=5.3)
    held.set_constraint(FixScaled([0], (True, False, False)))
    with pytest.raises(NotImplementedError, match=r"system 1 .*FixScaled.*turn with it.*FixAtoms"):
        relax([held, held], ARGON, FIRE(), cell=[None, Frechet()])
    with pytest.raises(ValueError, match="one for each of the 2 structures: got 3"):
        relax([flat, flat], ARGON, FIRE(), cell=[None, None, None])
    with pytest.raises(ValueError, match="pressure must be a number or have one entry"):
        relax([held, held], ARGON, FIRE(), cell=Frechet(pressure=[0.0, 0.0, 0.0]))
    with pytest.raises(TypeError, match="entry 1 is 3"):
        relax([flat, flat], ARGON, FIRE(), cell=[None, 3])


def test_another_pressure_mask_or_factor_compiles_nothing(count_compilations):
    atoms = [sheared(bulk("Ar", cubic=True, a=5.2), 9)]
    settings = {"fmax": 0.01, "max_steps": 5}
    relax(atoms, ARGON, FIRE(), cell=Frechet(), **settings)
    with count_compilations() as counted:
        cell = Frechet(0.001, MASKED, cell_factor=2.0)
        relax(atoms, ARGON, FIRE(), cell=cell, **settings)
        relax(atoms, ARGON, FIRE(), cell=cell_from("frechet:constant_volume=true"), **settings)
    assert counted.count == 0
