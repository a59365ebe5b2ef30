"""Vibrations: Hessians by central differences of forces, all displacements in one batch.

Displacements and differences are those of ASE's `Vibrations`; what follows from a Hessian is left
to ASE's `VibrationsData`. Analytical Hessians are derivatives of forces, one structure after
another. Each structure's Hessian has the bits that it has alone.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from ase import Atoms, units
from ase.constraints import FixAtoms, FixCom, FixSymmetry
from jaxtyping import Bool, Complex, Float

from basinax.config.tables import choose
from basinax.engine.evaluate import checked, evaluated, unlistable_by
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.models.jax_model import JaxModel, hessian_of as hessian_of_model
from basinax.numerics.settings import POSITIVE, SIZE, one_number, shown
from basinax.numerics.switches import own_switches
from basinax.potentials.hessians import NUMERICAL, hessian_of
from basinax.results.table import AbstractTable, named, text_of
from basinax.structures.batch import available_dtype, in_parts
from basinax.structures.read import name_of

if TYPE_CHECKING:  # importing it takes a sixth of the time of `import basinax.atoms`
    from ase.vibrations import VibrationsData

Method = Literal["numerical", "analytical"]
"""The ways to a Hessian, in the words of programs of quantum chemistry."""

WEIGHTS = {2: {-1: 6, 1: -6}, 4: {-2: -1, -1: 8, 1: -8, 2: 1}}
"""The weight in twelfths of the force at each displacement, in units of `delta`, by `nfree`."""

BYTES, BYTES_OF_STRUCTURE, BYTES_OF_ATOM = 2**28, 5000, 100
"""About the memory for displaced structures at a time, and what one of them takes."""

NEGLIGIBLE = 1e-3
"""Rigid motions are dependent below this relative singular value, as the turn of a molecule about
its axis if its atoms lie so close to a line."""


@dataclasses.dataclass(frozen=True, eq=False)
class Vibrations:
    """The harmonic vibrations of one structure."""

    data: "VibrationsData"
    """ASE's object, for `write_jmol`, `tabulate`, animated modes, densities of states, and, with
    its energies, `IdealGasThermo` and `HarmonicThermo`."""
    tolerance: float
    """Imaginary frequencies up to this size, in 1/cm, count as zero."""
    message: str = ""
    """The reason if the structure or a displaced one could not be evaluated; empty otherwise."""

    @property
    def hessian(self) -> Float[np.ndarray, "3*moving 3*moving"]:
        """Second derivatives of the energy in eV/Å² by the atoms that vibrate, in ascending order;
        symmetric."""
        return self.data.get_hessian_2d()

    @property
    def is_finite(self) -> bool:
        """Whether the Hessian is: all displaced structures could be evaluated."""
        return bool(np.isfinite(self.hessian).all())

    @property
    def frequencies(self) -> Complex[np.ndarray, "modes"]:
        """Frequencies in 1/cm by increasing square, translations and rotations included; imaginary
        if the energy falls along the mode. NaN if the Hessian is not finite."""
        nothing = np.full(len(self.hessian), np.nan, complex)
        return self.data.get_frequencies() if self.is_finite else nothing

    @property
    def modes(self) -> Float[np.ndarray, "modes atoms 3"]:
        """Displacements of all atoms in ASE's scale, 1/√amu.

        Raises:
            LinAlgError: the Hessian is not finite.
        """
        return self.data.get_modes(all_atoms=True)

    @property
    def zero_point_energy(self) -> float:
        """Half the sum of the real frequencies, in eV."""
        return float(np.real(self.frequencies).sum() / 2 * units.invcm)

    @functools.cached_property
    def imaginary(self) -> Float[np.ndarray, "n"]:
        """Sizes in 1/cm of the imaginary frequencies beyond the tolerance, the largest first.

        Translations and rotations are projected out of the Hessian: remaining forces would make
        rotations imaginary. So these frequencies differ a little from `frequencies`.
        """
        if not self.is_finite:
            return np.zeros(0)
        from scipy.linalg import orth

        atoms, indices = self.data.get_atoms(), self.data.get_indices()
        root = np.sqrt(np.repeat(atoms.get_masses()[indices], 3))
        rigid = orth(root[:, None] * _rigid_motions(atoms, indices), NEGLIGIBLE)
        others = np.eye(len(root)) - rigid @ rigid.T
        weighted = others @ (self.hessian / np.outer(root, root)) @ others
        projected = np.outer(root, root) * (weighted + weighted.T) / 2
        data = type(self.data).from_2d(atoms, projected, indices.tolist())
        sizes = np.imag(data.get_frequencies())
        return np.sort(sizes[sizes > self.tolerance])[::-1]

    @property
    def is_minimum(self) -> bool:
        """Whether a stationary point is a minimum: a finite Hessian, nothing imaginary."""
        return self.is_finite and not len(self.imaginary)


class AtomsVibrations(AbstractTable, tuple[Vibrations, ...]):
    """The result of `vibrations`: one `Vibrations` per structure, in the order of the input."""

    __slots__ = ()

    def to_dict(self) -> dict[str, list[Any]]:
        """A table as columns, one entry per structure.

        The columns are `formula`, `atoms` (their number), `minimum`, `imaginary_per_cm` (a text
        such as "812i, 55i"), `zero_point_energy_eV` and `message`.
        """
        return {
            **named([v.data.get_atoms() for v in self]),
            "minimum": [v.is_minimum for v in self],
            "imaginary_per_cm": [", ".join(f"{x:.0f}i" for x in v.imaginary) for v in self],
            "zero_point_energy_eV": [v.zero_point_energy for v in self],
            "message": [v.message for v in self],
        }

    def __repr__(self) -> str:
        return text_of(self.to_dict())


@own_switches()
def vibrations(
    atoms: Iterable[Atoms],
    potential: Any = None,
    *,
    indices: Sequence[Sequence[int] | None] | None = None,
    hessian: Method = "numerical",
    delta: float = 0.01,
    nfree: int = 2,
    tolerance: float = 10.0,
    dtype: Any = None,
) -> AtomsVibrations:
    """Hessians, frequencies and modes of structures, which should be relaxed.

    Args:
        atoms: the structures; none is changed.
        potential: as for `evaluate`.
        indices: the atoms that vibrate, in any order: one list per structure, or None for all atoms
            that no `FixAtoms` holds.
        hessian: "numerical" or "analytical", as programs of quantum chemistry call them: by
            differences of forces, or by their derivatives at the structure itself, without an error
            of differences. Only potentials of this package, those of users that JAX evaluates, and
            `JaxModel` have these; each size of structures needs a program of its own. They see the
            pairs within the cutoff there, so a force that jumps at its cutoff has no share.
        delta: the displacement in Å, for numerical Hessians.
        nfree: 2 or 4 displacements per coordinate; the error is of this order in `delta`.
        tolerance: imaginary frequencies up to this size, in 1/cm, count as zero.
        dtype: as for `evaluate`; float32 rounds numerical Hessians by about 1e-3 eV/Å², analytical
            ones by 3e-5.

    Raises:
        TypeError, ValueError: a structure or an argument is unusable, or the potential has no
            analytical Hessian; the message has the reason.
        NotImplementedError: a constraint other than `FixAtoms`, `FixCom` and `FixSymmetry` holds
            atoms, and `indices` does not say which ones vibrate; or one acts on the host.
    """
    choose("hessian", hessian, dict.fromkeys(get_args(Method)))
    if nfree not in tuple(WEIGHTS):
        raise ValueError(f"nfree must be 2 or 4, got {shown(nfree)}")
    delta, tolerance = (
        one_number(delta, "delta", POSITIVE),
        one_number(tolerance, "tolerance", SIZE),
    )
    structures, evaluator, potential = checked(atoms, potential)
    dtype = available_dtype(dtype)
    chosen = [None] * len(structures) if indices is None else list(indices)
    if len(chosen) != len(structures):
        raise ValueError(f"indices has {len(chosen)} entries for {len(structures)} structures")
    moving = [_moving(*each) for each in zip(structures, chosen, itertools.count(), strict=False)]
    pairs = list(zip(structures, moving, strict=True))
    if hessian == "analytical":
        _check_analytical(evaluator)
    lost = unlistable_by(structures, evaluator, potential, dtype=dtype)
    listed = [each for k, each in enumerate(pairs) if k not in lost]
    if hessian == "analytical":
        halves = _analytical(listed, evaluator, potential, dtype)
    else:
        weights = {n * delta: weight / (24 * delta) for n, weight in WEIGHTS[nfree].items()}
        displaced = (copy for each in listed for copy in _displaced(*each, weights))
        forces = _forces(displaced, evaluator, potential, dtype)
        halves = (_half(of_one, weights, forces) for _, of_one in listed)
    found = []
    for k, (a, of_one) in enumerate(pairs):
        if k in lost:
            half, message = np.full((3 * len(of_one), 3 * len(of_one)), np.nan), lost[k]
        else:
            half, message = next(halves)
        found.append(_made(a, of_one, half, message, tolerance))
    return AtomsVibrations(found)


def check_minima(
    structures: Iterable[Atoms] | Any, potential: Any = None, **options: Any
) -> Bool[np.ndarray, "systems"]:
    """Which relaxed structures are minima, and which are not: saddles, or not evaluated.

    Args:
        structures: the result of `relax`, or structures.
        potential: as for `vibrations`, which has the frequencies too.
        options: as for `vibrations`.

    >>> from ase import Atoms
    >>> from basinax.atoms import LennardJones, relax
    >>> argon = LennardJones.named("Ar", cutoff=8.5)
    >>> chain = Atoms("Ar3", [(0, 0, 0), (0, 0, 3.8), (0, 0, 7.6)])
    >>> bent = Atoms("Ar3", [(0, 0, 0), (0, 0, 3.8), (0, 2, 7)])
    >>> relaxed = relax([chain, bent], argon, fmax=1e-4, dtype="float64")
    >>> check_minima(relaxed, argon, tolerance=1.0, dtype="float64").tolist()
    [False, True]
    """
    found = vibrations(getattr(structures, "atoms", structures), potential, **options)
    return np.array([v.is_minimum for v in found], bool)


def _moving(atoms: Atoms, chosen: Sequence[int] | None, number: int) -> np.ndarray:
    """The indices of the atoms that vibrate, checked, in ascending order."""
    name = name_of(atoms, number)
    masses = atoms.get_masses()
    if not (np.isfinite(masses) & (masses > 0)).all():
        raise ValueError(f"{name} has atoms without a positive mass: give them one by set_masses")
    if chosen is None:
        for c in atoms.constraints:
            if type(c) not in (FixAtoms, FixCom, FixSymmetry):  # FixSubsetCom is a FixCom
                raise NotImplementedError(
                    f"{name}: vibrations know no {type(c).__name__}: remove it, or say by indices"
                    " which atoms vibrate"
                )
        every = np.arange(len(atoms))
        held = [every[c.index] for c in atoms.constraints if isinstance(c, FixAtoms)]
        return np.setdiff1d(every, np.concatenate([[], *held]).astype(int))
    moving = np.asarray(chosen)
    if moving.ndim != 1 or (moving.size and moving.dtype.kind not in "iu"):
        kind = "integers, no mask" if moving.dtype.kind == "b" else "integers"
        raise TypeError(f"{name}: its indices must be a list of {kind}, got {shown(chosen)}")
    if len(np.intersect1d(moving, np.arange(len(atoms)))) < len(moving):
        raise ValueError(
            f"{name}: its indices must be distinct, from 0 to {len(atoms) - 1}, got {shown(chosen)}"
        )
    return np.sort(moving).astype(int)  # the order of ASE's `VibrationsData`


def _displaced(atoms: Atoms, moving: np.ndarray, sizes: Iterable[float]) -> Iterator[Atoms]:
    """Copies with one coordinate displaced, in ASE's order."""
    for index, axis, size in itertools.product(moving, range(3), sizes):
        copy = atoms.copy()
        copy.set_constraint()
        copy.positions[index, axis] += size
        copy.calc = atoms.calc
        yield copy


