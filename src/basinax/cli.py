"""The command line: arguments, files and printing; no numerics.

`basinax relax` relaxes the structures of files; `basinax verify` checks on a sample of them that
each has the same bits alone.
"""

import csv
import dataclasses
import io
import math
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

try:
    import ase.io
    import numpy as np
    import typer
    from ase.io.formats import UnknownFileTypeError, filetype, ioformats, parse_filename
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ImportError as error:
    sys.exit(f'basinax needs {error.name} for this: run pip install "basinax[atoms]"')

import jax

import basinax
from basinax import Status
from basinax._specs import optimizer_from
from basinax.atoms import (
    AtomsRelaxation,
    MaxAtomForce,
    MaxStress,
    Trajectories,
    cell_from,
    potential_from,
    relax as relax_atoms,
)
from basinax.atoms._trajectory import make_folder, without_found

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Relax many structures in one batch, each with the bits it has alone.",
)
out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)

SHOWN = 10
"""Structures that did not converge and are named in the summary."""

NOTHING_CONVERGED = 1
BITS_DIFFER = 1
BAD_INPUT = 2
INTERRUPTED = 130

TOGETHER = 1.0
"""Seconds within which signals are one."""

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Files of any format that ASE reads; every image in them is relaxed, or those of"
        " FILE@START:STOP."
    ),
]
Potential = Annotated[
    str,
    typer.Option(
        help="NAME[:OPTION=VALUE,...], such as lennard-jones:epsilon=0.0104,sigma=3.405,cutoff=8.5"
        " (eV, Å), lennard-jones:Ar,Kr (published parameters), morse:epsilon=1,rho0=6,r0=1,"
        " emt (effective medium theory of metals), zhou:Cu,Ni, eam:FILE (.eam.alloy, .eam.fs or"
        " .eam), tersoff:Si,C or tersoff:FILE, stillinger-weber:Si or stillinger-weber:FILE, or"
        " buckingham:BKS (silica)."
    ),
]
Optimizer = Annotated[
    str,
    typer.Option(
        help="NAME[:OPTION=VALUE,...], such as fire:maxstep=0.1 or lbfgs, or a .json or .toml file"
        " with a config, which may be a chain with limits."
    ),
]


class OfInfo(NamedTuple):
    """A value that stands in the `info` of each structure."""

    key: str


