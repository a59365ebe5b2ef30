"""Relaxing with models of others: structures per second, beside ASE one at a time and TorchSim.

- `crystals`: 32 of 8 and 16 atoms with Nequix-MP-1 in single precision, as it was trained. Its
  weights are no part of this project: `--weights FILE`, or beside the checkout. `pip install
  --no-deps nequix matscipy e3nn-jax jraph` has the package.
- `molecules`: the first 20 of data/molecules.extxyz with GFN2-xTB (`pip install tblite`), whose
  self-consistent field begins anew at each evaluation; `reused`: with a calculator a structure,
  where it begins at the last density, as ASE's does.
- `argon`: 128 crystals of 4 to 32 atoms with the package's own Lennard-Jones potential.
- `torch-sim`: the same with TorchSim's Lennard-Jones model, one structure a call; `joined`: all
  that wait in one call, as TorchSim does. TorchSim needs Python 3.12 (`pip install
  torch-sim-atomistic`).

FIRE with ASE's settings, cells fixed, so many steps for each. Timed is the second of two equal
calls of `basinax.atoms.relax`, from `Atoms` to `Atoms`. The first compiles the model in the shapes
that structures pass through, and the program of the loop; its seconds stand beside (`first call
s`). ASE runs all molecules, and of the crystals one of each kind after one evaluation, which
compiles, with the packages' own calculators, in the same process and with as many threads as their
libraries choose. TorchSim relaxes argon with its own model and its `ase_fire`, all structures in
one batch, where it is installed; also timed the second time.
`cores used` is processor time over time, `cpu ms` processor time a structure, which says more where
others use the machine, too. `list ms`, `pad ms` and `step ms` are processor time an evaluation of a
JAX model by part, in a third call, and `other ms` is the rest: on a CPU, the evaluation. `--again`
makes the first call in a second process, too, which loads programs (`second process cpu s`, and its
call alone). Positions must agree with ASE's: to 1e-3 Å for the model in single precision, to 1e-4 Å
for the others; and with TorchSim's after five steps, to 1e-9 Å. Then TorchSim goes another way than
ASE: after 20 steps of argon by 4e-4 Å, where ours is within 1e-15 Å. A set whose package is not
installed is left out.

`--parts` is another case, which needs neither ASE's calculators nor a network: 32 and 128 crystals
of 8 atoms with Nequix, ten steps, and the parts of an evaluation in milliseconds. `ms` is by the
clock, the median of three calls after the first; `evaluate ms` is by the clock, too, with each call
of the model alone, and `device busy` is their part of the clock. So `ms` is near `evaluate ms`
where the host prepares while the device evaluates. `together` is the mean number of structures in a
call of the model. The weights may be named by the variable NEQUIX_WEIGHTS, too.

    python benchmarks/models.py [--sets argon ...] [--systems N] [--steps N] [--again]
    python benchmarks/models.py --parts [--systems N] [--steps N] [--weights FILE]
"""

import argparse
import contextlib
import functools
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from _timing import report
from ase import Atoms
from ase.build import bulk
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.io import read
from ase.optimize import FIRE as ASEFIRE

from basinax import FIRE
from basinax.atoms import ASECalculator, JaxModel, TorchSimModel, relax
from basinax.engine import hosted
from basinax.models import graphs, programs as model_programs, session as model_session
from basinax.potentials import LennardJones

_BESIDE = Path(__file__).parents[2] / "shared" / "data" / "nequix-mp-1.nqx"
WEIGHTS = Path(os.environ.get("NEQUIX_WEIGHTS", _BESIDE))
MOLECULES = Path(__file__).parent / "data" / "molecules.extxyz"
SIGMA, EPSILON, CUTOFF = 3.405, 0.0104, 8.5
"""Of argon, in Å and eV."""


class Problem(NamedTuple):
    """Structures, and the same model for both."""

    model: str
    atoms: list[Atoms]
    steps: int
    potential: Any
    calculators: Callable[[Atoms], Any]
    """Of ASE, ready for the structure."""
    by_ase: list[int]
    """Numbers of the structures that ASE relaxes."""
    tolerance: float
    """Of positions, in Å."""
    is_single: bool = False
    is_of_torch_sim: bool = False
    """TorchSim relaxes the structures, too."""


