"""Constants of speed, one set for each kind of machine.

No bit of a result depends on them, but for `model_pairs`, by which a model's programs differ.
"""

import dataclasses
from typing import Any

from basinax.numerics.programs import READ
from basinax.numerics.switches import default_platform


@dataclasses.dataclass
class Machine:
    """Constants that suit one kind of machine; tests set others."""

    has_batch_per_core: bool
    """Run as many batches at a time as there are cores, since a program keeps one core busy."""

    # --- rows of a batch
    max_rows: int
    """The rows of a batch of similar structures; others get half as many, since folds go through a
    batch in chunks and gain if each chunk ends with its own lists."""
    alike: float
    """Structures are similar if their atoms have up to this factor times the fewest neighbours."""
    min_rows: int
    """Batches of fewer rows are not split for more cores."""
    few_rows: int
    """The smallest number of rows of a batch."""
    mixed: int
    """The number of places, relative to the number of largest structures that would fit."""
    point_rows: int
    """Rows of a batch of single points, unless a structure has more."""
    few_point_rows: int
    """Smaller batches of single points are padded to this number, for few shapes."""

    # --- programs
    short_rows: int
    """Up to this total number of rows, evaluations take a second or two and compiling several, so
    the options `SHORT` pay."""
    worth_compiling: int
    """Pair slots per turn that a separate group must save to be worth a program of its own."""

    # --- models
    model_pairs: int
    """Pairs in one evaluation of a model, about: structures of one shape are evaluated side by
    side. With 0, each structure is evaluated by itself."""
    model_threads: int
    """Threads that evaluate a model on one device. With 0, as many as there are cores."""

    # --- host syncs
    turns: int
    """Turns of the loop between two host syncs."""
    periods: int
    """For expensive pairs: selections of near pairs between two host syncs. Ended systems have no
    near pairs and cost nothing, so host syncs may be rarer."""
    period: int
    """Turns between two selections of near pairs."""
    worth_refilling: int
    """Fill free places once one place in this number is free."""
    worth_closing_up: float
    """The running structures of a batch close up, and others begin behind them, once they fill at
    most this part of the rows to fill. All lists are made anew."""
    worth_packing: float
    """Pack the rows of running systems once they are at most this part of the packed rows."""

    # --- neighbour lists
    candidates: int
    """The device makes the lists of small systems, and tries about this many pairs of atoms at a
    time. With 0, the host makes all lists."""

    # --- folds over neighbours
    chunk: int
    """The smallest number of rows that a fold processes together."""
    chunks: int
    """The largest number of chunks of a batch. With 0, folds go through all rows and slots."""
    wide: int
    """Chunks that are joined if each turn of a loop is expensive."""
    stretch: int
    """Images are made in stretches of this length, and only stretches that folds read. With 0, all
    are made at once, in one kernel."""
    unroll: int
    """Slots per turn, if each coordinate is an array of its own."""
    unroll_one: int
    """Slots per turn, if coordinates are one array. With 0, they never are."""


CPU = Machine(
    has_batch_per_core=True,
    max_rows=4096,  # positions, lists and state of more rows exceed the caches of a core
    alike=1.25,
    min_rows=256,
    few_rows=512,
    mixed=4,
    point_rows=4096,
    few_point_rows=64,
    short_rows=8192,
    worth_compiling=4_000_000,
    model_pairs=0,  # a core is busy with one
    model_threads=0,
    turns=12,
    periods=8,
    period=3,
    worth_refilling=8,
    worth_closing_up=0.5,
    worth_packing=0.75,
    candidates=0,  # the host takes a tenth of the time
    chunk=128,
    chunks=16,
    wide=4,
    stretch=2048,
    unroll=2,
    unroll_one=1,
)
"""Measured on two cores of an x86-64 server, see docs/notebook.md."""

GPU = Machine(
    has_batch_per_core=False,
    max_rows=1 << 18,  # the GPU runs a hundred thousand threads at a time
    alike=1.25,
    min_rows=1 << 18,
    few_rows=4096,
    mixed=4,
    point_rows=1 << 18,
    few_point_rows=4096,
    short_rows=0,  # the options for short programs are options of the CPU
    worth_compiling=400_000_000,  # a GPU processes a hundred times as many pairs a second
    model_pairs=16384,  # nine crystals of 80 atoms then take as long as one by itself
    model_threads=2,  # the host works for one while the device works for the other
    turns=24,  # a host sync takes as long as several turns
    periods=8,
    period=6,
    worth_refilling=8,
    worth_closing_up=0.5,
    worth_packing=0.5,
    candidates=0,  # 1 << 24, four times as fast, once beyond doubt: see docs/notebook.md
    chunk=0,
    chunks=0,  # a loop of unknown length needs the host at each turn: 30 µs
    wide=0,
    stretch=0,
    unroll=8,  # every turn starts a kernel
    unroll_one=0,  # energies and forces would take a kernel each
)
"""Chunks, turns and slots per turn measured on an NVIDIA H100, see docs/notebook.md; sizes of
batches by reasoning."""


def machine(device: Any = None) -> Machine:
    """The constants for a device, or for this thread's default device."""
    return CPU if (default_platform() if device is None else device.platform) == "cpu" else GPU


READ.append(machine)
