"""The Morse potential, cut off like ASE's `MorsePotential`.

Reference: P. M. Morse, Phys. Rev. 34, 57 (1929), doi:10.1103/PhysRev.34.57.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from basinax.numerics.forks import check_process
from basinax.numerics.rounding import rounded
from basinax.potentials.folds.pair import AbstractPairPotential
from basinax.potentials.tables.species import Parameter, check_positive, per_pair, species_of


class Morse(AbstractPairPotential):
    """E(r) = ε[x² − 2x] with x = exp(ρ₀(1 − r/r₀)), times a quintic that ends it smoothly.

    The quintic falls from 1 at `rcut1` r₀ to 0 at `rcut2` r₀. With `rcut2=None` there is none, and
    all pairs of an open cluster count. There is no mixing rule: with numbers per element, those of
    each pair must be given too.

    >>> dimer = Morse(epsilon=0.0134784, rho0=5.849, r0=3.786)
    """

    epsilon: Float[Array, "species species"]
    """The depth of the well, in eV."""
    rho0: Float[Array, "species species"]
    """The steepness, without unit: the curvature of the well is 2ε(ρ₀/r₀)²."""
    r0: Float[Array, "species species"]
    """The distance of the minimum, in Å."""
    rcut1: Float[Array, "species species"]
    """Where the cutoff begins, in units of r₀."""
    rcut2: Float[Array, "species species"]
    """Where it ends, in units of r₀; inf where all pairs count."""
    species: tuple[int, ...] = eqx.field(static=True)
    is_cut: bool = eqx.field(static=True)
    """Whether there is a cutoff."""

    def __init__(
        self,
        epsilon: Parameter = 1.0,
        rho0: Parameter = 6.0,
        r0: Parameter = 1.0,
        rcut1: Parameter = 1.9,
        rcut2: Parameter | None = 2.7,
    ):
        """One number serves all atoms; a mapping has numbers per element and per pair.

        The defaults are ASE's.

        Raises:
            ValueError: a number is out of range, rcut1 is not below rcut2, a pair has no number,
                or a name is no element.
        """
        check_process()
        given = {"epsilon": epsilon, "rho0": rho0, "r0": r0, "rcut1": rcut1, "rcut2": rcut2}
        self.is_cut = rcut2 is not None
        if not self.is_cut:
            given |= {"rcut1": 1.0, "rcut2": 2.0}  # unused
        species = species_of(**given)
        none = np.full((max(len(species), 1),) * 2, np.nan)
        tables = {name: per_pair(name, value, species, none) for name, value in given.items()}
        check_positive(**{name: t for name, t in tables.items() if name != "epsilon"})
        if (tables["epsilon"] < 0).any():
            raise ValueError(f"epsilon must not be negative, got {tables['epsilon'].min()}")
        if not (tables["rcut1"] < tables["rcut2"]).all():
            raise ValueError(f"rcut1 must be below rcut2, got {rcut1} and {rcut2}")
        self.epsilon = jnp.array(tables["epsilon"], float)
        self.rho0, self.r0 = jnp.array(tables["rho0"], float), jnp.array(tables["r0"], float)
        further = 1.0 if self.is_cut else np.inf
        self.rcut1 = jnp.array(tables["rcut1"] * further, float)
        self.rcut2 = jnp.array(tables["rcut2"] * further, float)
        self.species = species

    def reach(self) -> Float[Array, "species species"]:
        return rounded(self.rcut2 * self.r0)

    def ends(self) -> None:
        return None

    def table(self, dtype: Any) -> "_MorseParameters":
        epsilon, rho0 = self.epsilon.astype(dtype), self.rho0.astype(dtype)
        inverse = rounded(1.0 / self.r0.astype(dtype))
        begin, end = self.rcut1.astype(dtype), self.rcut2.astype(dtype)
        known = _MorseParameters(
            epsilon=epsilon,
            rho0=rho0,
            inverse=inverse,
            steepness=rounded(rounded(-2.0 * epsilon) * rounded(rho0 * inverse)),
        )
        if not self.is_cut:
            return known
        return known._replace(
            end=end,
            width=rounded(1.0 / (end - begin)),
            slope=rounded(-30.0 * rounded(inverse / (end - begin))),
        )

    def pair(self, r2, known):
        r = rounded(jnp.sqrt(r2))
        reduced = rounded(r * known.inverse)
        x = jnp.exp(rounded(known.rho0 * (1.0 - reduced)))
        energy = rounded(known.epsilon * (x * (x - 2.0)))
        if not self.is_cut:
            slope = known.steepness * (x * (x - 1.0))
            return jnp.where(r2 > 0, energy, jnp.nan), slope * r
        # ASE's smooth step: s = 1 before the cutoff begins, 0 where it ends, s³(6s² − 15s + 10)
        s = jnp.clip(rounded((known.end - reduced) * known.width), 0.0, 1.0)
        factor = (s * s * s) * (rounded(s * (rounded(6.0 * s) - 15.0)) + 10.0)
        derivative = rounded(known.slope * ((s * s) * ((1.0 - s) * (1.0 - s))))
        slope = rounded((known.steepness * (x * (x - 1.0))) * factor) + rounded(energy * derivative)
        # Two atoms at one position have a finite energy but no direction of force: return NaN.
        energy = jnp.where(r2 > 0, energy * factor, jnp.nan)
        return energy, slope * r


class _MorseParameters(NamedTuple):
    """Parameters of `pair`; lengths in units of r₀."""

    epsilon: Any
    rho0: Any
    inverse: Any
    """1/r₀."""
    steepness: Any
    """−2ερ₀/r₀."""
    end: Any = None
    width: Any = None
    """One over the width of the cutoff."""
    slope: Any = None
    """−30/(r₀ times the width)."""
