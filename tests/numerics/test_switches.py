"""Runs go on as ever under JAX's own switches, in the threads that they start too."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import FIRE, Status, SystemIndex, product, relax, segment
from basinax.numerics.switches import config_context, own_switches, switches

INDEX = SystemIndex.from_sizes([2, 1])
START = np.linspace(-1.0, 1.0, 9).reshape(3, 3)


def bowl(x):
    gradient = product(x, jnp.full_like(x, 0.7))
    return segment.dot(gradient, x, INDEX) * 0.5, gradient


def run(**options):
    """Of a system that converges, and one that becomes infinite where it starts."""
    return relax(bowl, START, FIRE(), index_prefix=INDEX, max_steps=2, keep_best=True, **options)


SWITCHES = {
    "disable_jit": lambda: jax.disable_jit(),
    "debug_infs": lambda: jax.debug_infs(True),
    "debug_nans": lambda: jax.debug_nans(True),
    "tracer leaks": lambda: jax.checking_leaks(),
    "transfer guard": lambda: jax.transfer_guard("disallow"),
    "standard promotion": lambda: jax.numpy_dtype_promotion("standard"),
    "standard ranks": lambda: jax.numpy_rank_promotion("allow"),
    "matmul precision": lambda: jax.default_matmul_precision("float32"),
}


@pytest.mark.filterwarnings("ignore::basinax.OrderWarning")
def test_random_numbers_of_a_model_follow_their_switches():
    """Programs that are kept are those of the switches; JAX alone would trace anew."""

    def model(x):
        apart = x - jax.random.uniform(jax.random.key(0), (3, 3))
        return 0.5 * segment.dot(apart, apart, INDEX), apart

    ends = []
    for is_new in (True, False):
        with jax.threefry_partitionable(is_new):
            ends.append(relax(model, START, FIRE(), index_prefix=INDEX, max_steps=0).gradients)
    assert not np.array_equal(*ends)


@pytest.fixture(scope="module")
def expected():
    return run()


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_changes_no_bit(name, expected):
    with SWITCHES[name]():
        got = run()
    same = jax.tree.map(lambda x, y: np.array_equal(x, y), got, expected)
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize("wide", [True, False])
def test_the_precision_is_that_of_the_context(wide):
    with jax.enable_x64(wide):
        result = relax(lambda x: (segment.sum(x), x), jnp.asarray(START), FIRE(), max_steps=0)
    assert result.params.dtype == result.energies.dtype == (np.float64 if wide else np.float32)


def test_what_becomes_infinite_under_debug_infs_has_a_status():
    with jax.debug_infs(True):
        result = relax(lambda x: (segment.sum(x) + jnp.inf, x), START, FIRE(), max_steps=2)
    assert result.status.tolist() == [Status.NOT_FINITE.code]


SOME = {
    "jax_enable_x64": False,
    "jax_debug_nans": True,
    "jax_check_tracer_leaks": True,
    "jax_numpy_rank_promotion": "warn",
    "jax_default_matmul_precision": "float32",
    "jax_transfer_guard_host_to_device": "log",
}


def test_switches_of_a_thread_go_with_its_work():
    seen = []

    def work(wanted):
        before = switches()
        with config_context(wanted):
            seen.append(switches())
        seen.append(switches() == before)

    with config_context(SOME):
        here = switches()
        thread = threading.Thread(target=work, args=(here,))
        thread.start()
        thread.join()
    assert SOME.items() <= here.items()
    assert seen == [here, True]


def test_a_run_sets_no_switch_that_stands_as_it_should(count_compilations):
    jax.jit(lambda x: x + 1)(1.0)
    with own_switches(), count_compilations() as counted, config_context(switches()):
        jax.jit(lambda x: x)(1.0)
        assert counted.count <= 1


def test_a_run_allows_its_own_transfers_alone():
    with jax.transfer_guard("disallow"):
        with own_switches():
            assert switches()["jax_transfer_guard_host_to_device"] == "allow"
        assert switches()["jax_transfer_guard_host_to_device"] == "disallow"
