"""`FixSymmetry`: ASE's steps, the symmetry that is kept, and the bits of a batch."""

import functools

import ase.optimize
import equinox as eqx
import jax
import numpy as np
import pytest
import spglib
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT as ASEEMT
from ase.constraints import FixAtoms, FixCom, FixedPlane, FixSymmetry
from ase.spacegroup import crystal
from ase.stress import full_3x3_to_voigt_6_stress, voigt_6_to_full_3x3_stress

from basinax import FIRE, Status
from basinax.atoms import EMT, Batch, relax
from comparison import same, same_bits
from cover import exhaustive
from follow_ase import walk_of_ase
from xla import both_ways, jit_as_users

pytestmark = pytest.mark.usefixtures("few_shapes")

POTENTIAL = EMT("Cu", "Pd", "Au")


def rutile() -> Atoms:
    """Pd in the place of oxygen, with one coordinate that is free."""
    cell = [4.6, 4.6, 3.0, 90, 90, 90]
    return crystal(["Cu", "Pd"], [(0, 0, 0), (0.3, 0.3, 0)], spacegroup=136, cellpar=cell)


def trigonal() -> Atoms:
    """Six atoms in a general position, and three on axes."""
    at = [(0.13, 0.21, 0.1), (0.55, 0.0, 1 / 3)]
    cell = [5.6, 5.6, 6.2, 90, 90, 120]
    return crystal(["Cu", "Au"], at, spacegroup=152, cellpar=cell)


def copper() -> Atoms:
    """32 atoms, which 1536 operations exchange."""
    return bulk("Cu", cubic=True).repeat(2)


def strained() -> Atoms:
    """Its cell is no longer that of the operations, whose matrices then are no rotations."""
    atoms = with_symmetry(rutile())
    atoms.set_cell(
        atoms.cell @ np.diag([1.02, 1.0, 0.97]), scale_atoms=True, apply_constraint=False
    )
    return atoms


def with_symmetry(atoms: Atoms, before=(), after=(), broken: float = 0.0, **how) -> Atoms:
    """The structure with the constraint among others, and its atoms moved since by `broken` Å."""
    atoms = Atoms(atoms.symbols, atoms.positions, cell=atoms.cell, pbc=True)
    keeper = FixSymmetry(atoms, **how)
    atoms.set_masses(np.random.default_rng(1).uniform(20, 60, len(atoms)))
    atoms.positions += np.random.default_rng(2).normal(size=atoms.positions.shape) * broken
    atoms.set_constraint([*before, keeper, *after])
    return atoms


STRUCTURES = {
    "rutile": lambda: with_symmetry(rutile()),
    "trigonal": lambda: with_symmetry(trigonal(), broken=0.05),
    "copper": lambda: with_symmetry(copper(), broken=0.1),
    "positions alone": lambda: with_symmetry(trigonal(), adjust_positions=False),
    "behind others": lambda: with_symmetry(rutile(), [FixedPlane([2], (1, 2, 3)), FixCom()]),
    "before others": lambda: with_symmetry(trigonal(), after=[FixAtoms([0]), FixCom()]),
    "twice": lambda: with_symmetry(trigonal(), [FixSymmetry(with_symmetry(trigonal()))]),
    "strained": strained,
}


# --- what ASE does


@jax.jit
def left_of(x, stress, batch):
    """Of a gradient, a step and a stress."""
    keep = batch.constraints
    rows = keep.of_gradient(x, batch.index), keep.of_step(x, batch.index)
    return *rows, keep.of_stress(stress)


@functools.cache
def adjusted():
    """Random vectors and stresses, and what is left of them, of all structures in one batch."""
    batch = Batch.from_atoms([make() for make in STRUCTURES.values()])
    random = np.random.default_rng(3)
    vectors = random.normal(size=(batch.n_rows, 3))
    stresses = voigt_6_to_full_3x3_stress(random.normal(size=(batch.n_systems, 6)))
    return batch, vectors, stresses, *map(np.asarray, left_of(vectors, stresses, batch))


@pytest.mark.parametrize("name", STRUCTURES)
def test_forces_steps_and_stresses_are_adjusted_as_in_ase(name):
    """1e-13 of numbers of about 1: rounding."""
    atoms, k = STRUCTURES[name](), list(STRUCTURES).index(name)
    batch, vectors, stresses, gradient, step, left = adjusted()
    rows = np.flatnonzero(np.asarray(batch.index.ids) == k)
    forces, positions = vectors[rows], atoms.positions + vectors[rows]
    stress = full_3x3_to_voigt_6_stress(stresses[k])
    for constraint in atoms.constraints:
        constraint.adjust_forces(atoms, forces)
        constraint.adjust_positions(atoms, positions)
        if isinstance(constraint, FixSymmetry):
            constraint.adjust_stress(atoms, stress)
    np.testing.assert_allclose(gradient[rows], forces, rtol=0, atol=1e-13)
    np.testing.assert_allclose(step[rows], positions - atoms.positions, rtol=0, atol=1e-13)
    np.testing.assert_allclose(full_3x3_to_voigt_6_stress(left[k]), stress, rtol=0, atol=1e-12)


