"""Windows in which some structures cannot be relaxed: these end with the reason."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ase import Atoms

from basinax._loop.status import Status
from basinax.atoms._record import Relaxed
from basinax.atoms._windows import OnEnd

T = TypeVar("T")

_OF_A_STRUCTURE = re.compile(r"\bsystem \d+\b|\bsystems \(")
"""Errors that name a structure belong to that structure; all others to the call."""


def refused(atoms: Atoms, source: str, reason: str) -> Relaxed:
    """The entry of a structure that cannot be relaxed."""
    end = {"status": Status.EVALUATION_FAILED, "displacement": float("nan")}
    place = atoms.positions, atoms.cell.array, {}
    return Relaxed.of(atoms, *place, source=source, message=reason, **end)


def relax_usable(
    relax_some: Callable[..., Any],
    window: Sequence[T],
    refuse: Callable[[int, str], Relaxed],
    on_end: OnEnd,
    should_stop: Callable[[], bool],
) -> None:
    """Relax the usable structures of a window, and end the others with a reason.

    Args:
        relax_some: relaxes part of the window, with the `on_end` and `should_stop` of `relax`.
        refuse: makes the entry of an unusable structure from its place and the reason.
        on_end: called with the place of each structure that has ended.

    Raises:
        Exception: no structure is named, so the call is wrong.
    """
    left = list(range(len(window)))
    while left:
        ended = set[int]()

        def end(k: int, entry: Relaxed, places=left, ended=ended) -> None:
            ended.add(places[k])
            on_end(places[k], entry)

        try:
            relax_some([window[k] for k in left], on_end=end, should_stop=should_stop)
        except Exception:  # those of models and libraries may be of any class
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
    """The reasons for refused structures, by place; found by halving windows that cannot start."""
    try:
        relax_some([item for _, item in window], on_end=None, should_stop=lambda: True)
    except Exception as error:
        if not _OF_A_STRUCTURE.search(str(error)):
            raise
        if len(window) == 1:
            return {window[0][0]: str(error)}
        half = len(window) // 2
        return _reasons(relax_some, window[:half]) | _reasons(relax_some, window[half:])
    return {}