def _or_of_info(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of options that may say `info:KEY` instead of a value."""

    def value_of(text: Any) -> Any:
        if isinstance(text, str) and text.startswith("info:"):
            return OfInfo(text.removeprefix("info:"))
        return read(text)

    return value_of


@_or_of_info
def _not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise typer.BadParameter("must not be negative")
    return value


@_or_of_info
def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise typer.BadParameter("must not be negative")
    return value


NUMBER = "NUMBER|info:KEY"

Cell = Annotated[
    str | None,
    typer.Option(
        help="How cells move: frechet, unit-cell or strain (ASE's filters), with options such as"
        " frechet:mask=110001 (xx, yy, zz, yz, xz, xy), hydrostatic_strain=true,"
        " constant_volume=true; or info:KEY, where a structure may say none. Fixed if not given."
    ),
]
Pressure = Annotated[
    Any,
    typer.Option(
        parser=_or_of_info(float),
        metavar=NUMBER,
        help="On cells that move (eV/Å³; 1 GPa is 0.006242).",
    ),
]
Fmax = Annotated[
    Any,
    typer.Option(
        parser=_not_negative,
        metavar=NUMBER,
        help="Converged once no force on an atom is as large (eV/Å), nor a row of what moves its"
        " cell, and what else is asked for; inf where forces do not matter.",
    ),
]
StressTolerance = Annotated[
    float | None,
    typer.Option(
        help="And no component of stress plus pressure is as large (eV/Å³); --fmax is of atoms"
        " alone then.",
        metavar="NUMBER",
        min=0,
    ),
]
RMSForce = Annotated[
    float | None,
    typer.Option(
        "--rms-force",
        help="And the root mean square of force components is below (eV/Å).",
        metavar="NUMBER",
        min=0,
    ),
]
EnergyChange = Annotated[
    float | None,
    typer.Option(
        help="And the last step changed the energy by less (eV an atom).", metavar="NUMBER", min=0
    ),
]
MaxDisplacement = Annotated[
    float | None,
    typer.Option(help="And the last step moved every atom by less (Å).", metavar="NUMBER", min=0),
]
MaxSteps = Annotated[
    Any, typer.Option(parser=_count, metavar=NUMBER, help="The most steps of a structure.")
]


class Dtype(StrEnum):
    """Precision of positions, energies and forces."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


class TrajectoryFormat(StrEnum):
    """Formats of trajectories."""

    TRAJ = "traj"
    EXTXYZ = "extxyz"


Precision = Annotated[Dtype, typer.Option("--dtype", help="Precision of the run.")]
Skin = Annotated[
    float | None,
    typer.Option(
        help="How far past the cutoff lists reach (Å), 0.15 of it by default; changes speed only.",
        metavar="NUMBER",
        min=0,
    ),
]


@app.command(short_help="Relax the structures of files.")
def relax(
    files: Files,
    potential: Potential,
    optimizer: Optimizer = "fire",
    cell: Cell = None,
    pressure: Pressure = None,
    fmax: Fmax = 0.05,
    stress_tolerance: StressTolerance = None,
    rms_force: RMSForce = None,
    energy_change: EnergyChange = None,
    max_displacement: MaxDisplacement = None,
    max_steps: MaxSteps = 500,
    output: Annotated[
        Path, typer.Option(help="Relaxed structures; the ending decides the format.")
    ] = Path("relaxed.extxyz"),
    table: Annotated[
        Path | None, typer.Option(help="A CSV file with one line a structure.")
    ] = None,
    trajectory: Annotated[
        Path | None,
        typer.Option(help="A folder for trajectories, one file a structure, that ASE reads."),
    ] = None,
    trajectory_interval: Annotated[
        int,
        typer.Option(help="Steps between two frames of a trajectory.", metavar="NUMBER", min=1),
    ] = 10,
    trajectory_format: Annotated[
        TrajectoryFormat, typer.Option(help="ASE's own, or extended XYZ.")
    ] = TrajectoryFormat.TRAJ,
    dtype: Precision = Dtype.FLOAT64,
    skin: Skin = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
) -> None:
    """Relax the structures of files and write them, with their energies and forces.

    Exit status: 0, 1 if nothing converged, 2 for bad input, 130 if interrupted (what has been
    reached by then is written).
    """
    task = _Task.read(
        files,
        {"potential": potential, "optimizer": optimizer, "dtype": dtype, "skin": skin},
        {"cell": cell, "pressure": pressure, "fmax": fmax, "max_steps": max_steps},
        (stress_tolerance, rms_force, energy_change, max_displacement),
    )
    for path in (output, table):
        _check_writable(path, files)
    _check_format(output, task.atoms)
    if trajectory is not None:
        _check_folder(trajectory)
        form = trajectory_format.value
        task.settings["trajectory"] = Trajectories(trajectory, trajectory_interval, form)
    with _Interrupt() as interrupt:
        with _progress_bar(quiet) as show:
            result = task.run(progress=show, should_stop=interrupt)
        if table is not None:
            _write_table(table, task, result)
        _write_structures(output, task, result)
    if not quiet:
        others = [path for path in (table, trajectory) if path is not None]
        _print_summary(task, result, [output, *others])
    if interrupt():
        err.print("Interrupted: structures still running were written where they stood.")
        raise typer.Exit(INTERRUPTED)
    if not result.converged.any():
        err.print("Nothing converged.")
        raise typer.Exit(NOTHING_CONVERGED)


@app.command(short_help="Check that structures have the same bits alone.")
def verify(
    files: Files,
    potential: Potential,
    optimizer: Optimizer = "fire",
    cell: Cell = None,
    pressure: Pressure = None,
    fmax: Fmax = 0.05,
    stress_tolerance: StressTolerance = None,
    rms_force: RMSForce = None,
    energy_change: EnergyChange = None,
    max_displacement: MaxDisplacement = None,
    max_steps: MaxSteps = 500,
    output: Annotated[Path | None, typer.Option(help="Not used.", hidden=True)] = None,
    table: Annotated[Path | None, typer.Option(help="Not used.", hidden=True)] = None,
    trajectory: Annotated[Path | None, typer.Option(help="Not used.", hidden=True)] = None,
    trajectory_interval: Annotated[int, typer.Option(help="Not used.", hidden=True)] = 10,
    trajectory_format: Annotated[str, typer.Option(help="Not used.", hidden=True)] = "traj",
    dtype: Precision = Dtype.FLOAT64,
    skin: Skin = None,
    sample: Annotated[int, typer.Option(help="How many structures to run alone.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Which ones.", min=0)] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print differences only.")] = False,
) -> None:
    """Relax all in a batch and a sample alone, and compare positions, energies and steps bitwise.

    Exit status: 0 if every one of the sample agrees, 1 if one does not, 2 for bad input, 130 if
    interrupted.
    """
    task = _Task.read(
        files,
        {"potential": potential, "optimizer": optimizer, "dtype": dtype, "skin": skin},
        {"cell": cell, "pressure": pressure, "fmax": fmax, "max_steps": max_steps},
        (stress_tolerance, rms_force, energy_change, max_displacement),
    )
    chosen = np.random.default_rng(seed).permutation(len(task.atoms))[:sample]
    differing = 0
    with _Interrupt() as interrupt:
        with _progress_bar(quiet) as show:
            batched = task.run(progress=show, should_stop=interrupt)
        for i in sorted(chosen.tolist()):
            alone = task.alone(i).run(should_stop=interrupt)
            if interrupt():
                raise typer.Exit(INTERRUPTED)
            wrong = _differences(batched, i, alone)
            differing += bool(wrong)
            if wrong or not quiet:
                verdict = f"[red]differs[/red] in {', '.join(wrong)}" if wrong else "same bits"
                steps = f"{alone.steps[0]} steps, {Status(alone.status[0]).name.lower()}"
                out.print(f"{task.sources[i]}  {task.atoms[i].symbols}  {steps}: {verdict}")
    agreeing = len(chosen) - differing
    if differing or not quiet:
        out.print(f"{agreeing} of {len(chosen)} structures have the same bits alone and in a batch")
    if differing:
        raise typer.Exit(BITS_DIFFER)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(basinax.__version__)
        raise typer.Exit


def main() -> None:
    """The command `basinax`."""
    # A terminal that has no Å must not cost the summary of a run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    warnings.showwarning = _print_warning
    app()


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"[yellow]warning:[/yellow] {escape(str(message))}")


