"""The command `basinax neb`: the run of `basinax relax`, with paths in place of structures."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from basinax.atoms import Trajectories
from basinax.cli.console import fail, print_warning, reported, with_sources
from basinax.cli.contents import Found, Plan, named_in_info, plans_of, read_of
from basinax.cli.guard import Unreadable
from basinax.cli.inputs import InputItem, files_in, items_in, print_unused
from basinax.cli.named import in_few
from basinax.cli.options import OutputStyle, PathOptions, PathOutputs, StoreOptions
from basinax.cli.outputs import Writing
from basinax.cli.setup import Work, fix, potential_of, reading
from basinax.cli.works import AbstractWorks, Done, Ended, Job
from basinax.config.files import name_of
from basinax.config.specs import optimizer_from
from basinax.engine.relax import run_settings
from basinax.engine.relax_stream import refused, relax_items
from basinax.engine.workers import lanes_of
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.neb.evaluator import OfImages
from basinax.neb.neb import as_systems, check_images, evaluator_of_images, usable_optimizer
from basinax.neb.paths import Band, read_band
from basinax.neb.result import MinimumEnergyPath, PathsResult, counted_by_images
from basinax.neb.trajectories import PathRecorder
from basinax.numerics.settings import one_line
from basinax.numerics.switches import own_switches
from basinax.optimizers.protocol import AbstractTransform
from basinax.results.record import Relaxed
from basinax.results.result import AtomsRelaxation
from basinax.results.table import Columns, rows_of
from basinax.results.trajectory import Recorder
from basinax.runs.values import parted
from basinax.structures.batch import available_dtype
from basinax.structures.read import Item

PICTURES = (".svg", ".png", ".pdf")
"""Endings of pictures."""


def run(
    given: PathOptions, outputs: PathOutputs, keeping: StoreOptions, manner: OutputStyle
) -> None:
    from basinax.cli.run import run as run_job

    if outputs.plot is not None:
        _check_plot(outputs.plot)
    run_job(given, outputs, keeping, manner, PATHS)


@dataclasses.dataclass(frozen=True)
class PathSetup:
    """The settings of a run, without its paths."""

    given: PathOptions
    settings: dict[str, Any]
    """The potential."""
    inner: AbstractEvaluator
    """What evaluates images."""
    optimizer: AbstractTransform
    last: dict[int, OfImages] = dataclasses.field(default_factory=dict)
    """That of the evaluator, see `PathEvaluator`."""

    @classmethod
    def read(cls, given: PathOptions) -> "PathSetup":
        """The setup of the options; exits if they are wrong."""
        with reading(given):
            lanes_of(given.devices)  # raises if JAX has fewer devices
            potential = potential_of(given)
            inner = evaluator_of_images(potential, given.skin, given.dtype.value)
            named_one = None if given.optimizer is None else optimizer_from(given.optimizer)
            optimizer = usable_optimizer(named_one)
        return cls(given, {"potential": potential}, inner, optimizer)


class Paths(AbstractWorks):
    """The paths of a run, all of which are read first.

    A run without a folder of its own ends with an error if one is unusable. Another one records the
    unusable.
    """

    def __init__(
        self, given: PathOptions, setup: PathSetup, keeping: StoreOptions, *, is_sole: bool
    ):
        self.is_sole, self.shard, self._setup = is_sole, keeping.shard, setup
        self._warned = set[str]()
        self.paths, self.sources, self.inputs, self.skipped = [], [], None, []
        self._all = list[Work]()
        faults = list[str]()
        for items, images in _ends_of(given.files):
            work = _read(len(self._all), items, images, setup)
            if work.fault is not None:
                faults.append(f"{work.source} is no path: {one_line(work.fault)}")
                if is_sole:
                    continue
            self.paths.append(items[0].path)
            self.sources.append(work.source)
            self._all.append(work)
        if faults and (keeping.strict or (is_sole and not (given.skip_unreadable and self._all))):
            fail(*in_few(faults, len(faults) + len(self._all)))
        if is_sole:
            self.skipped += faults
            for fault in in_few(faults, len(faults) + len(self._all)):
                print_warning(fault)
        self.n_items = len(self._all)
        usable = self._usable(self._all)
        images = [image for work in usable for image in _band(work).images[:1]]
        print_unused(images, [work.source for work in usable], setup.settings["potential"])

    @property
    def at_once(self) -> int | None:
        return None  # all in one batch

    def plans(self, writing: Writing) -> list[Plan]:
        of = [w for w in self._usable(self._all) if self.shard.has(w.number)]
        works = [work for work in of for _ in _band(work).images]
        files = writing.files_of([self.paths[work.number] for work in works])
        atoms = [image for work in of for image in _band(work).images]
        return plans_of(files, atoms, [work.source for work in works], [False] * len(atoms))

    def left(self, done: Done, should_stop: Callable[[], bool]) -> Iterator[Work]:
        return (w for w in self._all if self.is_left(w.number, w.source, done))

    def recorder(self, to: Trajectories, n_structures: int) -> PathRecorder:
        return PathRecorder(Recorder(to, n_structures=n_structures), self._setup.last)

    def images(self, work: Work) -> list[Atoms]:
        return _band(work).images if work.fault is None else []

    @staticmethod
    def _usable(works: Sequence[Work]) -> list[Work]:
        return [work for work in works if work.fault is None]


Images = list[Atoms] | Exception
"""The structures of files, or why one cannot be read."""


def _ends_of(files: list[Path]) -> Iterator[tuple[list[InputItem], Images]]:
    """The structures of each path: those of a file, or of two files with one structure each.

    Exits if a file cannot be read and how the files behind it pair depends on what it holds.
    """
    each = list(map(_structures_in, files_in(files)))
    alone = list[tuple[list[InputItem], Images]]()
    for k, (items, images) in enumerate(each):
        if alone and (len(items) > 1 or len(alone) > 1):
            yield _joined(alone)
            alone = []
        if len(items) > 1:
            yield items, images
            continue
        behind = [len(others) for others, _ in each[k + 1 : k + 3]]
        if not alone and isinstance(images, Exception) and behind == [1, 1]:
            fail(
                f"{items[0].source} cannot be read: {one_line(images)}; which end points belong"
                " together is not clear without it"
            )
        alone.append((items, images))
    if alone:
        yield _joined(alone)


def _joined(ends: list[tuple[list[InputItem], Images]]) -> tuple[list[InputItem], Images]:
    """The structures of one or two files as one path."""
    found, items = list[Atoms](), [item for each, _ in ends for item in each]
    for _, images in ends:
        if isinstance(images, Exception):
            return items, images
        found += images
    return items, found


def _structures_in(path: Path) -> tuple[list[InputItem], Images]:
    items = [item._replace(source=name_of(path)) for item in items_in(path)]
    try:
        return items, [item.read() for item in items]
    except _UNUSABLE as error:
        return items, error


_UNUSABLE = (Unreadable, TypeError, ValueError, NotImplementedError)


def _read(number: int, items: list[InputItem], images: Images, setup: PathSetup) -> Work:
    """A path, or the reason why it is none."""
    given, source = setup.given, " and ".join(dict.fromkeys(item.source for item in items))
    if isinstance(images, Exception):
        return Work(number, source, Atoms(), {}, images)
    try:
        if given.fix_atoms is not None:
            _fix(images, source, given.fix_atoms)
        for image in images:
            image.info = parted(image.info)[0]
        how = given.images, given.interpolate.value, given.method.value
        band = read_band(images, given.k, *how)
        check_images(setup.inner, band)
    except _UNUSABLE as error:
        return Work(number, source, Atoms(), {}, error)
    return Work(number, source, band.images[0], {"band": band})


def _fix(images: list[Atoms], source: str, text: str) -> None:
    """Fix the atoms that are chosen in the first image, in all images."""
    if not fix(images[0], source, text):
        raise ValueError(f"--fix-atoms {text} holds of no atom of its first image")
    for image in images[1:]:
        image.set_constraint([*image.constraints, images[0].constraints[-1]])


def _band(work: Work) -> Band:
    return work.own["band"]


def relax_paths(
    setup: PathSetup,
    works: Iterable[Work],
    *,
    is_strict: bool = False,
    at_once: int | None = None,
    history: bool | int,
    recorder: Any = None,
    **how: Any,
) -> Generator[Ended]:
    """The outcomes of paths as they end, see `relax_works`."""
    del is_strict, at_once
    given, works = setup.given, list(works)
    faulty = [(work, work.fault) for work in works if work.fault is not None]
    if faulty:
        yield [(w.number, refused(w.atoms, w.source, one_line(fault))) for w, fault in faulty]
    works = [work for work in works if work.fault is None]
    if not works:
        return
    bands, dtype = [_band(work) for work in works], available_dtype(given.dtype.value)
    sources = {work.number: work.source for work in works}
    with (
        reported([*sources.values()]),
        own_switches(),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always", UserWarning)
        climb = given.climb if 0 < given.climb < np.inf else given.climb > 0
        method = given.method.value
        evaluator, optimizer = as_systems(
            bands, setup.inner, setup.optimizer, method, climb, given.fmax, dtype
        )
        evaluator = evaluator.numbered([*sources], setup.last)
        run = run_settings(
            evaluator,
            optimizer,
            fmax=given.fmax,
            max_steps=given.max_steps,
            dtype=dtype,
            history=history,
            devices=given.devices,
            n_structures=len(bands),
        )
    for each in told:
        print_warning(with_sources(str(each.message), [*sources.values()]))
    items = [
        Item(work.number, band.joined(work.number), None, own)
        for work, band, own in zip(works, bands, run.settings.own(len(bands)), strict=True)
    ]
    for ended in relax_items(iter(items), run, at_once=len(items), recorder=recorder, **how):
        yield [(number, _kept(end, sources[number])) for number, end in ended]


def _kept(end: Any, source: str) -> Relaxed:
    """An outcome in a form that a folder can keep."""
    results = dict(end.results)
    if "images" in results:
        results["images"] = [parted(each)[0] for each in results["images"]]
    return dataclasses.replace(counted_by_images(end), source=source, results=results)


def found_paths(numbers: list[int], result: AtomsRelaxation) -> Found:
    """The images of paths, one after another; what is no path has a row of the table alone."""
    read = read_of(numbers, result)
    paths = paths_of(read.values())
    atoms, sources, of = [], [], []
    for number, path in zip(read, paths, strict=True):
        for k, image in enumerate(path.images):
            image.info |= named_in_info(number, path.entry) | {"relax_image": k}
        atoms += path.images
        sources += [path.entry.source] * path.n_images
        of += [number] * path.n_images
    columns = paths.to_dict()
    rows = iter(rows_of(columns))
    every = [next(rows) if entry.n_atoms else _blank(entry, columns) for entry in result]
    columns = {name: [row[name] for row in every] for name in columns}
    return Found(atoms, sources, of, columns, paths.plot)


def _blank(entry: Relaxed, columns: Columns) -> dict[str, Any]:
    """The row of what is no path."""
    known: dict[str, Any] = dict.fromkeys(("atoms", "images", "steps", "evaluations"), 0)
    known |= {"source": entry.source, "formula": "", "status": str(entry.status)}
    known |= {"fmax_eV_per_A": entry.fmax, "message": entry.message}
    return {name: known.get(name, None if name == "saddle_image" else math.nan) for name in columns}


def paths_of(entries: Iterable[Relaxed]) -> PathsResult:
    return PathsResult(list(map(MinimumEnergyPath, entries)))


def _check_plot(path: Path) -> None:
    """Exit unless a picture can be written."""
    if path.suffix.lower() not in PICTURES:
        fail(f"{path}: a picture is a file in {', '.join(PICTURES)}")
    try:
        import matplotlib

        matplotlib.use("Agg")  # needs no display
    except ImportError:
        fail("--plot needs matplotlib: pip install matplotlib")


WINDOW = 16
"""A path counts as many structures as it has images, and paths are few."""

PATHS = Job("neb", "Paths", "paths", PathSetup.read, Paths, relax_paths, found_paths, WINDOW)
