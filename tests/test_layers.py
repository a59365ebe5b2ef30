"""Imports point downward only, importing is cheap, and the public names are these."""

import ast
import functools
import graphlib
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import basinax

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "basinax"

# From the bottom. A room imports only those before it, and no imports run in a circle within one.
ROOMS = [
    "numerics",
    "systems",
    "optimizers",
    "config",
    "minimize",
    "_public",
    "",  # the package itself
    "structures",
    "neighbors",
    "results",
    "potentials",
    "models",
    "internal",
    "engine",
    "neb",
    "runs",
    "atoms",
    "cli",
    "__main__",
]


def module_of(path: Path) -> str:
    """The name below `basinax`; empty for `basinax` itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def room_of(module: str) -> str:
    """The first part of a module's name."""
    return module.partition(".")[0]


@functools.cache
def nodes_of(module: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(MODULES[module].read_text())))


@functools.cache
def imports_of(module: str) -> set[str]:
    """The modules of basinax that a module imports, wherever in its text."""
    found = set()
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found.update(nearest_module(name) for name in names if (name + ".").startswith("basinax."))
    return found - {module}


def nearest_module(name: str) -> str:
    below = name.removeprefix("basinax").removeprefix(".")
    return below if below in MODULES else below.rpartition(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module):
    rooms = {room_of(name) for name in imports_of(module)}
    own = ROOMS.index(room_of(module))
    assert [room for room in sorted(rooms) if ROOMS.index(room) > own] == []


def test_no_imports_run_in_a_circle():
    graph = {module: imports_of(module) for module in MODULES}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(MODULES)


def test_every_room_is_there():
    assert set(ROOMS) == {room_of(module) for module in MODULES}


def test_the_core_knows_nothing_of_atoms():
    code = "import basinax; basinax.__all__"
    rooms_of_atoms = ROOMS[ROOMS.index("structures") :]
    assert not {f"basinax.{room}" for room in rooms_of_atoms} & loaded_by(code)


# --- what importing does


