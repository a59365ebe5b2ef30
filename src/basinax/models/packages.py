"""Models of the packages nequix and mlip, whose energies of atoms are functions of a graph.

https://github.com/atomicarchitects/nequix and https://github.com/instadeepai/mlip, version 0.2.
"""

import dataclasses
import functools
import inspect
import json
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax.config.reading import found
from basinax.numerics.programs import PACKAGES
from basinax.numerics.switches import usual_promotion

WEIGHTS = (
    "Weights of nequix are files of its repository, https://github.com/atomicarchitects/nequix,"
    " such as models/nequix-mp-1.nqx"
)


class Nequix(eqx.Module):
    """Energies of atoms, from vectors of pairs and atomic numbers."""

    model: Any
    index_of: Any
    """[119]: the index of each element among the model's species."""

    def __call__(self, vectors: Any, numbers: Any, senders: Any, receivers: Any) -> Any:
        with usual_promotion():
            species = self.index_of[numbers]
            return self.model.node_energies(vectors, species, senders, receivers)[:, 0]


def read_nequix(file: str | os.PathLike[str], dtype: np.dtype) -> tuple[Nequix, float, list[int]]:
    """The model of a file, its cutoff (Å), and its atomic numbers.

    Raises:
        OSError: the file does not exist; the message says where files are.
        ImportError: nequix is not installed.
        ValueError: the file holds no model of nequix.
    """
    try:
        path = found(file)
    except FileNotFoundError as error:
        text = f"{error.strerror}. {WEIGHTS}"
        raise FileNotFoundError(error.errno, text, error.filename) from None
    _check_is_model(path)
    try:
        import e3nn_jax  # pyright: ignore[reportMissingImports]
        from nequix.model import load_model  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"models of nequix need the package ({error.name} is missing): pip install --no-deps"
            " nequix, and pip install e3nn-jax jraph"
        ) from error
    try:
        with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
            model, config = _unfilled(load_model)(str(path))
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read as a model of nequix: {text}") from error
    # Its programs are found without a trace, which reads the configuration of e3nn_jax.
    settings = functools.partial(inspect.getclosurevars, e3nn_jax.config)
    PACKAGES.update(nequix=list, jraph=list, e3nn_jax=lambda: settings().globals)
    numbers = [int(z) for z in config["atomic_numbers"]]
    index_of = np.zeros(119, np.int32)
    index_of[numbers] = np.arange(len(numbers))
    energies = Nequix(in_precision(model, dtype), jnp.asarray(index_of))
    return energies, float(config["cutoff"]), numbers


def _unfilled(load_model: Callable[..., Any]) -> Callable[..., Any]:
    """nequix's `load_model`, which fills a model by weights from its file.

    The package fills it with random weights before, for which it compiles 88 programs.
    """
    names: dict[str, Any] = load_model.__globals__  # pyright: ignore[reportFunctionMemberAccess]
    empty = functools.partial(eqx.filter_eval_shape, names["Nequix"])
    code, defaults = load_model.__code__, load_model.__defaults__  # pyright: ignore[reportFunctionMemberAccess]
    return types.FunctionType(code, names | {"Nequix": empty}, argdefs=defaults)


def _check_is_model(path: Path) -> None:
    """Raise ValueError unless the first line is that of a model."""
    with path.open("rb") as file:
        line = file.readline(1 << 20)
    try:
        config = json.loads(line)
        is_model = {"atomic_numbers", "cutoff", "hidden_irreps"} <= set(config)
    except (ValueError, TypeError):
        is_model = False
    if not is_model:
        raise ValueError(f"{path} is no model of nequix: its first line is not that of a .nqx file")


class Mlip(eqx.Module):
    """Energies of atoms, from a graph; JAX derives forces and stress from them."""

    params: Any
    force_field: Any = eqx.field(static=True)
    """The force field, compared by identity as in the package; its own parameters are unused."""

    def __call__(
        self,
        positions: Any,
        cell: Any,
        numbers: Any,
        senders: Any,
        receivers: Any,
        shifts: Any,
        **totals: Any,
    ) -> Any:
        from mlip.graph import (  # pyright: ignore[reportMissingImports]
            EdgeOrdering,
            Graph,
            GraphEdges,
            GraphGlobals,
            GraphNodes,
        )
        from mlip.typing.properties import Properties  # pyright: ignore[reportMissingImports]

        # mlip's `senders` are central atoms, and it needs pairs in their order. A single graph has
        # no padding in mlip, so spare atoms count as atoms.
        of_graph = {_NAMES[name]: x[None].astype(jnp.int32) for name, x in totals.items()}
        graph = Graph(
            nodes=GraphNodes(positions=positions, atomic_numbers=numbers),
            edges=GraphEdges(shifts=shifts),
            globals=GraphGlobals(cell=cell[None], weight=jnp.ones(1, cell.dtype), **of_graph),
            n_node=jnp.array([len(positions)]),
            n_edge=jnp.array([len(senders)]),
            senders=receivers,
            receivers=senders,
            ordering=EdgeOrdering.SENDER,
        )
        with usual_promotion():
            field = self.force_field.replace_required_properties(Properties(forces=False))
            found = dataclasses.replace(field, params=self.params).calculate(graph)
        return found.nodes.features["energy"].astype(positions.dtype)


_NAMES = {"charge": "charge", "spin": "spin_multiplicity"}
"""Names in mlip's graphs."""


def asked_of(force_field: Any) -> list[str]:
    """Which of charge and spin a force field reads, by its configuration."""
    config = getattr(force_field, "config", None)
    routed = getattr(getattr(config, "moe", None), "routing_globals", ())
    reads_charge = ("use_total_charge_embedding", "predict_partial_charges")
    asks = [name for name, theirs in _NAMES.items() if theirs in routed]
    if any(getattr(config, name, False) for name in reads_charge):
        asks = ["charge", *(name for name in asks if name != "charge")]
    return asks


def read_mlip(force_field: Any, dtype: np.dtype) -> tuple[Mlip, float, list[int]]:
    """The energies of a force field, its cutoff (Å), and its atomic numbers.

    Raises:
        TypeError: the object is no force field.
        ValueError: it needs more than positions, cell and elements within its cutoff.
    """
    try:
        params, cutoff = force_field.params, float(force_field.cutoff_distance)
        numbers = sorted(int(z) for z in force_field.allowed_atomic_numbers)
        far = force_field.long_range_cutoff_distance
    except AttributeError:
        raise TypeError(
            "force_field must be a ForceField of mlip, such as load_model_from_zip returns, got"
            f" {type(force_field).__name__}"
        ) from None
    if far is not None:
        raise ValueError(
            "force fields of mlip with a second, long-range list of neighbours are not supported"
        )
    return Mlip(in_precision(params, dtype), force_field), cutoff, numbers


def in_precision(weights: Any, dtype: np.dtype) -> Any:
    """A tree whose arrays of floats have this dtype, float32 or float64."""
    with jax.enable_x64(dtype == np.float64):
        return jax.tree.map(lambda leaf: _converted(leaf, dtype), weights)


def _converted(leaf: Any, dtype: np.dtype) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(np.asarray(leaf), dtype)
    return leaf
