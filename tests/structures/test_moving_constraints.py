"""Constraints of atoms whose cell moves: ASE's steps, and the bits of a batch."""

import itertools
from typing import Any

import ase.optimize
import jax
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.constraints import (
    FixAtoms,
    FixedLine,
    FixScaled,
    FixSymmetry,
)

import basinax
from basinax import FIRE, Status
from basinax.atoms import Batch, Frechet, Strain, UnitCell, relax
from basinax.engine.moving_cells import CellConstraints, Dofs, cell_moves
from basinax.structures.read import intake
from comparison import filtered, same, same_bits
from cover import exhaustive
from follow_ase import walk_of_ase
from moving_crystals import ARGON, ASE_ARGON, CONSTRAINTS, TURNED, crystal, symmetric
from structures import rattled
from xla import both_ways, jit_as_users

pytestmark = pytest.mark.usefixtures("few_shapes")


def loose(a: float = 5.0, adjust_cell: bool = False, **how) -> Atoms:
    """Four atoms of which the cell may lose the symmetry: its steps are not averaged."""
    atoms = bulk("Ar", cubic=True, a=a)
    atoms.set_constraint(FixSymmetry(atoms, adjust_cell=adjust_cell, **how))
    return atoms


def stretched() -> Atoms:
    """A cell that has lost its symmetry since the constraint was made."""
    atoms = symmetric()
    cell = atoms.cell.array @ np.diag([1.04, 1.0, 0.97])
    atoms.set_cell(cell, scale_atoms=True, apply_constraint=False)
    return atoms


def twice() -> Atoms:
    """The second one keeps less."""
    atoms = loose(adjust_cell=True)
    tetragonal = bulk("Ar", cubic=True, a=5.0)
    tetragonal.set_cell([5.0, 5.0, 6.0], scale_atoms=True)
    atoms.set_constraint([*atoms.constraints, FixSymmetry(tetragonal)])
    return atoms


def turned() -> Atoms:
    """Tetragonal, along no axis: operations make lengths of shears."""
    atoms = bulk("Ar", cubic=True, a=5.0)
    atoms.set_cell([5.0, 5.0, 5.6], scale_atoms=True)
    atoms.rotate(40, (1, 2, 3), rotate_cell=True)
    atoms.set_constraint(FixSymmetry(atoms))
    return atoms


UNLIKE = (1, 0, 0, 0, 0, 1)
"""A mask that operations of both do not leave as it is."""


def along_the_cell() -> Atoms:
    """What `FixScaled` fixes says nothing where atoms move with the cell alone."""
    atoms = rattled(bulk("Ar", cubic=True, a=5.2), 5)
    atoms.set_constraint(FixScaled([0, 1], (False, True, True)))
    return atoms


def deformed(atoms: list[Atoms], kind, dtype=None):
    """A batch, degrees of freedom far from where nothing is deformed, and vectors like these."""
    batch = Batch.from_atoms(atoms, dtype)
    dtype, cells = batch.positions.dtype, [kind()] * len(atoms)
    moves = cell_moves(kind.kind, intake(atoms, cells), batch.n_systems, dtype)
    start, random = moves.start(batch.positions), np.random.default_rng(8)
    is_row = np.asarray(batch.index.ids)[:, None] < len(atoms)

    def drawn():
        positions = np.where(is_row, random.normal(0, 0.05, start.positions.shape), 0)
        return Dofs(positions.astype(dtype), random.normal(0, 0.2, start.cell.shape).astype(dtype))

    there = jax.tree.map(lambda x, y: np.asarray(x) + y, start, drawn())
    return batch, moves, there, drawn()


# In a sum with what comes out, a naked product would be contracted.
def moved(batch, moves, there, vectors):
    """Positions from where a gradient, and a step, have led."""
    keep, prefix = CellConstraints(batch.constraints, moves), moves.prefix(batch.index)
    gradient = keep.of_gradient(vectors, prefix, there)
    step = keep.of_step(vectors, prefix, there)
    return [there.positions + x.positions for x in (gradient, step)]


