"""The bond-order potential of Tersoff for silicon, carbon, germanium and their mixtures.

Reference: J. Tersoff, Phys. Rev. B 37, 6991 (1988), doi:10.1103/PhysRevB.37.6991, and 39, 5566
(1989), doi:10.1103/PhysRevB.39.5566; with parameters per triplet of elements as in LAMMPS.
"""

import itertools
import math
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
    chosen,
    looked_up,
    over_others,
    put,
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

LARGEST_EXPONENT = 69.0776
"""Where exp((λ₃Δr)ᵐ) stops growing: at 1e30, as in LAMMPS and ASE."""


class TersoffTriplet(NamedTuple):
    """The parameters of a file for an atom and two neighbours, in its order."""

    m: float
    """1 or 3."""
    gamma: float
    lambda3: float
    """In 1/Å."""
    c: float
    d: float
    cos_theta0: float
    n: float
    beta: float
    lambda2: float
    """In 1/Å."""
    B: float
    """In eV."""
    R: float
    """Where the cutoff function is a half, in Å."""
    D: float
    """Half its width, in Å."""
    lambda1: float
    """In 1/Å."""
    A: float
    """In eV."""


SILICON = TersoffTriplet(
    m=3,
    gamma=1,
    lambda3=1.7322,
    c=1.0039e5,
    d=16.218,
    cos_theta0=-0.59826,
    n=0.78734,
    beta=1.0999e-6,
    lambda2=1.7322,
    B=471.18,
    R=2.85,
    D=0.15,
    lambda1=2.4799,
    A=1830.8,
)
"""Silicon of J. Tersoff, Phys. Rev. B 38, 9902 (1988), doi:10.1103/PhysRevB.38.9902."""


class TersoffElement(NamedTuple):
    """The published parameters of an element of a mixture, in eV and Å."""

    A: float
    B: float
    lambda_: float
    mu: float
    beta: float
    n: float
    c: float
    d: float
    h: float
    R: float
    """Where its cutoff begins, and where it ends."""
    S: float


NAMED = {
    "C": TersoffElement(
        1393.6, 346.74, 3.4879, 2.2119, 1.5724e-7, 0.72751, 38049.0, 4.3484, -0.57058, 1.8, 2.1
    ),
    "Si": TersoffElement(
        1830.8, 471.18, 2.4799, 1.7322, 1.1e-6, 0.78734, 100390.0, 16.217, -0.59825, 2.7, 3.0
    ),
    "Ge": TersoffElement(
        1769.0, 419.23, 2.4451, 1.7047, 9.0166e-7, 0.75627, 106430.0, 15.652, -0.43884, 2.8, 3.1
    ),
}
"""Carbon of J. Tersoff, Phys. Rev. Lett. 61, 2879 (1988), doi:10.1103/PhysRevLett.61.2879, and the
others of Phys. Rev. B 39, 5566 (1989), doi:10.1103/PhysRevB.39.5566, with the erratum in 41, 3248
(1990). The digits of carbon's B and d are those of LAMMPS's `SiC_1989.tersoff`, which has it."""

CHI = {frozenset(["C", "Si"]): 0.9776, frozenset(["Si", "Ge"]): 1.00061}
"""χ of pairs of elements, of the same papers."""


