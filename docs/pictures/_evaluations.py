"""Draws `evaluations.svg`: mean evaluations a structure, of the sets of benchmarks/evaluations.py.

The newest figures of benchmarks/results/evaluations.jsonl, on a logarithmic scale.

python docs/pictures/_evaluations.py
"""

import json
import math
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "evaluations.jsonl"

SETS = {
    "molecules": "20 drug-like molecules",
    "others": "20 more, kept back",
    "g2": "small molecules of G2, rattled",
    "bad starts": "molecules from bad starts",
    "molecular crystals": "3 molecular crystals, moving cells",
    "crystals": "9 alloys and silicon, moving cells",
    "slabs": "6 metal slabs with oxygen",
    "clusters": "10 clusters of 38 atoms, LJ",
}
COLORS = {
    "InternalLBFGS": "#e8590c",
    "Sella": "#2f9e44",
    "LBFGS": "#1971c2",
    "ASE BFGS": "#868e96",
    "ASE FIRE": "#ced4da",
}
NAMES = {"InternalLBFGS": "InternalLBFGS()", "LBFGS": "LBFGS()", "Sella": "Sella, internal"}
LEFT, RIGHT, TOP, BAR, GAP = 290, 900, 96, 13, 16
LEAST, MOST = 4.0, 200.0
TICKS = (5, 10, 20, 50, 100, 200)
LABEL = "Mean evaluations that optimizers need, by sets of structures"


def newest() -> dict[tuple[str, str], dict]:
    rows = map(json.loads, RESULTS.read_text().splitlines())
    return {(row["set"], row["optimizer"]): row for row in rows}


def place(mean: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(mean / LEAST) / math.log(MOST / LEAST)


def text(x: float, y: float, content: str, size: int = 13, **more: str) -> str:
    more = {"font-family": "system-ui, sans-serif", "font-size": str(size), "x": f"{x:.1f}"} | more
    written = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text y="{y:.1f}"{written}>{content}</text>'


def bar(y: float, mean: float, color: str, note: str) -> list[str]:
    width = place(mean) - LEFT
    drawn = f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{color}"/>'
    return [drawn, text(LEFT + width + 5, y + BAR - 3.5, note, 11)]


def main() -> None:
    found, parts, y = newest(), [], TOP
    for name, title in SETS.items():
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
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" role="img"'
        f' aria-label="{LABEL}">'
    )
    ground = f'<rect width="960" height="{height}" rx="8" fill="#ffffff"/>'
    lines = [opening, ground, *head, *parts, "</svg>"]
    (Path(__file__).parent / "evaluations.svg").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
