"""Batches whose structures the host evaluates, each continued as soon as its evaluation arrives.

One turn of the loop takes the evaluations that have arrived; other structures stand still. No bit
of a result depends on which evaluations arrive together. Beside a GPU turns run on the CPU, where
they wait for no evaluation of a model.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from basinax.engine.device import (
    Device,
    advanced,
    found_at,
    moved,
    on_device,
    on_lane,
    restarted,
    started,
)
from basinax.engine.host_optimizers import HostOptimizers
from basinax.engine.moving_cells import CellConstraints, CellMoves
from basinax.engine.slots import EvaluatorInfo, Slots
from basinax.engine.stream import AbstractBackend
from basinax.engine.turns import numbers_of
from basinax.internal.optimizer import StepsOfHost, steps_on_the_host
from basinax.minimize.run import Evaluation, Point, Run, judged_between
from basinax.minimize.status import Status
from basinax.models.evaluators.protocol import (
    AbstractSession,
    Answer,
    Evaluated,
    EvaluationError,
    Request,
    names_of,
    taken,
)
from basinax.numerics import xla
from basinax.numerics.static import Static, partition
from basinax.numerics.switches import config_context, default_platform
from basinax.optimizers.protocol import Places
from basinax.potentials import Properties
from basinax.structures.batch import Batch
from basinax.structures.constraints.applied import Constraints
from basinax.structures.constraints.hosted import GivenGradients, HostConstraints
from basinax.structures.matrices import VOIGT_OF_ENTRIES

LOOK = 0.2
"""Seconds that the host waits for an evaluation before it checks whether to stop."""

REACH = 6.0
"""A structure ends, without evaluation, if its cell has collapsed or exploded so far that
neighbours within this distance (Å) could not be listed."""


def cpu_beside() -> Device:
    """The CPU, if JAX's default device is another one; otherwise, or if JAX has none, None."""
    if default_platform() == "cpu":
        return None
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


class EvaluationBatch(eqx.Module):
    """Evaluations that have arrived, in NumPy arrays of a batch's shapes; 0 in other slots."""

    has_come: Bool[Array, "systems"]
    energies: Float[Array, "systems"]
    forces: Float[Array, "rows 3"]
    stress: Float[Array, "systems 3 3"] | None
    steps: Any = None
    """Steps like the parameters, if the host makes the steps."""
    given: GivenGradients | None = None
    """Gradients under constraints that act on the host; None without such constraints."""


class _Point(NamedTuple):
    """A point at which a structure was evaluated, with all results."""

    request: Request
    found: Evaluated
    reported: Evaluated
    """The results with the energy of constraints."""

    def is_at(self, positions: np.ndarray, cell: np.ndarray) -> bool:
        request = self.request
        return np.array_equal(request.positions, positions) and np.array_equal(request.cell, cell)


class Points:
    """The properties of each structure at the points where it may end: its last and its best."""

    def __init__(self) -> None:
        self._last: dict[int, _Point] = {}
        self._best: dict[int, _Point] = {}
        self._first: dict[int, float] = {}
        self._messages: dict[int, str] = {}

    def add(self, request: Request, found: Evaluated, held: HostConstraints | None) -> None:
        reported = found
        if held is not None:
            free_energy = held.of_energy(found.minimised)
            reported = found._replace(energy=held.of_energy(found.energy), free_energy=free_energy)
        self._last[request.number] = _Point(request, found, reported)
        self._first.setdefault(request.number, reported.energy)

    def keep(self, number: int) -> None:
        """Keep the last point, which the run has found to be the best so far."""
        self._best[number] = self._last[number]

    def last(self, number: int) -> Evaluated:
        """The properties at the last point, with the energy of constraints."""
        return self._last[number].reported

    def own(self, number: int) -> Evaluated:
        """The properties at the last point, as they were found."""
        return self._last[number].found

    def fail(self, number: int, message: str) -> None:
        self._messages[number] = message

    def pop(self, member: int, positions: np.ndarray, cell: np.ndarray) -> EvaluatorInfo:
        points = self._last.pop(member, None), self._best.pop(member, None)
        message, first = self._messages.pop(member, ""), self._first.pop(member, None)
        for point in points:
            if point and point.is_at(positions, cell):
                properties, energy = point.found.properties(), point.reported.energy
                return EvaluatorInfo(properties, message, first, energy)
        return EvaluatorInfo({}, message, first)


