"""The tables that every property is tested over: transforms, problems and layouts.

A new transform is a row of `TRANSFORMS`; what is particular about it is a column. The helpers put
systems into a batch, run them, and take a system out again.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from basinax import (
    FIRE,
    FIRE2,
    LBFGS,
    AbstractTransform,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRowNorm,
    ClipByValue,
    GradientDescent,
    MaxStepSize,
    MDMin,
    SystemIndex,
    apply_updates,
    chain,
    rounded,
    segment,
)
from basinax.numerics import xla
from cover import one_in
from xla import AS_USERS

DTYPES = [np.float32, np.float64]


# --- transforms


@dataclasses.dataclass(frozen=True)
class TransformCase:
    """One transform, or one combination, of which there are odd ones on purpose."""

    name: str
    make: Callable[[np.ndarray], AbstractTransform]
    """From the numbers of systems, by which settings that differ between systems are chosen."""

    descends: bool = True
    """Turns a gradient into a step downhill; a limit returns a shorter gradient."""

    is_alone_in_global_mode: bool = True
    """With `index_prefix=None` it has the bits of a single system. False where an optax
    transformation runs as it is there."""
    is_by_leaf: bool = False
    """It treats each leaf of a system by itself."""
    is_variant: bool = False
    """All its code is that of other cases: one of them with other settings, or a chain of some.

    What would show in its parts is tested there; its own order, types and shapes are looked through
    in the traced program.
    """

    def __str__(self) -> str:
        return self.name


def _of(systems: np.ndarray, first: float, step: float) -> jax.Array:
    """A setting that differs between systems, in the pattern of three."""
    return jnp.asarray(first + step * (np.asarray(systems) % 3))


TRANSFORMS = [
    TransformCase("FIRE", lambda systems: FIRE()),
    TransformCase(
        "FIRE with settings per system",
        lambda systems: FIRE(
            dt=_of(systems, 0.05, 0.03),
            maxstep=_of(systems, 0.4, -0.15),
            Nmin=jnp.asarray(np.asarray(systems) % 4),
            finc=_of(systems, 1.2, -0.05),
        ),
        is_variant=True,
    ),
    TransformCase("GradientDescent", lambda systems: GradientDescent(_of(systems, 0.05, 0.02))),
    TransformCase("FIRE2", lambda systems: FIRE2(dt=_of(systems, 0.05, 0.03))),
    TransformCase("FIRE2 with ABC", lambda systems: FIRE2(use_abc=True)),
    TransformCase("MDMin", lambda systems: MDMin(dt=_of(systems, 0.05, 0.03))),
    TransformCase("LBFGS", lambda systems: LBFGS(maxstep=_of(systems, 0.1, 0.1), memory=12)),
    TransformCase(
        "Barzilai-Borwein",
        lambda systems: chain(
            GradientDescent(_of(systems, 0.02, 0.01), barzilai_borwein=True), MaxStepSize(0.3)
        ),
    ),
    TransformCase("Adam", lambda systems: Adam(_of(systems, 0.02, 0.01))),
    TransformCase(
        "clipped FIRE with short steps",
        lambda systems: chain(
            ClipByGlobalNorm(_of(systems, 2.0, 1.5)), FIRE(), MaxStepSize(_of(systems, 0.02, 0.03))
        ),
        is_alone_in_global_mode=False,
        is_variant=True,
    ),
    TransformCase(
        "clipped Adam",
        lambda systems: chain(ClipByGlobalNorm(3.0), _ADAM),
        is_alone_in_global_mode=False,
        is_variant=True,
    ),
    TransformCase(
        "clipped heavy ball",
        lambda systems: chain(
            _TRACE, GradientDescent(_of(systems, 0.02, 0.01)), ClipByGlobalNorm(0.3)
        ),
        is_alone_in_global_mode=False,
    ),
    TransformCase(
        "scaled chain of a chain",
        lambda systems: chain(chain(MaxStepSize(0.5), FIRE()), _HALF),
        is_alone_in_global_mode=False,
        is_variant=True,
    ),
    TransformCase(
        "FIRE of FIRE",
        lambda systems: chain(_MINUS, FIRE(), FIRE(dt=0.3, Nmin=2)),
        is_alone_in_global_mode=False,
        is_variant=True,
    ),
    TransformCase(
        "ClipByGlobalNorm",
        lambda systems: ClipByGlobalNorm(_of(systems, 0.5, 0.7)),
        descends=False,
        is_alone_in_global_mode=False,
    ),
    TransformCase(
        "MaxStepSize", lambda systems: MaxStepSize(_of(systems, 0.1, 0.4)), descends=False
    ),
    TransformCase(
        "both limits",
        lambda systems: chain(MaxStepSize(0.7), ClipByGlobalNorm(_of(systems, 0.5, 0.7))),
        descends=False,
        is_alone_in_global_mode=False,
        is_variant=True,
    ),
    TransformCase(
        "every other clip",
        lambda systems: chain(
            ClipByGlobalNorm(_of(systems, 0.9, 0.7), ord="inf", nan_safe=True),
            ClipByLayerNorm(_of(systems, 0.8, 0.6), uniform=False),
            ClipByRowNorm(_of(systems, 0.3, 0.2)),
            ClipByValue(_of(systems, 0.2, 0.1)),
        ),
        descends=False,
        is_by_leaf=True,
    ),
    TransformCase("empty chain", lambda systems: chain(), descends=False),
]

# Made once: an optax transformation is told from another by the identity of its functions.
_ADAM, _TRACE = optax.adam(0.05), optax.trace(0.5)
_HALF, _MINUS = optax.scale(0.5), optax.scale(-1.0)

OPTIMIZERS = [case for case in TRANSFORMS if case.descends]
LIMITS = [case for case in TRANSFORMS if not case.descends]


KINDS = [case for case in OPTIMIZERS if not case.is_variant]
KINDS_OF_LIMITS = [case for case in LIMITS if not case.is_variant]
ALL_KINDS = KINDS + KINDS_OF_LIMITS


def in_turns(cases: list[Any], others: list[Any]) -> list[Any]:
    """Each case with one of the others, by turns: all combinations would mostly compile."""
    chosen = [others[k % len(others)] for k in range(len(cases))]
    names = [getattr(other, "__name__", other) for other in chosen]
    return [
        pytest.param(case, other, id=f"{case}-{name}")
        for case, other, name in zip(cases, chosen, names, strict=True)
    ]


# --- problems


@dataclasses.dataclass(frozen=True)
class Problem:
    """An energy per system. `size` is the number of rows of a system's largest leaf."""

    name: str
    sizes: Callable[[int], Any]
    """Rows in each leaf of the index prefix, for a system of that size."""

    draw: Callable[[np.random.Generator, int], tuple[Any, dict[str, Any]]]
    """A start, and named constants of which each is a tree like the start."""

    evaluate: Callable[..., tuple[jax.Array, Any]]
    """`(params, index_prefix, **constants)` to energies and gradient, in rounded products."""

    def __str__(self) -> str:
        return self.name


