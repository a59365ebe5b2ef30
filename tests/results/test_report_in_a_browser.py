"""A browser opens a report: it loads nothing, has no error, fits, and shows what is picked."""

import shutil

import numpy as np
import pytest
from test_report import EVIL, curve, row

from basinax.atoms import Relaxed
from basinax.results.report.curves import Curve
from basinax.results.report.page import write_report

pytest.importorskip("bokeh", reason="a report needs Bokeh")
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

SHOWN = """() => {
  const models = Bokeh.documents[0]._all_models.values();
  const lines = [...models].filter((model) => model.type === "ColumnDataSource");
  return lines.map((model) => Array.from(model.data["fmax"] ?? []));
}"""
"""The heights of all lines of plots that have names."""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    rows = [row(0, source=EVIL, message=EVIL), row(1, "max_steps", message=EVIL), row(2)]
    rows.append(row(3, "not_finite", energy_eV=np.nan, fmax_eV_per_A=np.inf, seconds=None))
    curves = {
        0: curve(4),
        1: curve(9, 3.0),
        2: curve(6),
        3: Curve(np.array([1.0, np.nan]), np.array([2.0, np.inf]), np.array([1, 2])),
    }
    write_report(path, rows, Relaxed, curves=curves, settings={EVIL: EVIL}, title=EVIL)
    return path


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip(f"there is no browser: none of {', '.join(PROGRAMS)} is on the PATH")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, report):
    """Opens the report in a window of some width; the page, and what went wrong."""
    pages = []

    def open_at(width: int):
        page, faults = browser.new_page(viewport={"width": width, "height": 900}), []
        pages.append(page)
        page.on("request", lambda request: request.url == url or faults.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
        page.on("console", lambda line: line.type == "error" and faults.append(line.text))
        page.goto(url)
        page.wait_for_selector("canvas")
        page.wait_for_function("Bokeh.documents.length === 1 && Bokeh.documents[0].is_idle")
        return page, faults

    url = report.as_uri()
    yield open_at
    for page in pages:
        page.close()


@pytest.mark.parametrize("width", [400, 900, 1600])
def test_a_report_fits_a_window_and_loads_nothing(opened, width):
    page, faults = opened(width)
    assert faults == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    plots = page.locator("canvas").evaluate_all("all => all.map(x => x.getBoundingClientRect())")
    assert len(plots) >= 8 and all(x["right"] <= width for x in plots)


def test_texts_of_the_user_run_no_program(opened):
    page, faults = opened(900)
    assert faults == []
    assert page.title() == page.locator("h1").inner_text() == EVIL


def is_drawn(page, heights) -> bool:
    return any(np.array_equal(np.float32(line), heights) for line in page.evaluate(SHOWN))


def test_the_structure_that_is_picked_is_drawn(opened):
    page, faults = opened(900)
    heights = np.float32(0.7 ** np.arange(6))
    assert not is_drawn(page, heights)
    page.locator(".pick input").fill("")
    page.locator(".pick input").press_sequentially("2 · in")
    page.keyboard.press("Enter")
    assert is_drawn(page, heights)
    page.locator("#structures td", has_text="max_steps").first.click()
    assert is_drawn(page, np.float32(3.0 * 0.7 ** np.arange(9)))
    assert faults == []


def test_structures_are_searched_and_sorted(opened):
    page, faults = opened(900)
    rows = page.locator("#structures tbody tr")
    assert rows.count() == 4
    page.locator("#structures th", has_text="number").click()
    assert rows.locator("td:first-child").all_inner_texts() == ["0", "1", "2", "3"]
    page.locator("#structures select[name=status]").select_option("max_steps")
    assert rows.locator("td:first-child").all_inner_texts() == ["1"]
    assert page.locator("#structures output").inner_text() == "1 structure"
    page.locator("#structures select[name=status]").select_option("")
    page.locator("#structures input").fill("EXTXYZ@2")
    assert rows.locator("td:first-child").all_inner_texts() == ["2"]
    assert faults == []
