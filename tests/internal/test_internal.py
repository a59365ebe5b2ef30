"""L-BFGS in internal coordinates: derivatives, the prototype's points, the promise, bad starts."""

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.constraints import FixAtoms, FixCartesian, FixCom, FixedLine, FixedPlane, FixSymmetry
from ase.io import read
from ase.spacegroup import crystal

import basinax
from basinax import Status, chain
from basinax.atoms import (
    ASECalculator,
    Frechet,
    InternalLBFGS,
    LennardJones as OwnLennardJones,
    Strain,
    UnitCell,
    relax,
)
from basinax.internal.arithmetic import angle, exp
from basinax.internal.carried import Metric, Walk
from basinax.internal.coordinates import NoCoordinates, internal_coordinates, where_it_stands
from basinax.internal.deformation import Deformation
from basinax.internal.factors import Factors, Profile
from basinax.internal.lists import METAL, STRETCH, InternalList, list_of
from basinax.internal.sparse import HessianModel, Jacobian, Pattern
from basinax.structures.read import intake
from calculators import Springs, Whirl
from comparison import same
from cover import every_day

MOLECULES = read(Path(__file__).parents[2] / "benchmarks" / "data" / "molecules.extxyz", ":")
FIRST_POINTS = Path(__file__).parents[1] / "data" / "first_points.npz"
"""The first five points of the prototype with GFN2-xTB, in 1e-7 Å, and gradients (1e-6 eV/Å) and
energies there. Its neighbours were put in the order of their numbers."""


# --- matrices


def factors_of(matrix) -> Factors:
    size = len(matrix)
    order = np.random.default_rng(0).permutation(size)
    rows, columns = np.divmod(np.arange(size**2), size)
    entries = np.arange(2 * size**2)
    profile = Profile(np.concatenate([rows, columns]), *np.split(entries, 2), order)
    values = np.concatenate([matrix.ravel(), np.ones(size**2)])
    return Factors(profile, profile.matrix(values, values))


@pytest.mark.parametrize("size", [1, 59, 60, 61, 130])
def test_solutions_in_tiles_are_those_of_numpy(size):
    draw = np.random.default_rng(size).standard_normal
    a, b = draw((150, size)), draw((size, 70))
    matrix = a.T @ a + np.eye(size)
    factors = factors_of(matrix)
    assert np.allclose(matrix @ factors.solve(b), b, atol=1e-9)
    assert np.allclose(matrix @ factors.solve(b[:, 0]), b[:, 0], atol=1e-9)


def test_what_is_not_positive_definite_has_no_factors():
    for matrix in (-np.eye(3), np.diag([1.0, 1, 1, -1]), np.full((3, 3), np.nan)):
        with pytest.raises(np.linalg.LinAlgError):
            factors_of(matrix)


@pytest.mark.parametrize("n_dofs", [20, 300])
def test_derivatives_of_few_entries_multiply_as_matrices_do(n_dofs):
    """Two of the entries of a coordinate may stand in one place."""
    generator = np.random.default_rng(0)
    draw, sizes = generator.standard_normal, [(9, 6), (0, 9), (5, 12)]
    pattern = Pattern([generator.integers(0, n_dofs, size) for size in sizes], n_dofs)
    jacobian = Jacobian(pattern, [draw(size) for size in sizes])
    matrix, stiffness = jacobian.matrix.toarray(), generator.uniform(1, 2, 14)
    x, rows = draw(n_dofs), draw((3, 14))
    assert np.allclose(jacobian.along(x), matrix @ x, atol=1e-12)
    assert np.allclose(jacobian.all_back(rows), rows @ matrix, atol=1e-12)
    assert np.allclose(jacobian.back(rows[0]), rows[0] @ matrix, atol=1e-12)
    metric = matrix.T * stiffness @ matrix + 0.1 * np.eye(n_dofs)
    factors = HessianModel(jacobian, stiffness).factorised(0.1)
    columns = draw((n_dofs, 4))
    assert np.allclose(metric @ factors.solve(columns), columns, atol=1e-9)
    assert np.allclose(metric @ factors.solve(x), x, atol=1e-9)
    with pytest.raises(np.linalg.LinAlgError):
        HessianModel(jacobian, np.nan * stiffness).factorised(0.1)


