"""The potential from the options, or from a config file that they name."""

import dataclasses
import os
from typing import Any

import jax

from basinax._text.tables import read_config
from basinax.atoms import ASECalculator, JaxModel, potential_from
from basinax.cli._config import is_config, potential_in
from basinax.cli._console import err, fail, print_line, reported
from basinax.cli._inputs import Inputs, read_all
from basinax.cli._modules import noted
from basinax.cli._options import Dtype, Model

IMPORTING = ("ase", "nequix", "python")
"""Kinds of potentials that run foreign code."""


def read_model(given: Model) -> tuple[Any, Inputs]:
    """The potential and the structures, in the precision of the options."""
    if given.dtype is Dtype.FLOAT64:
        jax.config.update("jax_enable_x64", True)
    with reported():
        potential = potential_of(given)
    return potential, read_all(given)


def potential_of(given: Model) -> Any:
    """The potential; raises like `potential_from` and `potential_in`."""
    text, workers = given.potential, given.workers
    file = None if given.config is None else os.fspath(given.config)
    if file is not None and read_config(file).get("potential") != text:
        file = None
    if is_config(text):
        config = potential_in(text)
        file, text, workers = text, config["potential"], workers or config.get("workers")
    if file is not None and text.partition(":")[0].strip().lower() in IMPORTING:
        print_line(err, f"{file} names {text}, whose code runs now")
    with noted():
        potential = potential_from(text)
    if workers is None:
        return potential
    if not isinstance(potential, ASECalculator | JaxModel):
        fail(
            "--workers is for calculators of ASE and models: --potential ase:MODULE:CALLABLE,"
            " nequix:FILE or python:FILE.py:NAME"
        )
    return dataclasses.replace(potential, workers=workers)