def _bowl_draw(draw, size):
    centre = draw.normal(size=(size, 3))
    start = centre + draw.uniform(0.5, 1.5, (size, 3)) * draw.choice([-1.0, 1.0], (size, 3))
    return start, {"stiffness": draw.uniform(0.3, 9.0, (size, 3)), "centre": centre}


def _bowl(params, prefix, stiffness, centre):
    away = jax.tree.map(jnp.subtract, params, centre)
    gradient = jax.tree.map(lambda k, d: rounded(k * d), stiffness, away)
    return rounded(0.5 * segment.dot(gradient, away, prefix)), gradient


def _narrow_draw(draw, size):
    """A bowl of condition 1e4."""
    start, constants = _bowl_draw(draw, size)
    return start, constants | {"stiffness": 10.0 ** np.linspace(-2, 2, 3 * size).reshape(size, 3)}


def _valley_draw(draw, size):
    start = np.array([-1.2, 1.0]) + draw.uniform(-0.3, 0.3, (size, 2))
    return start, {"wall": draw.uniform(5.0, 30.0, (size, 2))}


def _wells_draw(draw, size):
    start = draw.uniform(-0.3, 0.3, (size, 3))
    return start, {"tilt": draw.normal(size=(size, 3)) * 0.2}


def _wells(x, prefix, tilt):
    """Two wells an entry, tilted; the start is near the barrier."""
    energies, gradient = _wells_of_entries(x, tilt)
    return segment.sum(energies, prefix), gradient


def _wells_of_entries(x, tilt):
    height = rounded(x * x) - 1.0
    quartic = rounded(0.25 * rounded(height * height))
    return quartic + rounded(tilt * x), rounded(height * x) + tilt