@pytest.mark.exhaustive  # every day where cells move: test_moving_constraints.py
def test_steps_are_those_of_ase(recorded):
    """1e-8 Å at steps 1, 5, 20 and the last: sums in another order, multiplied by the dynamics."""
    atoms = [
        with_symmetry(rutile(), broken=0.02),
        with_symmetry(trigonal(), broken=0.02),
        with_symmetry(trigonal(), [FixAtoms([0])], [FixCom()]),
    ]
    early = {n: relax(atoms, POTENTIAL, FIRE(), fmax=0.005, max_steps=n) for n in (1, 5, 20)}
    result = relax(atoms, POTENTIAL, FIRE(), fmax=0.005, max_steps=60)
    apart, counts = [], []
    for k, start in enumerate(atoms):
        a = start.copy()
        a.calc = ASEEMT()
        walk = recorded(walk_of_ase, ase.optimize.FIRE, a, 0.005, 60, kept=early)
        for ours, there in zip((*early.values(), result), walk["positions"], strict=True):
            apart.append(np.abs(ours.atoms[k].positions - there).max())
        counts.append(walk["steps"])
    assert result.steps.tolist() == counts
    assert max(apart) < 1e-8


# --- what is kept


def number_of(atoms: Atoms, symprec: float) -> int:
    cell = (atoms.cell.array, atoms.get_scaled_positions(), atoms.numbers)
    dataset = spglib.get_symmetry_dataset(cell, symprec=symprec)
    assert dataset is not None
    return dataset.number


@pytest.mark.parametrize(("dtype", "symprec"), [exhaustive(np.float32, 1e-3), (np.float64, 1e-8)])
def test_space_groups_are_kept_while_atoms_move(dtype, symprec):
    """Those of two, beside others for which another test has the program."""
    atoms = [with_symmetry(a) for a in (rutile(), trigonal())]
    result = relax([*atoms, *several()[1:3]], POTENTIAL, FIRE(), fmax=0.01, dtype=dtype)
    assert result.converged.all()
    for start, end, number in zip(atoms, result.atoms[:2], (136, 152), strict=True):
        assert np.abs(end.positions - start.positions).max() > 0.01
        assert number_of(end, symprec) == number
        assert isinstance(end.constraints[0], FixSymmetry)


@pytest.mark.exhaustive
def test_what_no_operation_leaves_does_not_move():
    """A perfect crystal has no coordinate that is free; noise in it is never taken away."""
    start = with_symmetry(copper(), broken=0.1)
    result = relax([start], POTENTIAL, FIRE(), fmax=0.01)
    assert result.converged[0]
    np.testing.assert_allclose(result.atoms[0].positions, start.positions, rtol=0, atol=1e-14)


# --- the bits of a batch


def several() -> list[Atoms]:
    """With symmetries and without, one of them broken."""
    broken = with_symmetry(rutile())
    broken.positions[0] = broken.positions[1]
    free = bulk("Au", cubic=True)
    free.rattle(0.1, seed=1)
    return [
        with_symmetry(rutile(), broken=0.02),
        free,
        with_symmetry(trigonal(), [FixAtoms([0])], [FixCom()], broken=0.02),
        broken,
    ]


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("dtype", "those_alone"), [exhaustive(np.float32, [1, 2]), exhaustive(np.float64, [0, 3])]
)
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(dtype, those_alone):
    """400 steps, past the minimum, with a skin that needs lists anew.

    Every day one is beside other constraints in test_moving_constraints.py.
    Each is alone in one dtype: what it is constrained by makes a program of its own.
    """
    atoms, settings = several(), {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, POTENTIAL, FIRE(), **settings)
    assert batch.status[-1] == Status.NOT_FINITE
    assert (batch.steps == 400).sum() >= 2
    alone = {k: relax([atoms[k]], POTENTIAL, FIRE(), **settings) for k in those_alone}
    assert [k for k in those_alone if not same(batch, k, alone[k], 0)] == []
    thin = relax(atoms[::-1], POTENTIAL, FIRE(), skin=0.05, **settings)
    assert [k for k in range(len(atoms)) if not same(batch, -1 - k, thin, k)] == []


@pytest.mark.exhaustive  # every day beside other constraints: test_moving_constraints.py
@pytest.mark.usefixtures("few_places")
def test_a_place_that_is_taken_again_has_the_symmetry_of_its_structure():
    """Nine structures go through places for six, or three come into places of their own."""
    atoms = [a for _ in range(3) for a in several()[:3]]
    for k, a in enumerate(atoms):
        a.positions += np.random.default_rng(k).normal(size=a.positions.shape) * 0.02
    streamed = relax(atoms, POTENTIAL, FIRE(), fmax=0.002, keep_best=True)
    for k in range(0, len(atoms), 3):
        three = relax(atoms[k : k + 3], POTENTIAL, FIRE(), fmax=0.002, keep_best=True)
        assert [i for i in range(3) if not same(three, i, streamed, k + i)] == []


