"""The record of a run, beside its output: its settings, and its circumstances.

The settings are those of a config file, so the record reproduces the run.
"""

import datetime
import importlib.metadata
import os
import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import jax

from basinax import __version__
from basinax._jax.cores import n_cores
from basinax._text.files import name_of
from basinax._text.tables import RECORD, Table
from basinax.cli._console import fail, print_warning
from basinax.cli._inputs import Inputs
from basinax.cli._watch import Watch

PACKAGES = ("jax", "jaxlib", "numpy", "equinox", "optax", "ase", "vesin")
"""Packages on which bits of results depend, besides basinax itself."""


def recorded(
    command: str,
    settings: Table,
    inputs: list[Table],
    watch: Watch,
    results: dict[str, int],
    skipped: Sequence[str] = (),
) -> Table:
    """The record of a run that ends now: its settings, and a table that config files pass over.

    Args:
        settings: the options of the run, as in config files.
        inputs: the name of each input, the SHA-256 of its content, and its number of structures.
        results: the number of structures by status.
        skipped: unreadable inputs, each with the reason.
    """
    return settings | {
        RECORD: {
            "command": command,
            "folder": _folder(),  # file names are relative to it
            "inputs": inputs,
            "skipped": list(skipped),
            "versions": _versions(settings["potential"]),
            "device": jax.devices()[0].device_kind,
            "cores": n_cores(),
            "precision": settings["dtype"],
            "cache": watch.cache,
            "flags": os.environ.get("XLA_FLAGS", ""),
            "started": text_of(watch.started),
            "ended": now(),
            "results": results,
        }
    }


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
        named(path) | {"sha256": inputs.digests.get(path, ""), "structures": count}
        for path, count in Counter(inputs.paths).items()
    ]


def named(path: Path) -> Table:
    """A table with the name of a file."""
    return {"file": name_of(path)}


def _versions(potential: str) -> dict[str, str]:
    """Versions of packages, including the one of the potential's model if named."""
    kind, _, rest = potential.partition(":")
    packages = [*PACKAGES]
    if kind == "ase":
        packages.append(rest.partition(".")[0].partition(":")[0])
    elif kind == "nequix":
        packages.append(kind)
    versions = {"basinax": __version__}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError, ValueError):
            versions[package] = importlib.metadata.version(package)
    return versions | {"python": platform.python_version(), "system": platform.platform()}