def _coupled(params, prefix, stiffness, centre):
    """Bowls whose entries are tied by a spring between the sum of them all and zero."""
    energies, gradient = _bowl(params, prefix, stiffness, centre)
    weights = jax.tree.map(lambda x: jnp.full_like(x, 0.05), params)
    total = segment.dot(weights, params, prefix)
    half_square = rounded(0.5 * rounded(total * total))
    pull = lambda s, g, w: g + rounded(s * w)  # noqa: E731
    spread = [(total, 0.0)]
    return energies + half_square, segment.map_rows(pull, prefix, spread, gradient, weights)


def _cells_draw(draw, size):
    start, constants = _bowl_draw(draw, size)
    shape = (1, 3, 3)
    cell = np.eye(3)[None] + draw.normal(size=shape) * 0.2
    constants = {
        "stiffness": {"positions": constants["stiffness"], "cell": draw.uniform(1, 3, shape)},
        "centre": {"positions": constants["centre"], "cell": np.eye(3)[None] * 1.5},
    }
    return {"positions": start, "cell": cell}, constants


def _branches_draw(draw, size):
    pairs = {"angles": (size,), "shifts": (size, 3), "frames": (size, 2, 2)}
    constants = {
        "stiffness": {name: draw.uniform(0.5, 5, shape) for name, shape in pairs.items()},
        "centre": {name: draw.normal(size=shape) for name, shape in pairs.items()},
    }
    return {name: draw.normal(size=shape) for name, shape in pairs.items()}, constants


def _mixed_draw(draw, size):
    """A narrow bowl, a valley or wells, by chance; whichever it is not counts for nothing."""
    kind = draw.integers(3)
    starts, constants = [], {"kind": np.full((size, 3), float(kind))}
    for one in (_narrow_draw, _valley_draw, _wells_draw):
        start, its_constants = one(draw, size)
        starts.append(np.pad(start, ((0, 0), (0, 3 - start.shape[1]))))
        constants |= its_constants
    constants["wall"] = np.pad(constants["wall"], ((0, 0), (0, 1)))
    return starts[kind], constants


def _mixed(x, prefix, kind, stiffness, centre, wall, tilt):
    """Systems of three problems in one batch, whose energies are one sum: less to compile."""
    away = x - centre
    pull = rounded(stiffness * away)
    bowl = rounded(0.5 * rounded(pull * away)), pull

    # Rosenbrock's, of two entries a row.
    u, v, none = x[:, 0], x[:, 1], jnp.zeros_like(x[:, 0])
    off, past = v - rounded(u * u), u - 1.0
    slope = rounded(wall[:, 0] * off)
    by_u = 2.0 * past - rounded(4.0 * rounded(slope * u))
    squares = jnp.stack([rounded(slope * off), rounded(past * past), none], axis=1)
    valley = squares, jnp.stack([by_u, 2.0 * slope, none], axis=1)

    energies, gradient = (
        jnp.where(kind == 0, b, jnp.where(kind == 1, v, w))
        for b, v, w in zip(bowl, valley, _wells_of_entries(x, tilt), strict=True)
    )
    return segment.sum(energies, prefix), gradient


def _rows(size):
    return size


BOWL = Problem("bowl", _rows, _bowl_draw, _bowl)
WELLS = Problem("two wells", _rows, _wells_draw, _wells)
MIXED = Problem("narrow bowls, valleys and wells", _rows, _mixed_draw, _mixed)
COUPLED = Problem("coupled rows", _rows, _bowl_draw, _coupled)
BRANCHES = Problem("three leaves of one index", _rows, _branches_draw, _coupled)
CELLS = Problem("cells", lambda size: {"positions": size, "cell": 1}, _cells_draw, _coupled)


# --- layouts


@dataclasses.dataclass(frozen=True)
class Layout:
    """A way to lay the rows of systems into one array."""

    name: str
    index: Callable[[list[int]], SystemIndex]

    def __str__(self) -> str:
        return self.name


def _with_room(sizes):
    return SystemIndex.from_sizes(sizes, n_rows=sum(sizes) + 13)


def _shuffled(sizes):
    ids = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return SystemIndex.from_ids(ids, len(sizes))


def _shuffled_with_gaps(sizes):
    ids = np.repeat(np.arange(-1, len(sizes)), [11, *sizes])
    return SystemIndex.from_ids(np.random.default_rng(1).permutation(ids), len(sizes))


