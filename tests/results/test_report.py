"""The report of a run: one page of HTML, whole whatever a run has ended in."""

import html.parser
import json
import re
import sys

import numpy as np
import pytest

from basinax.atoms import Relaxed
from basinax.results.report.curves import DRAWN, POINTS, SMALLEST, Curve, convergence_of
from basinax.results.report.histograms import BINS, histogram
from basinax.results.report.page import MOST, chosen, write_report
from basinax.results.report.structures import structures_of
from basinax.results.report.tables import SHOWN, Span, counts_of, percent_of, sections_of, table_of

pytest.importorskip("bokeh", reason="a report needs Bokeh")

EVIL = "</script><script>document.title='evil'</script><img src=x onerror=alert(1)>"


def row(number, status="converged", **more):
    return {
        "number": number,
        "source": f"in.extxyz@{number}",
        "formula": "Ar4",
        "atoms": 4,
        "status": status,
        "message": "",
        "steps": 10 + number,
        "evaluations": 11 + number,
        "energy_eV": -4.0 - number / 100,
        "initial_energy_eV": -3.0,
        "fmax_eV_per_A": 0.01,
        "volume_A3": 100.0 + number,
        "initial_volume_A3": 110.0,
        "seconds": 0.5 * (number + 1),
    } | more


def curve(n, scale=1.0):
    steps = np.arange(n)
    return Curve(-4.0 + scale * 0.5**steps, scale * 0.7**steps, steps + 1)


