"""Paths take the steps of `ase.mep.NEB`, and each has the bits that it has alone."""

import functools
import itertools

import ase.io
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100
from ase.calculators.emt import EMT as EMTOfASE
from ase.constraints import FixAtoms, FixCom, FixedPlane
from ase.geometry import find_mic
from ase.mep import NEB, NEBTools
from ase.optimize import BFGS as BFGSOfASE, FIRE as FIREOfASE, MDMin as MDMinOfASE

from basinax import BFGS, FIRE, LBFGSLineSearch, MDMin, Status, check_order
from basinax.atoms import (
    EMT,
    ASECalculator,
    ComparedPath,
    InternalLBFGS,
    JaxModel,
    Trajectories,
    neb,
    relax,
)
from basinax.neb import batched
from basinax.neb.evaluator import Ends, PathEvaluator, _parts
from basinax.neb.forces import band_forces
from basinax.neb.paths import read_bands
from basinax.neb.spline import equidistant
from cover import exhaustive
from graph_models import CUTOFF, Network, OfPositions

METHODS = ("aseneb", "improvedtangent", "string")

pytestmark = pytest.mark.filterwarnings("ignore:end points of:UserWarning")


@functools.cache
def hop(adatom="Al"):
    """An adatom that goes from one hollow to the next; the lower layer is fixed."""
    start = fcc100("Al", (3, 2, 2))
    add_adsorbate(start, adatom, 1.8, "hollow")
    start.center(4.0, axis=2)
    start.set_constraint(FixAtoms(mask=start.get_tags() == 2))
    end = start.copy()
    end.positions[-1, 0] += start.cell[0, 0] / 3
    return start, end


@functools.cache
def across():
    """The hop across a boundary of the cell, after which the adatom was put back into it."""
    start, end = (atoms.copy() for atoms in hop())
    for atoms in (start, end):
        atoms.positions[:, 0] += 6.0
    end.wrap()
    return start, end


@functools.cache
def vacancy():
    """A neighbour that goes into a vacancy of a crystal."""
    crystal = bulk("Cu") * (3, 2, 2)
    start = crystal[1:]
    end = start.copy()
    end.positions[3] = crystal.positions[0]
    end.positions += 0.02 * np.sin(np.arange(33).reshape(-1, 3))
    return start, end


@functools.cache
def dimer():
    """A dimer of two elements that turns, open and without constraints."""
    start = Atoms("CuAu", [[0.0, 0.0, 0.0], [2.4, 0.0, 0.0]])
    end = Atoms("CuAu", [[0.1, 0.3, 0.0], [1.9, 1.4, 0.3]])
    return start, end


PATHS = {"hop": hop, "across": across, "vacancy": vacancy, "dimer": dimer}


def of_ase(ends, n_images, steps, *, optimizer=FIREOfASE, interpolate="idpp", climb, **how):
    """The positions of ASE's images at these steps, for `recorded`."""
    images = [ends[0].copy() for _ in range(n_images - 1)] + [ends[1].copy()]
    band = NEB(images, **how)
    band.interpolate(interpolate, mic=bool(ends[0].pbc.any()))
    band.climb = climb
    for image in images:
        image.calc = EMTOfASE()
    found = {}
    run = optimizer(band, logfile=None)
    for _ in run.irun(fmax=0.0, steps=max(steps)):
        if how["method"] == "string":
            band.precon._spline = None  # ASE keeps a spline until an image moves by 1e-6 Å
        if run.nsteps in steps:
            found[run.nsteps] = np.array([image.get_positions() for image in images])
    return {"positions": np.array([found[k] for k in steps])}


def apart(ends, found, expected):
    ways, _ = find_mic((found - expected).reshape(-1, 3), ends[0].cell, ends[0].pbc)
    return np.abs(ways).max()


def compared(recorded, name, steps, optimizers, **how):
    """The largest difference from ASE at these steps, which are those of as many paths."""
    ends, (ours, theirs) = PATHS[name](), optimizers
    expected = recorded(of_ase, ends, 5, steps, optimizer=theirs, **how)["positions"]
    found = neb([ends] * len(steps), EMT(), ours, n_images=5, fmax=0.0, max_steps=steps, **how)
    assert [path.steps for path in found] == list(steps)
    return apart(ends, np.array([path.positions for path in found]), expected)


