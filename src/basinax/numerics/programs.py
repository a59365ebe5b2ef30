"""Compiled programs that are found in the cache by a key that needs no trace.

A key holds all that decides a program: the sources of this package, versions, device, switches,
options, static values, structures and shapes. A value that no text describes, such as a function of
a user, has no key: its program is traced, and found by its text in HLO, which saves compiling.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import logging
import os
import pickle
import secrets
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.experimental import serialize_executable

from basinax.numerics.cache import Cache, cache
from basinax.numerics.compilations import LOADED, made_so_far
from basinax.numerics.static import Static
from basinax.numerics.switches import switches

_LOG = logging.getLogger("basinax")

Device = Any
"""A `jax.Device`."""

CACHE_OF_USER = "jax_compilation_cache_dir"
"""The switch that names a folder of programs; `jax.config.values` takes 40 µs for all switches."""

BEGUN = time.time()
"""When this process imported the sources, about."""

MOST_MAPPINGS = 32_000
"""Memory mappings of the process from which on programs are dropped. The programs of a relaxation
take 300 to 750, and Linux ends a process (SIGSEGV) that compiles beyond 65,530."""

READ: list[Callable[[], Any]] = []
"""Functions that return what tracing reads beside its arguments: plain values."""

PACKAGES: dict[str, Callable[[], Any]] = {}
"""Packages of models, whose values have a description too, and functions that return what tracing
their code reads beside its arguments. Where one is described, the sources of all are in the key."""

VERSIONS = ("equinox", "jax", "jaxlib", "numpy", "optax")
_KNOWN = ("basinax", "builtins", *VERSIONS)
"""Packages whose functions and classes have a description: their name, since `_of_process` has
their versions, or sources."""

_IRRELEVANT = ("jax_compilation_cache", "jax_persistent_cache", "jax_log", "jax_dump")
"""The beginnings of JAX's switches that change no program."""


class Programs:
    """The programs of one jitted function with one set of compiler options.

    Args:
        function: is traced; a function of a module, not one made by another function.
        jitted: `function`, by `jax.jit` with the options.
        options: of the compiler, and all else that decides how `function` is compiled.
        static: the numbers of static arguments.
    """

    def __init__(self, function: Callable, jitted: Any, options: Any, static: tuple[int, ...]):
        _EVERY.add(self)
        self._function, self._jitted, self._options = function, jitted, options
        self._static = static
        self._found: dict[Any, jax.stages.Compiled] = {}
        self._locks: dict[Any, threading.Lock] = {}

    def __call__(self, *args: Any) -> Any:
        _forget_if_many()
        found = self._program(args, is_ahead=False)
        if found is None:
            return self._jitted(*args)
        program, dynamic = found
        return program(*dynamic)

    def compile(self, *args: Any) -> None:
        """Make or load the program of these arguments, for later calls."""
        self._program(args, is_ahead=True)

    def _program(self, args: tuple[Any, ...], *, is_ahead: bool) -> tuple[Any, Any] | None:
        """The program of a call and its dynamic arguments; None where `jax.jit` has it."""
        # XLA cannot write a program that JAX has loaded from a folder of the user.
        place = None if getattr(jax.config, CACHE_OF_USER) else cache()
        is_made = is_ahead or place is not None
        if not (is_made or self._found):
            return None
        dynamic = tuple(x for k, x in enumerate(args) if k not in self._static)
        leaves, structure = jax.tree.flatten(dynamic)
        now = switches()
        device = _device_of(leaves, now)
        if device is None:
            return None
        fixed = tuple(args[k] for k in self._static)
        signature = (fixed, structure, tuple(map(_kind, leaves)), device, *now.values())
        program = self._found.get(signature)
        if program is None and is_made:
            with self._locks.setdefault(signature, threading.Lock()):
                program = self._found.get(signature)
                if program is None:
                    program = self._made(place, args, fixed, dynamic, device)
                    self._found[signature] = program
        return None if program is None else (program, dynamic)

    def forget(self) -> None:
        """Drop all programs; those that run go on, and others are made again at their next call."""
        self._found.clear()
        self._locks.clear()
        self._jitted.clear_cache()

    def _made(self, place: Cache | None, args, fixed, dynamic, device) -> jax.stages.Compiled:
        """The program from the cache, if there is one, or compiled and put there."""
        if place is None:
            return self._jitted.lower(*args).compile()
        of_all = [_of_process(device), repr(self._options), repr([read() for read in READ])]
        lowered = None
        try:
            what = [self._name(), _described(fixed, is_static=True), _described(dynamic)]
            key = _digest([*of_all, *what, *_of_packages(what)])
        except _NoDescription:
            lowered = self._jitted.lower(*args)
            text = lowered.as_text()
            if "callback" in text:  # Python of this process, which no other has
                return lowered.compile()
            key = _digest([*of_all, text])
        if (content := place.load(key)) is not None:
            try:
                program = _unpacked(content, dynamic, device)
                jax.monitoring.record_event(LOADED)
                return program
            except Exception:  # whatever it is that bytes of another program raise
                pass
        program = (lowered or self._jitted.lower(*args)).compile()
        # XLA cannot write some programs once they have run.
        if (content := _packed(program)) is not None:
            place.keep(key, content)
        return program

    def _name(self) -> str:
        function = self._function
        if function.__closure__ or not function.__module__.startswith("basinax."):
            raise _NoDescription
        return f"{function.__module__}.{function.__qualname__}"


