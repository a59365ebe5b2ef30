"""Draws `evaluations.svg` and writes the tables of `choosing.md`: the sets of evaluations.py.

The newest figures of benchmarks/results/evaluations.jsonl; the plot is on a logarithmic scale. Mean
energies are above the lowest that any optimizer of these reached, structure by structure.

    python docs/pictures/_evaluations.py
"""

import json
import math
import re

from _svg import HERE, text, write

RESULTS = HERE.parents[1] / "benchmarks" / "results" / "evaluations.jsonl"
PAGE = HERE.parent / "choosing.md"

GFN2 = "GFN2-xTB, `fmax`"
SETS = {
    "molecules": ("20 drug-like molecules", f"20 drug-like molecules, {GFN2} 0.05"),
    "molecules 0.01": ("the 20, fmax 0.01", "the 20, `fmax` 0.01"),
    "molecules 0.001": ("the 20, fmax 0.001", "the 20, `fmax` 0.001"),
    "others": ("20 more, kept back", f"20 others, from SMILES by RDKit, {GFN2} 0.05"),
    "g2": (
        "small molecules of G2, rattled",
        f"88 molecules of G2 rattled by 0.1 Å, {GFN2} 0.05",
    ),
    "bad starts": (
        "molecules from bad starts",
        f"24 bad starts: 0.3 Å off, stretched by 1.6, or molecules 1.2 Å apart, {GFN2} 0.05",
    ),
    "molecular crystals": (
        "3 molecular crystals, moving cells",
        "crystals of urea, carbon dioxide, ammonia that move, GFN1-xTB, 0.05",
    ),
    "salts": (
        "9 salts and semiconductors, moving",
        "9 oxides, halides, semiconductors that move, Nequix-MP-1 in single precision, 0.02",
    ),
    "crystals": (
        "9 alloys and silicon, moving cells",
        "9 alloys and silicon cells that move, 0.02",
    ),
    "slabs": ("6 metal slabs with oxygen", "6 metal slabs with an oxygen atom, EMT, 0.02"),
    "adsorbates": (
        "8 molecules on metals",
        "8 molecules on metal slabs, Nequix-MP-1 in single precision, 0.05",
    ),
    "clusters": (
        "10 clusters of 38 atoms, LJ",
        "10 random clusters of 38 atoms, Lennard-Jones",
    ),
}
"""How they are called in the plot, and in tables."""

COLORS = {
    "InternalLBFGS": "#e8590c",
    "Sella": "#2f9e44",
    "LBFGS": "#1971c2",
    "ASE LBFGS": "#5c7080",
    "ASE BFGS": "#868e96",
    "ASE FIRE": "#ced4da",
}
COLUMNS = {
    "InternalLBFGS": "`InternalLBFGS()`",
    "LBFGS": "`LBFGS()`",
    "Sella": "Sella",
    "ASE LBFGS": "ASE's `LBFGS`",
    "ASE BFGS": "ASE's `BFGS`",
    "ASE FIRE": "ASE's `FIRE`",
}
NAMES = {"InternalLBFGS": "InternalLBFGS()", "LBFGS": "LBFGS()", "Sella": "Sella, internal"}
LEFT, RIGHT, TOP, BAR, GAP = 290, 900, 96, 13, 16
LEAST, MOST = 4.0, 1000.0
TICKS = (5, 10, 20, 50, 100, 200, 500, 1000)
LABEL = "Mean evaluations that optimizers need, by sets of structures"


def newest() -> dict[tuple[str, str], dict]:
    rows = map(json.loads, RESULTS.read_text().splitlines())
    return {(row["set"], row["optimizer"]): row for row in rows}


