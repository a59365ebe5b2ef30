"""Potentials from Python files: `FILE.py:NAME`."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from basinax.config.reading import found
from basinax.models.evaluators.calculator import ASECalculator
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.models.evaluators.worker import is_calculator
from basinax.potentials import AbstractPotential

NAMED_BY_FILE = "basinax_file_"
"""The first characters of the names of modules that are files given by the user."""


def potential_of_file(text: str) -> AbstractPotential | AbstractEvaluator:
    """The potential of `FILE.py:NAME`: run the file, and take NAME from it.

    NAME is a potential, an ASE calculator, or a function without arguments that makes one. A
    function that makes calculators is called in each process.

    Raises:
        ValueError: the file cannot be run, or has no usable object of this name.
        OSError: the file does not exist.
    """
    import cloudpickle

    file, colon, name = text.rpartition(":")
    if not (colon and file and name):
        raise ValueError(f"potential python: expected python:FILE.py:NAME, got {text!r}")
    module = _module_of(found(file))
    try:
        value: Any = getattr(module, name)
    except AttributeError:
        known = ", ".join(key for key in vars(module) if not key.startswith("_"))
        raise ValueError(f"potential python: {file} has no {name}, but {known}") from None
    # Other processes cannot import the file by its name, and receive its objects by value.
    cloudpickle.register_pickle_by_value(module)
    is_maker = callable(value) and not (isinstance(value, _POTENTIALS) or is_calculator(value))
    if is_maker and (missing := _needed(value)):
        raise ValueError(
            f"potential python: {name} of {file} needs {missing}: NAME must be a potential, an ASE"
            " calculator, or a function without arguments that makes one; for a function of a graph"
            " write model = JaxModel.of_vectors(function, cutoff), and name model"
        )
    made = cast(Any, value)() if is_maker else value
    if is_calculator(made):
        return ASECalculator(value if is_maker else made)
    if not isinstance(made, AbstractPotential | AbstractEvaluator):
        raise ValueError(
            f"potential python: {name} of {file} must be a potential, an ASE calculator, or a"
            f" function that makes one, got {type(made).__name__}"
        )
    return made


_POTENTIALS: Any = (AbstractPotential, AbstractEvaluator)


def _needed(function: Callable[..., Any]) -> str:
    """The names of the arguments without which it cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function without a signature
        return ""
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(p.name for p in parameters if p.default is p.empty and p.kind not in free)


def _module_of(path: Path) -> ModuleType:
    name = f"{NAMED_BY_FILE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no file of Python: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look modules up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module
