"""A process that evaluates structures with an ASE calculator of its own, in a folder of its own.

The script imports neither JAX nor basinax, which would take a second and a hundred MB in each
process. Its pipe carries first the paths of modules, the function that makes calculators and two
folders, then structures, each with one answer. The process ends with its parent.
"""

import contextlib
import inspect
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.calculators.calculator import BaseCalculator, all_changes
from ase.calculators.singlepoint import SinglePointCalculator

MOST_KEPT = 10
"""The number of failed structures of a process whose files are kept."""

STARTING = "BASINAX_WORKER_STARTING"
"""A variable of the environment of processes that do not have their function yet."""

MOST_PARTS = 100
"""Longer containers are not searched for calculators."""


def is_calculator(thing: Any) -> bool:
    """Whether ASE's `atoms.calc` could be this: a calculator of ASE, or an object like one."""
    if isinstance(thing, BaseCalculator):
        return True
    if isinstance(thing, type) or hasattr(thing, "get_positions"):  # structures and filters
        return False
    asked = ("get_potential_energy", "get_forces")
    return all(callable(getattr(thing, name, None)) for name in asked)


def implemented_by(calculator: Any) -> list[str]:
    """The properties that a calculator has, by ASE's names."""
    said = getattr(calculator, "implemented_properties", None)
    if said is not None:
        return list(said)
    has_stress = callable(getattr(calculator, "get_stress", None))
    return ["energy", "forces", *(["stress"] if has_stress else [])]


def nested(calculator: Any) -> Iterator[Any]:
    """A calculator and those inside it: in attributes, in containers there, and in mixers."""
    waiting, seen = [calculator], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, SinglePointCalculator):
            continue
        seen.add(id(one))
        if is_calculator(one):
            yield one
            parts = getattr(one, "__dict__", {})
        else:
            parts = getattr(one, "calcs", one)
        parts = list(parts.values()) if isinstance(parts, dict) else parts
        if isinstance(parts, list | tuple | set) and len(parts) <= MOST_PARTS:
            waiting += parts


def forget(calculator: Any) -> None:
    """Reset a calculator and all inside it."""
    for part in nested(calculator):
        if callable(getattr(part, "reset", None)):
            part.reset()
        elif isinstance(part, BaseCalculator):
            part.atoms, part.results = None, {}


def as_written() -> contextlib.AbstractContextManager[None]:
    """A context in which TorchScript runs models as they are written, if torch is loaded.

    Otherwise it compiles a model anew after its first calls, and last digits change from then on.
    """
    jit = getattr(sys.modules.get("torch"), "jit", None)
    switch = getattr(jit, "optimized_execution", None)
    return contextlib.nullcontext() if switch is None else switch(False)


def compute(calculator: Any, atoms: Atoms, names: list[str], *, is_reset: bool) -> dict[str, Any]:
    """All results of a calculator at these positions, without its cache; errors are not caught."""
    if is_reset:
        forget(calculator)
    with as_written():
        if not isinstance(calculator, BaseCalculator):
            return _asked(calculator, atoms, names)
        calculator.calculate(atoms, names, list(all_changes))
        return dict(calculator.results)


def _asked(calculator: Any, atoms: Atoms, names: list[str]) -> dict[str, Any]:
    """The results of an object that has the methods of a calculator alone."""
    found = {"energy": calculator.get_potential_energy(atoms)}
    found["forces"] = calculator.get_forces(atoms)
    if "stress" in names:
        found["stress"] = calculator.get_stress(atoms)
    if "force_consistent" in inspect.signature(calculator.get_potential_energy).parameters:
        try:
            free = calculator.get_potential_energy(atoms, force_consistent=True)
        except NotImplementedError:
            free = None
        found["free_energy"] = free
    return found


def loaded(known: set[str]) -> dict[str, str]:
    """The files of modules that are new in this process, by name; adds the names to the known."""
    new = [name for name in list(sys.modules) if name not in known]
    known.update(new)
    files = {name: getattr(sys.modules[name], "__dict__", {}).get("__file__") for name in new}
    return {name: file for name, file in files.items() if isinstance(file, str)}