class Page(html.parser.HTMLParser):
    """What a browser would see of a page, without running it."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def ids(self) -> set[str]:
        return {attributes["id"] for tag, attributes in self.tags if tag == "section"}

    @property
    def loaded(self) -> list[str]:
        """What a browser would fetch."""
        names = ("src", "href", "srcset", "data", "poster", "action")
        values = [attributes.get(name) for _, attributes in self.tags for name in names]
        return [value for value in values if value and not value.startswith("data:")]


def page_of(tmp_path, rows, **options) -> Page:
    write_report(tmp_path / "report.html", rows, Relaxed, **options)
    return Page((tmp_path / "report.html").read_text("utf-8"))


ALL = {"status", "convergence", "distributions", "throughput", "structures", "settings"}

CASES = {
    "one": ([row(0)], {0: curve(5)}, ALL),
    "none": ([], {}, {"status", "convergence", "settings"}),
    "no history": ([row(0), row(1)], {}, ALL),
    "all failed": ([row(k, "evaluation_failed") for k in range(3)], {0: curve(0)}, ALL),
    "no cells": (
        [row(k, volume_A3=None, initial_volume_A3=None) for k in range(3)],
        {},
        ALL,
    ),
    "NaN": (
        [row(0), row(1, "not_finite", energy_eV=np.nan, fmax_eV_per_A=np.inf, seconds=np.nan)],
        {0: curve(4), 1: Curve(np.array([1.0, np.nan]), np.full(2, np.inf), np.array([1, 2]))},
        ALL,
    ),
    "nothing known": ([{}, {}], {}, {"status", "convergence", "structures", "settings"}),
    "an atom of its own": ([row(0, atoms=1, fmax_eV_per_A=0.0)],
                           {0: Curve(*np.zeros((2, 1)), np.ones(1, int))}, ALL),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_report_is_whole_whatever_came_out(name, tmp_path):
    rows, curves, sections = CASES[name]
    page = page_of(tmp_path, iter(rows), curves=curves, settings={"fmax": 0.05})
    assert page.ids == sections
    assert page.loaded == []


def test_texts_of_the_user_are_no_html(tmp_path):
    rows = [row(0, source=EVIL, formula=EVIL, message=EVIL), row(1, EVIL, message=EVIL)]
    settings = {EVIL: EVIL, "record": {EVIL: [EVIL, {EVIL: EVIL}]}}
    page = page_of(tmp_path, rows, curves={0: curve(3)}, settings=settings, title=EVIL)
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any("document.title" in word and len(word) < 100 for word in scripts_of(page))
    assert page.loaded == []
    assert EVIL in page.words


def scripts_of(page: Page) -> list[str]:
    return [word for word in page.words if re.match(r"\s*document\.title", word)]


def test_names_that_are_no_text_can_be_written(tmp_path):
    page = page_of(tmp_path, [row(0, source="caf\udce9.xyz")], curves={0: curve(3)})
    assert any("caf\\udce9.xyz" in word for word in page.words)


def test_without_a_history_the_report_says_how_to_have_one(tmp_path):
    assert any("history=True" in word for word in page_of(tmp_path, [row(0)]).words)


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a report is a file in \.html, not in \.pdf"):
        write_report(tmp_path / "report.pdf", [], Relaxed)


def test_without_bokeh_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(ImportError, match=r"pip install bokeh"):
        write_report(tmp_path / "report.html", [], Relaxed)


# --- what is drawn


def test_quantiles_hold_the_last_values_of_those_that_have_ended():
    curves = {0: curve(2), 1: curve(2), 2: curve(4)}
    drawn = convergence_of(curves, {}, [])
    assert drawn is not None and drawn.n_curves == 3
    np.testing.assert_array_equal(drawn.quantiles.evaluations, [1, 2, 3, 4])
    np.testing.assert_allclose(drawn.quantiles.fmax[2], [1, 0.7, 0.7, 0.7], rtol=1e-6)  # float32
    np.testing.assert_allclose(drawn.quantiles.heights[2][-1], SMALLEST, rtol=1e-6)


def test_curves_are_drawn_over_the_evaluations_that_they_name():
    some = Curve(np.array([2.0, 1.0]), np.array([3.0, 1.0]), np.array([1, 4]))
    drawn = convergence_of({7: some}, {7: 2}, [7])
    assert drawn is not None
    np.testing.assert_array_equal(drawn.quantiles.fmax[0], [3, 3, 3, 1])
    np.testing.assert_array_equal(drawn.picked[7].evaluations, [1, 4])
    np.testing.assert_allclose(drawn.picked[7].heights, [0.5, SMALLEST], rtol=1e-6)


def test_long_curves_are_thinned_and_keep_their_ends():
    drawn = convergence_of({0: curve(10_000)}, {}, [0])
    assert drawn is not None
    assert len(drawn.picked[0].fmax) == drawn.quantiles.fmax.shape[1] == DRAWN
    assert drawn.picked[0].evaluations[[0, -1]].tolist() == [1, 10_000]


def test_many_curves_share_their_points():
    n = POINTS // 10
    drawn = convergence_of(dict.fromkeys(range(n), curve(200)), {}, range(n))
    assert drawn is not None
    assert {len(lines.fmax) for lines in drawn.picked.values()} == {10}


@pytest.mark.parametrize(
    "values",
    [[3.0], [1e99, -1e99], [np.inf, 1.0], [0.0, 0.0], [5.0, 5.0 + 1e-12], [1e308, 0.5]],
)
def test_a_histogram_counts_every_finite_value(values):
    found = histogram(np.array(values))
    assert found is not None
    assert found.counts.sum() + found.n_outside == np.isfinite(values).sum()
    assert (np.diff(found.edges) > 0).all()


def test_a_value_far_out_does_not_squeeze_the_others():
    values = np.append(np.random.default_rng(0).normal(size=1000), 1e30)
    found = histogram(values)
    assert found is not None
    assert found.n_outside >= 1
    assert (found.counts > 0).sum() > BINS / 2


@pytest.mark.parametrize("far", [1, 10**6])
def test_one_value_far_out_takes_no_other_along(far):
    steps = [*range(10_000, 10_149), *[10_148] * 60]
    found = histogram(np.array([far, *steps], float))
    assert found is not None
    assert found.n_outside == 1 and found.edges[0] < min(steps) and found.edges[-1] > max(steps)


def test_whole_numbers_lie_in_the_middle_of_bins():
    found = histogram(np.array([3.0, 3.0, 5.0]))
    assert found is not None
    assert found.edges.tolist() == [2.5, 3.5, 4.5, 5.5] and found.counts.tolist() == [2, 0, 1]


# --- tables


def listed(rows):
    structures = structures_of(rows, Relaxed)
    return table_of(structures, chosen(structures))


def column_of(table, title):
    return [line[table.titles.index(title)] for line in table.rows]


def test_a_table_begins_with_those_that_did_not_converge_and_their_reasons():
    table = listed([row(0), row(1, "max_steps"), row(2, "evaluation_failed", message="no SCF")])
    assert column_of(table, "number") == ["2", "1", "0"]
    assert column_of(table, "reason") == ["no SCF", "max_steps reached before it converged", ""]
    assert table.titles.index("reason") < table.titles.index("atoms")
    assert table.choices["status"] == ["converged", "evaluation_failed", "max_steps"]


def test_then_come_those_that_took_most_evaluations():
    table = listed([row(k) for k in range(3)])
    assert column_of(table, "number") == ["2", "1", "0"]
    assert "energy (eV)" in table.titles and "fmax (eV/Å)" in table.titles
    assert "reason" not in table.titles


def test_a_long_table_has_all_structures_and_shows_the_first():
    table = listed(row(k, "stalled") for k in range(SHOWN + 7))
    assert (len(table.rows), len(table.first), table.n_more) == (SHOWN + 7, SHOWN, 0)


def test_of_too_many_structures_those_that_did_not_converge_are_in_the_table():
    n, failed = MOST + 100, {5, MOST + 99}
    table = listed(row(k, "stalled" if k in failed else "converged") for k in range(n))
    numbers = list(map(int, column_of(table, "number")))
    assert (len(set(numbers)), table.n_more) == (MOST, 100)
    assert set(numbers[:2]) == failed and min(numbers) < 100


def test_further_columns_of_rows_are_texts_that_can_be_searched(tmp_path):
    rows = [row(0, label="surface <7>"), row(1, label="bulk")]
    assert column_of(listed(rows), "label") == ["bulk", "surface <7>"]
    page = page_of(tmp_path, rows)
    assert "surface <7>" in page.words
    (searched,) = [json.loads(word) for word in page.words if word.startswith('{"titles"')]
    assert "surface <7>" in searched["rows"][1] and searched["at"].keys() == {"status", "formula"}


def test_structures_are_counted_in_english(tmp_path):
    words = page_of(tmp_path, [row(0, atoms=1)], curves={0: curve(3)}).words
    assert {"structure", "atom", "evaluations"} <= set(words)
    assert any("spread of 1 structure by" in word for word in words)
    assert {"structures", "atoms"} <= set(page_of(tmp_path, [row(0), row(1)]).words)


def test_the_limit_is_a_line_of_the_curves(tmp_path):
    def text(limit):
        write_report(tmp_path / "report.html", [row(0)], Relaxed, curves={0: curve(3)}, limit=limit)
        return (tmp_path / "report.html").read_text("utf-8")

    assert "limit 0.0125" in text(0.0125)
    assert not any(f"limit {limit}" in text(limit) for limit in (None, 0.0))


def test_energies_are_drawn_by_composition_where_there_are_several():
    from basinax.results.report.plots import COMPOSITIONS, by_composition  # imports Bokeh

    plot = by_composition(["Ar", "Ar", "ArKr", "Kr"], np.array([-1.0, -3.0, -2.0, np.nan]))
    assert plot is not None and plot.x_range.factors == ["Ar", "ArKr"]
    lowest, highest = (plot.renderers[0].data_source.data[x] for x in ("lowest", "highest"))
    assert (lowest, highest) == ([-3.0, -2.0], [-1.0, -2.0])
    assert by_composition(["Ar", "Ar"], np.array([-1.0, -3.0])) is None
    names = [f"H{k}O" for k in range(2 * COMPOSITIONS)]
    many = by_composition([*names, "H7O"], np.zeros(len(names) + 1))
    assert many is not None and len(many.x_range.factors) == COMPOSITIONS
    assert "H7O" in many.x_range.factors


def test_compositions_are_reduced_formulas():
    rows = [row(k, formula=x) for k, x in enumerate(["Ar4", "Ar8", "Ar2Kr2", "no formula"])]
    assert structures_of(rows, Relaxed).compositions == ["Ar", "Ar", "ArKr", "no formula"]


def test_runs_and_interruptions_have_a_section(tmp_path):
    runs = [Span("2026-01-01", 3, "2026-01-02", "interrupted"), Span("2026-02-01", 0, "", "ended")]
    page = page_of(tmp_path, [row(0)], runs=runs)
    assert page.ids == ALL - {"settings"} | {"runs"}
    assert {"2026-01-02", "interrupted", "2026-02-01", "ended"} <= set(page.words)


def test_counts_begin_with_those_that_converged_and_keep_unknown_statuses():
    lines = counts_of(structures_of([row(0, "running"), row(1), row(2, "lost"), row(3)], Relaxed))
    assert [(line.status, line.structures) for line in lines] == [
        ("converged", 2),
        ("running", 1),
        ("lost", 1),
    ]
    assert percent_of(np.arange(99_999) > 0) == 99.99 and percent_of(np.ones(3, bool)) == 100


def test_tables_among_settings_are_sections_of_their_own():
    sections = sections_of({"fmax": 0.05, "cell": None, "record": {"versions": {"jax": "1"}}})
    assert sections == [
        ("settings", [("fmax", "0.05"), ("cell", "–")]),
        ("versions", [("jax", "1")]),
    ]


def test_a_report_of_many_structures_stays_small(tmp_path):
    """Beyond the library, which a report of nothing but one structure has too."""
    curves = {k: curve(200) for k in range(600)}
    write_report(tmp_path / "one.html", [row(0)], Relaxed, curves={0: curve(200)})
    write_report(tmp_path / "many.html", (row(k) for k in curves), Relaxed, curves=curves)
    sizes = [(tmp_path / name).stat().st_size for name in ("one.html", "many.html")]
    assert sizes[1] - sizes[0] < 2e6