FIRES, BFGSS, MDMINS = (FIRE(), FIREOfASE), (BFGS(), BFGSOfASE), (MDMin(), MDMinOfASE)


@pytest.mark.parametrize("climb", [False, exhaustive(True)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["hop", exhaustive("vacancy")])
def test_the_steps_are_those_of_ase(name, method, climb, recorded):
    assert compared(recorded, name, (1, 10, 100), FIRES, method=method, climb=climb) < 1e-9


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("optimizers", "method", "climb"),
    [
        pytest.param(BFGSS, "improvedtangent", True, id="BFGS"),
        pytest.param(MDMINS, "string", False, id="MDMin"),
    ],
)
def test_other_optimizers_step_as_those_of_ase(optimizers, method, climb, recorded):
    assert compared(recorded, "hop", (1, 10, 40), optimizers, method=method, climb=climb) < 1e-9


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["aseneb", "improvedtangent"])
@pytest.mark.parametrize("name", ["across", "dimer"])
def test_boundaries_and_open_molecules_are_as_in_ase(name, method, recorded):
    how = {"method": method, "climb": True, "interpolate": "linear"}
    assert compared(recorded, name, (1, 10, 40), FIRES, **how) < 1e-9


def test_each_spring_may_have_a_constant(recorded):
    springs, ends = [0.1, 0.3, 0.05, 1.0], hop()
    how = {"method": "improvedtangent", "climb": False}
    expected = recorded(of_ase, ends, 5, (20,), k=springs, **how)["positions"]
    how |= {"k": [springs, 0.1], "max_steps": 20}
    paths = neb([ends] * 2, EMT(), FIRE(), n_images=5, fmax=0.0, **how)
    assert apart(ends, paths[0].positions, expected[0]) < 1e-9
    assert apart(ends, paths[1].positions, expected[0]) > 1e-4


def test_an_image_climbs_from_a_force_on():
    ends, how = hop(), {"method": "improvedtangent"}
    images = [ends[0].copy() for _ in range(4)] + [ends[1].copy()]
    band = NEB(images, climb=False, **how)
    band.interpolate("idpp", mic=True)
    for image in images:
        image.calc = EMTOfASE()
    run = FIREOfASE(band, logfile=None)
    run.run(fmax=0.3, steps=100)
    before, band.climb = run.nsteps, True
    run.run(fmax=0.0, steps=30)
    how |= {"climb": 0.3, "max_steps": before + 30}
    (path,) = neb([ends], EMT(), FIRE(), n_images=5, fmax=0.0, **how)
    assert 0 < before < 100
    expected = np.array([image.positions for image in images])
    assert apart(ends, path.positions, expected) < 1e-9


def test_paths_climb_each_as_they_are_told():
    ends, few = hop(), {"n_images": 4, "fmax": 0.2, "max_steps": 3}
    settings = [True, 0.5, False]
    together = neb([ends] * 3, EMT(), climb=settings, **few)
    for path, climb in zip(together, settings, strict=True):
        (alone,) = neb([ends], EMT(), climb=climb, **few)
        assert np.array_equal(path.positions, alone.positions)
    assert not np.array_equal(together[0].positions, together[2].positions)


def test_constraints_act_as_in_ase(monkeypatch, recorded):
    start, end = (atoms.copy() for atoms in hop())
    for atoms in (start, end):
        atoms.constraints += [FixedPlane([len(atoms) - 1], [0, 1, 0])]
        atoms.positions[-1, 2] += 0.3
    monkeypatch.setitem(PATHS, "planar", lambda: (start, end))
    assert compared(recorded, "planar", (1, 40), FIRES, method="aseneb", climb=True) < 1e-9


# --- each path alone


def broken():
    """A path whose third image has two atoms on one place."""
    start, end = hop()
    images = [start, start.copy(), start.copy(), end]
    images[1].positions[-1, 0] += 1.0
    images[2].positions[-1] = images[2].positions[-2]
    return images


