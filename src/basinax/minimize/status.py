"""The outcomes of systems."""

import enum
import operator
from collections.abc import Iterable
from typing import Any


class Status(enum.StrEnum):
    """The outcome of one system of a run: a text, such as "converged".

    The core holds outcomes as int32 on devices, one code per system; `Status(code)` is the outcome
    of a code. `==` compares with texts, and with arrays of texts or of codes.
    """

    RUNNING = enum.auto()
    CONVERGED = enum.auto()
    MAX_STEPS = enum.auto()
    NOT_FINITE = enum.auto()
    LINE_SEARCH_FAILED = enum.auto()
    STALLED = enum.auto()
    EVALUATION_FAILED = enum.auto()

    __array_ufunc__ = None  # NumPy leaves comparisons with arrays to this class

    def __eq__(self, other: Any) -> Any:
        if hasattr(other, "dtype"):
            return other == (self.code if other.dtype.kind in "iu" else self.value)
        return self.value == other

    def __ne__(self, other: Any) -> Any:
        is_same = self == other
        return ~is_same if hasattr(is_same, "dtype") else not is_same

    __hash__ = str.__hash__

    @classmethod
    def _missing_(cls, value: Any) -> "Status | None":
        """The outcome of a code; None for what is no code."""
        try:
            code = operator.index(value)
        except TypeError:
            return None
        return _BY_CODE[code] if 0 <= code < len(_BY_CODE) else None

    @staticmethod
    def of_codes(codes: Iterable[int]) -> "list[Status]":
        """The outcomes of some codes, which are known to be codes."""
        return [_BY_CODE[code] for code in codes]

    @property
    def code(self) -> int:
        """The number on devices."""
        return _CODES[self]

    @property
    def meaning(self) -> str:
        """One sentence for a person."""
        return _MEANINGS[self]


_BY_CODE = tuple(Status)
_CODES = {status: code for code, status in enumerate(_BY_CODE)}

_MEANINGS = {
    Status.RUNNING: "still running: the run was interrupted",
    Status.CONVERGED: "converged: within the tolerances",
    Status.MAX_STEPS: "max_steps reached before it converged",
    Status.NOT_FINITE: "energy or forces became NaN or infinite: atoms or a cell collapsed",
    Status.LINE_SEARCH_FAILED: "no step downhill lowered the energy: is the gradient its own?",
    Status.EVALUATION_FAILED: "its energy and forces could not be computed: see its message",
    Status.STALLED: "steps too small to change the parameters: the tolerances may be out of reach",
}
