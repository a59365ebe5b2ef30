"""Structures of one shape side by side in one program, for devices that a single one leaves idle.

The shape alone decides how many places a program has. Free places hold a copy of the first
structure. So a structure runs the same program with any others, and alone.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import jax
import numpy as np
from ase import Atoms

from basinax._bits import xla
from basinax._bits.rewriting import RefusedOperation
from basinax._jax.compilations import Compilations, counter_of_thread
from basinax._jax.shortage import is_out_of_memory
from basinax._jax.switches import switched, switches
from basinax.atoms._evaluators.protocol import (
    AbstractSession,
    Answer,
    EvaluationError,
    Request,
)
from basinax.atoms._evaluators.waiting import bare, failure_of
from basinax.atoms._models.graphs import Shape
from basinax.atoms._models.lanes import Lanes
from basinax.atoms._models.programs import evaluate_side_by_side, found_side_by_side
from basinax.atoms._models.sessions import Program, evaluated

_LOG = logging.getLogger("basinax")

MOST_PLACES = 32
"""Of one program."""

LaidOut = tuple[Request, dict[str, np.ndarray]]
"""A request with the arrays of its graph."""


def n_places(shape: Shape, n_pairs: int) -> int:
    """Structures of this shape that a program evaluates, for about so many pairs."""
    return min(max(n_pairs // shape.edges, 1), MOST_PLACES)


_shapes = xla.traced(found_side_by_side, static_argnums=0)


def can_stand(program: Program) -> bool:
    """Whether structures may stand side by side: JAX knows how, and each sum has one order."""
    one = program.abstract_graph()
    two = {name: jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for name, x in one.items()}
    try:
        _shapes(program.fixed, program.arrays, two)
    except (RefusedOperation, NotImplementedError) as error:
        _LOG.info("model: structures are evaluated one at a time: %s", error)
        return False
    return True


class SideBySide(AbstractSession):
    """One thread a device, which evaluates as many waiting structures of a shape as have places."""

    def __init__(
        self, atoms: Sequence[Atoms], program: Program, devices: Sequence[Any], n_pairs: int
    ):
        """Args: devices: of each thread; None for JAX's default. n_pairs: of one evaluation."""
        self._atoms, self._program, self._n_pairs = bare(atoms), program, n_pairs
        self._arrays, self._lanes = program.arrays_on(devices), Lanes(devices)
        self._switches = switches() | program.switches
        self._pool = ThreadPoolExecutor(len(devices), thread_name_prefix="model")
        self._lock = threading.Lock()
        self._waiting = SimpleQueue[Request]()
        self._laid_out: dict[Shape, list[LaidOut]] = {}
        self._answered = SimpleQueue[Answer]()
        self._ended, self._compiled = set[int](), set[tuple[Any, Shape]]()

    def ask(self, requests: Sequence[Request]) -> None:
        counter = counter_of_thread()
        for request in requests:
            self._waiting.put(request)
        for _ in requests:  # each may have a shape of its own; a turn that finds none left is short
            self._pool.submit(self._turn, counter)

    def answers(self, timeout: float) -> list[Answer]:
        try:
            first = self._answered.get(timeout=timeout)
        except Empty:
            return []
        answers = [first, *_all_of(self._answered)]
        return [(number, answer) for number, answer in answers if number not in self._ended]

    def end(self, number: int) -> None:
        self._ended.add(number)

    def close(self) -> None:
        # A compiler may take minutes: who is interrupted does not wait.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _turn(self, counter: Compilations) -> None:
        """Evaluates the structures of the shape that most wait for."""
        with self._lock:
            self._lay_out()
            if not self._laid_out:
                return
            shape = max(self._laid_out, key=lambda shape: len(self._laid_out[shape]))
            waiting = self._laid_out.pop(shape)
            places = n_places(shape, self._n_pairs)
            group, left = waiting[:places], waiting[places:]
            if left:
                self._laid_out[shape] = left
        try:
            with self._lanes.turn() as lane, switched(self._switches), counter.counted():
                answers = self._evaluated(lane.device, shape, group, places)
        except Exception as error:
            answers = [(request.number, _failure(error, group)) for request, _ in group]
        for answer in answers:
            self._answered.put(answer)

    def _lay_out(self) -> None:
        """Moves what waits to the others of its shape; answers where a structure has no graph."""
        for request in _all_of(self._waiting):
            if request.number in self._ended:
                continue
            try:
                shape, arrays = self._program.laid_out(self._atoms[request.number], request)
            except Exception as error:
                self._answered.put((request.number, failure_of(error)))
            else:
                self._laid_out.setdefault(shape, []).append((request, arrays))

    def _evaluated(
        self, device: Any, shape: Shape, group: list[LaidOut], places: int
    ) -> list[Answer]:
        graphs = [graph for _, graph in group]
        graphs += graphs[:1] * (places - len(graphs))
        together = {name: np.stack([graph[name] for graph in graphs]) for name in graphs[0]}
        begin = time.monotonic()
        there = jax.device_put(together, device)
        found = evaluate_side_by_side(self._program.fixed, self._arrays[device], there)
        energies, forces, virials = (np.asarray(x, np.float64) for x in jax.device_get(found))
        if (device, shape) not in self._compiled:
            self._compiled.add((device, shape))
            text = "model: %d structures of %d atoms and %d pairs at most: first evaluation %.1f s"
            _LOG.info(text, len(graphs), *shape, time.monotonic() - begin)
        return [
            (r.number, evaluated(len(self._atoms[r.number]), r, energies[k], forces[k], virials[k]))
            for k, (r, _) in enumerate(group)
        ]


def _all_of(queue: SimpleQueue[Any]) -> list[Any]:
    """All that is in a queue, which one thread alone empties."""
    return [queue.get_nowait() for _ in range(queue.qsize())]


def _failure(error: Exception, group: list[LaidOut]) -> EvaluationError:
    if not is_out_of_memory(error):
        return failure_of(error)
    n_atoms = len(group[0][0].positions)
    text = f"memory has run out for structures of {n_atoms} atoms side by side"
    return EvaluationError(f"{text}: {failure_of(error)}")
