"""The programs that evaluate graphs: each structure alone, side by side, or many joined.

Alone, a structure runs the program of its own shape, which does not depend on other structures.
Side by side, structures of one shape have an axis of their own in one program. Its length follows
from the shape, so that it does not depend on other structures either.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from basinax._bits import xla
from basinax._bits.rewriting import with_ordered_scatters
from basinax._jax.fixed import Fixed
from basinax.atoms._models.graphs import POSITIONS, VECTORS
from basinax.atoms._models.lists import LISTS

Arrays = dict[str, Array]
"""A graph in its shape, as a layout makes it."""


class Found(NamedTuple):
    """The results of one graph; energies and forces of spare atoms are ignored."""

    energies: Float[Array, "atoms"] | Float[Array, "1"]
    """Energies of the atoms, or their sum."""
    forces: Float[Array, "atoms 3"]
    virial: Float[Array, "3 3"]
    """The derivative of the energy by a strain, in eV."""


def of_positions(function: Callable[..., Any], graph: Arrays) -> Found:
    """Results of a function of positions and cell, by differentiation."""
    is_atom, x = graph["is_atom"], graph["positions"]

    def total(positions, strain):
        deformation = jnp.eye(3, dtype=x.dtype) + 0.5 * (strain + strain.T)
        # Spare atoms stay unstrained: their derivatives may be NaN and must not reach the strain.
        placed = jnp.where(is_atom[:, None], positions @ deformation, x)
        arrays = (graph[name] for name in ("numbers", "senders", "receivers", "shifts"))
        energies = function(placed, graph["cell"] @ deformation, *arrays)
        energies = jnp.where(is_atom, energies, 0)
        return energies.sum(), energies

    derive = jax.grad(total, argnums=(0, 1), has_aux=True)
    (gradient, virial), energies = derive(x, jnp.zeros((3, 3), x.dtype))
    return Found(energies, -gradient, virial)


def of_vectors(function: Callable[..., Any], graph: Arrays) -> Found:
    """Results of a function of the vectors of pairs, by differentiation."""
    energies, gradient = _by_vectors(function, graph)
    forces = jnp.zeros_like(graph["positions"])
    forces = forces.at[graph["receivers"]].add(gradient).at[graph["senders"]].add(-gradient)
    virial = gradient.T @ graph["vectors"]
    return Found(energies, forces, 0.5 * (virial + virial.T))


def _by_vectors(function: Callable[..., Any], graph: Arrays) -> tuple[Array, Array]:
    """Energies of atoms, and the derivatives of their sum by the vectors; 0 for spare pairs."""

    def total(vectors):
        energies = function(vectors, graph["numbers"], graph["senders"], graph["receivers"])
        energies = jnp.where(graph["is_atom"], energies, 0)
        return energies.sum(), energies

    gradient, energies = jax.grad(total, has_aux=True)(graph["vectors"])
    return energies, jnp.where(graph["is_edge"][:, None], gradient, 0)


def of_lists(function: Callable[..., Any], graph: Arrays) -> Found:
    """The results of an energy of jax-md, by differentiation.

    The derivative by coordinates is in eV/Å, even for fractional coordinates.
    """
    positions, *others, perturbation = (graph[name] for name in LISTS)

    def total(positions, strain):
        perturbed = perturbation + 0.5 * (strain + strain.T)
        energies = function(positions, *others, perturbed)
        return energies.sum(), energies

    derive = jax.grad(total, argnums=(0, 1), has_aux=True)
    (gradient, virial), energies = derive(positions, jnp.zeros_like(perturbation))
    return Found(energies, -gradient, virial)


def directly(function: Callable[..., Any], names: tuple[str, ...], graph: Arrays) -> Found:
    """Results of a function that returns forces and stress of its own, besides energies."""
    energies, forces, stress = function(*(graph[name] for name in names))
    energies = jnp.where(graph["is_atom"], energies, 0)
    stress = jnp.full((3, 3), jnp.nan, energies.dtype) if stress is None else stress
    return Found(energies, forces, stress * jnp.abs(jnp.linalg.det(graph["cell"])))


_DERIVED = {POSITIONS.arguments: of_positions, VECTORS.arguments: of_vectors, LISTS: of_lists}
"""The evaluations by differentiation, by the names of a function's arrays."""


class Form(NamedTuple):
    """The way in which a model's function is called."""

    arguments: tuple[str, ...]
    is_direct: bool
    """Whether the function returns forces and stress of its own."""
    asks: tuple[str, ...] = ()
    """Numbers of the structure that the function asks for by name: charge, spin."""

    def with_totals(self, function: Callable[..., Any], graph: Arrays) -> Callable[..., Any]:
        """The function with the numbers that it asks for."""
        if not self.asks:
            return function
        return functools.partial(function, **{name: graph[name] for name in self.asks})

    def evaluate(self, function: Callable[..., Any], graph: Arrays) -> Found:
        function = self.with_totals(function, graph)
        if self.is_direct:
            return directly(function, self.arguments, graph)
        return _DERIVED[self.arguments](function, graph)


@functools.partial(xla.traced, static_argnums=0)
def returned_by(fixed: Fixed, arrays: Any, graph: Arrays) -> Any:
    """The shapes of the function's own results."""
    function, form = eqx.combine(arrays, fixed.tree)
    function = form.with_totals(function, graph)
    return function(*(graph[name] for name in form.arguments))


@functools.partial(xla.jitted, options=xla.REPEATABLE, static_argnums=0)
def evaluate(fixed: Fixed, arrays: Any, graph: Arrays) -> Found:
    """Evaluate one structure alone.

    Args:
        fixed, arrays: a function and its form, `split`.
    """
    function, form = eqx.combine(arrays, fixed.tree)
    return form.evaluate(function, graph)


def found_side_by_side(fixed: Fixed, arrays: Any, graphs: Arrays) -> Found:
    """Graphs of one shape, each with the bits that it has beside any others.

    Args:
        graphs: arrays with one axis more, that of the graphs.

    Raises:
        RefusedOperation: while tracing, where the function adds in an order that is not known.
    """
    function, form = eqx.combine(arrays, fixed.tree)
    return jax.vmap(with_ordered_scatters(functools.partial(form.evaluate, function)))(graphs)


evaluate_side_by_side = xla.jitted(found_side_by_side, xla.REPEATABLE, static_argnums=0)


@functools.partial(xla.jitted, static_argnums=0)
def evaluate_joined(fixed: Fixed, arrays: Any, graph: Arrays) -> tuple[Array, Array, Array]:
    """Energies of atoms, derivatives by vectors, of many structures in one graph."""
    function, _ = eqx.combine(arrays, fixed.tree)
    energies, gradient = _by_vectors(function, graph)
    forces = jnp.zeros((len(energies), 3), gradient.dtype)
    forces = forces.at[graph["receivers"]].add(gradient).at[graph["senders"]].add(-gradient)
    return energies, forces, gradient
