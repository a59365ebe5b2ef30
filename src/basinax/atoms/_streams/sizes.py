"""How large batches are: as speed wants, and no larger than memory allows."""

import logging
import warnings
from typing import NamedTuple

import jax
import numpy as np

from basinax._bits.rounding import BLOCK
from basinax._jax.memory import memory_of
from basinax._systems.index import index_of_sizes
from basinax.atoms._streams.device import Device
from basinax.atoms._streams.places import Group

_LOG = logging.getLogger("basinax")

SHARE = 0.5
"""The part of the memory that batches may take: estimates are rough, and others need some."""

COPIES = 4
"""Copies of a state in memory while a program runs: before, after, and in between."""

OTHER_VALUES = 128
"""Numbers of a row besides those of its pairs and of its state: 1000 bytes in double precision."""

MOST_VALUES = 6000
"""Numbers of a row in a state without dense matrices, at most: L-BFGS with a hundred pairs has 1200
and its copies."""


class Cost(NamedTuple):
    """Bytes that a batch takes on its device."""

    row: float
    system: float

    def of(self, shape: tuple[int, int]) -> float:
        return self.row * shape[0] + self.system * shape[1]


def memory_of_batch(lanes: list[Device]) -> float:
    """Bytes that a batch may take where so many threads have one each."""
    devices = {device if device is not None else jax.local_devices()[0] for device in lanes}
    are_of_host = all(device.platform == "cpu" for device in devices)
    n_sharing = len(lanes) if are_of_host else len(lanes) // len(devices)
    return SHARE * min(memory_of(device) for device in devices) / n_sharing


def within_memory(group: Group, of_pairs: int, memory: float) -> Group:
    """The group, with batches that are halved until they fit; those of one structure stay.

    Args:
        of_pairs: numbers of a row for its pairs in reach.
        memory: bytes that a batch may take.
    """
    if _most(group, of_pairs).of(group.shape) <= memory:
        return group
    cost = cost_of(group, of_pairs)
    while cost.of(group.shape) > memory and (smaller := group.halved()).shape != group.shape:
        group = smaller
    return group


def _most(group: Group, of_pairs: int) -> Cost:
    """No batch takes more, whatever the optimizer: its state need not be looked at."""
    size = np.dtype(group.dtype).itemsize
    row = of_pairs + OTHER_VALUES + MOST_VALUES
    return Cost(size * row, size * 2 * COPIES * (3.0 * group.most_rows) ** 2)


def cost_of(group: Group, of_pairs: int) -> Cost:
    """From the pairs of a row, and the optimizer's state of a row and of a system."""
    n_rows = -(-group.most_rows // BLOCK) * BLOCK
    one, two = (_bytes_of_state(group, n_rows, n) for n in (1, 2))
    system = two - one
    values = of_pairs + OTHER_VALUES
    row = np.dtype(group.dtype).itemsize * values + COPIES * (one - system) / n_rows
    return Cost(row, COPIES * system)


def _bytes_of_state(group: Group, n_rows: int, n_systems: int) -> int:
    """Bytes for the largest structure and `n_systems - 1` systems without rows."""
    sizes = [group.most_rows] + [0] * (n_systems - 1)
    index = index_of_sizes(sizes, align=BLOCK, n_rows=n_rows, most_rows=group.most_rows)
    params = jax.ShapeDtypeStruct((n_rows, 3), group.dtype)
    settings = group.settings.of(np.zeros(n_systems, int), len(group.structures))
    state = jax.eval_shape(lambda x: settings.optimizer.init(x, index), params)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def smaller(group: Group, members: list[int], error: BaseException) -> Group:
    """The group with batches half as large, after one has run out of memory.

    Its structures wait again: they go on from their input, and so with the same bits.

    Args:
        members: the structures of the batch.

    Raises:
        MemoryError: batches cannot be smaller.
    """
    less = group.halved()
    if less.shape == group.shape:
        raise MemoryError(
            f"memory has run out, and batches cannot be smaller: {len(members)} structures"
            f" in {group.shape[0]} rows, the largest of {group.most_rows} atoms"
        ) from error
    group.queue.put_back(members)
    return less


def tell_of_smaller(group: Group, less: Group, n_members: int) -> None:
    """Says in a warning that batches are smaller from now on."""
    text = (
        f"memory has run out: {n_members} structures begin again, in batches of"
        f" {less.shape[0]} rows instead of {group.shape[0]}"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=3)
    _LOG.info("%s", text)
