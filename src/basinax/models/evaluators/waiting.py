"""Sessions in the thread of the run, and code that evaluators share."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from basinax.models.evaluators.protocol import (
    AbstractSession,
    Answer,
    Evaluated,
    EvaluationError,
    Request,
)
from basinax.models.evaluators.worker import text_of
from basinax.numerics.oom import FEWER, half, is_out_of_memory
from basinax.numerics.settings import warn
from basinax.structures.batch import in_parts
from basinax.structures.matrices import VOIGT

LOOK = 0.1
"""Seconds of evaluations before answers are returned."""

ALONE = "this structure alone"

Evaluate = Callable[[list[Request]], list[Answer]]
"""A function from requests to answers; after an exception, fewer requests are tried."""


class WaitingSession(AbstractSession):
    """Requests that wait in this thread until their answers are needed."""

    def __init__(
        self,
        evaluate: Evaluate,
        take: Callable[[list[Request]], list[Request]] = lambda waiting: [waiting.pop(0)],
    ):
        """Args: take: removes the next requests to evaluate from the waiting ones."""
        self._evaluate, self._take = evaluate, take
        self._waiting: list[Request] = []
        self._most_rows = sys.maxsize
        """The most atoms in an evaluation of several structures."""

    def ask(self, requests: Sequence[Request]) -> None:
        self._waiting = sorted([*self._waiting, *requests], key=lambda request: request.rank)

    def answers(self, timeout: float) -> list[Answer]:
        del timeout
        answers, begin = [], time.monotonic()
        while self._waiting and time.monotonic() - begin < LOOK:
            answers += self._answered(self._take(self._waiting))
        return answers

    def _answered(self, requests: list[Request]) -> list[Answer]:
        """The answers to requests, which are evaluated together if that is possible."""
        parts = list(in_parts(requests, rows_of, self._most_rows))
        if len(parts) == 1:
            try:
                return self._evaluate(requests)
            except (Exception, SystemExit) as error:  # a calculator may call `sys.exit`
                if len(requests) == 1:
                    return [(requests[0].number, failure_of(error))]
                is_short = is_out_of_memory(error)
            # Outside of `except`, which would keep the arrays of the failed evaluation in memory.
            if is_short:
                self._most_rows = half(self._most_rows, sum(map(rows_of, requests)))
                warn(FEWER, RuntimeWarning)
            parts = [requests] if is_short else [[request] for request in requests]
        return [answer for part in parts for answer in self._answered(part)]

    def end(self, number: int) -> None:
        self._waiting = [r for r in self._waiting if r.number != number]

    def close(self) -> None:
        self._waiting = []


def rows_of(request: Request) -> int:
    return len(request.positions)


def failure_of(error: BaseException, what: str = ALONE) -> EvaluationError:
    """An error as the answer to a request.

    Args:
        what: what was evaluated at once.
    """
    if isinstance(error, EvaluationError):
        return error
    text = text_of(error)
    return EvaluationError(short_of(text, what) if is_out_of_memory(error) else text)


def short_of(reason: str, what: str = ALONE) -> str:
    """The message where nothing less could be evaluated in memory."""
    return f"memory has run out for {what}: {reason}"


def evaluated_by_model(
    request: Request, energy: float, forces: np.ndarray, stress: Any, **results: Any
) -> Evaluated:
    """The answer of a model.

    Args:
        stress: [3, 3] in eV/Å³; read only if requested.
        results: further results, by ASE's names of properties.
    """
    if not request.needs_stress:
        return Evaluated(energy, forces, None, results)
    return Evaluated(energy, forces, np.array([stress[i, j] for i, j in VOIGT]), results)


def refuse_stress(needs_stress: Sequence[bool], lack: str, remedy: str, first: int = 0) -> None:
    """Raise ValueError if a structure needs its stress, which what evaluates it lacks.

    Args:
        lack, remedy: parts of the message, after "but" and after the colon.
        first: the number of the first structure.
    """
    if any(needs_stress):
        raise ValueError(
            f"system {first + list(needs_stress).index(True)} needs its stress (its cell moves, or"
            f" it is asked for), but {lack}: {remedy}, or keep the cell fixed (cell=None) and leave"
            " out stress=True"
        )
