"""The surroundings of a command: its watch, compiled programs, and lines about both."""

import contextlib
import logging
import os
import platform
import warnings
from collections.abc import Iterator

import ase
import jax

from basinax import __version__
from basinax._jax.cache import VARIABLE, enable_cache
from basinax._jax.compilations import EVENT
from basinax._jax.cores import n_cores
from basinax._jax.programs import LOADED
from basinax.atoms._charges import Unused
from basinax.cli._console import err, print_line
from basinax.cli._options import Dtype, Manner
from basinax.cli._watch import Watch

"""The event that JAX records for each program from its cache folder."""

_LOG = logging.getLogger("basinax")


@contextlib.contextmanager
def session(manner: Manner, dtype: Dtype) -> Iterator[Watch]:
    """The watch of a command."""
    warnings.filterwarnings("ignore", category=Unused)  # commands name the files
    with Watch(manner.quiet) as watch, _described(watch, dtype, manner.verbose):
        if manner.no_cache:
            os.environ[VARIABLE] = "off"  # of worker processes, too
        watch.cache = str(enable_cache() or "off")
        yield watch


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
        if event == LOADED:
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
        n, loaded_from = len(seconds), f"{len(hits)} loaded from the cache"
        _LOG.info("programs: %d compiled in %.1f s, %s", n, sum(seconds), loaded_from)
        phases = (f"{phase} {spent:.1f} s" for phase, spent in watch.seconds.items())
        _LOG.info("phases: %s", ", ".join(phases))
        _LOG.removeHandler(lines)
        _LOG.setLevel(level)
        jax.monitoring.unregister_event_duration_listener(compiled)
        jax.monitoring.unregister_event_listener(loaded)
