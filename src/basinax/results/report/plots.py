"""The plots of a report, by Bokeh, which this file imports."""

import math
from typing import Any, Literal, cast

import numpy as np
from bokeh.models import AutocompleteInput, ColumnDataSource, CustomJS, HoverTool
from bokeh.plotting import figure

from basinax.results.report.curves import Convergence, Drawn
from basinax.results.report.histograms import Histogram, histogram

COLOR, PICKED_COLOR = "#3f51b5", "#d95f02"

HEIGHT = 280
"""Height of a plot, in pixels."""

COMPOSITIONS = 40
"""The largest number of compositions in a plot."""

TOOLS = "pan,box_zoom,wheel_zoom,reset,save"

PICK = """
const k = labels.indexOf(cb_obj.value);
if (k < 0) return;
const data = {};
for (const [name, values] of Object.entries(all.data)) {
  data[name] = Array.from(values.slice(offsets[k], offsets[k + 1]));
}
one.data = data;
"""
"""Shows the lines of the selected structure in a browser."""


def bars(values: np.ndarray, title: str, counted: str) -> Any | None:
    """A histogram; None without a finite value."""
    found = histogram(values)
    return None if found is None else _bars(found, title, counted)


def _bars(found: Histogram, title: str, counted: str) -> Any:
    more = f" ({found.n_outside} farther out)" if found.n_outside else ""
    plot = _figure(title + more, counted)
    edges, counts = found.edges, found.counts
    source = ColumnDataSource({"left": edges[:-1], "right": edges[1:], "count": counts})
    plot.quad(
        left="left",
        right="right",
        top="count",
        bottom=0,
        source=source,
        fill_color=COLOR,
        line_color="white",
    )
    plot.y_range.start = 0
    plot.add_tools(
        HoverTool(
            tooltips=[(title, "@left{0.[000000]} to @right{0.[000000]}"), (counted, "@count")]
        )
    )
    return plot


def ended(seconds: np.ndarray, counted: str) -> tuple[Any, Any] | None:
    """How many have ended by each moment, and how many a second."""
    times = np.sort(seconds[np.isfinite(seconds)])
    if not len(times) or times[-1] <= 0:
        return None
    edges = np.linspace(0.0, times[-1], 61)
    by_then = np.searchsorted(times, edges, side="right")
    total = _figure("seconds since the start", f"{counted} that have ended")
    total.line(edges, by_then, line_width=2, color=COLOR)
    total.y_range.start = 0
    counts, _ = np.histogram(times, edges)
    rate = _bars(
        Histogram(edges, counts / np.diff(edges), 0),
        "seconds since the start",
        f"{counted} a second",
    )
    return total, rate


def by_composition(compositions: list[str], energies: np.ndarray) -> Any | None:
    """The energies per atom of each composition, from lowest to highest with the median.

    None unless several have finite energies; of many, those of most structures.
    """
    of: dict[str, list[float]] = {}
    for composition, energy in zip(compositions, energies.tolist(), strict=True):
        if np.isfinite(energy):
            of.setdefault(composition, []).append(energy)
    if len(of) < 2:
        return None
    names = sorted(sorted(of, key=lambda name: (-len(of[name]), name))[:COMPOSITIONS])
    data = {
        "composition": names,
        "count": [len(of[name]) for name in names],
        "lowest": [min(of[name]) for name in names],
        "median": [float(np.median(of[name])) for name in names],
        "highest": [max(of[name]) for name in names],
    }
    more = f" ({len(of) - len(names)} more have fewer structures)" if len(of) > len(names) else ""
    plot = _figure(f"composition{more}", "energy (eV/atom)", x_range=names)
    source = ColumnDataSource(data)
    ends = {"x0": "composition", "x1": "composition", "y0": "lowest", "y1": "highest"}
    plot.segment(**ends, source=source, line_width=2, color=COLOR)
    plot.scatter("composition", "median", source=source, size=7, color=COLOR)
    plot.scatter("composition", "lowest", source=source, size=9, marker="dash", color=COLOR)
    plot.xaxis.major_label_orientation = 0.8
    tips = [(name, f"@{name}") for name in data]
    plot.add_tools(HoverTool(tooltips=tips, mode="vline"))
    return plot


