"""Compiled programs that last are loaded where they are whole, and change no bit."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import basinax
from basinax._jax import cache

USES = """
import sys, jax, numpy as np
jax.config.update("jax_platforms", "cpu")
import basinax
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event.split("/")[-1]))
basinax.enable_cache(sys.argv[1])
x = np.arange(1, 9, dtype=np.float32)
bits = jax.jit(lambda x: (x * np.float32(0.1)).sum())(x).tobytes().hex()
print(bits, found.count("cache_hits"), found.count("cache_misses"))
"""


def begun(folder) -> subprocess.Popen:
    """A process that compiles one program, or loads it."""
    command = [sys.executable, "-W", "error", "-c", USES, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen) -> list[str]:
    printed, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    return printed.split()


def programs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/jit_*-cache.*"))


def test_a_later_process_loads_what_others_have_compiled_at_once(tmp_path):
    both = [ended(process) for process in [begun(tmp_path), begun(tmp_path)]]
    later = ended(begun(tmp_path))
    assert later[1:] == ["1", "0"]
    assert len({bits for bits, *_ in [*both, later]}) == 1
    assert len(os.listdir(tmp_path)) == 1
    assert not list(tmp_path.glob("*/process-*"))


@pytest.fixture
def jax_as_before():
    """JAX's settings, and its own folder."""
    names = ["jax_compilation_cache_dir", *cache._SWITCHES]
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def uses(jax_as_before, monkeypatch):
    """Stands in for a process: enables the cache, runs a program, and ends."""

    def used(folder, n=8, **how):
        at_exit = []
        monkeypatch.setattr("atexit.register", lambda *call: at_exit.append(call))
        basinax.enable_cache(folder, **how)
        jax.clear_caches()
        seen = []
        jax.monitoring.register_event_listener(listener := lambda event, **_: seen.append(event))
        bits = jax.jit(lambda x: jnp.sum(x * 0.1))(np.arange(1.0, n)).tobytes()
        jax.monitoring.unregister_event_listener(listener)
        for leave, *arguments in at_exit:
            leave(*arguments)
        return bits, sum("cache_hits" in event for event in seen)

    return used


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_folder(path):
    path.unlink()
    path.mkdir()


DAMAGE = {
    "cut": cut,
    "empty": lambda path: os.truncate(path, 0),
    "one bit": flip,
    "a folder": make_folder,
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_damaged_is_compiled_again_and_kept(uses, tmp_path, name, recwarn):
    first = uses(tmp_path)
    for path in programs(tmp_path):
        DAMAGE[name](path)
    assert uses(tmp_path) == first
    assert uses(tmp_path) == (first[0], first[1] + 1)
    assert not recwarn.list


def test_what_is_of_others_stays(uses, tmp_path):
    uses(tmp_path)
    (folder,) = tmp_path.iterdir()
    others = [folder / "notes", folder / "jit_f-cache", folder / f"jit_f-cache.{'0' * 31}"]
    for other in others:
        other.write_bytes(b"of others")
    assert uses(tmp_path, max_size=0)[1] == 1
    assert sorted(folder.iterdir()) == sorted(others)


def test_the_oldest_go_where_there_is_no_room(uses, tmp_path):
    uses(tmp_path)
    (first,) = programs(tmp_path)
    os.utime(first, (1, 1))
    size = first.stat().st_size
    uses(tmp_path, n=9, max_size=3 * size // 2)
    (second,) = programs(tmp_path)
    assert second != first
    assert sum(path.stat().st_size for path in programs(tmp_path)) <= 3 * size // 2


def test_what_a_killed_process_leaves_is_removed_in_time(uses, tmp_path):
    uses(tmp_path)
    (folder,) = tmp_path.iterdir()
    for name, age in {"process-old": cache.ABANDONED + 9.0, "process-new": 9.0}.items():
        (folder / name).mkdir()
        then = (folder / name).stat().st_mtime - age
        os.utime(folder / name, (then, then))
    uses(tmp_path)
    assert [path.name for path in folder.glob("process-*")] == ["process-new"]


def test_a_folder_that_cannot_be_written_is_no_error(jax_as_before, tmp_path):
    (tmp_path / "file").touch()
    before = dict(jax.config.values)
    assert basinax.enable_cache(tmp_path / "file") is None
    assert dict(jax.config.values) == before


UNSAFE = {
    "named": ("above/named", 0o777, "other users may write to"),
    "of programs": ("above/named/programs", 0o707, "other users may write to"),
    "above": ("above", 0o777, "other users may write to"),
    "of a group": ("above/named", 0o770, "other users may write to"),
    "of an owner": ("above/named", 0o700, "belongs to another user"),
}


@pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")
@pytest.mark.parametrize("name", UNSAFE)
def test_a_folder_into_which_others_could_put_programs_is_not_used(
    jax_as_before, monkeypatch, tmp_path, name
):
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


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_program_that_others_may_write_is_not_loaded(uses, tmp_path):
    uses(tmp_path)
    (program,) = programs(tmp_path)
    program.chmod(0o666)
    assert [uses(tmp_path)[1] for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("value", ["off", "OFF", "0", ""])
def test_a_variable_switches_it_off(jax_as_before, monkeypatch, value):
    monkeypatch.setenv(cache.VARIABLE, value)
    before = dict(jax.config.values)
    assert basinax.enable_cache() is None
    assert dict(jax.config.values) == before


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
