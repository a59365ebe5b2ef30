"""Constraints of ASE structures: ASE's steps, fixed bits, and the bits of a batch."""

import functools
import itertools

import ase.optimize
import jax
import numpy as np
import pytest
from ase import Atoms
from ase.build import fcc111
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.constraints import FixAtoms, FixCartesian, FixCom, FixedLine, FixedPlane, FixScaled

import basinax
from basinax import FIRE, Status
from basinax.atoms import Batch, LennardJones, relax
from comparison import same, same_bits
from cover import exhaustive
from follow_ase import walk_of_ase
from xla import both_ways, jit_as_users

pytestmark = pytest.mark.usefixtures("few_shapes")

ARGON = {"epsilon": 0.0104, "sigma": 3.40, "cutoff": 8.5}
POTENTIAL = LennardJones(**ARGON)
BOTTOM = list(range(8))

CONSTRAINTS = {
    "none": [],
    "fixed layers": [FixAtoms(BOTTOM)],
    "components": [FixCartesian(BOTTOM, (True, False, True)), FixCartesian([-1])],
    "lines": [FixedLine(BOTTOM, (1, 2, 3)), FixedLine([9], (0, 0, -1))],
    "planes": [FixedPlane(BOTTOM, (1, -2, 3)), FixedPlane([9], (0, 1, 0))],
    "mass": [FixCom()],
    "along the cell": [
        FixScaled(BOTTOM, (True, True, False)),
        FixScaled([9], (False, False, True)),
    ],
    "several of one atom": [FixedPlane(BOTTOM, (1, 0, 2)), FixCartesian([1, 2], (0, 1, 0))],
}

# As in ASE, what remains of a force here depends on the order, and is no projection.
ORDERS = {
    "plane, then line": [FixedPlane([1, 2], (1, 1, 0)), FixedLine([2, 3], (1, 0, 2))],
    "line, then plane": [FixedLine([2, 3], (1, 0, 2)), FixedPlane([1, 2], (1, 1, 0))],
    "atoms, then mass": [FixAtoms([0, 5]), FixCom()],
    "mass, then atoms": [FixCom(), FixAtoms([0, 5])],
    "mass between planes": [
        FixedPlane([3, 4], (1, 1, 0)),
        FixCom(),
        FixedPlane([4, 5], (0, 1, 1)),
        FixCom(),
    ],
}


def slab(constraints=(), seed: int = 0) -> Atoms:
    """Three layers of four atoms, the bottom ones first; some masses are of no element."""
    atoms = fcc111("Ar", (2, 2, 3), a=5.3, vacuum=10.0)
    atoms.rattle(0.15, seed=seed)
    atoms.set_masses(np.random.default_rng(seed).uniform(20, 60, len(atoms)))
    atoms.set_constraint([c.copy() for c in constraints])
    return atoms


def slabs() -> list[Atoms]:
    return [slab(constraints, k) for k, constraints in enumerate(CONSTRAINTS.values())]


@jax.jit
def left_of(x, batch):
    """Of a gradient and of a step."""
    return batch.constraints.of_gradient(x, batch.index), batch.constraints.of_step(x, batch.index)


def reference_of(atoms: Atoms) -> Atoms:
    copy = atoms.copy()
    copy.calc = ASELennardJones(epsilon=0.0104, sigma=3.40, rc=8.5)
    return copy


# --- what ASE does

PAIRS = {
    "FIRE": (basinax.FIRE(), ase.optimize.FIRE),
    "BFGSLineSearch": (basinax.BFGSLineSearch(), ase.optimize.BFGSLineSearch),
}


