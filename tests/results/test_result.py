"""Results: entries, selections, tables, histories and what is printed."""

import csv
import dataclasses
import errno
import functools
import io
import json
import os
import threading

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT as ASEEMT
from ase.cluster import Octahedron
from ase.constraints import FixAtoms
from ase.db import connect
from ase.io import read

import basinax
from basinax import BFGS, FIRE, LBFGS, MaxStepSize, RMSForce, SystemIndex, chain, segment
from basinax.atoms import (
    EMT,
    ASECalculator,
    AtomsRelaxation,
    Frechet,
    LennardJones,
    Relaxed,
    Trajectories,
    elastic,
    evaluate,
    relax,
    relax_stream,
    vibrations,
)
from basinax.results.history import Log
from basinax.results.report.structures import structures_of
from basinax.results.report.tables import table_of
from basinax.results.table import column, write_rows
from basinax.results.trajectory import NotWhole
from basinax.runs.results import Results
from basinax.runs.stores import SQLiteFile
from cover import exhaustive

ARGON = {"epsilon": 0.0104, "sigma": 3.40, "cutoff": 8.5}


@pytest.fixture(scope="module")
def crystals():
    """Three cells of argon, of which the second does not converge in five steps."""
    made = [bulk("Ar", "fcc", 5.1 + 0.1 * k, cubic=True) for k in range(3)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1 if k == 1 else 0.001, seed=k)
    return made


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "run.log"


@pytest.fixture(scope="module")
def result(crystals, log, tmp_path_factory) -> AtomsRelaxation:
    folder = tmp_path_factory.mktemp("trajectories")
    return relax(
        crystals,
        LennardJones(**ARGON),
        FIRE(),
        cell=[None, Frechet(), None],
        fmax=0.01,
        max_steps=5,
        history=True,
        log=log,
        trajectory=Trajectories(folder, interval=2),
    )


def test_an_entry_holds_everything_of_one_structure(result):
    entry = result[1]
    assert len(result) == 3 and len(list(result)) == 3
    assert entry.atoms is result.atoms[1] and entry.energy == result.energies[1]
    assert (entry.steps, entry.evaluations) == (5, 6)
    assert str(entry.status) == "max_steps" and entry.source == "1"
    assert result[-1].source == "2"
    with pytest.raises(IndexError):
        result[3]


@pytest.mark.parametrize(
    "which", [slice(0, 3, 2), [0, 2], np.array([True, False, True])], ids=["slice", "list", "mask"]
)
def test_a_selection_is_the_result_of_those_structures(result, which):
    chosen = result[which]
    assert chosen.sources == ["0", "2"] and len(chosen.history) == 2
    assert np.array_equal(chosen.energies, result.energies[[0, 2]])
    assert chosen.to_dict() == {k: x[::2] for k, x in result.to_dict().items()}


def test_counts_are_by_status(result):
    assert result.counts == {"converged": 2, "max_steps": 1}
    assert result.status.tolist() == ["converged", "max_steps", "converged"]
    assert np.array_equal(result.status == "converged", result.converged)


def test_a_summary_names_counts_and_the_first_structures(result):
    text = repr(result)
    assert text.startswith("3 structures: 2 converged, 1 max_steps")
    assert len(text.splitlines()) == 6 and "Ar4" in text
    assert result._repr_html_().count("<tr>") == 4


def test_a_summary_of_few_counts_them_in_english_and_that_of_none_has_no_table(result):
    assert repr(result[:1]).startswith("1 structure: 1 converged in ")
    assert repr(result[:0]) == repr(relax([])) == "0 structures"
    assert repr(result[1].history) == "History(6 points, steps 0 to 5)"


def test_an_entry_is_one_line(result):
    numbers = f"{result.energies[1]:.6g} eV, fmax {result.fmax[1]:.3g} eV/Å"
    assert repr(result[1]) == f"Relaxed(1: Ar4, max_steps, 5 steps, {numbers})"
    failed = dataclasses.replace(result[1], steps=1, message="no SCF")
    assert repr(failed) == f"Relaxed(1: Ar4, max_steps, 1 step, {numbers}: no SCF)"