jit_moved = jit_as_users(moved)
jit_of_step = jax.jit(lambda step, batch: batch.constraints.of_step(step, batch.index))


# --- what ASE does


@pytest.mark.parametrize("kind", [exhaustive(UnitCell), Frechet])
def test_gradients_and_steps_are_those_of_ase_in_deformed_cells(kind):
    """1e-13: rounding of numbers up to 30, which are those of the cell."""
    atoms = [crystal(name, k) for k, name in enumerate(CONSTRAINTS)]
    batch, moves, there, vectors = deformed(atoms, kind)
    ends = jit_moved(batch, moves, there, vectors)
    got_gradient, got_step = (np.asarray(x) - there.positions for x in ends)
    for k, a in enumerate(atoms):
        rows, cell_rows = slice(8 * k, 8 * k + len(a)), slice(3 * k, 3 * k + 3)
        theirs = filtered(Atoms(a, constraint=[]), kind(), ASELennardJones(**ASE_ARGON))
        theirs.set_positions(np.concatenate([there.positions[rows], there.cell[cell_rows]]))
        theirs.atoms.set_constraint(a.constraints)
        deformation = theirs.deform_grad()
        forces = vectors.positions[rows] @ np.linalg.inv(deformation)
        for constraint in a.constraints:
            constraint.adjust_forces(theirs.atoms, forces)
        close = {"rtol": 0, "atol": 1e-13}
        np.testing.assert_allclose(got_gradient[rows], forces @ deformation, **close)
        before = theirs.get_positions()
        step = np.concatenate([vectors.positions[rows], vectors.cell[cell_rows]])
        theirs.set_positions(before + step)
        expected = (theirs.get_positions() - before)[:-3]
        np.testing.assert_allclose(got_step[rows], expected, **close)
    # As if nothing were deformed, these alone would be wrong.
    plain = jit_of_step(vectors.positions, batch)
    differs = np.abs(plain - got_step).reshape(-1, 8 * 3).max(1) > 1e-3
    assert [name for name, d in zip(CONSTRAINTS, differs, strict=False) if d] == TURNED


@pytest.mark.parametrize(
    ("kind", "optimizer", "reference", "seeds"),
    [
        # As in ASE, what the last leaves of a step is no orthogonal projection, and curvature
        # learnt from such steps would make rounding grow.
        exhaustive(
            Frechet, basinax.FIRE(), ase.optimize.FIRE, {"lines": 0, "mass between others": 3}
        ),
        exhaustive(
            UnitCell,
            basinax.LBFGS.ase(),
            ase.optimize.LBFGS,
            {"atoms": 0, "components": 1, "lines": 2, "planes": 3, "mass": 4},
        ),
    ],
    ids=["Frechet", "UnitCell"],
)
def test_steps_are_those_of_ase(kind, optimizer, reference, seeds, recorded):
    """1e-9 Å at steps 1, 5, 20 and the last: sums in another order, multiplied by the dynamics.

    Every day ten steps of some of these are compared, below, and whole runs in test_cell.py.
    Every other structure is under pressure; one is held to a line and keeps its symmetry.
    """
    atoms = [*(crystal(name, seed) for name, seed in seeds.items()), symmetric()]
    cells = [kind(pressure=0.01 * (k % 2)) for k in range(len(atoms))]
    settings = {"cell": cells, "fmax": 0.01}
    early = {n: relax(atoms, ARGON, optimizer, max_steps=n, **settings) for n in (1, 5, 20)}
    result = relax(atoms, ARGON, optimizer, **settings)
    counts, apart = [], []
    for k, (a, cell) in enumerate(zip(atoms, cells, strict=True)):
        walk = recorded(walk_of_filter, reference, a, cell, 0.01, kept=early)
        for n, there in enumerate((*early.values(), result)):
            apart.append(distance(there.atoms[k], walk, n))
        counts.append(walk["steps"])
        ours = result.atoms[k]
        np.testing.assert_allclose(result.fmax[k], walk["fmax"], rtol=0, atol=1e-9)
        assert [c.todict() for c in ours.constraints] == [c.todict() for c in a.constraints]
    assert result.steps.tolist() == counts
    assert max(apart) < 1e-9
    # Without their constraints they would not be at rest; fixed masses hold nothing there.
    left = [np.abs(a.get_forces(apply_constraint=False)).max() for a in result.atoms[:-1]]
    at_rest = {name for name, force in zip(seeds, left, strict=True) if force < 0.03}
    assert at_rest == {"mass"} & set(seeds)


