"""Batches whose structures the host evaluates, each continued as soon as its evaluation arrives.

One turn of the loop takes the evaluations that have arrived; other structures stand still. No bit
of a result depends on which evaluations arrive together.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from basinax._bits import xla
from basinax._jax.fixed import Fixed, split
from basinax._jax.shortage import is_out_of_memory
from basinax._loop.run import Evaluation, Point, Run, judged_between
from basinax._loop.status import Status
from basinax.atoms._batch import Batch
from basinax.atoms._cells.moves import CellConstraints, CellMoves
from basinax.atoms._constraints.applied import Constraints
from basinax.atoms._evaluators.protocol import (
    AbstractSession,
    Answer,
    Evaluated,
    EvaluationError,
    Request,
)
from basinax.atoms._internal.optimizer import Given, steps_on_the_host
from basinax.atoms._matrices import VOIGT_OF_ENTRIES
from basinax.atoms._snapshot import Snapshot
from basinax.atoms._streams.device import (
    advanced,
    found_at,
    moved,
    restarted,
    started,
)
from basinax.atoms._streams.places import Group, Places, Report
from basinax.atoms._streams.sizes import smaller, tell_of_smaller
from basinax.atoms._streams.turns import numbers_of
from basinax.atoms._streams.walks import Walks
from basinax.atoms.potentials import Properties

LOOK = 0.2
"""Seconds that the host waits for an evaluation before it checks whether to stop."""

REACH = 6.0
"""A structure ends, without evaluation, if its cell has collapsed or exploded so far that
neighbours within this distance (Å) could not be listed."""


class Findings(eqx.Module):
    """Evaluations that have arrived, in NumPy arrays of a batch's shapes; 0 in other places."""

    has_come: Bool[Array, "systems"]
    energies: Float[Array, "systems"]
    forces: Float[Array, "rows 3"]
    stress: Float[Array, "systems 3 3"] | None
    steps: Any = None
    """Steps like the parameters, if the host makes the steps."""


class _Point(NamedTuple):
    """A point at which a structure was evaluated, with all results."""

    request: Request
    found: Evaluated

    def is_at(self, end: Snapshot) -> bool:
        positions, cell = self.request.positions, self.request.cell
        return np.array_equal(positions, end.positions) and np.array_equal(cell, end.cell)


class Points:
    """The properties of each structure at the points where it may end: its last and its best."""

    def __init__(self) -> None:
        self._last: dict[int, _Point] = {}
        self._best: dict[int, _Point] = {}
        self._first: dict[int, float] = {}
        self._messages: dict[int, str] = {}

    def add(self, request: Request, found: Evaluated) -> None:
        self._last[request.number] = _Point(request, found.owned())
        self._first.setdefault(request.number, found.energy)

    def keep(self, number: int) -> None:
        """Keep the last point, which the run has found to be the best so far."""
        self._best[number] = self._last[number]

    def last(self, number: int) -> Evaluated:
        """The properties at the last point."""
        return self._last[number].found

    def fail(self, number: int, message: str) -> None:
        self._messages[number] = message

    def pop(self, member: int, end: Snapshot) -> Report:
        points = self._last.pop(member, None), self._best.pop(member, None)
        properties = next((p.found.properties() for p in points if p and p.is_at(end)), {})
        message, first = self._messages.pop(member, ""), self._first.pop(member, None)
        return Report(properties, message, first)


def relax_hosted(group: Group, session: AbstractSession) -> None:
    """Relax the structures of a group until none waits, or until the run is stopped."""
    while not group.monitor.is_stopped() and (members := group.fill()):
        stream = None
        try:
            stream = HostedStream(group, session, members)
            stream.run()
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            standing = members if stream is None else stream.given_up()
            less = smaller(group, standing, error)
            tell_of_smaller(group, less, len(standing))
            group = less