def text_of(error: BaseException) -> str:
    """An error as one line of text."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


class Maker:
    """Makes calculators in the caller's folder, each with a folder to work in."""

    def __init__(self, make: Callable[[], Any], root: str, caller: str):
        folders = runpy.run_path(str(Path(__file__).with_name("folders.py")))
        self._folder, self._names, self._texts_of = (
            folders[name] for name in ("Folder", "Names", "texts_of")
        )
        self._make, self._root, self._caller = make, root, caller

    def made(self, name: str) -> tuple[Any, Any]:
        """A calculator and its folder, whose root has this name."""
        os.chdir(self._caller)
        calculator, root = self._make(), os.path.join(self._root, name)
        if not hasattr(calculator, "get_potential_energy"):
            raise TypeError(f"the function returned {calculator!r}, which is no calculator")
        names = self._names([*_relative(os.environ), *self._texts_of(calculator)])
        parts: list[Any] = list(nested(calculator))
        written = [getattr(x, "directory", None) for x in parts]
        written = [str(path) for path in written if isinstance(path, str | os.PathLike)]
        folder = self._folder(root, self._caller, names, written)
        for part in parts:
            path = getattr(part, "directory", None)
            if isinstance(path, str | os.PathLike) and os.path.isabs(path):
                inside = root + os.path.normpath(path)
                part.directory = inside if isinstance(path, str) else Path(inside)
        return calculator, folder


def _relative(environment: Mapping[str, str]) -> list[str]:
    """The values that may be relative paths."""
    return [value for value in environment.values() if not os.path.isabs(value)]


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one
    os.dup2(2, 1)  # calculators print, and the parent's standard output may be a table
    pipe = Connection(descriptor)
    sys.path[:], packed, reuse, caller, root = pipe.recv()
    with contextlib.suppress(OSError):  # the parent process has ended
        _evaluate(pipe, packed, reuse, caller, root)
    shutil.rmtree(root, ignore_errors=True)


class Calculators:
    """One calculator for all structures or, with `reuse`, one for each."""

    def __init__(self, maker: Maker, *, reuse: bool):
        oom = runpy.run_path(str(Path(__file__).parents[2] / "numerics" / "oom.py"))
        self._is_out_of_memory = oom["is_out_of_memory"]
        self._maker, self._reuse, self._n_kept = maker, reuse, 0
        self.shared = maker.made("shared")
        self._own: dict[int, tuple[Any, Any]] = {}

    def answer(
        self, number: int, atoms: Atoms, names: list[str], begin: Callable[[], None]
    ) -> tuple[str, Any]:
        """What is sent back for a structure: "found" with results, or else with the reason.

        Args:
            begin: called once a calculator of its own has been made.
        """
        folder = None
        try:
            calculator, folder = self._of(number)
            if self._reuse:
                begin()
            os.chdir(folder.path)
            if not self._reuse:
                folder.clean()
            found = compute(calculator, atoms, names, is_reset=not self._reuse)
            folder.check_shared()
            missing = [name for name in names if found.get(name) is None]
            if not missing:
                return "found", found
            text = f"the calculator returned no {missing[0]}"
        except Exception as error:
            text = text_of(error)
            if self._is_out_of_memory(error):  # this process ends, which frees the most
                return "short", text
        if folder is not None and self._n_kept < MOST_KEPT and folder.has_written():
            self._n_kept += 1
            text = f"{text}; its files are in {folder.kept()}"
        return "failed", text

    def end(self, number: int) -> None:
        if number in self._own:
            _, folder = self._own.pop(number)
            shutil.rmtree(folder.root, ignore_errors=True)

    def _of(self, number: int) -> tuple[Any, Any]:
        """The calculator of a structure, and its folder."""
        if not self._reuse:
            return self.shared
        if number not in self._own:
            made = self._maker.made(str(number))
            if any(made[0] is held for held, _ in (self.shared, *self._own.values())):
                raise TypeError(
                    "the function returned one calculator twice: with reuse=True each structure"
                    " needs its own"
                )
            self._own[number] = made
        return self._own[number]


def _evaluate(pipe: Connection, packed: bytes, reuse: bool, caller: str, root: str) -> None:
    try:
        import cloudpickle

        known = set(sys.modules)
        os.chdir(caller)
        make = cloudpickle.loads(packed)
        os.environ.pop(STARTING, None)
        calculators = Calculators(Maker(make, root, caller), reuse=reuse)
        pipe.send(("loaded", loaded(known)))
        pipe.send(("ready", implemented_by(calculators.shared[0])))
    except Exception as error:
        pipe.send(("unmade", text_of(error)))
        return
    while True:
        try:
            number, atoms, names = pipe.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # an object that cannot be made here
            pipe.send(("failed", text_of(error)))
            continue
        if atoms is None:
            calculators.end(number)
            continue
        answer = calculators.answer(number, atoms, names, lambda: pipe.send(("begun", None)))
        if len(sys.modules) != len(known):
            pipe.send(("loaded", loaded(known)))
        try:
            pipe.send_bytes(cloudpickle.dumps(answer))
        except Exception as error:  # the result cannot be pickled
            pipe.send(("failed", text_of(error)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
