"""The watch of a command: a line that shows its phase, signals that end it, and its programs."""

import contextlib
import datetime
import logging
import math
import os
import platform
import signal
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import ase
import jax

from basinax import __version__
from basinax.cli.console import INTERRUPTED, err, print_line
from basinax.cli.options import Dtype, OutputStyle
from basinax.numerics.cache import VARIABLE, enable_cache
from basinax.numerics.compilations import EVENT
from basinax.numerics.processor import n_cores
from basinax.numerics.programs import LOADED
from basinax.results.bar import Bar
from basinax.structures.charges import Unused

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
        self.hint = "what had not been written by then is lost"
        """What follows from a second signal."""
        self.cache = "off"
        """The folder of compiled programs."""
        self._phase, self._since, self._signal_at = READING, time.monotonic(), math.inf
        self._text = READING
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
            err.print(f"Interrupted again: {self.hint}.")
        elif kind is KeyboardInterrupt:
            err.print("Interrupted: nothing was written.")

    def begin(self, phase: str) -> None:
        if phase != self._phase:
            self._text = phase
            now = time.monotonic()
            self.seconds[self._phase] += now - self._since
            self._phase, self._since = phase, now

    def show(self, progress: Any, *, has_total: bool = True) -> None:
        """Show the progress of a run; called by `relax`."""
        self.begin(progress.phase)
        self._text = progress.text or progress.phase
        self._bar.show(progress, has_total=has_total)

    def hide(self) -> None:
        self._bar.stop()

    def is_stopped(self) -> bool:
        """Whether a signal has arrived."""
        return self._signal_at < math.inf

    def _line(self) -> str:
        return f"{self._text}; again to quit" if self.is_stopped() else self._text

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


_LOG = logging.getLogger("basinax")


@contextlib.contextmanager
def session(manner: OutputStyle, dtype: Dtype) -> Iterator[Watch]:
    """The watch of a command."""
    warnings.filterwarnings("ignore", category=Unused)  # commands name the files
    with Watch(manner.quiet) as watch, _described(watch, dtype, manner.verbose):
        if manner.no_cache:
            os.environ[VARIABLE] = "off"  # of worker processes, too
        watch.cache = str(enable_cache() or "off")
        yield watch


class _Lines(logging.Handler):
    """Prints log records as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        print_line(err, record.getMessage())


@contextlib.contextmanager
def _described(watch: Watch, dtype: Dtype, is_verbose: bool) -> Iterator[None]:
    """Print the device, the records of the library, and the total time."""
    if not is_verbose:
        yield
        return
    seconds, hits, level, lines = list[float](), list[str](), _LOG.level, _Lines()

    def compiled(event: str, duration_secs: float, **_: str | int) -> None:
        if event == EVENT:
            seconds.append(duration_secs)

    def loaded(event: str, **_: str | int) -> None:
        if event == LOADED:
            hits.append(event)

    jax.monitoring.register_event_duration_secs_listener(compiled)
    jax.monitoring.register_event_listener(loaded)
    _LOG.addHandler(lines)
    _LOG.setLevel(logging.INFO)
    try:
        versions = f"JAX {jax.__version__}, ASE {ase.__version__}"
        _LOG.info("basinax %s, %s, Python %s", __version__, versions, platform.python_version())
        kind = jax.devices()[0].device_kind
        _LOG.info("device: %s, %d cores; precision: %s", kind, n_cores(), dtype.value)
        yield
    finally:
        watch.begin("end")
        n, loaded_from = len(seconds), f"{len(hits)} loaded from the cache"
        _LOG.info("programs: %d compiled in %.1f s, %s", n, sum(seconds), loaded_from)
        phases = (f"{phase} {spent:.1f} s" for phase, spent in watch.seconds.items())
        _LOG.info("phases: %s", ", ".join(phases))
        _LOG.removeHandler(lines)
        _LOG.setLevel(level)
        jax.monitoring.unregister_event_duration_listener(compiled)
        jax.monitoring.unregister_event_listener(loaded)