def test_exponentials_and_angles_are_those_of_numpy():
    x, y = np.random.default_rng(0).normal(0, 10, (2, 1000))
    assert np.allclose(exp(x), np.exp(x), rtol=1e-15)
    assert np.allclose(angle(y, x), np.arctan2(y, x), rtol=1e-15)
    edges = np.array([0.0, 0.0, 1.0, -1.0]), np.array([0.0, -1.0, 0.0, 0.0])
    assert np.array_equal(angle(*edges), np.arctan2(*edges))


STEPS = """
import numpy as np
from ase.build import bulk, molecule
from basinax.atoms import Frechet, InternalLBFGS
from basinax.structures.read import intake

cases = (molecule("CH3CH2OH"), None), (bulk("NaCl", "rocksalt", a=5.6, cubic=True), Frechet())
large = bulk("Cu", cubic=True).repeat((10, 10, 9))
for atoms, cell in (*cases, (bulk("Cu", cubic=True).repeat(2), None), (large, None)):
    frame, walk = InternalLBFGS().walk(intake([atoms], cell)[0], 0)
    x = rest = frame.start()
    x = x + 0.3 * ((np.arange(len(x)) * 0.618) % 1.0 - 0.5)
    for _ in range(4):
        off = x - rest
        x = x + walk.step(x, float(np.add.reduce(off * off)), 3.0 * off + off * off * off)
    print(x.tobytes().hex())
"""


