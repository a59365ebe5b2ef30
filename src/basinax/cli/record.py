"""The record of a run: its settings, and its circumstances.

The settings are those of a config file, so the record reproduces the run. Code that is installed is
known by its version. Code that is not, or is installed in place for development, is known by the
SHA-256 of the file of each module.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax

from basinax import __version__
from basinax.cli.console import fail, print_warning
from basinax.cli.inputs import Inputs, digest_of, files_beside
from basinax.cli.named import STDIN, kind_of, named_in
from basinax.cli.watch import Watch
from basinax.config.files import name_of
from basinax.config.tables import RECORD, Table
from basinax.engine.python import NAMED_BY_FILE
from basinax.models.evaluators.workers import LOADED
from basinax.numerics.processor import instructions, kind_of_processor, n_cores
from basinax.runs.changes import ALWAYS as PACKAGES
from basinax.runs.record import FORMAT

IMPORTING = ("ase", "nequix", "python")
"""Kinds of potentials that run foreign code."""

LIBRARIES = ("jax-cuda", "jax-rocm", "nvidia-cu")
"""The first characters of distributions with libraries that compute on a GPU."""

SWITCHES = ("JAX_DEFAULT_DTYPE_BITS", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_NUMPY_DTYPE_PROMOTION")
"""Variables of the environment that decide bits of JAX's programs, besides XLA_FLAGS and, in single
precision, JAX_ENABLE_X64."""

SWITCHES_OF_OTHERS = (
    *("CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "NPY_DISABLE_CPU_FEATURES"),
    *("NVIDIA_TF32_OVERRIDE", "OPENBLAS_CORETYPE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
)
"""Variables that decide bits of BLAS, NumPy and models of torch."""

IDLE = ("--xla_dump", "--xla_force_host_platform_device_count", "--xla_gpu_cuda_data_dir")
"""The first characters of XLA's flags that decide no bit."""


def recorded(
    command: str,
    settings: Table,
    inputs: list[Table],
    watch: Watch,
    results: dict[str, int],
    skipped: Sequence[str] = (),
    making: Table | None = None,
) -> Table:
    """The record of a run that ends now: its settings, and a table that config files pass over.

    Args:
        settings: the options of the run, as in config files.
        inputs: the name of each input, the SHA-256 of its content, and its number of structures.
        results: the number of structures by status.
        skipped: unreadable inputs, each with the reason.
        making: the result of `Making`, of this process now by default.
    """
    return settings | {
        RECORD: {
            "format": FORMAT,
            "command": command,
            "folder": _folder(),  # file names are relative to it
            "inputs": inputs,
            "named": _named_files(settings["potential"]),
            "skipped": list(skipped),
            **(making or Making(settings)()),
            "cores": n_cores(),
            "precision": settings["dtype"],
            "cache": watch.cache,
            "started": text_of(watch.started),
            "ended": now(),
            "results": results,
        }
    }


