"""Traces what the core and the potentials compute; nothing is compiled.

`tests/numerics/test_types.py` imports it where signatures are checked as they are called.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import test_order_of_potentials as potentials
import test_order_of_transforms as transforms

import basinax
from basinax.atoms import Batch
from cases import BOWL, CELLS, CONTIGUOUS, DTYPES, OPTIMIZERS, TRANSFORMS, make_batch, make_systems
from structures import listed

VARIANTS = {case.name for case in TRANSFORMS if case.is_variant}


def trace_transforms() -> Iterator[str]:
    """Each begins and makes a step, of systems of two leaves."""
    systems = make_systems(CELLS, 8, 1, 4)
    batches = [make_batch(CELLS, systems, CONTIGUOUS, dtype) for dtype in DTYPES]
    for k, (name, make) in enumerate(transforms.CASES.items()):
        if name in VARIANTS:
            continue
        batch, transform = batches[k % 2], make(np.arange(3))

        def step(params, batch=batch, transform=transform):
            state = transform.init(params, batch.prefix)
            energies = batch.evaluate(params)[0]
            updates, state = transform.update(params, state, params, energies=energies)
            return basinax.apply_updates(params, updates), state

        jax.eval_shape(step, batch.params)
        yield name


def trace_fits() -> Iterator[str]:
    index = basinax.SystemIndex.from_sizes([1, 2])
    model = basinax.sum_of_squares(lambda x, is_row: jnp.where(is_row, x - 1.5, 0.0).ravel())
    how = {"index_prefix": index, "fmax": 0.1, "has_extras": True}

    def ends(params):
        optimizer = basinax.LevenbergMarquardt()
        return basinax.relax(lambda x: model(x, index), params, optimizer, **how).params

    jax.eval_shape(ends, jnp.zeros(3))
    yield "LevenbergMarquardt"


def trace_relaxations() -> Iterator[str]:
    """By all criteria."""
    batch = make_batch(BOWL, make_systems(BOWL, 8, 1, 4), CONTIGUOUS, np.float64)
    criterion = basinax.MaxForce(0.1) & basinax.RMSForce(0.1) & basinax.ForceNorm(0.1)
    criterion = criterion | (basinax.EnergyChange(0.1) & basinax.MaxDisplacement(0.1))

    def ends(params):
        optimizer = OPTIMIZERS[0].make(batch.numbers)
        how = {"index_prefix": batch.prefix, "convergence": criterion, "keep_best": True}
        return basinax.relax(batch.evaluate, params, optimizer, **how).energies

    jax.eval_shape(ends, batch.params)
    yield "relax"
    jax.eval_shape(jax.grad(lambda params: ends(params).sum()), batch.params)
    yield "derivatives of minima"


def trace_potentials() -> Iterator[str]:
    for k, (name, (potential, systems)) in enumerate(potentials.CASES.items()):
        batch = Batch.from_atoms(systems[:1], DTYPES[k % 2])
        evaluate = functools.partial(potential, stress=True)
        jax.eval_shape(evaluate, batch, listed(batch, potential, folded=[0]))
        yield name


def trace() -> Iterator[str]:
    yield from trace_transforms()
    yield from trace_fits()
    yield from trace_relaxations()
    yield from trace_potentials()