def test_the_largest_force_of_a_summary_is_the_largest_finite_one(result):
    lost = dataclasses.replace(result[1], fmax=np.inf)
    text = repr(AtomsRelaxation([result[0], lost]))
    assert f"; largest fmax {result.fmax[0]:.3g} eV/Å" in text
    assert "; largest fmax nan eV/Å" in repr(AtomsRelaxation([lost]))


def test_a_failure_has_its_message_in_the_row_of_a_summary(result):
    failed = AtomsRelaxation([result[0], dataclasses.replace(result[1], message="no SCF")])
    assert repr(failed).splitlines()[-1].endswith("no SCF") and "message" not in repr(result)


@pytest.mark.parametrize(
    "given", [lambda x: x, lambda x: x.atoms, list], ids=["result", "atoms", "entries"]
)
def test_a_part_that_is_relaxed_again_keeps_its_sources(result, given):
    part = result[[2, 1]]
    again = relax(given(part), LennardJones(**ARGON), FIRE(), fmax=0.01)
    assert again.sources == ["2", "1"] == again[::-1].sources[::-1]
    streamed = dict(relax_stream(given(part), LennardJones(**ARGON), FIRE(), fmax=0.01))
    assert [streamed[k].source for k in range(2)] == ["2", "1"]
    assert np.array_equal(evaluate(given(part), LennardJones(**ARGON)).energies, part.energies)


def test_one_entry_is_no_list_of_structures(result):
    with pytest.raises(TypeError, match=r"got one entry: pass \[entry\]"):
        relax(result[0], LennardJones(**ARGON), FIRE())


def test_results_are_joined(result):
    both = result[:1] + result[1:]
    assert both.to_dict() == result.to_dict() and both.limit == result.limit
    assert both.compilations == 2 * result.compilations
    assert (result + dataclasses.replace(result, limit=0.1)).limit is None
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = result + result[0]


@pytest.mark.parametrize(
    "settings, limit",
    [({}, 0.05), ({"fmax": [0.1]}, None), ({"convergence": RMSForce(0.1)}, None)],
    ids=["default", "each", "other"],
)
def test_the_limit_is_the_one_of_all(crystals, settings, limit):
    assert relax(crystals[:1], LennardJones(**ARGON), FIRE(), **settings).limit == limit


def test_values_of_info_are_columns_by_name():
    atoms = [Atoms("Ar", info={"label": x}) for x in ("a", "b")] + [Atoms("Ar", info={"gap": 2})]
    atoms[0].info |= {"gap": np.float64(1.5), "tags": np.arange(2)}
    found = relax(atoms, LennardJones(**ARGON), FIRE())
    table = found.to_dict(["label", "gap", "tags"])
    assert list(table)[-3:] == ["label", "gap", "tags"]
    assert table["label"] == ["a", "b", ""] and table["tags"] == ["[0, 1]", "", ""]
    np.testing.assert_array_equal(table["gap"], [1.5, np.nan, 2.0])
    assert found.to_dict("label")["label"] == table["label"]
    assert relax([]).to_dict("label")["label"] == []
    atoms[0].info |= {"list": [np.float64(1), (np.float32(2),)], "map": {"cell": np.eye(2)}}
    found = relax(atoms, LennardJones(**ARGON), FIRE())
    assert found.to_dict("list")["list"][0] == "[1.0, (2.0,)]"
    assert found.to_dict("map")["map"][0] == "{'cell': [[1.0, 0.0], [0.0, 1.0]]}"
    for a, value in zip(atoms, (True, 2**70, "x"), strict=True):
        a.info["mixed"] = value
    atoms[0].info["switch"] = np.True_
    found = relax(atoms, LennardJones(**ARGON), FIRE())
    assert found.to_dict("switch")["switch"] == [True, None, None]
    assert found.to_dict("mixed")["mixed"] == ["True", str(2**70), "x"]
    with pytest.raises(ValueError, match="'labl' in its info, did you mean 'label'"):
        found.to_dict("labl")
    with pytest.raises(ValueError, match="'status' is already a column"):
        found.to_dict(["status"])