@pytest.mark.parametrize(
    ("kind", "optimizer", "reference"),
    [
        exhaustive(Frechet, basinax.BFGS(), ase.optimize.BFGS),
        exhaustive(Frechet, basinax.FIRE(), ase.optimize.FIRE),
        exhaustive(UnitCell, basinax.FIRE(), ase.optimize.FIRE),
    ],
    ids=["Frechet-BFGS", "Frechet-FIRE", "UnitCell-FIRE"],
)
def test_steps_are_those_of_ase_where_cells_may_lose_their_symmetry(
    kind, optimizer, reference, recorded
):
    """1e-9 Å at steps 1, 2, 10 and 40. Forces and stresses are averaged in the cell of then."""
    atoms = [loose(), symmetric(FixAtoms([0]), adjust_cell=False), symmetric(adjust_cell=False)]
    cells = [kind(mask=(1, 1, 0, 0, 0, 0)), kind(mask=UNLIKE), kind()]
    for n in (1, 2, 10, 40):
        result = relax(atoms, ARGON, optimizer, cell=cells, fmax=1e-3, max_steps=n)
        for k, (a, cell) in enumerate(zip(atoms, cells, strict=True)):
            walk = recorded(walk_of_filter, reference, a, cell, 1e-3, n)
            assert walk["steps"] == result.steps[k]
            assert distance(result.atoms[k], walk) < 1e-9
    # Kept, the symmetry would have these two lengths equal.
    lengths = [result.atoms[k].cell.lengths()[:2] for k in (1, 2)]
    assert [abs(a - b) > 0.01 for a, b in lengths] == [True, False]


@pytest.mark.parametrize("kind", [exhaustive(Frechet), exhaustive(UnitCell), Strain])
def test_a_turned_cell_keeps_its_symmetry_as_in_ase(kind):
    """1e-9 Å at steps 1, 2, 10 and 40."""
    for n in (1, 2, 10, 40):
        (ours,) = relax([turned()], ARGON, FIRE(), cell=kind(), fmax=1e-3, max_steps=n).atoms
        walk = walk_of_filter(ase.optimize.FIRE, turned(), kind(), 1e-3, n)
        assert distance(ours, walk) < 1e-9
    a, b, _ = ours.cell.lengths()
    assert abs(a - b) < 1e-9


MASKS = {
    "all": None,
    "two lengths": (1, 1, 0, 0, 0, 0),
    "a length and a shear": UNLIKE,
    "shears alone": (0, 0, 0, 1, 1, 1),
    "a plane": (1, 1, 0, 0, 0, 1),
    "all but a shear": (1, 1, 1, 1, 1, 0),
}

SYMMETRIC = {
    "symmetry": lambda: symmetric(),
    "symmetry of atoms": lambda: symmetric(adjust_cell=False),
    "symmetry of a cubic cell": lambda: loose(adjust_cell=True),
    "symmetry that was lost before": lambda: stretched(),
    "symmetry twice": lambda: twice(),
    "symmetry of a turned cell": lambda: turned(),
}