class Tersoff(AbstractManyBodyPotential):
    """E = ½ Σᵢ Σⱼ f(rᵢⱼ) [A exp(−λ₁rᵢⱼ) − bᵢⱼ B exp(−λ₂rᵢⱼ)] with bᵢⱼ = (1 + (βζᵢⱼ)ⁿ)^(−1/2n)

    and ζᵢⱼ = Σₖ f(rᵢₖ) g(θⱼᵢₖ) exp((λ₃(rᵢⱼ − rᵢₖ))ᵐ), g(θ) = γ[1 + c²/d² − c²/(d² + (h − cos θ)²)],
    where f falls like a sine from 1 at R − D to 0 at R + D. ζ has the parameters of the triplet
    (i, j, k), all else those of (i, j, j). An atom's own energy is half of each of its bonds, with
    its own parameters and its own b; ASE gives a half of that to the neighbour.

    >>> silicon, carbide = Tersoff.named("Si"), Tersoff.named("Si", "C")
    """

    bonds: "_Bond"
    """[species, species, 1], or of one entry where it does not depend on an axis."""
    angles: "_TersoffAngle"
    """[species, species, species], or likewise."""
    ramps: "_Ramp"
    """[species, species, species], or likewise."""
    cutoffs: Float[Array, "species species"]
    species: tuple[int, ...] = eqx.field(static=True)
    power: int | None = eqx.field(static=True)
    """m where it is the same for all triplets, 0 where λ₃ is 0 for all."""

    def __init__(self, triplets: Mapping[Triplet, TersoffTriplet]):
        """Parameters of all triplets over the elements that occur: first the atom, then neighbours.

        Raises:
            ValueError: a triplet is missing, an element is unknown, or a number is out of range.
        """
        check_process()
        species, p = tables_of(triplets)
        pair = {name: np.diagonal(t, axis1=1, axis2=2)[:, :, None] for name, t in p.items()}
        _check(species, p, pair)
        d = np.where(p["c"] > 0, p["d"], 1.0)
        bend = np.where(p["c"] > 0, p["c"], 0.0) / d
        bonds = _Bond(
            beta=pair["beta"],
            n=pair["n"],
            rate=0.5 / pair["n"],
            attraction=pair["B"],
            lambda2=pair["lambda2"],
            repulsion=pair["A"],
            lambda1=pair["lambda1"],
        )
        angles = _TersoffAngle(
            gamma=p["gamma"],
            bend=p["gamma"] * bend**2,
            d2=d**2,
            slope=2.0 * p["gamma"] * p["c"] ** 2,
            cos_theta0=p["cos_theta0"],
            lambda3=p["lambda3"],
            is_cubic=(p["m"] == 3.0).astype(float),
        )
        rate = np.where(p["D"] > 0, 0.5 * math.pi / np.where(p["D"] > 0, p["D"], 1.0), 0.0)
        ramps = _Ramp(begin=p["R"] - p["D"], middle=p["R"], end=p["R"] + p["D"], rate=rate)
        self.bonds, self.angles = jax.tree.map(narrowed, (bonds, angles))
        self.ramps = narrowed(ramps)
        reach = (p["R"] + p["D"]).max(1)
        self.cutoffs = jnp.array(np.maximum(reach, reach.T), float)
        self.species = species
        m = np.unique(p["m"])
        self.power = 0 if not p["lambda3"].any() else int(m[0]) if len(m) == 1 else None

    @classmethod
    def read(cls, path: str | os.PathLike[str], elements: Sequence[str] | None = None) -> "Tersoff":
        """The potential of a file in the format of LAMMPS (`.tersoff`), in eV and Å.

        Args:
            elements: the ones to have; all of the file if None.

        Raises:
            ValueError: the file breaks the format, or its units are not metal; names the file and
                the line. Or as above.
            OSError: there is no such file.
        """
        triplets = read_triplets(path, TersoffTriplet, elements)
        with from_file(Path(path)):
            return cls(triplets)

    @classmethod
    def named(cls, *elements: str) -> "Tersoff":
        """Published parameters: of silicon, carbon or germanium alone, or of a mixture.

        Silicon alone has those of 1988 (`SILICON`), which differ from the mixture's.

        Raises:
            ValueError: there are none for an element, or for a pair of them.
        """
        check_symbols(elements, NAMED)
        if not elements:
            raise ValueError(f"name at least one of {', '.join(NAMED)}")
        if set(elements) == {"Si"}:
            return cls({("Si", "Si", "Si"): SILICON})
        triplets = itertools.product(elements, elements, elements)
        return cls({key: _mixed(*key) for key in triplets})

    def reach(self) -> Float[Array, "species species"]:
        return self.cutoffs

    def atoms(self, near: Surroundings):
        tables = (self.bonds, self.angles, self.ramps)
        tables = jax.tree.map(lambda t: t.astype(near.distances.dtype), tables)
        known = _TersoffParameters(*(looked_up(t, near) for t in tables))
        units, f, slopes = self._ramped(near, known)
        energies, radial, pulls = self._bonded(near, known, units, f, slopes)
        return energies, self._gradients(near, known, units, f, slopes, radial, pulls)

    def _ramped(self, near: Surroundings, known: "_TersoffParameters"):
        """Unit vectors to neighbours, f and f' in 1/Å, for each kind of bond that they may bend."""
        n_kinds = self.ramps.end.shape[1]

        def add_entry(entry, carry):
            units, f, slopes = carry
            r, is_there = at(near.distances, entry), near.is_there(entry)
            units = put_all(units, entry, [at(d, entry) / r for d in near.vectors])
            ramps = [
                _ramp(r, known.ramps(second, near.kinds_at(entry)), is_there)
                for second in range(n_kinds)
            ]
            f = put_all(f, entry, [value for value, _ in ramps])
            return units, f, put_all(slopes, entry, [slope for _, slope in ramps])

        start = near.zeros(3), near.zeros(n_kinds), near.zeros(n_kinds)
        return lax.fori_loop(0, near.n, add_entry, start)

    def _bonded(self, near: Surroundings, known: "_TersoffParameters", units, f, slopes):
        """Energies of atoms, and of each bond the derivatives by its length alone and by its ζ."""

        def add_bond(entry, carry):
            energies, radial, pulls = carry
            unit, r = [at(u, entry) for u in units], at(near.distances, entry)
            kind = near.kinds_at(entry)

            def bend(other):
                angle = known.angles(kind, near.kinds_at(other))
                g, _ = _bending(dot(unit, [at(u, other) for u in units]), angle)
                weight, _ = self._weight(r - at(near.distances, other), angle)
                return (rounded(chosen(f, other, kind) * (g * weight)),)

            (zeta,) = over_others(near, entry, bend, 1)
            own = chosen(f, entry, kind), chosen(slopes, entry, kind)
            energy, along, pull = _bond(r, zeta, *own, known.bonds(kind))
            (energy,) = near.only_there(entry, [energy])
            return energies + energy, put(radial, entry, along), put(pulls, entry, pull)

        start = (jnp.zeros_like(near.distances[0]), *near.zeros(2))
        return lax.fori_loop(0, near.n, add_bond, start)

    def _gradients(
        self, near: Surroundings, known: "_TersoffParameters", units, f, slopes, radial, pulls
    ):
        """The derivatives of the energies by the vectors to neighbours, in eV/Å."""

        def add_entry(entry, gradients):
            unit, r = [at(u, entry) for u in units], at(near.distances, entry)
            kind, pull = near.kinds_at(entry), at(pulls, entry)

            def bend(other):
                unit_other, r_other = [at(u, other) for u in units], at(near.distances, other)
                kind_other, pull_other = near.kinds_at(other), at(pulls, other)
                cosine = dot(unit, unit_other)
                # `bent` weights the bend of this bond by the other, `bends` that of the other by
                # this one; both depend on this bond's vector.
                angle = known.angles(kind, kind_other)
                g, dg = _bending(cosine, angle)
                weight, dweight = self._weight(r - r_other, angle)
                if any(t.shape[1:] != (1, 1) for t in self.angles):
                    angle = known.angles(kind_other, kind)
                back = _bending(cosine, angle)
                weight_back, dweight_back = self._weight(r_other - r, angle)
                bent = pull * chosen(f, other, kind)
                bends = pull_other * chosen(f, entry, kind_other)
                along = rounded(bent * (g * dweight)) - rounded(bends * (back[0] * dweight_back))
                slope = pull_other * chosen(slopes, entry, kind_other)
                along = along + rounded(slope * (back[0] * weight_back))
                turn = rounded(bent * (dg * weight)) + rounded(bends * (back[1] * weight_back))
                # XLA stores a quotient for all its readers.
                turn = turn / r
                return along, *(rounded(turn * u) for u in unit_other)

            along, *across = over_others(near, entry, bend, 4)
            along = at(radial, entry) + along - dot(unit, across)
            gradient = [rounded(along * u) + a for u, a in zip(unit, across, strict=True)]
            return put_all(gradients, entry, gradient)

        return lax.fori_loop(0, near.n, add_entry, near.zeros(3))

    def _weight(self, dr, angle: "_TersoffAngle"):
        """exp((λ₃Δr)ᵐ) and its derivative in 1/Å."""
        if self.power == 0:
            return jnp.ones_like(dr), jnp.zeros_like(dr)
        x = rounded(angle.lambda3 * dr)
        cube, square = rounded(x * x * x), rounded(3.0 * angle.lambda3 * (x * x))
        if self.power == 1:
            exponent, slope = x, angle.lambda3
        elif self.power == 3:
            exponent, slope = cube, square
        else:
            exponent = jnp.where(angle.is_cubic > 0, cube, x)
            slope = jnp.where(angle.is_cubic > 0, square, angle.lambda3)
        weight = jnp.exp(jnp.minimum(exponent, LARGEST_EXPONENT))
        return weight, jnp.where(exponent > LARGEST_EXPONENT, 0.0, slope * weight)