class HostBackend(AbstractBackend):
    """One batch whose structures the host evaluates."""

    def __init__(self, slots: Slots, session: AbstractSession, numbers: dict[int, int]):
        """Args: numbers: the number of each structure in the session, by that in the run."""
        self.slots, self.session, self.numbers = slots, session, numbers
        self.device = cpu_beside()
        self.switches = on_lane({}, self.device)
        """The switches of JAX for the turns, so that they are traced as for their device."""
        self.points = Points()
        slots.info_of = lambda structure, *end: self.points.pop(
            self.numbers[structure.number], *end
        )
        self.asked: dict[int, Request] = {}
        """Pending requests, by number in the session."""
        self.ranks: dict[int, int] = {}
        """The order in which structures began, by number in the session."""
        self.next_rank = itertools.count()
        is_on_host = steps_on_the_host(slots.group.settings.optimizer)
        self.optimizers = HostOptimizers(slots, session.look) if is_on_host else None
        self.held: dict[int, HostConstraints] = {}
        """The constraints that act on the host, by number in the session."""

    def start(self) -> None:
        slots = self.slots
        self._place()
        keep_best = slots.group.keep_best
        with config_context(self.switches):
            self.run: Run = started(self.how[0], keep_best, self.how[1], slots.batch, slots.moves)
        self.waits = False
        """Whether the next turn waits for an evaluation; otherwise it gives new positions."""

    def advance(self) -> None:
        """Does nothing: evaluations have begun as they were asked for."""

    def look(self) -> tuple[np.ndarray, np.ndarray]:
        answers = self._answers() if self.waits else []
        with config_context(self.switches):
            return self._turned(answers)

    def _turned(self, answers: list[Answer]) -> tuple[np.ndarray, np.ndarray]:
        """One turn with these answers: status and fmax."""
        slots, group = self.slots, self.slots.group
        findings, failed = self._findings(answers)
        self.run, here, due = _turn(*self.how, slots.batch, slots.moves, self.run, findings)
        self.here = here = jax.device_get(here)
        for number in self._numbers(slots.occupied & here["is_best"]).values():
            self.points.keep(number)
        if group.recorder is not None or group.points:
            has_come = np.asarray(findings.has_come)
            slots.record(self._with_energies(jax.device_get(due), self._numbers(has_come)))
        failed |= self._constrain()
        status = np.where(failed, Status.EVALUATION_FAILED.code, here["status"]).astype(np.int32)
        if failed.any():
            self.run = eqx.tree_at(lambda run: run.status, self.run, status)
        return status, here["fmax"]

    def is_worth_refilling(self, has_ended: np.ndarray) -> bool:
        return bool(has_ended.any())

    def take_out(self, which: np.ndarray) -> None:
        slots, numbers = self.slots, self._numbers(which)
        with config_context(self.switches):
            slots.take_out(self.run, which)
        if (left := slots.left) is not None and (last := left.last) is not None:
            # The energy is NaN where a path ends at a point that was not evaluated.
            known = {k: n for k, n in numbers.items() if not np.isnan(last["energies"][k])}
            slots.left = left._replace(last=self._with_energies(last, known))
        self._forget(which)

    def restart(self, is_new: np.ndarray, places: Places | None) -> None:
        self._place()
        slots = self.slots
        with config_context(self.switches):
            self.run = restarted(*self.how, slots.batch, slots.moves, self.run, is_new, places)

    def _place(self) -> None:
        """Put the structures in the slots, and their settings, on the device of the turns."""
        slots = self.slots
        slots.batch, slots.moves = on_device((slots.batch, slots.moves), self.device)
        self.how = partition((None, on_device(slots.settings(), self.device)))

    def prepare(self, is_new: np.ndarray) -> None:
        """Request evaluations of structures at positions that have not been evaluated."""
        self.waits = not is_new.any()
        if not self.waits:
            return  # a turn without evaluations gives the new positions
        slots, here, requests = self.slots, self.here, []
        is_waiting = slots.occupied & here["is_pending"] & ~here["is_lost"]
        for k, number in self._numbers(is_waiting).items():
            if number in self.asked:
                continue
            rank = self.ranks.setdefault(number, next(self.next_rank))
            positions = here["positions"][slots.rows_of(k)].astype(np.float64)
            cell = here["cells"][k].astype(np.float64)
            requests.append(Request(number, positions, cell, bool(here["is_free"][k]), rank))
        self.asked |= {request.number: request for request in requests}
        self.session.ask(requests)
        self.waits = not (slots.occupied & here["is_lost"]).any()

    def give_up(self) -> None:
        super().give_up()
        # A late answer would be taken for the answer to a restarted structure.
        while self.asked and not self.slots.group.monitor.is_stopped():
            for number, _ in self.session.answers(LOOK):
                self.asked.pop(number, None)
        self._forget(self.slots.occupied)

    def _numbers(self, which: np.ndarray) -> dict[int, int]:
        """The structures in these slots: their numbers in the session, by slot."""
        found = self.slots.in_slots(which)
        return {k: self.numbers[structure.number] for k, structure in found.items()}

    def _with_energies(
        self, found: dict[str, np.ndarray], known: dict[int, int]
    ) -> dict[str, np.ndarray]:
        """`found` with the evaluator's energies, of which the run has the minimised one alone.

        Args:
            known: structures at their last point, by slot.
        """
        energies = found["energies"].astype(np.float64)
        free_energies = energies.copy()
        for k, number in known.items():
            last = self.points.last(number)
            energies[..., k], free_energies[..., k] = last.energy, last.minimised
        found = found | {"energies": energies, "free_energies": free_energies}
        if not self.held:
            return found
        both = np.stack([energies, free_energies])
        for k, number in known.items():
            own = self.points.own(number)
            both[0, ..., k], both[1, ..., k] = own.energy, own.minimised
        return found | {"own_energies": np.moveaxis(both, 0, -2)}

    def _constrain(self) -> np.ndarray:
        """Constrain the steps of structures on the host; returns the mask of those that failed."""
        here, rows_of = self.here, self.slots.rows_of
        failed = np.zeros_like(self.slots.occupied)
        moved = self._numbers(self.slots.occupied & here["has_moved"]) if self.held else {}
        moved = {k: self.held[number] for k, number in moved.items() if number in self.held}
        if not moved:
            return failed
        here["positions"] = here["positions"].copy()
        for k, held in moved.items():
            new = here["positions"][rows_of(k)]
            try:
                new[:] = held.of_positions(new)
            except Exception as error:  # constraints may raise errors of any class
                new[:], failed[k] = held.positions, True
                self._fail(self._numbers(failed)[k], error)
        params = jax.device_put(here["positions"], self.device)
        self.run = eqx.tree_at(lambda run: run.point.params, self.run, params)
        return failed

    def _fail(self, number: int, error: Exception) -> None:
        self.points.fail(number, f"{type(error).__name__} of a constraint: {error}")

    def _forget(self, which: np.ndarray) -> None:
        """Drop the requests and optimizers of the structures in these slots."""
        for k, number in self._numbers(which).items():
            self.asked.pop(number, None)
            self.ranks.pop(number, None)
            self.held.pop(number, None)
            self.session.end(number)
            if self.optimizers is not None:
                self.optimizers.end(self.slots.structures[k].number)

    def _answers(self) -> list[Answer]:
        """At least one answer, unless the run is stopped."""
        monitor = self.slots.group.monitor
        while True:
            answers = self.session.answers(LOOK)
            monitor.compiles(self.slots, self.session.phase())
            if answers or monitor.is_stopped():
                return answers

    def _findings(self, answers: list[Answer]) -> tuple[EvaluationBatch, np.ndarray]:
        """The answers as arrays, and the mask of slots whose structures could not be evaluated."""
        slots = self.slots
        shape, dtype = (len(slots.occupied),), slots.batch.positions.dtype
        has_come, failed = np.zeros((2, *shape), bool)
        energies, forces = np.zeros(shape, dtype), np.zeros(slots.batch.positions.shape, dtype)
        stress = None if slots.moves is None else np.zeros((*shape, 3, 3), dtype)
        is_given, given = np.zeros(shape, bool), np.zeros_like(forces)
        slot_of = {number: k for k, number in self._numbers(slots.occupied).items()}
        for number, found in answers:
            request = self.asked.pop(number, None)
            if request is None:  # the structure has left its slot
                continue
            k = slot_of[number]
            found = taken(found, len(request.positions), names_of(request))
            if isinstance(found, EvaluationError):
                failed[k] = True
                self.points.fail(number, str(found))
                continue
            try:
                held = self._held(k, number)
                if held is not None:
                    is_given[k] = True
                    given[slots.rows_of(k)] = -held.of_forces(request.positions, found.forces)
                self.points.add(request, found, held)
            except Exception as error:  # constraints may raise errors of any class
                failed[k] = True
                self._fail(number, error)
                continue
            has_come[k], energies[k] = True, self.points.last(number).minimised
            forces[slots.rows_of(k)] = found.forces
            if stress is not None and found.stress is not None:
                stress[k] = found.stress[list(VOIGT_OF_ENTRIES)].reshape(3, 3)
        arrays: dict[str, Any] = {"has_come": has_come, "energies": energies, "forces": forces}
        if self.held:
            arrays["given"] = GivenGradients(is_given, given)  # pyright: ignore[reportArgumentType]
        found = EvaluationBatch(**arrays, stress=stress)  # pyright: ignore[reportArgumentType]
        return (found if self.optimizers is None else self._stepped(found)), failed

    def _held(self, k: int, number: int) -> HostConstraints | None:
        """The constraints of the structure in slot k, if they act on the host."""
        structure = self.slots.structures[k]
        if number not in self.held and structure.acts_on_host:
            self.held[number] = HostConstraints(structure.atoms)
        return self.held.get(number)

    def _stepped(self, findings: EvaluationBatch) -> EvaluationBatch:
        """The findings, with a step of the host for each evaluation."""
        slots, optimizers = self.slots, cast(HostOptimizers, self.optimizers)
        gradients: Any = -cast(Any, findings.forces)
        has_come = np.asarray(findings.has_come)
        batch = _constrained(slots.batch, findings)
        if has_come.any() and not (slots.moves is None and batch.constraints is None):
            gradients = _gradients(batch, slots.moves, self.run.point.params, findings)
        come = self._numbers(has_come)
        energies = {k: self.points.last(number).minimised for k, number in come.items()}
        return dataclasses.replace(findings, steps=optimizers.steps(self.run, energies, gradients))