@pytest.mark.parametrize("name", ["FIRE", exhaustive("BFGSLineSearch")])
def test_steps_are_those_of_ase(name, recorded):
    """1e-8 Å at steps 1, 5, 20 and the last: sums in another order, multiplied by the dynamics."""
    ours, theirs = PAIRS[name]
    chosen = ("fixed layers", "lines", "mass", "several of one atom")
    atoms = [slab(CONSTRAINTS[name], k) for k, name in enumerate(chosen)]
    early = {n: relax(atoms, POTENTIAL, ours, fmax=0.005, max_steps=n) for n in (1, 5, 20)}
    result = relax(atoms, POTENTIAL, ours, fmax=0.005)
    apart, counts = [], []
    for k, start in enumerate(atoms):
        walk = recorded(walk_of_ase, theirs, reference_of(start), 0.005, kept=early)
        for ours_there, there in zip((*early.values(), result), walk["positions"], strict=True):
            apart.append(np.abs(ours_there.atoms[k].positions - there).max())
        counts.append(walk["steps"])
    assert result.steps.tolist() == counts
    assert max(apart) < 1e-8


@functools.cache
def adjusted():
    """Random vectors, and what every structure's constraints leave of them, in one batch."""
    batch = Batch.from_atoms([slab(c) for c in (CONSTRAINTS | ORDERS).values()])
    vectors = np.random.default_rng(3).normal(size=(batch.n_rows, 3))
    return vectors, *map(np.asarray, left_of(vectors, batch))


@pytest.mark.parametrize("name", [*CONSTRAINTS, *ORDERS])
def test_forces_and_steps_are_adjusted_as_in_ase(name):
    """1e-14 times the largest number among them: rounding."""
    atoms, k = slab((CONSTRAINTS | ORDERS)[name]), [*CONSTRAINTS, *ORDERS].index(name)
    vectors, gradient, step = (x[16 * k : 16 * k + len(atoms)] for x in adjusted())
    forces, positions = vectors.copy(), atoms.positions + vectors
    for constraint in atoms.constraints:
        constraint.adjust_forces(atoms, forces)
        constraint.adjust_positions(atoms, positions)
    np.testing.assert_allclose(gradient, forces, rtol=0, atol=1e-13)
    np.testing.assert_allclose(step, positions - atoms.positions, rtol=0, atol=1e-13)


@pytest.mark.usefixtures("few_places")
def test_results_keep_their_constraints_and_both_kinds_of_forces():
    atoms = slabs()
    result = relax(atoms, POTENTIAL, FIRE(), fmax=0.02, keep_best=True)
    for start, relaxed, fmax in zip(atoms, result.atoms, result.fmax, strict=True):
        assert [c.todict() for c in relaxed.constraints] == [c.todict() for c in start.constraints]
        reference = reference_of(relaxed)
        for apply_constraint in (True, False):
            np.testing.assert_allclose(
                relaxed.get_forces(apply_constraint=apply_constraint),
                reference.get_forces(apply_constraint=apply_constraint),
                rtol=0,
                atol=1e-12,
            )
        # The largest force is that of what is left.
        assert fmax == pytest.approx(np.linalg.norm(relaxed.get_forces(), axis=1).max(), rel=1e-9)


def test_forces_that_are_constrained_away_do_not_count():
    atoms = fcc111("Ar", (2, 2, 3), a=5.3, vacuum=10.0)
    atoms.positions[0, 2] += 0.4
    free = relax([atoms], POTENTIAL, FIRE(), fmax=0.03)
    atoms.set_constraint(FixAtoms(BOTTOM))
    held = relax([atoms], POTENTIAL, FIRE(), fmax=0.03)
    assert free.steps[0] > 0
    assert held.steps[0] == 0
    assert held.converged[0]
    raw = held.atoms[0].get_forces(apply_constraint=False)
    assert np.abs(raw[0, 2]) > 0.03


# --- what stands still

OPTIMIZERS = {
    "FIRE": (basinax.FIRE(), np.float32),
    "a line search": (basinax.ConjugateGradient(), np.float64),
    "a chain": (
        basinax.chain(basinax.ClipByValue(0.3), basinax.Adam(0.02), basinax.MaxStepSize(0.1)),
        np.float32,
    ),
}


