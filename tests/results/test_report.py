"""The report of a run: one page of HTML, whole whatever a run has ended in."""

import html.parser
import re
import sys

import numpy as np
import pytest

from basinax.atoms import Relaxed
from basinax.results.report.curves import DRAWN, PICKED, SMALLEST, Curve, convergence_of
from basinax.results.report.histograms import BINS, histogram
from basinax.results.report.page import write_report
from basinax.results.report.structures import structures_of
from basinax.results.report.tables import SHOWN, counts_of, sections_of, slowest, unconverged

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


ALL = {"status", "convergence", "distributions", "throughput", "unconverged", "slowest", "settings"}

CASES = {
    "one": ([row(0)], {0: curve(5)}, ALL - {"unconverged"}),
    "none": ([], {}, {"status", "convergence", "settings"}),
    "no history": ([row(0), row(1)], {}, ALL - {"unconverged"}),
    "all failed": ([row(k, "evaluation_failed") for k in range(3)], {0: curve(0)}, ALL),
    "no cells": (
        [row(k, volume_A3=None, initial_volume_A3=None) for k in range(3)],
        {},
        ALL - {"unconverged"},
    ),
    "NaN": (
        [row(0), row(1, "not_finite", energy_eV=np.nan, fmax_eV_per_A=np.inf, seconds=np.nan)],
        {0: curve(4), 1: Curve(np.array([1.0, np.nan]), np.full(2, np.inf), np.array([1, 2]))},
        ALL,
    ),
    "nothing known": ([{}, {}], {}, {"status", "convergence", "unconverged", "settings"}),
    "an atom of its own": ([row(0, atoms=1, fmax_eV_per_A=0.0)],
                           {0: Curve(*np.zeros((2, 1)), np.ones(1, int))}, ALL - {"unconverged"}),
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


def test_whole_numbers_lie_in_the_middle_of_bins():
    found = histogram(np.array([3.0, 3.0, 5.0]))
    assert found is not None
    assert found.edges.tolist() == [2.5, 3.5, 4.5, 5.5] and found.counts.tolist() == [2, 0, 1]


# --- tables


def test_tables_name_those_that_did_not_converge_with_their_reasons():
    rows = [row(0), row(1, "max_steps"), row(2, "evaluation_failed", message="no SCF")]
    table = unconverged(structures_of(rows, Relaxed))
    reasons = [line[table.titles.index("reason")] for line in table.rows]
    assert reasons == ["max_steps reached before it converged", "no SCF"]


def test_the_slowest_took_most_evaluations():
    table = slowest(structures_of([row(k) for k in range(3)], Relaxed))
    assert [line[0] for line in table.rows] == ["2", "1", "0"]
    assert "energy (eV)" in table.titles and "fmax (eV/Å)" in table.titles


def test_long_tables_say_how_many_rows_are_not_shown():
    table = unconverged(structures_of((row(k, "stalled") for k in range(SHOWN + 7)), Relaxed))
    assert len(table.rows) == SHOWN and table.n_more == 7


def test_counts_begin_with_those_that_converged_and_keep_unknown_statuses():
    lines = counts_of(structures_of([row(0, "running"), row(1), row(2, "lost"), row(3)], Relaxed))
    assert [(line.status, line.structures) for line in lines] == [
        ("converged", 2),
        ("running", 1),
        ("lost", 1),
    ]


def test_tables_among_settings_are_sections_of_their_own():
    sections = sections_of({"fmax": 0.05, "cell": None, "record": {"versions": {"jax": "1"}}})
    assert sections == [
        ("settings", [("fmax", "0.05"), ("cell", "–")]),
        ("versions", [("jax", "1")]),
    ]


def test_a_report_of_many_structures_stays_small(tmp_path):
    """Beyond the library, which a report of nothing but one structure has too."""
    curves = {k: curve(200) for k in range(2 * PICKED)}
    write_report(tmp_path / "one.html", [row(0)], Relaxed, curves={0: curve(200)})
    write_report(tmp_path / "many.html", (row(k) for k in curves), Relaxed, curves=curves)
    sizes = [(tmp_path / name).stat().st_size for name in ("one.html", "many.html")]
    assert sizes[1] - sizes[0] < 2e6
