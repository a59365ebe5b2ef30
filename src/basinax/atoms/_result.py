"""The result of a relaxation: columns for programs, a summary and a table for people."""

import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, overload

import equinox as eqx
import numpy as np
from ase import Atoms
from jaxtyping import Bool, Float, Int32

from basinax._loop.status import Status
from basinax.atoms._history import History
from basinax.atoms._report.curves import Curve
from basinax.atoms._report.page import write_report
from basinax.atoms._snapshot import Snapshot
from basinax.atoms._table import (
    energies_of,
    html_of,
    named,
    rows_of,
    text_of,
    volumes,
    write_rows,
)

SHOWN = 10
"""The number of structures in the table at the end of a summary."""


class Relaxed(NamedTuple):
    """One structure of a result."""

    atoms: Atoms
    """A copy at the last position, with a calculator that has the results there."""
    energy: float
    """The energy in eV; not the free energy, where a calculator has both."""
    fmax: float
    """The largest force in eV/Å."""
    steps: int
    evaluations: int
    status: Status
    source: str
    """The origin of the structure: its number in the input, or its file and image."""
    message: str
    """The reason if the structure could not be evaluated; empty otherwise."""
    initial_energy: float
    """`energy` at the start; NaN if the structure was never evaluated."""
    displacement: float
    """The distance from the start of the atom that moved most, in Å."""
    seconds: float
    """The time from the call to the structure's end; NaN if it did not end."""
    initial_volume: float | None
    """The volume at the start in Å³; None without three periodic directions."""
    history: History | None = None
    """Energy, fmax and volume of the steps, if kept."""


def largest_move(end: Snapshot, original: Atoms) -> float:
    """The distance that the atom that moved most has come, in Å."""
    with np.errstate(over="ignore", invalid="ignore"):  # a structure that exploded overflows
        return float(np.linalg.norm(end.positions - original.positions, axis=1).max())


