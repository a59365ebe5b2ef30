"""Groups of structures that share batches of one shape; the grouping affects speed alone."""

import dataclasses
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from ase import Atoms

from basinax.engine.device import Device, Settings
from basinax.engine.moving_cells import CELL_ROWS
from basinax.engine.on_device import DeviceBackend, share_room
from basinax.engine.queue import Monitor, Queue
from basinax.engine.sizes import memory_of_batch, within_memory
from basinax.engine.slots import Group, Slots
from basinax.engine.stream import BatchGroup
from basinax.internal.optimizer import steps_on_the_host
from basinax.models.evaluators.calculator import evaluator_of
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.neighbors.lists import Lists
from basinax.neighbors.rooms import SMALL
from basinax.neighbors.search import check_listable
from basinax.numerics.processor import n_cores
from basinax.numerics.rounding import BLOCK
from basinax.numerics.settings import Allowed, one_number, shown
from basinax.optimizers.line_search.walk import has_search
from basinax.optimizers.protocol import AbstractTransform
from basinax.optimizers.quasi_newton.inverse_hessian import bounded
from basinax.potentials import AbstractPotential
from basinax.potentials.points import warn_of_single_parameters
from basinax.results.history import AnyRecorder
from basinax.structures.batch import STEPS_PER_OCTAVE, padded_size
from basinax.structures.cells.kinds import Kind, is_open
from basinax.structures.constraints.applied import layout_of
from basinax.structures.constraints.hosted import is_curved, names_of
from basinax.structures.machine import CPU, Machine, machine
from basinax.structures.read import Structure, cells_of, has_volume, name_of, squared_measures

SKIN, SKIN_OF_EXPENSIVE_PAIRS = 0.15, 0.2
"""The reach of lists beyond the cutoff, relative to the cutoff. A list costs as much as many
evaluations, and with 0.15 most rattled crystals relax on their first list. For expensive pairs,
most turns leave out pairs beyond the cutoff."""

A_SKIN = Allowed("be 0 Å or more", lambda x: (x >= 0) & (x < np.inf))


class PotentialWithSkin(NamedTuple):
    """A potential and the skin of its neighbour lists."""

    potential: AbstractPotential
    skin: float

    @classmethod
    def of(cls, potential: Any, skin: float | None) -> "PotentialWithSkin":
        """The potential with a skin in Å, or the usual one; raises TypeError or ValueError."""
        check_potential(potential)
        has_cutoff = potential.cutoff < np.inf
        if skin is None and has_cutoff:
            skin = (
                SKIN_OF_EXPENSIVE_PAIRS if potential.has_expensive_pairs else SKIN
            ) * potential.cutoff
        skin = 0.0 if skin is None else one_number(skin, "skin", A_SKIN)
        if 0 < potential.cutoff < skin:
            raise ValueError(f"skin must not exceed the cutoff, {potential.cutoff:g} Å, got {skin}")
        # Without a cutoff a list holds all pairs and never becomes stale.
        return cls(potential, skin if has_cutoff else np.inf)

    @property
    def reach(self) -> float:
        return self.potential.cutoff + self.skin

    def check(self, atoms: list[Atoms], dtype: Any) -> None:
        """Raise unless the potential suits the structures and they can be listed."""
        self.potential.check(atoms)
        warn_of_single_parameters(self.potential, dtype)
        check_listable(atoms, self.reach, dtype)


