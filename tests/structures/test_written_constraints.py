"""Constraints that users write with public names alone: ASE's steps, and the bits of a batch."""

import ase.constraints
import ase.optimize
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.constraints import FixAtoms, FixCom, FixConstraint, FixInternals, Hookean
from ase.filters import UnitCellFilter

from basinax import (
    FIRE,
    AbstractCriterion,
    OrderWarning,
    rounded,
    rows_field,
    segment,
    systems_field,
)
from basinax.atoms import (
    AbstractConstraint,
    Batch,
    LennardJones,
    UnitCell,
    elastic,
    evaluate,
    register_constraint,
    relax,
    vibrations,
)
from comparison import same, same_bits
from cover import exhaustive
from follow_ase import walk_of_ase
from xla import both_ways, jit_as_users

pytestmark = pytest.mark.usefixtures("few_shapes")

POTENTIAL = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)


class FixedMode(ase.constraints.FixedMode):
    """ASE's own is registered by a page of the docs, whose code runs in processes of tests."""


@register_constraint(FixedMode)
class OffMode(AbstractConstraint):
    """Steps have no part along a mode of the whole structure."""

    mode: jax.Array = rows_field()

    @classmethod
    def read(cls, constraint, atoms):
        return cls(constraint.mode.reshape(-1, 3))

    def adjust_gradient(self, x, index):
        return x - segment.scale(self.mode, segment.dot(x, self.mode, index), index)


def test_what_has_other_shapes_is_refused(monkeypatch):
    atoms = bulk("Ar", cubic=True)
    atoms.set_constraint(FixedMode(np.ones((4, 3))))
    monkeypatch.setattr(OffMode, "adjust_gradient", lambda self, x, index: x[:1])
    with pytest.raises(ValueError, match="of OffMode gets and returns do not fit"):
        relax([atoms], POTENTIAL, FIRE(), max_steps=1)


def test_a_read_that_returns_nothing_is_refused(monkeypatch):
    atoms = bulk("Ar", cubic=True)
    atoms.set_constraint(FixedMode(np.ones((4, 3))))
    monkeypatch.setattr(OffMode, "read", lambda constraint, atoms: None)
    with pytest.raises(TypeError, match=r"OffMode.read must return a OffMode, got NoneType"):
        relax([atoms], POTENTIAL, FIRE(), max_steps=1)


class Halved(FixConstraint):
    def __init__(self):
        pass


@register_constraint(Halved)
class NakedlyHalved(AbstractConstraint):
    @classmethod
    def read(cls, constraint, atoms):
        return cls()

    def adjust_gradient(self, x, index):
        return x - 0.3 * x


class Nearby(AbstractCriterion):
    needs = frozenset({"last_params"})

    def __call__(self, evidence):
        moved = evidence.params - evidence.last_params
        return segment.sum(0.3 * moved * moved + moved, evidence.index_prefix) < 1e-3


def test_products_that_meet_sums_in_constraints_and_criteria_are_told():
    atoms = bulk("Ar", cubic=True)
    atoms.set_constraint(Halved())
    with pytest.warns(
        OrderWarning, match=r"test_written_constraints.py:\d+: product in a sum \(sub"
    ):
        relax([atoms], POTENTIAL, FIRE(), max_steps=1)
    with pytest.warns(
        OrderWarning, match=r"test_written_constraints.py:\d+: product in a sum \(add"
    ):
        relax([bulk("Ar")], POTENTIAL, FIRE(), convergence=Nearby(), max_steps=1)


class Damped(FixConstraint):
    """Of ASE's kind: some atoms feel a part of their force, and take another part of a step."""

    def __init__(self, parts, of_steps):
        self.parts, self.of_steps = np.array(parts, float), of_steps

    def adjust_forces(self, atoms, forces):
        forces *= self.parts[:, None]

    def adjust_positions(self, atoms, new):
        new[:] = atoms.positions + (new - atoms.positions) * self.of_steps


@register_constraint(Damped)
class OfDamped(AbstractConstraint):
    parts: jax.Array = rows_field()
    of_steps: jax.Array = systems_field()

    @classmethod
    def read(cls, constraint, atoms):
        if (constraint.parts < 0).any():
            raise ValueError("parts must not be negative")
        return cls(constraint.parts, constraint.of_steps)

    def adjust_gradient(self, x, index):
        return rounded(x * self.parts[:, None])

    def adjust_step(self, x, index):
        return rounded(x * index.spread(self.of_steps, 0.0, x))


