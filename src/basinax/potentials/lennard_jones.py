"""The Lennard-Jones potential, with ASE's two ways of cutting it off.

Reference: J. E. Jones, Proc. R. Soc. Lond. A 106, 463 (1924), doi:10.1098/rspa.1924.0082.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from basinax.numerics.forks import check_process
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import require_switch
from basinax.potentials.folds.pair import AbstractPairPotential
from basinax.potentials.tables.species import (
    Parameter,
    check_positive,
    check_symbols,
    per_element,
    per_pair,
    species_of,
)

Mixing = Literal["lorentz-berthelot", "geometric", "waldman-hagler"]
Cutoff = Parameter | Literal["3 sigma"] | None

NAMED = {"Ne": (0.0031, 2.74), "Ar": (0.0104, 3.40), "Kr": (0.0140, 3.65), "Xe": (0.0200, 3.98)}
"""ε in eV and σ in Å of the solid noble gases: N. Bernardes, Phys. Rev. 112, 1534 (1958), as in
N. W. Ashcroft and N. D. Mermin, Solid State Physics (1976), table 20.2. The lattice that relaxes is
5 % smaller than the measured one for neon and 1 % for argon, which have zero-point motion."""


class LennardJones(AbstractPairPotential):
    """E(r) = 4ε[(σ/r)¹² − (σ/r)⁶], cut off like ASE's `LennardJones`, or not at all.

    With `smooth=False` the energy is shifted to 0 at the cutoff and the force jumps there; with
    `smooth=True` it is multiplied with a function that falls from 1 at `onset` to 0 at the cutoff,
    and energy and force are continuous. With `cutoff=None` all pairs of an open cluster count.

    >>> argon = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
    >>> mixture = LennardJones(
    ...     epsilon={"Ar": 0.0104, "Kr": 0.0140, ("Ar", "Kr"): 0.0119},
    ...     sigma={"Ar": 3.40, "Kr": 3.65},
    ... )
    >>> cluster = LennardJones(cutoff=None)
    """

    epsilon: Float[Array, "species species"]
    """The depth of the well, in eV."""
    sigma: Float[Array, "species species"]
    """Where the energy is 0, in Å; the minimum is at 2^(1/6) σ."""
    cutoffs: Float[Array, "species species"]
    """In Å; inf where all pairs count."""
    onsets: Float[Array, "species species"]
    """Where a smooth cutoff begins, in Å."""
    species: tuple[int, ...] = eqx.field(static=True)
    smooth: bool = eqx.field(static=True)

    def __init__(
        self,
        epsilon: Parameter = 1.0,
        sigma: Parameter = 1.0,
        cutoff: Cutoff = "3 sigma",
        *,
        smooth: bool = False,
        onset: Parameter | None = None,
        mixing: Mixing = "lorentz-berthelot",
    ):
        """One number serves all atoms; a mapping has numbers per element and per pair.

        Args:
            epsilon: in eV.
            sigma: in Å.
            cutoff: in Å, per pair; an element's is that of pairs of it. 3σ of the pair where not
                given (ASE's default). None: all pairs count, which no periodic structure can have.
            smooth: which of the two cutoffs.
            onset: in Å, per pair, for `smooth=True`; 0.66 cutoffs where not given (ASE's default).
            mixing: the rule for pairs without numbers of their own, from those of their elements:
                "lorentz-berthelot" (mean σ, geometric mean ε), "geometric" (both, as in OPLS) or
                "waldman-hagler" (sixth powers; J. Comput. Chem. 14, 1077 (1993)).

        Raises:
            ValueError: a number is out of range, an onset is not below its cutoff, or there is
                none, a pair has no number, or a name is no element.
        """
        check_process()
        if mixing not in _MIXED:
            raise ValueError(f"mixing must be one of {', '.join(_MIXED)}; got {mixing!r}")
        require_switch(smooth, "smooth")
        given = None if isinstance(cutoff, str) else cutoff
        species = species_of(epsilon=epsilon, sigma=sigma, cutoff=given, onset=onset)
        e, s = per_element("epsilon", epsilon, species), per_element("sigma", sigma, species)
        _check(e, s)  # before they are mixed: roots of negative numbers are none
        e, s = _MIXED[mixing](e[:, None], e[None], s[:, None], s[None])
        e = per_pair("epsilon", epsilon, species, e)
        s = per_pair("sigma", sigma, species, s)
        _check(e, s)
        cutoffs, onsets = _cut(cutoff, onset, species, s, smooth=smooth)
        self.epsilon, self.sigma = jnp.array(e, float), jnp.array(s, float)
        self.cutoffs, self.onsets = jnp.array(cutoffs, float), jnp.array(onsets, float)
        self.species, self.smooth = species, smooth

    @classmethod
    def named(
        cls,
        *elements: str,
        cutoff: Cutoff = "3 sigma",
        smooth: bool = False,
        mixing: Mixing = "lorentz-berthelot",
    ) -> "LennardJones":
        """Published parameters of noble gases (`NAMED` has the source); all four if none is named.

        Raises:
            ValueError: there are none for an element.
        """
        check_symbols(elements, NAMED)
        chosen = {element: NAMED[element] for element in elements or NAMED}
        return cls(
            {element: epsilon for element, (epsilon, _) in chosen.items()},
            {element: sigma for element, (_, sigma) in chosen.items()},
            cutoff,
            smooth=smooth,
            mixing=mixing,
        )

    def reach(self) -> Float[Array, "species species"]:
        return self.cutoffs

    def ends(self) -> None:
        return None

    def table(self, dtype: Any) -> "_LennardJonesParameters":
        epsilon, sigma = self.epsilon.astype(dtype), self.sigma.astype(dtype)
        cutoffs, onsets = self.cutoffs.astype(dtype), self.onsets.astype(dtype)
        known = _LennardJonesParameters(
            sigma6=_cube(rounded(sigma * sigma)),
            epsilon4=4.0 * epsilon,
            epsilon24=rounded(-24.0 * epsilon),
        )
        if not self.smooth:
            return known._replace(shift=_cube(_square(rounded(sigma / cutoffs))))
        begin, end = rounded(onsets * onsets), rounded(cutoffs * cutoffs)
        cubed = rounded(1.0 / _cube(end - begin))
        return known._replace(begin=begin, end=end, cubed=cubed, cubed12=rounded(-12.0 * cubed))

    def pair(self, r2, known):
        inverse = 1.0 / r2
        c6 = rounded(known.sigma6 * (inverse * inverse * inverse))
        # r dE/dr = −24ε (2c₆² − c₆), with c₆ = (σ/r)⁶
        w = known.epsilon24 * (c6 * (2.0 * c6 - 1.0))
        if not self.smooth:
            # Shifted: 4ε(c₆² − c₆) minus its value at the cutoff, where c₆ = q, equals 4ε(c₆ −
            # q)(c₆ − (1 − q)), which has no product to round.
            q = known.shift
            return known.epsilon4 * ((c6 - q) * (c6 - (1.0 - q))), w
        energy = rounded(known.epsilon4 * (c6 * (c6 - 1.0)))
        # Smooth: with b and e the squared onset and cutoff, (e − r²)²(e + 2r² − 3b)/(e − b)³
        left, past = known.end - r2, r2 - known.begin
        factor = (left * known.cubed) * (left * ((known.end - known.begin) + 2.0 * past))
        slope = (left * known.cubed12) * past
        inside = past < 0
        w_cut = rounded(w * factor) + rounded((slope * r2) * energy)
        return jnp.where(inside, energy, energy * factor), jnp.where(inside, w, w_cut)


class _LennardJonesParameters(NamedTuple):
    """Parameters of `pair`: σ⁶, 4ε, −24ε, then those of one of the two cutoffs."""

    sigma6: Any
    epsilon4: Any
    epsilon24: Any
    shift: Any = None
    """(σ/cutoff)⁶."""
    begin: Any = None
    end: Any = None
    """The squared onset b and cutoff e."""
    cubed: Any = None
    cubed12: Any = None
    """1/(e − b)³, and −12 times that."""


def _cut(
    cutoff: Cutoff,
    onset: Parameter | None,
    species: tuple[int, ...],
    sigma: np.ndarray,
    *,
    smooth: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Cutoffs and onsets of pairs; inf where all count."""
    if cutoff is None:
        if smooth or onset is not None:
            raise ValueError("smooth=True and onset need a cutoff, got cutoff=None: all pairs")
        return np.full_like(sigma, np.inf), np.full_like(sigma, np.inf)
    if isinstance(cutoff, str) and cutoff != "3 sigma":
        raise ValueError(f"cutoff must be a number, a mapping, None or '3 sigma', got {cutoff!r}")
    given = None if isinstance(cutoff, str) else cutoff
    cutoffs = per_pair("cutoff", given, species, 3 * sigma)
    onsets = per_pair("onset", onset, species, 0.66 * cutoffs)
    check_positive(cutoff=cutoffs, onset=onsets)
    if not (onsets < cutoffs).all():
        raise ValueError(f"onset must be below cutoff: {onsets.tolist()}, {cutoffs.tolist()}")
    return cutoffs, onsets


def _check(epsilon: np.ndarray, sigma: np.ndarray) -> None:
    """Raise ValueError for a number that is out of range; NaN where there is none."""
    check_positive(sigma=sigma[~np.isnan(sigma)])
    if (epsilon < 0).any():
        raise ValueError(f"epsilon must not be negative, got {np.nanmin(epsilon)}")


def _square(x):
    return rounded(x * x)


def _cube(x):
    return rounded(x * x * x)


def _lorentz_berthelot(e1, e2, s1, s2):
    return np.sqrt(e1 * e2), (s1 + s2) / 2


def _geometric(e1, e2, s1, s2):
    return np.sqrt(e1 * e2), np.sqrt(s1 * s2)


def _waldman_hagler(e1, e2, s1, s2):
    sixth = (s1**6 + s2**6) / 2
    return np.sqrt(e1 * e2) * s1**3 * s2**3 / sixth, sixth ** (1 / 6)


_MIXED = {
    "lorentz-berthelot": _lorentz_berthelot,
    "geometric": _geometric,
    "waldman-hagler": _waldman_hagler,
}
