"""The slots of a batch, which structures occupy one after another, and their outcomes."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from basinax.engine.device import Settings, moved, result
from basinax.engine.history_buffer import HistoryBuffer
from basinax.engine.moving_cells import CellMoves, cell_moves
from basinax.engine.queue import Monitor, Queue
from basinax.minimize.run import Run
from basinax.minimize.status import Status
from basinax.numerics.rounding import BLOCK
from basinax.optimizers.protocol import Places
from basinax.results.history import AnyRecorder, History
from basinax.results.record import Relaxed, displacements
from basinax.results.snapshot import Snapshot, Template
from basinax.results.trajectory import Frame
from basinax.structures.batch import Batch, padded_size, put, row_starts
from basinax.structures.cells.kinds import Kind, is_open
from basinax.structures.constraints.applied import Layout, has_room
from basinax.structures.read import Structure, source_of
from basinax.systems.index import index_of_sizes
from basinax.systems.plan import ranges


class Group(NamedTuple):
    """Structures that are relaxed in batches of one shape."""

    settings: Settings
    dtype: Any
    keep_best: bool
    shape: tuple[int, int]
    """The numbers of rows and systems of a batch."""
    n_filled: int
    """The most rows to fill, so that structures remain for other batches."""
    n_rows: int
    """The number of rows of all structures from which the group was made."""
    most_rows: int
    """The number of rows of the largest structure."""
    most_neighbors: float
    """The largest estimated number of neighbours of an atom."""
    most_elements: int | None
    """The most elements of one structure; None if the number does not matter."""
    layout: Layout
    """The layout of the constraints."""
    kind: Kind | None
    """The kind of moving cells; None if all cells are fixed."""
    has_open: bool
    """Whether there is room for cells that are open, see `is_open`."""
    worth_closing_up: float
    """The running structures close up once they fill at most this part of `n_filled`."""
    queue: Queue
    monitor: Monitor
    recorder: AnyRecorder | None
    points: int
    """The largest number of points in a structure's history; 0 for no history."""

    def suits(self, structure: Structure, n_neighbors: float) -> bool:
        """Whether the programs of the group have room for another structure.

        Args:
            n_neighbors: the estimated number of neighbours of its atoms.
        """
        return (
            structure.kind in (None, self.kind)
            and not (structure.acts_on_host and self.kind is not None)
            and len(structure) <= self.most_rows
            and n_neighbors <= self.most_neighbors
            and (self.most_elements is None or structure.n_elements <= self.most_elements)
            and has_room(self.layout, structure.stages)
            and (self.has_open or not is_open(structure.cell))
        )

    def fill(self) -> list[Structure]:
        """Waiting structures for a new batch; empty if none wait."""
        n_rows, n_systems = self.shape
        return self.queue.fill(min(self.n_filled, n_rows), n_systems)

    def halved(self) -> "Group":
        """The group with batches of half the size, in which its largest structure still fits."""
        n_rows, n_systems = self.shape
        rows = max(-(-self.most_rows // BLOCK) * BLOCK, padded_size(n_rows // 2, least=BLOCK))
        return self._replace(shape=(rows, padded_size(-(-n_systems // 2))), n_filled=rows)


ENERGIES = ("energy", "free_energy")


class EvaluatorInfo(NamedTuple):
    """What an evaluator adds to the result of a structure that has ended."""

    properties: dict[str, Any] = {}  # noqa: RUF012
    """Properties by ASE's names, which replace those of the batch."""
    message: str = ""
    """The reason if the structure could not be evaluated."""
    first_energy: float | None = None
    """The energy at the start, in eV; None for the batch's value."""
    energy: float | None = None
    """The energy with that of constraints, in eV; None for that of the properties."""


NO_INFO = EvaluatorInfo()

InfoOf = Callable[[Structure, np.ndarray, np.ndarray], EvaluatorInfo]
"""The information on a structure that ended at these positions, in this cell; available once."""


class Left(NamedTuple):
    """Structures that have left their slots in a batch."""

    found: dict[str, np.ndarray]
    """The values of `result` for all slots."""
    last: dict[str, np.ndarray] | None
    """The last points of trajectories; None without a recorder."""
    structures: "Standing"
    """The structures by slot, with their rows."""
    histories: dict[int, History]
    """The histories by slot; empty if no histories are kept."""
    stays: np.ndarray
    """The mask of slots whose structures run on."""


Standing = dict[int, tuple[Structure, slice]]
"""Structures by slot, with their rows: others may stand there by the time of the results."""


Ended = dict[int, Relaxed]
"""Outcomes by the numbers of structures."""


class Slots:
    """The slots of one batch, which structures occupy one after another."""

    def __init__(self, group: Group, structures: list[Structure]):
        self.group = group
        self.info_of: InfoOf | None = None
        self.left: Left | None = None
        """Structures that have left their slots and await `emit`."""
        self.histories = HistoryBuffer(group.shape[1], group.points) if group.points else None
        self._begin(structures)

    def _begin(self, structures: list[Structure]) -> None:
        """A batch of these structures, in the first slots."""
        group = self.group
        # Empty slots have the settings of the first structure, and no rows.
        self.structures = structures + structures[:1] * (group.shape[1] - len(structures))
        self.occupied = np.arange(group.shape[1]) < len(structures)
        self.batch = Batch.of(structures, group.dtype, *group.shape, group.layout, group.most_rows)
        self.starts = row_starts(self.batch.index.sizes)
        self.moves = self._moves()

    def settings(self) -> Settings:
        """The settings of the structures in the batch, one entry per slot."""
        return self.group.settings.of(self.structures)

    def in_slots(self, which: np.ndarray) -> dict[int, Structure]:
        """The structures in these slots, by slot."""
        return {k: self.structures[k] for k in np.flatnonzero(which).tolist()}

    def rows_of(self, k: int) -> slice:
        """The rows of the structure in slot k."""
        return slice(self.starts[k], self.starts[k] + self.structures[k].n_atoms)

    def _standing(self, which: np.ndarray) -> Standing:
        """The structures in these slots, with their rows."""
        return {k: (structure, self.rows_of(k)) for k, structure in self.in_slots(which).items()}

    def here(self, run: Run) -> Batch:
        """The batch at the current positions of the run."""
        if self.moves is None:
            return moved(self.batch, None, run.point.params)
        # Reuse the program `result`, which the end of the run needs in any case.
        found = result(dataclasses.replace(run, best=None), self.batch, self.moves)
        return dataclasses.replace(self.batch, positions=found["positions"], cells=found["cells"])

    def n_rows(self, which: np.ndarray) -> int:
        """The number of rows of the structures in these slots."""
        return int(np.asarray(self.batch.index.sizes)[which].sum())

    def _moves(self) -> CellMoves | None:
        """The moves of the cells of the structures in this batch."""
        group = self.group
        if group.kind is None:
            return None
        options = {"held": self.occupied, "has_open": group.has_open}
        dtype = self.batch.positions.dtype
        return cell_moves(group.kind, self.structures, group.shape[1], dtype, **options)

    def take_out(self, run: Run, which: np.ndarray) -> None:
        """Free the slots of structures that have ended, or must end at their current point."""
        found = last = jax.device_get(result(run, self.batch, self.moves))
        if self.group.recorder is None:
            last = None
        elif self.group.keep_best:
            path = dataclasses.replace(run, best=None)
            last = jax.device_get(result(path, self.batch, self.moves))
        structures, self.occupied = self._standing(which), self.occupied & ~which
        histories = self._histories(found, list(structures))
        self.left = Left(found, last, structures, histories, self.occupied)

    def _histories(self, found: dict[str, np.ndarray], which: list[int]) -> dict[int, History]:
        """The histories of the structures in these slots, if histories are kept."""
        if self.histories is None:
            return {}
        kept = {k: self.histories.of(k) for k in which}
        if self.moves is None:
            return kept
        return {k: h if found["is_free"][k] else h._replace(volumes=None) for k, h in kept.items()}

    def emit(self) -> Ended:
        """The outcomes of the structures that were taken out."""
        if self.left is None:
            return {}
        found, last, structures, histories, stays = self.left
        ended = self._outcomes(found, structures, histories)
        if last is not None:
            self._record_ends(last, structures)
        self.left = None  # not before: where memory runs out meanwhile, it is tried again
        status, fmax = found["status"], found["fmax"]
        self.group.monitor.report(self, status[stays], fmax[stays], ended=status[list(structures)])
        return ended

    def _outcomes(
        self,
        found: dict[str, np.ndarray],
        structures: Standing,
        histories: dict[int, History],
    ) -> Ended:
        """The outcomes of the structures that left these slots."""
        if not structures:
            return {}
        slots, own = list(structures), [structure for structure, _ in structures.values()]
        atoms = [structure.atoms for structure in own]
        infos, places = self._infos(found, structures), list(self._places(found, structures))
        codes, seconds = found["status"][slots], self.group.monitor.seconds()
        fields = {
            "fmax": found["fmax"][slots].tolist(),
            "steps": found["steps"][slots].tolist(),
            "evaluations": found["evaluations"][slots].tolist(),
            "status": Status.of_codes(codes.tolist()),
            "initial_energy": np.where(
                found["evaluations"][slots] > 0, found["first_energies"][slots], np.nan
            ).tolist(),
            "initial_volume": [structure.volume for structure in own],
            "displacement": displacements(atoms, places),
            "seconds": np.where(codes == Status.RUNNING.code, np.nan, seconds).tolist(),
        }
        ended: Ended = {}
        ends = self._snapshots(found, structures, places)
        each = zip(slots, own, infos, ends, *fields.values(), strict=True)
        for k, structure, info, end, *values in each:
            if kept := {x: info.properties[x] for x in ENERGIES if x in info.properties}:
                end = end._replace(**kept)
            values_of = {
                "template": Template.of(structure.atoms),
                "positions": end.positions,
                "cell": end.cell,
                "results": end.properties() | info.properties,
                "energy": end.energy if info.energy is None else info.energy,
                "source": source_of(structure.atoms, structure.number),
                "message": info.message,
                "history": histories.get(k),
            }
            values_of.update(zip(fields, values, strict=True))
            if info.first_energy is not None:
                values_of["initial_energy"] = info.first_energy
            ended[structure.number] = Relaxed.made(values_of)
        return ended

    def _infos(self, found: dict[str, np.ndarray], structures: Standing) -> list[EvaluatorInfo]:
        """What the evaluator adds to the structures in these slots."""
        if self.info_of is None:
            return [NO_INFO] * len(structures)
        positions, cells = (np.asarray(found[x], np.float64) for x in ("positions", "cells"))
        return [self.info_of(s, positions[own], cells[k]) for k, (s, own) in structures.items()]

    def _places(self, found: dict[str, np.ndarray], structures: Standing) -> Iterator[np.ndarray]:
        """The positions of the structures in these slots, in arrays of their own.

        Fixed coordinates have their original bits, which a run may round.
        """
        positions = np.asarray(found["positions"], np.float64)
        for structure, rows in structures.values():
            place = positions[rows].copy()
            if structure.cell is None and structure.atoms.constraints:
                place = np.where(structure.fixed, structure.atoms.positions, place)
            yield place

    def _snapshots(
        self,
        found: dict[str, np.ndarray],
        structures: Standing,
        places: Iterable[np.ndarray],
    ) -> Iterator[Snapshot]:
        """The structures in these slots at these places, each with arrays of its own.

        Fixed cells have their original bits.
        """
        names = ("cells", "forces", "stress", "of_atoms", "energies", "free_energies")
        arrays = {x: np.asarray(found[x], np.float64) for x in names if x in found}
        cells, forces, energies = arrays["cells"], arrays["forces"], arrays["energies"].tolist()
        stress, of_atoms = arrays.get("stress"), arrays.get("of_atoms")
        free, own = arrays.get("free_energies"), found.get("own_energies")
        for (k, (structure, rows)), place in zip(structures.items(), places, strict=True):
            is_fixed = structure.cell is None
            yield Snapshot(
                place,
                structure.atoms.cell.array.copy() if is_fixed else cells[k].copy(),
                forces[rows].copy(),
                stress[k].copy() if stress is not None and found["is_free"][k] else None,
                energies[k],
                None if of_atoms is None else of_atoms[rows].copy(),
                None if free is None else float(free[k]),
                None if own is None else tuple(own[:, k].tolist()),
            )

    def record(self, found: dict[str, np.ndarray]) -> None:
        """Store histories and frames of turns, a first axis; `steps` are -1 in other turns."""
        if self.histories is not None:
            kept = {name: found[name] for name in ("steps", "evaluations", "energies", "fmax")}
            if self.moves is not None:
                kept["volumes"] = np.abs(np.linalg.det(found["cells"].astype(np.float64)))
            self.histories.add(kept)
        if self.group.recorder is not None:
            for k in range(len(found["steps"])):
                self._record({name: x[k] for name, x in found.items()})

    def _record(self, found: dict[str, np.ndarray]) -> None:
        """Pass on frames that are due."""
        interval = cast(AnyRecorder, self.group.recorder).interval
        is_due = self.occupied & (found["steps"] >= 0) & (found["steps"] % interval == 0)
        self._add_frames(found, self._standing(is_due))

    def _record_ends(self, last: dict[str, np.ndarray], structures: Standing) -> None:
        """Pass on the last frames of structures that have ended; recorders skip known frames."""
        has_ended = (last["status"] != Status.RUNNING.code) & last["is_known"]
        ends = {k: standing for k, standing in structures.items() if has_ended[k]}
        self._add_frames(last, ends, are_last=True)

    def _add_frames(
        self,
        found: dict[str, np.ndarray],
        structures: Standing,
        *,
        are_last: bool = False,
    ) -> None:
        """Pass on frames of structures in these slots; the recorder's thread builds each frame."""
        if not structures:
            return

        def frames() -> Iterator[Frame]:
            snapshots = self._snapshots(found, structures, self._places(found, structures))
            each = zip(structures.items(), snapshots, strict=True)
            for (k, (structure, _)), snapshot in each:
                # Frames leave out energies of atoms, which need as much space as a coordinate.
                snapshot = snapshot._replace(energies=None)
                numbers = structure.number, int(found["steps"][k])
                yield Frame(*numbers, snapshot, float(found["fmax"][k]), are_last)

        cast(AnyRecorder, self.group.recorder).add(frames())

    def refill(self, may_close_up: Callable[[], bool]) -> tuple[np.ndarray, Places | None]:
        """Fill free slots with waiting structures.

        A structure takes the place of one with as many blocks of rows. If much would stay free, the
        running structures close up, and others begin behind them.

        Args:
            may_close_up: tells whether they may.

        Returns:
            The mask of slots that begin, and where the structures of the others stood before; None
            if they stand there still.
        """
        group, sizes = self.group, np.array(self.batch.index.sizes)
        blocks, new = -(-sizes // BLOCK), {}
        for k in np.flatnonzero(~self.occupied).tolist():
            structure = group.queue.replace(int(blocks[k]))
            if structure is not None:
                new[k] = structure
        here = [*self._running().values(), *new.values()]
        most_rows = min(group.n_filled, self.batch.n_rows)
        n_rows, further = BLOCK * sum(s.n_blocks for s in here), []
        if n_rows <= group.worth_closing_up * most_rows:
            further = group.queue.fill(most_rows - n_rows, self.batch.n_systems - len(here))
        if not further:
            return self._filled(new), None
        try:
            may = may_close_up()
        except BaseException:  # memory may run out
            group.queue.put_back([*new.values(), *further])
            raise
        if may:
            return self._closed_up([*new.values(), *further])
        group.queue.put_back(further)
        return self._filled(new), None

    def _running(self) -> dict[int, Structure]:
        return self.in_slots(self.occupied)

    def _filled(self, new: dict[int, Structure]) -> np.ndarray:
        """Write structures into free slots with as many blocks; returns the mask of these slots."""
        batch, is_new = self.batch, np.zeros_like(self.occupied)
        if not new:
            return is_new
        filled, sizes = np.array([*new]), np.array(batch.index.sizes)
        for k, structure in new.items():
            self.structures[k], sizes[k], is_new[k] = structure, len(structure), True
        self.occupied = self.occupied | is_new
        draft = jax.tree.map(np.array, dataclasses.replace(batch, index=None))
        put(draft, filled, self.starts[filled], [*new.values()])
        index = batch.index
        if (sizes != np.asarray(index.sizes)).any():
            room = {"n_rows": batch.n_rows, "most_rows": self.group.most_rows}
            index = index_of_sizes(sizes, align=BLOCK, **room)
        self.batch = dataclasses.replace(draft, index=index)
        self.moves = self._moves()
        if self.histories is not None:
            self.histories.begin(is_new)
        return is_new

    def _closed_up(self, new: list[Structure]) -> tuple[np.ndarray, Places]:
        """The running structures in the first slots, and others behind them."""
        running, before = self._running(), self.starts
        slots = np.array([*running], np.int32)
        sizes = np.array([len(s) for s in running.values()], int)
        self._begin([*running.values(), *new])
        is_new = np.arange(len(self.occupied)) >= len(slots)
        systems = np.zeros(len(is_new), np.int32)
        systems[: len(slots)] = slots
        rows = np.full(self.batch.n_rows, self.batch.n_rows, np.int32)
        rows[ranges(self.starts[: len(slots)], sizes)] = ranges(before[slots], sizes)
        if self.histories is not None:
            self.histories.take(systems)
            self.histories.begin(is_new)
        of_prefix = rows if self.moves is None else self.moves.places(rows, systems)
        return is_new, Places(cast(Any, systems), of_prefix)
