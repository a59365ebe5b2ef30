"""Compiled programs that last are found before a trace where they are whole, and change no bit."""

import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import basinax
from basinax.numerics import cache, programs
from basinax.numerics.compilations import EVENT, LOADED
from basinax.numerics.programs import Programs
from basinax.numerics.rounding import rounded
from basinax.numerics.static import Static
from basinax.optimizers.fire import FIRE

TRACED = "/jax/core/compile/jaxpr_trace_duration"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder that this process keeps its programs in."""
    monkeypatch.setattr(cache, "_chosen", [])
    basinax.enable_cache(tmp_path)
    (of_processor,) = tmp_path.iterdir()
    of_tests = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield of_processor
    jax.config.update("jax_compilation_cache_dir", of_tests)
    compilation_cache.reset_cache()


@pytest.fixture
def seen():
    """The traces, compilations and loaded programs of the test, counted by the name of an event."""
    events: list[str] = []
    timed = lambda event, *_, **__: events.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(timed)
    jax.monitoring.register_event_listener(timed)
    yield events
    jax.monitoring.unregister_event_duration_listener(timed)
    jax.monitoring.unregister_event_listener(timed)


def damped(fixed: Static, arrays: Any, x: Any) -> Any:
    """Stands in for a function of the package."""
    optimizer = eqx.combine(arrays, fixed.tree)
    return {"x": rounded(x * optimizer.maxstep)}


damped.__module__ = "basinax.of_tests"


def in_a_process(seen, x=None, function=damped, optimizer=None, options="some"):
    """A later process: its result, and how often it traced, compiled, and loaded."""
    jax.clear_caches()
    seen.clear()
    x = np.arange(3.0) if x is None else x
    fixed, arrays = programs.Static(FIRE(maxstep=0.5) if optimizer is None else optimizer), None
    if function is damped:
        arrays = jax.tree.map(lambda _: None, fixed.tree)
    run = Programs(function, jax.jit(function, static_argnums=0), options, (0,))
    result = run(fixed, arrays, x)
    counts = [seen.count(event) for event in (TRACED, EVENT, LOADED)]
    return jax.tree.map(np.asarray, result), counts


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if cache._ENTRY.fullmatch(path.name))


def test_a_later_process_neither_traces_nor_compiles(seen, folder):
    first, (n_traced, n_compiled, _) = in_a_process(seen)
    assert n_traced > 0 and n_compiled == 1
    later, counts = in_a_process(seen)
    assert counts == [0, 0, 1]
    assert later["x"].tobytes() == first["x"].tobytes()
    assert len(entries(folder)) == 1


OTHERS = {
    "sources": lambda patch: patch.setattr(programs, "_sources", lambda: "others"),
    "flags of XLA": lambda patch: patch.setattr(programs, "_flags", lambda: ["--xla_others"]),
    "versions": lambda patch: patch.setattr(programs, "_versions", lambda: ["jax 99"]),
    "what is read": lambda patch: patch.setattr(programs, "READ", [lambda: "others"]),
    "a switch": lambda patch: patch.setattr(
        programs, "_switches", lambda: [("jax_default_matmul_precision", "highest")]
    ),
    "options": lambda _: {"options": "others"},
    "a static value": lambda _: {"optimizer": FIRE(maxstep=0.25)},
    "a shape": lambda _: {"x": np.arange(4.0)},
    "a dtype": lambda _: {"x": np.arange(3.0, dtype=np.float32)},
    "a weak type": lambda _: {"x": jnp.asarray(2.0)},
    "a structure": lambda _: {"x": 2.0},
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_decides_a_program_is_a_part_of_its_key(seen, monkeypatch, name):
    in_a_process(seen)
    with monkeypatch.context() as patch:
        how = OTHERS[name](patch) or {}
        assert in_a_process(seen, **how)[1][1:] == [1, 0]
    assert in_a_process(seen)[1] == [0, 0, 1]


def test_a_function_of_a_user_is_traced_and_found_by_its_text(seen):
    def function_of(factor):
        return lambda fixed, arrays, x: rounded(x * factor)

    assert in_a_process(seen, function=function_of(2.0))[1][1:] == [1, 0]
    again, (n_traced, *rest) = in_a_process(seen, function=function_of(2.0))
    assert n_traced > 0 and rest == [0, 1]
    other, counts = in_a_process(seen, function=function_of(3.0))
    assert counts[1:] == [1, 0]
    assert (again[1], other[1]) == (2.0, 3.0)


class OfUser(eqx.Module):
    """A static value of a class that no version describes."""

    maxstep: float = 0.5


def test_a_class_of_a_user_has_no_description(seen):
    assert in_a_process(seen, optimizer=OfUser())[1][1:] == [1, 0]
    n_traced, *rest = in_a_process(seen, optimizer=OfUser())[1]
    assert n_traced > 0 and rest == [0, 1]


UNKNOWN = {
    "a function": lambda: 0,
    "a class": OfUser,
    "an instance": OfUser(),
    "an object": object(),
    "a generator": np.random.default_rng(0),
    "inside": {1: object()},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_text_describes_is_known(name):
    with pytest.raises(programs._NoDescription):
        programs._described(UNKNOWN[name], is_static=True)


def test_a_static_array_is_described_by_its_numbers():
    texts = {programs._described(np.array([x]), is_static=True) for x in (1.0, 2.0, np.nan)}
    assert len(texts) == 3


class Plain:
    """Of a package of models."""

    def __init__(self, maxstep: float):
        self.maxstep = maxstep


def test_values_of_packages_of_models_are_described_with_what_they_read(
    seen, monkeypatch, tmp_path
):
    source, read = tmp_path / "packaged" / "__init__.py", [1]
    source.parent.mkdir()
    source.write_text("one = 1")
    package = types.SimpleNamespace(__file__=str(source), Plain=Plain)
    monkeypatch.setattr(Plain, "__module__", "packaged")
    monkeypatch.setitem(sys.modules, "packaged", package)
    monkeypatch.setitem(programs.PACKAGES, "packaged", lambda: read)
    monkeypatch.setattr(programs, "BEGUN", np.inf)

    def counts(maxstep: float = 0.5) -> list[int]:
        programs._sources_in.cache_clear()
        return in_a_process(seen, optimizer=Plain(maxstep))[1]

    assert counts()[1:] == [1, 0]
    assert counts() == [0, 0, 1]
    assert counts(0.25)[1:] == [1, 0]
    read.append(2)
    assert counts()[1:] == [1, 0]
    source.write_text("one = 2")
    assert counts()[1:] == [1, 0]
    assert counts() == [0, 0, 1]
    monkeypatch.setattr(programs, "BEGUN", 0.0)  # sources changed behind the back of a process
    assert [counts()[1:] for _ in range(2)] == [[1, 0]] * 2


@pytest.mark.parametrize("is_on", [True, False])
def test_a_program_that_is_made_ahead_is_only_called(seen, monkeypatch, is_on):
    if not is_on:
        monkeypatch.setattr(cache, "_chosen", [None])
    jax.clear_caches()
    seen.clear()
    run = Programs(damped, jax.jit(damped, static_argnums=0), "", (0,))
    fixed = Static(FIRE())
    args = fixed, jax.tree.map(lambda _: None, fixed.tree), np.ones(5)
    run.compile(*args)
    assert seen.count(EVENT) == 1
    seen.clear()
    assert np.array_equal(run(*args)["x"], 0.2 * np.ones(5))
    assert seen == []


@pytest.mark.parametrize("is_on", [True, False])
def test_programs_are_dropped_where_the_process_has_many_mappings(seen, monkeypatch, is_on):
    """Linux would end it; the count changes only where a program has been made."""
    if not is_on:
        monkeypatch.setattr(cache, "_chosen", [None])
    n_mappings = 1000
    monkeypatch.setattr(programs, "count_mappings", lambda: n_mappings)
    monkeypatch.setattr(programs._Seen, "most", programs.MOST_MAPPINGS)
    run = Programs(damped, jax.jit(damped, static_argnums=0), "", (0,))
    fixed = Static(FIRE())
    args = fixed, jax.tree.map(lambda _: None, fixed.tree), np.ones(5)
    first = run(*args)["x"]
    run(*args)
    n_mappings = 40_000
    seen.clear()
    run(*args)
    assert seen == []
    jax.jit(lambda x: x + 1).lower(np.zeros(1013)).compile()
    seen.clear()
    assert np.array_equal(run(*args)["x"], first)
    assert [seen.count(event) for event in (EVENT, LOADED)] == [not is_on, is_on]
    assert programs._Seen.most == 52_000  # others have these mappings
    seen.clear()
    run(*args)
    assert seen == []


def test_a_program_that_calls_python_is_not_kept(seen, folder):
    def calls(fixed, arrays, x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((3,), float), x)

    for _ in range(2):
        assert in_a_process(seen, function=calls)[1][1:] == [1, 0]
    assert entries(folder) == []


def test_threads_that_want_one_program_compile_it_once(seen):
    run = Programs(damped, jax.jit(damped, static_argnums=0), "", (0,))
    fixed = Static(FIRE())
    arrays = jax.tree.map(lambda _: None, fixed.tree)
    threads = [threading.Thread(target=run, args=(fixed, arrays, np.ones(5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.count(EVENT) == 1


def test_derivatives_and_checks_of_jax_go_their_usual_way(seen):
    run = Programs(damped, jax.jit(damped, static_argnums=0), "", (0,))
    fixed = Static(FIRE(maxstep=0.5))
    arrays = jax.tree.map(lambda _: None, fixed.tree)
    slope = jax.grad(lambda x: run(fixed, arrays, x)["x"])(1.0)
    assert slope == 0.5
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        run(fixed, arrays, np.array([np.nan]))
    assert np.isnan(run(fixed, arrays, np.array([np.nan]))["x"])


def test_a_model_may_close_over_numbers_of_vmap():
    index = basinax.SystemIndex.from_sizes([2, 3])

    def end(shift):
        def model(x):
            away = x - jnp.asarray(shift, x.dtype)
            return basinax.segment.dot(away, away, index) / 2, away

        how = {"index_prefix": index, "fmax": 1e-9}
        return basinax.relax(model, jnp.ones((5, 1)), FIRE(), **how).params

    for shifts in (jnp.arange(3.0), jnp.arange(3)):
        expected = np.broadcast_to(np.arange(3.0)[:, None, None], (3, 5, 1))
        np.testing.assert_allclose(jax.vmap(end)(shifts), expected, atol=1e-8)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rename_as_whole(path):
    """Bytes that are no program, under their own digest."""
    path.unlink()
    digest = cache._digest(b"no program")
    path.with_name(f"{path.name.partition('.')[0]}.{digest}").write_bytes(b"no program")


DAMAGE = {
    "cut": cut,
    "empty": lambda path: os.truncate(path, 0),
    "one bit": flip,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "gone": lambda path: path.unlink(),
    "no program": rename_as_whole,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_compiled_again(seen, folder, name, recwarn):
    first, _ = in_a_process(seen)
    for path in entries(folder):
        DAMAGE[name](path)
    again, counts = in_a_process(seen)
    assert counts[1:] == [1, 0]
    assert again["x"].tobytes() == first["x"].tobytes()
    assert not recwarn.list


def test_what_is_of_others_stays(seen, tmp_path, folder):
    others = [folder / "notes", folder / f"{'0' * 64}.{'0' * 31}"]
    for other in others:
        other.write_bytes(b"of others")
    basinax.enable_cache(tmp_path, max_size=0)
    in_a_process(seen)
    assert sorted(folder.iterdir()) == sorted(others)


def test_those_used_longest_ago_go_where_there_is_no_room(seen, tmp_path, folder):
    for n in (3, 4, 5):
        in_a_process(seen, np.arange(float(n)))
    for path in entries(folder):
        os.utime(path, (1, 1))
    in_a_process(seen, np.arange(3.0))  # which is used again
    basinax.enable_cache(
        tmp_path, max_size=int(2.5 * max(p.stat().st_size for p in entries(folder)))
    )
    in_a_process(seen, np.arange(6.0))
    assert len(entries(folder)) == 2
    assert in_a_process(seen, np.arange(3.0))[1] == [0, 0, 1]


USES = """
import sys, jax
from ase.build import bulk
from basinax.atoms import LennardJones, relax
config = dict(jax.config.values)
cells = [bulk("Ar", cubic=True, a=5.3) for _ in range(3)]
for seed, cell in enumerate(cells):
    cell.rattle(0.1, seed=seed)
