"""The table of formats in docs/formats.md: `python tests/support/formats_table.py`."""

from pathlib import Path

from basinax.structures.formats.formats import Form
from basinax.structures.formats.held import HOLDS

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"

COLUMNS = {
    "several": "several",
    "of other atoms": "others",
    "cell": "cell",
    "partly periodic": "partial",
    "any orientation": "turned",
    "all digits": "digits",
    "images": "images",
    "energy": "energy",
    "energies of atoms": "energies",
    "forces": "forces",
    "stress": "stress",
    "tags": "tags",
    "masses": "masses",
    "momenta": "momenta",
    "charges": "charges",
    "moments": "moments",
    "vectors": "vectors",
    "info, status": "info",
    "arrays": "arrays",
}
"""Words of the table of formats, by the heads of the columns."""


CONSTRAINTS = {word for word in HOLDS["traj"] if word.startswith("Fix")} | {"Hookean"}


def text() -> str:
    """The table."""
    rows = [["format", *COLUMNS, "constraints"], ["---"] * (len(COLUMNS) + 2)]
    for name, holds in HOLDS.items():
        constraints = sorted(word for word in holds if word in CONSTRAINTS)
        kept = ["yes" if word in holds else "" for word in COLUMNS.values()]
        has_all = len(constraints) == len(CONSTRAINTS)
        listed = "all" if has_all else ", ".join(f"`{x}`" for x in constraints)
        rows.append([f"{name}: {Form(name).title}", *kept, listed])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{text()}\n\n{END}{rest.split(END)[1]}")