def in_a_fresh_process(code: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


WITHOUT_TYPER = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "typer" else find(name, *more)
sys.argv[1:] = [{option!r}]
from basinax.cli import main
main()
"""


@pytest.mark.parametrize(
    "option, said", [("--version", basinax.__version__), ("--help", "pip install")]
)
def test_the_core_alone_answers_version_and_help(option, said):
    assert said in in_a_fresh_process(WITHOUT_TYPER.format(option=option))


SLOW = {"ase", "equinox", "jax", "numpy", "optax", "vesin"}
"""Packages whose imports take the seconds before a first result."""


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process has loaded after some code, whatever the code prints."""
    after = f"{code}\nprint('loaded:', *sys.modules)"
    printed = in_a_fresh_process(f"import sys\n{after}")
    return set(printed.rpartition("loaded: ")[2].split())


def test_importing_basinax_imports_nothing_that_takes_time():
    assert loaded_by("import basinax; basinax.__version__") & SLOW == set()


def test_importing_basinax_for_atoms_imports_nothing_that_few_calls_need():
    assert loaded_by("import basinax.atoms") & {"ase.mep", "ase.vibrations", "optax"} == set()


def test_the_first_name_imports_nothing_of_an_extra_nor_optax():
    """Which whoever uses it has imported."""
    clipped = "chain(ClipByGlobalNorm(1.0), FIRE())"
    loaded = loaded_by(f"from basinax import FIRE, ClipByGlobalNorm, chain\n{clipped}")
    extras = {"ase", "vesin", "rich", "typer", "hypothesis", "pytest", "basinax.atoms", "optax"}
    assert "jax" in loaded
    assert extras & loaded == set()


COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "help of a command": ["relax", "--help"],
    "a mistyped command": ["relaxx"],
    "a mistyped option": ["relax", __file__, "--potentail", "emt"],
    "a mistyped value": ["verify", __file__, "--potential", "emt", "--fmax", "small"],
    "a config file with a typo": ["relax", __file__, "--config", "pyproject.toml"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_compute_nothing_import_nothing_that_takes_time(name):
    code = f"""
from basinax.cli import main
sys.stdout.write({name!r})
sys.argv = ["basinax", *{COMMANDS[name]!r}]
try:
    main()
except SystemExit:
    pass
"""
    loaded = loaded_by(code)
    assert "typer" in loaded
    assert loaded & SLOW == set()


def test_importing_basinax_touches_no_device():
    """With a platform that does not exist, the first touch raises."""
    code = """
import basinax, jax
basinax.FIRE()
try:
    jax.devices()
except RuntimeError:
    print("not before")
"""
    assert in_a_fresh_process(code, JAX_PLATFORMS="nowhere") == "not before"


def test_importing_basinax_changes_no_configuration_of_jax():
    code = """
import jax, equinox, optax
before = dict(jax.config.values)
from basinax import *
print(FIRE().maxstep, before == dict(jax.config.values))
"""
    assert in_a_fresh_process(code) == "0.2 True"


# --- the public names

PUBLIC = """
    AbstractLimit AbstractState AbstractTransform
    Chain chain apply_updates reset where_systems observe
    layout_field rows_field slots_field states_field systems_field
    Adam AdamState
    Armijo MoreThuente WalkState
    BarzilaiBorweinState
    BFGS BFGSState BFGSLineSearch
    ClipByGlobalNorm ClipByGlobalNormState
    ClipByLayerNorm ClipByLayerNormState
    ClipByRowNorm ClipByRowNormState
    ClipByValue ClipByValueState
    ConjugateGradient
    FIRE FIREState FIRE2 FIRE2State
    GradientDescent GradientDescentState
    LBFGS LBFGSState LBFGSLineSearch
    LevenbergMarquardt LevenbergMarquardtState sum_of_squares
    MaxStepSize MaxStepSizeState
    MDMin MDMinState
    Clipped LayerClipped clip_by_norm clip_by_layer_norm
    OptaxByName optax_transform
    from_config to_config read_config write_config register
    Relaxation Status relax largest_force
    AbstractCriterion AllOf AnyOf Evidence
    MaxForce RMSForce ForceNorm EnergyChange MaxDisplacement
    SystemIndex segment product rounded exact each_alone
    OrderCheck OrderFinding OrderWarning check_order
    Verification Finding verify
    enable_cache
"""


def public_names() -> set[str]:
    """Without the submodules that an import anywhere has made attributes."""
    return {
        name
        for name, value in inspect.getmembers(basinax)
        if not name.startswith("_") and (name == "segment" or not inspect.ismodule(value))
    }


def test_the_public_names_are_these():
    assert public_names() == set(PUBLIC.split())
    assert set(basinax.__all__) == set(PUBLIC.split())


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'basinax' has no attribute 'fire'"):
        _ = basinax.fire


REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
GROUP = re.compile(r"^<!-- names: (\S+) from ([\w. ]+) -->$", re.MULTILINE)


@pytest.mark.parametrize("package", ["basinax", "basinax.atoms"])
def test_every_public_name_is_on_one_page_of_the_reference(package):
    """Pages name modules, whose public names they list from docstrings."""
    groups = GROUP.findall("\n".join(page.read_text() for page in REFERENCE))
    modules = [
        tuple(f"basinax.{module}." for module in text.split())
        for of, text in groups
        if of == package
    ]
    counts = {
        name: sum(f"{value.__module__}.".startswith(group) for group in modules)
        for name, value in inspect.getmembers(importlib.import_module(package), callable)
        if not name.startswith("_")
    }
    assert len(counts) > 20
    assert {name for name, count in counts.items() if count != 1} == set()


@pytest.mark.parametrize("package", ["basinax", "basinax.atoms"])
def test_every_public_class_and_function_has_a_docstring_of_its_own(package):
    public = {
        name: value
        for name, value in inspect.getmembers(importlib.import_module(package), callable)
        if not name.startswith("_")
    }
    assert len(public) > 20
    assert sorted(name for name, value in public.items() if not own_docstring(value)) == []


def own_docstring(value) -> str | None:
    """None where it is that of a base, or the signature that a dataclass without one is given."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return None if text and text.startswith(f"{value.__name__}(") else text


def test_the_package_declares_its_types():
    assert (SOURCE / "py.typed").exists()


def test_one_module_jits():
    """So every program has the options of `numerics.xla`, with which XLA computes right numbers."""
    found = {
        module
        for module in MODULES
        for node in nodes_of(module)
        if isinstance(node, ast.Attribute) and node.attr in ("jit", "filter_jit", "pmap")
    }
    # A kernel has neither products of matrices nor sums.
    assert found == {"numerics.xla", "numerics.kernel"}