def of_filters(kind, is_whole: bool) -> dict[str, tuple[Atoms, Any]]:
    """Every constraint with every mask and option of ASE's filter, or with one of them by turns."""
    options = {name: {"mask": mask} for name, mask in MASKS.items()}
    if kind is not Strain:
        options["hydrostatic"] = {"hydrostatic_strain": True}
        options["volume"] = {"constant_volume": True, "cell_factor": 3.0}
        masked = {"mask": UNLIKE}
        options |= {f"{name} masked": options[name] | masked for name in ("hydrostatic", "volume")}
        options = {o: x | {"pressure": 0.01 * (k % 2)} for k, (o, x) in enumerate(options.items())}
    structures = {name: crystal(name, k) for k, name in enumerate(CONSTRAINTS)}
    structures |= {name: make() for name, make in SYMMETRIC.items()}
    structures["all along the cell"] = crystal("none", 9)
    structures["all along the cell"].set_constraint(FixScaled([0, 2], (True, True, True)))
    each = zip(structures.items(), itertools.cycle(options.items()), strict=False)
    pairs = [*(itertools.product(structures.items(), options.items()) if is_whole else each)]
    others = {name: options[name] for name in ("two lengths", "hydrostatic") if name in options}
    pairs += [(("along the cell", along_the_cell()), chosen) for chosen in others.items()]
    return {f"{s}, {o}": (atoms, kind(**chosen)) for (s, atoms), (o, chosen) in pairs}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "is_whole"),
    [
        pytest.param(Frechet, False, id="Frechet, by turns"),
        *(pytest.param(kind, True, id=kind.__name__) for kind in (Frechet, UnitCell, Strain)),
    ],
)
def test_the_largest_force_is_that_of_ases_filter_at_the_same_atoms_and_cell(
    kind, is_whole, recorded
):
    """1e-10 eV/Å: rounding of stresses times the volume. Ten steps of FIRE.

    Without constraints, with lines and along the cell these are ASE's to 1e-10 Å under every mask.
    """
    pairs = of_filters(kind, is_whole)
    atoms, cells = zip(*pairs.values(), strict=True)
    result = relax(atoms, ARGON, FIRE(), cell=list(cells), fmax=0.0, max_steps=10)
    assert (result.steps == 10).all()
    apart = {}
    for k, (name, (a, cell)) in enumerate(pairs.items()):
        theirs, there = filtered(a, cell, ASELennardJones(**ASE_ARGON)), result.atoms[k]
        if name.startswith(("none", "lines", "along")):
            walk = recorded(walk_of_filter, ase.optimize.FIRE, a, cell, 0.0, 10)
            if (off := distance(there, walk)) > 1e-10:
                apart[f"steps, {name}"] = off
        theirs.atoms.set_cell(there.cell.array, apply_constraint=False)
        theirs.atoms.set_positions(there.positions, apply_constraint=False)
        expected = np.linalg.norm(theirs.get_forces(), axis=1).max()
        if abs(expected - result.fmax[k]) > 1e-10:
            apart[name] = result.fmax[k], expected
    assert apart == {}


def walk_of_filter(optimizer, atoms: Atoms, cell, *stops, **kept):
    held = filtered(atoms, cell, ASELennardJones(**ASE_ARGON))
    walk = walk_of_ase(optimizer, held, *stops, **kept)
    return walk | {"fmax": np.linalg.norm(held.get_forces(), axis=1).max()}


def distance(atoms: Atoms, walk, at: int = -1) -> float:
    """The largest difference between their positions and cells, in Å."""
    cells = np.abs(atoms.cell.array - walk["cells"][at])
    return max(np.abs(atoms.positions - walk["positions"][at]).max(), cells.max())


@pytest.mark.exhaustive
def test_atoms_that_move_with_the_cell_alone_have_no_direction_to_keep(recorded):
    """Their constraints do nothing in ASE's `StrainFilter`; not even axes that turn matter."""
    atoms = [along_the_cell(), crystal("lines")]
    result = relax(atoms, ARGON, FIRE(), cell=Strain(), fmax=0.01)
    for a, ours, steps in zip(atoms, result.atoms, result.steps, strict=True):
        walk = recorded(walk_of_filter, ase.optimize.FIRE, a, Strain(), 0.01)
        assert walk["steps"] == steps
        assert distance(ours, walk) < 1e-9
        fractions = [x.get_scaled_positions(wrap=False) for x in (a, ours)]
        np.testing.assert_allclose(*fractions, rtol=0, atol=1e-14)


# --- the bits of a batch


