"""A check that a model keeps each structure's bits, and that its forces fit its energy.

Structures are evaluated alone, together, in other orders, beside a structure that is not finite,
again, and in a fresh process, and their bits are compared. Forces and stress are compared with
differences of the energy, and the energy with that of the structure moved, turned and renumbered;
that of a `JaxModel` also with other numbers of spare atoms and pairs.
"""

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator

from basinax.engine.evaluate import AtomsEvaluation, evaluate
from basinax.engine.fresh import NotTriedError, evaluate_afresh
from basinax.minimize.comparisons import Finding, distance, finding_of, table_of
from basinax.models.evaluators.calculator import evaluator_of
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.models.graphs import PER_DOUBLING
from basinax.models.jax_model import JaxModel
from basinax.numerics.order import OrderFinding, gathered, known_findings
from basinax.numerics.settings import POSITIVE, one_number, require_whole
from basinax.potentials import AbstractPotential
from basinax.structures.matrices import VOIGT
from basinax.structures.read import has_volume, intake

Potential = AbstractPotential | AbstractEvaluator | BaseCalculator | None

DIRECTIONS = 2
"""The number of random directions per structure along which energies are differentiated."""

DISPLACEMENT, STRAIN = 3e-2, 5e-3
"""The length of a displacement of all atoms (Å), and the largest entry of a strain: in single
precision, smaller ones would show the rounding of energies."""

FORCE, STRESS = 1.0, 0.01
"""Differences of forces and stress are relative to these (eV/Å, eV/Å³), or to larger values."""


class Probe(eqx.Module):
    """The findings of `probe`."""

    findings: list[Finding]
    evaluations_per_second: float
    """The rate of all structures together, after compilation."""
    seconds_alone: float
    """The time of one evaluation of one structure."""
    left_open: list[OrderFinding]
    """What a potential of yours leaves to the compiler; see `check_order`."""
    not_tried: str = ""
    """Why no fresh process could evaluate; empty if one has, and a finding says what it found."""

    @property
    def is_kept(self) -> bool:
        """Whether all comparisons agree."""
        return all(finding.is_kept for finding in self.findings)

    def __str__(self) -> str:
        reasons = [f"not tried in a fresh process: {self.not_tried}"] if self.not_tried else []
        return "\n".join([table_of(self.findings), *reasons, *map(str, self.left_open)])


