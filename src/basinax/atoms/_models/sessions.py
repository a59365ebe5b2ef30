"""Models that evaluate the structures of a call: in threads, or all waiting ones in one graph."""

import collections
import dataclasses
import logging
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np
from ase import Atoms

from basinax._jax.compilations import counter_of_thread
from basinax._jax.fixed import Fixed
from basinax._jax.shortage import is_out_of_memory
from basinax._jax.switches import switched, switches
from basinax.atoms._charges import TOTALS
from basinax.atoms._evaluators.protocol import (
    AbstractSession,
    Answer,
    Evaluated,
    EvaluationError,
    Request,
)
from basinax.atoms._evaluators.waiting import (
    WaitingSession,
    bare,
    evaluated_by_model,
    failure_of,
)
from basinax.atoms._models.graphs import (
    AbstractLayout,
    Graph,
    Shape,
    graph_of,
    padded,
    shape_of,
)
from basinax.atoms._models.lanes import Lane, Lanes
from basinax.atoms._models.programs import evaluate, evaluate_joined

_LOG = logging.getLogger("basinax")


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled function of graphs."""

    fixed: Fixed
    arrays: Any
    cutoff: float
    dtype: np.dtype
    layout: AbstractLayout
    asks: tuple[str, ...] = ()
    """Numbers of the structure that the function asks for by name."""

    @property
    def switches(self) -> dict[str, Any]:
        """JAX's switches during an evaluation of the model."""
        return {"jax_enable_x64": self.dtype == np.float64}

    def arrays_on(self, devices: Sequence[Any]) -> dict[Any, Any]:
        """The function's arrays on each of the devices; None is JAX's default."""
        return {
            device: self.arrays if device is None else jax.device_put(self.arrays, device)
            for device in set(devices)
        }

    def abstract_graph(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the graph of one atom."""
        none, cell = np.zeros(3), np.eye(3)
        graph = graph_of(none[None], cell, none > 0, np.ones(1, int), self.cutoff)
        _, arrays = self.layout.arrays(graph, self.cutoff, self.dtype)
        arrays |= self._totals(Atoms("H"))
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items()}

    def graph(self, atoms: Atoms, request: Request) -> Graph:
        """The graph of a structure. Raises EvaluationError if there is none."""
        place = request.positions, request.cell
        try:
            return graph_of(*place, atoms.pbc, atoms.numbers, self.cutoff)
        except ValueError as error:
            raise EvaluationError(str(error)) from error

    def laid_out(self, atoms: Atoms, request: Request) -> tuple[Shape, dict[str, np.ndarray]]:
        """The arrays of a structure's graph. Raises EvaluationError if there are none."""
        graph = self.graph(atoms, request)
        try:
            shape, arrays = self.layout.arrays(graph, self.cutoff, self.dtype)
        except ValueError as error:
            raise EvaluationError(str(error)) from error
        return shape, arrays | self._totals(atoms)

    def _totals(self, atoms: Atoms) -> dict[str, np.ndarray]:
        """The numbers of a structure, by name."""
        return {name: np.asarray(TOTALS[name](atoms), self.dtype) for name in self.asks}


class OneByOne(AbstractSession):
    """Threads that evaluate one structure each at a time."""

    def __init__(self, atoms: Sequence[Atoms], program: Program, lanes: Sequence[Any]):
        """Args: lanes: the device of each thread; None for JAX's default."""
        self._atoms, self._program, self._lanes = bare(atoms), program, Lanes(lanes)
        self._arrays = program.arrays_on(lanes)
        self._switches = switches() | program.switches
        self._pool = ThreadPoolExecutor(len(lanes), thread_name_prefix="model")
        self._futures: dict[Future[Evaluated], int] = {}
        self._compiling = collections.defaultdict[Any, threading.Lock](threading.Lock)
        self._compiled = set[tuple[Any, Shape]]()

    def ask(self, requests: Sequence[Request]) -> None:
        counter = counter_of_thread()
        for request in requests:
            future = self._pool.submit(self._counted, request, counter)
            self._futures[future] = request.number

    def answers(self, timeout: float) -> list[Answer]:
        done, _ = wait(self._futures, timeout, FIRST_COMPLETED)
        return [(self._futures.pop(future), _found(future)) for future in done]

    def end(self, number: int) -> None:
        for future in [f for f, of in self._futures.items() if of == number]:
            future.cancel()
            del self._futures[future]

    def close(self) -> None:
        # A compiler may run for minutes; do not wait for it after an interrupt.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _counted(self, request: Request, counter: Any) -> Evaluated:
        with switched(self._switches), counter.counted():
            return self._evaluated(request)

    def _evaluated(self, request: Request) -> Evaluated:
        atoms = self._atoms[request.number]
        shape, arrays = self._program.laid_out(atoms, request)
        found = None
        while found is None:
            with self._lanes.turn() as lane:
                found = self._found(lane, shape, arrays)
        return evaluated(len(atoms), request, *found)

    def _found(
        self, lane: Lane, shape: Shape, arrays: dict[str, np.ndarray]
    ) -> list[np.ndarray] | None:
        """The results of the program; None if memory ran out and lanes were reduced."""
        try:
            return self._run(lane.device, shape, arrays)
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if not self._lanes.fewer(lane):
                text = f"memory has run out for this structure alone: {failure_of(error)}"
                raise EvaluationError(text) from error
        text = "memory has run out: no more than half as many structures are evaluated at a time"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        _LOG.info("%s", text)
        return None

    def _run(self, device: Any, shape: Shape, graph: dict[str, np.ndarray]) -> list[np.ndarray]:
        program = device, shape
        if program in self._compiled:
            return self._called(device, graph)
        with self._compiling[program]:
            begin = time.monotonic()
            found = self._called(device, graph)
            if program not in self._compiled:
                text = "model: %d atoms and %d pairs at most: first evaluation %.1f s"
                _LOG.info(text, *shape, time.monotonic() - begin)
            self._compiled.add(program)
        return found

    def _called(self, device: Any, graph: dict[str, np.ndarray]) -> list[np.ndarray]:
        there = graph if device is None else jax.device_put(graph, device)
        found = evaluate(self._program.fixed, self._arrays[device], there)
        return [np.asarray(x, np.float64) for x in jax.device_get(found)]


def joined(atoms: Sequence[Atoms], program: Program) -> AbstractSession:
    """All waiting structures in one graph; digits depend on the structures that wait."""
    structures = bare(atoms)

    def take_all(waiting: list[Request]) -> list[Request]:
        taken = waiting[:]
        waiting.clear()
        return taken

    def evaluate(requests: list[Request]) -> list[Answer]:
        answers, graphs, usable = [], [], []
        for request in requests:
            try:
                graphs.append(program.graph(structures[request.number], request))
                usable.append(request)
            except EvaluationError as error:
                answers.append((request.number, error))
        try:
            with switched(program.switches):
                return answers + (_in_few(program, usable, graphs) if usable else [])
        except Exception as error:
            return answers + [(request.number, failure_of(error)) for request in usable]

    return WaitingSession(evaluate, take_all)


def _in_few(program: Program, requests: list[Request], graphs: list[Graph]) -> list[Answer]:
    """All structures in one graph, or in as few graphs as memory allows."""
    try:
        return _together(program, requests, graphs)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not is_out_of_memory(error) or len(graphs) == 1:
            raise
    text = f"memory has run out: {len(graphs)} structures are evaluated in two graphs"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    _LOG.info("%s", text)
    half = len(graphs) // 2
    halves = slice(half), slice(half, None)
    return [x for part in halves for x in _in_few(program, requests[part], graphs[part])]


def _together(program: Program, requests: list[Request], graphs: list[Graph]) -> list[Answer]:
    starts = np.cumsum([0, *(len(g.positions) for g in graphs)])
    edges = np.cumsum([0, *(len(g.senders) for g in graphs)])
    shape = shape_of(int(starts[-1]), int(edges[-1]), program.cutoff)
    arrays = padded(joined_graph(graphs, starts), shape, program.cutoff, program.dtype)
    found = jax.device_get(evaluate_joined(program.fixed, program.arrays, arrays))
    energies, forces, gradient = (np.asarray(x, np.float64) for x in found)
    answers = []
    for k, (request, graph) in enumerate(zip(requests, graphs, strict=True)):
        rows, pairs = slice(*starts[k : k + 2]), slice(*edges[k : k + 2])
        virial = gradient[pairs].T @ graph.vectors
        here = energies[rows], forces[rows], 0.5 * (virial + virial.T)
        answers.append((request.number, evaluated(len(graph.positions), request, *here)))
    return answers


def joined_graph(graphs: Sequence[Graph], starts: np.ndarray) -> Graph:
    """Structures side by side, with pairs only inside each; the cell is meaningless."""

    def all_of(name: str) -> np.ndarray:
        return np.concatenate([getattr(graph, name) for graph in graphs])

    lengths = [len(graph.senders) for graph in graphs]
    first = np.repeat(starts[:-1], lengths)
    return Graph(
        all_of("positions"),
        np.eye(3),
        np.zeros(3, bool),
        all_of("numbers"),
        all_of("senders") + first,
        all_of("receivers") + first,
        all_of("shifts"),
        all_of("vectors"),
    )


def evaluated(
    n_atoms: int, request: Request, energies: np.ndarray, forces: np.ndarray, virial: np.ndarray
) -> Evaluated:
    """The results of a program, without its spare atoms."""
    energies, forces = energies[:n_atoms], forces[:n_atoms]
    further = {"energies": energies} if len(energies) == n_atoms else {}  # drop a sum over atoms
    stress = virial / abs(float(np.linalg.det(request.cell))) if request.needs_stress else None
    return evaluated_by_model(request, float(energies.sum()), forces, stress, **further)


def _found(future: Future[Evaluated]) -> Evaluated | EvaluationError:
    error = future.exception()
    return future.result() if error is None else failure_of(error)
