"""A stand-in for torch: its scripts are compiled anew at the third call, as TorchScript's are."""

import contextlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

from calculators import Springs


class Module:
    def modules(self):
        return [self, *(part for part in vars(self).values() if isinstance(part, Module))]


class Script(Module):
    """A factor whose last digits change when it is compiled."""

    is_optimized = True

    def __init__(self):
        self.n_calls = 0

    def __call__(self):
        self.n_calls += Script.is_optimized
        return 1 + 4e-16 * (self.n_calls > 2)

    def get_debug_state(self):
        if self.n_calls < 2:
            raise RuntimeError("nothing is compiled")
        return SimpleNamespace(execution_plans=["a plan"])


class Network(Module):
    def __init__(self):
        self.script = Script()


class Function(Script):
    """A script that many models share, which no module holds."""


SHARED = Function()


@contextlib.contextmanager
def optimized_execution(value):
    before, Script.is_optimized = Script.is_optimized, value
    try:
        yield
    finally:
        Script.is_optimized = before


class Tensor(np.ndarray):
    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return np.asarray(self)

    def transpose(self, *axes):
        return self.swapaxes(*axes)


def tensor(values, dtype=None, device=None):
    del device
    return np.array(values, dtype).view(Tensor)


TORCH = ModuleType("torch")
TORCH.device, TORCH.tensor = str, tensor
TORCH.float64, TORCH.int64, TORCH.bool = np.float64, np.int64, np.bool_
TORCH.nn = SimpleNamespace(Module=Module)
TORCH.jit = SimpleNamespace(
    ScriptModule=Script, ScriptFunction=Function, optimized_execution=optimized_execution
)


class Scripted(Springs):
    """Springs whose stiffness is the product of two scripts, of its network and the shared one."""

    def __init__(self):
        super().__init__()
        self.models = [Network()]

    def calculate(self, atoms=None, properties=None, system_changes=()):
        super().calculate(atoms, properties, system_changes)
        factor = self.models[0].script() * SHARED()
        for name in ("energy", "free_energy", "forces"):
            self.results[name] = self.results[name] * factor


def scripted() -> Scripted:
    """A calculator that brings its torch, as a function for processes does."""
    sys.modules["torch"] = TORCH
    return Scripted()
