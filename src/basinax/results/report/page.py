"""Writes the report of a run; see `write_report`."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from basinax.config.files import replacing
from basinax.results.history import History
from basinax.results.report import tables
from basinax.results.report.curves import Convergence, Curve, convergence_of
from basinax.results.report.structures import Row, Structures, structures_of
from basinax.results.report.tables import Span

Curves = Mapping[int, Curve | History]
"""Energies and fmax by evaluation of structures, by number."""

ENDINGS = (".html", ".htm")

MOST = 10_000
"""The largest number of structures in the table, whose curves can be drawn."""

COMPONENTS: list[Any] = ["bokeh", "bokeh-widgets"]
"""The parts of Bokeh's library that the plots of this page need."""


def check_report(path: str | os.PathLike[str]) -> None:
    """Check before a run that a report can be written to a file of this name.

    Raises:
        ValueError: the ending is not .html.
        ImportError: Bokeh is not installed.
    """
    ending = Path(path).suffix
    if ending.lower() not in ENDINGS:
        raise ValueError(f"{path}: a report is a file in .html, not in {ending or 'none'}")
    try:
        import bokeh  # noqa: F401
    except ImportError as error:
        text = f"{path}: a report needs Bokeh: pip install bokeh"
        raise ImportError(text) from error


def write_report(
    path: str | os.PathLike[str],
    rows: Iterable[Row],
    kind: type,
    *,
    curves: Curves | None = None,
    limit: float | None = None,
    runs: Sequence[Span] = (),
    settings: Mapping[str, Any] | None = None,
    title: str = "Relaxation",
) -> None:
    """Write a report about a run, one HTML file that needs no network.

    Plots are histograms and quantiles. A table has all structures, or 10,000 of more, and draws the
    curve of any; the curves have 150,000 points together.

    Args:
        path: an .html file; an existing one is replaced once the new one is complete.
        rows: one mapping per structure or path with the headings of a table, each read once, in
            order. `number` is that in the input, or 0, 1, 2, ... without it. Parts of the page
            whose values are missing are left out.
        kind: the class of records whose columns these are.
        curves: energies and fmax by evaluation of some or all structures, by number. Curves are
            requested one after another, so the mapping may read each on request.
        limit: the `fmax` at which structures have converged, in eV/Å; None for no line.
        runs: the run and those that went on with it.
        settings: plain values by name, and tables of such values, such as the record of a run.
        title: the title of the page.

    Raises:
        ValueError: the ending is not .html.
        ImportError: Bokeh is not installed.
        OSError: the file cannot be written.
    """
    check_report(path)
    text = page_of(structures_of(rows, kind), curves, limit, runs, settings or {}, title)
    with replacing(path) as partial:
        # Names of files may hold bytes that are no valid text.
        partial.write_bytes(text.encode("utf-8", "backslashreplace"))


def page_of(
    structures: Structures,
    curves: Curves | None,
    limit: float | None,
    runs: Sequence[Span],
    settings: Mapping[str, Any],
    title: str,
) -> str:
    """The page as HTML."""
    from bokeh.embed import components
    from bokeh.resources import Resources
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    which = chosen(structures)
    found = _convergence(structures, curves or {}, which)
    plots = _plots(structures) | ({} if found is None else _converging(structures, found, limit))
    table = tables.table_of(structures, which)
    script, divs = components(plots) if plots else ("", {})
    # Escape texts; the output of Bokeh is HTML already.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(
        files("basinax.results.report").joinpath("page.html").read_text("utf-8")
    )
    return template.render(
        title=title,
        facts=_facts(structures),
        noun=structures.noun,
        n_curves=_counted(found.n_curves, structures.noun) if found else "",
        statuses=tables.counts_of(structures),
        plots={name: Markup(div) for name, div in divs.items()},
        runs=runs,
        table=table,
        searched=Markup(_json_of(table._asdict() | {"shown": tables.SHOWN})),
        sections=tables.sections_of(settings),
        library=Markup(Resources(mode="inline", components=COMPONENTS).render()) if plots else "",
        script=Markup(script),
    )


