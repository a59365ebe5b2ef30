"""The command line: arguments, files and printing; no numerics.

`basinax relax` relaxes the structures of files; `basinax verify` checks on a sample of them that
each has the same bits alone.
"""

import sys

try:
    import ase  # noqa: F401
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as error:
    sys.exit(f'basinax needs {error.name} for this: run pip install "basinax[atoms]"')

from basinax.cli._app import app as app, main as main, relax as relax, verify as verify
from basinax.cli._console import err as err, out as out
