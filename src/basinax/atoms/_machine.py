"""Constants of speed, one set for each kind of machine. No bit of a result depends on them."""

import dataclasses

import jax


@dataclasses.dataclass
class Machine:
    """What serves a kind of machine well; tests set other numbers."""

    has_batch_per_core: bool
    """A program keeps one core busy, so there are as many batches at a time as cores."""

    # --- rows of a batch
    max_rows: int
    """About, where structures are alike, and half as many where not: then it is worth more that
    folds, which go through chunks of a batch, end with the lists of each."""
    alike: float
    """Structures are, whose atoms have up to so many times the fewest neighbours."""
    min_rows: int
    """Fewer rows are not cut into batches for more cores."""
    few_rows: int
    """No batch has fewer rows."""
    mixed: int
    """There are places for so many times the structures that would fit if all were the largest."""
    point_rows: int
    """Of a batch of single points, if no structure has more."""
    few_point_rows: int
    """Smaller batches of single points are filled up, so that there are few shapes."""

    # --- programs
    short_rows: int
    """Of structures that have so many rows in all the evaluations take a second or two, the program
    several to compile."""
    worth_compiling: int
    """Pair slots a turn that a batch of its own must save to be worth a program of its own."""

    # --- looks of the host
    turns: int
    """Turns of the loop between two looks of the host at what has ended or waits."""
    periods: int
    """Where pairs are dear: so many periods between two looks, each with the pairs that are near
    then. What has ended has none, so the host may look less often."""
    period: int
    """Turns of a period."""
    worth_refilling: int
    """Places are filled once one in so many is free."""
    worth_packing: float
    """Rows of what still runs are put together once they are no more than this part of those that
    stand together."""

    # --- folds over neighbours
    chunk: int
    """Rows that a fold goes through together, at least."""
    chunks: int
    """The most chunks of a batch. With 0, folds go through all rows and slots, whether there is
    anything to add or not."""
    wide: int
    """So many chunks, or all if they are fewer, are one where each turn of a loop is dear."""
    stretch: int
    """Of the images that folds go through, so many that stand together are made at a time."""
    unroll: int
    """Slots of a turn, where coordinates are arrays of their own."""


CPU = Machine(
    has_batch_per_core=True,
    max_rows=4096,  # positions, lists and state of more leave the caches of a core
    alike=1.25,
    min_rows=256,
    few_rows=512,
    mixed=4,
    point_rows=4096,
    few_point_rows=64,
    short_rows=8192,
    worth_compiling=4_000_000,
    turns=12,
    periods=8,
    period=3,
    worth_refilling=8,
    worth_packing=0.75,
    chunk=128,
    chunks=16,
    wide=4,
    stretch=2048,
    unroll=2,
)
"""Measured on two cores of an x86-64 server, see docs/notebook.md."""

GPU = Machine(
    has_batch_per_core=False,
    max_rows=1 << 18,  # a hundred thousand threads are in flight
    alike=1.25,
    min_rows=1 << 18,
    few_rows=4096,
    mixed=4,
    point_rows=1 << 18,
    few_point_rows=4096,
    short_rows=0,  # the options for short programs are those of the CPU
    worth_compiling=400_000_000,  # a hundred times as many pairs a second
    turns=24,  # a look takes as long as several turns
    periods=8,
    period=6,
    worth_refilling=8,
    worth_packing=0.5,
    chunk=0,
    chunks=0,  # of a loop whose length is not known before, the host starts each turn: 30 µs
    wide=0,
    stretch=0,
    unroll=8,  # every turn starts a kernel
)
"""Chunks, turns and slots of a turn as an NVIDIA H100 wants them, see docs/notebook.md; sizes of
batches by reasoning."""


def machine() -> Machine:
    """The one at hand."""
    return CPU if jax.default_backend() == "cpu" else GPU
