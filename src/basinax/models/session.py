"""Threads that evaluate the structures of a call with a model."""

import contextlib
import logging
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import jax
import numpy as np
from ase import Atoms

from basinax.models.evaluators.protocol import (
    AbstractSession,
    Answer,
    Evaluated,
    EvaluationError,
    Request,
)
from basinax.models.evaluators.waiting import evaluated_by_model, failure_of
from basinax.models.graphs import LaidOut, Shape, VerletList
from basinax.models.programs import Program, evaluate
from basinax.numerics.compilations import Compilations, counter_of_thread
from basinax.numerics.oom import is_out_of_memory
from basinax.numerics.switches import config_context, switches
from basinax.structures.batch import bare

_LOG = logging.getLogger("basinax")

FEWER = "memory has run out: no more than half as many structures are evaluated at a time"

Laid = tuple[Request, dict[str, np.ndarray]]
"""A request with the arrays of its graph."""


class SameShape(NamedTuple):
    """Structures that are evaluated at once."""

    shape: Shape
    members: list[Laid]


class ModelSession(AbstractSession):
    """Threads, each of which evaluates as many waiting structures of one shape as have places.

    Free places hold a copy of the first structure. So a structure runs the same program with any
    others, and alone. If memory runs out, half as many threads go on, with the same bits.
    """

    def __init__(self, atoms: Sequence[Atoms], program: Program, devices: Sequence[Any]):
        """Args: devices: of each thread; None for JAX's default."""
        self._atoms, self._program, self._lanes = bare(atoms), program, Lanes(devices)
        self._fixed, arrays = program.parts
        self._arrays = {d: arrays if d is None else jax.device_put(arrays, d) for d in {*devices}}
        self._switches = switches() | program.switches
        self._pool = ThreadPoolExecutor(len(devices), thread_name_prefix="model")
        self._host = ThreadPoolExecutor(1, thread_name_prefix="graphs")
        self._asked: dict[int, Request] = {}
        self._lists: dict[int, VerletList] = {}
        self._answered = SimpleQueue[tuple[Request, Evaluated | EvaluationError]]()
        self._news = SimpleQueue[str]()
        self._lock = threading.Lock()  # of the following
        self._unlisted: list[tuple[Request, VerletList]] = []
        self._waiting = defaultdict[Shape, list[Laid]](list)
        self._compiled, self._compiling = set[tuple[Any, Shape]](), set[tuple[Any, Shape]]()

    def ask(self, requests: Sequence[Request]) -> None:
        for request in requests:
            number, atoms = request.number, self._atoms[request.number]
            own = VerletList(atoms.pbc, atoms.numbers, self._program.cutoff)
            self._asked[number] = request
            own = self._lists.setdefault(number, own)
            with self._lock:
                self._unlisted.append((request, own))
        self._host.submit(self._lay_out, counter_of_thread())

    def answers(self, timeout: float) -> list[Answer]:
        try:
            answered = [self._answered.get(timeout=timeout)]
        except Empty:
            return []
        answered += [self._answered.get_nowait() for _ in range(self._answered.qsize())]
        while not self._news.empty():  # as an error, a warning would be lost in a thread
            warnings.warn(self._news.get(), RuntimeWarning, stacklevel=2)
        answers = [(r.number, found) for r, found in answered if self._asked.get(r.number) is r]
        for number, _ in answers:
            del self._asked[number]
        return answers

    def end(self, number: int) -> None:
        self._asked.pop(number, None)
        self._lists.pop(number, None)

    def close(self) -> None:
        # A compiler may run for minutes; do not wait for it after an interrupt.
        for pool in (self._host, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _lay_out(self, counter: Compilations) -> None:
        """Adds all requests that wait for a graph to those of their shapes."""
        with self._lock:
            asked, self._unlisted = self._unlisted, []
        asked = [own for own in asked if self._asked.get(own[0].number) is own[0]]  # not ended
        for (request, _), found in zip(asked, self._laid_out(asked), strict=True):
            if isinstance(found, EvaluationError):
                self._answered.put((request, found))
                continue
            shape, arrays = found
            with self._lock:
                self._waiting[shape].append((request, arrays))
            self._pool.submit(self._turn, counter)

    def _laid_out(
        self, asked: Sequence[tuple[Request, VerletList]]
    ) -> list[LaidOut | EvaluationError]:
        """The graphs of these structures, at once; an error for one that has none."""
        if not asked:
            return []
        requests, lists = zip(*asked, strict=True)
        atoms = [self._atoms[request.number] for request in requests]
        positions, cells = [r.positions for r in requests], np.array([r.cell for r in requests])
        try:
            made = self._program.laid_out(lists, positions, cells, atoms)
        except Exception as error:
            if len(asked) == 1:
                return [failure_of(error)]
            return [found for own in asked for found in self._laid_out([own])]
        return [EvaluationError(str(x)) if isinstance(x, ValueError) else x for x in made]

    def _turn(self, counter: Compilations) -> None:
        """Evaluates waiting structures of one shape, unless other threads do so."""
        with self._lanes.turn() as lane:
            group = self._taken(lane.device)
            if group is None:
                return
            answers, has_program, begin = [], False, time.monotonic()
            try:
                with config_context(self._switches), counter.counted():
                    answers, has_program = self._evaluated(lane.device, *group), True
            except Exception as error:
                is_short = is_out_of_memory(error)
                if is_short and self._lanes.fewer(lane):
                    self._news.put(FEWER)
                    _LOG.info(FEWER)
                else:
                    failure = self._short(*group, error) if is_short else failure_of(error)
                    answers = [(request, failure) for request, _ in group.members]
        for answer in answers:
            self._answered.put(answer)
        program = lane.device, group.shape
        with self._lock:
            is_new = program in self._compiling
            self._compiling.discard(program)
            if has_program:
                self._compiled.add(program)
            waiting = self._waiting[group.shape]
            waiting += [] if answers else group.members
            n_turns = len(waiting) if is_new or not answers else 0
        if is_new and has_program:
            text = "model: %d atoms and %d pairs at most: first evaluation %.1f s"
            _LOG.info(text, *group.shape, time.monotonic() - begin)
        for _ in range(n_turns):  # other threads have passed over this shape
            self._pool.submit(self._turn, counter)

    def _taken(self, device: Any) -> SameShape | None:
        """The group that fills most places, of a shape that no thread compiles."""
        n_places, waiting = self._program.n_places, self._waiting
        with self._lock:
            free = [s for s in waiting if waiting[s] and (device, s) not in self._compiling]
            if not free:
                return None
            shape = max(free, key=lambda s: min(len(waiting[s]), n_places(s)))
            group = waiting.pop(shape)
            n = n_places(shape)
            if group[n:]:
                waiting[shape] = group[n:]
            if (device, shape) not in self._compiled:
                self._compiling.add((device, shape))
            return SameShape(shape, group[:n])

    def _evaluated(
        self, device: Any, shape: Shape, members: list[Laid]
    ) -> list[tuple[Request, Evaluated]]:
        graphs = [arrays for _, arrays in members]
        graph, has_places = graphs[0], self._program.form.has_places
        if has_places:
            graphs += graphs[:1] * (self._program.n_places(shape) - len(graphs))
            graph = {name: np.stack([each[name] for each in graphs]) for name in graph}
        there = graph if device is None else jax.device_put(graph, device)
        found = jax.device_get(evaluate(self._fixed, self._arrays[device], there))
        found = [np.asarray(x if has_places else x[None], np.float64) for x in found]
        sizes = [len(self._atoms[request.number]) for request, _ in members]
        return [
            (request, evaluated(n, request, *(x[k] for x in found)))
            for k, (n, (request, _)) in enumerate(zip(sizes, members, strict=True))
        ]

    def _short(self, shape: Shape, members: list[Laid], error: Exception) -> EvaluationError:
        """The answer to structures for which memory does not suffice."""
        what = "this structure alone"
        if self._program.n_places(shape) > 1:
            n_atoms = len(self._atoms[members[0][0].number])
            what = f"structures of {n_atoms} atoms side by side"
        return EvaluationError(f"memory has run out for {what}: {failure_of(error)}")


def evaluated(
    n_atoms: int, request: Request, energies: np.ndarray, forces: np.ndarray, virial: np.ndarray
) -> Evaluated:
    """The results of a program, without its spare atoms."""
    energies, forces = energies[:n_atoms], forces[:n_atoms]
    further = {"energies": energies} if len(energies) == n_atoms else {}  # drop a sum over atoms
    stress = virial / abs(float(np.linalg.det(request.cell))) if request.needs_stress else None
    return evaluated_by_model(request, float(energies.sum()), forces, stress, **further)


class Lane(NamedTuple):
    """The permission for one evaluation."""

    device: Any
    """The device; None for JAX's default."""
    n_beside: int
    """The allowed number of concurrent evaluations at the start of this one, including it."""


class Lanes:
    """The evaluations at a time on each device, shared by threads; fewer where memory runs out."""

    def __init__(self, devices: Sequence[Any]):
        """Args: devices: one device per lane."""
        self._counts, self._surplus = Counter(devices), Counter[Any]()
        self._free: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()  # threads return lanes at the same time
        for device in devices:
            self._free.put(device)

    @contextlib.contextmanager
    def turn(self) -> Iterator[Lane]:
        """A context with a lane of its own."""
        device = self._free.get()
        try:
            yield Lane(device, self._counts[device])
        finally:
            with self._lock:
                is_left = self._surplus[device] > 0
                self._surplus[device] -= is_left
            if not is_left:
                self._free.put(device)

    def fewer(self, lane: Lane) -> bool:
        """Halve the number of lanes of the device; return whether there was more than one."""
        with self._lock:
            n = self._counts[lane.device]
            if n == lane.n_beside > 1:
                self._counts[lane.device] -= n // 2
                self._surplus[lane.device] += n // 2
        return lane.n_beside > 1
