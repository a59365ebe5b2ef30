"""What the scripts of this folder share: text and a page of SVG, 960 units wide."""

from pathlib import Path

HERE = Path(__file__).parent
GREY = "#495057"


def text(x: float, y: float, content: str, size: int = 13, **more: str) -> str:
    more = {"font-family": "system-ui, sans-serif", "font-size": str(size), "x": f"{x:.1f}"} | more
    written = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text y="{y:.1f}"{written}>{content}</text>'


def write(name: str, height: float, label: str, parts: list[str]) -> None:
    """Write a picture on a white ground; the label is read to those who do not see it."""
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {height}" role="img"'
        f' aria-label="{label}">'
    )
    ground = f'<rect width="960" height="{height}" rx="8" fill="#ffffff"/>'
    (HERE / name).write_text("\n".join([opening, ground, *parts, "</svg>"]) + "\n")