class HostedStream:
    """One batch whose structures the host evaluates."""

    def __init__(self, group: Group, session: AbstractSession, members: list[int]):
        self.group, self.session = group, session
        self.points = Points()
        self.places = Places(group, members, self.points.pop)
        self.asked: dict[int, Request] = {}
        """Pending requests, by structure number."""
        is_walked = steps_on_the_host(group.settings.optimizer)
        self.walks = Walks(self.places) if is_walked else None

    def run(self) -> None:
        places, group = self.places, self.group
        how = split((None, places.settings()))
        run = started(how[0], group.keep_best, how[1], places.batch, places.moves)
        findings, failed = self._findings(run, [])
        while True:
            run, here, due = _turn(*how, places.batch, places.moves, run, findings)
            here = jax.device_get(here)
            for k in np.flatnonzero(places.occupied & here["is_best"]).tolist():
                self.points.keep(int(places.members[k]))
            if group.recorder is not None or group.points:
                has_come = np.asarray(findings.has_come)
                places.record(self._with_energies(jax.device_get(due), has_come))
            status = np.where(failed, Status.EVALUATION_FAILED, here["status"]).astype(np.int32)
            if failed.any():
                run = eqx.tree_at(lambda r: r.status, run, status)
            group.monitor.report(places, status[places.occupied], here["fmax"][places.occupied])
            if group.monitor.is_stopped():
                self._end(run, places.occupied)
                places.hand_over()
                return
            has_ended = places.occupied & (status != Status.RUNNING)
            if has_ended.any():
                run, how, is_new = self._refilled(run, how, has_ended)
                places.hand_over()
                if not places.occupied.any():
                    return
                if is_new.any():
                    findings, failed = self._findings(run, [])
                    continue  # a turn without evaluations gives the new positions
            self._ask(here)
            is_lost = places.occupied & here["is_lost"]
            answers = [] if is_lost.any() else self._answers()
            findings, failed = self._findings(run, answers)

    def given_up(self) -> list[int]:
        """The structures of the batch, after all pending requests have been answered or dropped."""
        places = self.places
        places.hand_over()
        self.group.monitor.forget(places)
        # A late answer would be taken for the answer to a restarted structure.
        while self.asked and not self.group.monitor.is_stopped():
            for number, _ in self.session.answers(LOOK):
                self.asked.pop(number, None)
        members = places.members[places.occupied].tolist()
        self._forget(members)
        return members

    def _refilled(self, run: Run, how: Any, has_ended: np.ndarray) -> tuple[Run, Any, np.ndarray]:
        """The run with waiting structures in the places of ended ones, and these places."""
        places = self.places
        self._end(run, has_ended)
        is_new = places.refill()
        if is_new.any():
            how = split((None, places.settings()))
            run = restarted(*how, places.batch, places.moves, run, is_new)
        return run, how, is_new

    def _end(self, run: Run, which: np.ndarray) -> None:
        places = self.places
        self._forget(places.members[which].tolist())
        places.take_out(run, which)
        if (ended := places.ended) is not None and (last := ended.last) is not None:
            # The energy is NaN where a path ends at a point that was not evaluated.
            is_known = which & ~np.isnan(last["energies"])
            places.ended = ended._replace(last=self._with_energies(last, is_known))

    def _with_energies(
        self, found: dict[str, np.ndarray], is_known: np.ndarray
    ) -> dict[str, np.ndarray]:
        """`found` with the evaluator's energies, of which the run has the minimised one alone.

        Args:
            is_known: places at the last point of their structure.
        """
        energies = found["energies"].astype(np.float64)
        free_energies = energies.copy()
        for k in np.flatnonzero(is_known).tolist():
            last = self.points.last(int(self.places.members[k]))
            energies[..., k], free_energies[..., k] = last.energy, last.minimised
        return found | {"energies": energies, "free_energies": free_energies}

    def _forget(self, members: list[int]) -> None:
        for number in members:
            self.asked.pop(number, None)
            self.session.end(number)
            if self.walks is not None:
                self.walks.end(number)

    def _ask(self, here: dict[str, np.ndarray]) -> None:
        """Request evaluations of structures at positions that have not been evaluated."""
        places, requests = self.places, []
        is_waiting = places.occupied & here["is_pending"] & ~here["is_lost"]
        for k in np.flatnonzero(is_waiting).tolist():
            number = int(places.members[k])
            if number in self.asked:
                continue
            rows = places.rows_of(k)
            positions = here["positions"][rows].astype(np.float64)
            cell = here["cells"][k].astype(np.float64)
            requests.append(Request(number, positions, cell, bool(here["is_free"][k])))
        self.asked |= {request.number: request for request in requests}
        self.session.ask(requests)

    def _answers(self) -> list[Answer]:
        """At least one answer, unless the run is stopped."""
        while not (answers := self.session.answers(LOOK)):
            if self.group.monitor.is_stopped():
                break
        return answers

    def _findings(self, run: Run, answers: list[Answer]) -> tuple[Findings, np.ndarray]:
        """The answers as arrays, and the mask of places whose structures could not be evaluated."""
        places = self.places
        shape, dtype = (len(places.occupied),), places.batch.positions.dtype
        has_come, failed = np.zeros((2, *shape), bool)
        energies, forces = np.zeros(shape, dtype), np.zeros(places.batch.positions.shape, dtype)
        stress = None if places.moves is None else np.zeros((*shape, 3, 3), dtype)
        place_of = {int(places.members[k]): k for k in np.flatnonzero(places.occupied).tolist()}
        for number, found in answers:
            request = self.asked.pop(number, None)
            if request is None:  # the structure has left its place
                continue
            k = place_of[number]
            if isinstance(found, EvaluationError):
                failed[k] = True
                self.points.fail(number, str(found))
                continue
            self.points.add(request, found)
            has_come[k], energies[k] = True, found.minimised
            forces[places.rows_of(k)] = found.forces
            if stress is not None and found.stress is not None:
                stress[k] = found.stress[list(VOIGT_OF_ENTRIES)].reshape(3, 3)
        arrays: dict[str, Any] = {"has_come": has_come, "energies": energies, "forces": forces}
        found = Findings(**arrays, stress=stress)  # pyright: ignore[reportArgumentType]
        return (found if self.walks is None else self._walked(run, found)), failed

    def _walked(self, run: Run, findings: Findings) -> Findings:
        """The findings, with a step for each evaluation."""
        places, walks = self.places, cast(Walks, self.walks)
        gradients: Any = -cast(Any, findings.forces)
        has_come = np.asarray(findings.has_come)
        if has_come.any() and not (places.moves is None and places.batch.constraints is None):
            gradients = _gradients(places.batch, places.moves, run.point.params, findings)
        come = np.flatnonzero(has_come).tolist()
        energies = {k: self.points.last(int(places.members[k])).minimised for k in come}
        return dataclasses.replace(findings, steps=walks.steps(run, energies, gradients))