_CRITERIA = (MaxStress, basinax.RMSForce, basinax.EnergyChange, basinax.MaxDisplacement)
"""What may have to be met besides the criterion of forces."""


@dataclasses.dataclass(frozen=True)
class _Task:
    """What is to be relaxed, and how."""

    atoms: list[Any]
    sources: list[str]
    """The file and image of each structure."""
    settings: dict[str, Any]
    """Of all structures."""
    own: dict[str, list[Any]]
    """Cell, pressure, fmax and max_steps of each structure."""
    tolerances: dict[type, float | None]
    """Of criteria that must be met besides that of forces."""

    @classmethod
    def read(
        cls,
        files: list[Path],
        settings: dict[str, Any],
        own: dict[str, Any],
        tolerances: tuple[float | None, ...],
    ) -> "_Task":
        """The task that options say.

        Args:
            own: values for all structures, or where in their `info` they stand.
            tolerances: of `_CRITERIA`; None for those that are not asked for.
        """
        if settings["dtype"] is Dtype.FLOAT64:
            jax.config.update("jax_enable_x64", True)
        criteria = dict(zip(_CRITERIA, tolerances, strict=True))
        needing = {"--pressure": own["pressure"], "--stress-tolerance": criteria[MaxStress]}
        for name, given in needing.items():
            if own["cell"] is None and given is not None:
                _fail(f"{name} needs a cell that moves: add --cell frechet")
        own["cell"] = _or_of_info(str)(own["cell"]) if own["cell"] else None
        with _reported():
            settings = settings | {
                "potential": potential_from(settings["potential"]),
                "optimizer": optimizer_from(settings["optimizer"]),
                "dtype": settings["dtype"].value,
            }
        atoms, sources = [], []
        for path in files:
            images = _read(path)
            atoms += images
            sources += _names_of_images(path, len(images))
        values = {name: _values_of(name, own[name], atoms, sources) for name in own}
        values["cell"] = [
            _cell_of(*each) for each in zip(values["cell"], values["pressure"], strict=True)
        ]
        return cls(atoms, sources, settings, values, criteria)

    def alone(self, at: int) -> "_Task":
        own = {name: [values[at]] for name, values in self.own.items()}
        return dataclasses.replace(self, atoms=[self.atoms[at]], own=own)

    def run(
        self,
        progress: Callable[[Any], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> AtomsRelaxation:
        with _reported(self.sources):
            return relax_atoms(
                self.atoms,
                **self.settings,
                cell=self.own["cell"],
                convergence=self._criterion(),
                max_steps=np.array(self.own["max_steps"]),
                progress=progress,
                should_stop=should_stop,
            )

    def _criterion(self) -> basinax.AbstractCriterion:
        """All of what is asked for."""
        fmax: Any = np.array(self.own["fmax"], float)
        is_apart = self.tolerances[MaxStress] is not None
        criterion = MaxAtomForce(fmax) if is_apart else basinax.MaxForce(fmax)
        for kind, tolerance in self.tolerances.items():
            criterion = criterion if tolerance is None else criterion & kind(tolerance)
        return criterion


def _values_of(option: str, value: Any, atoms: list[Any], sources: list[str]) -> list[Any]:
    """The value of each structure."""
    if not isinstance(value, OfInfo):
        return [value] * len(atoms)
    name = f"--{option.replace('_', '-')} info:{value.key}"
    values = []
    for a, source in zip(atoms, sources, strict=True):
        if value.key not in a.info:
            known = ", ".join(map(str, a.info)) or "nothing"
            _fail(f"{name}: {source} has no {value.key} in its info, but {known}")
        try:
            values.append(_READERS[option](str(a.info[value.key])))
        except (ValueError, typer.BadParameter):
            _fail(f"{name}: {source} has {a.info[value.key]!r}, which is not usable")
    return values


_READERS = {"cell": str, "pressure": float, "fmax": _not_negative, "max_steps": _count}


def _cell_of(text: str | None, pressure: float | None) -> Any:
    """The cell of one structure; its pressure may stand in one place only."""
    if text is None or text == "none":
        return None
    with _reported():
        cell = cell_from(text)
    if pressure is None:
        return cell
    if re.search(r"\bpressure\s*=", text):
        _fail(f"--cell {text} and --pressure both say a pressure: remove one")
    with _reported():
        return dataclasses.replace(cell, pressure=pressure)


def _file_and_images(path: Path) -> tuple[Path, Any]:
    """`FILE@START:STOP` as ASE reads it: the file and a slice, or None for all images."""
    with warnings.catch_warnings(action="ignore"):
        name, images = parse_filename(str(path), do_not_split_by_at_sign=path.exists())
    return Path(name), images


def _names_of_images(path: Path, count: int) -> list[str]:
    file, images = _file_and_images(path)
    if count == 1 and not isinstance(images, slice):
        return [str(path)]
    if images is None:
        images = slice(None)
    first, step = (images.start or 0, images.step or 1) if isinstance(images, slice) else (-1, 1)
    if first < 0 or step < 0:  # counted from an end that is not known
        return [f"{path}, image {k}" for k in range(count)]
    return [f"{file}@{first + k * step}" for k in range(count)]


def _read(path: Path) -> list[Any]:
    try:
        images = list(ase.io.iread(path, do_not_split_by_at_sign=path.exists()))
    except UnknownFileTypeError:
        _fail(f"{path}: ASE does not know this kind of file")
    except OSError as error:
        _fail(f"{path} cannot be read: {error.strerror or _text(error)}")
    except Exception as error:  # every reader of ASE has errors of its own
        _fail(f"{path} cannot be read: {_text(error)}")
    if not images:
        _fail(f"{path} holds no structure")
    return images


def _check_writable(path: Path | None, inputs: list[Path]) -> None:
    """Before any work: an output that cannot be written would lose it."""
    if path is None:
        return
    if any(path.resolve() == _file_and_images(other)[0].resolve() for other in inputs):
        _fail(f"{path} is an input: choose another output")
    if path.is_dir():
        _fail(f"{path} is a folder: expected a file to write")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        _fail(f"{path} cannot be written: {error.strerror}")


def _check_folder(path: Path) -> None:
    try:
        make_folder(path)
    except OSError as error:
        _fail(f"{path} cannot be written to: {error.strerror}")


def _check_format(path: Path, structures: list[Any]) -> None:
    """Writes one structure of each kind, for trial."""
    try:
        name = filetype(path, read=False)
        known = ioformats[name]
    except (UnknownFileTypeError, KeyError):
        _fail(f"{path}: ASE knows no format for {path.suffix or 'a name without an ending'}")
    if not known.can_write:
        _fail(f"{path}: ASE cannot write {known.description}")
    if known.single and len(structures) > 1:
        count = len(structures)
        _fail(f"{path}: {known.description} holds one structure, not {count}: try .extxyz")
    kinds = {(*sorted(atoms.arrays), *map(str, atoms.info)): atoms for atoms in structures}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        for atoms in kinds.values():
            written = without_found(atoms) if name == "extxyz" else atoms
            try:
                ase.io.write(Path(folder) / path.name, written, format=name)
            except Exception as error:  # every writer of ASE has errors of its own
                what = f"{atoms.symbols} as {known.description}: {_text(error)}"
                _fail(f"{path}: ASE cannot write {what}: try .extxyz")


def _write_structures(path: Path, task: _Task, result: AtomsRelaxation) -> None:
    for atoms, status, steps in zip(result.atoms, result.status, result.steps, strict=True):
        atoms.info["relax_status"] = Status(status).name.lower()
        atoms.info["relax_steps"] = int(steps)
    form = filetype(path, read=False)
    written = map(without_found, result.atoms) if form == "extxyz" else result.atoms
    with _replacing(path) as partial:
        ase.io.write(partial, list(written), format=form)


def _write_table(path: Path, task: _Task, result: AtomsRelaxation) -> None:
    columns = ["source", "formula", "atoms", "status", "steps", "evaluations"]
    with _replacing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "energy_eV", "fmax_eV_per_A"])
        for k, atoms in enumerate(result.atoms):
            writer.writerow(
                [
                    task.sources[k],
                    atoms.get_chemical_formula(),
                    len(atoms),
                    Status(result.status[k]).name.lower(),
                    result.steps[k],
                    result.evaluations[k],
                    repr(float(result.energies[k])),
                    repr(float(result.fmax[k])),
                ]
            )


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside `path`, of its ending, that takes its place once it is whole."""
    partial = path.with_name(f".partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        _fail(f"{path} cannot be written: {error.strerror or _text(error)}")
    except Exception as error:  # every writer of ASE has errors of its own
        _fail(f"{path} cannot be written: {_text(error)}")
    finally:
        partial.unlink(missing_ok=True)


def _print_summary(task: _Task, result: AtomsRelaxation, paths: list[Path]) -> None:
    table = Table("status", box=None, pad_edge=False)
    for title in ("structures", "steps, median", "steps, most", "largest fmax (eV/Å)"):
        table.add_column(title, justify="right")
    for status in Status:
        of = result.status == status
        if of.any():
            steps, fmax = result.steps[of], result.fmax[of]
            table.add_row(
                status.name.lower(),
                str(of.sum()),
                f"{np.median(steps):g}",
                str(steps.max()),
                f"{fmax.max():.3g}",
            )
    out.print(table)
    failed = np.flatnonzero(~result.converged)
    for k in failed[:SHOWN]:
        formula = task.atoms[k].get_chemical_formula()
        out.print(f"{task.sources[k]} ({formula}): {Status(result.status[k]).meaning}")
    if len(failed) > SHOWN:
        out.print(f"... and {len(failed) - SHOWN} more")
    out.print(f"Written: {', '.join(map(str, paths))}")


def _differences(batched: AtomsRelaxation, at: int, alone: AtomsRelaxation) -> list[str]:
    """In what a structure of the batch differs from the one that was run alone."""
    ours, theirs = batched.atoms[at], alone.atoms[0]
    pairs = {
        "positions": (ours.positions, theirs.positions),
        "cell": (ours.cell.array, theirs.cell.array),
        "forces": tuple(x.get_forces(apply_constraint=False) for x in (ours, theirs)),
        "energy": (batched.energies[at], alone.energies[0]),
        "steps": (batched.steps[at], alone.steps[0]),
        "status": (batched.status[at], alone.status[0]),
    }
    return [name for name, (x, y) in pairs.items() if not np.array_equal(x, y, equal_nan=True)]


class _Interrupt:
    """Turns Ctrl-C, or SIGTERM, into a flag that the run asks for.

    Another one ends the program at once, unless it comes with the first: what runs a command often
    hands a signal on that the command has got as well.
    """

    def __enter__(self) -> Callable[[], bool]:
        self._event, self._since = threading.Event(), math.inf
        self._previous = {
            number: signal.signal(number, self._set) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self._event.is_set

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _set(self, *_: Any) -> None:
        now = time.monotonic()
        if now > self._since + TOGETHER:
            raise KeyboardInterrupt
        self._since = min(self._since, now)
        self._event.set()


@contextmanager
def _progress_bar(quiet: bool) -> Iterator[Callable[[Any], None]]:
    columns = "[green]{task.fields[converged]} converged[/], {task.fields[running]} running,"
    bar = Progress(
        BarColumn(),
        TextColumn(columns + " [red]{task.fields[failed]} failed[/]"),
        TimeElapsedColumn(),
        console=err,
        disable=quiet or not err.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None, converged=0, running="all", failed=0)

        def show(progress: Any) -> None:
            bar.update(
                task,
                total=progress.n_systems,
                completed=progress.n_systems - progress.n_running,
                converged=progress.n_converged,
                running=progress.n_running,
                failed=progress.n_failed,
            )

        yield show


@contextmanager
def _reported(sources: list[str] | None = None) -> Iterator[None]:
    """Errors about what the user gave become one line and an exit status."""
    try:
        yield
    except OSError as error:
        _fail(f"{error.filename} cannot be read: {error.strerror or _text(error)}")
    except (TypeError, ValueError, NotImplementedError) as error:
        text = _text(error)
        if sources:
            text = re.sub(r"\bsystem (\d+)\b", lambda m: sources[int(m[1])], text)
            text = re.sub(r"(?<=systems \()[\d, ]+", lambda m: _names(m[0], sources), text)
        _fail(text)


def _names(numbers: str, sources: list[str]) -> str:
    return re.sub(r"\d+", lambda m: sources[int(m[0])], numbers)


def _fail(text: str) -> NoReturn:
    err.print(f"[red]error:[/red] {escape(text)}")
    raise typer.Exit(BAD_INPUT)


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
