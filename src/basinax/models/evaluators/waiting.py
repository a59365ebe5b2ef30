"""Sessions in the thread of the run, and code that evaluators share."""

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
from basinax.structures.matrices import VOIGT

LOOK = 0.1
"""Seconds of evaluations before answers are returned."""


Evaluate = Callable[[list[Request]], list[Answer]]
"""A function from requests to answers; an exception answers all of them."""


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

    def ask(self, requests: Sequence[Request]) -> None:
        self._waiting += requests

    def answers(self, timeout: float) -> list[Answer]:
        del timeout
        answers, begin = [], time.monotonic()
        while self._waiting and time.monotonic() - begin < LOOK:
            requests = self._take(self._waiting)
            try:
                answers += self._evaluate(requests)
            except Exception as error:
                answers += [(request.number, failure_of(error)) for request in requests]
        return answers

    def end(self, number: int) -> None:
        self._waiting = [r for r in self._waiting if r.number != number]

    def close(self) -> None:
        self._waiting = []


def failure_of(error: BaseException) -> EvaluationError:
    """An error as the answer to a request."""
    return error if isinstance(error, EvaluationError) else EvaluationError(text_of(error))


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


def check_moving(needs_stress: Sequence[bool], lack: str, first: int = 0) -> None:
    """Raise ValueError if a cell moves although stresses are missing.

    Args:
        lack: the end of the message, from "but" on.
        first: the number of the first structure.
    """
    if any(needs_stress):
        raise ValueError(
            f"the cell of system {first + list(needs_stress).index(True)} moves, {lack}"
        )