def _facts(structures: Structures) -> list[tuple[str, str]]:
    """The numbers at the top of the page, each with its name."""
    facts = [_named(len(structures), structures.noun)]
    if len(structures):
        facts.append(("converged", f"{tables.percent_of(structures.converged):.4g} %"))
    for name, noun in (("atoms", "atom"), ("evaluations", "evaluation")):
        if structures.has(name):
            facts.append(_named(np.nansum(structures.values[name]), noun))
    if structures.has("seconds"):
        seconds = float(np.nanmax(structures.values["seconds"]))
        facts.append(("to the last end", tables.seconds_text(seconds)))
        if seconds > 0:
            n_ended = int(np.isfinite(structures.values["seconds"]).sum())
            facts.append((f"{structures.noun}s / s", _rate(n_ended / seconds)))
    return facts


def _rate(n: float) -> str:
    return f"{n:,.0f}" if n >= 100 else f"{n:.3g}"


def _named(n: float, noun: str) -> tuple[str, str]:
    return noun if n == 1 else f"{noun}s", f"{n:,.0f}"


def _counted(n: int, noun: str) -> str:
    return " ".join(reversed(_named(n, noun)))


def _json_of(value: Any) -> str:
    """JSON inside a script, which no text in it can end."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _plots(structures: Structures) -> dict[str, Any]:
    from basinax.results.report.plots import bars, by_composition, ended

    nouns = f"{structures.noun}s"
    shown = {
        "evaluations": (structures.values["evaluations"], "evaluations"),
        "energies": (structures.energies_per_atom, "energy (eV/atom)"),
        "energy_changes": (structures.energy_changes, "change of energy (eV/atom)"),
        "volume_changes": (_moved(structures.volume_changes), "change of volume (%)"),
        "barriers": (structures.known("barrier_eV"), "barrier (eV)"),
    }
    plots = {name: bars(values, text, nouns) for name, (values, text) in shown.items()}
    energies = structures.energies_per_atom
    plots["compositions"] = by_composition(structures.compositions, energies)
    throughput = ended(structures.values["seconds"], nouns)
    if throughput is not None:
        plots["ended"], plots["rate"] = throughput
    return {name: plot for name, plot in plots.items() if plot is not None}


def _convergence(
    structures: Structures, curves: Curves, which: Sequence[int]
) -> Convergence | None:
    pairs = zip(structures.numbers, structures.values["atoms"].tolist(), strict=True)
    return convergence_of(curves, dict(pairs), [structures.numbers[k] for k in which])


def _converging(structures: Structures, found: Convergence, limit: float | None) -> dict[str, Any]:
    from basinax.results.report.plots import converging

    places = {number: k for k, number in enumerate(structures.numbers)}
    labels = {number: _label(structures, places[number]) for number in found.picked}
    return dict(zip(("fmax", "heights", "pick"), converging(found, labels, limit), strict=True))


def _moved(changes: np.ndarray) -> np.ndarray:
    """The changes of moved cells; empty if no cell has moved."""
    return changes if np.any(changes[np.isfinite(changes)]) else changes[:0]


def chosen(structures: Structures) -> list[int]:
    """The places of the structures in the table: those that did not converge first, then by
    decreasing evaluations. Of too many, a third of the others is spread over the input."""
    n, evaluations = len(structures), structures.values["evaluations"]
    order = np.argsort(-np.where(np.isfinite(evaluations), evaluations, -1.0), kind="stable")
    order = order[np.argsort(structures.converged[order], kind="stable")].tolist()
    if n <= MOST:
        return order
    spread = set(np.linspace(0, n - 1, MOST // 3).astype(int).tolist())
    first = [k for k in order if k not in spread][: MOST - len(spread)]
    kept = spread.union(first)
    return [k for k in order if k in kept]


def _label(structures: Structures, k: int) -> str:
    texts = [str(structures.numbers[k])]
    texts += [structures.texts[name][k] for name in ("source", "formula", "status")]
    is_own = texts[1] != texts[0]
    return " · ".join(text for text in (texts if is_own else [texts[0], *texts[2:]]) if text)
