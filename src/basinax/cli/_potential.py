"""The potential of the options, or of the config file that they name."""

import dataclasses
from typing import Any

import jax

from basinax._text.config import read_config
from basinax.atoms import ASECalculator, JaxModel, potential_from
from basinax.cli._console import err, fail, print_line, reported
from basinax.cli._inputs import read_all
from basinax.cli._options import Dtype, Model

IMPORTING = ("ase", "nequix", "python")
"""Kinds of potentials that run code of others."""


def read_model(given: Model) -> tuple[Any, list[Any], list[str]]:
    """The potential and the structures, with a name for each, in the precision of the options."""
    if given.dtype is Dtype.FLOAT64:
        jax.config.update("jax_enable_x64", True)
    with reported():
        potential = potential_of(given)
    return potential, *read_all(given.files)


def potential_of(given: Model) -> Any:
    """Raises what `potential_from` and `read_config` do."""
    text, workers = given.potential, given.workers
    if text.endswith((".json", ".toml")) and ":" not in text:
        config = read_config(text)
        unknown = sorted(set(config) - {"potential", "workers"})
        if unknown or not isinstance(config.get("potential"), str):
            got = f"got {', '.join(unknown)}" if unknown else "got no text as potential"
            fail(f"{text}: expected potential, a text, and workers, a number, {got}")
        file, text, workers = text, config["potential"], workers or config.get("workers")
        if text.partition(":")[0].strip().lower() in IMPORTING:
            print_line(err, f"{file} names {text}, whose code runs now")
    potential = potential_from(text)
    if workers is None:
        return potential
    if not isinstance(potential, ASECalculator | JaxModel):
        fail(
            "--workers is for calculators of ASE and models: --potential ase:MODULE:CALLABLE,"
            " nequix:FILE or python:FILE.py:NAME"
        )
    return dataclasses.replace(potential, workers=workers)
