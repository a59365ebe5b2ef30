"""The three-body potential of tetrahedral semiconductors of Stillinger and Weber.

Reference: F. H. Stillinger and T. A. Weber, Phys. Rev. B 31, 5262 (1985),
doi:10.1103/PhysRevB.31.5262; with parameters per triplet of elements as in LAMMPS.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from basinax.numerics.forks import check_process
from basinax.numerics.rounding import rounded
from basinax.potentials.folds.fold import dot
from basinax.potentials.folds.many_body import (
    AbstractManyBodyPotential,
    Surroundings,
    at,
    looked_up,
    over_others,
    put_all,
)
from basinax.potentials.tables.files import from_file
from basinax.potentials.tables.species import check_symbols
from basinax.potentials.tables.triplets import (
    Triplet,
    check_range,
    narrowed,
    read_triplets,
    tables_of,
)


class StillingerWeberTriplet(NamedTuple):
    """A file's parameters of an atom and two neighbours, in its order; `tol` has no effect."""

    epsilon: float
    """In eV."""
    sigma: float
    """In Å."""
    a: float
    """The cutoff in units of sigma."""
    lambda_: float
    gamma: float
    cos_theta0: float
    A: float
    B: float
    p: float
    q: float
    tol: float = 0.0


_SHAPE = {"a": 1.80, "gamma": 1.20, "cos_theta0": -1 / 3, "A": 7.049556277, "B": 0.6022245584}

NAMED = {
    "Si": StillingerWeberTriplet(epsilon=2.1683, sigma=2.0951, lambda_=21.0, p=4, q=0, **_SHAPE),
    "Ge": StillingerWeberTriplet(epsilon=1.93, sigma=2.181, lambda_=31.0, p=4, q=0, **_SHAPE),
}
"""Silicon of the reference, with the unit of energy (50 kcal/mol) in eV; germanium of K. Ding and
H. C. Andersen, Phys. Rev. B 34, 6987 (1986), doi:10.1103/PhysRevB.34.6987."""


