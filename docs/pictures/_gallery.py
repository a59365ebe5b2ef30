"""Draws `slab.svg`, `curves.svg` and `throughput.svg` of the gallery.

The first two relax structures here; the third has the newest figures of benchmarks/results.

    python docs/pictures/_gallery.py
"""

import json
import math

import jax
from _svg import GREY, HERE, text, write
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111
from ase.constraints import FixAtoms

from basinax import FIRE, LBFGS
from basinax.atoms import EMT, AtomsRelaxation, relax

jax.config.update("jax_enable_x64", True)

RESULTS = HERE.parents[1] / "benchmarks" / "results"
ORANGE, BLUE, GREEN = "#e8590c", "#1971c2", "#2f9e44"
COPPER, OXYGEN, HELD = "#e0985c", "#e03131", "#adb5bd"
ANGSTROM = 27.0
"""Units of the picture."""


def slab() -> Atoms:
    """Three layers of copper, the lowest held, and an oxygen atom that begins on top of an atom."""
    atoms = fcc111("Cu", (4, 4, 3), vacuum=6.0, periodic=True)
    add_adsorbate(atoms, "O", 1.9, "ontop", offset=(1.35, 1.35))
    atoms.rattle(0.12, seed=4)
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == 3))
    return atoms


def side(atoms: Atoms, left: float, title: str, note: str) -> list[str]:
    """The slab from its side, the nearest atoms last."""
    parts = [text(left, 34, title, 17, font_weight="600"), text(left, 300, note, 14, fill=GREY)]
    low = atoms.positions[:, 2].min()
    for number in atoms.positions[:, 1].argsort()[::-1]:
        x, _, z = atoms.positions[number]
        if is_oxygen := atoms.symbols[number] == "O":
            color = OXYGEN
        else:
            color = HELD if number in atoms.constraints[0].index else COPPER
        radius = ANGSTROM * (0.7 if is_oxygen else 1.28)
        parts.append(
            f'<circle cx="{left + 34 + ANGSTROM * x:.1f}" cy="{244 - ANGSTROM * (z - low):.1f}"'
            f' r="{radius:.1f}" fill="{color}" stroke="#343a40"/>'
        )
    return parts


def draw_slab() -> None:
    start = slab()
    result = relax([start], EMT("Cu", "O"), LBFGS(), fmax=0.01)
    end = result.atoms[0]
    above = result.initial_energies[0] - result.energies[0]
    found = f"{result.steps[0]} steps of L-BFGS, largest force {result.fmax[0]:.4f} eV/Å"
    write(
        "slab.svg",
        320,
        "A copper slab with an oxygen atom before and after it is relaxed",
        [
            *side(start, 40, "before", f"{above:.2f} eV higher; grey atoms are held"),
            *side(end, 510, "relaxed", found),
        ],
    )


def cells() -> list[Atoms]:
    kinds = [("Cu", 3.6), ("Au", 4.1), ("Ag", 4.1), ("Ni", 3.5)]
    made = [bulk(kind, a=a, cubic=True).repeat(2) for kind, a in kinds for _ in range(8)]
    for seed, atoms in enumerate(made):
        atoms.rattle(0.05 + 0.01 * (seed % 8), seed=seed)
    return made


def draw_curves() -> None:
    """The largest force by step: both optimizers evaluate once a step."""
    found = {
        "FIRE()": (relax(cells(), EMT(), FIRE(), fmax=1e-3, history=True), BLUE),
        "LBFGS()": (relax(cells(), EMT(), LBFGS(), fmax=1e-3, history=True), ORANGE),
    }
    most = max(int(result.steps.max()) for result, _ in found.values())
    left, right, top, bottom = 70.0, 930.0, 60.0, 320.0

    def across(step: float) -> float:
        return left + (right - left) * step / most

    def down(force: float) -> float:
        return top + (bottom - top) * (1.0 - math.log10(force)) / 5.0

    title = "Largest force of 32 metal crystals, eV/Å, by step (logarithmic)"
    parts = [text(24, 30, title, 17, font_weight="600")]
    for power in (1, 0, -1, -2, -3, -4):
        y = down(10.0**power)
        parts += [
            f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e9ecef"/>',
            text(left - 8, y + 4, f"{10.0**power:g}", 12, text_anchor="end"),
        ]
    for step in range(0, most + 1, 20):
        parts.append(text(across(step), bottom + 22, str(step), 12, text_anchor="middle"))
    for place, (name, (result, color)) in enumerate(found.items()):
        for curve in result.history:
            points = zip(curve.steps, curve.fmax, strict=True)
            line = " ".join(f"{across(s):.1f},{down(f):.1f}" for s, f in points)
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{color}" stroke-opacity="0.55"/>'
            )
        steps = f"{name}: {median(result):.0f} steps in the median"
        parts.append(text(right - 10, 90 + 22 * place, steps, 14, fill=color, text_anchor="end"))
    write("curves.svg", 360, "Forces go down in fewer steps with L-BFGS than with FIRE", parts)


def median(result: AtomsRelaxation) -> float:
    steps = sorted(result.steps)
    return (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2


def newest(name: str, **wanted: object) -> dict:
    rows = map(json.loads, (RESULTS / f"{name}.jsonl").read_text().splitlines())
    return [row for row in rows if wanted.items() <= row.items()][-1]


def draw_throughput() -> None:
    """Structures a second; those beside TorchSim on cores that had other work."""
    cpu, argon = {"device": "cpu"}, "Lennard-Jones, argon, own"
    rows = {
        "256 argon crystals of 32 atoms": newest("relax_lj", systems=256, atoms=32, **cpu),
        "128 argon crystals, busy cores": newest("models", model=argon),
        "512 metal crystals, EMT": newest("materials", cells="fixed", **cpu),
        "the same, moving cells": newest("materials", cells="Frechet", **cpu),
        "20 molecules, GFN2-xTB": newest("models", model="GFN2-xTB, molecules"),
        "32 crystals, Nequix-MP-1": newest("models", model="Nequix-MP-1, crystals"),
    }
    engines = {"basinax": ORANGE, "ASE": "#868e96", "TorchSim": GREEN}
    title = "Structures a second on two cores (logarithmic)"
    parts, y = [text(24, 30, title, 17, font_weight="600")], 84
    for place, (engine, color) in enumerate(engines.items()):
        x = 290 + 110 * place
        parts.append(f'<rect x="{x}" y="45" width="12" height="12" fill="{color}"/>')
        parts.append(text(x + 17, 56, engine, 12))
    for name, row in rows.items():
        keys = {"basinax": "systems/s", "ASE": "ASE systems/s", "TorchSim": "TorchSim systems/s"}
        own = {engine: row[key] for engine, key in keys.items() if key in row}
        parts.append(text(276, y + 7.5 * len(own) + 4, name, 14, text_anchor="end"))
        for engine, rate in own.items():
            width = 140 * math.log10(rate / 0.1)
            drawn = f'x="290" y="{y}" width="{width:.1f}" height="13" fill="{engines[engine]}"'
            shown = f"{rate:.0f}" if rate >= 10 else f"{rate:#.2g}"
            parts += [f"<rect {drawn}/>", text(296 + width, y + 11, shown, 12)]
            y += 15
        y += 14
    write("throughput.svg", y + 4, "Structures a second with basinax, ASE and TorchSim", parts)


if __name__ == "__main__":
    draw_slab()
    draw_curves()
    draw_throughput()
