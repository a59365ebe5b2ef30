"""Models of TorchSim's interface: `forward(state)` returns energies, forces and stress.

The interface is that of `torch_sim.models.interface.ModelInterface` 0.6. Without TorchSim, which
needs Python 3.12, a model receives a state with the same attributes.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from ase import Atoms

from basinax.models.evaluators.protocol import (
    AbstractModel,
    AbstractSession,
    Answer,
    EvaluationError,
    Request,
)
from basinax.models.evaluators.torchscript import warn_of_compiled
from basinax.models.evaluators.waiting import WaitingSession, evaluated_by_model, refuse_stress
from basinax.models.evaluators.worker import as_written
from basinax.numerics.settings import require_switch
from basinax.structures.batch import bare
from basinax.structures.charges import charge_of, check_totals, spin_of


@dataclasses.dataclass(frozen=True)
class TorchSimModel(AbstractModel):
    """A model of TorchSim's interface as a potential, one structure per call.

    The state has each structure's `charge` (in e) and `spin` (the multiplicity 2S + 1, 0 for a
    crystal that has none), and `partial_charges` and `magnetic_moments` of atoms, if initial ones
    are set.

    On CPU each structure has the bits of an evaluation alone, for the same number of torch's
    threads. On GPUs models often add in another order at each call, even alone: see `probe`.

    Args:
        model: an object with `forward(state)`, which returns `energy` [systems], `forces` [atoms,
            3] and `stress` [systems, 3, 3]; and optionally `device`, `dtype` and `compute_stress`.
        batched: evaluate all waiting structures with the same periodic directions in one call. This
            is faster on GPUs, but last digits then depend on the other structures. Where memory
            runs out, calls of half as many atoms follow.

    Raises:
        TypeError: `model` has no `forward`.
    """

    model: Any
    batched: bool = False

    def __post_init__(self) -> None:
        if not callable(getattr(self.model, "forward", None)):
            raise TypeError(
                "model must have forward(state), as a ModelInterface of TorchSim, got"
                f" {type(self.model).__name__}"
            )
        require_switch(self.batched, "batched")

    def check(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> None:
        if not getattr(self.model, "compute_stress", True):
            remedy = "make it with compute_stress=True"
            refuse_stress(needs_stress, "the model computes no stress", remedy)
        check_totals(atoms)

    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        warn_of_compiled([self.model])
        own = bare(atoms)
        evaluate = functools.partial(_answers, self.model, own)
        if self.batched:
            return WaitingSession(evaluate, functools.partial(_take_alike, own))
        return WaitingSession(evaluate)


def _take_alike(atoms: Sequence[Atoms], waiting: list[Request]) -> list[Request]:
    """Remove the first request, and all whose states have the same attributes as its own."""
    kinds = [_kind_of(atoms[request.number]) for request in waiting]
    is_alike = [kind == kinds[0] for kind in kinds]
    alike = [request for request, is_taken in zip(waiting, is_alike, strict=True) if is_taken]
    waiting[:] = [r for r, is_taken in zip(waiting, is_alike, strict=True) if not is_taken]
    return alike


_OF_ATOMS = {"initial_charges": "partial_charges", "initial_magmoms": "magnetic_moments"}
"""TorchSim's names of arrays that a structure may have."""


def _kind_of(atoms: Atoms) -> tuple[Any, ...]:
    """Periodic directions, and the components of arrays that a structure may have."""
    arrays = (atoms.arrays.get(name) for name in _OF_ATOMS)
    return *atoms.pbc.tolist(), *(None if x is None else x.shape[1:] for x in arrays)


def _answers(model: Any, structures: Sequence[Atoms], requests: list[Request]) -> list[Answer]:
    """The answers of one call of the model."""
    atoms = [structures[request.number] for request in requests]
    state = state_of(model, atoms, requests)
    with as_written():
        found = model.forward(state)
    if not isinstance(found, Mapping):
        raise EvaluationError(f"the model returned {type(found).__name__}, no dict of tensors")
    arrays = {name: _array(name, value) for name, value in found.items() if _is_tensor(value)}
    sizes = [len(a) for a in atoms]
    shapes = {"energy": (len(atoms),), "forces": (sum(sizes), 3), "stress": (len(atoms), 3, 3)}
    needs_stress = any(request.needs_stress for request in requests)
    for name in ("energy", "forces", *(["stress"] if needs_stress else [])):
        if name not in arrays:
            raise EvaluationError(f"the model returned no {name}")
        if (got := arrays[name].shape) != shapes[name]:
            raise EvaluationError(f"the model returned {name} of shape {got}, not {shapes[name]}")
    answers: list[Answer] = []
    forces = np.split(arrays["forces"], np.cumsum(sizes)[:-1])
    for k, request in enumerate(requests):
        stress = arrays["stress"][k] if request.needs_stress else None
        found = evaluated_by_model(request, float(arrays["energy"][k]), forces[k], stress)
        answers.append((request.number, found))
    return answers


def state_of(model: Any, atoms: Sequence[Atoms], requests: Sequence[Request]) -> Any:
    """A state of TorchSim, with cell vectors as columns.

    Args:
        atoms: structures with the same periodic directions and arrays.
    """
    torch: Any = importlib.import_module("torch")
    device = getattr(model, "device", None) or torch.device("cpu")
    dtype = getattr(model, "dtype", None) or torch.float64

    def tensor(array: Any, kind: Any) -> Any:
        return torch.tensor(np.ascontiguousarray(array), dtype=kind, device=device)

    index = np.repeat(np.arange(len(atoms)), [len(a) for a in atoms])
    cells = np.array([request.cell.T for request in requests])
    arrays = {
        "positions": tensor(np.concatenate([r.positions for r in requests]), dtype),
        "masses": tensor(np.concatenate([a.get_masses() for a in atoms]), dtype),
        "cell": tensor(cells, dtype),
        "pbc": tensor(atoms[0].pbc, torch.bool),
        "atomic_numbers": tensor(np.concatenate([a.numbers for a in atoms]), torch.int64),
        "system_idx": tensor(index, torch.int64),
        "charge": tensor([charge_of(a) for a in atoms], dtype),
        "spin": tensor([spin_of(a) for a in atoms], dtype),
    }
    for name, theirs in _OF_ATOMS.items():
        if name in atoms[0].arrays:
            arrays[theirs] = tensor(np.concatenate([a.arrays[name] for a in atoms]), dtype)
    try:
        from torch_sim.state import SimState  # pyright: ignore[reportMissingImports]
    except ImportError:
        rows = arrays["cell"].transpose(-2, -1)
        sizes = {"n_systems": len(atoms), "n_atoms": len(index)}
        further = {"row_vector_cell": rows, "device": device, "dtype": dtype}
        return SimpleNamespace(**arrays, **sizes, **further)
    return SimState(**arrays)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach")


def _array(name: str, value: Any) -> np.ndarray:
    array = value.detach().cpu().numpy()
    if np.iscomplexobj(array):
        raise EvaluationError(f"the model returned complex {name}")
    return np.array(array, np.float64)
