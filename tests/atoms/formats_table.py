"""The table of formats and contents in docs/formats.md: `python tests/atoms/formats_table.py`.

Rows are those of ASE's formats that ASE reads again; every entry is found by writing and reading.
"""

from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import bulk, molecule
from ase.constraints import FixAtoms
from ase.io.formats import ioformats

from basinax.atoms._formats.formats import Form
from basinax.atoms._formats.trial import Trial, tried

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"

NEED_MORE = {"mp4", "mysql", "netcdftrajectory", "postgresql", "vti", "vtu"}
"""Formats that need other packages or a server."""

AWKWARD = {"text": "two\nlines", "empty": "", "nothing": None, "number": "12", "Lattice": "1 0 0"}

COLUMNS = {
    "cell": ("cell", "orientation of the cell"),
    "positions": ("positions", "digits of positions", "periodic images of atoms", "order of atoms"),
    "energy": ("energy", "free energy"),
    "energies of atoms": ("energies of atoms",),
    "forces": ("forces",),
    "stress": ("stress",),
    "status": ("status", "steps"),
    "constraints": ("constraints",),
    "tags": ("tags",),
    "masses": ("masses",),
    "momenta": ("momenta",),
    "charges": ("charges",),
    "moments": ("magnetic moments",),
    "info": ("info 'id'", "info 'gap'", "info 'points'"),
    "awkward info": tuple(f"info {name!r}" for name in AWKWARD),
    "arrays": ("array 'label'",),
    "awkward arrays": ("array 'my label'",),
}
"""Names of losses, by column."""

CASES = ("several", "of other sizes", "in part periodic", "without a cell")


def crystal(repeat: int = 1) -> Atoms:
    """A structure with all that a file may have."""
    atoms = bulk("NaCl", "rocksalt", a=5.6)
    atoms.set_cell(atoms.cell.array + 0.1 * np.arange(9).reshape(3, 3) ** 0.5, scale_atoms=True)
    atoms = atoms * (repeat, 1, 1)
    n = len(atoms)
    atoms.set_constraint(FixAtoms([0]))
    atoms.set_tags(np.arange(n) + 1)
    atoms.set_masses(np.full(n, 21.5))
    atoms.set_momenta(np.ones((n, 3)))
    atoms.set_initial_charges(np.full(n, 0.5))
    atoms.set_initial_magnetic_moments(np.full(n, 1.5))
    atoms.set_array("label", np.arange(n) * 1.5)
    atoms.set_array("my label", np.arange(n) * 1.5)
    atoms.info |= {"id": "m0", "gap": 1.5, "points": {"a": [1, 2]}} | AWKWARD
    return atoms


def bare(atoms: Atoms) -> Atoms:
    return Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)


def names() -> list[str]:
    return [name for name, f in ioformats.items() if f.can_write and name not in NEED_MORE]


def trial(name: str, *structures: Atoms) -> Trial:
    endings = ioformats[name].extensions
    file = f"x.{endings[0] if endings else name}"
    return tried(Form(name), file, structures, [a.pbc.all() for a in structures])


def row(name: str) -> dict[str, str]:
    """The entries of a format, by column."""
    first, second = bare(crystal()), bare(crystal(2))
    slab = bare(crystal())
    slab.pbc = (True, True, False)
    others = {
        "several": (trial(name, first, first), ()),
        "of other sizes": (trial(name, first, second, first), ()),
        "in part periodic": (trial(name, slab), ("periodic directions", "cell")),
        "without a cell": (trial(name, molecule("H2O")), ("periodic directions", "cell")),
    }
    entries = {case: _entry(*found) for case, found in others.items()}
    everything = trial(name, crystal())
    return entries | {column: _entry(everything, of) for column, of in COLUMNS.items()}


def _entry(found: Trial, losses: tuple[str, ...]) -> str:
    if found.fault is not None:
        return "refused"
    lost = [loss for loss in losses if loss in found.lost]
    if not lost:
        return "yes"
    return "in part" if len(lost) < len(losses) and losses[0] not in lost else "no"


def text() -> str:
    """The table."""
    columns = [*CASES, *COLUMNS]
    lines = [
        f"| format | {' | '.join(columns)} |",
        f"| --- |{' --- |' * len(columns)}",
    ]
    for name in names():
        if Form(name).can_read:
            entries = row(name)
            title = f"{name}: {Form(name).title}"
            lines.append(f"| {title} | {' | '.join(entries[c] for c in columns)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{text()}\n\n{END}{rest.split(END)[1]}")
