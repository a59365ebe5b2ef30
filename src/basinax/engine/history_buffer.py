"""The histories of the structures of a batch, in one array row per slot.

The stored steps depend only on a structure's own number of steps.
"""

from collections.abc import Mapping

import numpy as np

from basinax.results.history import History

ROOM = 64
"""The initial number of points per slot."""


class HistoryBuffer:
    """A few numbers of the steps of the structures in a batch.

    A history that grows too long drops every second step, repeatedly: steps 0, n, 2n, ... remain,
    with n a power of two, and the last step.
    """

    def __init__(self, n_slots: int, most: int):
        """Args: most: the largest number of points of a structure, at least two."""
        self._most = most - 1  # the last step takes one more
        self._counts = np.zeros(n_slots, int)
        self._strides = np.ones(n_slots, int)
        self._kept: dict[str, np.ndarray] = {}
        self._last: dict[str, np.ndarray] = {}

    def begin(self, which: np.ndarray) -> None:
        """Start the histories of new structures in these slots."""
        self._counts[which] = 0
        self._strides[which] = 1

    def take(self, slots: np.ndarray) -> None:
        """Let each slot have the history that the slot of this number has."""
        self._counts, self._strides = self._counts[slots], self._strides[slots]
        self._kept = {name: values[slots] for name, values in self._kept.items()}
        self._last = {name: values[slots] for name, values in self._last.items()}

    def add(self, found: Mapping[str, np.ndarray]) -> None:
        """Add `steps`, `energies` and others, [turns, slots]; `steps` are -1 if there was none."""
        is_judged = found["steps"] >= 0
        is_due = is_judged & (found["steps"] % self._strides == 0)
        counts = self._counts + np.cumsum(is_due, axis=0)
        self._make_room(found, int(counts[-1].max(initial=0)))
        turns, slots = np.nonzero(is_due)
        at = counts[turns, slots] - 1
        is_known, latest = is_judged.any(axis=0), _latest(is_judged)
        for name, values in found.items():
            self._kept[name][slots, at] = values[turns, slots]
            newest = np.take_along_axis(values, latest[None], axis=0)[0]
            self._last[name] = np.where(is_known, newest, self._last[name])
        self._counts = counts[-1]
        while (is_long := self._counts > self._most).any():
            self._thin(is_long)

    def of(self, slot: int) -> History:
        """The history of the structure in a slot."""
        n = int(self._counts[slot])
        if not n:
            return History.empty()
        kept = {name: values[slot, :n] for name, values in self._kept.items()}
        if kept["steps"][-1] != self._last["steps"][slot]:
            kept = {name: np.append(x, self._last[name][slot]) for name, x in kept.items()}
        return History(
            np.array(kept["steps"], np.int32),
            np.array(kept["energies"], float),
            np.array(kept["fmax"], float),
            np.array(kept["volumes"], float) if "volumes" in kept else None,
            np.array(kept["evaluations"], np.int32),
        )

    def _make_room(self, found: Mapping[str, np.ndarray], most: int) -> None:
        for name, values in found.items():
            shape = len(self._counts), self._kept[name].shape[1] if name in self._kept else 0
            if name in self._kept and shape[1] >= most:
                continue
            room = max(ROOM, 2 * shape[1], most)
            larger = np.zeros((shape[0], room), values.dtype)
            if name in self._kept:
                larger[:, : shape[1]] = self._kept[name]
            self._kept[name] = larger
            self._last.setdefault(name, np.zeros(shape[0], values.dtype))

    def _thin(self, which: np.ndarray) -> None:
        """Drop every second point in these slots."""
        for values in self._kept.values():
            halves = values[which, ::2]
            values[which, : halves.shape[1]] = halves
        self._counts[which] = (self._counts[which] + 1) // 2
        self._strides[which] *= 2


def _latest(is_judged: np.ndarray) -> np.ndarray:
    """The last turn in which each slot was judged; meaningless for slots that never were."""
    return len(is_judged) - 1 - np.argmax(is_judged[::-1], axis=0)