@both_ways
@pytest.mark.parametrize(
    ("dtype", "those_alone"), [(np.float32, [0, 3]), exhaustive(np.float64, [1, 2])]
)
def test_adjusted_vectors_have_the_same_bits_jitted_op_by_op_and_alone(
    dtype, those_alone, plainly, alone_by
):
    """Each is alone in one dtype: what it is constrained by makes a program of its own."""
    atoms = [STRUCTURES[name]() for name in ("rutile", "before others", "strained")]
    atoms.append(with_symmetry(bulk("Pd")))
    batch = Batch.from_atoms([*atoms, bulk("Cu")], dtype)
    random, ids = np.random.default_rng(4), np.asarray(batch.index.ids)
    vectors = random.normal(size=(len(ids), 3)).astype(dtype)
    vectors[ids == 0] = np.nan
    stress = random.normal(size=(batch.n_systems, 3, 3)).astype(dtype)

    # In a sum with what comes out, a naked product would be contracted.
    def moved(batch, x, stress):
        keep = batch.constraints
        rows = [keep.of_gradient(x, batch.index), keep.of_step(x, batch.index)]
        return [batch.positions + r for r in rows], batch.cells + keep.of_stress(stress)

    got_rows, got_cells = jit_as_users(moved)(batch, vectors, stress)
    rows, cells = plainly(moved)(batch, vectors, stress)
    assert all(same_bits(*pair) for pair in zip(got_rows, rows, strict=True))
    assert same_bits(got_cells, cells)
    for k in those_alone:
        a = atoms[k]
        own, at = Batch.from_atoms([a], dtype), np.flatnonzero(ids == k)
        x, s = np.zeros((own.n_rows, 3), dtype), np.zeros((own.n_systems, 3, 3), dtype)
        x[: len(a)], s[0] = vectors[at], stress[k]
        alone_rows, alone_cells = alone_by(moved)(own, x, s)
        assert same_bits(np.asarray(alone_cells)[0], np.asarray(got_cells)[k])
        for one, other in zip(alone_rows, got_rows, strict=True):
            assert same_bits(np.asarray(one)[: len(a)], np.asarray(other)[at])


def test_rows_without_symmetry_come_back_bit_for_bit():
    batch = Batch.from_atoms([bulk("Cu", cubic=True), with_symmetry(rutile())])
    free = np.asarray(batch.index.ids) == 0
    x = np.full((batch.n_rows, 3), -0.0)
    x[1] = np.nan, np.inf, np.finfo(float).max
    stress = np.full((batch.n_systems, 3, 3), -0.0)
    *rows, left = left_of(x, stress, batch)
    for adjusted_rows in rows:
        assert same_bits(np.asarray(adjusted_rows)[free], x[free])
    assert same_bits(np.asarray(left)[0], stress[0])


def test_a_batch_hands_back_the_cells_that_it_has():
    """ASE would adjust what has been strained so far once more, or raise."""
    start = with_symmetry(rutile())
    batch = Batch.from_atoms([start])
    strained = eqx.tree_at(lambda b: b.cells, batch, batch.cells * 1.5)
    cell = strained.to_atoms([start])[0].cell.array
    np.testing.assert_array_equal(cell, start.cell.array * 1.5)


# --- what is refused


def test_operations_that_do_not_fit_the_structure_are_refused():
    larger = with_symmetry(rutile())
    larger.constraints[0].symm_map = [[0, 1, 2]] * len(larger.constraints[0].rotations)
    with pytest.raises(ValueError, match=r"system 1 .*FixSymmetry was made for another number of"):
        relax([bulk("Cu"), larger], POTENTIAL, FIRE())
    flat = with_symmetry(rutile())
    flat.pbc = False
    flat.set_cell(np.zeros((3, 3)), apply_constraint=False)
    with pytest.raises(ValueError, match="FixSymmetry needs a cell with a volume"):
        relax([flat], POTENTIAL, FIRE())
    wrong = with_symmetry(rutile())
    wrong.constraints[0].rotations[1] = np.diag([1, 1, -1])
    with pytest.raises(ValueError, match="FixSymmetry has operations that are no group"):
        relax([wrong], POTENTIAL, FIRE())


def test_a_layout_without_room_for_the_orbits_is_refused():
    with pytest.raises(ValueError, match="system 0: the layout has no room"):
        Batch.from_atoms([with_symmetry(copper())], layout=(((), (), (16,)),))
    Batch.from_atoms([with_symmetry(copper())], layout=(((), (), (32,)),))