def probe(
    model: Potential,
    atoms: Iterable[Atoms],
    *,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Probe:
    """Check that a model's numbers depend on each structure alone, and belong to one energy.

    A fresh process evaluates, too: what a process did before may be in a model's last digits. A
    model that cannot be sent there, such as a calculator on TorchScript, is compared without it.

    Args:
        model: as for `relax`; None for each structure's own calculator.
        atoms: at least two structures of several sizes and elements, not at minima; some dozens
            find more. Each is evaluated some twenty times.
        tolerance: the allowed difference between forces or stress and differences of the energy,
            relative to the structure's largest component, but at least to 1 eV/Å and 0.01 eV/Å³. A
            hundredth of it, in eV per atom, is allowed for energies of moved structures.
        seed: the seed of random directions and orders.

    Raises:
        TypeError, ValueError, NotImplementedError: an error of `evaluate`, or fewer than two
            structures.
    """
    one_number(tolerance, "tolerance", POSITIVE)
    require_whole(seed, "seed")
    atoms = [structure.atoms for structure in intake(atoms)]
    if len(atoms) < 2:
        raise ValueError("a probe needs two structures at least: one says nothing of batches")
    with gathered():
        prober = _Prober(model, atoms, tolerance, np.random.default_rng(seed))
        findings = [prober.lost(), *prober.bits(), *prober.derivatives(), *prober.invariances()]
    not_tried = ""
    try:
        findings.insert(1, prober.afresh())
    except NotTriedError as error:
        not_tried = str(error)
    begin = time.perf_counter()
    prober.at(atoms)
    together = time.perf_counter() - begin
    begin = time.perf_counter()
    prober.at(atoms[:1])
    alone = time.perf_counter() - begin
    rate = len(atoms) / together
    return Probe(findings, rate, alone, known_findings(model), not_tried)


class _Prober:
    def __init__(
        self, model: Potential, atoms: list[Atoms], tolerance: float, random: np.random.Generator
    ):
        self.model, self.atoms, self.tolerance, self.random = model, atoms, tolerance, random
        self.has_stress = _has_stress(model, atoms)
        self.alone = [self.at([a]) for a in atoms]

    def at(self, atoms: Sequence[Atoms], model: Potential = None) -> AtomsEvaluation:
        """The evaluation by a model in place of that which is probed, if there is one."""
        return evaluate(atoms, self.model if model is None else model, stress=self.has_stress)

    def lost(self) -> Finding:
        """Structures whose results, stresses among them, are not finite."""
        lost = [np.inf if found.messages[0] else 0.0 for found in self.alone]
        return finding_of("alone, not finite", lost, 0.0)

    # --- bits

    def afresh(self) -> Finding:
        """The evaluations of a fresh process. Raises NotTriedError if there can be none."""
        found = evaluate_afresh(self.atoms, self.model, stress=self.has_stress)
        differences = [self._difference(k, found, k) for k in range(len(self.atoms))]
        return finding_of("in a fresh process", differences)

    def bits(self) -> list[Finding]:
        """Findings in other company, compared with runs alone."""
        n = len(self.atoms)
        orders = [self.random.permutation(n) for _ in range(2)]
        halves = [np.arange(0, n, 2), np.arange(1, n, 2)]
        findings = [
            self._same("together", [np.arange(n)]),
            self._same("in other orders", orders),
            self._same("in parts", halves),
            self._same("alone again", [np.array([k]) for k in range(n)]),
            self._same("after near points", [np.arange(n)], is_led=True),
        ]
        beside = self._beside_nan()
        return findings if beside is None else [*findings, beside]

    def _same(self, name: str, orders: list[np.ndarray], *, is_led: bool = False) -> Finding:
        """Evaluate structures in these orders.

        Args:
            is_led: put a slightly displaced copy before each structure.
        """
        differences = []
        for order in orders:
            atoms = [self.atoms[k] for k in order]
            if is_led:
                leaders = [self._moved(a, self.random.normal(0, 0.02, (len(a), 3))) for a in atoms]
                atoms = [x for pair in zip(leaders, atoms, strict=True) for x in pair]
            found = self.at(atoms)
            step = 2 if is_led else 1
            differences += [
                self._difference(k, found, step * (place + 1) - 1)
                for place, k in enumerate(order.tolist())
            ]
        return finding_of(name, differences, 0.0)

    def _beside_nan(self) -> Finding | None:
        """Evaluations beside a structure that is not finite: two atoms at one position."""
        broken = self._moved(self.atoms[0], np.zeros(3))
        if len(broken) < 2:
            return None
        broken.positions[1] = broken.positions[0]
        with np.errstate(all="ignore"):
            found = self.at([broken, *self.atoms])
        return finding_of(
            "beside two atoms in one place",
            [self._difference(k, found, k + 1) for k in range(len(self.atoms))],
            0.0,
        )

    def _difference(self, k: int, found: AtomsEvaluation, place: int) -> float:
        """The largest difference from the run alone; inf if only one of two values is a number."""
        alone = self.alone[k]
        pairs = [
            (alone.energies[0], found.energies[place]),
            (alone.free_energies[0], found.free_energies[place]),
            (alone.forces[0], found.forces[place]),
        ]
        if alone.stresses is not None and found.stresses is not None:
            pairs.append((alone.stresses[0], found.stresses[place]))
        return max(distance(np.asarray(x), np.asarray(y)) for x, y in pairs)

    # --- derivatives

    def derivatives(self) -> list[Finding]:
        """Forces and stress against differences of the energy, along random directions."""
        forces = self._slopes("forces are derivatives", self._moved, self._force_along)
        if not self.has_stress:
            return [forces]
        return [forces, self._slopes("stress is a derivative", self._strained, self._stress_along)]

    def _slopes(self, name: str, make: Any, along: Any) -> Finding:
        points, expected, chosen = [], [], []
        for k, atoms in enumerate(self.atoms):
            for _ in range(DIRECTIONS):
                slope = None if self._is_lost(k) else along(k)
                if slope is None:
                    continue
                direction, value, unit = slope
                # Four points: the error falls with the fourth power of the step.
                points += [make(atoms, x * direction) for x in (-2, -1, 1, 2)]
                expected.append(value)
                chosen.append(unit)
        if not points:
            return Finding(name, 0, 0, 0.0, self.tolerance)
        energies = self.at(points).free_energies.reshape(-1, 4)
        slopes = energies @ np.array([1, -8, 8, -1]) / 12
        pairs = zip(slopes, expected, chosen, strict=True)
        differences = [abs(slope - value) / unit for slope, value, unit in pairs]
        return finding_of(name, differences, self.tolerance)

    def _force_along(self, k: int) -> tuple[np.ndarray, float, float]:
        forces = self.alone[k].forces[0]
        direction = self.random.normal(size=forces.shape)
        direction *= DISPLACEMENT / np.linalg.norm(direction)
        largest = float(np.abs(forces).max())
        return direction, -float((forces * direction).sum()), DISPLACEMENT * max(FORCE, largest)

    def _stress_along(self, k: int) -> tuple[np.ndarray, float, float] | None:
        stresses = self.alone[k].stresses
        if stresses is None or not np.isfinite(stresses[0]).all():
            return None
        matrix = np.zeros((3, 3))
        for value, (i, j) in zip(stresses[0], VOIGT, strict=True):
            matrix[i, j] = matrix[j, i] = value
        strain = self.random.normal(size=(3, 3))
        strain = STRAIN * (strain + strain.T) / np.abs(strain + strain.T).max()
        volume = self.atoms[k].get_volume()
        unit = STRAIN * volume * max(STRESS, float(np.abs(matrix).max()))
        return strain, volume * float((matrix * strain).sum()), unit

    def _is_lost(self, k: int) -> bool:
        energy, forces = self.alone[k].energies[0], self.alone[k].forces[0]
        return not (np.isfinite(energy) and np.isfinite(forces).all())

    def _moved(self, atoms: Atoms, displacement: np.ndarray) -> Atoms:
        moved = atoms.copy()
        moved.calc = atoms.calc
        moved.set_constraint()
        moved.positions += displacement
        return moved

    def _strained(self, atoms: Atoms, strain: np.ndarray) -> Atoms:
        strained = self._moved(atoms, np.zeros(3))
        strained.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
        return strained

    # --- invariances

    def invariances(self) -> list[Finding]:
        found = [
            self._energies("energy of the structure moved", self._translated),
            self._energies("energy of the structure turned", self._turned),
            self._energies("energy of the structure renumbered", self._renumbered),
        ]
        if isinstance(self.model, JaxModel):
            shapes = next(name for name in PER_DOUBLING if name != self.model.shapes)
            model = dataclasses.replace(self.model, shapes=shapes)
            found.append(self._energies("energy with other spare atoms", lambda a: a, model))
        return found

    def _energies(self, name: str, change: Any, model: Potential = None) -> Finding:
        """Energies per atom after a change of structures or model; only rounding may differ."""
        allowed = 0.01 * self.tolerance
        kept = [k for k in range(len(self.atoms)) if not self._is_lost(k)]
        if not kept:
            return Finding(name, 0, 0, 0.0, allowed)
        energies = self.at([change(self.atoms[k]) for k in kept], model).energies
        before = [self.alone[k].energies[0] / len(self.atoms[k]) for k in kept]
        after = energies / [len(self.atoms[k]) for k in kept]
        return finding_of(name, np.abs(after - before).tolist(), allowed)

    def _translated(self, atoms: Atoms) -> Atoms:
        return self._moved(atoms, self.random.normal(0, 1, 3))

    def _turned(self, atoms: Atoms) -> Atoms:
        rotation = np.linalg.qr(self.random.normal(size=(3, 3)))[0]
        rotation *= np.sign(np.linalg.det(rotation))
        turned = self._moved(atoms, np.zeros(3))
        turned.set_cell(atoms.cell.array @ rotation)
        turned.positions = atoms.positions @ rotation
        return turned

    def _renumbered(self, atoms: Atoms) -> Atoms:
        renumbered = atoms[self.random.permutation(len(atoms))]
        renumbered.calc = atoms.calc
        renumbered.set_constraint()
        return renumbered


def _has_stress(model: Potential, atoms: list[Atoms]) -> bool:
    """Whether the model can compute the stresses of all structures with a volume."""
    atoms = [a for a in atoms if has_volume(a)]
    if not atoms:
        return False
    evaluator = evaluator_of(model)
    if evaluator is None:
        return True
    try:
        evaluator.check(atoms, [True] * len(atoms))
        evaluator.open(atoms[:1], [True]).close()
    except ValueError as error:
        if "stress" not in str(error):
            raise
        return False
    return True