def converging(
    found: Convergence, labels: dict[int, str], limit: float | None = None
) -> tuple[Any, Any, Any]:
    """Plots of fmax and of energies by evaluation, and a menu that selects a structure in both.

    Args:
        labels: the text for each selectable structure.
        limit: the `fmax` at which structures have converged, drawn as a line.
    """
    drawn = list(found.picked.values())
    first = max(range(len(drawn)), key=lambda k: len(drawn[k].fmax), default=0)
    one, every, offsets = _sources(drawn, first)
    plots = [
        _lines(found.quantiles, name, title, one)
        for name, title in (("fmax", "fmax (eV/Å)"), ("heights", "energy above lowest (eV/atom)"))
    ]
    plots[1].x_range = plots[0].x_range
    if limit is not None and 0 < limit < math.inf:
        x = found.quantiles.evaluations
        legend = f"limit {limit:g}"
        plots[0].line(
            [x[0], x[-1]], [limit] * 2, color="black", line_dash="dashed", legend_label=legend
        )
    texts = [labels[number] for number in found.picked]
    pick = AutocompleteInput(
        name="pick",
        title=f"Pick one of {len(texts)}",
        placeholder="number, file, formula or status",
        completions=cast(Any, texts),
        value=texts[first] if texts else "",
        case_sensitive=False,
        search_strategy="includes",
        min_characters=1,
        max_completions=20,
        sizing_mode="stretch_width",
    )
    arguments = {"one": one, "all": every, "offsets": offsets, "labels": texts}
    pick.js_on_change("value", CustomJS(args=arguments, code=PICK))
    return plots[0], plots[1], pick


def _sources(
    drawn: list[Drawn], shown: int
) -> tuple[ColumnDataSource, ColumnDataSource, list[int]]:
    """The data of the structure that is shown, the joined data of all, and the start of each."""
    names = Drawn._fields
    columns = [np.concatenate([np.zeros(0), *xs]) for xs in zip(*drawn, strict=True)]
    columns = [column.astype(np.float32) for column in columns or [np.zeros(0)] * len(names)]
    offsets = np.cumsum([0, *(len(lines.fmax) for lines in drawn)]).tolist()
    first = drawn[shown] if drawn else Drawn(*(np.zeros(0),) * len(names))
    one = ColumnDataSource(dict(zip(names, (x.tolist() for x in first), strict=True)))
    return one, ColumnDataSource(dict(zip(names, columns, strict=True))), offsets


def _lines(quantiles: Drawn, name: str, title: str, one: ColumnDataSource) -> Any:
    plot = _figure("evaluations", title, y_axis_type="log")
    lines, x = getattr(quantiles, name), quantiles.evaluations
    is_known = np.isfinite(lines).all(axis=0)
    lines, x = lines[:, is_known], x[is_known]
    lowest, low, median, high, highest = lines
    plot.varea(x=x, y1=lowest, y2=highest, fill_alpha=0.12, color=COLOR, legend_label="5 to 95 %")
    plot.varea(x=x, y1=low, y2=high, fill_alpha=0.25, color=COLOR, legend_label="25 to 75 %")
    plot.line(x, median, line_width=2, color=COLOR, legend_label="median")
    picked = plot.line(
        "evaluations",
        name,
        source=one,
        line_width=2,
        color=PICKED_COLOR,
        legend_label="picked",
    )
    tips = [("evaluations", "@evaluations"), (title, f"@{name}")]
    plot.add_tools(HoverTool(tooltips=tips, renderers=[picked], mode="vline"))
    plot.legend.background_fill_alpha = 0.7
    plot.legend.label_text_font_size = "8pt"
    plot.legend.spacing = plot.legend.padding = 2
    return plot


def _figure(
    x: str, y: str, y_axis_type: Literal["auto", "log"] = "auto", x_range: Any = None
) -> Any:
    plot: Any = figure(
        height=HEIGHT,
        sizing_mode="stretch_width",
        tools=TOOLS,
        active_drag=None,  # so that a finger scrolls the page
        x_axis_label=x,
        y_axis_label=y,
        y_axis_type=y_axis_type,
        output_backend="canvas",
        **({} if x_range is None else {"x_range": x_range}),
    )
    if x_range is None:
        plot.xaxis.ticker.desired_num_ticks = 5  # labels may have many digits
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.grid.grid_line_color = "#e8e8ee"
    plot.outline_line_color = None
    return plot