def test_history_has_every_step(result, crystals):
    for k, history in enumerate(result.history):
        assert history.steps.tolist() == list(range(result.steps[k] + 1))
        assert history.energies[-1] == result.energies[k]
        assert history.fmax[-1] == result.fmax[k]
        assert (np.diff(history.evaluations) >= 1).all() and history.evaluations[0] == 1
        assert history.evaluations[-1] == result.evaluations[k]
    assert result.history[0].volumes is None
    volumes = result.history[1].volumes
    assert volumes[0] == pytest.approx(crystals[1].cell.volume, rel=1e-6)
    assert volumes[-1] == pytest.approx(result.atoms[1].cell.volume, rel=1e-6)


def test_a_log_has_a_line_a_step_and_structure(result, log):
    title, *lines = log.read_text().splitlines()
    assert title.split() == ["structure", "step", "time", "energy_eV", "fmax_eV_per_A"]
    rows = [(int(n), int(step), float(e)) for n, step, _, e, _ in map(str.split, lines)]
    for k, history in enumerate(result.history):
        of = [(step, energy) for number, step, energy in rows if number == k]
        assert [step for step, _ in of] == history.steps.tolist()
        np.testing.assert_allclose([e for _, e in of], history.energies, rtol=0, atol=1e-6)


def test_a_log_that_cannot_grow_costs_the_run_nothing(tmp_path):
    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    log = Log(io.TextIOWrapper(io.BufferedWriter(Full())), tmp_path)
    log.add([])
    with pytest.warns(NotWhole, match="the log is not whole: No space left"):
        log.close()


def test_a_log_that_goes_on_begins_a_line(tmp_path):
    path = tmp_path / "run.log"
    for left in ("", "a line\n", "a line that a full disk c"):
        path.write_text(left)
        Log.to(path, "a").close()
        *before, title = path.read_text().splitlines()
        assert before == left.splitlines()
        assert title.split()[0] == "structure"


@pytest.mark.parametrize(
    ("meanwhile", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: os.replace(path.with_name("other"), path), "another program"),
    ],
    ids=["removed", "replaced"],
)
def test_a_log_that_is_gone_at_the_end_is_told(tmp_path, meanwhile, message):
    path = tmp_path / "run.log"
    path.with_name("other").write_text("")
    log = Log.to(path)
    meanwhile(path)
    with pytest.warns(NotWhole, match=f"the log is not whole: {message}"):
        log.close()


def test_a_trajectory_beside_a_history_keeps_its_own_interval(crystals, tmp_path):
    relax(
        crystals[1:2],
        LennardJones(**ARGON),
        FIRE(),
        cell=Frechet(),
        max_steps=5,
        fmax=0.01,
        history=True,
        trajectory=Trajectories(tmp_path, interval=2),
    )
    images = read(tmp_path / "0.traj", index=":")
    assert [image.info["step"] for image in images] == [0, 2, 4, 5]


def test_a_table_tells_how_far_atoms_moved_and_when_they_ended(result, crystals):
    table = result.to_dict()
    moved = np.linalg.norm(result.atoms[1].positions - crystals[1].positions, axis=1).max()
    assert table["max_displacement_A"][1] == moved
    assert all(seconds > 0 for seconds in table["seconds"])
    assert np.isnan(table["max_stress_eV_per_A3"][0])
    assert table["max_stress_eV_per_A3"][1] == np.abs(result.atoms[1].get_stress()).max()
    assert table["initial_energy_eV"][1] == result.history[1].energies[0]
    assert table["initial_volume_A3"] == [a.cell.volume if a.pbc.all() else None for a in crystals]


def test_a_report_has_the_result_and_its_curves(result, tmp_path):
    pytest.importorskip("bokeh", reason="a report needs Bokeh")
    result.report(tmp_path / "report.html", title="Three crystals", settings={"fmax": 0.01})
    text = (tmp_path / "report.html").read_text("utf-8")
    with pytest.raises(ValueError, match="info 'number' is already a column of the page"):
        result.report(tmp_path / "other.html", info="number")
    for section in ("status", "convergence", "distributions", "throughput", "structures"):
        assert f'<section id="{section}">' in text
    assert "<title>Three crystals</title>" in text and "history=True" not in text


def test_initial_energies_are_those_of_the_first_step_without_a_history(result, crystals):
    cells = [None, Frechet(), None]
    bare = relax(crystals, LennardJones(**ARGON), FIRE(), cell=cells, fmax=0.01, max_steps=5)
    firsts = [history.energies[0] for history in result.history]
    assert np.array_equal(bare.initial_energies, firsts)
    assert bare.to_dict()["initial_energy_eV"] == firsts
    assert not np.array_equal(bare.initial_energies[1], bare.energies[1])


