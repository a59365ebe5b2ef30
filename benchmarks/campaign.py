"""A hundred thousand structures in a folder of a run, and interruptions at random moments.

    python benchmarks/campaign.py              # throughput and peak memory
    python benchmarks/campaign.py interrupted  # TERM, INT, KILL and a full disk at random moments
    python benchmarks/campaign.py ray          # workers and machines of a Ray cluster that die

Structures are random clusters of 4 to 32 argon atoms. Each run is a process of its own; its peak
memory is that of the process, as the system reports it.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from _timing import report
from ase import Atoms

from basinax.runs.folder import RunFolder

COUNTS = (5_000, 100_000)
POTENTIAL = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=8.5"
SPACING = 3.8
"""Of the lattice whose sites the atoms begin near, in Å."""

STREAMED = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, {here!r})
from campaign import clusters
from basinax.atoms import LennardJones, relax_stream
potential = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
for number, entry in relax_stream(clusters({count}), potential, max_steps=500, dtype="float64"):
    pass
"""


def clusters(count: int) -> Iterator[Atoms]:
    """Random clusters, made when they are asked for."""
    rng = np.random.default_rng(0)
    sites = SPACING * np.array(list(np.ndindex(4, 4, 4)), float)
    for _ in range(count):
        n = int(rng.integers(4, 33))
        chosen = sites[rng.permutation(len(sites))[:n]]
        yield Atoms(f"Ar{n}", chosen + rng.normal(0, 0.2, (n, 3)))


