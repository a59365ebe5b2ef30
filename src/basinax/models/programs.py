"""The programs that evaluate graphs, one for each shape.

A program has one place, or several where a single structure leaves the device idle. Their number
follows from the shape, so the program of a structure does not depend on other structures.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jaxtyping import Array, Float, Int32

from basinax.models.graphs import (
    POSITIONS,
    VECTORS,
    AbstractLayout,
    Graph,
    LaidOut,
    Shape,
    VerletList,
    graphs_of,
)
from basinax.models.lists import LISTS
from basinax.numerics import xla
from basinax.numerics.interpret import RefusedOperation, with_ordered_scatters
from basinax.numerics.static import Static, partition
from basinax.potentials.hessians import derivatives
from basinax.structures.charges import TOTALS

_LOG = logging.getLogger("basinax")

MOST_PLACES = 32
"""The largest number of places of a program."""

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

    def total(vectors):
        energies = function(vectors, graph["numbers"], graph["senders"], graph["receivers"])
        energies = jnp.where(graph["is_atom"], energies, 0)
        return energies.sum(), energies

    gradient, energies = jax.grad(total, has_aux=True)(graph["vectors"])
    gradient = jnp.where(graph["is_edge"][:, None], gradient, 0)  # of spare pairs
    forces = jnp.zeros_like(graph["positions"])
    forces = forces.at[graph["receivers"]].add(gradient).at[graph["senders"]].add(-gradient)
    virial = gradient.T @ graph["vectors"]
    return Found(energies, forces, 0.5 * (virial + virial.T))


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


class ModelForm(NamedTuple):
    """The way in which a model's function is called."""

    arguments: tuple[str, ...]
    is_direct: bool
    """Whether the function returns forces and stress of its own."""
    asks: tuple[str, ...] = ()
    """Numbers of the structure that the function asks for by name: charge, spin."""
    has_places: bool = False
    """Whether graphs have an axis of places."""

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
def returned_by(fixed: Static, arrays: Any, graph: Arrays) -> Any:
    """The shapes of the function's own results."""
    function, form = eqx.combine(arrays, fixed.tree)
    function = form.with_totals(function, graph)
    return function(*(graph[name] for name in form.arguments))


def _evaluated(fixed: Static, arrays: Any, graph: Arrays) -> Found:
    """Evaluate a graph, or graphs of one shape with an axis more, that of places.

    Args:
        fixed, arrays: a function and its form, by `partition`.

    Raises:
        RefusedOperation: while tracing, where the function adds in an order that is not known and
            there is an axis of places.
    """
    function, form = eqx.combine(arrays, fixed.tree)
    evaluate = functools.partial(form.evaluate, function)
    return jax.vmap(with_ordered_scatters(evaluate))(graph) if form.has_places else evaluate(graph)


evaluate: Any = xla.jitted(_evaluated, xla.REPEATABLE, static_argnums=0, is_kept=True)
prepare: Callable[..., None] = evaluate.compile
"""Makes the program of `evaluate` for the same arguments."""

_shapes = xla.traced(_evaluated, static_argnums=0)


@functools.partial(xla.jitted, options=xla.REPEATABLE, static_argnums=0, is_kept=True)
def derived(
    fixed: Static, arrays: Any, graph: Arrays, coordinates: Int32[Array, "lanes"]
) -> Float[Array, "lanes atoms 3"]:
    """The derivatives of the gradient of a graph by some coordinates.

    Args:
        fixed, arrays: a function and its form without places, by `partition`.
    """
    function, form = eqx.combine(arrays, fixed.tree)
    ends = [graph.get(name) for name in ("senders", "receivers")]

    def forces(moved):
        # The coordinates are Å; those of jax-md have such derivatives, even if fractional.
        there = graph | {"positions": graph["positions"] + moved}
        if "vectors" in graph:
            there["vectors"] = graph["vectors"] + (moved[ends[0]] - moved[ends[1]])
        return form.evaluate(function, there).forces

    return derivatives(forces, jnp.zeros_like(graph["positions"]), coordinates, by_reverse=True)


@dataclasses.dataclass(frozen=True)
class Program:
    """A model's function with what its graphs are made by."""

    function: Any
    form: ModelForm
    layout: AbstractLayout
    cutoff: float
    dtype: np.dtype
    n_pairs: int = 0
    """The number of pairs, about, that all places have together."""

    @property
    def parts(self) -> tuple[Static, Any]:
        return partition((self.function, self.form))

    @property
    def name(self) -> str:
        """The name of the function, or of its class."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def switches(self) -> dict[str, Any]:
        """JAX's switches during an evaluation of the model."""
        return {"jax_enable_x64": self.dtype == np.float64}

    def n_places(self, shape: Shape) -> int:
        """The structures of this shape that are evaluated at once."""
        return min(max(self.n_pairs // shape.edges, 1), MOST_PLACES)

    def with_places(self, n_pairs: int) -> "Program":
        """The program with places, if JAX can have them and each sum has one order."""
        if not n_pairs:
            return self
        form = self.form._replace(has_places=True)
        program = dataclasses.replace(self, form=form, n_pairs=n_pairs)
        one = self.abstract_graph()
        two = {name: jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for name, x in one.items()}
        try:
            _shapes(*program.parts, two)
        except (RefusedOperation, NotImplementedError) as error:
            _LOG.info("model: structures are evaluated one at a time: %s", error)
            return self
        return program

    def abstract_graph(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the graph of one atom."""
        one = Atoms("H", pbc=False)
        pairs = VerletList(one.pbc, one.numbers, self.cutoff)
        (made,) = self.laid_out([pairs], [one.positions], np.eye(3)[None], [one])
        if isinstance(made, ValueError):
            raise made
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in made[1].items()}

    def laid_out(
        self,
        lists: Sequence[VerletList],
        positions: Sequence[np.ndarray],
        cells: np.ndarray,
        atoms: Sequence[Atoms],
    ) -> list[LaidOut | ValueError]:
        """The arrays of structures' graphs; an error for one that cannot be laid out.

        Args:
            lists: of different structures.
            positions, cells: where they are, in Å.
        """
        found: list[Any] = graphs_of(lists, positions, cells)
        good = [k for k, graph in enumerate(found) if isinstance(graph, Graph)]
        made = self.layout.arrays([found[k] for k in good], self.cutoff, self.dtype)
        for k, each in zip(good, made, strict=True):
            found[k] = each
            if not isinstance(each, ValueError):
                shape, arrays = each
                totals = {
                    name: np.asarray(TOTALS[name](atoms[k]), self.dtype) for name in self.form.asks
                }
                found[k] = shape, arrays | totals
        return found
