"""Convergence criteria per system, and their combinations."""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, PyTree

from basinax.minimize.status import Status
from basinax.numerics.elementary import quotient
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import NotNegative as Tolerance, check_settings, kind_of, shown
from basinax.systems import segment
from basinax.systems.index import SystemIndex
from basinax.systems.prefix import per_system, resolve
from basinax.systems.types import Tree

DEFAULT_FMAX = 0.05
"""The default of ASE."""


class Evidence(NamedTuple):
    """The evidence of a criterion: the last judged point of each system, and the point before.

    Trials of a line search are not judged, so no trial is a point here.
    """

    params: Tree
    energies: Float[Array, "systems"]
    gradients: Tree
    extras: Any
    """Further values of each system from the evaluation, or None."""
    index_prefix: Any
    n_rows: Int32[Array, "systems"]
    """The rows that share a system's energy; all rows of all leaves unless the caller gives it."""
    has_last: Bool[Array, "systems"]
    """True if one step led here from the last judged point. False at the first point, and after an
    optimizer gave up and returned to an earlier point; ignore `last_*` then."""
    last_energies: Any
    """One entry per system; None unless the criterion `needs` energies."""
    last_params: Any
    """A tree like `params`; None unless the criterion `needs` them."""
    fmax: Any = None
    """The largest norm of a row of `gradients` per system, from the loop."""


class AbstractCriterion(eqx.Module):
    """A rule that decides when a system is done. `a & b` requires both, `a | b` at least one.

    The numbers of a criterion are leaves, and may be arrays with one entry per system.
    """

    def __check_init__(self):
        check_settings(self)

    @abc.abstractmethod
    def __call__(self, evidence: Evidence) -> Bool[Array, "systems"]:
        """The mask of systems that meet the criterion; never true for NaN."""

    @property
    def needs(self) -> frozenset[str]:
        """The names among `last_energies` and `last_params` that the criterion reads."""
        return frozenset()

    def __and__(self, other: "AbstractCriterion") -> "AllOf":
        return AllOf((self, other)) if isinstance(other, AbstractCriterion) else NotImplemented

    def __or__(self, other: "AbstractCriterion") -> "AnyOf":
        return AnyOf((self, other)) if isinstance(other, AbstractCriterion) else NotImplemented


class AbstractGroup(AbstractCriterion):
    """Criteria that are combined."""

    criteria: tuple[AbstractCriterion, ...]

    def __check_init__(self):
        wrong = [x for x in self.criteria if not isinstance(x, AbstractCriterion)]
        if wrong:
            raise TypeError(f"{type(self).__name__}: expected criteria, got {shown(wrong[0])}")

    @property
    def needs(self):
        return frozenset().union(*(criterion.needs for criterion in self.criteria))


class AllOf(AbstractGroup):
    """Met if all of its `criteria` are met."""

    def __call__(self, evidence):
        met = jnp.ones_like(evidence.has_last)
        for criterion in self.criteria:
            met = met & criterion(evidence)
        return met


class AnyOf(AbstractGroup):
    """Met if at least one of its `criteria` is met."""

    def __call__(self, evidence):
        met = jnp.zeros_like(evidence.has_last)
        for criterion in self.criteria:
            met = met | criterion(evidence)
        return met


def as_leaf(value: Any) -> Any:
    """A list as an array; a list that is no array stays unchanged, and a later check names it."""
    try:
        return np.asarray(value) if isinstance(value, list | tuple) else value
    except ValueError:
        return value


class MaxForce(AbstractCriterion):
    """The largest norm of a row of the gradient is below `fmax`: ASE's criterion.

    For atoms that is the largest force on one atom, not a component of a force.
    """

    fmax: Tolerance = eqx.field(default=DEFAULT_FMAX, converter=as_leaf)
    """Energy per unit of the parameters; eV/Å for atoms."""

    def __call__(self, evidence):
        return evidence.fmax < per_system(self.fmax, "fmax", evidence.fmax)


class RMSForce(AbstractCriterion):
    """The root mean square over the entries of the gradient is below the tolerance.

    √(Σ g² / n) over all n entries of a system, as in MOPAC. geomeTRIC divides by the number of
    atoms instead, which is √3 times as large. Entries that constraints set to zero count in n.
    """

    tolerance: Tolerance = eqx.field(converter=as_leaf)
    """Energy per unit of the parameters; eV/Å for atoms."""

    def __call__(self, evidence):
        gradients, prefix = evidence.gradients, evidence.index_prefix
        norm = segment.norm(gradients, prefix)
        root = rounded(jnp.sqrt(_n_entries(gradients, prefix).astype(norm.dtype)))
        return quotient(norm, root) < per_system(self.tolerance, "tolerance of RMSForce", norm)


class ForceNorm(AbstractCriterion):
    """The norm of all entries of the gradient is below the tolerance.

    The norm grows with the size of a system. It is the quantity of LAMMPS's `ftol`.
    """

    tolerance: Tolerance = eqx.field(converter=as_leaf)
    """Energy per unit of the parameters; eV/Å for atoms."""

    def __call__(self, evidence):
        norm = segment.norm(evidence.gradients, evidence.index_prefix)
        return norm < per_system(self.tolerance, "tolerance of ForceNorm", norm)


