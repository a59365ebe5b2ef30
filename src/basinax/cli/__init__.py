"""The command line: arguments, files and printing; no numerics.

`basinax relax`, `evaluate` and `neb` run; `resume`, `merge`, `list`, `export`, `report`, `compare`
and `plot` serve runs; `verify` and `probe` check bits and potentials. Slow imports happen only
where needed.
"""

import importlib.util
import io
import os
import signal
import sys
import threading
import typing
import warnings
from contextlib import suppress

from basinax import __version__

if typing.TYPE_CHECKING:
    from basinax.cli._app import app as app, probe as probe, relax as relax, verify as verify
    from basinax.cli.console import err as err, out as out
else:

    def __getattr__(name: str) -> typing.Any:
        if name in ("app", "probe", "relax", "verify"):
            from basinax.cli import _app as module
        elif name in ("err", "out"):
            from basinax.cli import console as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(module, name)


NEEDED = ("ase", "rich", "typer", "vesin")
"""Packages of the extra, which every command needs."""


def main() -> None:
    """The command `basinax`."""
    leave_on_interrupt()
    occupy()
    # A terminal without Å must not lose the summary of a run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            _answer_without_the_extra()
            sys.exit(f'basinax needs {name} for this: run pip install "basinax[atoms]"')
    warnings.showwarning = _show_warning
    from basinax.cli._app import app

    try:
        app()
    except SystemExit as left:
        end(left)
        raise


def _answer_without_the_extra() -> None:
    """Answer --version and --help; return where something else is asked for."""
    match sys.argv[1:]:
        case ["--version"]:
            sys.exit(print(__version__))
        case ["-h" | "--help"]:
            print("basinax relaxes many structures in one batch, each with the bits it has alone.")
            sys.exit(print('Its commands need ASE and others: run pip install "basinax[atoms]"'))


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from basinax.cli.console import print_warning

    print_warning(message)


def leave_on_interrupt() -> None:
    """Until a command is watched, let Ctrl-C and SIGTERM end the process without an exception.

    An exception in the middle of an import may end the process in some library's own way.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)


def _leave(*_: typing.Any) -> typing.NoReturn:
    os.write(2, b"\nInterrupted.\n")
    os._exit(128 + signal.SIGINT)


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