def argon(n: int, seed: int, *constraints) -> Atoms:
    atoms = bulk("Ar", cubic=True, a=5.3).repeat((n, 1, 1))
    atoms.rattle(0.15, seed=seed)
    atoms.set_constraint(list(constraints))
    return atoms


def mode(n_atoms: int, seed: int) -> FixedMode:
    return FixedMode(np.random.default_rng(seed).normal(size=(n_atoms, 3)))


def damped(n_atoms: int, seed: int) -> Damped:
    return Damped(np.random.default_rng(seed).uniform(0.5, 1, n_atoms), 0.7)


def several() -> list[Atoms]:
    """Constrained and free, in several orders, of 1 to 12 atoms."""
    return [
        argon(1, 0, mode(4, 0)),
        argon(3, 1, damped(12, 1), mode(12, 2)),
        argon(2, 2),
        argon(1, 3, mode(4, 3), FixCom(), damped(4, 4)),
        argon(2, 4, FixAtoms([1]), mode(8, 5)),
        Atoms("Ar", [(1, 2, 3)], constraint=[damped(1, 6)]),
    ]


def with_calculator(atoms: Atoms) -> Atoms:
    copy = atoms.copy()
    copy.calc = ASELennardJones(epsilon=0.0104, sigma=3.40, rc=8.5)
    return copy


def test_steps_are_those_of_ase(recorded):
    """1e-9 Å: sums in another order, multiplied by the dynamics."""
    atoms = several()[:5]
    result = relax(atoms, POTENTIAL, FIRE(), fmax=0.0, max_steps=40)
    for start, entry in zip(atoms, result, strict=True):
        walk = recorded(walk_of_ase, ase.optimize.FIRE, with_calculator(start), 0.0, 40)
        np.testing.assert_allclose(entry.positions, walk["positions"][-1], rtol=0, atol=1e-9)


def walk_of_cell(atoms: Atoms):
    return walk_of_ase(ase.optimize.FIRE, UnitCellFilter(atoms), 0.0, 30)