def evaluator_or_listed(
    potential: Any, skin: float | None
) -> tuple[AbstractEvaluator | None, PotentialWithSkin | None]:
    """What evaluates structures on the host, or the potential that JAX evaluates, with its skin.

    Raises:
        TypeError, ValueError: there is none, or the skin does not suit it.
    """
    evaluator = evaluator_of(potential)
    if evaluator is None:
        return None, PotentialWithSkin.of(potential, skin)
    if skin is not None:
        raise TypeError("skin is for potentials with neighbour lists, a calculator has none")
    return evaluator, None


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The settings of a run, checked, for any structures."""

    listed: PotentialWithSkin | None
    """The potential, if JAX evaluates it."""
    evaluator: AbstractEvaluator | None
    """What evaluates structures on the host, if it does."""
    settings: Settings
    dtype: Any
    lanes: list[Device]
    """The device of each thread."""
    keep_best: bool = False
    points: int = 0
    """The largest number of points in a structure's history; 0 for no history."""
    stress: bool = False
    """Whether the stress at the end is asked for where cells are fixed, too."""

    @property
    def potential(self) -> Any:
        """What evaluates structures."""
        return self.evaluator if self.listed is None else self.listed.potential

    @property
    def n_at_once(self) -> int:
        """The number of structures that an evaluator evaluates at a time; 0 without one."""
        return 0 if self.evaluator is None else self.evaluator.n_at_once

    def check(self, structures: list[Structure]) -> None:
        """Raise unless the potential suits the structures."""
        atoms = [structure.atoms for structure in structures]
        if self.listed is not None:
            self.listed.check(atoms, self.dtype)
        if self.evaluator is not None:
            self.evaluator.check(atoms, self.needs_stress(structures))
        _check_suits(self.settings.optimizer, structures)

    def needs_stress(self, structures: list[Structure]) -> list[bool]:
        """Whether each structure needs its stress, as its cell moves or it is asked for."""
        return [s.cell is not None or (self.stress and has_volume(s.atoms)) for s in structures]

    def groups(
        self, structures: list[Structure], monitor: Monitor, recorder: AnyRecorder | None
    ) -> list[Group]:
        """Groups of structures with similar lists; each group has programs of its own."""
        is_on_host = self.evaluator is not None
        lanes: list[Device] = [None] if is_on_host else self.lanes
        blocks = np.array([structure.n_blocks for structure in structures])
        of = _with_places(self.n_at_once, blocks) if is_on_host else self._machine
        neighbors, memory = self.neighbors(structures), memory_of_batch(lanes)
        n_elements = np.array([structure.n_elements for structure in structures])
        cells = {id(structure.cell): structure.cell for structure in structures}
        has_open = any(is_open(cell) for cell in cells.values())

        def group(members: np.ndarray, kind: Kind | None) -> Group:
            own = [structures[i] for i in members]
            sizes = [len(structure) for structure in own]
            rows, most = (blocks[members], neighbors[members]), float(neighbors[members].max())
            order = np.argsort(-n_elements[members], kind="stable")
            made = Group(
                settings=_for_sizes(self.settings, sizes, kind),
                dtype=self.dtype,
                keep_best=self.keep_best,
                shape=shape_of_batches(*rows, len(lanes), of),
                n_filled=_part(*rows, len(lanes), of),
                n_rows=int(blocks[members].sum()) * BLOCK,
                most_rows=max(sizes),
                most_neighbors=most,
                most_elements=int(n_elements[members].max()) if self._asks_elements else None,
                layout=layout_of(structure.stages for structure in own),
                kind=kind,
                has_open=has_open and kind == "frechet",
                worth_closing_up=of.worth_closing_up,
                # Several elements take more steps: begun first, fewer structures run at the end.
                queue=Queue((own[k] for k in order), largest_first=self.n_at_once > 1),
                monitor=monitor,
                recorder=recorder,
                points=self.points,
            )
            of_pairs = 0 if self.listed is None else self.listed.potential.values_of_pair
            return within_memory(made, int(most) * of_pairs, memory)

        return [
            group(members, kind)
            for kind, alike in _by_kind(structures)
            for members in ([alike] if is_on_host else _grouped(neighbors, blocks, alike, of))
        ]

    def batches(self, group: Group) -> BatchGroup:
        """The batches of a group on devices."""
        potential, skin = cast(PotentialWithSkin, self.listed)
        is_short = group.n_rows <= self._machine.short_rows

        def make(slots: Slots, device: Device) -> DeviceBackend:
            return DeviceBackend(slots, device, potential, skin, is_short)

        return BatchGroup(group, make, share_room)

    def neighbors(self, structures: list[Structure]) -> np.ndarray:
        """The estimated number of neighbours of an atom, for each structure."""
        if self.evaluator is not None:
            return np.ones(len(structures))
        return _expected_neighbors(structures, cast(PotentialWithSkin, self.listed).reach)

    @property
    def _machine(self) -> Machine:
        """The constants for the devices of the threads, which are of one platform."""
        return machine(self.lanes[0])

    @property
    def _asks_elements(self) -> bool:
        if self.listed is None:
            return False
        potential = self.listed.potential
        return potential.has_expensive_pairs and len(potential.species) > 1


def _check_suits(optimizer: AbstractTransform, structures: list[Structure]) -> None:
    """Raise NotImplementedError if constraints bend steps that must be as made.

    `InternalLBFGS` predicts the energy after its step, and a line search goes along a line.
    """
    name = ""
    if steps_on_the_host(optimizer):
        name = "InternalLBFGS (the default for calculators and models)"
    elif has_search(optimizer):
        name = f"{type(optimizer).__name__}, which searches along lines,"
    for structure in structures if name else ():
        if curved := [c for c in structure.atoms.constraints if is_curved(c)]:
            raise NotImplementedError(
                f"{name_of(structure.atoms, structure.number)} has constraints"
                f" ({names_of(curved)}) that bend steps, with which {name} is not supported: pass"
                " FIRE(), BFGS() or LBFGS()"
            )


def _with_places(n_at_once: int, blocks: np.ndarray) -> Machine:
    """The constants for turns on a CPU, with places for twice as many structures, the largest ones
    among them, as are evaluated at a time. Without lists, closing up costs little."""
    n_rows = int(np.sort(blocks)[-2 * n_at_once :].sum()) * BLOCK
    return dataclasses.replace(CPU, max_rows=max(CPU.max_rows, n_rows), worth_closing_up=1.0)


def n_cores_used() -> int:
    return n_cores() if machine().has_batch_per_core else 1


