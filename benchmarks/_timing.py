"""Timing for the benchmarks: contenders in turn, medians, ratios, and a line of JSON.

Machines are shared: a ratio of two medians of the same process means more than either time.
"""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

RESULTS = Path(__file__).parent / "results"
FEWEST, LONGEST = 5, 8.0
"""Turns of what takes long, and seconds after which no more begin."""


def medians(
    contenders: dict[str, Callable[[], Any]], rounds: int = 40, seconds: float = 1.0
) -> dict[str, float]:
    """Median seconds of each contender; they take turns, after one call each to compile.

    At least so many turns, and for at least so many seconds: what takes microseconds does so in two
    or three lengths, by whether a thread was still awake. What takes long has turns for `LONGEST`
    seconds, and five at least.
    """
    for call in contenders.values():
        jax.block_until_ready(call())
    times: dict[str, list[float]] = {name: [] for name in contenders}
    start, passed, turns = time.perf_counter(), 0.0, 0
    while turns < FEWEST or passed < seconds or (turns < rounds and passed < LONGEST):
        for name, call in contenders.items():
            begin = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - begin)
        turns, passed = turns + 1, time.perf_counter() - start
    return {name: statistics.median(values) for name, values in times.items()}


def environment() -> dict[str, Any]:
    """What a figure depends on."""
    return {
        "jax": jax.__version__,
        "device": str(jax.devices()[0].device_kind),
        "platform": jax.default_backend(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table and append them, with the environment, to results/NAME.jsonl."""
    columns = list(rows[0])
    cells = [[_shown(row[column]) for column in columns] for row in rows]
    widths = [max(len(x) for x in column) for column in zip(columns, *cells, strict=True)]
    for line in [columns, ["-" * width for width in widths], *cells]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        for row in rows:
            file.write(json.dumps(row | environment()) + "\n")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} numbers"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
