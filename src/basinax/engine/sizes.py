"""Sizes of batches: as large as is fast, but within memory."""

import logging
from typing import NamedTuple

import jax
import numpy as np

from basinax.engine.device import Device
from basinax.engine.slots import Group
from basinax.numerics.memory import memory_of
from basinax.numerics.rounding import BLOCK
from basinax.numerics.settings import warn
from basinax.systems.index import index_of_sizes

_LOG = logging.getLogger("basinax")

SHARE = 0.5
"""The share of memory for batches: estimates are rough, and other programs need memory too."""

COPIES = 4
"""Copies of a state in memory while a program runs: input, output and intermediate values."""

OTHER_VALUES = 128
"""Numbers per row besides pairs and state: 1000 bytes in double precision."""

MOST_VALUES = 6000
"""The most numbers per row in a state without dense matrices: 1200 and copies for L-BFGS with a
hundred pairs."""


class Cost(NamedTuple):
    """Bytes of a batch on its device."""

    row: float
    system: float

    def of(self, shape: tuple[int, int]) -> float:
        return self.row * shape[0] + self.system * shape[1]


def memory_of_batch(lanes: list[Device]) -> float:
    """Bytes for one batch, if each of these threads has one."""
    devices = {device if device is not None else jax.local_devices()[0] for device in lanes}
    are_of_host = all(device.platform == "cpu" for device in devices)
    n_sharing = len(lanes) if are_of_host else len(lanes) // len(devices)
    return SHARE * min(memory_of(device) for device in devices) / n_sharing


def within_memory(group: Group, of_pairs: int, memory: float) -> Group:
    """The group with batches halved until they fit; batches of one structure remain.

    Args:
        of_pairs: the numbers per row for its pairs within reach.
        memory: bytes per batch.
    """
    if _most(group, of_pairs).of(group.shape) <= memory:
        return group
    cost = cost_of(group, of_pairs)
    while cost.of(group.shape) > memory and (smaller := group.halved()).shape != group.shape:
        group = smaller
    return group


def _most(group: Group, of_pairs: int) -> Cost:
    """An upper bound of the cost for any optimizer, which avoids making a state."""
    size = np.dtype(group.dtype).itemsize
    row = of_pairs + OTHER_VALUES + MOST_VALUES
    return Cost(size * row, size * 2 * COPIES * (3.0 * group.most_rows) ** 2)


def cost_of(group: Group, of_pairs: int) -> Cost:
    """The cost, from the pairs per row and the optimizer's state per row and per system."""
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
    optimizer = group.settings.optimizer
    optimizer = jax.tree.map(lambda x: np.full(n_systems, x[0]) if np.ndim(x) else x, optimizer)
    state = jax.eval_shape(lambda x: optimizer.init(x, index), params)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def smaller(group: Group, n_structures: int, error: BaseException) -> Group:
    """The group with batches half as large, after one of so many structures ran out of memory.

    Raises:
        MemoryError: batches cannot be smaller.
    """
    less = group.halved()
    if less.shape == group.shape:
        raise MemoryError(
            f"memory has run out, and batches cannot be smaller: {n_structures} structures"
            f" in {group.shape[0]} rows, the largest of {group.most_rows} atoms"
        ) from error
    return less


def tell_of_smaller(group: Group, less: Group, n_structures: int) -> None:
    """Warn that batches are smaller from now on."""
    text = (
        f"memory has run out: {n_structures} structures begin again, in batches of"
        f" {less.shape[0]} rows instead of {group.shape[0]}"
    )
    warn(text, RuntimeWarning)
    _LOG.info("%s", text)