def shape_of_batches(
    blocks: np.ndarray, slots: np.ndarray, n_cores: int, of: Machine
) -> tuple[int, int]:
    """The numbers of rows and systems of the batches for these structures."""
    n_rows = _few_rows(_part(blocks, slots, n_cores, of), of)
    # Allow as many systems as may fit, so that the program does not depend on their number. But
    # limit small ones beside a large one: each system may take the memory of the largest.
    fewest, most = (n_rows // (int(n) * BLOCK) for n in (blocks.max(), blocks.min()))
    return n_rows, padded_size(min(most, max(len(blocks), of.mixed * fewest)))


def _part(blocks: np.ndarray, slots: np.ndarray, n_cores: int, of: Machine) -> int:
    """The number of rows in one batch, of all rows of the structures."""
    rows, are_alike = int(blocks.sum()) * BLOCK, slots.max() <= of.alike * slots.min()
    max_rows = of.max_rows if are_alike else of.max_rows // 2
    n_parts = max(-(-rows // max_rows), min(n_cores, -(-rows // of.min_rows)))
    least = max(-(-rows // n_parts), int(blocks.max()) * BLOCK)
    return padded_size(least, least=BLOCK)


def _few_rows(least: int, of: Machine) -> int:
    """The rows of a batch that needs at least `least`; small batches come in few sizes.

    Folds leave out rows without atoms, so padding costs little compared with another program.
    """
    if least <= of.few_rows:
        return of.few_rows
    return padded_size(least, least=BLOCK, steps=1 if least <= SMALL else STEPS_PER_OCTAVE)


def check_potential(potential: Any) -> None:
    """Raise TypeError, with the accepted types, if `potential` is no potential."""
    if isinstance(potential, AbstractPotential):
        if potential.lists not in get_args(Lists):
            raise TypeError(
                f"{type(potential).__name__}.lists must be EdgeList or Neighbors, the form of lists"
                f" that it takes, got {shown(potential.lists)}"
            )
        return
    got = f"got {type(potential).__module__}.{type(potential).__name__}"
    if isinstance(potential, type):
        got = f"got the class {potential.__name__}: make one, such as EMT() or EMT('Cu', 'Au')"
    elif isinstance(potential, str):
        got = f"got text: basinax.atoms.potential_from({potential!r}) makes one of it"
    elif callable(potential):
        got += (
            ": ASECalculator(function) takes one that makes a calculator, JaxModel one of a graph"
        )
    raise TypeError(
        "potential must be one of basinax.atoms, such as EMT(), or an ASE calculator (or an object"
        f" with its get_potential_energy and get_forces), {got}"
    )


def _by_kind(structures: list[Structure]) -> list[tuple[Kind | None, np.ndarray]]:
    """Structures by the kind of their moving cells; those with fixed cells join the first kind,
    unless their constraints act on the host."""
    first: Kind | None = next((s.kind for s in structures if s.kind), None)
    members: dict[Kind | None, list[int]] = {}
    for k, structure in enumerate(structures):
        kind = None if structure.acts_on_host else structure.kind or first
        members.setdefault(kind, []).append(k)
    return [(kind, np.array(of)) for kind, of in members.items()]


def _for_sizes(settings: Settings, sizes: list[int], kind: Kind | None) -> Settings:
    """The settings with `max_rows` fixed for structures of these sizes, since later structures take
    over places and must not need more."""
    most_rows = max(max(sizes), 0 if kind is None else CELL_ROWS)
    return dataclasses.replace(settings, optimizer=bounded(settings.optimizer, most_rows))


def _grouped(
    slots: np.ndarray, blocks: np.ndarray, members: np.ndarray, of: Machine
) -> list[np.ndarray]:
    """Split the members into groups; the batches of a group share a program.

    Structures with many neighbours and with few are separated if that saves enough pair slots.

    Args:
        slots: the estimated number of neighbours of an atom, for each structure.
    """
    members = members[np.argsort(-slots[members], kind="stable")]
    slots, rows = slots[members], blocks[members] * BLOCK
    # Suffix sums over members: the rows, and the pair slots of one turn.
    rows_left, slots_left = (np.cumsum(x[::-1])[::-1] for x in (rows, slots * rows))
    groups, begin = [], 0
    while True:
        saved = slots[begin] * rows_left - slots_left
        is_apart = (slots * 2 <= slots[begin]) & (saved > of.worth_compiling)
        is_apart[: begin + 1] = False
        if not is_apart.any():
            return [*groups, members[begin:]]
        begin, before = int(np.argmax(is_apart)), begin
        groups.append(members[before:begin])


def _expected_neighbors(structures: list[Structure], reach: float) -> np.ndarray:
    """The estimated number of atoms within `reach` of an atom, from the density in a volume."""
    sizes = np.array([structure.n_atoms for structure in structures])
    cells, pbc = cells_of([structure.atoms for structure in structures])
    measures = np.sqrt(squared_measures(cells, pbc))
    ball = np.array([0.0, 2 * reach, np.pi * reach**2, 4 / 3 * np.pi * reach**3])
    return sizes * np.maximum(ball[pbc.sum(axis=1)] / measures, 1.0)