class Making:
    """The parts of a record about the process that makes results, here or on another machine."""

    is_threaded = False
    """Whether a calculator runs in this process, with BLAS on several threads."""

    def __init__(self, settings: Table, before: Table | None = None):
        """The parts for these settings.

        Args:
            before: an earlier record, whose packages and modules are looked up where they are not
                loaded.
        """
        known = before[RECORD] if before else {"versions": {}, "modules": []}
        self._versions, self._modules = [*known["versions"]], known["modules"]
        self._kind = kind_of(settings["potential"])
        self._is_double = settings["dtype"] == "float64"
        optimizer = json.dumps(settings.get("optimizer", "")).lower()
        self._has_blas = self._kind in IMPORTING or "internal" in optimizer
        self._made: tuple[tuple[int, int, bool], Table] | None = None

    def __call__(self) -> Table:
        if self._kind in IMPORTING:
            note_late()
        n_loaded = len(LOADED) if self._kind in IMPORTING else 0
        key = os.getpid(), n_loaded, self.is_threaded
        if self._made is None or self._made[0] != key:
            self._made = key, self._parts()
        return self._made[1]

    def _parts(self) -> Table:
        device = jax.devices()[0]
        is_cpu = device.platform == "cpu"
        loaded = dict(LOADED) if self._kind in IMPORTING else {}
        found, modules = of_modules(loaded, self._modules)
        names = {*PACKAGES, *self._versions, *found, *([] if is_cpu else _libraries())}
        processor = kind_of_processor() if self._has_blas else instructions() if is_cpu else ""
        return {
            "versions": _versions(names),
            "modules": modules,
            "switches": self._switches(),
            "device": _kind_of(device),
            "processor": processor,
            "threads": _threads() if self.is_threaded else "",
        }

    def _switches(self) -> dict[str, str]:
        names = [*SWITCHES, *(SWITCHES_OF_OTHERS if self._has_blas else ())]
        names += [] if self._is_double else ["JAX_ENABLE_X64"]
        flags = sorted(x for x in os.environ.get("XLA_FLAGS", "").split() if not x.startswith(IDLE))
        found = {name: os.environ[name] for name in names if os.environ.get(name)}
        return found | ({"XLA_FLAGS": " ".join(flags)} if flags else {})


def now() -> str:
    """The current time in UTC, in the form of records."""
    return text_of(datetime.datetime.now(datetime.UTC))


def text_of(time: datetime.datetime) -> str:
    return time.isoformat(timespec="seconds")


def accept(changed: list[str], refusal: str, *, force: bool) -> None:
    """Warn of changes of a record, or exit with them and the refusal unless forced."""
    if changed and not force:
        fail(*changed, refusal)
    for change in changed:
        print_warning(change)


def _folder() -> str:
    """The current folder; empty if it has been removed."""
    with suppress(OSError):
        return os.getcwd()
    return ""


def described(inputs: Inputs) -> list[Table]:
    """The files that were read, in the form of records."""
    return [
        entry
        for path, count in Counter(inputs.paths).items()
        for entry in and_beside(
            path, named(path) | {"sha256": digest_of(path), "structures": count}
        )
    ]


def and_beside(path: Path, entry: Table) -> list[Table]:
    """The entry of a file, and those of the files that are read beside it."""
    files = [] if path == STDIN else files_beside(path)
    return [entry, *(named(x.absolute()) | {"sha256": digest_of(x)} for x in files)]


def named(path: Path) -> Table:
    """A table with the name of a file."""
    return {"file": name_of(path)}


def _named_files(potential: str) -> list[Table]:
    """The files and folders that a potential names, in the form of records."""
    paths = {name: Path(os.path.expanduser(name)) for name in named_in(potential)}
    return [
        {"name": name_of(name)} | named(path.absolute()) | {"sha256": digest_of(path)}
        for name, path in paths.items()
    ]


def _versions(names: set[str]) -> dict[str, str]:
    """Versions of those packages that are installed, and of Python what decides numbers."""
    versions = {"basinax": __version__, "python": "{}.{}".format(*sys.version_info)}
    for name in sorted(names - versions.keys()):
        with suppress(importlib.metadata.PackageNotFoundError, ValueError):
            versions[name] = importlib.metadata.version(name)
    return versions | {"system": platform.platform()}


def _libraries() -> list[str]:
    """The distributions with libraries that compute on a GPU."""
    names = (each.name for each in importlib.metadata.distributions())
    return [name for name in names if name.startswith(LIBRARIES)]


def _kind_of(device: Any) -> str:
    """The kind of a device; of a GPU also the number of its multiprocessors, which cut sums."""
    n = None if device.platform == "cpu" else getattr(device, "core_count", None)
    return device.device_kind + (f", {n} multiprocessors" if n else "")