def _forces(
    displaced: Iterator[Atoms],
    evaluator: AbstractEvaluator | None,
    potential: Any,
    dtype: Any,
) -> Iterator[tuple[np.ndarray, str]]:
    """Forces and messages of the structures, of which as many are evaluated at a time as fit into
    memory."""
    for batch in in_parts(displaced, _bytes_of, BYTES):
        found = evaluated(batch, evaluator, potential, stress=False, dtype=dtype)
        yield from zip(found.forces, found.messages, strict=True)


def _bytes_of(atoms: Atoms) -> int:
    return BYTES_OF_STRUCTURE + BYTES_OF_ATOM * len(atoms)


def _check_analytical(evaluator: AbstractEvaluator | None) -> None:
    """Raise TypeError if JAX does not evaluate the potential."""
    if not (evaluator is None or isinstance(evaluator, JaxModel)):
        raise TypeError(
            f"{type(evaluator).__name__} has no analytical Hessian, since JAX does not evaluate it:"
            f" {NUMERICAL}"
        )


def _analytical(
    pairs: list[tuple[Atoms, np.ndarray]],
    evaluator: AbstractEvaluator | None,
    potential: Any,
    dtype: Any,
) -> Iterator[tuple[np.ndarray, str]]:
    """Halves of Hessians, not made symmetric, without messages."""
    for each in pairs:
        if isinstance(evaluator, JaxModel):
            yield hessian_of_model(evaluator, *each) / 2, ""
        else:
            yield hessian_of(potential, *each, dtype) / 2, ""


