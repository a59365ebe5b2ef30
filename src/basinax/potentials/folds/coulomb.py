"""Charges by the damped shifted force: Coulomb's law in real space, ended at a cutoff.

E = k qᵢqⱼ [erfc(αr)/r − e + fr], where e and f make energy and force of a pair end at 0: equation
18 of C. J. Fennell and J. D. Gezelter, J. Chem. Phys. 124, 234104 (2006), doi:10.1063/1.2206581.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase.units import Bohr, Hartree
from jaxtyping import Array, Float

from basinax.numerics.erfc import erfc
from basinax.numerics.rounding import rounded

COULOMB = Hartree * Bohr
"""k = e²/(4πε₀), in eV Å."""

Rows = Float[Array, "rows"]


class DampedCoulomb(eqx.Module):
    """The charges of species, and the end of their interaction; made by `DampedCoulomb.of`."""

    charges: Float[Array, "species"]
    """The charges in units of e."""
    own: Float[Array, "species"]
    """The self energy of an atom in eV, −k q²(e/2 + α/√π), as in `pair_style coul/dsf` of LAMMPS:
    half of the excess of a pair of its own charge over k q²/r as r goes to 0."""
    alpha: Float[Array, ""]
    """The damping, in 1/Å."""
    level: Float[Array, ""]
    """e, in 1/Å."""
    pull: Float[Array, ""]
    """f, in 1/Å²."""

    @classmethod
    def of(cls, charges: Float[np.ndarray, "species"], alpha: float, cutoff: float):
        x = alpha * cutoff
        slope = 2.0 * alpha / math.sqrt(math.pi)
        pull = math.erfc(x) / cutoff**2 + slope * math.exp(-x * x) / cutoff
        level = math.erfc(x) / cutoff + pull * cutoff
        own = -COULOMB * charges**2 * (level + slope) / 2.0
        return cls(*(jnp.array(value, float) for value in (charges, own, alpha, level, pull)))

    def table(self, dtype: Any) -> "Known":
        q, alpha = self.charges.astype(dtype), self.alpha.astype(dtype)
        return Known(
            product=rounded(rounded(COULOMB * q)[:, None] * q[None]),
            alpha=alpha,
            slope=rounded(2.0 / math.sqrt(math.pi) * alpha),
            level=self.level.astype(dtype),
            pull=self.pull.astype(dtype),
        )


class Known(NamedTuple):
    """Parameters of `pair`: k qᵢqⱼ of the pair, then those shared by all pairs."""

    product: Any
    alpha: Any
    slope: Any
    """2α/√π."""
    level: Any
    pull: Any


def pair(r: Rows, known: Known) -> tuple[Rows, Rows]:
    """The energy of a pair and r dE/dr, both rounded and in eV, from r in Å."""
    left, gaussian = erfc(rounded(known.alpha * r))
    # XLA stores a quotient, but would compute a product and its inputs for both readers.
    bare, pulled = rounded(left / r), rounded(known.pull * r)
    energy = rounded(known.product * ((bare - known.level) + pulled))
    w = rounded(known.product * ((pulled - bare) - rounded(known.slope * gaussian)))
    return energy, w


def damped_slopes(
    r: np.ndarray, charges: np.ndarray, alpha: float, cutoff: float
) -> Float[np.ndarray, "*distances species species"]:
    """dE/dr in eV/Å at r in Å, on the host; the axes of `r` end in two of length 1 or species."""

    def bare(r):
        x = alpha * r
        return _erfc(x) / r**2 + 2 * alpha / math.sqrt(math.pi) * np.exp(-x * x) / r

    return COULOMB * np.outer(charges, charges) * (bare(np.asarray(cutoff)) - bare(r))


_erfc = np.vectorize(math.erfc, otypes=[float])