def several(kind) -> tuple[list[Atoms], list]:
    """With constraints of directions and without, in cells that move and not, one broken.

    The last one's cell moves in another way.
    """
    broken = Atoms("Ar2", np.zeros((2, 3)), cell=[9, 9, 9], pbc=True)
    broken.set_constraint(FixedLine([1], (1, 1, 0)))
    pairs = [
        (crystal("lines", 1), kind(pressure=0.01)),
        (crystal("mass between others", 2), kind()),
        (crystal("components", 3), kind(mask=(1, 1, 0, 0, 0, 1))),
        (symmetric(), kind()),
        (crystal("planes", 4), None),
        (crystal("none", 5), kind(pressure=0.01)),
        (crystal("atoms", 6), kind()),
        (broken, kind()),
        (crystal("lines", 7), Strain()),
    ]
    return [a for a, _ in pairs], [c for _, c in pairs]


@pytest.mark.usefixtures("few_places")
def test_a_place_that_is_taken_again_remembers_neither_constraint_nor_cell():
    """Those of one batch have its layout, and so its program, in whatever places they come."""
    atoms, cells = (x[:8] for x in several(Frechet))
    settings = {"fmax": 0.0, "max_steps": 60}
    streamed = relax([*atoms, *atoms[::-1]], ARGON, FIRE(), cell=[*cells, *cells[::-1]], **settings)
    assert streamed.status[7] == Status.NOT_FINITE
    own = relax(atoms[::-1], ARGON, FIRE(), cell=cells[::-1], skin=0.1, **settings)
    assert [k for k in range(len(atoms)) if not same(streamed, k, own, -1 - k)] == []
    assert [k for k in range(len(atoms)) if not same(streamed, -1 - k, own, -1 - k)] == []


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.exhaustive  # places are taken again every day, above
@pytest.mark.parametrize(
    ("kind", "dtype", "n_structures", "apart"),
    [
        (Frechet, np.float64, 9, [[1]]),
        (Frechet, np.float64, 9, [[5, 6]]),
        (UnitCell, np.float32, 8, []),
    ],
)
def test_a_structure_has_the_same_bits_in_every_batch(
    kind, dtype, n_structures, apart, monkeypatch
):
    """400 steps, past the minimum; those `apart` run alone, or where none keeps a direction.

    Order, skin and who stood in a place before differ, too.
    """
    atoms, cells = (x[:n_structures] for x in several(kind))
    settings = {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, ARGON, FIRE(), cell=cells, **settings)
    assert batch.status[7] == Status.NOT_FINITE
    assert (batch.steps == 400).sum() >= 5
    for few in apart:
        others = relax(
            [atoms[k] for k in few], ARGON, FIRE(), cell=[cells[k] for k in few], **settings
        )
        assert [k for i, k in enumerate(few) if not same(batch, k, others, i)] == []
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 48)
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
    thin = relax(
        [*atoms, *atoms[::-1]], ARGON, FIRE(), cell=[*cells, *cells[::-1]], skin=0.1, **settings
    )
    assert [k for k in range(len(atoms)) if not same(batch, k, thin, k)] == []
    assert [k for k in range(len(atoms)) if not same(batch, k, thin, -1 - k)] == []


