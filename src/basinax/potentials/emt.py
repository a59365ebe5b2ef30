"""Effective medium theory for seven metals, equal to ASE's `EMT`.

Reference: K. W. Jacobsen, P. Stoltze and J. K. Nørskov, Surf. Sci. 366, 394 (1996),
doi:10.1016/0039-6028(96)00816-3.
"""

import math
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_numbers, chemical_symbols
from ase.units import Bohr
from jaxtyping import Array, Int32

from basinax.neighbors.lists import AbstractRowLists, ChunkedLists, filled_up, gather
from basinax.numerics.exponential import LN2, exp, exp2, exp2_fermi2, fermi2
from basinax.numerics.forks import check_process
from basinax.numerics.rounding import rounded, rounded_clamped
from basinax.potentials.folds.fold import Elements, Fold
from basinax.potentials.protocol import AbstractPotential, Properties, nan_if_not_finite
from basinax.potentials.tables.species import check_symbols
from basinax.structures.batch import Batch

BETA = 1.809
"""(16π/3)^(1/3)/√2, the distance of neighbours in an fcc crystal relative to the radius of a sphere
of an atom's volume; with the digits of the paper and of ASE."""


class EMTElement(NamedTuple):
    """The published parameters of an element, in eV and Bohr radii."""

    e0: float
    s0: float
    v0: float
    eta2: float
    kappa: float
    lambda_: float
    n0: float


PARAMETERS = {
    "Al": EMTElement(-3.28, 3.00, 1.493, 1.240, 2.000, 1.169, 0.00700),
    "Ni": EMTElement(-4.44, 2.60, 3.673, 1.669, 2.757, 1.948, 0.01030),
    "Cu": EMTElement(-3.51, 2.67, 2.476, 1.652, 2.740, 1.906, 0.00910),
    "Pd": EMTElement(-3.90, 2.87, 2.773, 1.818, 3.107, 2.155, 0.00688),
    "Ag": EMTElement(-2.96, 3.01, 2.132, 1.652, 2.790, 1.892, 0.00547),
    "Pt": EMTElement(-5.85, 2.90, 4.067, 1.812, 3.145, 2.192, 0.00802),
    "Au": EMTElement(-3.80, 3.00, 2.321, 1.674, 2.873, 2.182, 0.00703),
    "H": EMTElement(-3.21, 1.31, 0.132, 2.652, 2.790, 3.892, 0.00547),
    "C": EMTElement(-3.50, 1.81, 0.332, 1.652, 2.790, 1.892, 0.01322),
    "N": EMTElement(-5.10, 1.88, 0.132, 1.652, 2.790, 1.892, 0.01222),
    "O": EMTElement(-4.60, 1.95, 0.332, 1.652, 2.790, 1.892, 0.00850),
}
"""The metals' parameters are those of the paper. Those of H, C, N and O are ASE's, for trials, and
describe no real material."""