def measured(name: str, command: list[str]) -> dict[str, float]:
    """Seconds, those of the processor, and peak memory of a process that must end well."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)[:200]} left with {status}")
    return {
        f"{name}_s": time.perf_counter() - begin,
        f"{name}_processor_s": used.ru_utime + used.ru_stime,
        f"{name}_peak_MB": used.ru_maxrss / 1024,
    }


def relax_to(folder: Path, file: Path, *more: str) -> list[str]:
    options = ["--potential", POTENTIAL, "--run", str(folder), "--quiet", *more]
    return [sys.executable, "-m", "basinax", "relax", str(file), *options]


def throughput() -> None:
    """Streamed from a generator without a folder; from a file into one, and resumed halfway."""
    here = str(Path(__file__).parent)
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as place:
            file, folder = Path(place) / "clusters.extxyz", Path(place) / "run"
            ase.io.write(file, clusters(count))
            found: dict[str, Any] = {"structures": count}
            code = STREAMED.format(here=here, count=count)
            found |= measured("streamed", [sys.executable, "-c", code])
            found |= measured("folder", relax_to(folder, file))
            found["folder_MB"] = (folder / "results.db").stat().st_size / 2**20
            half = folder.with_name("half")
            first = subprocess.Popen(relax_to(half, file))
            while len(RunFolder(half).results.briefs()) < count // 2:
                time.sleep(1.0)
            first.kill()
            first.wait()
            resume = [sys.executable, "-m", "basinax", "resume", str(half), "--quiet"]
            found |= measured("resumed", resume)
            found["same_bits"] = same_bits(folder, half)
            report("campaign", [found])


def same_bits(one: Path, other: Path) -> bool:
    """Whether two folders hold the same structures, each once, in the same bits."""
    pairs = zip(*(RunFolder(x).results.entries() for x in (one, other)), strict=True)
    return all(
        ours[0] == theirs[0] == k and is_same(ours[1], theirs[1])
        for k, (ours, theirs) in enumerate(pairs)
    )


def is_same(ours: Any, theirs: Any) -> bool:
    arrays = [(x.atoms.positions, x.atoms.get_forces(), x.atoms.cell.array) for x in (ours, theirs)]
    plain = [(x.source, x.energy, x.steps, x.evaluations, x.status) for x in (ours, theirs)]
    return plain[0] == plain[1] and all(map(np.array_equal, *arrays))


# --- interruptions

ENDS = ("TERM", "INT", "KILL", "full disk")


def interrupted(n_structures: int = 400, n_interruptions: int = 100) -> None:
    """Runs of some hundred structures, each ended again and again at random, and gone on with.

    Every other run has no `--run`, and keeps its results beside its output until this is written.
    """
    rng, counts = random.Random(0), dict.fromkeys(ENDS, 0)
    n_runs = n_without = different = 0
    with tempfile.TemporaryDirectory() as place:
        file, whole = Path(place) / "clusters.extxyz", Path(place) / "whole"
        ase.io.write(file, clusters(n_structures))
        subprocess.run([*relax_to(whole, file), "--output", f"{whole}.extxyz"], check=True)
        wanted = Path(f"{whole}.extxyz").read_bytes()
        longest, is_whole = 0.0, False
        while not is_whole or sum(counts.values()) < n_interruptions:
            has_folder, output = n_runs % 2 == 0, Path(place) / f"run{n_runs}.extxyz"
            folder = Path(place) / f"run{n_runs}" if has_folder else Path(f"{output}.run")
            command = relax_to(folder, file)
            if not has_folder:
                at = command.index("--run")
                command[at : at + 2] = ["--output", str(output)]
                if folder.exists() and rng.random() < 0.5:
                    command[3:] = ["resume", str(folder), "--quiet"]
            end = rng.choice(ENDS)
            within = longest if sum(counts.values()) < n_interruptions else 0.0
            seconds, is_whole = run_until(command, folder, end, within, rng)
            is_whole |= output.exists() and not folder.exists()  # ended late, as it was written
            if not is_whole:
                counts[end] += 1
                n_without += not has_folder
                continue
            longest = max(longest, seconds)
            if has_folder:
                check_whole(folder, n_structures)
                different += not same_bits(whole, folder)
            else:
                different += output.read_bytes() != wanted or folder.exists()
            n_runs += 1
            print(json.dumps(counts | {"runs": n_runs, "different": different}), flush=True)
    found: dict[str, Any] = {"structures": n_structures, "runs": n_runs, "different": different}
    report("interruptions", [found | counts | {"without_run": n_without}])


def check_whole(folder: Path, n_structures: int) -> None:
    """Raises RuntimeError unless a folder has each structure once."""
    numbers = [brief.number for brief in RunFolder(folder).results.briefs()]
    if sorted(numbers) != list(range(n_structures)):
        raise RuntimeError(f"structures are lost, or done twice: {len(numbers)}")


def run_until(
    command: list[str], folder: Path, end: str, longest: float, rng: random.Random
) -> tuple[float, bool]:
    """Runs a command, ended by a signal or by a disk that is full.

    Args:
        longest: seconds within which the signal comes; none comes if they are 0.

    Returns:
        Its seconds, and whether it came to its own end.
    """
    database = folder / "results.db"
    size = database.stat().st_size if database.exists() else 0
    limit = size + rng.randrange(4096, 1 << 19)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    is_filled, begin = bool(longest) and end == "full disk", time.perf_counter()
    process = subprocess.Popen(
        [*command, "--no-cache"] if is_filled else command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=fill if is_filled else None,
    )
    if longest and not is_filled:
        try:
            process.wait(rng.uniform(0.5, 1.0) * longest)
        except subprocess.TimeoutExpired:
            process.send_signal(getattr(signal, f"SIG{end}"))
    status = process.wait()
    return time.perf_counter() - begin, status == 0


# --- a cluster of Ray, whose machines are processes of this one

ON_RAY = """
import functools, sys
from basinax import cli
from basinax.cli import run
run.relaxed_on_ray = functools.partial(run.relaxed_on_ray, size={size})
cli.main()
"""


def interrupted_on_ray(
    n_structures: int = 400, n_interruptions: int = 30, size: int = 32, pause: float = 20.0
) -> None:
    """Runs on three machines of one core, whose workers and machines are killed at random.

    Args:
        size: structures of a window.
        pause: seconds between two deaths, at most.
    """
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    rng, counts, n_runs, different = random.Random(0), {"Ray worker": 0, "Ray machine": 0}, 0, 0
    with tempfile.TemporaryDirectory() as place:
        file, whole = Path(place) / "clusters.extxyz", Path(place) / "whole"
        ase.io.write(file, clusters(n_structures))
        subprocess.run(relax_to(whole, file), check=True)
        machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
        is_whole = False
        while not is_whole or sum(counts.values()) < n_interruptions:
            folder = Path(place) / f"run{n_runs}"
            command = relax_to(folder, file, "--ray", cluster.address)
            command[1:3] = ["-c", ON_RAY.format(size=size)]
            driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while driver.poll() is None:
                time.sleep(rng.uniform(0.1, 1.0) * pause)
                workers, is_enough = workers_of_ray(), sum(counts.values()) >= n_interruptions
                if driver.poll() is not None or not workers or is_enough:
                    continue
                if rng.random() < 0.7:
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    counts["Ray worker"] += 1
                else:
                    cluster.remove_node(machines.pop(0), allow_graceful=False)
                    machines.append(cluster.add_node(num_cpus=1))
                    counts["Ray machine"] += 1
            is_whole = not driver.returncode
            if not is_whole:
                continue  # three deaths of one window end a run, which goes on
            check_whole(folder, n_structures)
            different += not same_bits(whole, folder)
            n_runs += 1
            print(json.dumps(counts | {"runs": n_runs, "different": different}), flush=True)
    cluster.shutdown()
    found: dict[str, Any] = {"structures": n_structures, "runs": n_runs, "different": different}
    report("interruptions", [found | counts])


def workers_of_ray() -> list[int]:
    """Processes that relax structures for the cluster of this process."""
    import psutil  # pyright: ignore[reportMissingImports]

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "".join(process.cmdline()).startswith("ray::Worker"):
                found.append(process.pid)
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


if __name__ == "__main__":
    if "interrupted" in sys.argv[1:]:
        interrupted()
    elif "ray" in sys.argv[1:]:
        interrupted_on_ray()
    else:
        throughput()
