"""The README, the pages of docs/, the examples and those of docstrings run as they stand there."""

import doctest
import importlib
import re
import runpy
import shlex
import sys
from pathlib import Path

import ase.cli.main
import pytest
from typer.testing import CliRunner

from basinax import cli
from basinax._jax.switches import usual_promotion
from cover import every_day
from shapes import few_lengths, few_shapes

__all__ = ["few_lengths", "few_shapes"]

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WITH_EXAMPLES = sorted(p for p in (ROOT / "src").rglob("*.py") if ">>>" in p.read_text())
BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<needs>.*?) -->\n)?```(?P<kind>python|bash)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
WITH_NEEDS = [page for page in PAGES if "<!-- needs: " in page.read_text()]
"""Of a package, and weights perhaps, which tests do not always have."""
LONG = {"ase_neb.py", "elastic_constants.py", "lj13_minima.py"}
"""Examples that take more than ten seconds; what they call runs every day on docs/tasks.md."""
ELSEWHERE = {"pip"}
"""Commands that `.ci/run` runs, or none does: they set up what the tests run in."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text(), {"__name__": page.stem}
    for block in BLOCK.finditer(text):
        if block["needs"]:
            continue  # a test of its own
        if block["kind"] == "bash":
            for command in block["code"].replace("\\\n", " ").splitlines():
                run_command(*shlex.split(command, comments=True))
        else:
            run_python(page, block, names)


def run_python(page: Path, block: re.Match[str], names: dict[str, object]) -> None:
    line = block.string.count("\n", 0, block.start("code"))
    exec(compile("\n" * line + block["code"], str(page), "exec"), names)


def run_command(program: str, *arguments: str) -> None:
    if program in ELSEWHERE:
        return
    if program == "ase":
        ase.cli.main.main(args=arguments)
        return
    assert program == "basinax"
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", WITH_NEEDS, ids=name_of)
def test_code_that_needs_a_package_runs_where_the_package_is(page, tmp_path, monkeypatch):
    blocks = [block for block in BLOCK.finditer(page.read_text()) if block["needs"]]
    for block in blocks:
        module, *weights = block["needs"].split(", ")
        with usual_promotion():  # packages do not keep the rules of the tests
            pytest.importorskip(module, reason=f"{module} is not installed")
        for name in weights:
            file = ROOT.parent / "shared" / "data" / name
            if not file.exists():
                pytest.skip(f"{name} is not beside the checkout")
            (tmp_path / name).symlink_to(file)
        monkeypatch.chdir(tmp_path)
        with usual_promotion():
            run_python(page, block, {"__name__": page.stem})


@pytest.mark.parametrize(
    "script", every_day({p.name: p for p in EXAMPLES}, lambda p: p.name not in LONG)
)
def test_an_example_runs(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("source", WITH_EXAMPLES, ids=name_of)
def test_the_examples_of_docstrings_run(source):
    parts = source.relative_to(ROOT / "src").with_suffix("").parts
    result = doctest.testmod(importlib.import_module(".".join(parts)))
    assert result.attempted and not result.failed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_example_data_is_what_its_script_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_data.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "make_data.py"), run_name="__main__")
    shipped = {path.name: path.read_bytes() for path in (ROOT / "examples" / "data").iterdir()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == shipped
