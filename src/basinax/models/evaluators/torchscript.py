"""TorchScript in this process: what it has compiled anew keeps other last digits.

Evaluations of a session run models as they are written (`worker.as_written`), so that their last
digits follow from the structure alone. Calls before it, by other code, may have compiled parts of a
model for good, and functions that all models share.
"""

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from basinax.models.evaluators.worker import nested
from basinax.numerics.settings import warn


def warn_of_compiled(evaluating: Iterable[Any]) -> None:
    """Warn if TorchScript has compiled anew what these calculators or torch modules run.

    torch is not imported: where it is not loaded, there is no TorchScript.
    """
    torch: Any = sys.modules.get("torch")
    script = getattr(torch, "jit", None)
    if script is None:
        return
    distinct = {id(x): x for x in evaluating}.values()
    modules = [m for x in distinct for module in _torch_modules(torch, x) for m in module.modules()]
    scripted = [m for m in modules if isinstance(m, script.ScriptModule)]
    if not scripted:
        return
    functions = [x for x in gc.get_objects() if type(x) is script.ScriptFunction]
    if any(map(_is_compiled, [*scripted, *functions])):
        warn(
            "TorchScript has compiled this model anew for calls before this one, so last digits"
            " differ from those in another process: make such calls inside `with"
            " torch.jit.optimized_execution(False):`, or pass ASECalculator with a function that"
            " makes the calculator, for processes of its own",
            RuntimeWarning,
        )


def _torch_modules(torch: Any, evaluating: Any) -> Iterator[Any]:
    """A module of torch itself, or those in attributes of a calculator."""
    parts = [evaluating]
    for calculator in nested(evaluating):
        for value in getattr(calculator, "__dict__", {}).values():
            held = value.values() if isinstance(value, dict) else value
            parts += held if isinstance(held, list | tuple) else [value]
    yield from (part for part in parts if isinstance(part, torch.nn.Module))


def _is_compiled(script: Any) -> bool:
    try:
        return bool(script.get_debug_state().execution_plans)
    except RuntimeError:  # nothing is compiled anew
        return False
