"""The embedded-atom method in the analytic form of Zhou, Johnson and Wadley, for sixteen metals.

Reference: X. W. Zhou, R. A. Johnson and H. N. G. Wadley, Phys. Rev. B 69, 144113 (2004),
doi:10.1103/PhysRevB.69.144113.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from ase.data import atomic_numbers
from jaxtyping import Array, Float

from basinax.neighbors.lists import AbstractRowLists, filled_up, gather
from basinax.numerics.elementary import quotient
from basinax.numerics.forks import check_process
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import POSITIVE, one_number
from basinax.potentials.folds.embedded import AbstractEmbeddedPotential, Functions
from basinax.potentials.folds.fold import Elements
from basinax.potentials.tables.species import check_symbols
from basinax.structures.batch import Batch

_PAIRS = """
         re       fe      rhoe      rhos     alpha     beta        A        B    kappa   lambda
Cu 2.556162 1.554485 21.175871 21.175395  8.127620 4.334731 0.396620 0.548085 0.308782 0.756515
Ag 2.891814 1.106232 14.604100 14.604144  9.132010 4.870405 0.277758 0.419611 0.339710 0.750758
Au 2.885034 1.529021 19.991632 19.991509  9.516052 5.075228 0.229762 0.356666 0.356570 0.748798
Ni 2.488746 2.007018 27.562015 27.562031  8.383453 4.471175 0.429046 0.633531 0.443599 0.820658
Pd 2.750897 1.595417 21.335246 21.940073  8.697397 4.638612 0.406763 0.598880 0.397263 0.754799
Pt 2.771916 2.336509 33.367564 35.205357  7.105782 3.789750 0.556398 0.696037 0.385255 0.770510
Al 2.863924 1.403115 20.418205 23.195740  6.613165 3.527021 0.314873 0.365551 0.379846 0.759692
Pb 3.499723 0.647872  8.450154  8.450063  9.121799 5.212457 0.161219 0.236884 0.250805 0.764955
Fe 2.481987 1.885957 20.041463 20.041463  9.818270 5.236411 0.392811 0.646243 0.170306 0.340613
Mo 2.728100 2.723710 29.354065 29.354065  8.393531 4.476550 0.708787 1.120373 0.137640 0.275280
Ta 2.860082 3.086341 33.787168 33.787168  8.489528 4.527748 0.611679 1.032101 0.176977 0.353954
W  2.740840 3.487340 37.234847 37.234847  8.900114 4.746728 0.882435 1.394592 0.139209 0.278417
Mg 3.196291 0.544323  7.132600  7.132600 10.228708 5.455311 0.137518 0.225930      0.5      1.0
Co 2.505979 1.975299 27.206789 27.206789  8.679625 4.629134 0.421378 0.640107      0.5      1.0
Ti 2.933872 1.863200 25.565138 25.565138  8.775431 4.680230 0.373601 0.570968      0.5      1.0
Zr 3.199978 2.230909 30.879991 30.879991  8.559190 4.564902 0.424667 0.640054      0.5      1.0
"""

_EMBEDDING = """
   rhon       Fn0       Fn1      Fn2       Fn3    F0       F2        F3        Fe      eta