def cluster(constraints) -> Atoms:
    """Seven atoms, one of whose coordinates is -0.0."""
    atoms = Atoms("Ar7", [[0, 0, -0.0], *(3.8 * np.eye(3)), *(-3.8 * np.eye(3))])
    atoms.positions[1:] += np.random.default_rng(1).normal(size=(6, 3)) * 0.15
    atoms.set_constraint(constraints)
    return atoms


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fixed_coordinates_keep_their_bits(name):
    optimizer, dtype = OPTIMIZERS[name]
    fixed = np.zeros((7, 3), bool)
    fixed[[0, 2]] = True
    fixed[[3, 4], 1:] = True
    start = cluster([FixAtoms([0, 2]), FixCartesian([3, 4], (0, 1, 1)), FixedPlane([5], (1, 1, 1))])
    result = relax([start], POTENTIAL, optimizer, fmax=0.002, max_steps=400, dtype=dtype)
    assert result.converged[0]
    end = result.atoms[0].positions
    assert same_bits(end[fixed], start.positions[fixed])
    assert (end[~fixed] != start.positions[~fixed]).all()
    # What moves in a plane leaves it by rounding alone.
    off_plane = (end - start.positions)[5] @ np.ones(3)
    assert abs(off_plane) < 100 * np.finfo(dtype).eps * 3.8


def test_what_is_fixed_last_keeps_its_bits_behind_others_that_move_all():
    """A centre of mass that is kept last moves what was fixed before, in ASE, too."""
    both = [FixAtoms([0, 2]), FixCom()]
    starts = [cluster(constraints) for constraints in (both[::-1], both)]
    result = relax(starts, POTENTIAL, FIRE(), fmax=0.0, max_steps=20, dtype=np.float32)
    fixed = [
        (a.positions[[0, 2]], b.positions[[0, 2]])
        for a, b in zip(starts, result.atoms, strict=True)
    ]
    assert same_bits(*fixed[0])
    assert (fixed[1][0] != fixed[1][1]).all()


def test_a_system_of_fixed_atoms_is_converged():
    start = slab([FixAtoms(range(12))])
    result = relax([start], POTENTIAL, FIRE())
    assert (result.status[0], result.steps[0], result.fmax[0]) == (Status.CONVERGED, 0, 0.0)
    forever = relax([start], POTENTIAL, FIRE(), fmax=0.0)
    assert forever.status[0] == Status.STALLED
    assert same_bits(forever.atoms[0].positions, start.positions)


# --- the bits of a batch


def several() -> list[Atoms]:
    """Constrained and free, of one atom and more, one of them broken.

    They have as many rows as a batch of one is given here, and as those compared with ASE.
    """
    chosen = ("none", "lines", "mass")
    broken = Atoms("Ar2", [[0, 0, 0], [0, 0, 0]], constraint=[FixCom()])
    atom = Atoms("Ar", [[1, 2, 3]], constraint=[FixedLine([0], (1, 1, 0))])
    return [*(slab(CONSTRAINTS[name], k) for k, name in enumerate(chosen)), atom, broken]


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("dtype", "those_alone"), [exhaustive(np.float32, [1, 3]), (np.float64, [0, 2])]
)
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(dtype, those_alone):
    """400 steps, past the minimum, with a skin that needs lists anew.

    Each is alone in one dtype: what it is constrained by makes a program of its own.
    """
    atoms, settings = several(), {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, POTENTIAL, FIRE(), **settings)
    assert batch.status[-1] == Status.NOT_FINITE
    assert (batch.steps == 400).sum() == 3
    alone = {k: relax([atoms[k]], POTENTIAL, FIRE(), **settings) for k in those_alone}
    assert [k for k in those_alone if not same(batch, k, alone[k], 0)] == []
    thin = relax(atoms[::-1], POTENTIAL, FIRE(), skin=0.05, **settings)
    assert [k for k in range(len(atoms)) if not same(batch, -1 - k, thin, k)] == []


