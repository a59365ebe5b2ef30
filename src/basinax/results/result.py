"""The result of a relaxation: columns for programs, a summary and a table for people."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from ase import Atoms
from jaxtyping import Bool, Float, Int32

from basinax.minimize.status import Status
from basinax.results.history import History
from basinax.results.record import Entries, Relaxed
from basinax.results.report.page import write_report
from basinax.results.table import Columns, columns_of, html_of, rows_of, text_of, write_rows

SHOWN = 10
"""The number of structures in the table at the end of a summary."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AtomsRelaxation(Entries[Relaxed]):
    """The result of `relax`: a sequence of `Relaxed`, one per structure, in the order of the input.

    Attributes have one entry per structure, too. `result[3]` and iteration give single structures;
    a slice, a mask such as `result.converged`, or an array of numbers gives the result of the
    selected structures.
    """

    compilations: int = 0
    """The number of programs that the call compiled or loaded from JAX's disk cache, which takes
    most of the time of a short call. A second similar call compiles none."""

    @functools.cached_property
    def atoms(self) -> list[Atoms]:
        """Copies at their last positions, each made when it is first asked for.

        The calculator of each has energy, free energy and energies of atoms in eV, forces in eV/Å
        and, if the cell moves or with `stress=True`, stress in eV/Å³.

        The copies keep their constraints, which ASE's `get_forces` applies to the forces.
        """
        return self._each("atoms")

    @functools.cached_property
    def energies(self) -> Float[np.ndarray, "systems"]:
        """Energies in eV, as `get_potential_energy()` of the structures.

        The free energy, whose derivative the forces are, is minimised. It is the same number unless
        a calculator gives another, as with smeared occupations; `get_potential_energy(
        force_consistent=True)` returns it. All tables, histories, frames and logs have the energy.
        """
        return np.array(self._each("energy"), float)

    @functools.cached_property
    def fmax(self) -> Float[np.ndarray, "systems"]:
        """The largest force on one atom in eV/Å, under the constraints; inf if not finite.

        If a cell moves, the rows of its generalised force count too, in the scale of ASE's filters.
        """
        return np.array(self._each("fmax"), float)

    @functools.cached_property
    def steps(self) -> Int32[np.ndarray, "systems"]:
        """The number of steps; 0 if the start is converged."""
        return np.array(self._each("steps"), np.int32)

    @functools.cached_property
    def evaluations(self) -> Int32[np.ndarray, "systems"]:
        """The number of evaluations of energy and forces."""
        return np.array(self._each("evaluations"), np.int32)

    @functools.cached_property
    def status(self) -> np.ndarray:
        """The outcomes as texts, such as "converged"; see `Status`."""
        return np.array(self._each("status"), str)

    @functools.cached_property
    def messages(self) -> list[str]:
        """The reason for each structure that could not be evaluated; empty for others."""
        return self._each("message")

    @functools.cached_property
    def displacements(self) -> Float[np.ndarray, "systems"]:
        """The distance from the start of the atom that moved most, in Å."""
        return np.array(self._each("displacement"), float)

    @functools.cached_property
    def seconds(self) -> Float[np.ndarray, "systems"]:
        """The time from the call to the end of each structure; NaN if it did not end."""
        return np.array(self._each("seconds"), float)

    @functools.cached_property
    def initial_energies(self) -> Float[np.ndarray, "systems"]:
        """The `energies` at the start; NaN if never evaluated."""
        return np.array(self._each("initial_energy"), float)

    @functools.cached_property
    def initial_volumes(self) -> list[float | None]:
        """The volume at the start, in Å³; None without three periodic directions."""
        return self._each("initial_volume")

    @functools.cached_property
    def sources(self) -> list[str]:
        """The origin of each structure: its number in the input, or its file and image."""
        return self._each("source")

    @functools.cached_property
    def history(self) -> list[History] | None:
        """Energy, fmax and volume of the steps, one entry per structure; None unless kept."""
        found = [entry.history for entry in self.entries if entry.history is not None]
        return found if found and len(found) == len(self) else None

    @property
    def converged(self) -> Bool[np.ndarray, "systems"]:
        return self.status == Status.CONVERGED

    @property
    def counts(self) -> dict[str, int]:
        """The number of structures by name of status, without statuses that do not occur."""
        counts = {str(status): int((self.status == status).sum()) for status in Status}
        return {name: count for name, count in counts.items() if count}

    def to_dict(self) -> dict[str, list[Any]]:
        """A table as columns, one entry per structure.

        The columns are `source`, `formula`, `atoms` (their number), `status`, `steps`,
        `evaluations`, `energy_eV`, `energy_eV_per_atom`, `initial_energy_eV`, `fmax_eV_per_A`,
        `volume_A3` and `initial_volume_A3` (None without three periodic directions),
        `max_stress_eV_per_A3` (the largest component; None without stress), `max_displacement_A`,
        `seconds` and `message`.
        """
        return columns_of(self.entries, self._kind)

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
        curves = dict(enumerate(self.history or []))
        rows = rows_of(self.to_dict())
        write_report(path, rows, self._kind, curves=curves, settings=settings, title=title)

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

    def _first_rows(self) -> Columns:
        return columns_of(self.entries[:SHOWN], self._kind, is_brief=True)

    def _each(self, name: str) -> list[Any]:
        return [getattr(entry, name) for entry in self.entries]

    @property
    def _kind(self) -> type[Relaxed]:
        return type(self.entries[0]) if self.entries else Relaxed