traced = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: traced.append(event))
result = relax(cells, LennardJones.named("Ar"), fmax=0.01, dtype="float32")
assert dict(jax.config.values) == config
print(result.energies.tobytes().hex(), result.compilations, len(traced))
"""


@pytest.mark.exhaustive
def test_processes_share_their_programs_without_a_word(tmp_path):
    def run():
        usual = ["-W", "error", "-W", "ignore::DeprecationWarning"]  # of NumPy, about ASE
        command = [sys.executable, *usual, "-c", USES]
        environment = os.environ | {"BASINAX_CACHE": str(tmp_path / "shared")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    first, later = run(), run()
    assert first[0] == later[0]
    assert int(first[1]) > int(later[1])
    assert int(later[2]) < int(first[2])  # what JAX traces, lowers and compiles


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").touch()
    assert basinax.enable_cache(tmp_path / "file") is None
    assert cache.cache() is None


UNSAFE = {
    "named": ("above/named", 0o777, "other users may write to"),
    "of programs": ("above/named/programs", 0o707, "other users may write to"),
    "above": ("above", 0o777, "other users may write to"),
    "of a group": ("above/named", 0o770, "other users may write to"),
    "of an owner": ("above/named", 0o700, "belongs to another user"),
}


@pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")
@pytest.mark.parametrize("name", UNSAFE)
def test_a_folder_into_which_others_could_put_programs_is_not_used(monkeypatch, tmp_path, name):
    named, (place, mode, text) = tmp_path / "above/named", UNSAFE[name]
    monkeypatch.setattr(cache, "_processor", lambda: "programs")
    monkeypatch.setattr(cache, "_is_own_group", lambda _: False)
    (named / "programs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(named)
    (tmp_path / place).chmod(mode)
    if name == "of an owner":
        monkeypatch.setattr(cache, "_trusted", lambda: (os.getuid() + 1,))
    for folder in (named, tmp_path / "link"):
        with pytest.warns(UserWarning, match=text):
            assert basinax.enable_cache(folder) is None
    # Without a call, such a folder is left alone without a warning.
    monkeypatch.setenv(cache.VARIABLE, str(named))
    assert cache._of_user.__wrapped__() is None


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_program_that_others_may_write_is_not_loaded(seen, folder):
    in_a_process(seen)
    (program,) = entries(folder)
    program.chmod(0o666)
    assert in_a_process(seen)[1][1:] == [1, 0]


@pytest.mark.parametrize("value", ["off", "OFF", "0", ""])
def test_a_variable_switches_it_off(monkeypatch, value):
    monkeypatch.setenv(cache.VARIABLE, value)
    assert basinax.enable_cache() is None
    assert cache.cache() is None


def test_a_variable_names_the_folder_and_otherwise_it_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, "~/programs")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache._default_folder() == tmp_path / "programs"
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert tmp_path in cache._default_folder().parents
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(ImportError, match="name a folder"):
        cache._default_folder()
    assert cache._of_user.__wrapped__() is None
