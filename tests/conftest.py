"""Strict JAX for every test: double precision, no silent promotion of dtypes or ranks."""

import contextlib
import itertools
import tempfile
from types import SimpleNamespace

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Programs that `forget_programs` drops, or that tests share by chance, need not be compiled again.
_programs = tempfile.TemporaryDirectory()
jax.config.update("jax_compilation_cache_dir", _programs.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

_open_counts = []


def _count(event: str, duration: float, **_) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        for counted in _open_counts:
            counted.count += 1


jax.monitoring.register_event_duration_secs_listener(_count)


@pytest.fixture
def count_compilations():
    """A context manager that counts the programs that are compiled meanwhile, in `.count`."""

    @contextlib.contextmanager
    def counting():
        counted = SimpleNamespace(count=0)
        _open_counts.append(counted)
        try:
            yield counted
        finally:
            _open_counts.remove(counted)

    return counting


_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def forget_programs():
    """Drop all compiled programs every 100 tests.

    Each takes memory mappings, of which Linux allows a process 65,530; beyond, compiling ends it.
    """
    yield
    if next(_tests_run) % 100 == 0:
        jax.clear_caches()
