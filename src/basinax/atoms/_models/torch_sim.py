"""Models of TorchSim's interface: `forward(state)` returns energies, forces and stress.

The interface is that of `torch_sim.models.interface.ModelInterface` 0.6. Without TorchSim, which
needs Python 3.12, a model is given a state of the same attributes.
"""

import dataclasses
import importlib
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from ase import Atoms

from basinax._settings import require_switch
from basinax.atoms._evaluators.calculator import bare
from basinax.atoms._evaluators.protocol import (
    AbstractEvaluator,
    AbstractSession,
    Answer,
    Evaluated,
    EvaluationError,
    Request,
)
from basinax.atoms._evaluators.worker import text_of
from basinax.atoms._matrices import VOIGT

LOOK = 0.1
"""Seconds of evaluations between two looks at their answers."""


@dataclasses.dataclass(frozen=True)
class TorchSimModel(AbstractEvaluator):
    """A model of TorchSim's interface as a potential, one structure a call.

    On CPU each structure has the bits that it has alone, with the same number of torch's threads.
    On GPUs models often add in another order at each call, alone too: see `probe`.

    Args:
        model: has `forward(state)`, which returns `energy` [systems], `forces` [atoms, 3] and
            `stress` [systems, 3, 3]; and optionally `device`, `dtype` and `compute_stress`.
        batched: evaluate all structures that wait in one call, those alike in their periodic
            directions. It is faster on GPUs, and last digits then depend on the other structures.

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

    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        moving = [k for k, needs in enumerate(needs_stress) if needs]
        if moving and not getattr(self.model, "compute_stress", True):
            raise ValueError(
                f"the cell of system {moving[0]} moves, but the model computes no stress: make it"
                " with compute_stress=True, or keep the cell fixed (cell=None)"
            )
        return TorchSession(bare(atoms), self.model, self.batched)


class TorchSession(AbstractSession):
    """A model at work, in this thread."""

    def __init__(self, atoms: list[Atoms], model: Any, batched: bool):
        self._atoms, self._model, self._batched = atoms, model, batched
        self._waiting: list[Request] = []

    def ask(self, requests: Sequence[Request]) -> None:
        self._waiting += requests

    def answers(self, timeout: float) -> list[Answer]:
        del timeout
        answers, begin = [], time.monotonic()
        while self._waiting and time.monotonic() - begin < LOOK:
            some = self._next()
            try:
                answers += self._evaluated(some)
            except Exception as error:
                wrong = EvaluationError(text_of(error))
                answers += [(request.number, wrong) for request in some]
        return answers

    def end(self, number: int) -> None:
        self._waiting = [r for r in self._waiting if r.number != number]

    def close(self) -> None:
        self._waiting = []

    def _next(self) -> list[Request]:
        """The first that waits, and where they are joined, those alike."""
        if not self._batched:
            return [self._waiting.pop(0)]
        pbc = self._atoms[self._waiting[0].number].pbc
        alike = [r for r in self._waiting if (self._atoms[r.number].pbc == pbc).all()]
        taken = {r.number for r in alike}
        self._waiting = [r for r in self._waiting if r.number not in taken]
        return alike

    def _evaluated(self, requests: list[Request]) -> list[Answer]:
        atoms = [self._atoms[request.number] for request in requests]
        found = self._model.forward(state_of(self._model, atoms, requests))
        arrays = {name: _array(value) for name, value in found.items() if _is_tensor(value)}
        sizes = [len(a) for a in atoms]
        shapes = {"energy": (len(atoms),), "forces": (sum(sizes), 3), "stress": (len(atoms), 3, 3)}
        needs_stress = any(request.needs_stress for request in requests)
        for name in ("energy", "forces", *(["stress"] if needs_stress else [])):
            if name not in arrays:
                raise EvaluationError(f"the model returned no {name}")
            if arrays[name].shape != shapes[name]:
                got = arrays[name].shape
                raise EvaluationError(
                    f"the model returned {name} of shape {got}, not {shapes[name]}"
                )
        ends = np.cumsum(sizes)
        answers: list[Answer] = []
        for k, request in enumerate(requests):
            energy, stress = float(arrays["energy"][k]), None
            forces = arrays["forces"][ends[k] - sizes[k] : ends[k]]
            results: dict[str, Any] = {"energy": energy, "forces": forces}
            if request.needs_stress:
                stress = np.array([arrays["stress"][k][i, j] for i, j in VOIGT])
                results["stress"] = stress
            answers.append((request.number, Evaluated(energy, forces, stress, results)))
        return answers


def state_of(model: Any, atoms: Sequence[Atoms], requests: Sequence[Request]) -> Any:
    """A state of TorchSim, whose cells stand in columns."""
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
    }
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


def _array(value: Any) -> np.ndarray:
    return np.array(value.detach().cpu().numpy(), np.float64)