def place(mean: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(mean / LEAST) / math.log(MOST / LEAST)


def bar(y: float, mean: float, color: str, note: str) -> list[str]:
    width = place(mean) - LEFT
    drawn = f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{color}"/>'
    return [drawn, text(LEFT + width + 5, y + BAR - 3.5, note, 11)]


def main() -> None:
    found = newest()
    draw(found)
    page = PAGE.read_text()
    for name, lines in {"evaluations": counts(found), "energies": energies(found)}.items():
        mark = f"<!-- {name}: pictures/_evaluations.py -->"
        written = "\n".join([mark, "", *lines, "", mark])
        page, n = re.subn(f"{mark}.*{mark}", lambda _, w=written: w, page, flags=re.DOTALL)
        assert n == 1, f"choosing.md has no two marks {mark}"
    PAGE.write_text(page)


def table(cells: dict[str, dict[str, str]]) -> list[str]:
    """Lines of a table of sets by optimizers."""
    lines = [["structures", *COLUMNS.values()], ["---"] * (1 + len(COLUMNS))]
    lines += [[SETS[name][1], *(own.get(k, "") for k in COLUMNS)] for name, own in cells.items()]
    return ["|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines]


def counts(found: dict[tuple[str, str], dict]) -> list[str]:
    """Means, the most in brackets, and failures."""
    cells: dict[str, dict[str, str]] = {}
    for name in SETS:
        own = {k: row for k in COLUMNS if (row := found.get((name, k)))}
        for k, row in own.items():
            mean = shown(row["mean"])
            bold = f"**{mean}**" if mean == shown(min(r["mean"] for r in own.values())) else mean
            failed = f", {row['failed']} failed" if row["failed"] else ""
            cells.setdefault(name, {})[k] = f"{bold} ({row['most']}{failed})"
    return table(cells)


def shown(mean: float) -> str:
    return f"{mean:#.3g}".rstrip(".") if mean < 1000 else f"{mean:.0f}"


def energies(found: dict[tuple[str, str], dict]) -> list[str]:
    """Mean energies in meV a structure above the lowest, of what has converged."""
    cells: dict[str, dict[str, str]] = {}
    for name in SETS:
        rows = {k: row for k in COLUMNS if (row := found.get((name, k))) and "energies" in row}
        ends = {k: [math.inf if e is None else e for e in r["energies"]] for k, r in rows.items()}
        if len(ends) < 2:
            continue
        lowest = list(map(min, zip(*ends.values(), strict=True)))
        for k, own in ends.items():
            above = [e - low for e, low in zip(own, lowest, strict=True) if e < math.inf]
            cells.setdefault(name, {})[k] = shown_energy(above)
    return table(cells)


def shown_energy(above: list[float]) -> str:
    mean = 1000 * sum(above) / max(len(above), 1)
    return f"{mean:.1f}" if mean < 10 else f"{mean:.0f}"


def draw(found: dict[tuple[str, str], dict]) -> None:
    parts, y = [], TOP
    for name, (title, _) in SETS.items():
        own = {k: row for k in COLORS if (row := found.get((name, k)))}
        if not own:
            continue
        middle = y + BAR * len(own) / 2 + 3
        parts.append(text(LEFT - 14, middle, title, 14, text_anchor="end"))
        for optimizer, row in own.items():
            failed = f", {row['failed']} failed" if row["failed"] else ""
            mean = row["mean"]
            parts += bar(y, mean, COLORS[optimizer], f"{mean:.3g}{failed}")
            y += BAR
        y += GAP
    height = y + 14
    head = [text(24, 30, "Evaluations until relaxed, mean (logarithmic)", 17, font_weight="600")]
    x = float(LEFT)
    for optimizer, color in COLORS.items():
        name = NAMES.get(optimizer, optimizer)
        head.append(f'<rect x="{x}" y="45" width="12" height="12" fill="{color}"/>')
        head.append(text(x + 17, 56, name, 12))
        x += 34 + 7.2 * len(name)
    for tick in TICKS:
        at = place(tick)
        line = f'x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{height - 24}" stroke="#e9ecef"'
        head += [f"<line {line}/>", text(at, TOP - 13, str(tick), 11, text_anchor="middle")]
    write("evaluations.svg", height, LABEL, [*head, *parts])


if __name__ == "__main__":
    main()
