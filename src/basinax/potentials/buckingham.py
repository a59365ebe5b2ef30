"""The Buckingham potential with charges, as it is used for oxides and other ionic crystals.

References: R. A. Buckingham, Proc. R. Soc. Lond. A 168, 264 (1938), doi:10.1098/rspa.1938.0173;
for the charges, `folds/coulomb.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase.data import chemical_symbols
from jaxtyping import Array, Float

from basinax.neighbors.lists import AbstractRowLists
from basinax.numerics.forks import check_process
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import POSITIVE, SIZE, one_number, require_switch
from basinax.potentials.folds import coulomb as _coulomb
from basinax.potentials.folds.coulomb import DampedCoulomb, damped_slopes
from basinax.potentials.folds.pair import AbstractPairSum, Ends
from basinax.potentials.protocol import Properties
from basinax.potentials.tables.species import (
    Parameter,
    check_positive,
    per_element,
    per_pair,
    species_of,
)
from basinax.structures.batch import Batch

NAMED: dict[str, dict[str, Any]] = {
    "BKS": {
        "A": {("O", "O"): 1388.7730, ("Si", "O"): 18003.7572},
        "rho": {("O", "O"): 1 / 2.76000, ("Si", "O"): 1 / 4.87318},
        "C": {("O", "O"): 175.0000, ("Si", "O"): 133.5381},
        "q": {"Si": 2.4, "O": -1.2},
    }
}
"""Silica: B. W. H. van Beest, G. J. Kramer and R. A. van Santen, Phys. Rev. Lett. 64, 1955 (1990),
doi:10.1103/PhysRevLett.64.1955. It was made for charges without a cutoff."""


class Buckingham(AbstractPairSum):
    """E(r) = A exp(−r/ρ) − C/r⁶ per pair of species, and the Coulomb energy of their charges.

    Charges act by the damped shifted force up to `cutoff`, where energy and force of a pair vanish;
    each atom has an energy of its own from it, which moves nothing. A charge is met by the opposite
    one on the sphere of the cutoff, so that systems need not be neutral.

    At small distances E falls without bound. A pair that is closer than where E is largest, on the
    inner side of the barrier, has the energy NaN, which ends its system as `Status.NOT_FINITE`.

    Make another one for other numbers: `coulomb`, `shifts` and `walls` follow from them.

    >>> magnesia = Buckingham(  # numbers to try it out, not a published set
    ...     A={("Mg", "O"): 1400.0, ("O", "O"): 22000.0},
    ...     rho={("Mg", "O"): 0.295, ("O", "O"): 0.149},
    ...     C={("O", "O"): 28.0},
    ...     q={"Mg": 2.0, "O": -2.0},
    ... )
    >>> silica = Buckingham.named("BKS")
    """

    A: Float[Array, "species species"]
    """A in eV."""
    rho: Float[Array, "species species"]
    """ρ in Å; 1 where A is 0."""
    C: Float[Array, "species species"]
    """C in eV Å⁶."""
    coulomb: DampedCoulomb | None
    radius: Float[Array, ""]
    """The cutoff, in Å."""
    short_radius: Float[Array, ""] | None
    """The cutoff of A exp(−r/ρ) − C/r⁶ in Å; `radius` if None."""
    shifts: Float[Array, "species species"] | None
    """The energy at that cutoff, in eV, which is subtracted; None for no shift."""
    walls: Float[Array, "species species"]
    """The distance of the highest barrier in Å; 0 for a pair that only repels."""
    species: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        A: Parameter = 0.0,
        rho: Parameter | None = None,
        C: Parameter = 0.0,
        q: Parameter | None = None,
        *,
        alpha: float = 0.2,
        cutoff: float = 10.0,
        short_cutoff: float | None = None,
        shift: bool = True,
    ):
        """One number serves all atoms; a mapping has numbers per pair, and per element for q.

        Args:
            A: in eV; 0 for unnamed pairs.
            rho: in Å, for each pair with A.
            C: in eV Å⁶; 0 for unnamed pairs.
            q: the charges, in e; no charges if None.
            alpha: the damping of charges, in 1/Å; the paper recommends 0.2 at 12 Å.
            cutoff: in Å.
            short_cutoff: the cutoff of A exp(−r/ρ) − C/r⁶, in Å; at most `cutoff`, the default.
            shift: shift that energy to 0 at its cutoff. The force jumps there in either case.

        Raises:
            ValueError: a number is out of range, a pair with A has no rho, an element has no
                charge, a name is no element, or a pair attracts at every distance.
        """
        check_process()
        require_switch(shift, "shift")
        alpha, cutoff = one_number(alpha, "alpha", SIZE), one_number(cutoff, "cutoff", POSITIVE)
        if short_cutoff is not None:
            short_cutoff = one_number(short_cutoff, "short_cutoff", POSITIVE)
        species = species_of(A=A, rho=rho, C=C, q=q)
        size = max(len(species), 1)
        none = np.zeros((size, size))
        a, c = per_pair("A", A, species, none), per_pair("C", C, species, none)
        if rho is None and a.any():
            raise ValueError("A needs rho, the distance in Å over which it falls")
        lacking = np.where(a == 0, 1.0, np.nan)
        rhos = np.where(a == 0, 1.0, per_pair("rho", rho, species, lacking))
        short = cutoff if short_cutoff is None else short_cutoff
        check_positive(rho=rhos)
        _check(a, c, cutoff, short)
        charges = None if q is None else _charges(q, species)

        def slopes(r):
            of_charges = 0.0 if charges is None else damped_slopes(r, charges, alpha, cutoff)
            return 6 * c / r**7 - a / rhos * np.exp(-r / rhos) + of_charges

        walls = _walls(slopes, cutoff)
        _check_walls(walls, species)
        self.A, self.rho, self.C = jnp.array(a, float), jnp.array(rhos, float), jnp.array(c, float)
        self.coulomb = None if charges is None else DampedCoulomb.of(charges, alpha, cutoff)
        self.radius = jnp.array(cutoff, float)
        self.short_radius = None if short_cutoff is None else jnp.array(short_cutoff, float)
        self.shifts = jnp.array(a * np.exp(-short / rhos) - c / short**6, float) if shift else None
        self.walls, self.species = jnp.array(walls, float), species

    @classmethod
    def named(
        cls,
        name: str = "BKS",
        *,
        alpha: float = 0.2,
        cutoff: float = 10.0,
        short_cutoff: float | None = None,
        shift: bool = True,
    ) -> "Buckingham":
        """Published parameters: "BKS" for silica (`NAMED` has the source).

        Raises:
            ValueError: the name is unknown.
        """
        if name not in NAMED:
            raise ValueError(f"no named parameters {name!r}, only {', '.join(NAMED)}")
        return cls(
            **NAMED[name], alpha=alpha, cutoff=cutoff, short_cutoff=short_cutoff, shift=shift
        )

    smoother: ClassVar[str] = "pass shift=True"

    def reach(self) -> Float[Array, ""]:
        return self.radius

    def ends(self) -> Ends | None:
        if self.shifts is not None:
            return None
        short = self.radius if self.short_radius is None else self.short_radius
        a, rho, c, r = map(np.asarray, (self.A, self.rho, self.C, short))
        return Ends(np.full_like(a, r), a * np.exp(-r / rho) - c / r**6)

    def table(self, dtype: Any) -> "_BuckinghamParameters":
        def cast(x):
            return None if x is None else x.astype(dtype)

        short = cast(self.short_radius)
        walls = self.walls.astype(dtype)
        return _BuckinghamParameters(
            a=self.A.astype(dtype),
            rate=rounded(-1.0 / self.rho.astype(dtype)),
            c=self.C.astype(dtype),
            shift=cast(self.shifts),
            short2=None if short is None else rounded(short * short),
            wall2=rounded(walls * walls),
            coulomb=None if self.coulomb is None else self.coulomb.table(dtype),
        )

    def pair(self, r2, known):
        r = rounded(jnp.sqrt(r2))
        inverse = rounded(1.0 / r)
        energy, w = _short_range(r, inverse, known)
        if known.short2 is not None:
            is_beyond = r2 > known.short2
            energy, w = jnp.where(is_beyond, 0.0, energy), jnp.where(is_beyond, 0.0, w)
        if known.coulomb is not None:
            more_energy, more_w = _coulomb.pair(r, known.coulomb)
            energy, w = energy + more_energy, w + more_w
        return jnp.where(r2 > known.wall2, energy, jnp.nan), w

    def __call__(
        self, batch: Batch, neighbors: AbstractRowLists, *, stress: bool = False
    ) -> Properties:
        own = None
        if self.coulomb is not None:
            of_species = self.coulomb.own.astype(batch.positions.dtype)
            own = jnp.where(batch.index.has_system(), of_species[self.kinds(batch.numbers)], 0.0)
        return self.add_pairs(batch, neighbors, stress=stress, own_energies=own)


class _BuckinghamParameters(NamedTuple):
    """Parameters of `pair`: those of a pair, then those shared by all pairs."""

    a: Any
    rate: Any
    """−1/ρ."""
    c: Any
    shift: Any
    wall2: Any
    short2: Any
    coulomb: Any


def _short_range(r, inverse, known: _BuckinghamParameters):
    """A exp(−r/ρ) − C/r⁶ minus its value at the cutoff, and r times its derivative."""
    exponent = rounded(known.rate * r)
    repulsion = rounded(known.a * jnp.exp(exponent))
    inverse2 = inverse * inverse
    dispersion = rounded(known.c * (inverse2 * inverse2 * inverse2))
    energy = repulsion - dispersion
    energy = energy if known.shift is None else energy - known.shift
    return energy, rounded(repulsion * exponent) + rounded(6.0 * dispersion)


# --- on the host


def _check(a: np.ndarray, c: np.ndarray, cutoff: float, short: float) -> None:
    if (a < 0).any() or (c < 0).any():
        raise ValueError(f"A and C must not be negative, got {a.min()} and {c.min()}")
    if short > cutoff:
        raise ValueError(f"short_cutoff must be at most cutoff, got {short} and {cutoff}")


def _charges(q: Parameter, species: tuple[int, ...]) -> Float[np.ndarray, "species"]:
    pairs = [key for key in q if not isinstance(key, str)] if isinstance(q, Mapping) else []
    if pairs:
        raise ValueError(f"q has a number for {pairs[0]!r}: charges are per element")
    charges = per_element("q", q, species)
    if np.isnan(charges).any():
        lacking = chemical_symbols[species[int(np.argmax(np.isnan(charges)))]]
        raise ValueError(f"q has no value for {lacking}: add it, 0 if it has no charge")
    return charges


def _check_walls(walls: np.ndarray, species: tuple[int, ...]) -> None:
    if np.isnan(walls).any():
        pair = np.argwhere(np.isnan(walls))[0]
        name = "-".join(chemical_symbols[species[k]] for k in pair) if species else "of all atoms"
        raise ValueError(
            f"the pair {name} attracts at every distance and would fall together: give it A and rho"
        )


def _walls(
    slopes: Callable[[np.ndarray], Float[np.ndarray, "*distances species species"]], cutoff: float
) -> Float[np.ndarray, "species species"]:
    """The innermost maximum of each pair's energy in Å; 0 for a pair that repels innermost.

    NaN for a pair that attracts at all distances.

    Args:
        slopes: dE/dr of all pairs at distances [*distances, 1, 1].
    """
    scanned = np.geomspace(INNERMOST, FARTHEST * cutoff, N_SCANNED)
    attracts = slopes(scanned[:, None, None]) > 0
    first = np.argmin(attracts, 0)  # the first distance without attraction
    inside, outside = scanned[first - 1], scanned[first]
    for _ in range(N_HALVINGS):
        middle = (inside + outside) / 2
        is_inside = slopes(middle) > 0
        inside, outside = np.where(is_inside, middle, inside), np.where(is_inside, outside, middle)
    walls = np.where(attracts[0], inside, 0.0)
    return np.where(attracts.all(0), np.nan, walls)


INNERMOST, FARTHEST, N_SCANNED, N_HALVINGS = 1e-3, 0.9, 2000, 50
"""The search for a barrier: its start in Å, its end in cutoffs, its points and refinements."""
