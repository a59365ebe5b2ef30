"""The results of paths: images, barriers and the highest image."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from ase import Atoms
from ase.symbols import Symbols
from jaxtyping import Bool, Float

from basinax.minimize.status import Status
from basinax.neb.paths import IMAGES, images_of
from basinax.numerics.settings import count_of, shown
from basinax.results.compare import AbstractCompared, Comparison, distance_of
from basinax.results.history import History
from basinax.results.record import SHOWN, Entries, Relaxed
from basinax.results.snapshot import Template
from basinax.results.table import (
    AbstractTable,
    brief_of,
    columns_of,
    derived,
    more_than,
    text_of,
)
from basinax.structures.read import without_outcome

if TYPE_CHECKING:  # importing it takes time that only this result should pay
    from ase.utils.forcecurve import ForceFit

NAMED = 10
"""The most paths that a plot names."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MinimumEnergyPath:
    """One path of a result. Energies are NaN where the path could not be evaluated."""

    entry: Relaxed
    """The path as one structure: the atoms of its images, one image after another."""

    noun: ClassVar[str] = "path"

    def __repr__(self) -> str:
        return (
            f"MinimumEnergyPath({self.formula}, {self.n_images} images,"
            f" {self.status}, barrier {self.barrier:.4f} eV)"
        )

    @functools.cached_property
    def images(self) -> list[Atoms]:
        """The images at their last positions, end points included.

        The calculator of each has energy in eV and forces in eV/Å: the real ones of the potential,
        without springs and constraints.
        """
        results = self._results or ({},) * self.n_images
        return [
            template.at(own, self.entry.cell, found)
            for template, own, found in zip(self._templates, self.positions, results, strict=True)
        ]

    @functools.cached_property
    def _templates(self) -> list[Template]:
        images = images_of(self.entry.template)
        return [image._replace(info=without_outcome(image.info)) for image in images]

    @derived("source", is_brief=True)
    def source(self) -> str:
        """The origin of the path: its number, or its file."""
        return self.entry.source

    @derived("formula", is_brief=True)
    def formula(self) -> str:
        """The chemical formula of an image, in Hill's order."""
        return Symbols(self._templates[0].arrays["numbers"]).get_chemical_formula()

    @derived("atoms")
    def n_atoms(self) -> int:
        """The number of atoms of an image."""
        return self.entry.n_atoms // self.n_images

    @derived("images", is_brief=True)
    def n_images(self) -> int:
        """The number of images, end points included."""
        return len(self._templates)

    @derived("status", is_brief=True)
    def status(self) -> Status:
        return self.entry.status

    @derived("steps", is_brief=True)
    def steps(self) -> int:
        """The number of steps of the whole path."""
        return self.entry.steps

    @derived("evaluations")
    def evaluations(self) -> int:
        """The number of evaluations of single images, end points included."""
        return self.entry.evaluations

    @derived("barrier_eV", "eV", is_brief=True)
    def barrier(self) -> float:
        """The energy of the highest image minus that of the first, in eV."""
        return float(self.energies.max() - self.energies[0])

    @derived("reverse_barrier_eV", "eV", is_brief=True)
    def reverse_barrier(self) -> float:
        """The energy of the highest image minus that of the last, in eV."""
        return float(self.energies.max() - self.energies[-1])

    @derived("reaction_energy_eV", "eV")
    def reaction_energy(self) -> float:
        """The energy of the last image minus that of the first, in eV."""
        return float(self.energies[-1] - self.energies[0])

    @derived("saddle_image")
    def saddle_index(self) -> int | None:
        """The image of the highest energy; None if the path could not be evaluated."""
        return None if np.isnan(self.energies).any() else int(np.argmax(self.energies))

    @derived("fmax_eV_per_A", "eV/Å", is_brief=True)
    def fmax(self) -> float:
        """The largest force of the band on one atom of its images, in eV/Å."""
        return self.entry.fmax

    @derived("length_A", "Å")
    def length(self) -> float:
        """The sum of the distances between neighbouring images in the space of all atoms, in Å."""
        return float(self._distances.sum())

    @derived("seconds", "s")
    def seconds(self) -> float:
        """The time from the call to the end of the path; NaN if it did not end."""
        return self.entry.seconds

    @derived("message", is_brief=True)
    def message(self) -> str:
        """The reason if an image could not be evaluated, with its number; empty otherwise."""
        return self.entry.message

    @property
    def history(self) -> History | None:
        """The energy of the highest image, fmax and evaluations of the steps, if kept."""
        return self.entry.history

    @property
    def positions(self) -> Float[np.ndarray, "images atoms 3"]:
        """The last positions in Å."""
        return self.entry.positions.reshape(self.n_images, -1, 3)

    @functools.cached_property
    def energies(self) -> Float[np.ndarray, "images"]:
        """The energy of each image in eV."""
        if self._results is None:
            return np.full(self.n_images, np.nan)
        return np.array([found["energy"] for found in self._results])

    @property
    def _results(self) -> Sequence[dict[str, Any]] | None:
        return self.entry.results.get("images")

    @property
    def saddle(self) -> Atoms | None:
        """The image of the highest energy, with its calculator."""
        return None if self.saddle_index is None else self.images[self.saddle_index]

    @property
    def _distances(self) -> Float[np.ndarray, "ways"]:
        ways = self.positions[1:] - self.positions[:-1]
        return np.sqrt((ways * ways).sum(axis=(1, 2)))

    @property
    def _without_curve(self) -> str:
        """Why there is no curve through the images; empty if there is one."""
        if self.saddle_index is None:
            return f"the path could not be evaluated: {self.message or self.status}"
        return "" if self._distances.all() else "neighbouring images of the path are the same"

    def fit(self) -> "ForceFit":
        """ASE's curve through energies and forces of the images (`ase.mep.NEBTools`).

        Raises ValueError if the path could not be evaluated, or if neighbouring images are the
        same, as between equal end points.
        """
        if self._without_curve:
            raise ValueError(self._without_curve)
        from ase.utils.forcecurve import fit_images

        return fit_images(self.images)

    def plot(self, ax: Any = None) -> Any:
        """Plot energies and ASE's curve through them; needs matplotlib.

        Args:
            ax: the axes of matplotlib to draw on; new ones if None.

        Returns:
            The axes.
        """
        return self.fit().plot(ax=ax)


