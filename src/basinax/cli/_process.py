"""The process of the command line: its streams, and signals before a command runs."""

import os
import signal
from typing import Any, NoReturn

INTERRUPTED = 130


def leave_on_interrupt() -> None:
    """Until a command runs, a signal raises no exception.

    In the middle of an import, one may end the process in some library's own way.
    """
    signal.signal(signal.SIGINT, _leave)


def _leave(*_: Any) -> NoReturn:
    os.write(2, b"\nInterrupted: nothing was written.\n")
    os._exit(INTERRUPTED)


def occupy() -> None:
    """Keeps files that are opened later from the numbers of streams that are closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
