"""Processes that evaluate one structure each at a time; see `worker.py`.

No bit depends on the process that evaluates a structure: its calculator is reset, or its own, and
finds no file of another structure.
"""

import collections
import contextlib
import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ase import Atoms

from basinax.models.evaluators.folders import PREFIX, has_written
from basinax.models.evaluators.protocol import (
    AbstractSession,
    Answer,
    EvaluationError,
    Request,
    checked_results,
    names_of,
    placed,
)
from basinax.models.evaluators.waiting import short_of
from basinax.models.evaluators.worker import STARTING
from basinax.numerics.oom import FEWER, half
from basinax.numerics.settings import warn
from basinax.numerics.switches import switches
from basinax.structures.batch import bare

LOOK = 1.0
"""The most seconds between two looks for processes that have ended."""

SCRIPT = Path(__file__).with_name("worker.py")
THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "VECLIB_MAXIMUM", "NUMEXPR")

BEGUN_ANEW = "; reused calculators of processes that end begin anew, so last digits may change"

LOADED: dict[str, str] = {}
"""The modules that potentials have loaded, here or in a process of `Workers`: files by name."""


class Workers(AbstractSession):
    """Processes that live as long as the run; a process that ends is replaced."""

    takes_more = True

    def __init__(
        self,
        make: Callable[[], Any],
        atoms: Sequence[Atoms],
        n_workers: int,
        reuse: bool,
        timeout: float | None,
        threads: int,
    ):
        """Start the processes and wait until one has made a calculator.

        Raises:
            TypeError: the function cannot be sent to another process.
            ValueError: no calculator could be made; the message has the reason.
            RuntimeError: a module that a process imports at its start calls this function.
        """
        if STARTING in os.environ:
            raise RuntimeError(
                "a process that makes calculators imports this module, which starts such processes"
                " when it is imported: run it as a script, or put what it runs under"
                ' `if __name__ == "__main__":`'
            )
        self._atoms, self._numbers = dict(enumerate(atoms)), itertools.count(len(atoms))
        self._reuse, self._timeout = reuse, timeout
        packed, self._caller = _packed(make), _here()
        environment = os.environ | {f"{name}_NUM_THREADS": str(threads) for name in THREADS}
        environment |= {"JAX_ENABLE_X64": str(int(switches()["jax_enable_x64"])), STARTING: "1"}
        self._greeting = _absolute(sys.path), packed, reuse, self._caller
        if paths := environment.get("PYTHONPATH"):
            environment["PYTHONPATH"] = os.pathsep.join(_absolute(paths.split(os.pathsep)))
        self._environment = environment
        self._waiting: collections.deque[Request] = collections.deque()
        self._ready: list[Answer] = []
        """Answers that have been received, or that no process gives."""
        self._home: dict[int, int] = {}
        """The worker with the calculator of each structure, if calculators are reused."""
        self._again = set[int]()
        """Structures that wait again, since their process ended before it got them."""
        self._implemented: list[str] | None = None
        self._unmade: list[str] = []
        """The reasons why processes have no calculator, until they have been told."""
        self._most = n_workers
        """The most processes; half as many after memory has run out."""
        self._workers: list[_Worker | None] = []
        try:
            for _ in range(n_workers):
                self._workers.append(self._start())
            while self._implemented is None:
                self._receive(None)
        except BaseException:
            self.close()
            raise

    @property
    def implemented(self) -> list[str]:
        """The calculator's properties, by ASE's names."""
        return self._implemented or []

    def ask(self, requests: Sequence[Request]) -> None:
        waiting = [*self._waiting, *requests]
        self._waiting = collections.deque(sorted(waiting, key=lambda request: request.rank))
        self._dispatch()

    def answers(self, timeout: float) -> list[Answer]:
        answers = self._receive(0.0 if self._ready else timeout) + self._ready
        self._ready = []
        return answers

    def add(self, atoms: Atoms) -> int:
        number = next(self._numbers)
        (self._atoms[number],) = bare([atoms])
        return number

    def forget(self, number: int) -> None:
        self._atoms.pop(number, None)

    def look(self) -> None:
        self._ready += self._receive(0.0)

    def end(self, number: int) -> None:
        self._waiting = collections.deque(r for r in self._waiting if r.number != number)
        home = self._home.pop(number, None)
        worker = None if home is None else self._workers[home]
        if worker is not None:
            worker.ended.append(number)
            if worker.request is None and worker.is_ready:
                worker.tell_of_ended()

    def close(self) -> None:
        for worker in filter(None, self._workers):
            worker.kill()

    @property
    def _n_alive(self) -> int:
        return sum(worker is not None for worker in self._workers)

    def _start(self) -> "_Worker":
        worker = _Worker(self._environment)
        worker.send((*self._greeting, worker.root))
        return worker

    def _receive(self, timeout: float | None) -> list[Answer]:
        """The messages of the processes; waits for one for at most `timeout` s."""
        self._dispatch()
        by_pipe = {w.pipe: k for k, w in enumerate(self._workers) if w and w.is_busy}
        if not by_pipe:
            return []
        deadlines = [w.deadline for w in self._workers if w and w.deadline is not None]
        if deadlines:
            left = max(0.0, min(deadlines) - time.monotonic())
            timeout = left if timeout is None else min(timeout, left)
        # A program that a process has started may keep its pipe open when it has ended.
        timeout = LOOK if timeout is None else min(timeout, LOOK)
        answers = []
        for pipe in wait(list(by_pipe), timeout):
            answers += self._answer_of(by_pipe[pipe])  # pyright: ignore[reportArgumentType]
        for k, worker in enumerate(self._workers):
            if worker and worker.is_busy and worker.has_ended():
                answers += self._replaced(k, *worker.end_of(EOFError()))
        answers += self._overdue()
        self._dispatch()
        return answers

    def _answer_of(self, k: int) -> list[Answer]:
        worker = self._workers[k]
        assert worker is not None
        try:
            kind, content = worker.pipe.recv()
        except Exception as error:  # the process has ended, or its answer is unreadable
            return self._replaced(k, *worker.end_of(error))
        match kind:
            case "loaded":
                LOADED.update(content)
                return []
            case "ready":
                worker.is_ready, self._implemented = True, content
                self._tell()
                return []
            case "begun":
                worker.begin(self._timeout)
                return []
            case "unmade":
                self._end(k)
                self._drop(content)
                return []
            case "short":
                return self._replaced(k, content, is_short=True)
        request, worker.request, worker.deadline = worker.request, None, None
        assert request is not None
        if kind == "failed":
            return [(request.number, EvaluationError(content))]
        try:
            n_atoms = len(request.positions)
            return [(request.number, checked_results(content, n_atoms, names_of(request)))]
        except EvaluationError as error:
            return [(request.number, error)]

    def _end(self, k: int, *, is_kept: bool = False) -> None:
        """End a process. Args: is_kept: leave its folders."""
        worker, self._workers[k] = self._workers[k], None
        assert worker is not None
        worker.kill(is_kept=is_kept)

    def _drop(self, reason: str) -> None:
        """Continue without a process that could not make a calculator."""
        if not any(self._workers) and self._implemented is None:
            raise ValueError(f"the calculator could not be made: {reason}")
        self._unmade.append(reason)
        self._tell()

    def _tell(self) -> None:
        """Warn of processes without a calculator, once another one has its calculator."""
        if self._implemented is None:
            return
        for reason in self._unmade:
            warn(
                f"a process could not make its calculator ({reason}): {self._n_alive} others go on",
                RuntimeWarning,
            )
        self._unmade.clear()

    def _overdue(self) -> list[Answer]:
        answers, now = [], time.monotonic()
        for k, worker in enumerate(self._workers):
            if worker and worker.deadline is not None and worker.deadline <= now:
                text = f"the evaluation took longer than {self._timeout:g} s"
                answers += self._replaced(k, text)
        return answers

    def _replaced(self, k: int, reason: str, is_short: bool = False) -> list[Answer]:
        """Replace a process by a new one; its structure ends with this reason.

        Args:
            is_short: memory has run out. The structure waits again, for half as many processes,
                unless it ran in the only one.
        """
        worker = self._workers[k]
        assert worker is not None
        request, files = worker.request, ""
        if is_short and request is not None:
            if worker.n_beside > 1:
                self._most = half(self._most, worker.n_beside)
                self._waiting.appendleft(request)
                request = None
                warn(FEWER + BEGUN_ANEW * self._reuse, RuntimeWarning)
            else:
                reason = short_of(reason)
        if request is not None:
            files = os.path.join(worker.root, str(request.number) if self._reuse else "shared")
        if is_kept := worker.is_ready and bool(files) and has_written(files):
            reason = f"{reason}; its files are in {files}{self._caller}"
        self._end(k, is_kept=is_kept)
        if not worker.is_ready:
            self._drop(reason)
            return []
        if self._n_alive < self._most:
            self._workers[k] = self._start()
        return [] if request is None else [(request.number, EvaluationError(reason))]

    def _dispatch(self) -> None:
        """Give waiting structures to free processes."""
        idle = [k for k, w in enumerate(self._workers) if w and w.is_ready and w.request is None]
        n_surplus = max(0, self._n_alive - self._most)
        for k in idle[:n_surplus]:
            self._end(k)
        free = idle[n_surplus:]
        if not any(self._workers):
            reason = EvaluationError("no process is left that could evaluate it")
            self._ready += [(request.number, reason) for request in self._waiting]
            self._waiting.clear()
        passed_over = []
        # More may be alive than there is memory for, if one has just been found to be ended.
        while free and self._waiting and self._n_alive <= self._most:
            request = self._waiting.popleft()
            home = self._home.get(request.number) if self._reuse else None
            if home is not None and self._workers[home] is not None and home not in free:
                passed_over.append(request)
                continue
            k = free[0] if home not in free else home
            free.remove(k)
            if self._reuse:
                self._home[request.number] = k
            self._send(k, request)
        self._waiting.extendleft(reversed(passed_over))

    def _send(self, k: int, request: Request) -> None:
        worker = self._workers[k]
        assert worker is not None
        atoms = placed(self._atoms[request.number], request)
        try:
            worker.tell_of_ended()
            worker.send((request.number, atoms, names_of(request)))
        except OSError as error:  # the process has ended before it got the structure
            reason, is_short = worker.end_of(error)
            is_again = request.number in self._again
            if is_again or is_short:
                worker.request, worker.n_beside = request, self._most
            else:
                self._again.add(request.number)
                self._waiting.appendleft(request)
            self._ready += self._replaced(k, reason, is_short)
        except Exception as error:  # `info` may hold objects that cannot be pickled
            reason = EvaluationError(f"the structure cannot be sent to a process: {error}")
            self._ready.append((request.number, reason))
        else:
            worker.request, worker.n_beside = request, self._most
            if not self._reuse:  # its calculator may have to be made first
                worker.begin(self._timeout)