CONTIGUOUS = Layout("contiguous", SystemIndex.from_sizes)
ALIGNED = Layout("aligned", lambda sizes: SystemIndex.from_sizes(sizes, align=8))
SHUFFLED_WITH_GAPS = Layout("shuffled with gaps", _shuffled_with_gaps)
LAYOUTS = [
    CONTIGUOUS,
    ALIGNED,
    Layout("aligned to 16", lambda sizes: SystemIndex.from_sizes(sizes, align=16)),
    Layout("spaced by 3", lambda sizes: SystemIndex.from_sizes(sizes, align=3)),
    Layout("with room at the end", _with_room),
    Layout("shuffled", _shuffled),
    SHUFFLED_WITH_GAPS,
]


TWO_LAYOUTS = [ALIGNED, SHUFFLED_WITH_GAPS]
RELAXATIONS = one_in(
    3,
    [
        pytest.param(case, layout, dtype, id=f"{case}-{layout}-{dtype.__name__}")
        for k, case in enumerate(KINDS)
        for layout, dtype in [(TWO_LAYOUTS[k % 2], DTYPES[2 * k // len(KINDS)])]
    ][2::3],
)
"""Of seven systems. Of some optimizers: their loop is one, and its programs are the largest.

`LBFGS` relaxes in batches every day in engine/test_optimizers.py.
"""

ONE_BLOCK_OR_MANY = [70, 1, 90, 3, 8, 75, 130, 5, 300, 1]
"""Rows of systems with few numbers of levels, so that those alone have few programs too."""


# --- systems into batches, and out again


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """One system as NumPy arrays in float64. Made once, so that runs of it can be kept."""

    number: int
    sizes: Any
    start: Any
    constants: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Batch:
    systems: list[System]
    prefix: Any
    params: Any
    evaluate: "Evaluation"

    @property
    def numbers(self) -> np.ndarray:
        return np.array([system.number for system in self.systems], int)


class Evaluation(eqx.Module):
    """A problem with its constants: what `relax` takes as `value_and_gradient`."""

    problem: Problem = eqx.field(static=True)
    prefix: Any
    constants: dict[str, Any]

    def __call__(self, params):
        return self.problem.evaluate(params, self.prefix, **self.constants)


@functools.cache
def make_systems(problem: Problem, *sizes: int, spoiled: bool = False) -> list[System]:
    """Systems of those sizes, each from a seed of its own.

    `spoiled` adds three that fail, of the last size: from a NaN, from an inf, and from an entry
    that is finite and whose square, in float32, is not.
    """
    systems = [_draw(problem, number, size) for number, size in enumerate(sizes)]
    if spoiled:
        broken = [_draw(problem, len(sizes) + k, sizes[-1]) for k in range(3)]
        values = [np.nan, np.inf, 1e25]
        systems += [
            dataclasses.replace(system, start=_with_first_entry(system.start, value))
            for system, value in zip(broken, values, strict=True)
        ]
    return systems


def _draw(problem: Problem, number: int, size: int) -> System:
    start, constants = problem.draw(np.random.default_rng(1000 + number), size)
    return System(number, problem.sizes(size), start, constants)


def _with_first_entry(tree, value):
    leaves, structure = jax.tree.flatten(tree)
    first = leaves[0].copy()
    first.reshape(-1)[0] = value
    return structure.unflatten([first, *leaves[1:]])


def make_batch(
    problem: Problem, systems: list[System], layout: Layout, dtype, padding: float = np.nan
) -> Batch:
    """The systems in one batch; rows of no system hold `padding`, constants too."""
    prefix = jax.tree.map(
        lambda *counts: layout.index(list(counts)), *[system.sizes for system in systems]
    )
    params = place(prefix, [system.start for system in systems], dtype, padding)
    constants = {
        name: place(prefix, [system.constants[name] for system in systems], dtype, padding)
        for name in systems[0].constants
    }
    return Batch(systems, prefix, params, Evaluation(problem, prefix, constants))


def make_alone(problem: Problem, system: System, dtype) -> Batch:
    return make_batch(problem, [system], CONTIGUOUS, dtype)


def place(prefix, trees: list[Any], dtype, padding: float = np.nan):
    """The rows of each system's tree where the prefix has them."""

    def put(index, *branches):
        def leaf(*parts):
            rows = np.full((index.n_rows, *parts[0].shape[1:]), padding)
            for system, part in enumerate(parts):
                rows[rows_of(index, system)] = part
            with np.errstate(over="ignore"):
                return jnp.asarray(rows.astype(dtype))

        return jax.tree.map(leaf, *branches)

    return jax.tree.map(put, prefix, *trees, is_leaf=is_index)


def take(prefix, tree, system: int, axis: int = 0):
    """The rows of one system out of a batch."""

    def rows(index, branch):
        at = rows_of(index, system)
        return jax.tree.map(lambda leaf: np.asarray(leaf).take(at, axis), branch)

    return jax.tree.map(rows, prefix, tree, is_leaf=is_index)


def take_state(state, system: int, prefix=None) -> list[Any]:
    """What a transform's state holds of one system, by what each field says that it leads with."""
    prefix = state.index_prefix if prefix is None else prefix
    parts = []
    for field in dataclasses.fields(state):
        content = getattr(state, field.name)
        match field.metadata.get("leads_with"):
            case "rows":
                parts.append(take(state.rows_prefix(prefix), content, system))
            case "slots":
                parts.append(take(state.rows_prefix(prefix), content, system, axis=1))
            case "systems":
                parts.append(jax.tree.map(lambda leaf: np.asarray(leaf)[system], content))
            case "states":
                parts.append([take_state(inner, system, prefix) for inner in content])
    return parts


def rows_of(index: SystemIndex, system: int) -> np.ndarray:
    return np.flatnonzero(np.asarray(index.ids) == system)


def is_index(x) -> bool:
    return isinstance(x, SystemIndex)


# --- runs


@eqx.filter_jit
def advance(transform, evaluate, params, state, length: int):
    """A scan over update and apply_updates: params and state at the end, all energies."""
    return plain_advance(transform, evaluate, params, state, length)


def plain_advance(transform, evaluate, params, state, length: int):
    def turn(carry, _):
        params, state = carry
        energies, gradient = evaluate(params)
        step, state = transform.update(gradient, state, params)
        return (apply_updates(params, step), state), energies

    (params, state), energies = jax.lax.scan(turn, (params, state), length=length)
    return params, state, energies


def begun_steps(transform, gradients, params, prefix):
    """The steps for these gradients from a state that begins here, and the last state."""
    state, steps = transform.init(params, prefix), []
    for gradient in gradients:
        step, state = transform.update(gradient, state, params)
        steps.append(step)
    return steps, state


def plain_run(transform, evaluate, params, prefix, length: int):
    """`plain_advance` from the start."""
    return plain_advance(transform, evaluate, params, transform.init(params, prefix), length)


run = eqx.filter_jit(plain_run, compiler_options=AS_USERS)
"""Compiled as users do."""
quick_run = eqx.filter_jit(plain_run)
"""In a third of the time."""


@eqx.filter_jit
def update(transform, gradient, state, params):
    return transform.update(gradient, state, params)


@eqx.filter_jit
def apply(params, step):
    return apply_updates(params, step)


@eqx.filter_jit
def evaluate(batch_evaluate, params):
    return batch_evaluate(params)


def steps(transform, batch: "Batch", params, state, count: int):
    """So many steps, in three small programs that many tests share."""
    for _ in range(count):
        gradient = evaluate(batch.evaluate, params)[1]
        step, state = update(transform, gradient, state, params)
        params = apply(params, step)
    return params, state


@contextlib.contextmanager
def without_branches():
    """Programs as on a GPU, for functions that JAX itself compiles."""
    jax.clear_caches()
    with xla.without("branches"):
        yield
    jax.clear_caches()


def run_batch(case: TransformCase, batch: Batch, length: int, program: Callable = run):
    return program(case.make(batch.numbers), batch.evaluate, batch.params, batch.prefix, length)


@functools.cache
def run_alone(
    case: TransformCase,
    problem: Problem,
    system: System,
    dtype,
    length: int,
    program: Callable = quick_run,
):
    """What `system_of` takes out of a run in a batch, for a system that runs alone.

    Quickly compiled it has the bits of single operations, which those of a batch that is compiled
    as users do must be.
    """
    alone = make_alone(problem, system, dtype)
    return system_of(alone, run_batch(case, alone, length, program), 0)


def system_of(batch: Batch, run, system: int):
    """The params, state and energies of one system out of a run of a batch."""
    params, state, energies = run
    return (
        take(batch.prefix, params, system),
        take_state(state, system),
        np.asarray(energies)[:, system],
    )


# --- comparison


def same_bits(got, expected) -> bool:
    """Whether two trees have equal structure, dtypes, shapes and bits; any NaN equals any."""
    if jax.tree.structure(got) != jax.tree.structure(expected):
        return False
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    return all(_same_bits(np.asarray(x), np.asarray(y)) for x, y in pairs)


def _same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    is_equal = np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
    is_number = ~np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
    return is_equal and bool((np.signbit(x) == np.signbit(y))[is_number].all())
