"""The options of both commands."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

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


def or_of_info(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of options that may say `info:KEY` instead of a value."""

    def value_of(text: Any) -> Any:
        if isinstance(text, str) and text.startswith("info:"):
            return OfInfo(text.removeprefix("info:"))
        return read(text)

    return value_of


@or_of_info
def not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise typer.BadParameter("must not be negative")
    return value


@or_of_info
def count_of(text: str) -> int:
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
        parser=or_of_info(float),
        metavar=NUMBER,
        help="On cells that move (eV/Å³; 1 GPa is 0.006242).",
    ),
]
Fmax = Annotated[
    Any,
    typer.Option(
        parser=not_negative,
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
    Any, typer.Option(parser=count_of, metavar=NUMBER, help="The most steps of a structure.")
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