@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("dtype", ["float32", exhaustive("float64")])
def test_initial_energies_are_of_each_structure_whoever_stood_in_its_place_before(dtype):
    """Energies alone, beside one that is not finite."""
    clusters = [Atoms("Ar2", [[0, 0, 0], [0, 0, 3.5 + 0.02 * k]]) for k in range(13)]
    clusters[4].positions[1] = 0.0
    settings = {"fmax": 1e-3, "dtype": dtype}
    together = relax(clusters, LennardJones(**ARGON), FIRE(), **settings)
    alone = [relax([a], LennardJones(**ARGON), FIRE(), **settings) for a in clusters]
    found = [one.initial_energies[0] for one in alone]
    assert np.array_equal(together.initial_energies, found, equal_nan=True)
    assert np.isfinite(np.delete(found, 4)).all() and not np.isfinite(found[4])
    assert len({*np.delete(found, 4).tolist()}) == 12


def test_initial_energies_of_a_calculator_are_its_own():
    copper = [bulk("Cu", a=a, cubic=True) for a in (3.5, 3.7)]
    energies = []
    for atoms in copper:
        atoms.rattle(0.05, seed=1)
        atoms.calc = ASEEMT()
        energies.append(atoms.get_potential_energy())
    found = relax(copper, max_steps=2)
    assert found.initial_energies.tolist() == energies


def test_later_changes_of_the_input_do_not_change_a_result():
    def made():
        atoms = bulk("Ar", a=5.2, cubic=True)
        atoms.rattle(0.05, seed=1)
        atoms.set_tags([0, 1, 2, 3])
        atoms.set_constraint([FixAtoms([0])])
        atoms.set_array("labels", np.array(["a", "b", "c", "d"]))
        atoms.set_celldisp([[0.1], [0.2], [0.3]])
        atoms.info |= {"name": "first", "relax_status": "max_steps", "relax_image": 3}
        return atoms

    expected = relax([made()], LennardJones(**ARGON), FIRE(), cell=Frechet(), max_steps=2)
    expected.atoms  # noqa: B018  # made before its input could change
    given = made()
    (entry,) = found = relax([given], LennardJones(**ARGON), FIRE(), cell=Frechet(), max_steps=2)
    given.positions += 1.0
    given.numbers[:] = 10
    given.set_tags(7)
    given.arrays["labels"][:] = "z"
    given.cell[:] *= 2.0
    given.pbc = False
    given.set_celldisp([[0.0], [0.0], [0.0]])
    given.info["name"] = "second"
    given.constraints[0].index[:] = 3
    atoms, other = entry.atoms, expected.atoms[0]
    assert atoms is found.atoms[0] is found[:1].atoms[0]
    assert atoms == other and atoms.arrays.keys() == other.arrays.keys()
    assert all(np.array_equal(atoms.arrays[name], x) for name, x in other.arrays.items())
    assert atoms.info == {"name": "first", "relax_source": "0"}
    assert atoms.constraints[0].index.tolist() == [0]
    assert np.array_equal(atoms.get_celldisp(), other.get_celldisp())
    assert np.array_equal(atoms.get_stress(), other.get_stress())
    ours, theirs = found.to_dict(), expected.to_dict()
    assert ours | {"seconds": []} == theirs | {"seconds": []}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Charged(Relaxed):
    """A record with one more field."""

    charge: float = column("charge_e", "e", key="total_charge", is_brief=True, default=0.5)