_EVERY: weakref.WeakSet[Programs] = weakref.WeakSet()


class _Seen:
    """What is known of the process since mappings were counted last."""

    n_made = 0
    """The number of programs that it had made."""
    most = MOST_MAPPINGS
    """The mappings from which on programs are dropped; more if others have many of them."""


def _forget_if_many() -> None:
    """Drop the programs of all functions if the process has many memory mappings."""
    if _Seen.n_made == (n_made := made_so_far()):
        return
    _Seen.n_made = n_made
    if count_mappings() > _Seen.most:
        _LOG.info("programs: dropped, since the process has many memory mappings")
        for programs in list(_EVERY):
            programs.forget()
        _Seen.most = MOST_MAPPINGS + count_mappings() // 2


def count_mappings() -> int:
    """The number of memory mappings; 0 on systems other than Linux, which do not tell."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def _device_of(leaves: list[Any], now: dict[str, Any]) -> Device | None:
    """The device that runs a program; None where `jax.jit` alone knows how to run it."""
    is_checked = any(now[name] for name in ("jax_disable_jit", "jax_debug_nans", "jax_debug_infs"))
    if is_checked or any(isinstance(x, Tracer) for x in leaves):
        return None
    devices = {x.device for x in leaves if isinstance(x, jax.Array) and x.committed}
    if not devices:
        default = now["jax_default_device"]
        is_named = default is None or isinstance(default, str)
        devices = {jax.devices(default)[0] if is_named else default}
    device = devices.pop()
    return device if not devices and isinstance(device, jax.Device) else None


def _kind(leaf: Any) -> Any:
    """What a program knows of a leaf."""
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)  # keys have none
    if isinstance(leaf, np.ndarray | np.generic):
        # Without double precision JAX narrows arrays of NumPy, but not its own.
        return leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype), False
    return type(leaf)


class _NoDescription(Exception):
    """A value that decides a program, but that no text describes."""


def _described(value: Any, *, is_static: bool = False) -> str:
    """A text that differs where the programs of two values may differ.

    Args:
        is_static: describe numbers and arrays by their values, not by their kinds.

    Raises:
        _NoDescription: the value, or a part of it, has no such text.
    """
    of = functools.partial(_described, is_static=is_static)
    match value:
        case enum.Enum():
            return f"{_named(type(value))}.{value.name}"
        case bool() | int() | float() | complex() if not is_static:
            return type(value).__name__
        case None | bool() | int() | float() | complex() | str() | bytes():
            return f"{type(value).__name__}:{value!r}"
        case np.dtype():
            return f"dtype:{value}"
        case slice():
            return f"slice{[of(x) for x in (value.start, value.stop, value.step)]}"
        case jax.Array() | np.ndarray() | np.generic() if is_static:
            return f"{value.dtype}{value.shape}:{np.asarray(value).tobytes().hex()}"
        case jax.Array() | np.ndarray() | np.generic() if not is_static:
            return repr(_kind(value))
        case Static():
            return f"Static({_described(value.tree, is_static=True)})"
        case dict():
            items = sorted((_described(k, is_static=True), of(x)) for k, x in value.items())
            return f"{_named(type(value))}{items}"
        case tuple() | list():
            return f"{_named(type(value))}{[of(x) for x in value]}"
        case functools.partial():
            return f"partial{[of(x) for x in (value.func, value.args, value.keywords)]}"
        case object() if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [
                (f.name, _described(x, is_static=is_static or bool(f.metadata.get("static"))))
                for f in dataclasses.fields(value)
                if (x := getattr(value, f.name, None)) is not None
            ]
            return f"{_named(type(value))}{fields}"
        case object() if not hasattr(value, "__qualname__") and _is_plain(type(value)):
            return f"{_named(type(value))}{of(vars(value))}"
    return _named(value)


def _is_plain(kind: type) -> bool:
    """Whether the attributes of an object of this class are all of it."""
    return kind.__bases__ == (object,) and "__dict__" in vars(kind)


def _named(value: Any) -> str:
    """The name of a function or class by which a known package has it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise _NoDescription
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value or module.partition(".")[0] not in (*_KNOWN, *PACKAGES):
        raise _NoDescription
    return f"{module}.{name}"


