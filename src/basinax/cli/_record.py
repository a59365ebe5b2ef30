"""The record of a run, beside its output: its settings, and how it was made.

Its settings are those of a config file, so the record gives the same run again.
"""

import dataclasses
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
"""Bits of results depend on these, besides basinax itself."""


@dataclasses.dataclass(frozen=True)
class Record:
    """The settings of a run, and how it was made; of plain values, for JSON and TOML."""

    settings: Table
    """Options by their names, as config files have them."""
    command: str
    folder: str
    """Where the names of files begin."""
    inputs: list[Table]
    """Each with its name, the SHA-256 of its content, and how many structures were read."""
    skipped: list[str]
    """Inputs that could not be read, each with the reason."""
    versions: dict[str, str]
    """Versions of basinax and the packages that decide bits, of Python and the system."""
    device: str
    cores: int
    precision: str
    cache: str
    """Where compiled programs are kept."""
    flags: str
    """The flags of XLA, from the environment."""
    started: str
    ended: str
    """In UTC, as the start."""
    results: dict[str, int]
    """How many structures ended in which way."""

    def as_table(self) -> Table:
        """The settings, and all else as a table among them that config files pass over."""
        rest = dataclasses.asdict(self)
        return rest.pop("settings") | {RECORD: rest}


def recorded(
    command: str,
    settings: Table,
    inputs: list[Table],
    watch: Watch,
    results: dict[str, int],
    skipped: Sequence[str] = (),
) -> Record:
    """The record of a run that ends now.

    Args:
        settings: its options, as config files have them.
        results: how many structures ended in which way.
    """
    return Record(
        settings=settings,
        command=command,
        folder=_folder(),
        inputs=inputs,
        skipped=list(skipped),
        versions=_versions(settings["potential"]),
        device=jax.devices()[0].device_kind,
        cores=n_cores(),
        precision=settings["dtype"],
        cache=watch.cache,
        flags=os.environ.get("XLA_FLAGS", ""),
        started=text_of(watch.started),
        ended=now(),
        results=results,
    )


def now() -> str:
    """The time in UTC, as records have it."""
    return text_of(datetime.datetime.now(datetime.UTC))


def text_of(time: datetime.datetime) -> str:
    return time.isoformat(timespec="seconds")


def accept(changed: list[str], refusal: str, *, force: bool) -> None:
    """Warns of changes of a record; leaves with them and the refusal unless forced."""
    if changed and not force:
        fail(*changed, refusal)
    for change in changed:
        print_warning(change)


def _folder() -> str:
    """Empty where it has been removed meanwhile."""
    with suppress(OSError):
        return os.getcwd()
    return ""


def described(inputs: Inputs) -> list[Table]:
    """The files that were read, for a record."""
    return [
        named(path) | {"sha256": inputs.digests.get(path, ""), "structures": count}
        for path, count in Counter(inputs.paths).items()
    ]


def named(path: Path) -> Table:
    """A file by its name."""
    return {"file": name_of(path)}


def _versions(potential: str) -> dict[str, str]:
    """With that of the package whose model it is, where one is named."""
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
