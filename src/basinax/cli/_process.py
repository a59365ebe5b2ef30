"""The process of the command line: its streams, and signals before a command runs."""

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, NoReturn

INTERRUPTED = 130


def leave_on_interrupt() -> None:
    """Until a command is watched, let Ctrl-C and SIGTERM end the process without an exception.

    An exception in the middle of an import may end the process in some library's own way.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(*_: Any) -> NoReturn:
    os.write(2, b"\nInterrupted.\n")
    os._exit(INTERRUPTED)


def end(left: SystemExit) -> None:
    """End the process before Python's own end, so that another signal changes nothing.

    A thread that still compiles would prevent Python's end, so the process is then ended here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    others = set(threading.enumerate()) - {threading.current_thread()}
    if isinstance(left.code, int) and not all(thread.daemon for thread in others):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(left.code)


def occupy() -> None:
    """Keep the numbers of closed streams from files that are opened later."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
