"""The places of a batch: the structure in each place, and its outcome."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from basinax._bits.rounding import BLOCK
from basinax._loop.run import Run
from basinax._loop.status import Status
from basinax._systems.index import index_of_sizes
from basinax.atoms._batch import Batch, padded_size, put, row_starts
from basinax.atoms._cells.kinds import Kind, is_open
from basinax.atoms._cells.moves import CellMoves, cell_moves
from basinax.atoms._constraints.applied import Layout
from basinax.atoms._history import AnyRecorder, History
from basinax.atoms._intake import Structure
from basinax.atoms._record import Relaxed
from basinax.atoms._snapshot import Snapshot
from basinax.atoms._streams.device import Settings, moved, result
from basinax.atoms._streams.notes import Notes
from basinax.atoms._streams.queue import Monitor, Queue
from basinax.atoms._trajectory import Frame


class Group(NamedTuple):
    """Structures that are relaxed in batches of one shape."""

    structures: list[Structure]
    """The structures of the call; the queue holds the members of this group."""
    settings: Settings
    dtype: Any
    keep_best: bool
    shape: tuple[int, int]
    """The numbers of rows and systems of a batch."""
    n_filled: int
    """The most rows to fill at the start, so that structures remain for other batches."""
    most_rows: int
    """The number of rows of the largest structure."""
    layout: Layout
    """The layout of the constraints."""
    kind: Kind | None
    """The kind of moving cells; None if all cells are fixed."""
    queue: Queue
    monitor: Monitor
    recorder: AnyRecorder | None
    points: int
    """The largest number of points in a structure's history; 0 for no history."""

    def fill(self) -> list[int]:
        """Waiting structures for a new batch; empty if none wait."""
        n_rows, n_systems = self.shape
        return self.queue.fill(min(self.n_filled, n_rows), n_systems)

    def halved(self) -> "Group":
        """The group with batches of half the size, in which its largest structure still fits."""
        n_rows, n_systems = self.shape
        rows = max(-(-self.most_rows // BLOCK) * BLOCK, padded_size(n_rows // 2, least=BLOCK))
        return self._replace(shape=(rows, padded_size(-(-n_systems // 2))), n_filled=rows)


ENERGIES = ("energy", "free_energy")


class Report(NamedTuple):
    """Further results of a structure that has ended."""

    properties: dict[str, Any] = {}  # noqa: RUF012
    """Properties by ASE's names, which replace those of the batch."""
    message: str = ""
    """The reason if the structure could not be evaluated."""
    first_energy: float | None = None
    """The energy at the start, in eV; None for the batch's value."""


ReportOf = Callable[[int, Snapshot], Report]
"""The report of a structure, by its number, that has ended at a snapshot; available once."""


class Ended(NamedTuple):
    """Structures that have left their places in a batch."""

    found: dict[str, np.ndarray]
    """The values of `result` for all places."""
    last: dict[str, np.ndarray] | None
    """The last points of trajectories; None without a recorder."""
    members: dict[int, int]
    """The structure of each place."""
    histories: dict[int, History]
    """The histories by place; empty if no histories are kept."""


class Places:
    """The places of one batch, which structures occupy one after another."""

    def __init__(self, group: Group, members: list[int], report: ReportOf | None = None):
        self.group = group
        self.report = report
        structures = [group.structures[i] for i in members]
        self.batch = Batch.of(structures, group.dtype, *group.shape, group.layout, group.most_rows)
        # Empty places have the number of the first structure, and no rows.
        self.members = np.array(members + [members[0]] * (group.shape[1] - len(members)))
        self.occupied = np.arange(group.shape[1]) < len(members)
        self.starts = row_starts(self.batch.index.sizes)
        self.ended: Ended | None = None
        """Structures that have left their places and await `hand_over`."""
        # Take the kind from the whole group, so that its batches share one program.
        self.has_open = group.kind == "frechet" and any(
            is_open(structure.cell) for structure in group.structures
        )
        self.moves = self._moves()
        self.notes = Notes(group.shape[1], group.points) if group.points else None

    def settings(self) -> Settings:
        """The settings of the structures in the batch, one entry per place."""
        return self.group.settings.of(self.members, len(self.group.structures))

    def rows_of(self, k: int) -> slice:
        """The rows of the structure in place k."""
        return slice(self.starts[k], self.starts[k] + len(self.group.structures[self.members[k]]))

    def here(self, run: Run) -> Batch:
        """The batch at the current positions of the run."""
        if self.moves is None:
            return moved(self.batch, None, run.point.params)
        # Reuse the program `result`, which the end of the run needs in any case.
        found = result(dataclasses.replace(run, best=None), self.batch, self.moves)
        return dataclasses.replace(self.batch, positions=found["positions"], cells=found["cells"])

    def n_rows(self, which: np.ndarray) -> int:
        """The number of rows of the structures in these places."""
        return int(np.asarray(self.batch.index.sizes)[which].sum())

    def _moves(self) -> CellMoves | None:
        """The moves of the cells of the structures in this batch."""
        group = self.group
        if group.kind is None:
            return None
        structures = [
            group.structures[i] if held else dataclasses.replace(group.structures[i], cell=None)
            for i, held in zip(self.members, self.occupied, strict=True)
        ]
        dtype, has_open = self.batch.positions.dtype, self.has_open
        return cell_moves(group.kind, structures, group.shape[1], dtype, has_open=has_open)

    def take_out(self, run: Run, which: np.ndarray) -> None:
        """Free the places of structures that have ended, or must end at their current point."""
        found = last = jax.device_get(result(run, self.batch, self.moves))
        if self.group.recorder is None:
            last = None
        elif self.group.keep_best:
            path = dataclasses.replace(run, best=None)
            last = jax.device_get(result(path, self.batch, self.moves))
        members = {k: int(self.members[k]) for k in np.flatnonzero(which).tolist()}
        self.ended = Ended(found, last, members, self._histories(found, list(members)))
        self.occupied = self.occupied & ~which

    def _histories(self, found: dict[str, np.ndarray], which: list[int]) -> dict[int, History]:
        """The histories of the structures in these places, if histories are kept."""
        if self.notes is None:
            return {}
        kept = {k: self.notes.of(k) for k in which}
        if self.moves is None:
            return kept
        return {k: h if found["is_free"][k] else h._replace(volumes=None) for k, h in kept.items()}

    def hand_over(self) -> None:
        """Report the outcomes of the structures that were taken out."""
        if self.ended is None:
            return
        (found, last, members, histories), self.ended = self.ended, None
        for k, member in members.items():
            end = self._snapshot(found, k, member)
            report = self.report(member, end) if self.report else Report()
            kept = {x: report.properties[x] for x in ENERGIES if x in report.properties}
            end = end._replace(**kept)
            structure, first_energy = self.group.structures[member], report.first_energy
            end = end.kept(structure)
            entry = Relaxed.of(
                structure.atoms,
                end.positions,
                end.cell,
                end.properties() | report.properties,
                energy=end.energy,
                fmax=float(found["fmax"][k]),
                steps=int(found["steps"][k]),
                evaluations=int(found["evaluations"][k]),
                status=Status(found["status"][k]),
                source=str(member),
                message=report.message,
                initial_energy=float(
                    found["first_energies"][k] if first_energy is None else first_energy
                ),
                history=histories.get(k),
            )
            self.group.monitor.end(member, entry)
        if last is not None:
            self._record_ends(last, members)
        stays = self.occupied.copy()
        stays[list(members)] = False
        self.group.monitor.report(self, found["status"][stays], found["fmax"][stays])

    def _snapshot(self, found: dict[str, np.ndarray], k: int, member: int) -> Snapshot:
        rows = slice(self.starts[k], self.starts[k] + len(self.group.structures[member]))
        is_free = self.moves is not None and bool(found["is_free"][k])
        return Snapshot(
            positions=found["positions"][rows].astype(np.float64),
            cell=found["cells"][k].astype(np.float64),
            forces=found["forces"][rows].astype(np.float64),
            stress=found["stress"][k].astype(np.float64) if is_free else None,
            energy=float(found["energies"][k]),
            free_energy=float(found["free_energies"][k]) if "free_energies" in found else None,
            energies=found["of_atoms"][rows].astype(np.float64) if "of_atoms" in found else None,
        )

    def record(self, found: dict[str, np.ndarray]) -> None:
        """Store histories and frames of turns, a first axis; `steps` are -1 in other turns."""
        if self.notes is not None:
            self._note(found)
        if self.group.recorder is not None:
            for k in range(len(found["steps"])):
                self._record({name: x[k] for name, x in found.items()})

    def _note(self, found: dict[str, np.ndarray]) -> None:
        """Store the numbers of histories."""
        kept = {name: found[name] for name in ("steps", "evaluations", "energies", "fmax")}
        if self.moves is not None:
            kept["volumes"] = np.abs(np.linalg.det(found["cells"].astype(np.float64)))
        cast(Notes, self.notes).add(kept)

    def _record(self, found: dict[str, np.ndarray]) -> None:
        """Pass on frames that are due."""
        interval = cast(AnyRecorder, self.group.recorder).interval
        is_due = self.occupied & (found["steps"] >= 0) & (found["steps"] % interval == 0)
        places = np.flatnonzero(is_due).tolist()
        self._add_frames(found, {k: int(self.members[k]) for k in places})

    def _record_ends(self, last: dict[str, np.ndarray], members: dict[int, int]) -> None:
        """Pass on the last frames of structures that have ended; recorders skip known frames."""
        has_ended = (last["status"] != Status.RUNNING) & last["is_known"]
        ends = {k: member for k, member in members.items() if has_ended[k]}
        self._add_frames(last, ends, are_last=True)

    def _add_frames(
        self, found: dict[str, np.ndarray], members: dict[int, int], *, are_last: bool = False
    ) -> None:
        """Pass on frames of structures in these places; the recorder's thread builds each frame."""
        if not members:
            return

        def frame(k: int, member: int) -> Frame:
            # Frames leave out energies of atoms, which need as much space as a coordinate.
            snapshot = self._snapshot(found, k, member)._replace(energies=None)
            snapshot = snapshot.kept(self.group.structures[member])
            return Frame(
                member, int(found["steps"][k]), snapshot, float(found["fmax"][k]), are_last
            )

        cast(AnyRecorder, self.group.recorder).add(frame(k, m) for k, m in members.items())

    def refill(self) -> np.ndarray:
        """Fill free places with waiting structures of as many rows; return the filled places."""
        batch, is_new = self.batch, np.zeros_like(self.occupied)
        sizes = np.array(batch.index.sizes)
        draft = jax.tree.map(np.array, dataclasses.replace(batch, index=None))
        self.occupied = self.occupied.copy()
        for k in np.flatnonzero(~self.occupied).tolist():
            member = self.group.queue.replace(-(-int(sizes[k]) // BLOCK))
            if member is None:
                continue
            structure = self.group.structures[member]
            self.members[k], self.occupied[k] = member, True
            sizes[k], is_new[k] = len(structure), True
            put(draft, k, int(self.starts[k]), structure)
        if is_new.any():
            if self.notes is not None:
                self.notes.begin(is_new)
            index = index_of_sizes(
                sizes, align=BLOCK, n_rows=batch.n_rows, most_rows=self.group.most_rows
            )
            self.batch = dataclasses.replace(draft, index=index)
            self.moves = self._moves()
        return is_new