def test_a_new_field_is_in_every_table_row_and_report(result, tmp_path):
    names = [field.name for field in dataclasses.fields(Relaxed)]
    charged = AtomsRelaxation([Charged(**{n: getattr(e, n) for n in names}) for e in result])
    assert charged.to_dict() == result.to_dict() | {"charge_e": [0.5] * 3}
    assert "charge_e" in repr(charged) and "charge_e" in charged._repr_html_()
    charged.write_table(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text().splitlines()[0].endswith(",charge_e")
    charged.write_table(tmp_path / "table.json")
    assert json.loads((tmp_path / "table.json").read_text())[2]["charge_e"] == 0.5
    kept = Results(SQLiteFile(tmp_path / "results.db"), Charged)
    kept.add(list(enumerate(charged)))
    assert [entry.charge for _, entry in kept.entries()] == [0.5] * 3
    assert all(brief.as_row()["charge_e"] == 0.5 for brief in kept.briefs())
    rows = list(connect(tmp_path / "results.db").select("total_charge=0.5"))
    assert len(rows) == 3
    table = table_of(structures_of([brief.as_row() for brief in kept.briefs()], Charged), [0])
    assert table.rows[0][table.titles.index("charge (e)")] == "0.5"


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "parquet"])
def test_tables_are_read_again_as_they_were_written(result, tmp_path, ending):
    path = tmp_path / f"table.{ending}"
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    name = "half of a character: \udc80.xyz"
    if ending != "parquet":
        entries = [dataclasses.replace(entry, source=name) for entry in result]
        AtomsRelaxation(entries).write_table(path)
        assert "\\udc80" in path.read_text(encoding="utf-8")
    else:
        result.write_table(path)
    with path.open() as file:
        match ending:
            case "csv":
                energies = [float(row["energy_eV"]) for row in csv.DictReader(file)]
            case "json":
                energies = [row["energy_eV"] for row in json.load(file)]
            case "jsonl":
                energies = [json.loads(line)["energy_eV"] for line in file]
            case _:
                from pyarrow import parquet  # pyright: ignore[reportMissingImports]

                energies = parquet.read_table(path)["energy_eV"].to_pylist()
    assert energies == result.energies.tolist()