@functools.partial(xla.jitted, is_kept=True, options=xla.SHORT, static_argnums=0)
def _turn(
    fixed: Static,
    arrays,
    batch: Batch,
    moves: CellMoves | None,
    before: Run,
    findings: EvaluationBatch,
) -> tuple[Run, dict[str, Any], dict[str, Any]]:
    """The run after one turn, the new positions, and the evaluated ones."""
    _, settings = eqx.combine(arrays, fixed.tree)
    if findings.steps is not None:
        settings = dataclasses.replace(settings, optimizer=StepsOfHost(findings.steps))
    batch = _constrained(batch, findings)
    run = advanced(_evaluation(findings, batch, moves), before, settings, batch, moves, 1)
    there = moved(batch, moves, run.point.params)
    nobody = jnp.zeros_like(findings.has_come)
    best, last_best = run.best, before.best
    is_best = nobody if best is None else best.energies < cast(Point, last_best).energies
    here = {
        "positions": there.positions,
        "cells": there.cells,
        "status": run.status,
        "fmax": run.point.fmax,
        "is_best": is_best,
        "is_pending": run.is_pending,
        "has_moved": run.has_moved,
        "is_free": nobody if moves is None else moves.is_free,
        "is_lost": nobody if moves is None else moves.is_lost(there, _reach(batch)),
    }
    is_judged, point = judged_between(before, run)
    found = found_at(point, batch, moves)
    due = found | numbers_of(is_judged, before, run, found)
    return run, here, {name: x[None] for name, x in due.items()}


