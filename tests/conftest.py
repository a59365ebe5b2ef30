"""Strict JAX for every test: double precision, no silent promotion of dtypes or ranks."""

import contextlib
import gc
import itertools
import os
import shutil
import signal
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace

# OpenBLAS reads it when it is loaded. Its threads wait for each other even over matrices of 3x3,
# of which ASE's filters have thousands, and on busy cores nearly all of the time is waiting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest
from hypothesis import HealthCheck, settings

from recorded import recorded
from xla import choose_options

__all__ = ["recorded"]

pytest_plugins = ["atoms_fixtures", "shapes", "wells"]

choose_options()
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# How long it takes to draw examples depends on whatever else a machine does.
settings.register_profile("timeless", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timeless")

# Programs that `forget_programs` drops, or that tests share by chance, need not be compiled again.
# JAX writes their files in place, so each process has a directory of its own; those of the workers
# of a run are in one, of which they inherit the name.
_OF_THE_RUN = "BASINAX_TESTS_PROGRAMS"
if _OF_THE_RUN not in os.environ:
    _programs = tempfile.TemporaryDirectory()
    os.environ[_OF_THE_RUN] = _programs.name
_own = Path(os.environ[_OF_THE_RUN], os.environ.get("PYTEST_XDIST_WORKER", "alone"))
_own.mkdir(exist_ok=True)
jax.config.update("jax_compilation_cache_dir", str(_own))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# With these a program would be known by the name of the directory, too.
jax.config.update("jax_persistent_cache_enable_xla_caches", "none")

# Programs that are traced make many objects, of which hardly any lie in cycles.
gc.set_threshold(50_000, 20, 20)

# A shell may have started the tests in the background, where interrupts are ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Commands that tests start keep no programs among the user's.
os.environ["BASINAX_CACHE"] = "off"

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


_shared, _seen_at = set(), 0


@pytest.fixture(autouse=True)
def share_programs():
    """Give the other workers copies of what this one has compiled, under their names when whole.

    Thousands of names take longer to read than many a test, which compiles nothing.
    """
    global _seen_at
    yield
    if (changed_at := _own.stat().st_mtime_ns) == _seen_at:
        return
    _seen_at = changed_at
    programs = set(os.listdir(_own))
    others = [path for path in _own.parent.glob("gw*") if path != _own]
    part = _own.parent / f"part-from-{_own.name}"
    for program, other in itertools.product(programs - _shared, others):
        if not (other / program).exists():
            shutil.copyfile(_own / program, part)
            part.rename(other / program)
    _shared.update(programs)


_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def forget_programs():
    """Drop all compiled programs where they have become many.

    Each takes memory mappings, of which Linux allows a process 65,530; beyond, compiling ends it.
    Long before, it takes its time: JAX keeps what each program was lowered to, and MLIR looks
    through all that is kept to lower another one. With 2000 programs, which are 6500 mappings, a
    small one takes twice as long as with none.
    """
    from basinax.numerics.programs import count_mappings

    yield
    if next(_tests_run) % 5 == 0 and count_mappings() > 8_000:
        jax.clear_caches()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="Run the K-th of N parts of the tests, from 0.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what reads recorded paths; keep one part, which a test's name decides."""
    for item in items:
        if "recorded" in getattr(item, "fixturenames", ()):
            item.add_marker("recorded")
    if (part := config.getoption("--part")) is None:
        return
    k, n = map(int, part.split("/"))
    mine = [zlib.crc32(item.nodeid.encode()) % n == k for item in items]
    config.hook.pytest_deselected(items=list(itertools.compress(items, (not m for m in mine))))
    items[:] = itertools.compress(items, mine)