@pytest.mark.parametrize(
    ("dtype", "those_alone"),
    # Of lines every day beside symmetries, below.
    [exhaustive("float64", [1, 3]), exhaustive("float32", [7])],
)
def test_adjusted_rows_have_the_same_bits_jitted_op_by_op_and_alone(dtype, those_alone):
    """Each is alone in one dtype: what it is constrained by makes a program of its own."""
    atoms = [crystal(name, k) for k, name in enumerate(CONSTRAINTS)]
    batch, moves, there, vectors = deformed(atoms, UnitCell, dtype)
    got = jit_moved(batch, moves, there, vectors)
    with jax.disable_jit():
        slowly = moved(batch, moves, *jax.tree.map(jax.numpy.asarray, (there, vectors)))
    assert all(same_bits(*pair) for pair in zip(got, slowly, strict=True))
    for k in those_alone:
        own, its_moves, _, _ = deformed([atoms[k]], UnitCell, dtype)
        rows = slice(8 * k, 8 * k + 8)

        def of_one(x, rows=rows, k=k):
            return Dofs(x.positions[rows], x.cell[3 * k : 3 * k + 3])

        alone = jit_moved(own, its_moves, of_one(there), of_one(vectors))
        for x, y in zip(got, alone, strict=True):
            assert same_bits(np.asarray(x)[rows], np.asarray(y))


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("kind", "dtype", "those_alone"),
    # Which kinds of constraints there are makes a program.
    [exhaustive(UnitCell, np.float32, [0, 1]), exhaustive(Frechet, np.float64, range(5))],
)
def test_cells_that_keep_their_symmetry_have_the_same_bits_beside_those_that_need_not(
    kind, dtype, those_alone
):
    """100 steps, alone and in both orders; the fixed cell's structure is alone without any cell."""
    pairs = [
        (symmetric(), kind(mask=UNLIKE)),
        (symmetric(adjust_cell=False), kind(mask=UNLIKE)),
        (loose(), kind(mask=(1, 1, 0, 0, 0, 0))),
        (loose(5.3, adjust_positions=False), None),
        (crystal("none", 5), kind(pressure=0.01)),
    ]
    atoms, cells = [a for a, _ in pairs], [c for _, c in pairs]
    settings = {"fmax": 0.0, "max_steps": 100, "dtype": dtype}
    batch = relax(atoms, ARGON, FIRE(), cell=cells, **settings)
    assert (batch.steps == 100).sum() >= 3
    alone = {k: relax([atoms[k]], ARGON, FIRE(), cell=[cells[k]], **settings) for k in those_alone}
    assert [k for k in those_alone if not same(batch, k, alone[k], 0)] == []
    thin = relax(atoms[::-1], ARGON, FIRE(), cell=cells[::-1], skin=0.1, **settings)
    assert [k for k in range(5) if not same(batch, k, thin, -1 - k)] == []


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(UnitCell, "float32"), exhaustive(Frechet, "float64"), exhaustive(Strain, "float64")],
)
@both_ways
def test_what_symmetry_leaves_has_the_same_bits_jitted_op_by_op_and_alone(
    kind, dtype, plainly, alone_by
):
    """Of gradients, stresses and steps of cells."""
    atoms = [symmetric(adjust_cell=False), symmetric(), loose(), crystal("lines", 1)]
    batch, moves, there, vectors = deformed(atoms, kind, dtype)
    n_systems, n = batch.n_systems, 2 if kind is Strain else 3
    stress = np.random.default_rng(2).normal(size=(n_systems, 3, 3)).astype(dtype)

    def left_of(batch, moves, there, vectors, stress):
        ends = moved(batch, moves, there, vectors)
        keep, turning = batch.constraints, moves.turning(there)
        step = CellConstraints(keep, moves).of_step(vectors, moves.prefix(batch.index), there)
        stresses = batch.cells + keep.of_stress(stress, turning)
        return [*ends, there.cell + step.cell, stresses]

    got = jit_as_users(left_of)(batch, moves, there, vectors, stress)
    arrays = jax.tree.map(jax.numpy.asarray, (there, vectors, stress))
    slowly = plainly(left_of)(batch, moves, *arrays)
    assert all(same_bits(*pair) for pair in zip(got, slowly, strict=True))
    for k in (0, 1):
        own, its_moves, its_there, _ = deformed([atoms[k]], kind, dtype)
        rows, cell_rows = slice(8 * k, 8 * k + 8), slice(n * k, n * k + n)

        def of_one(x, like=its_there, rows=rows, cell_rows=cell_rows):
            positions, cell = np.zeros_like(like.positions), np.array(like.cell)
            positions[:8], cell[:n] = x.positions[rows], x.cell[cell_rows]
            return Dofs(positions, cell)

        its_stress = np.zeros((own.n_systems, 3, 3), dtype)
        its_stress[0] = stress[k]
        alone = alone_by(left_of)(own, its_moves, of_one(there), of_one(vectors), its_stress)
        for x, y, part in zip(got, alone, [rows, rows, cell_rows, slice(k, k + 1)], strict=True):
            assert same_bits(np.asarray(x)[part], np.asarray(y)[: part.stop - part.start])
