"""Files of potentials as LAMMPS has them."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from basinax.config.reading import text_of


def lines_of(path: Path) -> list[str]:
    """The lines of a file, of which the first may say its units, https://docs.lammps.org/units.html.

    Raises:
        ValueError: it says others than metal, which are eV and Å.
        OSError: there is no such file.
    """
    text = io.StringIO(text_of(path, errors="replace"), newline=None)
    lines = [line.removesuffix("\n") for line in text]  # splitlines() has other ends of lines, too
    said = re.search(r"(?<!\S)UNITS:\s+(\w+)", lines[0]) if lines else None
    if said and said[1] != "metal":
        raise ValueError(f"{path}, line 1: units must be metal (eV and Å), got {said[1]}")
    return lines


@contextmanager
def from_file(path: Path) -> Iterator[None]:
    """A context whose errors about values name the file that has them."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
