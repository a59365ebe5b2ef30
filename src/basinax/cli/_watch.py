"""The watch of a command: a line that shows its phase, and signals that end it."""

import datetime
import math
import os
import signal
import sys
import time
from collections import defaultdict
from typing import Any

from basinax.atoms._bar import Bar
from basinax.cli._console import INTERRUPTED, err

TOGETHER = 1.0
"""Signals within this many seconds count as one."""

READING = "reading"


class Watch:
    """Shows phases on a terminal, and ends the command on Ctrl-C, SIGTERM or a closed terminal.

    Reading ends at once. A run ends at its next host sync, and its results so far are written. A
    second signal ends the program, unless it arrives together with the first: a program that runs a
    command often forwards a signal that the command has received as well.
    """

    def __init__(self, quiet: bool):
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """The seconds of finished phases."""
        self.started = datetime.datetime.now(datetime.UTC)
        self.cache = "off"
        """The folder of compiled programs."""
        self._phase, self._since, self._signal_at = READING, time.monotonic(), math.inf
        self._bar = Bar(err, self._line, is_off=quiet or not err.is_terminal)

    def __enter__(self) -> "Watch":
        numbers = [signal.SIGINT, signal.SIGTERM]
        # Some systems lack SIGHUP, and `nohup` ignores it.
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
            numbers.append(hangup)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._bar.start()
        self._previous = {number: signal.signal(number, self._set) for number in numbers}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook
        self.hide()
        self.begin("end")
        if kind is KeyboardInterrupt and self._signal_at < math.inf:
            err.print("Interrupted again: what had not been written by then is lost.")
        elif kind is KeyboardInterrupt:
            err.print("Interrupted: nothing was written.")

    def begin(self, phase: str) -> None:
        if phase != self._phase:
            now = time.monotonic()
            self.seconds[self._phase] += now - self._since
            self._phase, self._since = phase, now

    def show(self, progress: Any, *, has_total: bool = True) -> None:
        """Show the progress of a run; called by `relax`."""
        self.begin(progress.phase)
        self._bar.show(progress, has_total=has_total)

    def hide(self) -> None:
        self._bar.stop()

    def is_stopped(self) -> bool:
        """Whether a signal has arrived."""
        return self._signal_at < math.inf

    def _line(self) -> str:
        return f"{self._phase}; again to quit" if self.is_stopped() else self._phase

    def _set(self, *_: Any) -> None:
        now = time.monotonic()
        if self._phase == READING or now > self._signal_at + TOGETHER:
            raise KeyboardInterrupt
        if not self.is_stopped() and not err.is_terminal:
            # Write without a buffer: the signal may interrupt another line.
            os.write(2, f"Interrupted: {self._phase}; again to quit.\n".encode())
        self._signal_at = min(self._signal_at, now)

    def _unraisable(self, unraised: Any) -> None:
        """Handle an interrupt in a collector's callback, which Python does not raise."""
        if not issubclass(unraised.exc_type, KeyboardInterrupt):
            self._hook(unraised)
            return
        self.hide()
        os.write(2, b"Interrupted.\n")
        os._exit(INTERRUPTED)