def counted_by_images(path: Relaxed) -> Relaxed:
    """A path of the loop, which counts evaluations of the inner images together, as a result.

    Its evaluations are those of single images, end points included.
    """
    n_inner, history = len(path.template.info[IMAGES]) - 2, path.history
    if history is not None:
        history = history._replace(evaluations=2 + n_inner * history.evaluations)
    evaluations = 2 + n_inner * path.evaluations
    return dataclasses.replace(path, evaluations=evaluations, history=history)


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedPath(AbstractCompared):
    """One path in two results, the first and the other one. Energies are in eV."""

    first: MinimumEnergyPath
    other: MinimumEnergyPath

    noun = "path"
    judged_by = "barriers", "meV"

    @derived("images")
    def n_images(self) -> int:
        return self.first.n_images

    @derived("other_images")
    def other_n_images(self) -> int:
        return self.other.n_images

    @derived("barrier_difference_eV", "eV", is_brief=True)
    def barrier_difference(self) -> float:
        """The barrier in the other minus that in the first."""
        return self.other.barrier - self.first.barrier

    @property
    def judged_difference(self) -> float:
        return self.barrier_difference

    @derived("reverse_barrier_difference_eV", "eV")
    def reverse_barrier_difference(self) -> float:
        return self.other.reverse_barrier - self.first.reverse_barrier

    @derived("reaction_energy_difference_eV", "eV", is_brief=True)
    def reaction_energy_difference(self) -> float:
        return self.other.reaction_energy - self.first.reaction_energy

    @derived("distance_A", "Å", is_brief=True)
    def distance(self) -> float:
        """The largest distance between the places of an atom in images of the same number.

        As for structures, in Å; NaN if the numbers of images differ.
        """
        if self.n_images != self.other_n_images:
            return np.nan
        return distance_of(self.first.entry, self.other.entry)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PathsResult(AbstractTable, Entries[MinimumEnergyPath]):
    """The result of `neb`: a sequence of paths, in the order of the input."""

    def __repr__(self) -> str:
        """The number of paths by status, and the first lines of the table."""
        n = {status: int((self.status == status).sum()) for status in Status}
        counts = ", ".join(f"{count} {status}" for status, count in n.items() if count)
        table = text_of(brief_of(self.entries[:SHOWN], MinimumEnergyPath))
        lines = [f"{count_of(len(self), 'path')}{counts and f': {counts}'}", "", table]
        return "\n".join([*lines, *more_than(SHOWN, len(self))]).rstrip()

    @property
    def status(self) -> np.ndarray:
        """Texts, see `Status`, one for each path."""
        return np.array([path.status for path in self.entries], str)

    @property
    def converged(self) -> Bool[np.ndarray, "paths"]:
        """Whether the status of each path is "converged"."""
        return self.status == Status.CONVERGED

    @property
    def barriers(self) -> Float[np.ndarray, "paths"]:
        """The barrier of each path, in eV."""
        return np.array([path.barrier for path in self.entries], float)

    def compare(self, other: "PathsResult") -> Comparison[ComparedPath]:
        """Each path in this result and in another: barriers, steps, evaluations, distance.

        Paths are matched by `source`, in the order of this result.

        Raises:
            TypeError: the other is no such result.
            ValueError: a source stands more often in one result, or is of other atoms in the other.
        """
        if not isinstance(other, PathsResult):
            raise TypeError(f"other must be a result of neb, got {shown(other)}")
        return Comparison.of(self.entries, other.entries, ComparedPath)

    def plot(self, ax: Any = None) -> Any:
        """Plot the energies of all paths with ASE's curves through them; needs matplotlib.

        Paths that could not be evaluated, or that have equal images, are left out.

        Args:
            ax: the axes of matplotlib to draw on; new ones if None.

        Returns:
            The axes.
        """
        from matplotlib import pyplot

        ax = pyplot.subplots()[1] if ax is None else ax
        for path in self.entries:
            if path._without_curve:
                continue
            fit = path.fit()
            (line,) = ax.plot(fit.fit_path, fit.fit_energies)
            name = f"{path.source}: {path.formula}, {path.barrier:.3f} eV"
            ax.plot(fit.path, fit.energies, "o", color=line.get_color(), label=name)
        ax.set(xlabel="path (Å)", ylabel="energy (eV)")
        if 0 < len(ax.get_legend_handles_labels()[0]) <= NAMED:
            ax.legend()
        return ax

    def to_dict(self) -> dict[str, list[Any]]:
        """A table as columns, one entry per path.

        The columns are `source` (the number of the path), `formula`, `atoms` (those of an image),
        `images` (their number), `status`, `steps`, `evaluations`, `barrier_eV`,
        `reverse_barrier_eV`, `reaction_energy_eV`, `saddle_image`, `fmax_eV_per_A`, `length_A`,
        `seconds` and `message`.
        """
        return columns_of(self.entries, MinimumEnergyPath)