def test_parquet_has_one_type_for_mixed_numbers_and_any_text(result, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    columns = {"numbers": [2**62 + 1, 2.5], "texts": ["half: \udce4", "é"], "counts": [1, 2]}
    write_rows(tmp_path / "table.parquet", columns)
    table = parquet.read_table(tmp_path / "table.parquet")
    assert table["numbers"].to_pylist() == [float(2**62), 2.5]
    assert table["texts"].to_pylist() == ["half: \\udce4", "é"]
    assert table["counts"].type == pyarrow.int64()


def test_csv_files_hold_no_numbers_of_numpy(result, tmp_path):
    crystal, argon = [bulk("Ar", a=5.3)], LennardJones(**ARGON)
    points = evaluate(crystal, argon, stress=True)
    others = points, vibrations(crystal, argon), elastic(crystal, argon)
    for table in (result, result.compare(result), *others):
        table.write_table(tmp_path / "table.csv")
        text = (tmp_path / "table.csv").read_text()
        assert "np." not in text
        assert text.splitlines()[0].split(",") == list(table.to_dict())


def test_a_table_of_another_ending_is_refused(result, tmp_path):
    with pytest.raises(ValueError, match=r"\.csv, \.json, \.jsonl, \.parquet, not in \.xls"):
        result.write_table(tmp_path / "table.xls")


def test_a_data_frame_has_the_columns_of_the_table(result):
    pytest.importorskip("pandas", reason="to_pandas needs pandas")
    frame = result.to_pandas()
    assert list(frame.columns) == list(result.to_dict()) and len(frame) == 3
    of_molecules = relax([Atoms("Ar")], LennardJones(**ARGON), FIRE()).to_pandas()
    assert of_molecules.select_dtypes(float)["volume_A3"].isna().all()


def test_a_plot_has_a_line_a_structure(result):
    matplotlib = pytest.importorskip("matplotlib", reason="plot needs matplotlib")
    matplotlib.use("agg")
    figure = result.plot()
    above, below = figure.axes
    assert (len(above.lines), len(below.lines)) == (4, 3)
    assert above.lines[-1].get_ydata() == [result.limit] * 2 == [0.01] * 2
    assert result.plot(figure.axes) is figure


def test_a_plot_without_a_history_says_what_to_do(result):
    bare = AtomsRelaxation([dataclasses.replace(entry, history=None) for entry in result])
    with pytest.raises(ValueError, match="history=True"):
        bare.plot()


def test_printing_shows_settings_elements_and_sizes():
    assert repr(BFGS(maxstep=0.1)).startswith("BFGS(") and "alpha=70.0" in repr(BFGS())
    assert repr(EMT("Cu", "Au")) == "EMT(Cu, Au; cutoff 5.877 Å)"
    assert repr(ASECalculator(ASEEMT())) == "ASECalculator(EMT)"
    assert repr(ASECalculator(ASEEMT, workers=2)) == "ASECalculator(EMT, workers=2)"
    assert repr(LennardJones(**ARGON)) == f"LennardJones(any element; cutoff {ARGON['cutoff']:g} Å)"
    assert repr(SystemIndex.from_sizes([3, 4])) == "SystemIndex(2 systems, 7 rows)"
    assert repr(SystemIndex.from_sizes([1])) == "SystemIndex(1 system, 1 row)"
    assert repr(jax.jit(lambda index: index)(SystemIndex.from_sizes([3, 4]))).endswith("7 rows)")


def test_states_and_results_of_the_core_are_one_line():
    index, x = SystemIndex.from_sizes([3, 1]), np.ones((4, 3), np.float32)
    state = chain(FIRE(), MaxStepSize(0.1)).init(x, index)
    assert repr(state) == f"ChainState({index!r}, states=(FIREState, LimitState))"
    assert repr(MaxStepSize(0.1).init(x)) == "LimitState()"
    assert "velocities=f32[4,3], has_velocity=bool[2]" in repr(FIRE().init(x, index))

    def bowl(x):
        return segment.dot(x, x, index), 2 * x

    result = basinax.relax(bowl, x, FIRE(), index_prefix=index, max_steps=0)
    assert repr(result) == (
        "Relaxation(2 systems: 2 max_steps; steps 0, 0 at most; evaluations 2; largest fmax 3.46)"
    )
    assert "status=ShapeDtypeStruct" in repr(jax.eval_shape(lambda: result))


def test_an_evaluation_is_a_line_and_a_table(crystals):
    found = evaluate(crystals * 4, LennardJones(**ARGON))
    assert repr(found).startswith("12 structures\n\nformula  atoms ")
    assert repr(found).endswith("... and 2 more")
    assert repr(evaluate([], LennardJones(**ARGON))) == "0 structures"


def test_texts_name_potentials_and_optimizers(crystals):
    text = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=8.5"
    ours, theirs = (
        relax(crystals, potential, "lbfgs:memory=5", fmax=0.01)
        for potential in (text, LennardJones(**ARGON))
    )
    assert ours.energies.tolist() == theirs.energies.tolist()
    assert evaluate(crystals, text).energies.tolist() == ours.initial_energies.tolist()
    with pytest.raises(ValueError, match="unknown potential 'lbgs'"):
        relax(crystals, "lbgs")


@pytest.mark.parametrize("optimizer", ["L-BFGS", LBFGS()], ids=["text", "object"])
def test_an_optimizer_alone_is_that_of_structures_with_calculators(optimizer):
    copper = bulk("Cu", cubic=True)
    copper.rattle(0.05, seed=1)
    copper.calc = ASEEMT()
    found, expected = relax([copper], optimizer), relax([copper], None, LBFGS())
    assert found.energies[0] == expected.energies[0] and found.steps[0] == expected.steps[0] > 0
    (streamed,) = (entry for _, entry in relax_stream([copper], optimizer))
    assert streamed.energy == found.energies[0]


def test_structures_of_a_subclass_keep_its_attributes():
    octahedron = Octahedron("Cu", 3, 1)
    found = evaluate([octahedron], EMT()).atoms[0]
    assert type(found) is type(octahedron)
    assert np.array_equal(found.surfaces, octahedron.surfaces)
    assert found.surfaces is not octahedron.surfaces
    assert np.array_equal(found.copy().get_layers(), octahedron.get_layers())


class Labelled(Atoms):
    """With an attribute that cannot be copied, and one that is computed once."""

    @functools.cached_property
    def spread(self):
        return np.ptp(self.positions)


def test_what_a_subclass_computed_once_or_cannot_copy_costs_no_result():
    atoms = Labelled("Cu2", [[0, 0, 0], [0, 0, 3.0]])
    atoms.lock = threading.Lock()
    assert atoms.spread == 3.0
    found = relax([atoms], EMT(), FIRE(), fmax=0.05).atoms[0]
    assert found.lock is atoms.lock
    assert found.spread == np.ptp(found.positions) < 2.9