class EnergyChange(AbstractCriterion):
    """The energy has changed by less than the tolerance, up or down, in the last step.

    Not met before the first step. Small steps under large forces meet the criterion too: combine it
    with a criterion of forces.
    """

    tolerance: Tolerance = eqx.field(converter=as_leaf)
    """In the energy's unit; per row if `per_row`: eV an atom."""
    per_row: bool = eqx.field(default=True, static=True)
    """Divide the change by the number of rows; otherwise compare the system's total change."""

    def __call__(self, evidence):
        change = jnp.abs(evidence.energies - evidence.last_energies)
        if self.per_row:
            change = quotient(change, jnp.maximum(evidence.n_rows, 1).astype(change.dtype))
        below = change < per_system(self.tolerance, "tolerance of EnergyChange", change)
        return evidence.has_last & below

    @property
    def needs(self):
        return frozenset({"last_energies"})


class MaxDisplacement(AbstractCriterion):
    """The longest row of the last step, from one judged point to the next, is below the tolerance.

    Not met before the first step. Small steps under large forces meet the criterion too: combine it
    with a criterion of forces.
    """

    tolerance: Tolerance = eqx.field(converter=as_leaf)
    """In the unit of the parameters; Å for atoms."""

    def __call__(self, evidence):
        step = segment.map_leaves(jnp.subtract, evidence.params, evidence.last_params)
        longest = segment.longest_row(step, evidence.index_prefix)
        below = longest < per_system(self.tolerance, "tolerance of MaxDisplacement", longest)
        return evidence.has_last & below

    @property
    def needs(self):
        return frozenset({"last_params"})


def _n_entries(tree: Tree, index_prefix) -> Int32[Array, "systems"]:
    """The number of entries of each system over all leaves, at least 1."""
    leaves = [jnp.atleast_1d(leaf) for leaf in jax.tree.leaves(tree)]
    count = jnp.int32(0)
    for leaf, index in zip(leaves, resolve(index_prefix, tree), strict=True):
        count = count + index.sizes * math.prod(leaf.shape[1:])
    return jnp.maximum(count, 1)


def criterion_of(fmax: Any | None, convergence: AbstractCriterion | None) -> AbstractCriterion:
    """The criterion from two options of `relax`; at most one may be given.

    Raises:
        TypeError, ValueError: `convergence` is no criterion, or both options are given.
    """
    if convergence is None:
        return MaxForce(DEFAULT_FMAX if fmax is None else fmax)
    if not isinstance(convergence, AbstractCriterion):
        raise TypeError(
            f"convergence must be a criterion such as MaxForce(0.05), got {kind_of(convergence)}"
        )
    if fmax is not None:
        raise ValueError("fmax and convergence exclude each other: give MaxForce(fmax) & ...")
    return convergence


def is_met(criterion: AbstractCriterion, evidence: Evidence) -> Bool[Array, "systems"]:
    """The mask of systems that meet the criterion; ValueError unless one bool per system."""
    met: Any = criterion(evidence)
    expected = evidence.has_last.shape
    is_array = isinstance(met, jax.Array | np.ndarray)
    if not is_array or met.shape != expected or met.dtype != bool:
        got = f"{met.shape}, {met.dtype}" if is_array else f"a {type(met).__name__}"
        raise ValueError(
            f"{type(criterion).__name__} must return one bool per system, in an array of shape"
            f" {expected}: got {got}"
        )
    return jnp.asarray(met)


def largest_force(
    gradients: PyTree[Float[Array, "_rows *_components"]],
    index_prefix: PyTree[SystemIndex] | None = None,
) -> Float[Array, "systems"]:
    """The largest Euclidean norm of a row of the gradient, per system; +inf if not finite.

    A gradient whose square overflows counts as not finite. 0 for a system without rows.
    """
    return finite(segment.longest_row(gradients, index_prefix))


def finite(measured: Float[Array, "systems"]) -> Float[Array, "systems"]:
    """Replace values that are not finite by +inf, so that they never look converged."""
    return jnp.where(jnp.isfinite(measured), measured, jnp.inf)


def judge(
    energies: Float[Array, "systems"],
    largest: Float[Array, "systems"],
    is_met: Bool[Array, "systems"],
    steps: Int32[Array, "systems"],
    max_steps: Int32[Array, "systems"],
    has_failed: Bool[Array, "systems"],
) -> Int32[Array, "systems"]:
    """The status of systems whose energy and gradient have just been evaluated.

    Convergence takes precedence over `has_failed`, from the optimizer, and that over `max_steps`.
    """
    is_finite = jnp.isfinite(energies) & jnp.isfinite(largest)
    status = jnp.where(steps >= max_steps, Status.MAX_STEPS.code, Status.RUNNING.code)
    status = jnp.where(has_failed, Status.LINE_SEARCH_FAILED.code, status)
    status = jnp.where(is_met, Status.CONVERGED.code, status)
    return jnp.where(is_finite, status, Status.NOT_FINITE.code).astype(jnp.int32)