Cu 0.85 -2.170269 -0.263788 1.088878 -0.817603 -2.19 0.561830 -2.100595 -2.186568 0.310490
Ag 0.85 -1.729364 -0.255882 0.912050 -0.561432 -1.75 0.744561 -1.150650 -1.748423 0.783924
Au 0.85 -2.937772 -0.500288 1.601954 -0.835530 -2.98 1.706587 -1.134778 -2.978815 1.021095
Ni 0.85 -2.693513 -0.076445 0.241442 -2.375626 -2.70 0.265390 -0.152856 -2.700000 0.445470
Pd 0.85 -2.321006 -0.473983 1.615343 -0.231681 -2.36 1.481742 -1.675615 -2.352753 1.130000
Pt 0.25 -1.455568 -2.149952 0.528491  1.222875 -4.17 3.010561 -2.420128 -4.145597 1.450000
Al 0.85 -2.807602 -0.301435 1.258562 -1.247604 -2.83 0.622245 -2.488244 -2.824528 0.785902
Pb 0.85 -1.422370 -0.210107 0.682886 -0.529378 -1.44 0.702726 -0.538766 -1.439436 0.935380
Fe 0.85 -2.534992 -0.059605 0.193065 -2.282322 -2.54 0.200269 -0.148770 -2.539945 0.391750
Mo 0.85 -3.692913 -0.178812 0.380450 -3.133650 -3.71 0.875874  0.776222 -3.712093 0.790879
Ta 0.85 -5.103845 -0.405524 1.112997 -3.585325 -5.14 1.640098  0.221375 -5.141526 0.848843
W  0.85 -4.946281 -0.148818 0.365057 -4.432406 -4.96 0.661935  0.348147 -4.961306 0.582714
Mg 0.85 -0.896473 -0.044291 0.162232 -0.689950 -0.90 0.122838 -0.226010 -0.899702 0.431425
Co 0.85 -2.541799 -0.219415 0.733381 -1.589003 -2.56 0.705845 -0.687140 -2.559307 0.694608
Ti 0.85 -3.203773 -0.198262 0.683779 -2.321732 -3.22 0.608587 -0.750710 -3.219176 0.558572
Zr 0.85 -4.485793 -0.293129 0.990148 -3.202516 -4.51 0.928602 -0.981870 -4.509025 0.597133
"""


class Metal(NamedTuple):
    """The parameters of metals, one entry a species: lengths in Å, energies in eV.

    With h(r; b, c) = exp(−b(r/rₑ − 1)) / (1 + (r/rₑ − c)²⁰), in the letters of the paper:
    φ = A h(r; α, κ) − B h(r; β, λ) and f = fₑ h(r; β, λ). F is a cubic of ρ/ρₙ − 1 below ρₙ (given
    in units of ρₑ), a cubic of ρ/ρₑ − 1 up to 1.15 ρₑ, and Fₑ(1 − η ln x) x^η with x = ρ/ρₛ above.
    """

    re: Any
    fe: Any
    rhoe: Any
    rhos: Any
    alpha: Any
    beta: Any
    a: Any
    b: Any
    kappa: Any
    lambda_: Any
    rhon: Any
    fn0: Any
    fn1: Any
    fn2: Any
    fn3: Any
    f0: Any
    f2: Any
    f3: Any
    """F₁ is 0 for every metal."""
    fe_high: Any
    """Fₑ."""
    eta: Any


def _published() -> dict[str, list[float]]:
    rows: dict[str, list[float]] = {}
    for table in (_PAIRS, _EMBEDDING):
        for line in table.strip().splitlines()[1:]:
            element, *numbers = line.split()
            rows.setdefault(element, []).extend(map(float, numbers))
    return rows


METALS = _published()
"""The parameters of each metal, in the order of `Metal`'s fields. They are those of the author's
program, tools/eam_database of LAMMPS. Copies of the printed table differ from it for nickel (ρₛ
27.930410, η 0.469, Fₑ −2.699486: the same energy within 5e-7 eV where they begin) and tungsten (η
−0.582714, with which F would jump by 2 meV). With these F jumps nowhere by more than 5e-7 eV."""

CUTOFF = 5**0.5
"""In units of rₑ: √10/2 fcc lattice constants, as the author's program has it."""

BEGIN_HIGH = 1.15
"""Where the last branch of F begins, in units of ρₑ."""


class ZhouEAM(AbstractEmbeddedPotential):
    """Embedded atoms with the functions that were published for sixteen metals.

    They are Cu, Ag, Au, Ni, Pd, Pt, Al, Pb, Fe, Mo, Ta, W, Mg, Co, Ti and Zr.
    Unlike species a and b have φ = ½(φₐ f_b/fₐ + φ_b fₐ/f_b), which was fitted to no alloy. The
    functions are evaluated, not tabulated, and simply end at the cutoff, where the energy of a pair
    jumps by 0.2 meV at most.

    >>> alloy = ZhouEAM("Cu", "Ni")
    """

    metals: Metal
    radius: Float[Array, ""]
    species: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, *elements: str, cutoff: float | None = None):
        """The potential of some metals.

        Args:
            elements: their symbols.
            cutoff: in Å; √5 times the largest rₑ if None, as in the files that the author's
                program writes.

        Raises:
            ValueError: there are no parameters for an element, none is named or one twice, or the
                cutoff is not positive.
        """
        check_process()
        check_symbols(elements, METALS, "no parameters")
        if not elements or len(set(elements)) < len(elements):
            raise ValueError(
                f"name each metal once, of {', '.join(METALS)}: got {', '.join(elements) or 'none'}"
            )
        ascending = sorted(elements, key=atomic_numbers.__getitem__)
        columns = zip(*(METALS[element] for element in ascending), strict=True)
        self.metals = Metal(*(jnp.array(column, float) for column in columns))
        cutoff = (
            CUTOFF * max(METALS[element][0] for element in elements) if cutoff is None else cutoff
        )
        self.radius = jnp.array(one_number(cutoff, "cutoff", POSITIVE), float)
        self.species = tuple(atomic_numbers[element] for element in ascending)

    def functions(self, batch: Batch, neighbors: AbstractRowLists) -> Functions:
        metals = jax.tree.map(lambda column: column.astype(batch.positions.dtype), self.metals)
        known, is_single = jax.tree.map(filled_up, _known(metals)), len(self.species) == 1
        # A jitted program would multiply by the reciprocal of what it reads from one entry.
        metals = jax.tree.map(lambda column: jnp.append(column, column[-1:]), metals)
        kinds = self.kinds(batch.numbers)

        def of_kinds(kinds):
            return jax.tree.map(lambda column: gather(column, kinds), known)

        def density(here, there, r):
            m = here if there is None else there
            return rounded(m.fe * _decay(r, m.per_re, m.beta, m.lambda_)[0])

        def embedding(density):
            return _embedding(density, jax.tree.map(lambda column: gather(column, kinds), metals))

        def pair(here, there, r, slopes_here, slopes_there):
            f, f_rate, phi, phi_slope = _like(r, here)
            # dE/dr = φ' + F'ᵢ fⱼ' + F'ⱼ fᵢ'
            embedded_there = rounded(slopes_there * rounded(f * f_rate))
            if there is None:
                embedded_here = rounded(slopes_here * rounded(f * f_rate))
                return phi, phi_slope + (embedded_here + embedded_there)
            g, g_rate, psi, psi_slope = _like(r, there)
            embedded_here = rounded(slopes_here * rounded(g * g_rate))
            more, less = rounded(g / f), rounded(f / g)
            first, second = rounded(phi * more), rounded(psi * less)
            # (ln f_b/f_a)' is the difference of the rates
            slope = rounded(phi_slope * more) + rounded(psi_slope * less)
            slope = slope + rounded((first - second) * (g_rate - f_rate))
            return 0.5 * (first + second), 0.5 * slope + (embedded_here + embedded_there)

        here, elements = jax.tree.map(lambda column: column[0], known), None
        if not is_single:
            here, elements = of_kinds(kinds), Elements.of(batch, neighbors, self.kinds, of_kinds)
        return Functions(here, elements, density, embedding, pair)