class EMT(AbstractPotential):
    """Effective medium theory as in ASE's `EMT`, including its cutoff.

    An atom's energy is a function of the density of its neighbours, plus pair energies. No result
    depends on the other elements that the potential was made for; fewer elements are faster.

    A logistic function ends all pairs. Its value at the cutoff, 7e-6 (3e-3 with `asap_cutoff`), is
    a step there, as in ASE.

    >>> copper, alloys, everything = EMT("Cu"), EMT("Cu", "Au"), EMT()
    """

    lists: ClassVar[type] = ChunkedLists
    has_expensive_pairs: ClassVar[bool] = True
    values_of_pair: ClassVar[int] = 2

    ends: "_Ends"
    """[largest]: the ends by the largest element of a system; one entry if all are equal."""
    atoms: "_Atom"
    """[largest, species]"""
    species: tuple[int, ...] = eqx.field(static=True)
    asap_cutoff: bool = eqx.field(static=True)

    def __init__(self, *elements: str, asap_cutoff: bool = False):
        """A potential for these elements, or for all in `PARAMETERS`.

        Args:
            asap_cutoff: use the cutoff of a system's largest element, as in ASAP and with ASE's
                option, instead of silver's.

        Raises:
            ValueError: an element has no parameters.
            TypeError: an element is not text, or `asap_cutoff` is neither true nor false.
        """
        check_process()
        check_symbols(elements, PARAMETERS, "EMT has no parameters")
        if not isinstance(asap_cutoff, bool):
            raise TypeError(f"asap_cutoff must be true or false, got {asap_cutoff!r}")
        self.species = _numbers_of(elements or PARAMETERS)
        self.asap_cutoff = asap_cutoff
        scaled = [_scaled(z) for z in self.species]
        largest = _by_size(self.species) if asap_cutoff else _by_size(_numbers_of(PARAMETERS))[-1:]
        ends = [_ends(_scaled(z).s0, asap_cutoff) for z in largest]
        atoms = [[_atom(p, end) for p in scaled] for end in ends]
        dtype = jnp.result_type(float)
        tables = jax.tree.map(lambda t: t.astype(dtype), (_stacked(ends), _stacked(atoms)))
        tables = jax.device_put(tables)  # compiles no program
        self.ends, self.atoms = tables

    @property
    def cutoff(self) -> float:
        return float(np.max(np.asarray(self.ends.end)))

    def __call__(
        self, batch: Batch, neighbors: AbstractRowLists, *, stress: bool = False
    ) -> Properties:
        fold = Fold.of(batch, neighbors)
        ends, own, elements = self._known(batch, neighbors)

        def density(known, other, _, r2):
            ends, own = known
            r, other = _within(r2, ends), _Atom(*(own if other is None else other))
            term = exp2_fermi2(_exponent(r, other.eta, other.radius1), _past_middle(r, ends))
            # NaN fails the comparison, so it counts as inside and reaches the result.
            return (jnp.where(r >= ends.end, 0.0, term),)

        nothing = nan_if_not_finite(batch.positions)
        (sigma,) = fold.sums(density, (nothing,), (ends, own), elements)
        atoms = _Atom(*own)
        energies, slopes = _embedded(sigma, atoms)
        is_alone = sigma == 0
        energies = jnp.where(is_alone, 0.0, energies) - atoms.e0
        energies = jnp.where(batch.index.has_system(), energies, 0.0)
        slopes = jnp.where(is_alone, 0.0, slopes)
        slopes_of_images = neighbors.of_images(slopes)

        def pair(known, other, images, r2):
            ends, own, slope = known
            own, other = _Atom(*own), _Atom(*(own if other is None else other))
            r, slope_there = _within(r2, ends), gather(slopes_of_images, images)
            energy, derivative = _of_pair(r, ends, own, other, slope, slope_there)
            outside = r >= ends.end
            return jnp.where(outside, 0.0, energy), jnp.where(outside, 0.0, derivative) / r

        known = (ends, own, slopes)
        return fold.properties(pair, known, elements, stress=stress, own_energies=energies)

    def _known(
        self, batch: Batch, neighbors: AbstractRowLists
    ) -> "tuple[_Ends, Any, Elements | None]":
        """The ends of pairs, the parameters of rows, and those of other atoms by their elements.

        The last are None for one element. Parameters of atoms are the entries of an `_Atom`, in one
        array if atoms differ: separate arrays take long to compile.
        """
        dtype, n = batch.positions.dtype, len(self.species)
        tables = (self.ends, self.atoms)
        ends, atoms = jax.tree.map(lambda t: jnp.ravel(t).astype(dtype), tables)
        if n == 1:
            ends, own = jax.tree.map(lambda t: t[0], (ends, atoms))
            return ends, own, None
        ends, atoms = jax.tree.map(filled_up, ends), filled_up(jnp.stack(atoms))
        largest = self._largest(batch, self.kinds(batch.numbers))
        elements = Elements.of(
            batch,
            neighbors,
            lambda numbers: largest * n + self.kinds(numbers),
            lambda keys: gather(atoms, keys),
        )
        of_system = (lambda t: gather(t, largest)) if self.asap_cutoff else (lambda t: t[0])
        ends = jax.tree.map(of_system, ends)
        return ends, elements.known(elements.keys), elements

    def _largest(self, batch: Batch, kinds: Int32[Array, "rows"]) -> Int32[Array, "rows"]:
        """The index into the tables for the largest element of each row's system."""
        if not self.asap_cutoff:
            return jnp.zeros_like(kinds)
        order = [_by_size(self.species).index(z) for z in self.species]
        largest = batch.index.max(jnp.asarray(order, jnp.int32)[kinds])
        return batch.index.spread(largest, 0, like=kinds)


class _Ends(NamedTuple):
    """The end of a system's pairs."""

    middle: Any
    """The distance at which the logistic function is 1/2, in Å."""
    slope: Any
    """The slope of x by r in the divisor 1 + 2^x, in 1/Å."""
    end: Any
    """The cutoff, in Å."""


class _Atom(NamedTuple):
    """Parameters of an atom.

    The paper weights a neighbour with χ = n₀'/n₀. Here n₀' is part of the neighbour's radii, and n₀
    part of the atom's `scale` and `v`, both in units of N, so pairs need no parameters.
    """

    e0: Any
    lambda_: Any
    six_v0: Any
    kappa: Any
    rate: Any
    """1/(βη₂)."""
    scale: Any
    """N/(12γ₁n₀)."""
    v: Any
    """−V₀N/(2γ₂n₀), in eV."""
    eta: Any
    """η₂/log(2) in 1/Å: the number of halvings per Å of the atom's density."""
    radius1: Any
    """The distance at which that density is 1, in Å."""
    decay: Any
    """κ/(β log(2)) in 1/Å: the number of halvings per Å of the atom's pair function."""
    radius2: Any
    """The distance at which that function is 1, in Å."""


N_REFERENCE = 0.00703 / Bohr**3
"""N, gold's n₀; any density would serve."""


def _numbers_of(elements: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({atomic_numbers[element] for element in elements}))