@functools.partial(xla.jitted, is_kept=True, options=xla.SHORT)
def _gradients(
    batch: Batch, moves: CellMoves | None, params: Any, findings: EvaluationBatch
) -> Any:
    """Gradients by the parameters, under the constraints."""
    gradients = _evaluation(findings, batch, moves)(params).gradients
    if moves is None:
        return cast(Constraints, batch.constraints).of_gradient(gradients, batch.index, params)
    constrained = CellConstraints(batch.constraints, moves)
    return constrained.of_gradient(gradients, moves.prefix(batch.index), params)


def _constrained(batch: Batch, findings: EvaluationBatch) -> Batch:
    """The batch, with gradients that the host has constrained."""
    if findings.given is None:
        return batch
    given: Any = dataclasses.replace(findings.given, others=batch.constraints)
    return dataclasses.replace(batch, constraints=given)


def _evaluation(findings: EvaluationBatch, batch: Batch, moves: CellMoves | None) -> Callable:
    """A function that maps parameters to the findings."""

    def evaluate(params):
        energies, forces, has_come = findings.energies, findings.forces, findings.has_come
        if moves is None:
            return Evaluation(energies, -forces, has_come)
        here = moved(batch, moves, params)
        is_lost = moves.is_lost(here, _reach(batch))
        properties = Properties(energies, forces, jnp.zeros_like(forces[:, 0]), findings.stress)
        enthalpies, gradient, observed = moves.of_properties(params, properties, here, is_lost)
        return Evaluation(enthalpies, gradient, has_come | is_lost, observed)

    return evaluate


def _reach(batch: Batch) -> Array:
    return jnp.asarray(REACH, batch.positions.dtype)
