"""The outcomes of systems."""

import enum


class Status(enum.IntEnum):
    """The outcome of one system of a run. Results hold outcomes as int32, one per system.

    Compare arrays on a device with `value`: outside jit under strict dtype promotion, JAX treats a
    member as a 64-bit integer.
    """

    RUNNING = 0
    CONVERGED = 1
    MAX_STEPS = 2
    NOT_FINITE = 3
    LINE_SEARCH_FAILED = 4
    STALLED = 5
    EVALUATION_FAILED = 6

    def __str__(self) -> str:
        return self.name.lower()

    @property
    def meaning(self) -> str:
        """One sentence for a person."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.RUNNING: "still running: the run was interrupted",
    Status.CONVERGED: "converged: within the tolerances",
    Status.MAX_STEPS: "max_steps reached before it converged",
    Status.NOT_FINITE: "energy or forces became NaN or infinite: atoms or a cell collapsed",
    Status.LINE_SEARCH_FAILED: "no step downhill lowered the energy: is the gradient its own?",
    Status.EVALUATION_FAILED: "its energy and forces could not be computed: see its message",
    Status.STALLED: "steps too small to change the parameters: the tolerances may be out of reach",
}
