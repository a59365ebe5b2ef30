"""Kernels that a turn starts on a GPU, and how often it waits for the host: counted, not timed.

The program of some turns is compiled for an NVIDIA H100, which need not be there:

    pip install "jax[cuda12]"
    JAX_PLATFORMS=cpu python benchmarks/kernels.py [NAME...]

Workloads: 64 argon cells of 32 atoms (`relax_lj.py`) and 512 metals (`materials.py`), whose lists
the device makes, float64, with FIRE and L-BFGS; metals also in cells that move. A loop of known
length counts each turn, a choice its shorter branch. A choice, or a turn of a loop whose length is
not known, waits for the host once; of such loops inside a turn, one turn is counted.
"""

import contextlib
import functools
import re
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from _timing import report
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from materials import metal_cells
from relax_lj import rattled_crystals

from basinax import FIRE, LBFGS
from basinax.atoms import EMT, Frechet, LennardJones, relax
from basinax.numerics.programs import Programs
from basinax.structures import machine

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000  l2_cache_size: 52428800  device_memory_size: 84978434048
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""Its figures as published by NVIDIA, in the form that XLA reads."""

ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
WORKLOADS: dict[str, Callable[[], Any]] = {
    "argon, FIRE": lambda: relax(rattled_crystals(64, 2), ARGON, FIRE()),
    "argon, LBFGS": lambda: relax(rattled_crystals(64, 2), ARGON, LBFGS()),
    "metals, FIRE": lambda: relax(metal_cells(), EMT(), FIRE()),
    "metals, LBFGS": lambda: relax(metal_cells(), EMT(), LBFGS()),
    "metals in moving cells, FIRE": lambda: relax(metal_cells(), EMT(), FIRE(), cell=Frechet()),
}
NOT_STARTED = {"parameter", "tuple", "get-tuple-element", "constant", "bitcast", "after-all"}


class Caught(Exception):
    """Ends a relaxation at its first program of turns."""


class Count(NamedTuple):
    kernels: int
    waits: int

    def plus(self, other: "Count", turns: int = 1) -> "Count":
        return Count(*(a + turns * b for a, b in zip(self, other, strict=True)))


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    h100 = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    place = NamedSharding(Mesh(h100.devices[:1], ("x",)), PartitionSpec())
    rows = []
    for name in sys.argv[1:] or WORKLOADS:
        lowered = turns_of(WORKLOADS[name], place)
        begin = time.perf_counter()
        text = lowered.compile({"xla_gpu_autotune_level": 0}).as_text()
        seconds = time.perf_counter() - begin
        rows.append({"turn": name, **counted(text)._asdict(), "compiling s": seconds})
    report("kernels", rows)


def turns_of(run: Callable[[], Any], place: NamedSharding) -> Any:
    """The program of a relaxation's turns, as traced on a GPU, for the device of this place."""
    caught: list[tuple[Programs, tuple[Any, ...]]] = []
    call = Programs.__call__

    def watched(self: Programs, *args: Any) -> Any:
        if self._function.__name__ != "advance_block":
            return call(self, *args)
        caught.append((self, args))
        raise Caught

    def placed(x: Any) -> Any:
        return jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=place)

    with (
        mock.patch.object(jax, "default_backend", lambda: "gpu"),
        mock.patch.object(machine.GPU, "candidates", 1 << 24),
    ):
        with mock.patch.object(Programs, "__call__", watched), contextlib.suppress(Caught):
            run()
        made, args = caught[0]
        args = [x if k in made._static else jax.tree.map(placed, x) for k, x in enumerate(args)]
        return jax.jit(made._function, static_argnums=made._static).lower(*args)


def counted(text: str) -> Count:
    """The kernels and waits in the body of the outermost loop of a compiled program."""
    named = re.finditer(r"^(?:ENTRY )?%(\S+) \(.*\{\n((?:  .*\n)*)", text, re.MULTILINE)
    bodies = {found[1]: found[2].splitlines() for found in named}

    def of(name: str) -> Count:
        return functools.reduce(Count.plus, map(of_line, bodies[name]), Count(0, 0))

    def of_line(line: str) -> Count:
        operation = re.search(r" ([\w-]+)\(", line)
        if operation is None or operation[1] in NOT_STARTED:
            return Count(0, 0)
        if operation[1] == "while":
            turns = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            body = of(named_in(line, "body")[0])
            return Count(0, 0).plus(body, int(turns[1])) if turns else body.plus(Count(0, 1))
        if operation[1] == "conditional":
            branches = named_in(line, "(?:true|false)_computation")
            return min(map(of, branches)).plus(Count(0, 1))
        return Count(1, 0)

    (entry,) = re.findall(r"^ENTRY %(\S+)", text, re.MULTILINE)
    loop = next(line for line in bodies[entry] if " while(" in line)
    return of(named_in(loop, "body")[0])


def named_in(line: str, what: str) -> list[str]:
    """The computations that an operation names."""
    return re.findall(rf" {what}=%([^,\s]+)", line)


if __name__ == "__main__":
    main()