@functools.partial(xla.jitted, is_kept=True, options=xla.SHORT, static_argnums=0)
def _turn(
    fixed: Fixed, arrays, batch: Batch, moves: CellMoves | None, before: Run, findings: Findings
) -> tuple[Run, dict[str, Any], dict[str, Any]]:
    """The run after one turn, the new positions, and the evaluated ones."""
    _, settings = eqx.combine(arrays, fixed.tree)
    if findings.steps is not None:
        settings = dataclasses.replace(settings, optimizer=Given(findings.steps))
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
        "is_free": nobody if moves is None else moves.is_free,
        "is_lost": nobody if moves is None else moves.is_lost(there, _reach(batch)),
    }
    is_judged, point = judged_between(before, run)
    found = found_at(point, batch, moves)
    due = found | numbers_of(is_judged, before, run, found)
    return run, here, {name: x[None] for name, x in due.items()}


@functools.partial(xla.jitted, is_kept=True, options=xla.SHORT)
def _gradients(batch: Batch, moves: CellMoves | None, params: Any, findings: Findings) -> Any:
    """Gradients by the parameters, under the constraints."""
    gradients = _evaluation(findings, batch, moves)(params).gradients
    if moves is None:
        return cast(Constraints, batch.constraints).of_gradient(gradients, batch.index, params)
    constrained = CellConstraints(batch.constraints, moves)
    return constrained.of_gradient(gradients, moves.prefix(batch.index), params)


def _evaluation(findings: Findings, batch: Batch, moves: CellMoves | None) -> Callable:
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
