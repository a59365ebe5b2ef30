"""The README, the pages of docs/, the examples and those of docstrings run as they stand there.

Every day those that a newcomer begins with run; of all, names and options are looked up, which
compiles nothing. `.ci/run` runs all.
"""

import ast
import doctest
import importlib
import re
import runpy
import shlex
import sys
from pathlib import Path

import ase.cli.main
import pytest
import typer
from typer.testing import CliRunner

import basinax
from basinax import cli
from basinax.numerics.switches import usual_promotion
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
DAILY = ("README.md", "docs/quickstart.md", "examples/relax_structures.py")
"""Which page calls what, no selection by what has changed can know: a page runs the whole library.
So these run whatever has changed, and the others wait for `.ci/run`."""
COSTLY = (
    "src/basinax/minimize/verify.py",
    "src/basinax/optimizers/levenberg_marquardt.py",
    "src/basinax/systems/map_systems.py",
)
"""Modules whose examples compile most; what they show, tests of the same functions see."""
ELSEWHERE = {"pip"}
"""Commands that `.ci/run` runs, or none does: they set up what the tests run in."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def by_name(files: list[Path]) -> list[pytest.ParameterSet]:
    """Pages or examples, of which the daily ones run every day."""
    return every_day({name_of(file): file for file in files}, lambda x: name_of(x) in DAILY)


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize("page", by_name(PAGES))
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, names = page.read_text(), {"__name__": page.stem}
    for block in BLOCK.finditer(text):
        if block["needs"]:
            continue  # a test of its own
        if block["kind"] == "bash":
            for command in commands_of(block):
                run_command(*command)
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


@pytest.mark.parametrize("script", by_name(EXAMPLES))
def test_an_example_runs(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize(
    "source",
    every_day({name_of(x): x for x in WITH_EXAMPLES}, lambda x: name_of(x) not in COSTLY),
)
def test_the_examples_of_docstrings_run(source):
    parts = source.relative_to(ROOT / "src").with_suffix("").parts
    result = doctest.testmod(importlib.import_module(".".join(parts)))
    assert result.attempted and not result.failed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_and_options_on_a_page_exist(page):
    for block in BLOCK.finditer(page.read_text()):
        if block["kind"] == "python":
            assert missing_names(block["code"]) == []
        else:
            for command in commands_of(block):
                check_options(*command)


@pytest.mark.parametrize("script", EXAMPLES, ids=name_of)
def test_names_in_an_example_exist(script):
    assert missing_names(script.read_text()) == []


def missing_names(code: str) -> list[str]:
    """Of those that it imports from a module of basinax or takes from basinax itself."""
    used = []
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "basinax":
                used += [(importlib.import_module(module), alias.name) for alias in node.names]
            case ast.Attribute(value=ast.Name(id="basinax"), attr=name):
                used.append((basinax, name))
    return [f"{module.__name__}.{name}" for module, name in used if not hasattr(module, name)]


def commands_of(block: re.Match[str]) -> list[list[str]]:
    lines = block["code"].replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def check_options(program: str, *arguments: str) -> None:
    """Raises what typer raises for a command that there is not, or for such an option."""
    if program == "basinax":
        group = typer.main.get_command(cli.app)
        name, command, rest = group.resolve_command(typer.Context(group), list(arguments))
        command.make_parser(typer.Context(command, info_name=name)).parse_args(rest)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_example_data_is_what_its_script_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_data.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "make_data.py"), run_name="__main__")
    shipped = {path.name: path.read_bytes() for path in (ROOT / "examples" / "data").iterdir()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == shipped


def test_those_who_cite_are_told_the_version():
    own = basinax.__version__
    assert f'\nversion = "{own}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {own}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{own}}}" in (ROOT / "docs" / "citing.md").read_text()