def _threads() -> str:
    """The number of threads of BLAS in this process."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    given = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    return " ".join(given) or str(n_cores())


_SEEN = set(sys.modules)
"""The modules of this process that were loaded without a potential, or are noted."""


@contextmanager
def noted() -> Iterator[None]:
    """A context that makes a potential: notes the modules that this loads, for this process."""
    before = set(sys.modules)
    try:
        yield
    finally:
        _note(set(sys.modules) - before)
        _SEEN.update(sys.modules)


def note_late() -> None:
    """Note modules that evaluations have loaded since, without those of basinax's own needs."""
    new = set(sys.modules) - _SEEN
    if new:
        of, own = importlib.metadata.packages_distributions(), _own_distributions()
        _note(x for x in new if not own & set(map(_plain, of.get(_top_of(x), ()))))
        _SEEN.update(new)


def _note(names: Iterable[str]) -> None:
    for name in names:
        file = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
        if isinstance(file, str):
            LOADED[name] = file


def of_modules(loaded: dict[str, str], known: Iterable[Table] = ()) -> tuple[set[str], list[Table]]:
    """The distributions of modules, and the entries of modules that belong to none.

    Args:
        loaded: files of modules by name.
        known: entries of a record, whose modules are found without running them.
    """
    distributions, local, place_of = set[str](), dict[str, str](), cache(_place_of)
    of: Mapping[str, list[str]] = {}
    for name, file in loaded.items():
        top = _top_of(name)
        if top in _NEVER or name.startswith(NAMED_BY_FILE) or _is_standard(file):
            continue
        of = of or importlib.metadata.packages_distributions()
        names = of.get(top) or of.get(_package_of(file), [])
        if any(_is_inside(file, place_of(each)) for each in names):
            distributions.update(names)
        else:
            local[name] = file
    for entry in known:
        name, file = entry["module"], entry["file"]
        if name not in local and (found := file if os.path.isfile(file) else _file_of(name)):
            local[name] = found
    entries = [
        {"module": name, "file": name_of(file), "sha256": digest}
        for name, file in sorted(local.items())
        if (digest := digest_of(Path(file)))
    ]
    return distributions, entries


_NEVER = {"basinax", "__main__", "__mp_main__", *sys.stdlib_module_names}


def _top_of(name: str) -> str:
    return name.partition(".")[0]


def _package_of(file: str) -> str:
    """The first part of a file's path in its folder of modules; parts of some packages are loaded
    under names of their own."""
    folders = [x for x in sys.path if x and Path(file).is_relative_to(x)]
    inside = Path(file).relative_to(max(folders, key=len)) if folders else Path(file)
    return inside.parts[0].partition(".")[0]


def _is_standard(file: str) -> bool:
    """Whether a file belongs to Python itself."""
    path = Path(file)
    is_inside = path.is_relative_to(sysconfig.get_path("stdlib"))
    return is_inside and not {"site-packages", "dist-packages"} & set(path.parts)


def _place_of(distribution: str) -> str:
    """The folder in which a distribution is installed."""
    return str(importlib.metadata.distribution(distribution).locate_file(""))


def _is_inside(file: str, folder: str) -> bool:
    """Whether a file lies in a folder, by whatever links."""
    is_inside = Path(file).is_relative_to(folder)
    return is_inside or Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))


def _file_of(module: str) -> str | None:
    """The file of a module, found without running any of its packages."""
    path, spec, name = None, None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        found = (find(name, path) for find in finders if find is not None)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec.origin if spec is not None and spec.has_location else None


@cache
def _own_distributions() -> frozenset[str]:
    """Distributions that basinax needs, with those that they need, all extras included."""
    found, waiting = set[str](), ["basinax"]
    while waiting:
        name = _plain(waiting.pop())
        if name in found:
            continue
        found.add(name)
        with suppress(importlib.metadata.PackageNotFoundError):
            for need in importlib.metadata.requires(name) or ():
                has_extra = "extra ==" in need and name != "basinax"
                match = re.match(r"[A-Za-z0-9._-]+", need)
                waiting += [] if has_extra or match is None else [match[0]]
    return frozenset(found)


def _plain(distribution: str) -> str:
    """A name of a distribution in the form in which equal names are equal."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