class Times(NamedTuple):
    """Seconds, and those of processors, a structure; and of the first call."""

    seconds: float
    busy: float
    first: float


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--systems", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--parts", action="store_true")
    arguments = parser.parse_args()
    if arguments.parts:
        sizes = [arguments.systems] if arguments.systems else [32, 128]
        report("models", [parts_of(n, arguments) for n in sizes])
        return
    rows = []
    for name in arguments.sets:
        try:
            problem = SETS[name](arguments)
            rows.append(measured(problem) | (again(name, arguments) if arguments.again else {}))
        except ImportError as error:
            print(f"{name} is left out: {error.name} is not installed")
    if rows:
        report("models", rows)


def crystals(arguments: argparse.Namespace) -> Problem:
    from nequix.calculator import NequixCalculator

    atoms, by_ase = made_crystals(arguments.systems or 32)
    with jax.enable_x64(False):  # nequix reads weights in JAX's own precision
        calculator = NequixCalculator(model_path=arguments.weights, use_kernel=False)
    steps, potential = arguments.steps or 5, JaxModel.nequix(arguments.weights)
    name = "Nequix-MP-1, crystals"
    return Problem(name, atoms, steps, potential, lambda _: calculator, by_ase, 1e-3, True)


def molecules(arguments: argparse.Namespace, *, reuse: bool = False) -> Problem:
    from tblite.ase import TBLite

    def make(_: Any = None) -> Any:
        return TBLite(method="GFN2-xTB", verbosity=0)

    atoms = read(MOLECULES, ":")[: arguments.systems or 20]
    steps, everyone = arguments.steps or 20, list(range(len(atoms)))
    name = "GFN2-xTB, molecules" + (", reuse=True" if reuse else "")
    potential = ASECalculator(make, reuse=reuse)
    return Problem(name, atoms, steps, potential, make, everyone, 1e-4)


def argon(arguments: argparse.Namespace, potential: Any = None, name: str = "own") -> Problem:
    sizes = [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2)]
    atoms = [bulk("Ar", cubic=True, a=5.3).repeat(sizes[k % 4]) for k in range(of(arguments))]
    for k, a in enumerate(atoms):
        a.rattle(0.1, seed=k)
    potential = potential or LennardJones(EPSILON, SIGMA, CUTOFF)

    def make(_: Atoms) -> Any:
        return ASELennardJones(sigma=SIGMA, epsilon=EPSILON, rc=CUTOFF)

    by_ase = list(range(min(4, len(atoms))))
    name, steps = f"Lennard-Jones, argon, {name}", arguments.steps or 50
    return Problem(name, atoms, steps, potential, make, by_ase, 1e-4, is_of_torch_sim=True)


def of(arguments: argparse.Namespace) -> int:
    return arguments.systems or 128


def torch_sim(arguments: argparse.Namespace, *, batched: bool = False) -> Problem:
    name = "TorchSim's, joined" if batched else "TorchSim's, one a call"
    return argon(arguments, TorchSimModel(torch_sim_model(), batched=batched), name)


def torch_sim_model() -> Any:
    import torch
    from torch_sim.models.lennard_jones import LennardJonesModel

    return LennardJonesModel(SIGMA, EPSILON, dtype=torch.float64, cutoff=CUTOFF)


SETS = {
    "molecules": molecules,
    "reused": functools.partial(molecules, reuse=True),
    "crystals": crystals,
    "argon": argon,
    "torch-sim": torch_sim,
    "joined": functools.partial(torch_sim, batched=True),
}