def _scaled(number: int) -> EMTElement:
    """The parameters of an element in eV and Å."""
    p = PARAMETERS[chemical_symbols[number]]
    return EMTElement(
        e0=p.e0,
        s0=p.s0 * Bohr,
        v0=p.v0,
        eta2=p.eta2 / Bohr,
        kappa=p.kappa / Bohr,
        lambda_=p.lambda_ / Bohr,
        n0=p.n0 / Bohr**3,
    )


def _ends(s0: float, asap_cutoff: bool) -> _Ends:
    """The logistic function is 1/2 between third and fourth fcc neighbours, 1e-4 at the fourth."""
    nearest = BETA * s0
    middle = nearest * 0.5 * (math.sqrt(3.0) + 2.0)
    slope = math.log2(1e4 - 1.0) / (2.0 * nearest - middle)
    return _Ends(middle, slope, middle * 1.045 if asap_cutoff else middle + 0.5)


def _gamma(p: EMTElement, decay: float, ends: _Ends) -> float:
    """γ: the sum over the first three shells of an fcc crystal, over the 12 atoms of the first."""
    total = 0.0
    for count, distance in ((12, 1.0), (6, math.sqrt(2.0)), (24, math.sqrt(3.0))):
        r = BETA * p.s0 * distance
        w = 1.0 / (1.0 + 2.0 ** (ends.slope * (r - ends.middle)))
        total += count / 12.0 * w * math.exp(-decay * (r - BETA * p.s0))
    return total


def _atom(p: EMTElement, ends: _Ends) -> _Atom:
    decay, weight = p.kappa / BETA, p.n0 / N_REFERENCE
    return _Atom(
        e0=p.e0,
        lambda_=p.lambda_,
        six_v0=6.0 * p.v0,
        kappa=p.kappa,
        rate=1.0 / (BETA * p.eta2),
        scale=1.0 / (12.0 * _gamma(p, p.eta2, ends) * weight),
        v=-0.5 * p.v0 / (_gamma(p, decay, ends) * weight),
        eta=p.eta2 / LN2,
        radius1=BETA * p.s0 + math.log(weight) / p.eta2,
        decay=decay / LN2,
        radius2=BETA * p.s0 + math.log(weight) / decay,
    )


def _stacked(nested: Any) -> Any:
    """Lists of named tuples, or lists of such lists, as one named tuple of arrays."""
    if isinstance(nested[0], list):
        nested = [_stacked(entry) for entry in nested]
    return jax.tree.map(lambda *x: np.stack(x), *nested)


def _by_size(species: tuple[int, ...]) -> list[int]:
    return sorted(species, key=lambda z: PARAMETERS[chemical_symbols[z]].s0)


def _within(r2, ends: _Ends):
    """The distance, clamped to the end of pairs, beyond which values are unused."""
    r = jnp.sqrt(r2)
    return jnp.where(r > ends.end, ends.end, r)


def _past_middle(r, ends: _Ends):
    """The x in w = 1/(1 + 2^x)."""
    return ends.slope * (r - ends.middle)


def _exponent(r, decay, radius):
    """The exponent of 2 in functions that fall with r."""
    return decay * (radius - r)


def _embedded(sigma, own: _Atom):
    """The energy in eV of atoms at these densities, without pairs, and its derivative."""
    # s = −log(σ₁/(12γ₁))/(βη₂)
    s = rounded(-own.rate * jnp.log(rounded(own.scale * sigma)))
    reduced = rounded(own.lambda_ * s)
    cohesive = rounded(own.e0 * exp(-reduced))
    # Subtract the pairs of the element's crystal at that density: real pairs are counted elsewhere.
    crystal = rounded(own.six_v0 * exp(-own.kappa * s))
    energy = rounded(cohesive * (1.0 + reduced)) + crystal
    # ds/dσ₁ = −1/(βη₂σ₁)
    by_s = rounded(own.lambda_ * (cohesive * reduced)) + rounded(own.kappa * crystal)
    return energy, rounded(rounded(own.rate * by_s) / sigma)


def _of_pair(r, ends: _Ends, own: _Atom, other: _Atom, slope, slope_other):
    """The energy of a pair in eV, and the derivative of the system's energy by its distance.

    Args:
        slope, slope_other: dE/dσ₁ of the atom, and of the other.
    """
    # Rates are per power of 2; the last line multiplies by log 2.
    w = fermi2(_past_middle(r, ends))
    dw = rounded_clamped(ends.slope * (w - 1.0))  # (dw/dr)/w
    v = rounded_clamped(own.v * exp2(_exponent(r, other.decay, other.radius2)))
    v_back = rounded_clamped(other.v * exp2(_exponent(r, own.decay, own.radius2)))
    sigma = slope * exp2(_exponent(r, other.eta, other.radius1))
    sigma_back = slope_other * exp2(_exponent(r, own.eta, own.radius1))
    by_pair = rounded_clamped(v * (dw - other.decay)) + rounded_clamped(v_back * (dw - own.decay))
    by_density = rounded_clamped(sigma * (dw - other.eta)) + rounded_clamped(
        sigma_back * (dw - own.eta)
    )
    return rounded_clamped(w * (v + v_back)), (LN2 * w) * (by_pair + by_density)