@pytest.mark.usefixtures("few_places")
def test_a_place_that_is_taken_again_has_the_constraints_of_its_structure():
    """Twelve structures go through places for four, or four come into places of their own.

    Lines and masses are in each four, as their program has room for them.
    """
    others = [name for name in CONSTRAINTS if name not in ("lines", "mass")]
    fours = [("lines", "mass", *pair) for pair in zip(others[::2], others[1::2], strict=True)]
    names = itertools.chain(*fours)
    atoms = [slab(CONSTRAINTS[name], k) for k, name in enumerate(names)]
    streamed = relax(atoms, POTENTIAL, FIRE(), fmax=0.002, keep_best=True)
    for k in range(0, len(atoms), 4):
        four = relax(atoms[k : k + 4], POTENTIAL, FIRE(), fmax=0.002, keep_best=True)
        assert [i for i in range(4) if not same(four, i, streamed, k + i)] == []


@both_ways
@pytest.mark.parametrize("dtype", [np.float32, exhaustive(np.float64)])
def test_adjusted_rows_have_the_same_bits_jitted_op_by_op_and_alone(dtype, plainly, alone_by):
    chosen = ("none", "fixed layers", "lines", "line, then plane", "mass between planes")
    atoms = [slab((CONSTRAINTS | ORDERS)[name], k) for k, name in enumerate(chosen)]
    batch = Batch.from_atoms(atoms, dtype)
    random, ids = np.random.default_rng(4), np.asarray(batch.index.ids)
    vectors = np.where(ids[:, None] < len(atoms), random.normal(size=(len(ids), 3)), 0)
    vectors = vectors.astype(dtype)
    vectors[ids == 1] = np.nan

    # In a sum with what comes out, a naked product would be contracted.
    def moved(batch, x):
        gradient = batch.constraints.of_gradient(x, batch.index)
        return batch.positions + gradient, batch.positions + batch.constraints.of_step(
            x, batch.index
        )

    got = jit_as_users(moved)(batch, vectors)
    slowly = plainly(moved)(batch, vectors)
    assert all(same_bits(*pair) for pair in zip(got, slowly, strict=True))
    for k, a in enumerate(atoms[2:], start=2):
        own = Batch.from_atoms([a], dtype)
        rows = np.flatnonzero(ids == k)
        x = np.zeros((own.n_rows, 3), dtype)
        x[: len(a)] = vectors[rows]
        alone = alone_by(moved)(own, x)
        pairs = [
            (np.asarray(g)[rows], np.asarray(b)[: len(a)]) for g, b in zip(got, alone, strict=True)
        ]
        assert all(same_bits(*pair) for pair in pairs)


def test_free_rows_come_back_bit_for_bit():
    batch = Batch.from_atoms([slab(), slab([FixedLine([1], (1, 2, 3)), FixCom()])])
    free = np.asarray(batch.index.ids) == 0
    x = np.full((batch.n_rows, 3), -0.0)
    x[1] = np.nan, np.inf, np.finfo(float).max
    for left in left_of(x, batch):
        assert same_bits(np.asarray(left)[free], x[free])


def test_a_layout_without_room_is_refused():
    with pytest.raises(ValueError, match="system 0: the layout has no room"):
        Batch.from_atoms([slab([FixAtoms([0])])], layout=())
    room_for_masks = Batch.from_atoms([slab()], layout=(((1, 0, 0), (), ()),))
    assert not np.asarray(room_for_masks.constraints.parts[0].fixed).any()
    with pytest.raises(ValueError, match="no room"):
        Batch.from_atoms([slab([FixCom()])], layout=(((1, 1, 0), (), ()),))


def test_structures_without_constraints_run_the_program_without():
    assert Batch.from_atoms([slab(), slab()]).constraints is None
