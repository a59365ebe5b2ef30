"""The surroundings of a command: its watch, compiled programs, and lines about both."""

import contextlib
import logging
import platform
import warnings
from collections.abc import Iterator

import ase
import jax

from basinax import __version__
from basinax._jax.cache import abandon, enable_cache
from basinax._jax.compilations import EVENT
from basinax._jax.cores import n_cores
from basinax.atoms._charges import Unused
from basinax.cli._console import err, print_line
from basinax.cli._options import Dtype, Manner
from basinax.cli._watch import Watch

HIT = "/jax/compilation_cache/cache_hits"
"""The event that JAX records for each program from its cache folder."""

_LOG = logging.getLogger("basinax")


@contextlib.contextmanager
def session(manner: Manner, dtype: Dtype) -> Iterator[Watch]:
    """The watch of a command."""
    warnings.filterwarnings("ignore", category=Unused)  # commands name the files
    with Watch(manner.quiet) as watch, _described(watch, dtype, manner.verbose):
        watch.cache = _keep_programs(manner)
        try:
            yield watch
        except KeyboardInterrupt:
            abandon()
            raise


def _keep_programs(manner: Manner) -> str:
    """Keep compiled programs, unless the user has given JAX a folder for them.

    Returns:
        The folder, or "off".
    """
    if manner.no_cache:
        _LOG.info("cache: off, by --no-cache")
        return "off"
    if folder := jax.config.values["jax_compilation_cache_dir"]:
        _LOG.info("cache: that of JAX, %s", folder)
        return str(folder)
    # A program that cannot be loaded is compiled again, so the warning does not matter.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    return str(enable_cache() or "off")


class _Lines(logging.Handler):
    """Prints log records as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        print_line(err, record.getMessage())


@contextlib.contextmanager
def _described(watch: Watch, dtype: Dtype, is_verbose: bool) -> Iterator[None]:
    """Print the device, the records of the library, and the total time."""
    if not is_verbose:
        yield
        return
    seconds, hits, level, lines = list[float](), list[str](), _LOG.level, _Lines()

    def compiled(event: str, duration_secs: float, **_: str | int) -> None:
        if event == EVENT:
            seconds.append(duration_secs)

    def loaded(event: str, **_: str | int) -> None:
        if event == HIT:
            hits.append(event)

    jax.monitoring.register_event_duration_secs_listener(compiled)
    jax.monitoring.register_event_listener(loaded)
    _LOG.addHandler(lines)
    _LOG.setLevel(logging.INFO)
    try:
        versions = f"JAX {jax.__version__}, ASE {ase.__version__}"
        _LOG.info("basinax %s, %s, Python %s", __version__, versions, platform.python_version())
        kind = jax.devices()[0].device_kind
        _LOG.info("device: %s, %d cores; precision: %s", kind, n_cores(), dtype.value)
        yield
    finally:
        watch.begin("end")
        n, of = len(seconds), f"{len(hits)} of them loaded from the cache"
        _LOG.info("programs: %d, %s, %.1f s of compiling", n, of, sum(seconds))
        phases = (f"{phase} {spent:.1f} s" for phase, spent in watch.seconds.items())
        _LOG.info("phases: %s", ", ".join(phases))
        _LOG.removeHandler(lines)
        _LOG.setLevel(level)
        jax.monitoring.unregister_event_duration_listener(compiled)
        jax.monitoring.unregister_event_listener(loaded)