def _of_process(device: Device) -> str:
    """What is the same for all programs of a device."""
    client = device.client
    kind = (client.platform, client.platform_version, device.device_kind, device.id)
    return repr([sys.version, _versions(), _sources(), _flags(), kind, _switches()])


def _switches() -> list[tuple[str, Any]]:
    """JAX's switches in this thread."""
    names = [n for n in sorted(jax.config.values) if not n.startswith(_IRRELEVANT)]
    return [(name, getattr(jax.config, name, None)) for name in names]


@functools.cache
def _flags() -> list[str | None]:
    """What compilers read from the environment, once, when they are used first."""
    return [os.environ.get(x) for x in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")]


@functools.cache
def _versions() -> list[str]:
    """Versions of packages, as this process has imported them."""
    versions = {x: getattr(sys.modules.get(x), "__version__", None) for x in VERSIONS}
    return [f"{x} {known or importlib.metadata.version(x)}" for x, known in versions.items()]


def _sources() -> str:
    """The digest of this package's sources."""
    return _sources_in(Path(__file__).parents[1])


@functools.cache
def _sources_in(folder: Path) -> str:
    files = sorted(folder.rglob("*.py"))
    if any(path.stat().st_ctime > BEGUN for path in files):
        return secrets.token_hex()  # they are not the code that this process has in memory
    return _digest([text for path in files for text in (str(path), path.read_text("utf-8"))])


def _of_packages(texts: list[str]) -> list[str]:
    """Sources of packages of models, and what they read, if these texts have a value of one."""
    if not any(f"{name}." in text for name in PACKAGES for text in texts):
        return []
    found = []
    for name, read in sorted(PACKAGES.items()):
        file = sys.modules[name].__file__
        if file is None:
            raise _NoDescription
        found.append(repr([name, _sources_in(Path(file).parent), read()]))
    return found


def _digest(texts: list[str]) -> str:
    return hashlib.sha256(repr(texts).encode("utf-8", "surrogatepass")).hexdigest()


def _packed(program: jax.stages.Compiled) -> bytes | None:
    """A program as bytes; None where JAX or pickle cannot write it."""
    try:
        written, _, structure = serialize_executable.serialize(program)
        # Structures cannot be written, but a tree of this structure can.
        example = jax.tree.unflatten(structure, range(structure.num_leaves))
        return zlib.compress(pickle.dumps((written, example)), level=1)
    except Exception:  # of each kind that a part without a pickle raises
        return None


def _unpacked(content: bytes, args: tuple[Any, ...], device: Device) -> jax.stages.Compiled:
    """The program for arguments of this structure."""
    written, example = pickle.loads(zlib.decompress(content))
    structures = [jax.tree.structure(x) for x in ((args, {}), example)]
    return serialize_executable.deserialize_and_load(
        written, *structures, backend=device.client, execution_devices=[device]
    )
