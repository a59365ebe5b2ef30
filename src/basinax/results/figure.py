"""Curves of convergence by matplotlib."""

import math
from collections.abc import Mapping
from typing import Any

from basinax.results.report.curves import Convergence

MOST = 50
"""The number of structures above which only the median and the spread are drawn."""

COLORS = ("#3f51b5", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e")


def drawn(
    groups: Mapping[str, Convergence | None], limit: float | None = None, axes: Any = None
) -> Any:
    """Draw fmax and energy by evaluation, each group in a color of its own.

    Lines are structures, or of many the median with the central half and nine tenths.

    Args:
        groups: the curves by name; an empty name stands in no legend.
        limit: the `fmax` at which structures have converged, drawn as a line; None for no line.
        axes: two axes of matplotlib; None for new ones, one above the other.

    Returns:
        The figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if axes is None:
        try:
            from matplotlib import pyplot  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("plot needs matplotlib: run pip install matplotlib") from error
        _, axes = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6), layout="constrained")
    above, below = axes
    for k, (name, found) in enumerate(groups.items()):
        for ax, values in ((above, "fmax"), (below, "heights")):
            if found is not None:
                _draw(ax, found, values, COLORS[k % len(COLORS)], name)
    if limit is not None and 0 < limit < math.inf:
        above.axhline(limit, color="black", linestyle="--", linewidth=1, label="limit")
    above.set(ylabel="fmax (eV/Å)", yscale="log")
    below.set(xlabel="evaluations", ylabel="energy above lowest (eV/atom)", yscale="log")
    if above.get_legend_handles_labels()[0]:
        above.legend(fontsize="small")
    return above.figure


def _draw(ax: Any, found: Convergence, values: str, color: str, name: str) -> None:
    if found.n_curves <= MOST:
        for lines in found.picked.values():
            ax.plot(lines.evaluations, getattr(lines, values), color=color, linewidth=1, alpha=0.7)
        if found.picked and name:
            ax.lines[-1].set_label(name)
        return
    x, lines = found.quantiles.evaluations, getattr(found.quantiles, values)
    lowest, low, median, high, highest = lines
    ax.fill_between(x, lowest, highest, color=color, alpha=0.12, linewidth=0)
    ax.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0)
    ax.plot(x, median, color=color, linewidth=2, label=name or None)