@pytest.mark.exhaustive
def test_neither_threads_nor_the_kind_of_processor_decide_a_bit():
    """A core type of OpenBLAS, and registers of NumPy and of the C library, stand for a kind."""
    kinds = [
        {"OPENBLAS_NUM_THREADS": "1"},
        {"OPENBLAS_NUM_THREADS": "2", "OPENBLAS_CORETYPE": "Prescott"},
        {"NPY_DISABLE_CPU_FEATURES": "X86_V3 AVX2 FMA3"}
        | {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA"},
    ]
    call = [sys.executable, "-W", "ignore", "-c", STEPS]
    ended = [
        subprocess.run(call, env={**os.environ, **kind}, capture_output=True, check=True).stdout
        for kind in kinds
    ]
    assert ended[0].count(b"\n") == 4
    assert ended[0] == ended[1] == ended[2]


# --- coordinates

UREA = crystal(
    ["C", "O", "N", "H", "H"],
    [
        (0, 0.5, 0.326),
        (0, 0.5, 0.5953),
        (0.1459, 0.6459, 0.1766),
        (0.2575, 0.7575, 0.2827),
        (0.1441, 0.6441, -0.0380),
    ],
    spacegroup=113,
    cellpar=[5.565, 5.565, 4.684, 90, 90, 90],
)
STRUCTURES = {
    "aspirin": MOLECULES[0],
    "acetylene": molecule("C2H2"),
    "two waters": Atoms("OHHOHH", [*molecule("H2O").positions, *molecule("H2O").positions + 4]),
    "urea": UREA,
    "silicon": bulk("Si"),
    "salt": bulk("NaCl", "rocksalt", 5.6, cubic=True),
    "copper": bulk("Cu"),
}


def frame_of(atoms, cell=None):
    return Deformation(intake([atoms], cell)[0])


def coordinates_of(atoms, cell=None, seed=0):
    """Coordinates of a structure off its minimum, and where it stands."""
    frame, draw = frame_of(atoms, cell), np.random.default_rng(seed).standard_normal
    x = frame.start()
    scale = np.full(len(x), 0.03)
    scale[3 * len(atoms) :] *= 1.0 if cell is None else frame.factor
    x = x + scale * draw(len(x))
    return internal_coordinates(frame, 1.0, 1.0)(x, None), x


@pytest.mark.parametrize("cell", [None, Frechet(), UnitCell(cell_factor=3.0), Strain()], ids=repr)
@pytest.mark.parametrize("name", STRUCTURES)
def test_derivatives_of_coordinates_are_those_of_differences(name, cell):
    atoms = STRUCTURES[name]
    coordinates, x = coordinates_of(atoms, cell if atoms.pbc.any() else None)
    frame, h = coordinates.frame, 1e-5
    jacobian = coordinates.at(x)[1].matrix.toarray()
    columns = [
        coordinates.wrapped(coordinates.at(x + d)[0] - coordinates.at(x - d)[0]) / (2 * h)
        for d in h * np.eye(len(x))
    ]
    expected = np.stack(columns, 1)
    if frame.kind == "strain":
        expected[:, : 3 * len(atoms)] = 0.0
    # h² times third derivatives, and rounding / h
    assert np.abs(jacobian - expected).max() < 1e-7
    assert (coordinates.stiffness(x) > 0).all()


AXES = np.array([(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)], float)


def centred(symbols: str, length: float, seed: int) -> Atoms:
    """An atom with neighbours along the axes, off by some 0.1 Å."""
    n = int(symbols[-1])
    atoms = Atoms(symbols, [(0, 0, 0), *(length * AXES[:n])])
    atoms.rattle(0.1, seed=seed)
    return atoms


@pytest.mark.parametrize(
    ("symbols", "length", "seed"),
    [
        *[("SF6", 1.62, 2), ("ClF5", 1.7, 1), ("XeF4", 2.0, 0), ("XeF4", 2.0, 1)],
        *[("WF6", 1.87, 0), ("PtCl4", 2.35, 1), ("AuCl2", 2.3, 2)],
    ],
)
def test_hypervalent_centres_leave_no_direction_without_a_coordinate(symbols, length, seed):
    """Only the weak spring would hold it, and the first steps would be too long."""
    atoms = centred(symbols, length, seed)
    n = len(atoms) - 1
    frame = frame_of(atoms)
    x = frame.start()
    jacobian = internal_coordinates(frame, 1.0, 1.0)(x, None).at(x)[1].matrix.toarray()
    values = np.linalg.svd(jacobian, compute_uv=False)
    # Six of 3 (n + 1) directions turn or shift the molecule, five where it is linear.
    assert values[max(3 * n - 4, 3)] > 0.25


def list_of_atoms(atoms: Atoms) -> InternalList:
    frame = frame_of(atoms)
    return list_of(where_it_stands(frame, frame.start()))


def test_hypervalent_centres_bend_in_crystals_and_bonds_between_them_never_twist():
    atoms = centred("SF6", 1.62, 2)
    alone = list_of_atoms(atoms)
    atoms.set_cell(9 * np.eye(3))
    atoms.pbc = True
    inside = list_of_atoms(atoms)
    assert np.array_equal(inside.bends, alone.bends)
    assert np.array_equal(inside.linear, alone.linear)
    assert len(inside.bends) + len(inside.linear) == 15
    network = list_of_atoms(bulk("GeTe", "rocksalt", a=6.0, cubic=True))
    assert (len(network.bends), len(network.linear), len(network.torsions)) == (96, 24, 0)


def test_metals_bend_between_few_neighbours_and_are_held_by_springs_between_many():
    def kinds(symbols, positions):
        return set(list_of_atoms(Atoms(symbols, positions)).kinds)

    corners = np.array(list(itertools.product((-1.1, 1.1), repeat=3)))
    assert kinds("FeC4", [(0, 0, 0), *corners[[0, 3, 5, 6]]]) == {STRETCH}
    assert kinds("FeC8", [(0, 0, 0), *corners]) == {METAL}
    assert kinds("NaC4", [(0, 0, 0), *corners[[0, 3, 5, 6]]]) == {METAL}
    assert kinds("FeC", [(0, 0, 0), (0, 0, 3.0)]) == {METAL}  # too far for a bond
    assert kinds("Cu2", [(0, 0, 0), (0, 0, 2.5)]) == {METAL}
    off = list_of_atoms(Atoms("FeC2", [(0, 0, 0), (-0.6, 0, 3.0), (0.6, 0, 3.0)]))
    assert sorted(off.kinds) == [STRETCH, METAL, METAL]


@pytest.mark.parametrize(("height", "is_flat"), [(0.1, True), (0.3, False)])
def test_a_centre_that_is_a_little_off_its_plane_is_flat(height, is_flat):
    """Without an improper, bends hardly see it move through the plane, and steps are too long."""
    turns = 2 * np.pi / 3 * np.arange(3)
    plane = 1.3 * np.stack([np.cos(turns), np.sin(turns), 0 * turns], 1)
    listed = list_of_atoms(Atoms("BF3", [(0, 0, height), *plane]))
    assert len(listed.flat) == is_flat


def test_a_list_does_not_depend_on_the_cell_that_is_chosen():
    whole, x = coordinates_of(UREA)
    moved = UREA.copy()
    moved.positions += np.random.default_rng(0).integers(-1, 2, (len(UREA), 3)) @ UREA.cell.array
    there = x + (moved.positions - UREA.positions).ravel()
    other = internal_coordinates(frame_of(moved), 1.0, 1.0)(there, None)
    q, p = whole.at(x)[0], other.at(there)[0]
    assert np.allclose(np.sort(np.abs(q)), np.sort(np.abs(p)), atol=1e-9)


def test_a_list_that_is_the_same_is_kept():
    renewed = internal_coordinates(frame_of(MOLECULES[0]), 1.0, 1.0)
    x = MOLECULES[0].positions.ravel()
    before = renewed(x, None)
    assert renewed(x + 1e-3, before) is before
    far = x.copy()
    far[:3] += 3.0
    assert renewed(far, before) is not before


@pytest.mark.parametrize("name", ["aspirin", "two waters", "urea", "copper"])
def test_a_list_with_another_before_it_is_that_without(name):
    frame = frame_of(STRUCTURES[name])
    x, listed = frame.start(), None
    draw = np.random.default_rng(0).standard_normal
    for scale in (0.01, 0.03, 0.3, 0.01, 0.1, 0.03, 0.3):
        x = x + scale * draw(len(x))
        standing = where_it_stands(frame, x)
        listed = list_of(standing, listed)
        assert listed.is_same(list_of(standing))


def test_a_large_molecule_has_the_list_of_a_small_one(monkeypatch):
    """Pairs are sorted into bins there."""
    coordinates, x = coordinates_of(STRUCTURES["aspirin"])
    standing = where_it_stands(coordinates.frame, x)
    of_all_pairs = list_of(standing)
    monkeypatch.setattr("basinax.internal.lists.FEW", 0)
    assert of_all_pairs.is_same(list_of(standing))


# --- steps


def walk_of(frame) -> Walk:
    return Walk(internal_coordinates(frame, 1.0, 1.0), NoCoordinates(frame, 1.0))


@pytest.mark.parametrize("at", range(20))
def test_the_first_points_are_those_of_the_prototype(at):
    atoms = MOLECULES[at]
    name, frame = atoms.info["name"], frame_of(MOLECULES[at])
    with np.load(FIRST_POINTS) as stored:
        points, gradients, energies = (stored[f"{name}.{kind}"] for kind in "xge")
    x = frame.start()
    walk = walk_of(frame)
    for point, gradient, energy in zip(points, gradients, energies, strict=True):
        assert np.abs(x - 1e-7 * point.ravel()).max() < 1e-6
        x = x + walk.step(x, float(energy), 1e-6 * gradient.ravel())


def test_without_coordinates_steps_are_those_of_plain_lbfgs():
    """On a quadratic, against the formulas in Nocedal and Wright, algorithm 7.4."""
    draw = np.random.default_rng(0).standard_normal
    a = draw((6, 6))
    none = NoCoordinates(frame_of(Atoms("H2")), 1.0)
    hessian, walk = a @ a.T + np.eye(6), Walk(lambda x, before: none, none)
    x, pairs, last = 0.05 * draw(6), [], None
    for _ in range(8):
        gradient = hessian @ x
        if last is not None:
            pairs.append((x - last[0], gradient - last[1]))
        inverse = np.eye(6) / 70
        if pairs:
            s, y = pairs[-1]
            inverse = np.eye(6) * (s @ y) / (y @ y)
        for s, y in pairs:
            left = np.eye(6) - np.outer(s, y) / (s @ y)
            inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
        last = x, gradient
        step = walk.step(x, 0.5 * float(x @ gradient), gradient)
        # rounding, times the condition of the pairs
        assert np.allclose(step, -inverse @ gradient, rtol=1e-6, atol=1e-12)
        x = x + step


def test_a_step_is_finite_whatever_the_numbers_are():
    start = Atoms("CO2", [(0.0, 0, 0)] * 3)
    walk = walk_of(frame_of(start))
    draw = np.random.default_rng(0).standard_normal
    for scale in (1.0, 1e200, np.nan, np.inf, 1e-300, 0.0, 1.0):
        with np.errstate(invalid="ignore"):
            step = walk.step(np.zeros(9), scale, scale * draw(9))
        assert np.isfinite(step).all()


# --- the promise


@pytest.fixture
def one_shape(monkeypatch):
    """Batches of one shape, so that few programs are compiled."""
    monkeypatch.setattr("basinax.engine.groups.shape_of_batches", lambda *_: (64, 4))


def are_same(batch, alone) -> bool:
    """Whether a batch ends in the bits of these results of one structure each."""
    return all(same(batch, k, other, 0) for k, other in enumerate(alone))


def mixed() -> list[Atoms]:
    """Of 1 to 9 atoms: a slab with an adsorbate, a crystal, molecules, overlapping atoms, an atom.

    Their constraints are of one kind, so that few programs are compiled.
    """
    slab = fcc111("Cu", (2, 2, 2), vacuum=5)
    add_adsorbate(slab, "O", 1.5, "fcc")
    made = [slab, bulk("Al", cubic=True), molecule("CH3OH"), molecule("C2H2")]
    made += [Atoms("C2", [(0, 0, 0), (0, 0, 0.3)]), Atoms("H")]
    for k, atoms in enumerate(made):
        atoms.rattle(0.08, seed=k)
        atoms.set_constraint([FixedPlane(0, (1, 1, 0)), FixAtoms(range(1, len(atoms) // 2))])
    return made


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("cell", "dtype"),
    [
        (None, "float32"),
        # Every day with a potential in jit, below.
        pytest.param(Frechet(pressure=0.01), "float64", marks=pytest.mark.exhaustive),
        pytest.param(None, "float64", marks=pytest.mark.exhaustive),
        pytest.param(UnitCell(hydrostatic_strain=True), "float32", marks=pytest.mark.exhaustive),
        pytest.param(Strain(mask=(1, 1, 0, 0, 0, 1)), "float64", marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(cell, dtype, one_shape):
    # There are places for two to four of these twelve, so the others take theirs.
    few = mixed()
    settings = {"fmax": 0.05, "max_steps": 6, "cell": cell, "dtype": dtype}
    batch = relax([*few, *few[::-1]], EMT(), InternalLBFGS(), **settings)
    alone = [relax([a], EMT(), InternalLBFGS(), **settings) for a in few]
    assert are_same(batch, [*alone, *alone[::-1]])
    assert (batch.steps[: len(few) - 1] > 0).all()


def no_component(direction):
    """Atom 1 has not moved along it."""
    return lambda moved, end: abs(moved[1] @ np.array(direction)) < 1e-6


CONSTRAINTS = {
    "symmetry": (FixSymmetry, lambda moved, end: np.ptp(end.cell.cellpar()[:3]) < 1e-5),
    "line": (lambda a: FixedLine(1, (1, 1, 0)), no_component((1, -1, 0))),
    "plane": (lambda a: FixedPlane(1, (1, 2, 0)), no_component((1, 2, 0))),
    "center": (lambda a: FixCom(), lambda moved, end: np.abs(moved.mean(0)).max() < 1e-6),
    "axes": (lambda a: FixCartesian(1, (1, 0, 1)), no_component((1, 0, 0))),
}


@pytest.mark.parametrize("name", every_day({k: k for k in CONSTRAINTS}, lambda k: k == "plane"))
def test_steps_keep_to_constraints(name):
    constraint, holds = CONSTRAINTS[name]
    atoms, is_moving = bulk("Al", a=4.2, cubic=True), name == "symmetry"
    if not is_moving:
        atoms.rattle(0.1, seed=0)
    atoms.set_constraint(constraint(atoms))
    cell = Frechet() if is_moving else None
    result = relax([atoms], EMT(), InternalLBFGS(), cell=cell, fmax=0.01, dtype="float64")
    assert result.converged.all()
    assert result.steps[0] > 1
    assert holds(result.atoms[0].positions - atoms.positions, result.atoms[0])


def test_a_fixed_centre_of_mass_costs_nothing():
    """Where a shift changes no energy; the gradient of ASE's `FixCom` is not that of its steps."""
    free, held = molecule("HCN"), molecule("HCN")
    held.set_constraint(FixCom())
    for atoms in (free, held):
        atoms.rattle(0.05, seed=1)
    settings = {"fmax": 0.01, "dtype": "float64"}
    both = relax([free, held], EMT(), InternalLBFGS(), **settings)
    assert both.converged.all() and abs(np.diff(both.evaluations)[0]) <= 1
    assert both.energies[1] == pytest.approx(both.energies[0], abs=1e-6)
    shift = both.atoms[1].get_center_of_mass() - held.get_center_of_mass()
    np.testing.assert_allclose(shift, 0.0, atol=1e-12)
    assert same(both, 1, relax([held], EMT(), InternalLBFGS(), **settings), 0)


def test_a_number_a_structure_is_that_of_its_own():
    few = [molecule(name) for name in ("CH3OH", "C2H2", "C2H4")]
    for k, atoms in enumerate(few):
        atoms.rattle(0.05, seed=k)
    stiffness = np.array([1.0, 0.2, 5.0])
    batch = relax(few, EMT(), InternalLBFGS(stiffness=stiffness), max_steps=4)
    alone = [
        relax([a], EMT(), InternalLBFGS(stiffness=k), max_steps=4)
        for a, k in zip(few, stiffness.tolist(), strict=True)
    ]
    assert are_same(batch, alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_potentials_in_jit_are_evaluated_one_structure_at_a_time(dtype):
    few = [bulk("Ar", cubic=True), Atoms("Ar3", [(0.0, 0, 0), (0, 0, 3.6), (3.4, 0, 0)])]
    few[0].rattle(0.1, seed=0)
    argon = OwnLennardJones.named("Ar")
    settings = {"fmax": 0.005, "cell": Frechet(), "dtype": dtype}
    batch = relax(few, argon, InternalLBFGS(), **settings)
    alone = [relax([a], argon, InternalLBFGS(), **settings) for a in few]
    assert batch.converged.all()
    assert are_same(batch, alone)


# --- models that are wrong, and starts that are bad


@pytest.mark.parametrize("stiffness", [1 / 20, 1.0, 20.0])
def test_a_wrong_model_costs_evaluations_and_converges(stiffness):
    few = mixed()[:2]
    result = relax(few, EMT(), InternalLBFGS(stiffness=stiffness), fmax=0.02, max_steps=60)
    assert result.converged.all()


def springs_of(atoms):
    """A function to energy and forces of springs between near atoms, as stiff in torsions."""
    i, k = np.triu_indices(len(atoms), 1)
    lengths = np.linalg.norm(atoms.positions[i] - atoms.positions[k], axis=1)
    i, k, lengths = (each[lengths < 3.0] for each in (i, k, lengths))

    def evaluate(x):
        apart = x[i] - x[k]
        now = np.linalg.norm(apart, axis=1)
        pulls, forces = (10 * (now - lengths) / now)[:, None] * apart, np.zeros_like(x)
        np.add.at(forces, i, -pulls)
        np.add.at(forces, k, pulls)
        return 5 * float(((now - lengths) ** 2).sum()), forces

    return evaluate


def points_on_springs(n_most) -> list[np.ndarray]:
    """The points of a rattled molecule until its forces vanish."""
    evaluate, atoms = springs_of(MOLECULES[19]), MOLECULES[19].copy()
    atoms.rattle(0.1, seed=19)
    walk, points, forces = walk_of(frame_of(atoms)), [atoms.positions], np.ones((1, 3))
    while np.linalg.norm(forces, axis=1).max() > 0.05 and len(points) <= n_most:
        energy, forces = evaluate(points[-1])
        step = walk.step(points[-1].ravel(), energy, -forces.ravel())
        points.append(points[-1] + step.reshape(-1, 3))
    return points


def test_a_model_whose_torsions_are_too_soft_is_mended():
    """With one ε there are 58 steps."""
    assert len(points_on_springs(60)) <= 30


def test_trials_of_a_spring_that_cannot_fit_better_are_left_out(monkeypatch):
    """A lower bound of their misfit is above the best: no step is another one."""
    tried = []

    def counted(model, weak):
        tried.append(weak)
        return Metric(model, weak)

    monkeypatch.setattr("basinax.internal.carried.Metric", counted)
    points = points_on_springs(60)
    few = len(tried)
    monkeypatch.setattr("basinax.internal.carried.MARGIN", np.inf)
    tried.clear()
    assert np.array_equal(points, points_on_springs(60))
    assert few < len(tried)
    assert len(set(tried)) > 2


def test_steps_after_bad_ones_are_shorter_where_no_coordinate_is():
    """A molecule that turns changes none of its coordinates."""
    atoms = molecule("N2")
    walk, x, longest = walk_of(frame_of(atoms)), atoms.positions, []
    for energy in (0.0, 1.0, 2.0):
        turning = 100 * np.cross(x - x.mean(0), (1, 0, 0))
        step = walk.step(x.ravel(), energy, turning.ravel()).reshape(-1, 3)
        longest.append(np.linalg.norm(step, axis=1).max())
        x = x + step
    assert longest[2] < 0.6 * longest[0]


BAD = {
    "an atom": Atoms("C"),
    "helium": Atoms("He2", [(0, 0, 0), (0, 0, 3.0)]),
    "in a line": Atoms("C3", [(0, 0, 0), (0, 0, 1.3), (0, 0, 2.6)]),
    "in a plane": Atoms("NH3", [(0, 0, 0), (1, 0, 0), (-0.5, 0.87, 0), (-0.5, -0.87, 0)]),
    "overlapping": Atoms("C4", np.random.default_rng(0).uniform(-0.4, 0.4, (4, 3))),
    "ions": Atoms("NaCl", [(0, 0, 0), (0, 0, 2.0)]),
    "far apart": Atoms("Ar3", [(0, 0, 0), (0, 0, 30.0), (40.0, 0, 0)]),
    "a bond that breaks": Atoms("H2", [(0, 0, 0), (0, 0, 0.8)]),
    "bonds that form": Atoms("N4", [(0, 0, 0), (0, 0, 1.3), (2.2, 0, 0), (2.2, 0, 1.3)]),
    "senseless elements": Atoms("XHeU", [(0, 0, 0), (0, 0, 1.5), (1.4, 0, 0)]),
    "a chain": Atoms("CO2", [(0, 0, -1.1), (0.01, 0, 0), (0, 0, 1.1)], cell=[3] * 3, pbc=[0, 0, 1]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bad_starts_converge(dtype):
    pairs = LennardJones(sigma=1.2, epsilon=0.5, rc=6.0, smooth=True)
    result = relax(list(BAD.values()), pairs, InternalLBFGS(), max_steps=150, dtype=dtype)
    assert dict(zip(BAD, result.status, strict=True)) == dict.fromkeys(BAD, Status.CONVERGED)


def test_elements_that_say_nothing_of_the_forces_end_no_structure():
    """Without its patience it walks in circles in the fourth and the fifth."""
    draw = np.random.default_rng(3).uniform
    symbols = ("C5", "CH4", "SiO2H", "C3N3H3", "H6")
    clusters = [Atoms(s, draw(-1.6, 1.6, (len(Atoms(s)), 3))) for s in symbols]
    pairs = LennardJones(sigma=1.2, epsilon=0.5, rc=6.0, smooth=True)
    assert relax(clusters, pairs, InternalLBFGS(), max_steps=300).converged.all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_forces_that_no_energy_has_are_followed_to_where_they_vanish(dtype):
    atoms = molecule("CH3OH")
    whirl = Whirl(atoms.positions)
    atoms.rattle(0.1, seed=0)
    assert relax([atoms], whirl, InternalLBFGS(), max_steps=30, dtype=dtype).converged.all()


def test_a_structure_without_a_direction_ends_alone():
    """Two atoms in one place have no finite forces."""
    bad = Atoms("Ar2", [(0.0, 0, 0)] * 2)
    good = Atoms("Ar2", [(0.0, 0, 0), (0, 0, 1.3)])
    pairs = LennardJones(sigma=1.2, epsilon=0.5, rc=6.0, smooth=True)
    with np.errstate(all="ignore"):
        both = relax([bad, good], pairs, InternalLBFGS())
        alone = relax([good], pairs, InternalLBFGS())
    assert both.status.tolist() == [Status.NOT_FINITE, Status.CONVERGED]
    assert np.array_equal(both.atoms[1].positions, alone.atoms[0].positions)


def test_how_far_atoms_are_unwrapped_changes_no_step():
    """Up to rounding, at 10 million Å."""
    atoms = bulk("Ar", cubic=True, a=5.3).repeat((2, 1, 1))
    atoms.rattle(0.2, seed=1)
    far, shifts = atoms.copy(), np.random.default_rng(0).integers(-(10**6), 10**6, (8, 3))
    far.positions += shifts @ far.cell.array
    result = relax([atoms, far], LennardJones(sigma=3.4, epsilon=0.01, rc=8.0), InternalLBFGS())
    assert result.converged.all() and len({*result.steps.tolist()}) == 1
    np.testing.assert_allclose(*result.energies, rtol=0, atol=1e-6)


def test_large_structures_take_plain_steps():
    atoms = bulk("Cu").repeat((3, 3, 2))
    atoms.rattle(0.05, seed=0)
    plain = relax([atoms], EMT(), InternalLBFGS(max_dofs=50))
    assert plain.converged.all()
    assert plain.steps[0] != relax([atoms], EMT(), InternalLBFGS()).steps[0]


# --- errors


def test_it_stands_in_no_chain_and_not_in_the_core():
    atoms = [molecule("N2")]
    with pytest.raises(TypeError, match="in no chain"):
        relax(atoms, EMT(), chain(basinax.MaxStepSize(0.1), InternalLBFGS()))
    with pytest.raises(TypeError, match="steps on the host"):
        basinax.relax(lambda x: ((x**2).sum()[None], 2 * x), np.ones((2, 3)), InternalLBFGS())


def test_it_has_a_name_in_configs_and_texts():
    from basinax.config.specs import optimizer_from

    optimizer = InternalLBFGS(maxstep=0.5)
    assert basinax.from_config(basinax.to_config(optimizer)) == optimizer
    assert optimizer_from("internal-lbfgs:maxstep=0.5") == optimizer
    assert basinax.to_config(optimizer)["name"] == "internal-lbfgs"


def test_processes_find_the_bits_of_this_one():
    atoms = mixed()[2:]
    there = ASECalculator(functools.partial(EMT), workers=2)
    here, there = (relax(atoms, x, InternalLBFGS(), max_steps=6) for x in (EMT(), there))
    assert all(same(here, k, there, k) for k in range(len(atoms)))


def test_atoms_that_fall_into_one_point_arrive_there():
    """As with plain L-BFGS: where atoms overlap there are no coordinates."""
    starts = np.random.default_rng(1).uniform(-1, 1, (2, 5, 3))
    atoms = [Atoms(symbols, x) for symbols, x in zip(("C5", "Cu5"), starts, strict=True)]
    result = relax(atoms, Springs(), InternalLBFGS(), fmax=1e-4, max_steps=30)
    assert result.converged.all()