def bits_of(path):
    numbers = path.positions, path.energies, path.fmax, path.steps, path.status
    return [*numbers, *(image.get_forces() for image in path.images)]


def assert_same(path, other):
    for x, y in zip(bits_of(path), bits_of(other), strict=True):
        np.testing.assert_array_equal(x, y)


# Of each in both dtypes the order of operations is looked through every day, below.
@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("method", "dtype", "optimizer", "most"),
    [
        ("improvedtangent", np.float64, None, 25),
        exhaustive("improvedtangent", np.float32, None, 400),
        exhaustive("improvedtangent", np.float64, FIRE(), 25),
        exhaustive("string", np.float32, FIRE(), 25),
    ],
)
def test_a_path_has_the_bits_that_it_has_alone(method, dtype, optimizer, most):
    images = {"a": 5, "b": 3, "c": 4}
    paths = {"a": hop(), "b": vacancy(), "c": hop("Cu")}
    lists = {
        name: read_bands([paths[name]], 0.1, n, "linear", method) for name, n in images.items()
    }
    paths = {name: band.images for name, (band,) in lists.items()}
    options = {"method": method, "dtype": dtype, "max_steps": most, "climb": 0.5}
    options |= {"optimizer": optimizer, "fmax": 0.1 if most < 400 else 0.0}
    alone = {name: neb([path], EMT(), **options)[0] for name, path in paths.items()}
    for order in ("abc", "cxba"):
        together = neb([paths.get(name) or broken() for name in order], EMT(), **options)
        for name, path in zip(order, together, strict=True):
            if name == "x":
                assert path.status == Status.EVALUATION_FAILED
                assert path.message.startswith("image 2: ")
                assert path.saddle is None and np.isnan(path.barrier)
            else:
                assert_same(path, alone[name])


def test_refilled_places_change_no_bit(monkeypatch):
    paths = [hop(), vacancy(), hop("Cu"), hop("Au")]
    options = {"n_images": 4, "max_steps": 12, "fmax": 0.2}
    expected = neb(paths, EMT(), **options)
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 64)
    monkeypatch.setattr("basinax.structures.machine.CPU.few_rows", 64)
    monkeypatch.setattr("basinax.structures.machine.CPU.point_rows", 64)
    for path, other in zip(neb(paths, EMT(), **options), expected, strict=True):
        assert_same(path, other)


