"""Threads that evaluate the structures of a call with a model."""

import contextlib
import logging
import threading
import time
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
from basinax.models.evaluators.waiting import ALONE, evaluated_by_model, failure_of
from basinax.models.graphs import LaidOut, Shape, VerletList
from basinax.models.programs import Program, evaluate, prepare
from basinax.numerics.compilations import Compilations, counter_of_thread
from basinax.numerics.oom import FEWER, half, is_out_of_memory
from basinax.numerics.processor import n_cores
from basinax.numerics.settings import warn
from basinax.numerics.switches import config_context, switches
from basinax.structures.batch import bare

_LOG = logging.getLogger("basinax")

Laid = tuple[Request, dict[str, np.ndarray]]
"""A request with the arrays of its graph."""


class SameShape(NamedTuple):
    """Structures that are evaluated at once."""

    shape: Shape
    members: list[Laid]


Key = tuple[Any, Shape]
"""A program: its device and its shape."""


class Missing(NamedTuple):
    """A program that is not there yet."""

    example: dict[str, np.ndarray]
    """The arrays of one graph of its shape."""
    since: float
    """When it was needed first."""


class ModelSession(AbstractSession):
    """Threads, each of which evaluates as many waiting structures of one shape as have places.

    Free places hold a copy of the first structure. So a structure runs the same program with any
    others, and alone. If memory runs out, half as many threads go on, with the same bits. Further
    threads make graphs, and compile the programs of shapes that are new.
    """

    def __init__(self, atoms: Sequence[Atoms], program: Program, devices: Sequence[Any]):
        """Args: devices: of each thread; None for JAX's default."""
        self._atoms, self._program, self._lanes = bare(atoms), program, Lanes(devices)
        self._fixed, arrays = program.parts
        self._arrays = {d: arrays if d is None else jax.device_put(arrays, d) for d in {*devices}}
        self._switches = switches() | program.switches
        self._pool = ThreadPoolExecutor(len(devices), thread_name_prefix="model")
        self._host = ThreadPoolExecutor(1, thread_name_prefix="graphs")
        self._compilers = ThreadPoolExecutor(n_cores(), thread_name_prefix="compiler")
        self._asked: dict[int, Request] = {}
        self._lists: dict[int, VerletList] = {}
        self._answered = SimpleQueue[tuple[Request, Evaluated | EvaluationError]]()
        self._news = SimpleQueue[str]()
        self._lock = threading.Lock()  # of the following
        self._unlisted: list[tuple[Request, VerletList]] = []
        self._waiting = defaultdict[Shape, list[Laid]](list)
        self._compiled = set[Key]()
        self._missing: dict[Key, Missing] = {}
        """Programs that are not there yet."""
        self._compiling = set[Key]()

    def ask(self, requests: Sequence[Request]) -> None:
        for request in requests:
            number, atoms = request.number, self._atoms[request.number]
            self._asked[number] = request
            if number not in self._lists:
                self._lists[number] = VerletList(atoms.pbc, atoms.numbers, self._program.cutoff)
            with self._lock:
                self._unlisted.append((request, self._lists[number]))
        self._host.submit(self._lay_out, counter_of_thread())

    def phase(self) -> str:
        with self._lock:
            if not self._missing:
                return ""
            n, begin = len(self._missing), min(each.since for each in self._missing.values())
            n_all = n + len(self._compiled)
        seconds = time.monotonic() - begin
        return f"compiling {n} of {n_all} programs of {self._program.name} ({seconds:.0f} s)"

    def answers(self, timeout: float) -> list[Answer]:
        try:
            answered = [self._answered.get(timeout=timeout)]
        except Empty:
            return []
        answered += [self._answered.get_nowait() for _ in range(self._answered.qsize())]
        while not self._news.empty():  # as an error, a warning would be lost in a thread
            warn(self._news.get(), RuntimeWarning)
        answers = [(r.number, found) for r, found in answered if self._asked.get(r.number) is r]
        for number, _ in answers:
            del self._asked[number]
        return answers

    def end(self, number: int) -> None:
        self._asked.pop(number, None)
        self._lists.pop(number, None)

    def close(self) -> None:
        # A compiler may run for minutes; do not wait for it after an interrupt.
        for pool in (self._host, self._compilers, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _lay_out(self, counter: Compilations) -> None:
        """Adds all requests that wait for a graph to those of their shapes."""
        with self._lock:
            asked, self._unlisted = self._unlisted, []
        asked = [own for own in asked if self._asked.get(own[0].number) is own[0]]  # not ended
        laid, n_new = list(zip(asked, self._laid_out(asked), strict=True)), 0
        new = defaultdict[Shape, list[Laid]](list)
        with self._lock:  # all at once, so that no thread takes a part of them
            for (request, _), found in laid:
                if isinstance(found, EvaluationError):
                    self._answered.put((request, found))
                    continue
                shape, arrays = found
                new[shape].append((request, arrays))
                for key in ((device, shape) for device in self._arrays):
                    if key not in self._compiled and key not in self._missing:
                        self._missing[key] = Missing(arrays, time.monotonic())
                        n_new += 1
            for shape, members in new.items():
                self._put(shape, members)
        for _ in range(n_new):
            self._compilers.submit(self._compile, counter)
        for shape in new:
            self._call_for(shape, counter)

    def _put(self, shape: Shape, members: list[Laid]) -> None:
        """Let these wait, in the order of their ranks. The thread must hold the lock."""
        waiting = [*self._waiting[shape], *members]
        self._waiting[shape] = sorted(waiting, key=lambda own: own[0].rank)

    def _call_for(self, shape: Shape, counter: Compilations) -> None:
        """Let as many threads turn as can evaluate all waiting structures of a shape."""
        with self._lock:
            n_turns = -(-len(self._waiting[shape]) // self._program.n_places(shape))
        for _ in range(n_turns):
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

    def _compile(self, counter: Compilations) -> None:
        """Make the program for which most structures wait."""
        with self._lock:
            waiting = self._waiting
            left = [key for key in self._missing if key not in self._compiling]
            key = device, shape = max(left, key=lambda key: len(waiting[key[1]]))
            self._compiling.add(key)
            example = self._missing[key].example
        failure, begin = None, time.monotonic()
        try:
            with config_context(self._switches), counter.counted():
                prepare(*self._arguments(device, shape, [example]))
            text = "model: %d atoms and %d pairs at most: compiled or loaded in %.1f s"
            _LOG.info(text, *shape, time.monotonic() - begin)
        except Exception as error:
            # For want of memory, an evaluation tries again, beside fewer others.
            failure = None if is_out_of_memory(error) else failure_of(error)
        with self._lock:
            self._compiling.discard(key)
            del self._missing[key]
            if failure is None:
                self._compiled.add(key)
            failed = [] if failure is None else [(own, failure) for own, _ in waiting.pop(shape)]
        for answer in failed:
            self._answered.put(answer)
        self._call_for(shape, counter)  # threads have passed over this shape

    def _turn(self, counter: Compilations) -> None:
        """Evaluates waiting structures of one shape, unless other threads do so."""
        with self._lanes.turn() as lane:
            group = self._taken(lane.device)
            if group is None:
                return
            answers = []
            try:
                with config_context(self._switches), counter.counted():
                    answers = self._evaluated(lane.device, *group)
            except Exception as error:
                if is_out_of_memory(error) and self._lanes.fewer(lane):
                    self._news.put(FEWER)
                    _LOG.info(FEWER)
                else:
                    failure = failure_of(error, self._side_by_side(*group))
                    answers = [(request, failure) for request, _ in group.members]
        for answer in answers:
            self._answered.put(answer)
        if not answers:
            with self._lock:
                self._put(group.shape, group.members)
            self._call_for(group.shape, counter)  # other threads may have passed over it

    def _taken(self, device: Any) -> SameShape | None:
        """The group that fills most places, of a shape whose program is there; of several the one
        whose first structure began first."""
        n_places, waiting = self._program.n_places, self._waiting
        with self._lock:
            ready = [s for s in waiting if waiting[s] and (device, s) in self._compiled]
            if not ready:
                return None

            def urgency(shape: Shape) -> tuple[int, int]:
                first, _ = waiting[shape][0]
                return min(len(waiting[shape]), n_places(shape)), -first.rank

            shape = max(ready, key=urgency)
            group = waiting.pop(shape)
            n = n_places(shape)
            if group[n:]:
                waiting[shape] = group[n:]
            return SameShape(shape, group[:n])

    def _arguments(self, device: Any, shape: Shape, graphs: list[dict[str, np.ndarray]]) -> tuple:
        """The arguments of the program for these graphs."""
        graph = graphs[0]
        if self._program.form.has_places:
            every = graphs + graphs[:1] * (self._program.n_places(shape) - len(graphs))
            graph = {name: np.stack([each[name] for each in every]) for name in graph}
        there = graph if device is None else jax.device_put(graph, device)
        return self._fixed, self._arrays[device], there

    def _evaluated(
        self, device: Any, shape: Shape, members: list[Laid]
    ) -> list[tuple[Request, Evaluated]]:
        arguments = self._arguments(device, shape, [arrays for _, arrays in members])
        has_places = self._program.form.has_places
        found = jax.device_get(evaluate(*arguments))
        found = [np.asarray(x if has_places else x[None], np.float64) for x in found]
        sizes = [len(self._atoms[request.number]) for request, _ in members]
        return [
            (request, evaluated(n, request, *(x[k] for x in found)))
            for k, (n, (request, _)) in enumerate(zip(sizes, members, strict=True))
        ]

    def _side_by_side(self, shape: Shape, members: list[Laid]) -> str:
        """What runs at once in a program of this shape."""
        if self._program.n_places(shape) == 1:
            return ALONE
        return f"structures of {len(self._atoms[members[0][0].number])} atoms side by side"


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
            self._counts[lane.device] = half(n, lane.n_beside)
            self._surplus[lane.device] += n - self._counts[lane.device]
        return lane.n_beside > 1
