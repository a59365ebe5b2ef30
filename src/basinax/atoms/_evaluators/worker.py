"""A process that evaluates structures with an ASE calculator of its own.

The script imports neither JAX nor basinax, which would take a second and a hundred MB in each
process. Its pipe carries first the paths of modules and the function that makes calculators, then
structures, each with one answer. The process ends with its parent.
"""

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from ase import Atoms
from ase.calculators.calculator import all_changes


def forget(calculator: Any) -> None:
    """Reset a calculator, and the calculators inside a sum or a mixture."""
    for part in getattr(getattr(calculator, "mixer", None), "calcs", ()):
        forget(part)
    if callable(getattr(calculator, "reset", None)):
        calculator.reset()
    else:
        calculator.atoms, calculator.results = None, {}


def compute(calculator: Any, atoms: Atoms, names: list[str], *, is_reset: bool) -> dict[str, Any]:
    """All results of a calculator at these positions, without its cache; errors are not caught."""
    if is_reset:
        forget(calculator)
    calculator.calculate(atoms, names, list(all_changes))
    return dict(calculator.results)


def loaded(known: set[str]) -> dict[str, str]:
    """The files of modules that are new in this process, by name; adds the names to the known."""
    new = [name for name in list(sys.modules) if name not in known]
    known.update(new)
    files = {name: getattr(sys.modules[name], "__dict__", {}).get("__file__") for name in new}
    return {name: file for name, file in files.items() if isinstance(file, str)}


def text_of(error: BaseException) -> str:
    """An error as one line of text."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    os.dup2(2, 1)  # calculators print, and the parent's standard output may be a table
    pipe = Connection(descriptor)
    try:
        import cloudpickle

        known = set(sys.modules)
        sys.path[:], packed, reuse = pipe.recv()
        make = cloudpickle.loads(packed)
        calculator = make()
        pipe.send(("loaded", loaded(known)))
        pipe.send(("ready", list(calculator.implemented_properties)))
    except Exception as error:
        pipe.send(("unmade", text_of(error)))
        return
    own: dict[int, Any] = {}
    while True:
        try:
            number, atoms, names = pipe.recv()
        except EOFError:
            return
        if atoms is None:
            own.pop(number, None)
            continue
        try:
            if reuse and number not in own:
                own[number] = make()
            found = compute(own.get(number, calculator), atoms, names, is_reset=not reuse)
            answer = "found", found
        except Exception as error:
            answer = "failed", text_of(error)
        if len(sys.modules) != len(known):
            pipe.send(("loaded", loaded(known)))
        try:
            pipe.send(answer)
        except Exception as error:  # the result cannot be pickled
            pipe.send(("failed", text_of(error)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