@pytest.mark.parametrize("calls", [exhaustive(0), 3])
def test_images_are_evaluated_in_parts_where_memory_runs_out(calls, monkeypatch):
    """After some calls, between which lists were renewed."""
    paths, options = [hop(), hop("Cu")], {"n_images": 4, "max_steps": 12, "fmax": 0.2}
    expected = neb(paths, EMT(), **options)
    properties_of, seen = batched.properties_of, []

    def greedy(*arguments):
        n_atoms = sum(np.asarray(arguments[3].index.sizes))
        seen.append(int(n_atoms))
        if len(seen) > calls and n_atoms > 2 * 13:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
        return properties_of(*arguments)

    monkeypatch.setattr(batched, "properties_of", greedy)
    with pytest.warns(RuntimeWarning, match="no more than half as many structures are evaluated"):
        found = neb(paths, EMT(), **options)
    assert all(b <= -(-a // 2) for a, b in itertools.pairwise(seen[calls:]) if a > 2 * 13)
    for path, other in zip(found, expected, strict=True):
        assert_same(path, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
def test_no_order_is_left_to_the_compiler(method, dtype):
    bands = read_bands([hop(), vacancy()], 0.1, 5, "linear", method)
    ends, climb = [Ends(({}, {}))] * 2, np.full(2, np.inf)
    (part,) = _parts(PathEvaluator(ASECalculator(EMTOfASE()), bands, ends, method, climb, dtype))
    rows, images = jnp.ones(part.shape, dtype), jnp.ones(len(part.chain.moves), dtype)
    found = check_order(
        functools.partial(band_forces, method), part.chain, rows, rows, (images, images)
    )
    assert found.findings == ()
    if (grid := part.chain.grid) is not None:
        assert check_order(equidistant, grid, grid.points(rows)).findings == ()


def test_potentials_of_paths_run_on_the_default_device():
    with pytest.raises(TypeError, match="default device"):
        neb([hop()], EMT(), n_images=3, devices=1)


# --- calculators


class Angry(EMTOfASE):
    """Fails where the last atom has gone too far."""

    def calculate(self, atoms, *how):
        if self.fails(atoms):
            raise RuntimeError("no convergence")
        super().calculate(atoms, *how)

    def fails(self, atoms):
        return hop()[0].positions[-1, 0] + 0.3 < atoms.positions[-1, 0] < 4.0


def test_a_calculator_of_ase_gives_the_path_of_ase(recorded):
    ends = hop()
    how = {"method": "improvedtangent", "climb": True}
    expected = recorded(of_ase, ends, 4, (15,), **how)["positions"]
    (path,) = neb([ends], EMTOfASE(), FIRE(), n_images=4, fmax=0.0, max_steps=15)
    assert apart(ends, path.positions, expected[0]) < 1e-9
    assert path.evaluations == 2 + 2 * 16


@pytest.mark.parametrize("interpolate", ["linear", "idpp"])
def test_a_path_takes_the_shortest_way_in_a_skewed_cell(interpolate):
    cell = np.array([[10.0, 0, 0], [13, 2, 0], [0, 0, 12]])
    start = Atoms("Cu2", [[0, 0, 0], [3, 1, 6]], cell=cell, pbc=True)
    end = start.copy()
    end.positions[0] += 0.4 * cell[0] - 0.5 * cell[1]
    (band,) = read_bands([[start, end]], 0.1, 5, interpolate, "aseneb")
    positions = np.array([image.positions for image in band.images])
    lengths = np.linalg.norm(np.diff(positions, axis=0), axis=2).sum(0)
    np.testing.assert_allclose(lengths, [np.hypot(0.5, 1.0), 0.0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("error", [0.0, 1e-10, -1e-10])
def test_a_hop_by_half_a_cell_takes_the_way_that_is_given(error):
    start = Atoms("Cu2", [[0.3 - error, 0, 0], [1, 1, 6]], cell=[4, 5, 12], pbc=True)
    end = start.copy()
    end.positions[0, 0] = 2.3 + error
    for ends in ([start, end], [end, start]):
        (band,) = read_bands([ends], 0.1, 3, "linear", "aseneb")
        found = [image.positions[0, 0] for image in band.images]
        assert (found[0], found[2]) == tuple(image.positions[0, 0] for image in ends)
        assert found[1] == pytest.approx(1.3, abs=1e-12)


def test_images_have_calculators_of_their_own_across_boundaries():
    images = [image.copy() for image in neb([across()], EMT(), n_images=3, max_steps=0)[0].images]
    images[1].wrap()
    for image in images:
        image.calc = EMTOfASE()
    (path,) = neb([images], max_steps=2, fmax=0.0)
    (expected,) = neb([images], EMTOfASE(), max_steps=2, fmax=0.0)
    assert path.status == Status.MAX_STEPS
    np.testing.assert_array_equal(path.energies, expected.energies)
    with pytest.raises(ValueError, match=r"no calculator for 1 structure \(1\)"):
        neb([[images[0], images[-1]]], n_images=3)


def test_a_calculator_that_fails_ends_its_path_with_the_image():
    start, end = hop()
    short = end.copy()
    short.positions[-1, 0] = start.positions[-1, 0] + 0.2
    paths = neb([(start, end), (start, short)], Angry(), n_images=5, max_steps=3, fmax=0.0)
    assert paths[0].status == Status.EVALUATION_FAILED
    assert "image 1: " in paths[0].message and "no convergence" in paths[0].message
    assert paths[1].status == Status.MAX_STEPS and paths[1].message == ""
    with pytest.raises(ValueError, match="the path could not be evaluated: image 1: "):
        paths[0].fit()


@pytest.mark.exhaustive
def test_paths_of_a_model_have_the_bits_that_they_have_alone():
    model = JaxModel(OfPositions(Network()), CUTOFF)
    paths, options = [hop(), dimer(), vacancy()], {"n_images": 4, "max_steps": 4, "fmax": 0.01}
    together = neb(paths, model, **options)
    for path, other in zip(paths, together, strict=True):
        assert_same(neb([path], model, **options)[0], other)
    assert (together.status == Status.MAX_STEPS).all()


def test_an_end_point_that_fails_ends_its_path():
    start, end = hop()
    bad = end.copy()
    bad.positions[-1] = bad.positions[-2]
    paths = neb([[start, end, bad], [start, bad, end]], EMT(), max_steps=1)
    assert [path.message[:8] for path in paths] == ["image 2:", "image 1:"]


# --- results


@pytest.fixture(scope="module")
def found():
    ends = relax(hop(), EMT(), FIRE(), fmax=0.02).atoms
    return neb([ends], "emt", n_images=5, fmax=0.05)


def test_a_result_has_images_and_barriers(found):
    (path,) = found
    energies = [image.get_potential_energy() for image in path.images]
    assert found.converged.all() and path.status == Status.CONVERGED
    assert path.fmax < 0.05
    assert path.saddle_index == int(np.argmax(energies)) == 2
    assert path.barrier == energies[2] - energies[0] > 0.05
    assert path.reverse_barrier == energies[2] - energies[4]
    assert path.reaction_energy == energies[4] - energies[0]
    assert path.saddle is path.images[2]
    for image in path.images:
        again = image.copy()
        again.calc = EMTOfASE()
        np.testing.assert_allclose(image.get_forces(), again.get_forces(), atol=1e-9)
    assert found.barriers.tolist() == [path.barrier]


def test_the_saddle_is_that_of_ase(found):
    tools = NEBTools(found[0].images)
    barrier, energy = tools.get_barrier(fit=False)
    assert barrier == pytest.approx(found[0].barrier, abs=1e-12)
    assert energy == pytest.approx(found[0].reaction_energy, abs=1e-12)
    assert max(found[0].fit().fit_energies) >= found[0].barrier - 1e-12


def test_a_plot_draws_the_curve_of_ase(found):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = found[0].plot()
    assert len(axes.lines) > 1
    matplotlib.pyplot.close(axes.figure)
    start = found[0].images[0]
    nowhere = neb([[start, start.copy()]], EMT(), n_images=4)
    with pytest.raises(ValueError, match="neighbouring images of the path are the same"):
        nowhere[0].plot()
    axes = nowhere.plot()
    assert len(axes.lines) == 0
    matplotlib.pyplot.close(axes.figure)


def test_a_table_has_a_row_for_each_path(found, tmp_path):
    found.write_table(tmp_path / "paths.csv")
    header, row = (tmp_path / "paths.csv").read_text().splitlines()
    assert header.split(",")[:7] == [
        "source", "formula", "atoms", "images", "status", "steps", "evaluations",
    ]  # fmt: skip
    assert row.split(",")[:5] == ["0", "Al13", "13", "5", "converged"]


def test_a_history_counts_evaluations_as_its_path(found):
    ends = found[0].images[0], found[0].images[-1]
    (path,) = neb([ends], EMT(), n_images=5, fmax=0.2, history=True)
    assert path.history.evaluations[-1] == path.evaluations > path.steps
    assert path.history.evaluations[0] == 5


def test_two_results_are_compared_by_path(found):
    ends = found[0].images[0], found[0].images[-1]
    both = found.compare(neb([ends, ends], EMT(), n_images=5, fmax=0.2))
    (pair,) = both
    assert isinstance(pair, ComparedPath) and both.only_other == ["1"]
    assert pair.barrier_difference == pair.other.barrier - pair.first.barrier != 0
    apart = pair.barrier_difference - pair.reverse_barrier_difference
    assert pair.reaction_energy_difference == pytest.approx(apart, abs=1e-9)
    assert (pair.evaluations, pair.n_images) == (found[0].evaluations, 5)
    moves = find_mic(
        (pair.other.positions - pair.first.positions).reshape(-1, 3), ends[0].cell, ends[0].pbc
    )
    assert pair.distance == pytest.approx(moves[1].max(), abs=1e-9) and pair.distance > 0
    lines = repr(both).splitlines()
    assert lines[0] == "1 path in both results" and lines[3].startswith("barriers of the other: ")
    row = {name: values[0] for name, values in both.to_dict().items()}
    assert (row["formula"], row["barrier_difference_eV"]) == ("Al13", pair.barrier_difference)
    assert np.isnan(found.compare(neb([ends], EMT(), n_images=4, max_steps=0))[0].distance)
    with pytest.raises(TypeError, match="other must be a result of neb"):
        found.compare(list(found))


@pytest.mark.parametrize("form", ["traj", "extxyz"])
def test_a_trajectory_holds_all_images_of_its_steps(tmp_path, form):
    paths = neb([hop(), broken()], EMT(), n_images=5, max_steps=7, fmax=0.0)
    to = Trajectories(tmp_path, interval=3, format=form)
    again = neb([hop(), broken()], EMT(), n_images=5, max_steps=7, fmax=0.0, trajectory=to)
    assert_same(again[0], paths[0])
    frames = ase.io.read(tmp_path / f"0.{form}", ":")
    assert [frame.info["step"] for frame in frames] == [k for k in (0, 3, 6, 7) for _ in range(5)]
    assert NEBTools(frames)._guess_nimages() == 5
    exact = {"rtol": 0, "atol": 0.0 if form == "traj" else 1e-7}
    for frame, image in zip(frames[-5:], paths[0].images, strict=True):
        np.testing.assert_allclose(frame.positions, image.positions, **exact)
        np.testing.assert_allclose(frame.get_potential_energy(), image.get_potential_energy())
        forces = [x.get_forces(apply_constraint=False) for x in (frame, image)]
        np.testing.assert_allclose(*forces, **exact)
        assert frame.constraints[0].todict() == image.constraints[0].todict()
    assert not (tmp_path / f"1.{form}").exists()  # which no point was evaluated of


def test_images_keep_what_they_carry():
    images = [hop()[0].copy() for _ in range(3)]
    for k, image in enumerate(images):
        image.positions[-1, 0] += k
        image.info["number"] = k
        image.set_tags(image.get_tags() + k)
    (path,) = neb([images], EMT(), max_steps=1)
    assert [image.info["number"] for image in path.images] == [0, 1, 2]
    for image, given in zip(path.images, images, strict=True):
        np.testing.assert_array_equal(image.get_tags(), given.get_tags())
        assert image.constraints[0].todict() == given.constraints[0].todict()


def test_the_images_given_are_not_changed():
    start, end = hop()
    before = start.positions.copy(), end.positions.copy()
    neb([(start, end)], EMT(), n_images=3, max_steps=2)
    assert (start.positions == before[0]).all() and (end.positions == before[1]).all()


def test_images_keep_their_arrays_and_paths_are_numbered():
    images = [hop()[0].copy() for _ in range(3)]
    for k, image in enumerate(images):
        image.positions[-1, 0] += k
        image.info["relax_source"] = "7"  # as relaxed structures have it
        image.set_array("label", np.full(len(image), 0.75 * k if k else 0))
        image.set_array("name", np.full(len(image), "x" * (k + 1)))
    images[2].set_array("own", np.zeros((len(images[2]), 3)))
    path = [image.copy() for image in images]
    path[1].info["relax_status"] = "converged"
    found = neb([images, path], EMT(), max_steps=1)
    for given, image in zip(images, found[1].images, strict=True):
        assert list(image.arrays) == list(given.arrays) and image.info == given.info
        for name in ("label", "name"):
            assert image.arrays[name].dtype == given.arrays[name].dtype
            assert (image.arrays[name] == given.arrays[name]).all()
    assert found.to_dict()["source"] == ["0", "1"]
    lines = repr(found).splitlines()
    assert lines[0] == "2 paths: 2 max_steps" and lines[2].startswith("source  formula  images")
    assert "barrier_eV" in lines[2] and len(lines) == 5


def test_charges_that_the_potential_does_not_use_are_told_of_a_path():
    start, end = (atoms.copy() for atoms in hop())
    start.set_initial_charges(np.ones(len(start)))
    with pytest.warns(UserWarning, match=r"^EMT does not use charges \(of path 0 \(Al13\)"):
        neb([(start, end)], EMT(), n_images=3, max_steps=1)


def test_no_paths_have_no_results():
    assert len(neb([], EMT())) == 0
    assert repr(neb([], EMT())) == "0 paths"


# --- what is refused


def changed(**arrays):
    start, end = (atoms.copy() for atoms in hop())
    for name, value in arrays.items():
        setattr(end, name, value)
    return start, end


def refusals():
    start, end = hop()
    numbers = start.numbers.copy()
    numbers[0] = 29
    return {
        "fewer atoms": ([[start, end[1:]]], {}, "path 0: image 1 has 12 atoms and image 0 has 13"),
        "other elements": ([changed(numbers=numbers)], {}, "has Cu as atom 0, image 0 has Al"),
        "another cell": ([changed(cell=start.cell * 1.1)], {}, "the cell of image 1 differs"),
        "other boundaries": ([changed(pbc=True)], {}, "image 1 has pbc"),
        "other constraints": ([changed(constraints=[])], {}, "constraints of image 1 differ"),
        "one image": ([[start]], {}, "a path needs two end points"),
        "no number of images": ([[start, end]], {"n_images": None}, "pass n_images=7"),
        "no string": ([[start, start]], {"method": "string"}, "its end points are the same"),
        "copies": ([[start, end, end]], {}, "path 0: images 1 and 2 are the same, so no path"),
        "one path": ([start, end], {}, "got one path: pass"),
        "a structure": (start, {}, "got one Atoms"),
        "a method": ([[start, end]], {"method": "eb"}, 'method must be one of "aseneb"'),
        "an interpolation": ([[start, end]], {"interpolate": "cubic"}, "interpolate must be"),
        "two images": ([[start, end]], {"n_images": 2}, "n_images must"),
        "a spring": ([[start, end]], {"k": -1.0}, "k must be a number of 0 or more"),
        "a text": ([[start, end]], {"k": "0.1"}, "k must be a number of 0 or more"),
        "a switch": ([[start, end]], {"k": [True]}, "k must be a number of 0 or more"),
        "springs": ([[start, end]], {"k": [[0.1, 0.2]]}, "one for each of the 4 springs"),
        "many springs": ([[start, end]], {"k": [0.1, 0.2]}, "each of the 1 paths, got 2"),
        "a late climb": ([[start, end]], {"climb": 0.01}, "climb must not be less than fmax"),
        "bonds": ([[start, end]], {"optimizer": InternalLBFGS()}, "InternalLBFGS"),
        "a search": ([[start, end]], {"optimizer": LBFGSLineSearch()}, "choose FIRE"),
        "an option of ASE": ([[start, end]], {"steps": 3}, "write max_steps"),
        "no calculators": ([[start, end]], {"potential": None}, "there is no calculator"),
        "an element": ([changed_to("Fe")], {}, "EMT has no parameters for Fe"),
    }


def changed_to(element):
    return hop(element)


@pytest.mark.parametrize("name", refusals())
def test_what_is_no_path_is_refused_with_a_reason(name):
    paths, options, reason = refusals()[name]
    with pytest.raises((TypeError, ValueError), match=reason):
        neb(paths, **{"potential": EMT(), "n_images": 5} | options)


def test_constraints_of_whole_images_are_refused():
    start, end = (atoms.copy() for atoms in hop())
    for atoms in (start, end):
        atoms.set_constraint(FixCom())
    with pytest.raises(NotImplementedError, match="path 0: image 0 has the constraint FixCom"):
        neb([(start, end)], EMT(), n_images=3)


def test_end_points_that_are_not_relaxed_are_named_once():
    with pytest.warns(UserWarning, match=r"end points of 2 paths \(0, 1\) are not relaxed") as told:
        neb([hop(), vacancy()], EMT(), n_images=3, max_steps=0)
    files = [warning.filename for warning in told if warning.category is UserWarning]
    assert files == [__file__]


def test_an_error_is_raised_for_paths_that_do_not_converge_where_asked():
    with pytest.raises(RuntimeError, match="max_steps"):
        neb([hop()], EMT(), n_images=3, max_steps=1, fmax=1e-4, throw=True)
