"""A check that a model's gradients have the same bits alone and in a batch.

Systems are evaluated and relaxed alone, together, in another order, in parts, and beside a system
that is not finite; their bits are compared.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax.minimize.comparisons import Finding, distance, finding_of, table_of
from basinax.minimize.relax import Relaxation, relax
from basinax.numerics.forks import check_process
from basinax.numerics.order import OrderFinding, gathered
from basinax.numerics.settings import at_least, require_function, require_switch, require_whole
from basinax.optimizers.protocol import AbstractTransform, check_transform
from basinax.systems import segment
from basinax.systems.index import SystemIndex
from basinax.systems.map_systems import rows_of
from basinax.systems.prefix import is_index, n_systems, resolve
from basinax.systems.types import Prefix, Tree


class Verification(eqx.Module):
    """The findings of `verify`."""

    findings: list[Finding]
    differing: list[int]
    """The systems with any differing bit."""
    compared: list[int]
    """The systems that were compared."""
    left_open: list[OrderFinding]
    """What the model, or a transform of yours, leaves to the compiler; see `check_order`."""

    @property
    def is_kept(self) -> bool:
        """Whether every compared system has the bits of a run alone."""
        return not self.differing

    def __repr__(self) -> str:
        n, shown = len(self.compared), ", ".join(map(str, self.differing[:20]))
        verdict = f"all {n} systems compared have the bits that they have alone"
        if self.differing:
            more = ", ..." if len(self.differing) > 20 else ""
            verdict = f"{len(self.differing)} of {n} systems compared differ: {shown}{more}"
        lines = [verdict, table_of(self.findings), *map(str, self.left_open)]
        return "\n".join(lines)


def verify(
    value_and_gradient: Callable[..., tuple[Any, ...]],
    params: Tree,
    index_prefix: Prefix,
    optimizer: AbstractTransform,
    *,
    data: Any = None,
    data_prefix: Prefix = None,
    steps: int = 20,
    most: int = 8,
    has_extras: bool = False,
    seed: int = 0,
) -> Verification:
    """Check that a model's gradients have the same bits in a batch as alone.

    Each comparison covers the first evaluation and a run of some steps. Every batch, and each
    system alone, compiles a program of its own.

    >>> import jax.numpy as jnp
    >>> from basinax import GradientDescent, SystemIndex, each_alone, verify
    >>> model = each_alone(lambda x, is_row: jnp.where(is_row, jnp.cosh(x), 0.0).sum())
    >>> index, optimizer = SystemIndex.from_sizes([2, 1]), GradientDescent(0.1)
    >>> verify(model, jnp.ones(3), index, optimizer, steps=1).is_kept
    True

    Args:
        value_and_gradient: a function of params and their index prefix and, with data, of data and
            their prefix, like the result of `each_alone`. It must work for any selection of
            systems.
        params: a start of each system, away from its minimum. Different sizes find more.
        index_prefix: which row belongs to which system.
        optimizer: the optimizer of the run; settings per system are selected with the systems.
        data: a tree of constant arrays that lead with rows.
        data_prefix: the index prefix of `data`; the prefix of the parameters if None.
        steps: the largest number of steps of the run.
        most: the largest number of systems to run alone and compare, drawn at random.
        has_extras: the model returns a third value, as for `relax`.
        seed: the seed of the random systems and orders.

    Raises:
        TypeError, ValueError: the arguments do not fit together, or are fewer than two systems.
    """
    check_process()
    require_function(value_and_gradient, "value_and_gradient")
    check_transform(optimizer)
    require_switch(has_extras, "has_extras")
    require_whole(steps, "steps", at_least(1))
    require_whole(most, "most", at_least(1))
    require_whole(seed, "seed", at_least(0))
    n = n_systems(index_prefix)
    if index_prefix is None or n < 2:
        raise ValueError("verify needs at least two systems: a batch of one shows nothing")
    trees = [(params, index_prefix)]
    if data is not None:
        trees.append((data, index_prefix if data_prefix is None else data_prefix))
    verifier = _Verifier(value_and_gradient, trees, optimizer, steps, has_extras)
    draw = np.random.default_rng(seed)
    compared = np.sort(draw.permutation(n)[:most])
    everyone, order = np.arange(n), draw.permutation(n)
    beside = np.append(order[0], everyone)
    with gathered() as found:
        verifier.alone = {k: verifier.run(np.array([k]))[0] for k in compared.tolist()}
        verifier.compare("together", [everyone])
        verifier.compare("in another order", [order])
        verifier.compare("in parts", [everyone[::2], everyone[1::2]])
        verifier.compare("beside one that is not finite", [beside], spoils=True)
    differing, left_open = sorted(verifier.differing), list(dict.fromkeys(found))
    return Verification(verifier.findings, differing, compared.tolist(), left_open)


_System = list[np.ndarray]
"""All numbers of one system of a result."""


class _Verifier:
    def __init__(
        self,
        model: Callable[..., tuple[Any, ...]],
        trees: list[tuple[Any, Prefix]],
        optimizer: AbstractTransform,
        steps: int,
        has_extras: bool,
    ):
        self.model, self.trees, self.optimizer = model, trees, optimizer
        self.steps, self.has_extras = steps, has_extras
        self.alone: dict[int, list[_System]] = {}
        self.findings: list[Finding] = []
        self.differing: set[int] = set()

    def compare(self, name: str, batches: Sequence[np.ndarray], *, spoils: bool = False) -> None:
        """Compare the systems of batches with their runs alone.

        Args:
            batches: numbers of systems.
            spoils: set the first system of each batch to NaN, and leave it out of the comparison.
        """
        differences: tuple[list[float], list[float]] = ([], [])
        for batch in batches:
            found = self.run(batch, spoils=spoils)
            for place, system in enumerate(batch.tolist()):
                if system not in self.alone or (spoils and place == 0):
                    continue
                pairs = zip(differences, self.alone[system], found[place], strict=True)
                for of_stage, ours, theirs in pairs:
                    of_stage.append(max(map(distance, ours, theirs)))
                if differences[0][-1] > 0 or differences[1][-1] > 0:
                    self.differing.add(system)
        stages = "first evaluation", f"after {self.steps} steps"
        for stage, of_stage in zip(stages, differences, strict=True):
            self.findings.append(finding_of(f"{name}, {stage}", of_stage))

    def run(self, systems: np.ndarray, *, spoils: bool = False) -> list[list[_System]]:
        """The results of each system at its start and at its end."""
        parts = [chosen(tree, prefix, systems) for tree, prefix in self.trees]
        (params, prefix), *of_data = parts
        if spoils:
            is_first = jnp.arange(len(systems)) == 0
            spoiled = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
            params = segment.where(is_first, spoiled, params, prefix)
        further = [x for pair in of_data for x in pair]

        def model(params):
            return self.model(params, prefix, *further)

        n = n_systems(self.trees[0][1])
        optimizer = jax.tree.map(lambda x: x[systems] if np.shape(x) == (n,) else x, self.optimizer)

        def ended(max_steps: int) -> Relaxation:
            return relax(
                model,
                params,
                optimizer,
                index_prefix=prefix,
                fmax=0.0,
                max_steps=max_steps,
                has_extras=self.has_extras,
            )

        stages = [_by_system(ended(n), prefix, len(systems)) for n in (0, self.steps)]
        return [list(of_one) for of_one in zip(*stages, strict=True)]


def chosen(tree: Any, prefix: Prefix, systems: np.ndarray) -> tuple[Any, Prefix]:
    """The rows of the given systems, one system after another, and their index prefix."""
    made: dict[int, tuple[np.ndarray, SystemIndex]] = {}
    for index in jax.tree.leaves(prefix, is_leaf=is_index):
        sizes = np.asarray(index.sizes)
        rows = [rows_of(index, np.array([k]), int(sizes[k]))[0] for k in systems]
        none = np.zeros(0, np.int32)
        made[id(index)] = np.concatenate([none, *rows]), SystemIndex.from_sizes(sizes[systems])
    leaves, structure = jax.tree.flatten(tree)
    parts = [
        jnp.asarray(leaf)[made[id(index)][0]]
        for leaf, index in zip(leaves, resolve(prefix, tree), strict=True)
    ]
    by_index = jax.tree.map(lambda index: made[id(index)][1], prefix, is_leaf=is_index)
    return structure.unflatten(parts), by_index


def _by_system(result: Relaxation, prefix: Prefix, n: int) -> list[_System]:
    """The numbers of a result, per system."""
    of_systems = result.energies, result.steps, result.evaluations, result.status
    found: list[_System] = [
        list(of_one) for of_one in zip(*map(np.asarray, of_systems), strict=True)
    ]
    for tree in (result.params, result.gradients):
        indices: Any = resolve(prefix, tree)
        for leaf, index in zip(jax.tree.leaves(tree), indices, strict=True):
            rows, ids = np.asarray(leaf), np.asarray(index.ids)
            for k in range(n):
                found[k].append(rows[ids == k])
    for leaf in map(np.asarray, jax.tree.leaves(result.extras)):
        for k in range(n):
            found[k].append(leaf[k])
    return found