class _Bond(NamedTuple):
    """Parameters of an atom and a neighbour."""

    beta: Any
    n: Any
    rate: Any
    """1/(2n)."""
    attraction: Any
    """B, in eV."""
    lambda2: Any
    repulsion: Any
    """A, in eV."""
    lambda1: Any


class _TersoffAngle(NamedTuple):
    """Parameters of an atom and two neighbours."""

    gamma: Any
    bend: Any
    """γc²/d²."""
    d2: Any
    """d²."""
    slope: Any
    """2γc²."""
    cos_theta0: Any
    lambda3: Any
    is_cubic: Any
    """1 where m is 3."""


class _Ramp(NamedTuple):
    """Where the cutoff function falls, in Å, and π/(2D)."""

    begin: Any
    middle: Any
    end: Any
    rate: Any


class _TersoffParameters(NamedTuple):
    """Functions from the kinds of neighbours to their parameters."""

    bonds: Any
    angles: Any
    ramps: Any


def _ramp(r, known: _Ramp, is_there):
    """f and f' in 1/Å; 0 where there is no neighbour."""
    x = rounded(known.rate * (r - known.middle))
    f = jnp.where(r < known.begin, 1.0, 0.5 * (1.0 - jnp.sin(x)))
    slope = jnp.where(r < known.begin, 0.0, rounded(-0.5 * known.rate * jnp.cos(x)))
    inside = is_there & ~(r > known.end)
    return jnp.where(inside, f, 0.0), jnp.where(inside, slope, 0.0)