def test_cells_move_as_those_of_ase(recorded):
    atoms = several()[0]
    (entry,) = relax([atoms], POTENTIAL, FIRE(), cell=UnitCell(), fmax=0.0, max_steps=30)
    walk = recorded(walk_of_cell, with_calculator(atoms))
    np.testing.assert_allclose(entry.positions, walk["positions"][-1], rtol=0, atol=1e-9)
    np.testing.assert_allclose(entry.cell, walk["cells"][-1], rtol=0, atol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(dtype):
    atoms, settings = several(), {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, POTENTIAL, FIRE(), **settings)
    backwards = relax(atoms[::-1], POTENTIAL, FIRE(), **settings)
    assert [k for k in range(len(atoms)) if not same(batch, -1 - k, backwards, k)] == []
    alone = {k: relax([atoms[k]], POTENTIAL, FIRE(), **settings) for k in (1, 3)}
    assert [k for k, result in alone.items() if not same(batch, k, result, 0)] == []


@both_ways
@pytest.mark.parametrize("dtype", [np.float32, exhaustive(np.float64)])
def test_adjusted_rows_have_the_same_bits_jitted_op_by_op_and_alone(dtype, plainly, alone_by):
    atoms = several()
    batch = Batch.from_atoms(atoms, dtype)
    ids = np.asarray(batch.index.ids)
    vectors = np.random.default_rng(4).normal(size=(len(ids), 3)).astype(dtype)
    vectors[ids == 2] = np.nan

    def moved(batch, x):
        gradient = batch.constraints.of_gradient(x, batch.index)
        step = batch.constraints.of_step(x, batch.index)
        return batch.positions + gradient, batch.positions + step

    got = jit_as_users(moved)(batch, vectors)
    slowly = plainly(moved)(batch, vectors)
    assert all(same_bits(*pair) for pair in zip(got, slowly, strict=True))
    for k in (1, 3):
        own, rows = Batch.from_atoms([atoms[k]], dtype), ids == k
        x = np.zeros((own.n_rows, 3), dtype)
        x[: len(atoms[k])] = vectors[rows]
        for together, by_itself in zip(got, alone_by(moved)(own, x), strict=True):
            assert same_bits(np.asarray(together)[rows], np.asarray(by_itself)[: len(atoms[k])])


@pytest.mark.usefixtures("few_places")
def test_a_place_that_is_taken_again_has_the_constraint_of_its_structure():
    atoms = [
        argon(1, k, *([mode(4, k)] if k % 2 else [damped(4, k), mode(4, k)])) for k in range(8)
    ]
    streamed = relax(atoms, POTENTIAL, FIRE(), fmax=0.005)
    for k in range(0, 8, 4):
        four = relax(atoms[k : k + 4], POTENTIAL, FIRE(), fmax=0.005)
        assert [i for i in range(4) if not same(four, i, streamed, k + i)] == []


class Several(FixConstraint):
    """Of ASE's kind: a number of modes for the whole structure."""

    def __init__(self, modes):
        self.modes = modes

    def adjust_forces(self, atoms, forces):
        for k in range(len(self.modes)):
            forces -= self.modes[k] * (forces * self.modes[k]).sum()

    adjust_positions = adjust_forces


@register_constraint(Several)
class OffModes(AbstractConstraint):
    modes: jax.Array = rows_field()

    @classmethod
    def read(cls, constraint, atoms):
        return cls(np.moveaxis(constraint.modes, 0, 1))

    def adjust_gradient(self, x, index):
        for k in range(self.modes.shape[1]):
            own = self.modes[:, k]
            x = x - segment.scale(own, segment.dot(x, own, index), index)
        return x


def test_further_axes_may_differ_between_structures():
    """Shorter ones are filled with zeros, which change no bit of what is subtracted."""
    draw = np.random.default_rng(0)
    atoms = [argon(1, k, Several(draw.normal(size=(k, 4, 3)) / 5)) for k in (1, 3)]
    batch = relax(atoms, POTENTIAL, FIRE(), fmax=0.0, max_steps=20)
    assert all(
        same(batch, k, relax([a], POTENTIAL, FIRE(), fmax=0.0, max_steps=20), 0)
        for k, a in enumerate(atoms)
    )


class Unknown(FixConstraint):
    def adjust_forces(self, atoms, forces): ...

    def adjust_positions(self, atoms, new): ...


def test_what_cannot_be_registered_says_why():
    with pytest.raises(TypeError, match="expected a subclass of AbstractConstraint"):
        register_constraint(Unknown)(FIRE)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        TypeError, match="class of constraints with ASE's methods, got <class 'int'"
    ):
        register_constraint(int)(OffMode)
    with pytest.raises(TypeError, match="Hookean adds to the energy"):
        register_constraint(Hookean)(OffMode)
    for taken in (FixAtoms, FixInternals, Damped):
        with pytest.raises(ValueError, match=f"{taken.__name__} is taken"):
            register_constraint(taken)(OffMode)

    class Undeclared(OffMode):
        width: float = 1.0

    with pytest.raises(
        TypeError, match="field width of Undeclared must be declared with rows_field"
    ):
        register_constraint(Unknown)(Undeclared)
    with pytest.raises(NotImplementedError, match="Unknown"):
        relax([argon(1, 0, Unknown())], POTENTIAL, FIRE())


def test_a_class_of_the_same_name_replaces_the_one_before():
    """As where a cell of a notebook is executed again."""

    def written(part):
        @register_constraint(Unknown)
        class Scaled(AbstractConstraint):
            part: jax.Array = systems_field()

            @classmethod
            def read(cls, constraint, atoms):
                return cls(part)

            def adjust_gradient(self, x, index):
                return rounded(x * index.spread(self.part, 0.0, x))

        return Scaled

    atoms, x = [argon(1, 0, Unknown())], np.ones((8, 3))
    for part in (0.25, 0.5):
        written(part)
        batch = Batch.from_atoms(atoms)
        left = batch.constraints.of_gradient(
            jnp.asarray(np.resize(x, (batch.n_rows, 3))), batch.index
        )
        assert (np.asarray(left)[:4] == part).all()


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Damped([1, 1], 1.0), r"system 1 \(Ar4\): Damped .*parts must be numbers for 4 atoms"),
        (Damped([1, 1, 1, -1], 1.0), r"system 1 \(Ar4\): Damped .*must not be negative"),
        (Damped([1] * 4, "x"), r"OfDamped.of_steps must be numbers, got <U1"),
    ],
)
def test_a_constraint_that_does_not_suit_its_structure_is_named(constraint, message):
    with pytest.raises(ValueError, match=message):
        relax([argon(1, 0), argon(1, 1, constraint)], POTENTIAL, FIRE())


def test_other_functions_know_what_a_constraint_is():
    atoms = [argon(1, 0, mode(4, 0))]
    assert np.isfinite(evaluate(atoms, POTENTIAL).energies).all()
    assert elastic(atoms, POTENTIAL, relax_ions=False)[0].message == ""
    with pytest.raises(NotImplementedError, match="vibrations know no FixedMode"):
        vibrations(atoms, POTENTIAL)
