"""The programs of a batch between two host syncs, with and without a record of its points.

All of them compute a run with the same bits.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp

from basinax.engine.device import Settings, advanced, found_at, moved
from basinax.engine.moving_cells import CellMoves
from basinax.minimize.run import Evaluation, Run, judged_between
from basinax.minimize.status import Status
from basinax.neighbors.lists import ChunkedLists, Lists, moved_too_far
from basinax.neighbors.prune import CutoffAndSkin, next_skins, select_near
from basinax.numerics import xla
from basinax.numerics.order import checked_once
from basinax.numerics.static import Static
from basinax.optimizers.protocol import select_state
from basinax.potentials import AbstractPotential
from basinax.structures.batch import Batch
from basinax.structures.machine import machine

FRAMES = 3
"""Frames of a system per host sync; if more would be due, the program runs fewer turns."""


def _by_length(function: Callable) -> dict[bool, Callable]:
    """The function jitted for short runs, and for others."""
    return {
        is_short: xla.jitted(
            function,
            xla.ON_ONE_CORE | (xla.SHORT if is_short else {}),
            static_argnums=0,
            is_kept=True,
        )
        for is_short in (False, True)
    }


class Block(NamedTuple):
    """A block of turns of a batch, between two host syncs: its inputs."""

    how: tuple[AbstractPotential, Settings]
    batch: Batch
    moves: CellMoves | None
    neighbors: Lists
    reach: CutoffAndSkin

    def here(self, run: Run) -> Batch:
        return moved(self.batch, self.moves, run.point.params)

    @property
    def most_turns(self) -> int:
        """The largest number of turns between two host syncs."""
        of = machine()
        return of.turns if self._chunked is None else of.periods * of.period

    @property
    def _chunked(self) -> ChunkedLists | None:
        """The lists in chunked form, if pairs are expensive."""
        is_chunked = isinstance(self.neighbors, ChunkedLists) and self.how[0].has_expensive_pairs
        return cast(ChunkedLists, self.neighbors) if is_chunked else None

    def advance(self, go: Callable, carry: Any, run_of: Callable, skins, n_turns=None) -> tuple:
        """Carry a run through some turns.

        Args:
            go: maps a stepping function, a number of turns and a carry to the next carry.
            run_of: returns the run in the carry.
            skins: the skin of each system, in Å; see `select_near`.
            n_turns: the largest number of turns.

        Returns:
            The carry, the next skins, and the mask of systems that need a new list.
        """
        reach, lists = self.reach, self.neighbors
        chunked, most = self._chunked, self.most_turns
        n_turns = most if n_turns is None else jnp.minimum(n_turns, most)
        if chunked is None:
            carry = go(self._stepper(lists, reach.skin), n_turns, carry)
            return carry, skins, self._is_stale(self.here(run_of(carry)))

        # One period: select near pairs, run some turns with them, then adapt the skins.
        def period(state):
            carry, skins, _, n_done = state
            run = run_of(carry)
            is_running = run.status == Status.RUNNING.code
            near, skins = select_near(chunked, self.here(run), reach, skins, is_running)
            n_now = jnp.minimum(machine().period, n_turns - n_done)
            carry = go(self._stepper(near, skins), n_now, carry)
            there = self.here(run_of(carry))
            skins = next_skins(near, there, reach, skins)
            return carry, skins, self._is_stale(there), n_done + n_now

        def goes_on(state):
            carry, _, is_stale, n_done = state
            can_move = (run_of(carry).status == Status.RUNNING.code) & ~is_stale
            return (n_done < n_turns) & jnp.any(can_move)

        state = (carry, jnp.asarray(skins, reach.skin.dtype), jnp.zeros(len(skins), bool))
        return jax.lax.while_loop(goes_on, period, (*state, jnp.int32(0)))[:3]

    def _is_stale(self, here: Batch) -> Any:
        """The mask of systems that need a new list."""
        lists, skin, moves = self.neighbors, self.reach.skin, self.moves
        is_stale = moved_too_far(here.positions, lists, here.index, skin, here.cells)
        # A lost cell needs no list: its next turn ends it, independently of host syncs.
        return is_stale if moves is None else is_stale & ~moves.is_lost(here, self.reach.cutoff)

    def _stepper(self, neighbors: Lists, skin) -> Callable:
        """A function that advances a run by a number of turns with these lists."""
        (potential, settings), batch, moves = self.how, self.batch, self.moves

        def evaluate(params):
            here = moved(batch, moves, params)
            properties = potential(here, neighbors, stress=moves is not None)
            is_stale = moved_too_far(here.positions, neighbors, batch.index, skin, here.cells)
            if moves is None:
                energies, gradient = properties.energies, -properties.forces
                return Evaluation(energies, gradient, ~is_stale, None, properties.atom_energies)
            is_lost = moves.is_lost(here, self.reach.cutoff)
            enthalpies, gradient, observed = moves.of_properties(params, properties, here, is_lost)
            # A lost cell needs no list: its evaluation is NaN, which ends it.
            of_atoms = properties.atom_energies
            of_atoms = jnp.where(batch.index.spread(is_lost, False, of_atoms), jnp.nan, of_atoms)
            is_valid = ~is_stale | is_lost
            return Evaluation(enthalpies, gradient, is_valid, observed, of_atoms)

        def step(run: Run, turns) -> Run:
            def go(run, turns):
                return advanced(evaluate, run, settings, batch, moves, turns)

            return checked_once((potential, settings, batch.constraints), go, run, turns)

        return step


@_by_length
def advance_block(
    fixed: Static, arrays, batch, moves, neighbors: Lists, reach: CutoffAndSkin, run: Run, skins
) -> tuple[Run, Any, Any]:
    """`Block.advance` for a run alone."""

    def go(step, turns, run):
        return step(run, turns)

    block = Block(eqx.combine(arrays, fixed.tree), batch, moves, neighbors, reach)
    return block.advance(go, run, lambda run: run, skins)


def _kept_by(keep: Callable) -> Callable:
    """The `go` of `Block.advance` for a run and values that are stored after every turn.

    Args:
        keep: maps the runs before and after a turn, and stored values, to the new values.
    """

    def go(step, turns, carry):
        def turn(carry):
            before, kept, count = carry
            run = step(before, 1)
            return run, keep(before, run, kept), count + 1

        def goes_on(carry):
            run, _, count = carry
            return (count == 0) | (jnp.any(run.has_moved) & (count < turns))

        return jax.lax.while_loop(goes_on, turn, (*carry, jnp.int32(0)))[:2]

    return go


@_by_length
def recorded(
    fixed: Static,
    arrays,
    batch,
    moves,
    neighbors: Lists,
    reach: CutoffAndSkin,
    run: Run,
    skins,
    interval,
) -> tuple[tuple[Run, dict[str, Any]], Any, Any]:
    """`advance_block`, with points of systems at multiples of the interval of steps.

    The last `FRAMES` points of each system are stacked along a first axis; `steps` is -1 for
    missing points.
    """
    prefix = run.index_prefix

    def newest(before, run, dues):
        is_judged, there = judged_between(before, run)
        is_due = is_judged & (before.steps % interval == 0)
        counts = {"steps": before.steps, "evaluations": run.evaluations}

        def due(new, old):
            return jnp.where(is_due, new, old)

        def newer(dues):
            return [
                (select_state(is_due, x, y, prefix), jax.tree.map(due, n, m))
                for (x, n), (y, m) in zip([*dues[1:], (there, counts)], dues, strict=True)
            ]

        return jax.lax.cond(jnp.any(is_due), newer, lambda dues: dues, dues)

    here = dataclasses.replace(run.point, of_rows=None)
    nothing = jnp.full_like(run.steps, -1)
    none = (here, {"steps": nothing, "evaluations": nothing})
    block = Block(eqx.combine(arrays, fixed.tree), batch, moves, neighbors, reach)
    # Limit the turns so that at most `FRAMES` points fall due. The interval may be any integer.
    n_turns = FRAMES * jnp.minimum(interval, machine().periods * machine().period)
    (run, dues), skins, is_stale = block.advance(
        _kept_by(newest), (run, [none] * FRAMES), lambda carry: carry[0], skins, n_turns
    )
    found = [counts | found_at(point, batch, moves) for point, counts in dues]
    # Copying one large array to the host is faster than copying many small ones.
    return (run, jax.tree.map(lambda *each: jnp.stack(each), *found)), skins, is_stale


@_by_length
def noted(
    fixed: Static, arrays, batch, moves, neighbors: Lists, reach: CutoffAndSkin, run: Run, skins
) -> tuple[tuple[Run, dict[str, Any]], Any, Any]:
    """`advance_block`, with the numbers of each turn along a first axis.

    `steps` is -1 in turns in which a system was not judged.
    """
    block = Block(eqx.combine(arrays, fixed.tree), batch, moves, neighbors, reach)

    def noted_too(before, run, kept):
        notes, at = kept
        is_judged, there = judged_between(before, run)
        note = numbers_of(is_judged, before, run, found_at(there, batch, moves))

        def put(all_of_them, one):
            return jax.lax.dynamic_update_index_in_dim(all_of_them, one, at, axis=0)

        return {name: put(x, note[name]) for name, x in notes.items()}, at + 1

    nobody = jnp.zeros_like(run.has_moved)
    none = numbers_of(nobody, run, run, found_at(run.point, batch, moves))
    notes = {name: jnp.stack([x] * block.most_turns) for name, x in none.items()}
    (run, (notes, _)), skins, is_stale = block.advance(
        _kept_by(noted_too), (run, (notes, jnp.int32(0))), lambda carry: carry[0], skins
    )
    return (run, notes), skins, is_stale


def numbers_of(is_judged: Any, before: Run, run: Run, found: dict[str, Any]) -> dict[str, Any]:
    """The numbers of each system that a history stores of one turn.

    Args:
        before, run: the runs before and after the turn.
        found: the result of `found_at`.
    """
    steps = jnp.where(is_judged, before.steps, -1)
    names = ("energies", "fmax", "cells") if "is_free" in found else ("energies", "fmax")
    return {name: found[name] for name in names} | {"steps": steps, "evaluations": run.evaluations}
