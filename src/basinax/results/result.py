"""The result of a relaxation: columns for programs, a summary and a table for people."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ase import Atoms
from jaxtyping import Bool, Float, Int32

from basinax.minimize.status import Status
from basinax.numerics.settings import count_of, largest_of, shown
from basinax.results.compare import Compared, Comparison
from basinax.results.figure import drawn
from basinax.results.history import History
from basinax.results.record import SHOWN, Entries, Relaxed
from basinax.results.report.curves import convergence_of
from basinax.results.report.page import write_report
from basinax.results.table import (
    Columns,
    brief_of,
    columns_of,
    frame_of,
    further_columns,
    html_of,
    more_than,
    rows_of,
    text_of,
    write_rows,
)


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
    limit: float | None = None
    """The `fmax` of the call in eV/Å; None if it was not one number."""

    @functools.cached_property
    def atoms(self) -> list[Atoms]:
        """Copies at their last positions, each made when it is first asked for.

        The calculator of each has energy, free energy and energies of atoms in eV, forces in eV/Å
        and, if the cell moves or with `stress=True`, stress in eV/Å³.

        The copies keep their constraints, which ASE's `get_forces` applies to the forces. Objects
        in `info` are those of the input, as in ASE's copies.
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
    def initial_volumes(self) -> Float[np.ndarray, "systems"]:
        """The volume at the start, in Å³; NaN without three periodic directions."""
        return np.array(self._each("initial_volume"), float)

    @functools.cached_property
    def sources(self) -> list[str]:
        """The origin of each structure: its number in the input, or its file and image."""
        return self._each("source")

    @functools.cached_property
    def history(self) -> list[History] | None:
        """Energy, fmax and volume of the steps, one entry per structure; None if not kept."""
        found = [entry.history for entry in self.entries if entry.history is not None]
        return found if len(found) == len(self) else None

    @property
    def converged(self) -> Bool[np.ndarray, "systems"]:
        """Whether the status of each structure is "converged"."""
        return self.status == Status.CONVERGED

    @property
    def counts(self) -> dict[str, int]:
        """The number of structures by name of status, without statuses that do not occur."""
        counts = {str(status): int((self.status == status).sum()) for status in Status}
        return {name: count for name, count in counts.items() if count}

    def to_dict(self, info: str | Sequence[str] = ()) -> dict[str, list[Any]]:
        """A table as columns, one entry per structure.

        The columns are `source`, `formula`, `atoms` (their number), `status`, `steps`,
        `evaluations`, `energy_eV`, `energy_eV_per_atom`, `initial_energy_eV`, `fmax_eV_per_A`,
        `volume_A3` and `initial_volume_A3` (NaN without three periodic directions),
        `max_stress_eV_per_A3` (the largest component; NaN without stress), `max_displacement_A`,
        `seconds` and `message`.

        Args:
            info: names in the `info` of structures, such as "label", for further columns of
                numbers, switches or texts. A structure that lacks one has NaN, None or "".

        Raises:
            ValueError: no structure has a name, or the table has a column of this name.
        """
        columns = columns_of(self.entries, self._kind)
        infos = [entry.template.info for entry in self.entries]
        return columns | further_columns(info, infos, columns)

    def to_pandas(self, info: str | Sequence[str] = ()) -> Any:
        """`to_dict` as a `pandas.DataFrame`. Raises ImportError without pandas."""
        return frame_of(self.to_dict(info))

    def write_table(self, path: str | os.PathLike[str], info: str | Sequence[str] = ()) -> None:
        """Write `to_dict` to a file: .csv, .json (a list of rows), .jsonl, or .parquet.

        Raises:
            ValueError: the ending is another.
            ImportError: Parquet needs pyarrow.
            OSError: the file cannot be written.
        """
        write_rows(path, self.to_dict(info))

    def compare(self, other: "AtomsRelaxation") -> Comparison[Compared]:
        """Each structure in this result and in another: energies, steps, evaluations, distance.

        Structures are matched by `source`, in the order of this result.

        Raises:
            TypeError: the other is no such result.
            ValueError: a source stands more often in one result, or is of other atoms in the other.
        """
        if not isinstance(other, AtomsRelaxation):
            raise TypeError(f"other must be a result of relax, got {shown(other)}")
        return Comparison.of(self.entries, other.entries, Compared)

    def __add__(self, other: "AtomsRelaxation") -> "AtomsRelaxation":
        """This result followed by another."""
        if not isinstance(other, AtomsRelaxation):
            return NotImplemented
        return AtomsRelaxation(
            [*self.entries, *other.entries],
            self.compilations + other.compilations,
            self.limit if self.limit == other.limit else None,
        )

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        info: str | Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        title: str = "Relaxation",
    ) -> None:
        """Write an HTML page: counts, convergence, distributions, structures and failures.

        The page needs no network. Curves of convergence need `history=True`. Plots use Bokeh:
        `pip install bokeh`.

        Args:
            path: an .html file; an existing one is replaced.
            info: names in the `info` of structures for further columns, which the page can search.
            settings: plain values by name, and tables of such values, to show at the end.
            title: the title of the page.

        Raises:
            ValueError: the ending is not .html, or see `to_dict`.
            ImportError: Bokeh is not installed.
            OSError: the file cannot be written.
        """
        if "number" in ([info] if isinstance(info, str) else info):
            raise ValueError("info 'number' is already a column of the page: rename it in atoms")
        write_report(
            path,
            rows_of(self.to_dict(info)),
            self._kind,
            curves=dict(enumerate(self.history or [])),
            limit=self.limit,
            settings=settings,
            title=title,
        )

    def plot(self, axes: Any = None) -> Any:
        """Draw fmax and energy over the evaluations of each structure, with matplotlib.

        Needs `history=True`. Energies are relative to the lowest of each structure, per atom.

        Args:
            axes: two axes of matplotlib; None for new ones, one above the other.

        Returns:
            The figure.

        Raises:
            ValueError: the run kept no history, or the result has no structures.
            ImportError: matplotlib is not installed.
        """
        if not len(self):
            raise ValueError("the result has no structures to plot")
        if self.history is None:
            raise ValueError("plot needs the history of the run: relax(..., history=True)")
        sizes = {k: float(entry.n_atoms) for k, entry in enumerate(self.entries)}
        found = {"": convergence_of(dict(enumerate(self.history)), sizes, list(sizes))}
        return drawn(found, self.limit, axes)

    def __repr__(self) -> str:
        """The number of structures by status, and the first lines of the table."""
        first = self._first_rows()
        more = more_than(SHOWN, len(self))
        return "\n".join([self._summary(), "", text_of(first), *more]).rstrip()

    def _repr_html_(self) -> str:
        """The table of `repr`, for notebooks."""
        more = "".join(f"<p>{text}</p>" for text in more_than(SHOWN, len(self)))
        return f"<p>{self._summary()}</p>{html_of(self._first_rows())}{more}"

    def _summary(self) -> str:
        if not len(self):
            return "0 structures"
        counts = ", ".join(f"{n} {name}" for name, n in self.counts.items())
        with warnings.catch_warnings():  # NumPy warns if nothing has ended
            warnings.simplefilter("ignore", RuntimeWarning)
            seconds = np.nanmax(self.seconds)
        took = f" in {seconds:.1f} s" if np.isfinite(seconds) else ""
        n = count_of(len(self), "structure")
        return (
            f"{n}: {counts}{took}; steps {np.median(self.steps):g} (median),"
            f" {self.steps.max()} (most); evaluations {np.median(self.evaluations):g},"
            f" {self.evaluations.max()}; largest fmax {largest_of(self.fmax.tolist()):.3g} eV/Å"
        )

    def _first_rows(self) -> Columns:
        return brief_of(self.entries[:SHOWN], self._kind)

    def _each(self, name: str) -> list[Any]:
        return [getattr(entry, name) for entry in self.entries]

    @property
    def _kind(self) -> type[Relaxed]:
        return type(self.entries[0]) if self.entries else Relaxed
