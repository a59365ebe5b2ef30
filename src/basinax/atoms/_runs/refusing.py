"""Windows of structures of which some cannot be relaxed: these end with the reason."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ase import Atoms

from basinax._loop.status import Status
from basinax.atoms._result import Relaxed
from basinax.atoms._table import volume_of
from basinax.atoms._windows import OnEnd

T = TypeVar("T")

REFUSING = (TypeError, ValueError, NotImplementedError)
"""What `relax` raises where a structure or an argument is not usable."""

_OF_A_STRUCTURE = re.compile(r"\bsystem \d+\b|\bsystems \(")
"""Errors that name a structure are its own; others are those of the call."""


def refused(atoms: Atoms, source: str, reason: str) -> Relaxed:
    """The entry of a structure that cannot be relaxed."""
    nan, status = float("nan"), Status.EVALUATION_FAILED
    numbers = nan, nan, nan, volume_of(atoms)
    return Relaxed(atoms, nan, float("inf"), 0, 0, status, source, reason, *numbers)


def relax_usable(
    relax_some: Callable[..., Any],
    window: Sequence[T],
    refuse: Callable[[int, str], Relaxed],
    on_end: OnEnd,
    should_stop: Callable[[], bool],
) -> None:
    """Relax the structures of a window that can be relaxed, and end the others.

    Args:
        relax_some: relaxes some of the window, with `on_end` and `should_stop` as of `relax`.
        refuse: the entry of one that cannot be relaxed, by its place and the reason.
        on_end: called with the place of each that has ended.

    Raises:
        TypeError, ValueError, NotImplementedError: all are refused, for no reason of their own.
    """
    left = list(range(len(window)))
    while left:
        ended = set[int]()

        def end(k: int, entry: Relaxed, places=left, ended=ended) -> None:
            ended.add(places[k])
            on_end(places[k], entry)

        try:
            relax_some([window[k] for k in left], on_end=end, should_stop=should_stop)
        except REFUSING:
            left = [k for k in left if k not in ended]
            reasons = _reasons(relax_some, [(k, window[k]) for k in left])
            if not reasons:
                raise
            for k, reason in reasons.items():
                on_end(k, refuse(k, reason))
            left = [k for k in left if k not in reasons]
        else:
            return


def _reasons(relax_some: Callable[..., Any], window: list[tuple[int, Any]]) -> dict[int, str]:
    """Why structures are refused, by their places: halves are tried that no run begins with."""
    try:
        relax_some([item for _, item in window], on_end=None, should_stop=lambda: True)
    except REFUSING as error:
        if not _OF_A_STRUCTURE.search(str(error)):
            raise
        if len(window) == 1:
            return {window[0][0]: str(error)}
        half = len(window) // 2
        return _reasons(relax_some, window[:half]) | _reasons(relax_some, window[half:])
    return {}