class _ZhouParameters(NamedTuple):
    """Parameters of the functions of r, as in `Metal`."""

    per_re: Any
    fe: Any
    alpha: Any
    kappa: Any
    a: Any
    beta: Any
    lambda_: Any
    b: Any


def _known(metals: Metal) -> _ZhouParameters:
    m = metals
    return _ZhouParameters(rounded(1.0 / m.re), m.fe, m.alpha, m.kappa, m.a, m.beta, m.lambda_, m.b)


def _decay(r, per_re, rate, center):
    """h(r; rate, center) and its logarithmic derivative."""
    u = rounded(r * per_re)
    x = u - center
    x4 = (x * x) * (x * x)
    x16 = (x4 * x4) * (x4 * x4)
    below = 1.0 + rounded(x16 * x4)
    h = rounded(jnp.exp(rounded(rate * (1.0 - u))) / below)
    steep = rate + rounded(rounded(20.0 * (x16 * (x * (x * x)))) / below)
    return h, rounded(-per_re * steep)


def _like(r, known: _ZhouParameters):
    """f, its logarithmic derivative, φ and φ' of a pair of this species."""
    h, h_rate = _decay(r, known.per_re, known.alpha, known.kappa)
    k, k_rate = _decay(r, known.per_re, known.beta, known.lambda_)
    repulsion, attraction = rounded(known.a * h), rounded(known.b * k)
    slope = rounded(repulsion * h_rate) - rounded(attraction * k_rate)
    return rounded(known.fe * k), k_rate, repulsion - attraction, slope


def _embedding(density, m: Metal):
    """F and its derivative."""
    begin, high = rounded(m.rhon * m.rhoe), rounded(BEGIN_HIGH * m.rhoe)
    low_f, low_slope = _cubic(quotient(density, begin) - 1.0, m.fn0, m.fn1, m.fn2, m.fn3)
    f, slope = _cubic(quotient(density, m.rhoe) - 1.0, m.f0, jnp.zeros_like(m.f0), m.f2, m.f3)
    # Clamp the density to keep the logarithm finite where another branch is selected.
    ratio = quotient(jnp.maximum(density, high), m.rhos)
    log = rounded(m.eta * jnp.log(ratio))
    power = rounded(m.fe_high * jnp.exp(log))
    high_f = rounded(power * (1.0 - log))
    # F' = −Fₑ η² ln x · x^η/ρ
    high_slope = -rounded(rounded(power * log) * m.eta)
    is_low, is_high = density < begin, ~(density < high)
    f = jnp.where(is_low, low_f, jnp.where(is_high, high_f, f))
    slope = jnp.where(is_low, low_slope, jnp.where(is_high, high_slope, slope))
    scale = jnp.where(is_low, begin, jnp.where(is_high, jnp.maximum(density, high), m.rhoe))
    return f, rounded(slope / scale)


def _cubic(x, c0, c1, c2, c3):
    """A cubic polynomial and its derivative."""
    value = c0 + rounded(x * (c1 + rounded(x * (c2 + rounded(x * c3)))))
    return value, c1 + rounded(x * (2.0 * c2 + rounded(x * rounded(3.0 * c3))))
