"""Files that ASE reads beside the one that is named, and constraints from them."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from basinax.structures.formats.texts import opened, text_in

Say = Callable[[str], None]

NEIGHBOURS = {
    "vasp": ("POTCAR", "OUTCAR", "POTCAR.gz", "POTCAR.bz2", "OUTCAR.gz", "OUTCAR.bz2"),
    "vasp-out": ("CONTCAR", "POSCAR"),
}
"""Names of files of which ASE reads the first that is there."""

NAMING = {
    "octopus-in": r"^\s*(?:xyz|pdb|xsf)coordinates\s*=\s*[\"']([^\"'\n]+)",
    "onetep-in": r"^\s*include_file\b[\s:=]*[\"']?([^\s\"'!#]+)",
}
"""The text that names another file."""

VASP_4 = r"(?:.*\n){5}\s*\d"
"""The begin of a POSCAR that does not name its elements above their numbers."""


def beside(form: str, path: Path) -> list[Path]:
    """The files on which the structures of a file depend besides, as far as they exist.

    Args:
        form: ASE's name of the format.
    """
    names: Iterable[str] = NEIGHBOURS.get(form, ())
    if form == "xtd":
        names = [f"{path.stem}.arc"]
    elif form in NAMING:
        names = re.findall(NAMING[form], text_in(path), re.MULTILINE | re.IGNORECASE)
    elif form == "vasp" and not re.match(VASP_4, text_in(path)):
        names = ()
    files = [path.parent / name for name in names if (path.parent / name).is_file()]
    return [x for x in files if x.stat().st_size][:1] if form in NEIGHBOURS else files


def structures_of_outcar(
    path: Path, images: Any, read: Callable[[Path], Iterator[Atoms]], say: Say
) -> Iterator[Atoms]:
    """The structures of an OUTCAR, with the constraints of a CONTCAR or POSCAR that has its atoms.

    Args:
        images: a number or a slice; all if None.
        read: reads the structure of a CONTCAR or POSCAR.
        say: called with what the user has to know.
    """
    from ase.io.utils import ImageIterator
    from ase.io.vasp_parsers.vasp_outcar_parsers import OutcarHeaderParser, outcarchunks

    held, name = None, ""
    for neighbour in beside("vasp-out", path):
        name = neighbour.name
        try:
            held = next(read(neighbour))
        except Exception:  # every reader of ASE raises errors of its own
            say(f"no atom is kept fixed by {name} beside it, which cannot be read")
    chunks = partial(outcarchunks, header_parser=OutcarHeaderParser())
    with opened(path) as file:
        for atoms in ImageIterator(chunks)(file, images):
            if held and held.constraints and not np.array_equal(held.numbers, atoms.numbers):
                say(f"no atom is kept fixed by {name} beside it, which has other atoms")
                held = None
            if held:
                atoms.set_constraint(held.constraints)
            yield atoms