class AtomsRelaxation(eqx.Module, Sequence[Relaxed]):
    """The result of `relax`; fields have one entry per structure, in the order of the input.

    `result[3]` and iteration give single structures as `Relaxed`; a slice, a mask such as
    `result.converged`, or an array of numbers gives the result of the selected structures.
    """

    atoms: list[Atoms]
    """Copies at their last positions. The calculator of each has energy, free energy and energies
    of atoms in eV, forces in eV/Å and, if the cell moves or with `stress=True`, stress in eV/Å³.

    The copies keep their constraints, which ASE's `get_forces` applies to the forces.
    """
    energies: Float[np.ndarray, "systems"]
    """Energies in eV, as `get_potential_energy()` of the structures.

    The free energy, whose derivative the forces are, is minimised. It is the same number unless a
    calculator gives another, as with smeared occupations; `get_potential_energy(
    force_consistent=True)` returns it. All tables, histories, frames and logs have the energy.
    """
    fmax: Float[np.ndarray, "systems"]
    """The largest force on one atom in eV/Å, under the constraints; inf if not finite.

    If a cell moves, the rows of its generalised force count too, in the scale of ASE's filters.
    """
    steps: Int32[np.ndarray, "systems"]
    """The number of steps; 0 if the start is converged."""
    evaluations: Int32[np.ndarray, "systems"]
    """The number of evaluations of energy and forces."""
    status: Int32[np.ndarray, "systems"]
    """Codes of `Status`."""
    messages: list[str]
    """The reason for each structure that could not be evaluated; empty for others."""
    displacements: Float[np.ndarray, "systems"]
    """The distance from the start of the atom that moved most, in Å."""
    seconds: Float[np.ndarray, "systems"]
    """The time from the call to the end of each structure; NaN if it did not end."""
    initial_energies: Float[np.ndarray, "systems"]
    """The `energies` at the start; NaN if never evaluated."""
    initial_volumes: list[float | None]
    """The volume at the start, in Å³; None without three periodic directions."""
    compilations: int = 0
    """The number of programs that the call compiled or loaded from JAX's disk cache, which takes
    most of the time of a short call. A second similar call compiles none."""
    history: list[History] | None = None
    """Energy, fmax and volume of the steps, one entry per structure; None unless kept."""
    sources: list[str] = eqx.field(default_factory=list)
    """The origin of each structure: its number in the input, or its file and image."""

    def __check_init__(self):
        if len(self.sources) != len(self.atoms):
            raise ValueError(f"{len(self.sources)} sources for {len(self.atoms)} structures")

    @property
    def converged(self) -> Bool[np.ndarray, "systems"]:
        return self.status == Status.CONVERGED

    @property
    def counts(self) -> dict[str, int]:
        """The number of structures by name of status, without statuses that do not occur."""
        counts = {status.name.lower(): int((self.status == status).sum()) for status in Status}
        return {name: count for name, count in counts.items() if count}

    def __len__(self) -> int:
        return len(self.atoms)

    def __iter__(self) -> Iterator[Relaxed]:
        return (self._entry(k) for k in range(len(self)))

    @overload
    def __getitem__(self, which: int) -> Relaxed: ...

    @overload
    def __getitem__(self, which: slice | Sequence[int] | np.ndarray) -> "AtomsRelaxation": ...

    def __getitem__(self, which):
        if isinstance(which, int | np.integer):
            return self._entry(range(len(self))[which])
        numbers = np.arange(len(self))[which]
        return _chosen(self, numbers.tolist())

    def _entry(self, k: int) -> Relaxed:
        return Relaxed(
            self.atoms[k],
            float(self.energies[k]),
            float(self.fmax[k]),
            int(self.steps[k]),
            int(self.evaluations[k]),
            Status(self.status[k]),
            self.sources[k],
            self.messages[k],
            float(self.initial_energies[k]),
            float(self.displacements[k]),
            float(self.seconds[k]),
            self.initial_volumes[k],
            None if self.history is None else self.history[k],
        )

    def to_dict(self) -> dict[str, list[Any]]:
        """A table as columns, one entry per structure.

        The columns are `source`, `formula`, `atoms` (their number), `status`, `steps`,
        `evaluations`, `energy_eV`, `energy_eV_per_atom`, `initial_energy_eV`, `fmax_eV_per_A`,
        `volume_A3` and `initial_volume_A3` (None without three periodic directions),
        `max_stress_eV_per_A3` (the largest component; None without stress), `max_displacement_A`,
        `seconds` and `message`.
        """
        return {
            "source": list(self.sources),
            **named(self.atoms),
            "status": [Status(code).name.lower() for code in self.status],
            "steps": self.steps.tolist(),
            "evaluations": self.evaluations.tolist(),
            **energies_of(self.atoms, self.energies),
            "initial_energy_eV": self.initial_energies.tolist(),
            "fmax_eV_per_A": self.fmax.tolist(),
            "volume_A3": volumes(self.atoms),
            "initial_volume_A3": list(self.initial_volumes),
            "max_stress_eV_per_A3": [_largest_stress(a) for a in self.atoms],
            "max_displacement_A": self.displacements.tolist(),
            "seconds": self.seconds.tolist(),
            "message": list(self.messages),
        }

    def to_pandas(self) -> Any:
        """`to_dict` as a `pandas.DataFrame`. Raises ImportError without pandas."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: run pip install pandas") from error
        return pandas.DataFrame(self.to_dict())

    def write_table(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` to a file: .csv, .json (a list of rows), .jsonl, or .parquet.

        Raises:
            ValueError: the ending is another.
            ImportError: Parquet needs pyarrow.
            OSError: the file cannot be written.
        """
        write_rows(path, self.to_dict())

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        settings: Mapping[str, Any] | None = None,
        title: str = "Relaxation",
    ) -> None:
        """Write an HTML page: counts, convergence, distributions, failures.

        The page needs no network, and grows little with the number of structures. Curves of
        convergence need `history=True`. Plots use Bokeh: `pip install bokeh`.

        Args:
            path: an .html file; an existing one is replaced.
            settings: plain values by name, and tables of such values, to show at the end.
            title: the title of the page.

        Raises:
            ValueError: the ending is not .html.
            ImportError: Bokeh is not installed.
            OSError: the file cannot be written.
        """
        columns = self.to_dict()
        columns["ended"] = columns.pop("seconds")
        histories = enumerate(self.history or [])
        curves = {k: Curve(h.energies, h.fmax, h.evaluations) for k, h in histories}
        write_report(path, rows_of(columns), curves=curves, settings=settings, title=title)

    def plot(self, axes: Any = None) -> Any:
        """Draw fmax and energy over the steps of each structure, with matplotlib.

        Needs `history=True`. Energies are relative to the lowest of each structure.

        Args:
            axes: two axes of matplotlib; None for new ones, one above the other.

        Returns:
            The two axes.

        Raises:
            ValueError: the run kept no history.
            ImportError: matplotlib is not installed.
        """
        if self.history is None:
            raise ValueError("plot needs the history of the run: relax(..., history=True)")
        if axes is None:
            try:
                from matplotlib import pyplot  # pyright: ignore[reportMissingImports]
            except ImportError as error:
                raise ImportError("plot needs matplotlib: run pip install matplotlib") from error
            _, axes = pyplot.subplots(2, 1, sharex=True)
        above, below = axes
        for h in self.history:
            if len(h.steps):
                above.plot(h.steps, h.fmax, linewidth=1)
                below.plot(h.steps, h.energies - np.nanmin(h.energies), linewidth=1)
        above.set(ylabel="fmax (eV/Å)", yscale="log")
        below.set(xlabel="step", ylabel="energy above the lowest (eV)")
        return axes

    def __repr__(self) -> str:
        """The number of structures by status, and the first lines of the table."""
        first = self._first_rows()
        more = [f"... and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        return "\n".join([self._summary(), "", text_of(first), *more])

    def _repr_html_(self) -> str:
        """The table of `repr`, for notebooks."""
        more = f"<p>... and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        return f"<p>{self._summary()}</p>{html_of(self._first_rows())}{more}"

    def _summary(self) -> str:
        if not len(self):
            return "0 structures"
        counts = ", ".join(f"{n} {name}" for name, n in self.counts.items())
        with warnings.catch_warnings():  # NumPy warns if nothing has ended
            warnings.simplefilter("ignore", RuntimeWarning)
            seconds = np.nanmax(self.seconds)
        took = f" in {seconds:.1f} s" if np.isfinite(seconds) else ""
        return (
            f"{len(self)} structures: {counts}{took}; steps {np.median(self.steps):g} (median),"
            f" {self.steps.max()} (most); evaluations {np.median(self.evaluations):g},"
            f" {self.evaluations.max()}; largest fmax {self.fmax.max():.3g} eV/Å"
        )

    def _first_rows(self) -> dict[str, list[Any]]:
        first = _chosen(self, list(range(min(SHOWN, len(self))))).to_dict()
        shown = ["source", "formula", "status", "steps", "energy_eV", "fmax_eV_per_A"]
        return {name: first[name] for name in shown}


def gathered(entries: Sequence[Relaxed]) -> AtomsRelaxation:
    """The result with these entries."""
    columns: Any = zip(*entries, strict=True) if entries else [()] * len(Relaxed._fields)
    of = dict(zip(Relaxed._fields, columns, strict=True))
    histories = [history for history in of["history"] if history is not None]
    return AtomsRelaxation(
        atoms=list(of["atoms"]),
        energies=np.array(of["energy"], float),
        fmax=np.array(of["fmax"], float),
        steps=np.array(of["steps"], np.int32),
        evaluations=np.array(of["evaluations"], np.int32),
        status=np.array(of["status"], np.int32),
        messages=list(of["message"]),
        displacements=np.array(of["displacement"], float),
        seconds=np.array(of["seconds"], float),
        initial_energies=np.array(of["initial_energy"], float),
        initial_volumes=list(of["initial_volume"]),
        sources=list(of["source"]),
        history=histories if entries and len(histories) == len(entries) else None,
    )


def _chosen(result: AtomsRelaxation, numbers: list[int]) -> AtomsRelaxation:
    """The result of the selected structures."""

    def of(values: Any) -> Any:
        return values[numbers] if isinstance(values, np.ndarray) else [values[k] for k in numbers]

    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    columns = {name: of(x) for name, x in values.items() if isinstance(x, np.ndarray | list)}
    return dataclasses.replace(result, **columns)


def _largest_stress(atoms: Atoms) -> float | None:
    """The largest component in magnitude, in eV/Å³; None without stress."""
    stress = None if atoms.calc is None else atoms.calc.results.get("stress")
    return None if stress is None else float(np.abs(stress).max())