class StillingerWeber(AbstractManyBodyPotential):
    """E = Σᵢ Σⱼ ½ φ(rᵢⱼ) + Σᵢ Σⱼ₍ₖ ε λ (cos θⱼᵢₖ − cos θ₀)² h(rᵢⱼ) h(rᵢₖ)

    with φ(r) = Aε [B(σ/r)ᵖ − (σ/r)^q] exp(σ/(r − aσ)) and h(r) = exp(γσ/(r − aσ)), both 0 from the
    cutoff aσ on. φ and h have the parameters of the pair (i, j), those of the triplet (i, j, j),
    the rest those of (i, j, k). An atom's own energy is half of φ of its pairs, with its own
    parameters, and that of all angles at it.

    >>> silicon = StillingerWeber.named("Si")
    """

    pairs: "_Pair"
    """[species, species, 1], or of one entry where it does not depend on an axis."""
    angles: "_StillingerWeberAngle"
    """[species, species, species], or likewise."""
    cutoffs: Float[Array, "species species"]
    species: tuple[int, ...] = eqx.field(static=True)
    powers: tuple[int, int] | None = eqx.field(static=True)
    """p and q, where they are small integers and the same for all."""

    def __init__(self, triplets: Mapping[Triplet, StillingerWeberTriplet]):
        """Parameters of all triplets over the elements that occur: first the atom, then neighbours.

        Raises:
            ValueError: a triplet is missing, an element is unknown, a number is out of range, or
                the angle of two neighbours has other parameters than with them exchanged.
        """
        check_process()
        species, p = tables_of(triplets)
        pair = {name: np.diagonal(t, axis1=1, axis2=2) for name, t in p.items()}
        _check(species, p, pair)
        cutoffs = pair["a"] * pair["sigma"]
        small = [np.unique(pair[name]) for name in ("p", "q")]
        is_small = all(len(x) == 1 and x[0] in range(13) for x in small)
        self.powers = (int(small[0][0]), int(small[1][0])) if is_small else None
        pairs = _Pair(
            scale=pair["A"] * pair["epsilon"],
            b=pair["B"],
            p=pair["p"],
            q=pair["q"],
            sigma=pair["sigma"],
            gamma_sigma=pair["gamma"] * pair["sigma"],
            end=cutoffs,
        )
        angles = _StillingerWeberAngle(p["epsilon"] * p["lambda_"], p["cos_theta0"])
        self.pairs = jax.tree.map(lambda t: narrowed(t[:, :, None]), pairs)
        self.angles = jax.tree.map(narrowed, angles)
        self.cutoffs = jnp.array(np.maximum(cutoffs, cutoffs.T), float)
        self.species = species

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], elements: Sequence[str] | None = None
    ) -> "StillingerWeber":
        """The potential of a file in the format of LAMMPS (`.sw`), in eV and Å.

        Args:
            elements: the ones to have; all of the file if None.

        Raises:
            ValueError: the file breaks the format, or its units are not metal; names the file and
                the line. Or as above.
            OSError: there is no such file.
        """
        triplets = read_triplets(path, StillingerWeberTriplet, elements)
        with from_file(Path(path)):
            return cls(triplets)

    @classmethod
    def named(cls, *elements: str) -> "StillingerWeber":
        """Published parameters of an element (`NAMED` has the sources).

        Raises:
            ValueError: there are none, or more than one element is named.
        """
        check_symbols(elements)
        if len(elements) != 1 or elements[0] not in NAMED:
            got = ", ".join(map(repr, elements)) or "nothing"
            raise ValueError(f"named parameters are those of one of {', '.join(NAMED)}, got {got}")
        (element,) = elements
        return cls({(element, element, element): NAMED[element]})

    def reach(self) -> Float[Array, "species species"]:
        return self.cutoffs

    def atoms(self, near: Surroundings):
        dtype = near.distances.dtype
        pairs, angles = (
            looked_up(jax.tree.map(lambda t: t.astype(dtype), tables), near)
            for tables in (self.pairs, self.angles)
        )
        nothing, (x, y, z) = jnp.zeros_like(near.distances[0]), near.vectors

        # Kept per entry: h and h' (`legs`, `slopes`), φ'/2 (`radial`) and the unit vector.
        def add_entry(entry, carry):
            energies, (legs, slopes, radial, *units) = carry
            r, is_there = at(near.distances, entry), near.is_there(entry)
            phi, dphi, leg, slope = self._of_pair(r, pairs(near.kinds_at(entry)), is_there)
            unit = (at(component, entry) / r for component in (x, y, z))
            kept = (leg, slope, 0.5 * dphi, *unit)
            return energies + 0.5 * phi, put_all((legs, slopes, radial, *units), entry, kept)

        energies, kept = lax.fori_loop(0, near.n, add_entry, (nothing, near.zeros(6)))
        legs, slopes, radial, *units = kept

        def add_angles(entry, carry):
            energies, gradients = carry
            unit, kind = [at(u, entry) for u in units], near.kinds_at(entry)
            leg, r = at(legs, entry), at(near.distances, entry)

            def angle(other):
                known = angles(kind, near.kinds_at(other))
                unit_other = [at(u, other) for u in units]
                s = dot(unit, unit_other) - known.cos_theta0
                strained = rounded(known.strength * (s * at(legs, other)))
                # XLA stores a quotient for all its readers.
                pull = rounded(2.0 * leg * strained) / r
                return rounded(strained * s), *(rounded(pull * u) for u in unit_other)

            bent, *pulls = over_others(near, entry, angle, 4)
            along = at(radial, entry) + rounded(at(slopes, entry) * bent) - dot(unit, pulls)
            gradient = [rounded(along * u) + p for u, p in zip(unit, pulls, strict=True)]
            (energy,) = near.only_there(entry, [0.5 * rounded(leg * bent)])
            return energies + energy, put_all(gradients, entry, gradient)

        return lax.fori_loop(0, near.n, add_angles, (energies, near.zeros(3)))

    def _of_pair(self, r, known: "_Pair", is_there):
        """φ and its derivative in eV/Å, h and its derivative in 1/Å; 0 from the cutoff on."""
        inside = is_there & (r < known.end)
        # 1/(r − aσ), and its square
        pole = rounded(1.0 / jnp.where(inside, r - known.end, -1.0))
        pole2 = rounded(pole * pole)
        x = rounded(known.sigma / r)
        if self.powers is None:
            log = jnp.log(x)
            high, low = (jnp.exp(rounded(n * log)) for n in (known.p, known.q))
            p, q = known.p, known.q
        else:
            p, q = self.powers
            high, low = power(x, p), power(x, q)
        high = rounded(known.b * high)
        end = rounded(known.scale * jnp.exp(rounded(known.sigma * pole)))
        shape = high - low
        phi = rounded(end * shape)
        # φ'/end = (−p B(σ/r)ᵖ + q (σ/r)^q)/r − (B(σ/r)ᵖ − (σ/r)^q) σ/(r − aσ)²
        fall = rounded((rounded(q * low) - rounded(p * high)) / r)
        dphi = rounded(end * (fall - rounded(shape * (known.sigma * pole2))))
        h = jnp.exp(rounded(known.gamma_sigma * pole))
        dh = rounded(-h * (known.gamma_sigma * pole2))
        return tuple(jnp.where(inside, value, 0.0) for value in (phi, dphi, h, dh))


class _Pair(NamedTuple):
    """Parameters of an atom and a neighbour."""

    scale: Any
    """Aε, in eV."""
    b: Any
    p: Any
    q: Any
    sigma: Any
    gamma_sigma: Any
    """γσ, in Å."""
    end: Any
    """The cutoff aσ, in Å."""


class _StillingerWeberAngle(NamedTuple):
    """Parameters of an atom and two neighbours."""

    strength: Any
    """ελ, in eV."""
    cos_theta0: Any


def power(x, n: int):
    """xⁿ, rounded; by repeated squares."""
    if n == 0:
        return jnp.ones_like(x)
    half = power(x, n // 2) if n > 1 else None
    if half is None:
        return x
    square = rounded(half * half)
    return rounded(square * x) if n % 2 else square


def _check(species, p, pair) -> None:
    for name in ("epsilon", "sigma", "a", "gamma", "p", "q"):
        what = f"{name} must be 0 or more"
        check_range(species, pair[name], pair[name] >= 0, what)
    if not (pair["a"] * pair["sigma"]).max() > 0:
        raise ValueError("a and sigma must be positive for one pair of elements at least")
    for name in ("epsilon", "lambda_", "cos_theta0"):
        is_same = p[name] == p[name].swapaxes(1, 2)
        what = f"{name.rstrip('_')} must be the same with the two neighbours exchanged"
        check_range(species, p[name], is_same, what)
