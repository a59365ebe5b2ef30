"""Models of the package nequix (https://github.com/atomicarchitects/nequix), from their files."""

import json
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax._jax.switches import usual_promotion
from basinax._text.reading import found
from basinax.atoms._models.weights import in_precision


class NequixEnergies(eqx.Module):
    """Energies of atoms, from vectors of pairs and atomic numbers."""

    model: Any
    index_of: Any
    """[119]: the index of each element among the model's species."""

    def __call__(self, vectors: Any, numbers: Any, senders: Any, receivers: Any) -> Any:
        with usual_promotion():
            species = self.index_of[numbers]
            return self.model.node_energies(vectors, species, senders, receivers)[:, 0]


def read_nequix(
    file: str | os.PathLike[str], dtype: np.dtype
) -> tuple[NequixEnergies, float, list[int]]:
    """The model of a file, its cutoff (Å), and its atomic numbers.

    Raises:
        OSError: the file does not exist.
        ImportError: nequix is not installed.
        ValueError: the file holds no model of nequix.
    """
    path = found(file)
    _check_is_model(path)
    try:
        from nequix.model import load_model  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            f"models of nequix need the package ({error.name} is missing): pip install --no-deps"
            " nequix, and pip install e3nn-jax jraph"
        ) from error
    try:
        with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
            model, config = load_model(str(path))
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read as a model of nequix: {text}") from error
    numbers = [int(z) for z in config["atomic_numbers"]]
    index_of = np.zeros(119, np.int32)
    index_of[numbers] = np.arange(len(numbers))
    energies = NequixEnergies(in_precision(model, dtype), jnp.asarray(index_of))
    return energies, float(config["cutoff"]), numbers


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