def again(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of the first call of another process, by the clock and of processors."""
    code = (
        "import sys, argparse; sys.path.insert(0, sys.argv[1]); import models as m;"
        " m.jax.config.update('jax_enable_x64', True);"
        " p = m.SETS[sys.argv[2]](argparse.Namespace(**eval(sys.argv[3])));"
        " print(*m.timed(lambda: m.relaxed(p))[:2])"
    )
    folder, options = (
        str(Path(__file__).parent),
        repr(vars(arguments) | {"weights": str(arguments.weights)}),
    )
    command = [sys.executable, "-c", code, folder, name, options]
    begin, before = time.perf_counter(), sum(os.times()[2:4])
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    process = time.perf_counter() - begin, sum(os.times()[2:4]) - before
    names = ("second process s", "second process cpu s", "its call s", "its call cpu s")
    return dict(zip(names, (*process, *map(float, told[-2:])), strict=True))


class Parts:
    """Processor seconds of the parts of an evaluation, in whichever threads they are spent."""

    def __init__(self) -> None:
        self.seconds = defaultdict[str, float](float)

    def __enter__(self) -> "Parts":
        self._kept = [(place, name, getattr(place, name)) for place, name, _ in PARTS]
        for place, name, part in PARTS:
            setattr(place, name, self._timed(getattr(place, name), part))
        return self

    def __exit__(self, *_: Any) -> None:
        for place, name, function in self._kept:
            setattr(place, name, function)

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            begin = time.thread_time()
            returned = function(*args)
            self.seconds[part] += time.thread_time() - begin
            return returned

        return call

    def of(self, busy: float, n: int) -> dict[str, float]:
        """Milliseconds an evaluation; all that is no other part counts as `other`."""
        if not self.seconds["list"]:
            return {}
        parts = {**self.seconds, "other": busy - sum(self.seconds.values())}
        return {f"{part} ms": 1e3 * seconds / n for part, seconds in parts.items()}


PARTS = [
    (model_programs, "graphs_of", "list"),
    (graphs, "padded", "pad"),
    (model_session.ModelSession, "_arguments", "pad"),
    (hosted.HostBackend, "look", "step"),
    (hosted.HostBackend, "prepare", "step"),
]
"""Functions by their module or class, whose time is that of a part."""


class Calls:
    """The calls of a model's programs, by the shape of their graphs."""

    def __init__(self) -> None:
        self.counts, self.arguments = Counter[Any](), dict[Any, Any]()

    def __enter__(self) -> "Calls":
        self._evaluate = model_session.evaluate
        model_session.evaluate = self._seen
        return self

    def __exit__(self, *_: Any) -> None:
        model_session.evaluate = self._evaluate

    def _seen(self, *arguments: Any) -> Any:
        shape = arguments[-1]["senders"].shape
        self.counts[shape] += 1
        self.arguments[shape] = arguments
        return self._evaluate(*arguments)

    def seconds(self) -> float:
        """What all calls take, one after another, each waited for."""
        total = 0.0
        with jax.enable_x64(False):
            for shape, n in self.counts.items():
                here = self.arguments[shape]
                alone = [
                    timed(lambda here=here: jax.device_get(self._evaluate(*here)))[0]
                    for _ in range(5)
                ]
                total += n * statistics.median(alone)
        return total


def parts_of(n: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The parts of an evaluation of crystals of 8 atoms."""
    (atoms, _), potential = made_crystals(n, (2, 2, 1)), JaxModel.nequix(arguments.weights)
    problem = Problem("Nequix-MP-1", atoms, arguments.steps or 10, potential, lambda _: None, [], 0)
    first, _, before = timed(lambda: relaxed(problem))
    rounds = [timed(lambda: relaxed(problem)) for _ in range(3)]
    seconds, busy, result = sorted(rounds, key=lambda each: each[0])[1]
    with Parts() as parts, Calls() as calls:
        _, all_busy, _ = timed(lambda: relaxed(problem))
    evaluations, of_calls = int(result.evaluations.sum()), calls.seconds()
    return {
        "model": problem.model,
        "systems": n,
        "evaluations": evaluations,
        "ms": 1e3 * seconds / evaluations,
        "cpu ms": 1e3 * busy / evaluations,
        "evaluate ms": 1e3 * of_calls / evaluations,
        "device busy": of_calls / seconds,
        **parts.of(all_busy, evaluations),
        "together": evaluations / calls.counts.total(),
        "shapes": len(calls.counts),
        "first call s": first,
        "compilations": before.compilations,
    }


def measured(problem: Problem) -> dict[str, Any]:
    first, first_busy, before = timed(lambda: relaxed(problem))
    seconds, busy, result = timed(lambda: relaxed(problem))
    with Parts() as parts:
        _, all_busy, _ = timed(lambda: relaxed(problem))
    theirs = [against_ase(problem, k, result.atoms[k]) for k in problem.by_ase]
    n, ase = len(problem.atoms), Times(*map(float, np.mean(theirs, axis=0)))
    batched = against_torch_sim(problem)
    return {
        "model": problem.model,
        "systems": n,
        "atoms": sum(map(len, problem.atoms)),
        "evaluations": int(result.evaluations.sum()),
        "systems/s": n / seconds,
        "ASE systems/s": 1 / ase.seconds,
        "TorchSim systems/s": batched and 1 / batched.seconds,
        "ratio": n / seconds * ase.seconds,
        "ratio to TorchSim": batched and n / seconds * batched.seconds,
        "cpu ms": 1e3 * busy / n,
        "ASE cpu ms": 1e3 * ase.busy,
        "TorchSim cpu ms": batched and 1e3 * batched.busy,
        "cores used": busy / seconds,
        **parts.of(all_busy, int(result.evaluations.sum())),
        "first call s": first,
        "first call cpu s": first_busy,
        "compile s": first - seconds,
        "compilations": before.compilations,
        "ASE first evaluation s": ase.first,
        "TorchSim first call s": batched and batched.first,
    }


def relaxed(problem: Problem) -> Any:
    return relax(problem.atoms, problem.potential, FIRE(), fmax=1e-6, max_steps=problem.steps)


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, processor seconds of this process and those that it ended, and what it returns."""
    begin, before = time.perf_counter(), sum(os.times()[:4])
    returned = call()
    return time.perf_counter() - begin, sum(os.times()[:4]) - before, returned


def against_ase(problem: Problem, k: int, ours: Atoms) -> Times:
    """Times of ASE's steps and first evaluation; raises unless it goes the same way."""
    with jax.enable_x64(False) if problem.is_single else contextlib.nullcontext():
        atoms = problem.atoms[k].copy()
        atoms.calc = problem.calculators(atoms)
        compiling = timed(atoms.get_forces)[0] if problem.is_single else 0.0
        atoms.calc.reset()
        search = ASEFIRE(atoms, logfile=None)
        seconds, busy, _ = timed(lambda: search.run(fmax=1e-6, steps=problem.steps))
    np.testing.assert_allclose(ours.positions, atoms.positions, atol=problem.tolerance, rtol=0)
    return Times(seconds, busy, compiling)


def against_torch_sim(problem: Problem) -> Times | None:
    """Times of as many steps of all structures in one batch; None if it does not relax them."""
    if not problem.is_of_torch_sim:
        return None
    try:
        import torch_sim
    except ImportError:
        return None
    model = torch_sim_model()
    is_over = torch_sim.generate_force_convergence_fn(force_tol=1e-6, include_cell_forces=False)

    def run(steps: int = problem.steps) -> list[Atoms]:
        with warnings.catch_warnings(action="ignore"):  # of steps that end
            return torch_sim.optimize(
                problem.atoms,
                model,
                optimizer=torch_sim.Optimizer.fire,
                convergence_fn=is_over,
                max_steps=steps,
            ).to_atoms()

    first, *_ = timed(run)
    seconds, busy, theirs = timed(run)
    ours = relaxed(problem._replace(steps=5)).atoms
    for a, b in zip(ours, run(5), strict=True):
        np.testing.assert_allclose(a.positions, b.positions, atol=1e-9, rtol=0)
    return Times(seconds / len(theirs), busy / len(theirs), first)


def made_crystals(
    n: int, of_iron: tuple[int, int, int] = (2, 2, 2)
) -> tuple[list[Atoms], list[int]]:
    """Four kinds of 8 atoms, 16 of iron, displaced, and the numbers of the first of each."""
    kinds = [
        bulk("Si", cubic=True),
        bulk("NaCl", "rocksalt", 5.69, cubic=True),
        bulk("Cu", cubic=True).repeat((2, 1, 1)),
        bulk("Fe", cubic=True).repeat(of_iron),
    ]
    atoms = [kinds[k % len(kinds)].copy() for k in range(n)]
    for k, a in enumerate(atoms):
        a.set_initial_magnetic_moments(None)
        a.rattle(0.1, seed=k)
    return atoms, list(range(min(n, len(kinds))))


if __name__ == "__main__":
    main()
