"""The command line: arguments, files and printing; no numerics.

`basinax relax` relaxes the structures of files; `basinax verify` checks on a sample that each
structure has the bits of a run alone; `basinax probe` checks a potential or model. Slow imports
happen only where needed.
"""

import importlib.util
import io
import sys
import typing
import warnings

from basinax.cli import _process

if typing.TYPE_CHECKING:
    from basinax.cli._app import app as app, probe as probe, relax as relax, verify as verify
    from basinax.cli._console import err as err, out as out
else:

    def __getattr__(name: str) -> typing.Any:
        if name in ("app", "probe", "relax", "verify"):
            from basinax.cli import _app as module
        elif name in ("err", "out"):
            from basinax.cli import _console as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(module, name)


NEEDED = ("ase", "rich", "typer", "vesin")
"""Packages of the extra, which every command needs."""


def main() -> None:
    """The command `basinax`."""
    _process.leave_on_interrupt()
    _process.occupy()
    # A terminal without Å must not lose the summary of a run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            sys.exit(f'basinax needs {name} for this: run pip install "basinax[atoms]"')
    warnings.showwarning = _show_warning
    from basinax.cli._app import app

    try:
        app()
    except SystemExit as left:
        _process.end(left)
        raise


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    from basinax.cli._console import print_warning

    print_warning(message)