def _half(
    moving: np.ndarray, weights: dict[float, float], forces: Iterator[tuple[np.ndarray, str]]
) -> tuple[np.ndarray, str]:
    """Half of the Hessian of a structure, which takes its share of the forces, and a message.

    Rows of displacements without finite results are NaN, even if forces alone are finite.
    """
    rows, messages = np.zeros((3 * len(moving), 3 * len(moving))), [""]
    for row, weight in itertools.product(rows, weights.values()):
        found, message = next(forces)
        row += np.nan if message else weight * found[moving].ravel()
        messages.append(message)
    return rows, next(filter(None, messages), "")


def _made(
    atoms: Atoms, moving: np.ndarray, half: np.ndarray, message: str, tolerance: float
) -> Vibrations:
    """The vibrations by half of a Hessian, which is made symmetric."""
    from ase.vibrations import VibrationsData

    if not (message or np.isfinite(half).all()):
        message = "the Hessian has entries that are NaN or infinite"
    data = VibrationsData.from_2d(atoms, half + half.T, moving.tolist())
    return Vibrations(data, tolerance, message)


def _rigid_motions(atoms: Atoms, moving: np.ndarray) -> Float[np.ndarray, "3*moving n"]:
    """Motions that change no distance and leave all other atoms at rest: translations, and turns
    about axes along which alone the structure is periodic."""
    from scipy.linalg import null_space

    periodic = atoms.cell.array[atoms.pbc]
    axes = {0: np.eye(3), 1: periodic}.get(len(periodic), np.zeros((0, 3)))
    shifts = np.broadcast_to(np.eye(3)[:, None], (3, len(atoms), 3))
    turns = np.cross(axes[:, None], atoms.positions - atoms.positions.mean(0))
    motions = np.moveaxis(np.concatenate([shifts, turns]), 0, -1)
    rest = np.delete(motions, moving, axis=0).reshape(-1, motions.shape[-1])
    return motions[moving].reshape(-1, motions.shape[-1]) @ null_space(rest, NEGLIGIBLE)
