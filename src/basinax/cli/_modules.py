"""Modules that a potential has loaded: versions of their distributions, or digests of their files.

Code that is installed is known by its version. Code that is not, or is installed in place for
development, is known by the SHA-256 of the file of each module.
"""

import importlib.metadata
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from basinax._text.files import name_of
from basinax._text.tables import Table
from basinax.atoms._evaluators.workers import LOADED
from basinax.atoms._python import NAMED_BY_FILE
from basinax.cli._inputs import digest_of

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
