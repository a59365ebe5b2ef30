"""The options of the commands, each defined once: fields of classes that commands take."""

import dataclasses
import math
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import typer

from basinax.cli.config import apply_config
from basinax.cli.values import (
    choice_of,
    count_of,
    not_negative,
    pressure_as_given,
    shard_of,
    time_as_given,
)

STDOUT = Path("-")
"""The name of standard output."""

LONGEST_NAME = 255
"""The largest length of a file name in bytes."""

NUMBER = "NUMBER|info:KEY[,default=NUMBER]"


def from_zero(help: str) -> Any:
    """An option for a number of 0 or more."""
    return typer.Option(help=help, metavar="NUMBER", min=0)


Devices = Annotated[
    int | None,
    typer.Option(
        help="So many of the devices that JAX has here, such as GPUs, share the structures; by"
        " default all that are no CPUs, one of them for a model. No result depends on it.",
        metavar="NUMBER",
        min=1,
    ),
]

FixedAtoms = Annotated[
    str | None,
    typer.Option(
        help="Atoms that stay fixed (FixAtoms): numbers from 0, such as 0-3,7, or a condition on x,"
        " y, z (Å) or tag, such as 'z < 2.5 and not tag == 1'.",
        parser=choice_of,
        metavar="NUMBERS|CONDITION",
    ),
]
Skin = Annotated[
    float | None,
    from_zero(
        "How far past the cutoff neighbour lists reach (Å); by default 0.15 cutoffs, 0.2 for EMT,"
        " EAM and ZhouEAM. It changes speed only.",
    ),
]