def _bending(cosine, known: _TersoffAngle):
    """g and its derivative by the cosine."""
    x = known.cos_theta0 - cosine
    square = rounded(x * x)
    inverse = rounded(1.0 / (known.d2 + square))
    # γ[1 + c²/d² − c²/(d² + x²)] = γ + γ c²/d² x²/(d² + x²), in which no digits cancel
    g = known.gamma + rounded(known.bend * (square * inverse))
    return g, rounded(-known.slope * (x * (inverse * inverse)))


def _bond(r, zeta, f, slope, known: _Bond):
    """The energy of a bond in eV, and its derivatives by r in eV/Å and by ζ."""
    # b = (1 + (βζ)ⁿ)^(−1/2n), by log(1 + eˣ) = max(x, 0) + log(1 + e^−|x|)
    # An atom with one neighbour has ζ = 0, where the derivative of the logarithm is infinite.
    scaled = rounded(known.beta * zeta)
    is_free = scaled == 0
    log = jnp.where(is_free, -jnp.inf, jnp.log(jnp.where(is_free, 1.0, scaled)))
    log = rounded(known.n * log)
    least = jnp.exp(-jnp.abs(log))
    order = jnp.exp(rounded(-known.rate * (jnp.maximum(log, 0.0) + jnp.log1p(least))))
    # db/dζ = −b/(2ζ) (βζ)ⁿ/(1 + (βζ)ⁿ)
    share = rounded(jnp.where(log > 0, 1.0, least) / (1.0 + least))
    weakening = jnp.where(zeta > 0, rounded(order * share) / jnp.where(zeta > 0, zeta, 1.0), 0.0)
    repulsion = rounded(known.repulsion * jnp.exp(rounded(-known.lambda1 * r)))
    attraction = rounded(known.attraction * jnp.exp(rounded(-known.lambda2 * r)))
    bonding = rounded(order * attraction)
    by_r = rounded(slope * (repulsion - bonding)) + rounded(
        f * (rounded(known.lambda2 * bonding) - rounded(known.lambda1 * repulsion))
    )
    return (
        0.5 * rounded(f * (repulsion - bonding)),
        0.5 * by_r,
        0.25 * rounded(f * (attraction * rounded(weakening))),
    )


def _check(species, p, pair) -> None:
    for name in ("gamma", "c", "R", "D"):
        check_range(species, p[name], p[name] >= 0, f"{name} must be 0 or more")
    for name in ("beta", "lambda1", "lambda2", "A", "B"):
        check_range(species, pair[name], pair[name] >= 0, f"{name} must be 0 or more")
    check_range(species, p["m"], np.isin(p["m"], (1, 3)), "m must be 1 or 3")
    check_range(species, p["d"], (p["d"] > 0) | (p["c"] == 0), "d must be positive")
    check_range(species, p["D"], p["D"] <= p["R"], "D must not be larger than R")
    check_range(species, pair["n"], pair["n"] > 0, "n must be positive")
    if not (p["R"] + p["D"]).max() > 0:
        raise ValueError("R must be positive for one triplet at least")


def _mixed(i: str, j: str, k: str) -> TersoffTriplet:
    """Parameters of a mixture: means of λ and μ, geometric ones of A, B and the cutoffs, B by χ."""
    own, second, third = NAMED[i], NAMED[j], NAMED[k]
    chi = 1.0 if i == j else CHI.get(frozenset([i, j]))
    if chi is None:
        raise ValueError(f"no named parameters for the pair {i}-{j}")
    begin, end = math.sqrt(own.R * third.R), math.sqrt(own.S * third.S)
    return TersoffTriplet(
        m=1,
        gamma=1.0,
        lambda3=0.0,
        c=own.c,
        d=own.d,
        cos_theta0=own.h,
        n=own.n,
        beta=own.beta,
        lambda2=0.5 * (own.mu + second.mu),
        B=chi * math.sqrt(own.B * second.B),
        R=0.5 * (begin + end),
        D=0.5 * (end - begin),
        lambda1=0.5 * (own.lambda_ + second.lambda_),
        A=math.sqrt(own.A * second.A),
    )
