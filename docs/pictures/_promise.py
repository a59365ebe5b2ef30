"""Draws `promise.svg`: one cluster relaxed alone and in two batches, with the bits that come out.

python docs/pictures/_promise.py
"""

from pathlib import Path

import jax
import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.cluster import Icosahedron

from basinax.atoms import LennardJones, relax

jax.config.update("jax_enable_x64", True)

COLORS = {"Ar13": "#e8590c", "Ar crystal": "#1971c2", "Ar2": "#2f9e44", "Ar2, broken": "#868e96"}
PADDING = "#e9ecef"
SANS, MONO = "system-ui, sans-serif", "ui-monospace, monospace"
LABEL = "A cluster has the same energy, bit for bit, alone and in two batches"


def structures() -> dict[str, Atoms]:
    cluster = Icosahedron("Ar", 2, latticeconstant=5.3)
    cluster = Atoms(cluster.symbols, cluster.positions)
    cluster.rattle(0.1, seed=0)
    crystal = bulk("Ar", "fcc", 5.1, cubic=True)
    crystal.rattle(0.1, seed=1)
    dimer, broken = (Atoms("Ar2", [[0, 0, 0], [0, 0, d]]) for d in (3.4, 0.0))
    return {"Ar13": cluster, "Ar crystal": crystal, "Ar2": dimer, "Ar2, broken": broken}


def text(x: float, y: float, size: int, content: str, font: str = SANS, **more: str) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x}" y="{y}" font-family="{font}" font-size="{size}"{more}>{content}</text>'


def square(x: float, y: float, color: str) -> str:
    return f'<rect x="{x}" y="{y}" width="16" height="16" rx="3" fill="{color}"/>'


def panel(x: float, title: str, names: list[str]) -> list[str]:
    """A batch, a line of squares for each block of eight rows; then the cluster's result."""
    known = structures()
    batch, argon = [known[name] for name in names], LennardJones.named("Ar", cutoff=8.5)
    result = relax(batch, argon, fmax=1e-3)
    parts, y = [text(x, 34, 17, title, font_weight="600")], 52
    for name, atoms in zip(names, batch, strict=True):
        parts.append(text(x + 158, y + 13, 12, name, fill=COLORS[name]))
        for first in range(0, len(atoms), 8):
            for row in range(8):
                is_atom = first + row < len(atoms)
                parts.append(square(x + 19 * row, y, COLORS[name] if is_atom else PADDING))
            y += 19
        y += 7
    place = names.index("Ar13")
    energy, status = result.energies[place], result.status[place]
    outcome = f"Ar13: {result.steps[place]} steps, {status}"
    return [
        *parts,
        text(x, 212, 14, outcome, fill=COLORS["Ar13"]),
        text(x, 234, 14, f"{float(energy)!r} eV", MONO),
        text(x, 255, 14, f"bits {energy.view(np.uint64):016x}", MONO),
    ]


def main() -> None:
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 276" role="img"',
        f'aria-label="{LABEL}">',
        '<rect width="960" height="276" rx="8" fill="#ffffff"/>',
        *panel(24, "alone", ["Ar13"]),
        text(284, 242, 30, "=", fill="#2f9e44"),
        *panel(340, "in a batch", ["Ar crystal", "Ar13", "Ar2"]),
        text(600, 242, 30, "=", fill="#2f9e44"),
        *panel(656, "in another batch", ["Ar2, broken", "Ar2", "Ar13", "Ar crystal"]),
        "</svg>",
    ]
    (Path(__file__).parent / "promise.svg").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