class _Worker:
    """One process, and the structure that it evaluates."""

    def __init__(self, environment: dict[str, str]):
        self.root = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX))
        """The root of its folders."""
        self.pipe, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(SCRIPT), str(theirs.fileno())],
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # programs that it runs end with it
                )
        except BaseException:
            os.rmdir(self.root)
            raise
        self.is_ready = False
        self.request: Request | None = None
        self.n_beside = 1
        """The allowed number of processes at the start of its evaluation, including it."""
        self.deadline: float | None = None
        self.ended: list[int] = []
        """Structures that have ended, whose calculators it still has if they are reused."""

    @property
    def is_busy(self) -> bool:
        return not self.is_ready or self.request is not None

    def send(self, message: Any) -> None:
        """Send a message, whose objects may be of classes of the script."""
        from basinax.models.packing import packed

        self.pipe.send_bytes(packed(message))

    def tell_of_ended(self) -> None:
        """Let the process drop the calculators of structures that have ended, if it lives."""
        with contextlib.suppress(OSError):
            while self.ended:
                self.send((self.ended.pop(), None, None))

    def begin(self, timeout: float | None) -> None:
        """The evaluation begins, which may take so many seconds."""
        self.deadline = None if timeout is None else time.monotonic() + timeout

    def has_ended(self) -> bool:
        """Whether the process has ended, and has left no answer."""
        return self._process.poll() is not None and not self.pipe.poll()

    def end_of(self, error: BaseException) -> tuple[str, bool]:
        """The reason for the end of the process, and whether that is a lack of memory.

        Linux ends processes by SIGKILL where memory runs out, often others than the one in need.
        """
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return f"the answer of its process cannot be read: {error}", False
        if code < 0:
            name, is_short = signal.Signals(-code).name, code == -signal.SIGKILL
            return f"the process that evaluated it was ended by {name}", is_short
        return f"the process that evaluated it ended with exit status {code}", False

    def kill(self, *, is_kept: bool = False) -> None:
        """End the process and its programs. Args: is_kept: leave its folders."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.pipe.close()
        if not is_kept:
            shutil.rmtree(self.root, ignore_errors=True)


def _here() -> str:
    """The current folder; the root of all if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _absolute(paths: Sequence[str]) -> list[str]:
    """Paths of modules for a process in another folder; names that are no files stay."""
    return [os.path.abspath(x) if not x or os.path.exists(x) else x for x in paths]


def _packed(make: Callable[[], Any]) -> bytes:
    from basinax.models.packing import packed

    try:
        return packed(make)
    except Exception as error:
        raise TypeError(
            f"the function that makes calculators cannot be sent to another process ({error}): make"
            " in it what it needs, or pass a calculator"
        ) from error