class Dtype(StrEnum):
    """Precision of positions, energies and forces."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


class TrajectoryFormat(StrEnum):
    """Formats of trajectories."""

    TRAJ = "traj"
    EXTXYZ = "extxyz"


class Method(StrEnum):
    """What holds the images of a path apart."""

    IMPROVED_TANGENT = "improvedtangent"
    ASE_NEB = "aseneb"
    STRING = "string"


class Interpolation(StrEnum):
    """How images are made between end points."""

    IDPP = "idpp"
    LINEAR = "linear"


class Kind(StrEnum):
    """The subjects of `basinax list`."""

    POTENTIALS = "potentials"
    OPTIMIZERS = "optimizers"
    CELLS = "cells"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options for the structures and the potential."""

    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files of any format that ASE reads; all images in them count, or those of"
            " FILE@START:STOP. A folder stands for its files, and - for extended XYZ from standard"
            " input."
        ),
    ]
    potential: Annotated[
        str,
        typer.Option(
            help="NAME[:OPTION=VALUE,...], such as lennard-jones:epsilon=0.0104,sigma=3.405,"
            "cutoff=8.5 (eV, Å), lennard-jones:Ar,Kr (published parameters),"
            " morse:epsilon=1,rho0=6,r0=1, emt (effective medium theory of metals), zhou:Cu,Ni,"
            " eam:FILE (.eam.alloy, .eam.fs or .eam), tersoff:Si,C or tersoff:FILE,"
            " stillinger-weber:Si or stillinger-weber:FILE, buckingham:BKS (silica); any ASE"
            " calculator: ase:MODULE:CALLABLE[,OPTION=VALUE,...], such as"
            " ase:tblite.ase:TBLite,method=GFN2-xTB; a learned model: nequix:FILE; an object in a"
            " file of Python: python:FILE.py:NAME; or a .json or .toml file with potential and"
            " workers."
        ),
    ]
    config: Annotated[
        Path | None,
        typer.Option(
            help="A .toml or .json file with any of these options by their names, such as"
            " max_steps = 200, or the record of a run; the command line overrides it.",
            is_eager=True,
            callback=apply_config,
        ),
    ] = None
    skip_unreadable: Annotated[
        bool,
        typer.Option("--skip-unreadable", help="Go on without files that cannot be read."),
    ] = False
    dtype: Annotated[Dtype, typer.Option(help="Precision of the run.")] = Dtype.FLOAT64
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes of a calculator of ASE, or threads of a model, that evaluate"
            " structures; by default one a core, two for a model on a GPU.",
            min=1,
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelaxOptions(ModelOptions):
    """Options of relaxations."""

    optimizer: Annotated[
        str | None,
        typer.Option(
            help="NAME[:OPTION=VALUE,...], such as fire:maxstep=0.1 or lbfgs; or a config, which"
            " may be a chain with limits, as a .json or .toml file or as JSON text. By default"
            " internal-lbfgs for calculators and models (ase:..., nequix:...), lbfgs for others."
        ),
    ] = None
    cell: Annotated[
        str | None,
        typer.Option(
            help="How cells move: frechet, unit-cell or strain (ASE's filters), with options such"
            " as frechet:mask=110001 (xx, yy, zz, yz, xz, xy), hydrostatic_strain=true,"
            " constant_volume=true; or info:KEY[,default=CELL], where none is a fixed cell."
            " Fixed by default."
        ),
    ] = None
    pressure: Annotated[
        Any,
        typer.Option(
            parser=pressure_as_given,
            metavar="NUMBER[UNIT]|info:KEY[,default=NUMBER[UNIT]]",
            help="Pressure on cells that move, such as 5GPa or 50kbar; in eV/Å³ without a unit.",
        ),
    ] = None
    fmax: Annotated[
        Any,
        typer.Option(
            parser=not_negative,
            metavar=NUMBER,
            help="Converged when the largest force on an atom, and on the cell if it moves, is"
            " below this (eV/Å), and the criteria below are met. inf switches it off.",
        ),
    ] = 0.05
    stress_tolerance: Annotated[
        float | None,
        from_zero(
            "No component of stress plus pressure may exceed this (eV/Å³); --fmax is for atoms"
            " alone then.",
        ),
    ] = None
    rms_force: Annotated[
        float | None,
        from_zero("The RMS of force components must be below this (eV/Å)."),
    ] = None
    energy_change: Annotated[
        float | None,
        from_zero("The last step must change the energy by less (eV an atom)."),
    ] = None
    max_displacement: Annotated[
        float | None,
        from_zero("The last step must move each atom by less (Å)."),
    ] = None
    max_steps: Annotated[
        Any, typer.Option(parser=count_of, metavar=NUMBER, help="The most steps of a structure.")
    ] = 500
    fix_atoms: FixedAtoms = None
    symmetrize: Annotated[
        bool,
        typer.Option(
            "--symmetrize",
            help="Keep the symmetry of each crystal (FixSymmetry, found within 0.01 Å).",
        ),
    ] = False
    skin: Skin = None
    devices: Devices = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathOptions(ModelOptions):
    """Options of minimum-energy paths."""

    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files of any format that ASE reads, one for each path: all its images, such as"
            " the last seven of FILE@-7:, or its two end points; these may also stand in two files,"
            " one after the other. A folder stands for its files."
        ),
    ]
    images: Annotated[
        int | None,
        typer.Option(
            help="The number of images of paths that are given by their end points, these"
            " included.",
            metavar="NUMBER",
            min=3,
        ),
    ] = None
    interpolate: Annotated[
        Interpolation, typer.Option(help="How the images between end points are made.")
    ] = Interpolation.IDPP
    method: Annotated[
        Method, typer.Option(help="What holds images apart: springs of two kinds, or a spline.")
    ] = Method.IMPROVED_TANGENT
    k: Annotated[float, from_zero("The spring constant (eV/Å²).")] = 0.1
    climb: Annotated[
        float,
        from_zero(
            "The highest image climbs once the largest force on the path is below this (eV/Å): inf"
            " from the first step on, 0 never."
        ),
    ] = math.inf
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="NAME[:OPTION=VALUE,...], such as mdmin:dt=0.1 or bfgs; or a config, as a .json or"
            " .toml file or as JSON text; lbfgs:curvature=0.8 by default. None with line searches."
        ),
    ] = None
    fmax: Annotated[
        float,
        from_zero("Converged when the force on each atom of each image is below this (eV/Å)."),
    ] = 0.05
    max_steps: Annotated[
        int, typer.Option(help="The most steps of a path.", metavar="NUMBER", min=0)
    ] = 500
    fix_atoms: FixedAtoms = None
    skin: Skin = None
    devices: Devices = None


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors and warnings.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print versions, batches, compilations and times, too.")
]
TimeLimit = Annotated[
    Any,
    typer.Option(
        parser=time_as_given,
        metavar="TIME",
        help="End the run in order after so long, such as 3h30m, 45m or 90s; exit status 4 then.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Go on though settings, inputs or versions are not those the run began with; the"
        " record says so.",
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probed(ModelOptions):
    """Options of `basinax probe`."""

    tolerance: Annotated[
        float,
        typer.Option(
            help="How far forces and stress may be from differences of the energy, as a part of the"
            " largest; above 0.",
            metavar="NUMBER",
        ),
    ] = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """Options of outputs."""

    DEFAULT: ClassVar[str]
    """The name of the file of structures."""

    output: Annotated[
        Path | None,
        typer.Option(
            help="The file of structures with results, relaxed.extxyz by default (evaluated.extxyz"
            " of evaluate, paths.extxyz of neb); the ending decides the format. OUTPUT.run.json is"
            " the run's record."
        ),
    ] = None
    output_dir: Annotated[
        Path | None,
        typer.Option(help="A folder instead, with a file of the same name for each input."),
    ] = None
    table: Annotated[
        Path | None,
        typer.Option(
            help="A table with one row a structure: .csv, .json, .jsonl or .parquet; - is CSV on"
            " standard output."
        ),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False
    overwrite: Overwrite = False

    def with_default(self) -> Self:
        """These outputs, and the usual file of structures if no place for them is given."""
        is_given = self.output is not None or self.output_dir is not None
        return self if is_given else dataclasses.replace(self, output=Path(self.DEFAULT))

    @property
    def record(self) -> Path | None:
        """The file of the record of the run; None without structures."""
        if self.output_dir is not None:
            return self.output_dir / "run.json"
        return None if self.output is None else _beside(self.output, ".run.json")

    @property
    def folder(self) -> Path:
        """The folder of a run for which no other is named."""
        if self.output_dir is not None:
            return _beside(self.output_dir / self.DEFAULT, ".run")
        return _beside(self.output or Path(self.DEFAULT), ".run")

    def named_in(self, settings: Mapping[str, Any], folder: Path) -> Self:
        """Outputs of the same kind, with the places that the settings of a run in a folder name."""
        names = [field.name for field in dataclasses.fields(self) if field.default is None]
        return type(self)(**{name: folder / settings[name] for name in names if name in settings})

    @property
    def written(self) -> list[Path]:
        """All files that are written at one place."""
        return [path for path, _ in self.files()] + ([] if self.output is None else [self.output])

    def files(self) -> list[tuple[Path, str]]:
        """Files besides those of structures, each with its word in messages."""
        named = [(self.table, "table"), (self.record, "record")]
        return [(path, name) for path, name in named if path is not None and path != STDOUT]


def _beside(path: Path, ending: str) -> Path:
    """The path with one more ending, cut to the longest name that there may be."""
    name = os.fsencode(path.name)[: LONGEST_NAME - len(ending)]
    return path.with_name(os.fsdecode(name) + ending)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs(Written):
    """Options of outputs of relaxations."""

    DEFAULT = "relaxed.extxyz"

    log: Annotated[
        Path | None,
        typer.Option(
            help="A file for a line a step and structure, with energy and largest force, as the run"
            " goes; - is standard output."
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            help="A page of HTML for a person: counts, convergence, distributions, throughput,"
            " failures, settings. Needs no network to be read, and Bokeh to be written."
        ),
    ] = None
    trajectory: Annotated[
        Path | None,
        typer.Option(help="A folder for trajectories, one file a structure, that ASE reads."),
    ] = None
    trajectory_interval: Annotated[
        int,
        typer.Option(help="Steps between two frames of a trajectory.", metavar="NUMBER", min=1),
    ] = 10
    trajectory_format: Annotated[
        TrajectoryFormat, typer.Option(help="ASE's own, or extended XYZ.")
    ] = TrajectoryFormat.TRAJ

    def files(self) -> list[tuple[Path, str]]:
        files = super().files()
        if self.log is not None and self.log != STDOUT:
            files.append((self.log, "log"))
        if self.report is not None:
            files.append((self.report, "report"))
        return files


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathOutputs(Outputs):
    """Options of outputs of minimum-energy paths."""

    DEFAULT = "paths.extxyz"

    plot: Annotated[
        Path | None,
        typer.Option(
            help="A picture of the energies along the paths, with ASE's curves through them: .svg,"
            " .png or .pdf. Needs matplotlib."
        ),
    ] = None

    def files(self) -> list[tuple[Path, str]]:
        return [*Outputs.files(self), *([(self.plot, "plot")] if self.plot else [])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointOutputs(Written):
    """Options of `basinax evaluate` and its outputs."""

    DEFAULT = "evaluated.extxyz"

    stress: Annotated[
        bool, typer.Option("--stress", help="Stress, too, of cells with a volume.")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Options of the sample that is run alone."""

    sample: Annotated[int, typer.Option(help="How many structures to run alone.", min=1)] = 8
    seed: Annotated[int, typer.Option(help="Which ones.", min=0)] = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputStyle:
    """Options that change no result: for printing, and for compiled programs."""

    quiet: Quiet = False
    verbose: Verbose = False
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache",
            help="Neither load compiled programs from the user's cache folder nor keep them there;"
            " BASINAX_CACHE=FOLDER names another folder, and BASINAX_CACHE=off none.",
        ),
    ] = False
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config", help="Print these options as --config reads them, and do no more."
        ),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Options of runs that are stored in a folder."""

    run: Annotated[
        str | None,
        typer.Option(
            help="A folder that keeps each result as it comes, and stays: run.toml and results.db,"
            " a database of ASE. A run that was interrupted goes on by the same command, or by"
            " basinax resume FOLDER, and ends in the same bits. A structure that cannot be read or"
            " relaxed is recorded with its reason, and the others go on. Without --run the folder"
            " is OUTPUT.run, which is removed once the outputs are written.",
            metavar="FOLDER",
        ),
    ] = None
    shard: Annotated[
        Any,
        typer.Option(
            parser=shard_of,
            metavar="K/N",
            help="Of N runs with folders of their own the K-th, from 1: every N-th structure."
            " basinax merge puts their folders together.",
        ),
    ] = "1/1"
    time_limit: TimeLimit = None
    ray: Annotated[
        str | None,
        typer.Option(
            help="Relax on the machines of a Ray cluster: auto for the one that this machine is in,"
            " an address such as ray://head:10001, or local. Needs Ray.",
            metavar="ADDRESS",
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option("--strict", help="End a run at the first structure that cannot be read."),
    ] = False
    force: Force = False
