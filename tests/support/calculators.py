"""Calculators that do something wrong, or remember what they saw. Worker processes import them."""

import gc
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
from ase.calculators.calculator import Calculator, FileIOCalculator, all_changes
from ase.calculators.emt import EMT


class Springs(Calculator):
    """Atoms on springs to the origin, in eV and Å; a moment and a dipole besides.

    It begins where it ended, as a self-consistent field does: what it saw last is in its last
    digits, unless it is reset.
    """

    implemented_properties = ("energy", "free_energy", "forces", "stress", "magmoms", "dipole")
    memory = 0.0

    def reset(self):
        super().reset()
        self.memory = 0.0

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        x, stiffness = atoms.positions, 1 + self.memory
        energy = 0.5 * float((x * x).sum()) * stiffness
        self.memory = 1e-3 * float(x[0, 0])
        self.results = {
            "energy": energy + 1.0,
            "free_energy": energy,
            "forces": -x * stiffness,
            "stress": np.zeros(6),
            "magmoms": atoms.get_initial_magnetic_moments(),
            "dipole": x.sum(0),
            "bond-orders": np.eye(len(x)),
        }


class Refilled(Springs):
    """Fills the same arrays at each evaluation."""

    arrays: dict[str, np.ndarray] = {}  # noqa: RUF012

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        for name in ("forces", "dipole"):
            found = self.results[name]
            array = self.arrays.setdefault(f"{name} of {len(atoms)}", np.zeros_like(found))
            array[:] = found
            self.results[name] = array


class InFiles(FileIOCalculator):
    """Springs whose program reads a file and writes another. It begins from a file, if it is there.

    Fails at structures of gold after the file was written.
    """

    implemented_properties = ["energy", "forces"]  # noqa: RUF012

    def __init__(self, table: str | None = None, **options):
        command = "sleep 0.01; cp job.in job.out"
        super().__init__(label="job", command=command, table=table, **options)

    def write_input(self, atoms, properties=None, system_changes=None):
        super().write_input(atoms, properties, system_changes)
        folder = Path(self.directory)
        guess = folder / "guess"
        self.shift = float(guess.read_text()) if guess.exists() else 0.0
        guess.write_text(str(1e-3 * atoms.positions[0, 0]))
        np.savetxt(folder / "job.in", atoms.positions)
        if atoms.symbols[0] == "Au":
            raise RuntimeError("gold")

    def read_results(self):
        x = np.loadtxt(Path(self.directory) / "job.out", ndmin=2)
        if table := self.parameters["table"]:
            x = x * float(Path(table).read_text())
        self.results = {"energy": 0.5 * float((x * x).sum()) + self.shift, "forces": -x}


class Outer(Calculator):
    """Asks calculators inside of it."""

    implemented_properties = ("energy", "forces")

    def __init__(self, first, second):
        super().__init__()
        self.calc, self.others = first, {"second": [second]}

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        parts = [self.calc, *self.others["second"]]
        energy = sum(part.get_potential_energy(atoms) for part in parts)
        self.results = {"energy": energy, "forces": sum(part.get_forces(atoms) for part in parts)}


class Duck:
    """Has the methods that ASE asks a calculator for, and no class of ASE's."""

    def get_potential_energy(self, atoms=None, force_consistent=False):
        return 0.5 * float((atoms.positions**2).sum()) + (0.0 if force_consistent else 1.0)

    def get_forces(self, atoms=None):
        return -atoms.positions


class Faulty(Springs):
    """Does something wrong at the second evaluation of a structure that begins with gold."""

    def __init__(self, fault: str):
        super().__init__()
        self.fault = fault

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        if atoms.symbols[0] != "Au" or atoms.positions[0, 0] > 0.99:
            return
        match self.fault:
            case "raises":
                raise RuntimeError("SCF did not\nconverge")
            case "exits":
                os._exit(3)
            case "hangs":
                time.sleep(600)
            case "shape":
                self.results["forces"] = np.zeros(3)
            case "nothing":
                del self.results["forces"]
            case "nan":
                self.results["forces"] = self.results["forces"] * np.nan
            case "complex":
                self.results["forces"] = self.results["forces"] * 1j
            case "text":
                self.results["energy"] = "low"


class Hungry(Springs):
    """Has too little memory beside so many living processes, and for gold with any."""

    def __init__(self, lack: str, folder: Path, n_processes: int, most: int):
        super().__init__()
        self.lack, self.folder, self.most = lack, folder, most
        (folder / str(os.getpid())).touch()
        while len(os.listdir(folder)) < n_processes:  # those of the beginning wait for each other
            time.sleep(0.01)

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        alive = [name for name in os.listdir(self.folder) if Path("/proc", name).exists()]
        if len(alive) <= self.most and atoms.symbols[0] != "Au":
            return
        match self.lack:
            case "host":
                raise MemoryError
            case "torch":
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)


class OutOfMemoryError(RuntimeError):
    """Like torch's."""


class Silent(Springs):
    """Does not say which properties it has."""

    implemented_properties = ()


class NoStress(Springs):
    implemented_properties = ("energy", "forces")


class Whirl(Calculator):
    """Atoms on springs to their places, in eV and Å, and forces around these that no energy has."""

    implemented_properties = ("energy", "forces")

    def __init__(self, places: np.ndarray):
        super().__init__()
        self.places = places

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        away = atoms.positions - self.places
        around = np.cross([0, 0, 1.5], away)
        self.results = {"energy": 2.5 * float((away * away).sum()), "forces": around - 5 * away}


class WithoutEnergy(EMT):
    """Finite forces and stresses beside an energy that is NaN."""

    def calculate(self, *arguments, **options):
        super().calculate(*arguments, **options)
        self.results["energy"] = self.results["free_energy"] = np.nan


class Counted(EMT):
    """Says how many of its class live in its process."""

    def calculate(self, *args):
        super().calculate(*args)
        gc.collect()
        self.results["alive"] = sum(type(each) is Counted for each in gc.get_objects())


class Leaving(EMT):
    """Ends its process, of which a program that it has started has the open files."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()

    def calculate(self, *args):
        self.calls += 1
        if self.calls == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super().calculate(*args)
