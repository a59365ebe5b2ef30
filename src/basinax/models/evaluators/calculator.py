"""Any ASE calculator as a potential, in this process or in worker processes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

from ase import Atoms
from ase.calculators.calculator import BaseCalculator
from ase.calculators.singlepoint import SinglePointCalculator

from basinax.models.evaluators.protocol import (
    AbstractEvaluator,
    AbstractSession,
    Answer,
    Request,
    checked_results,
    names_of,
    placed,
)
from basinax.models.evaluators.torchscript import warn_of_compiled
from basinax.models.evaluators.waiting import WaitingSession, refuse_stress
from basinax.models.evaluators.worker import compute, implemented_by, is_calculator
from basinax.models.evaluators.workers import Workers
from basinax.numerics.processor import n_cores
from basinax.numerics.settings import (
    POSITIVE,
    at_least,
    count_of,
    first_of,
    one_number,
    require_switch,
    require_whole,
)
from basinax.structures.batch import bare
from basinax.structures.charges import uses_of


@dataclasses.dataclass(frozen=True, repr=False)
class ASECalculator(AbstractEvaluator):
    """Any ASE calculator as a potential: each structure is evaluated as if it were alone.

    A calculator is reset before each evaluation, so that results depend on the positions alone; a
    restart from another density, for example, would change last digits. ASE's cache, which treats
    positions within 1e-15 Å as equal, is not used.

    Args:
        calculator: a function without arguments that makes a calculator, such as
            `lambda: TBLite(method="GFN2-xTB")`, for worker processes; or a calculator, which
            evaluates one structure after another in this process.
        workers: the number of processes, no more than structures, each with a calculator and a
            folder of its own, in which relative paths still work; None for one per core.
        reuse: give each structure a calculator of its own, without resets. SCF codes then start
            from the last density, which is faster, but an interrupted and resumed relaxation ends
            with other last digits. Needs a function.
        timeout: a longer evaluation (s) ends its structure; None for no limit. Needs a function.
        threads: the threads of BLAS, OpenMP and torch in each process. Another number changes last
            digits. Needs a function.

    Raises:
        TypeError, ValueError: an argument is unusable.
    """

    calculator: Callable[[], Any] | BaseCalculator
    workers: int | None = None
    reuse: bool = False
    timeout: float | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        is_instance = is_calculator(self.calculator)
        if not is_instance and not callable(self.calculator):
            raise TypeError(
                "calculator must be an ASE calculator, or an object with its get_potential_energy"
                " and get_forces, or a function that makes one, got"
                f" {type(self.calculator).__name__}"
            )
        if self.workers is not None:
            require_whole(self.workers, "workers", at_least(1))
        require_whole(self.threads, "threads", at_least(1))
        require_switch(self.reuse, "reuse")
        if self.timeout is not None:
            one_number(self.timeout, "timeout", POSITIVE)
        if is_instance:
            defaults = {field.name: field.default for field in dataclasses.fields(self)}
            for name in ("workers", "reuse", "timeout", "threads"):
                if getattr(self, name) != defaults[name]:
                    raise TypeError(
                        f"{name} needs a function that makes calculators, got a calculator: pass"
                        f" lambda: {type(self.calculator).__name__}(...)"
                    )

    def __repr__(self) -> str:
        """The calculator, or the function that makes it, and the options that are given."""
        of_class = type(self.calculator).__name__
        name = of_class if is_calculator(self.calculator) else None
        shown = [name or getattr(self.calculator, "__qualname__", of_class)]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            shown += [] if value == field.default else [f"{field.name}={value}"]
        return f"ASECalculator({', '.join(shown)})"

    @property
    def uses(self) -> frozenset[str]:
        return uses_of(self.calculator)

    @property
    def n_at_once(self) -> int:
        return 1 if is_calculator(self.calculator) else self.workers or n_cores()

    def check(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> None:
        if is_calculator(self.calculator):
            _check_properties(self.calculator, needs_stress)

    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        if is_calculator(self.calculator):
            return _in_process(atoms, [self.calculator] * len(atoms))
        n_workers = min(self.n_at_once, len(atoms))
        make = cast(Callable[[], Any], self.calculator)
        workers = Workers(make, bare(atoms), n_workers, self.reuse, self.timeout, self.threads)
        try:
            check_stress(workers.implemented, needs_stress)
        except BaseException:
            workers.close()
            raise
        return workers


class OwnCalculators(AbstractEvaluator):
    """Each structure's own `atoms.calc`, in this process."""

    def check(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> None:
        without = [k for k, a in enumerate(atoms) if a.calc is None]
        if without:
            raise ValueError(
                f"there is no calculator for {count_of(len(without), 'structure')}"
                f" ({first_of(without)}): give relax a potential, or set atoms.calc"
            )
        for k, a in enumerate(atoms):
            if not is_calculator(a.calc):
                raise TypeError(
                    f"system {k}: its calculator, a {type(a.calc).__name__}, lacks"
                    " get_potential_energy(atoms) or get_forces(atoms): write these, or make it a"
                    " class of ase.calculators.calculator.Calculator"
                )
            _check_properties(a.calc, [needs_stress[k]], first=k)

    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        return _in_process(atoms, [a.calc for a in atoms])


def evaluator_of(potential: Any) -> AbstractEvaluator | None:
    """The evaluator of a potential that the host calls; None for potentials inside `jit`."""
    if potential is None:
        return OwnCalculators()
    if isinstance(potential, AbstractEvaluator):
        return potential
    return ASECalculator(potential) if is_calculator(potential) else None


def _in_process(atoms: Sequence[Atoms], calculators: Sequence[Any]) -> AbstractSession:
    """Calculators in this process, one evaluation after another."""
    warn_of_compiled(calculators)
    templates = bare(atoms)

    def evaluate(requests: list[Request]) -> list[Answer]:
        (request,) = requests
        number, names = request.number, names_of(request)
        here = placed(templates[number], request)
        results = compute(calculators[number], here, names, is_reset=True)
        return [(number, checked_results(results, len(here), names))]

    return WaitingSession(evaluate)


def check_stress(implemented: Sequence[str], needs_stress: Sequence[bool], first: int = 0) -> None:
    """Raise ValueError if a structure needs its stress and the calculator has none."""
    if "stress" not in implemented:
        lack, remedy = "its calculator has no stress", "choose another calculator"
        refuse_stress(needs_stress, lack, remedy, first)


def _check_properties(calculator: Any, needs_stress: Sequence[bool], first: int = 0) -> None:
    if isinstance(calculator, SinglePointCalculator):
        raise TypeError(
            f"system {first}: its calculator holds results of one point and computes none: give"
            " relax a potential, or set atoms.calc"
        )
    check_stress(implemented_by(calculator), needs_stress, first)
