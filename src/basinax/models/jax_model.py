"""A JAX model as a potential: each structure is evaluated as if it were alone.

Threads evaluate structures (`session.py`); no bit depends on the thread. Each structure runs a
program for its own padded shape (`graphs.py`, `programs.py`), whatever the number of others.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.data import chemical_symbols
from jaxtyping import Float

from basinax.config.tables import choose
from basinax.models.evaluators.protocol import AbstractModel, AbstractSession
from basinax.models.evaluators.waiting import refuse_stress
from basinax.models.graphs import (
    PER_DOUBLING,
    POSITIONS,
    VECTORS,
    AbstractLayout,
    Series,
    VerletList,
)
from basinax.models.lists import FORMATS, LISTS, Listed, ListedEnergy
from basinax.models.packages import Nequix, asked_of, read_mlip, read_nequix
from basinax.models.programs import MOST_PLACES, ModelForm, Program, derived, returned_by
from basinax.models.session import ModelSession
from basinax.neighbors.search import check_listable
from basinax.numerics.processor import n_cores
from basinax.numerics.settings import (
    POSITIVE,
    at_least,
    one_number,
    require_function,
    require_switch,
    require_whole,
    shown,
)
from basinax.numerics.static import partition
from basinax.numerics.switches import config_context
from basinax.potentials.hessians import by_coordinates
from basinax.potentials.tables.species import numbers_of
from basinax.structures.batch import available_dtype
from basinax.structures.charges import TOTALS, check_totals
from basinax.structures.machine import Machine, machine
from basinax.structures.read import name_of

FEW = 8
"""The number of elements that messages name."""


@dataclasses.dataclass(frozen=True)
class JaxModel(AbstractModel):
    """A JAX function of one structure's graph as a potential.

    The function is called with arrays of a padded shape, in this order: `positions` [n, 3] and
    `cell` [3, 3] in Å, atomic `numbers` [n], `senders` and `receivers` [e], and `shifts` [e, 3] in
    cells; the vector of a pair is `positions[senders] + shifts @ cell - positions[receivers]`. The
    arrays contain all pairs within the cutoff, in both directions. The function returns the
    energies of atoms [n] in eV; energies of spare atoms are ignored. A pair beyond the cutoff must
    contribute nothing, since spare pairs join two spare atoms that are farther apart.

    A function with further arguments named `charge` or `spin` is called with these numbers of the
    structure: its total charge in e, and its multiplicity 2S + 1, 0 for a crystal that has none.

    Args:
        energies: the function; weights may be arrays in it, if it is a pytree such as an equinox
            module. What else it reads, as globals or an object's attributes, is that of its first
            call, as in `jax.jit`.
        cutoff: the cutoff of pairs, in Å.
        species: symbols or atomic numbers of the elements that the model knows; any if empty.
        dtype: the precision of the model, float32 or float64; JAX's default float if None. JAX's
            double precision is switched on for float64, and off for float32.
        conservative: whether forces are derivatives of the energy. If False, the function returns
            energies, forces [n, 3] in eV/Å and stress [3, 3] in eV/Å³, or None for no stress.
            Optimizers with line searches refuse such a model.
        workers: threads that evaluate structures on each device; if None, one per core on CPU, two
            on others. If memory runs out, fewer structures are evaluated at a time, with the same
            bits.
        shapes: "few" has one shape, which is compiled, for each doubling of the number of pairs;
            "fine" has four, for long campaigns. Bits depend on it.
        devices: JAX devices, one entry per thread; the default if empty or None. Set by
            `relax(devices=)`.

    Raises:
        TypeError, ValueError: an argument is unusable.
    """

    energies: Callable[..., Any]
    cutoff: float
    species: Sequence[str | int] = ()
    dtype: Any = None
    conservative: bool = True
    workers: int | None = None
    shapes: Series = dataclasses.field(default="few", kw_only=True)
    takes: AbstractLayout = dataclasses.field(default=POSITIONS, kw_only=True)
    asks: Sequence[str] | None = dataclasses.field(default=None, kw_only=True)
    """Of charge and spin, what the function is called with; what its signature names if None."""
    devices: Sequence[Any] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        require_function(self.energies, "energies")
        one_number(self.cutoff, "cutoff", POSITIVE)
        if not isinstance(self.species, str):  # an iterator can be read once
            object.__setattr__(self, "species", tuple(self.species))
        numbers_of(self.species)
        require_switch(self.conservative, "conservative")
        if self.workers is not None:
            require_whole(self.workers, "workers", at_least(1))
        choose("shapes", self.shapes, PER_DOUBLING)
        if not all(x is None or isinstance(x, jax.Device) for x in self.devices):
            raise TypeError(f"devices must be some of JAX, got {shown(self.devices)}")
        if self.dtype is not None:
            _precision(self.dtype)
        try:
            hash(partition(self.energies)[0])
        except TypeError as error:
            raise TypeError(
                f"energies must have a hash ({error}): make it an equinox module, or"
                " @dataclass(frozen=True)"
            ) from None

    def __repr__(self) -> str:
        """The class and the function with elements, cutoff and precision."""
        function = getattr(self.energies, "__name__", type(self.energies).__name__)
        numbers = sorted(numbers_of(self.species))
        elements = _in_few(numbers) if numbers else "any element"
        precision = "" if self.dtype is None else f"; {np.dtype(self.dtype)}"
        reach = f"cutoff {self.cutoff:.4g} Å"
        shapes = "" if self.shapes == "few" else f"; {self.shapes} shapes"
        return f"{type(self).__name__}({function}; {elements}; {reach}{precision}{shapes})"

    @classmethod
    def of_vectors(
        cls, site_energies: Callable[..., Any], cutoff: float, *args: Any, **options: Any
    ) -> "JaxModel":
        """A model that is a function of the vectors of pairs, as most models are inside.

        Args:
            site_energies: called with `vectors` [e, 3] in Å from receivers to senders, `numbers`
                [n], `senders` and `receivers` [e]; returns the energies of atoms [n] in eV.
            cutoff: the cutoff of pairs, in Å.
            *args: see the class.
            **options: see the class.
        """
        return cls(site_energies, cutoff, *args, takes=VECTORS, **options)

    @classmethod
    def nequix(
        cls, file: str | os.PathLike[str], *, dtype: Any = "float32", **options: Any
    ) -> "JaxModel":
        """A model of the package nequix from a `.nqx` file, for the species of its training.

        Args:
            file: a file that nequix wrote.
            dtype: float32, like the weights, or float64.
            options: see the class.

        Raises:
            OSError, ValueError: the file cannot be read, or holds no model.
            ImportError: the package is not installed.
        """
        energies, cutoff, numbers = read_nequix(file, _precision(dtype))
        options = {"species": tuple(numbers), "dtype": dtype} | options
        return cls.of_vectors(energies, cutoff, **options)

    @classmethod
    def mlip(cls, force_field: Any, *, dtype: Any = "float32", **options: Any) -> "JaxModel":
        """A force field of the package mlip, for the species of its training.

        Args:
            force_field: a `ForceField` of mlip 0.2, such as `load_model_from_zip` returns.
            dtype: float32, like the weights, or float64.
            options: see the class.

        Raises:
            TypeError, ValueError: the object is no force field, or needs a second neighbour list.
        """
        energies, cutoff, numbers = read_mlip(force_field, _precision(dtype))
        options = {"species": tuple(numbers), "dtype": dtype} | options
        options["asks"] = asked_of(force_field)
        return cls(energies, cutoff, **options)

    @classmethod
    def jax_md(
        cls,
        energy: Callable[..., Any],
        cutoff: float,
        format: Any,
        *,
        fractional_coordinates: bool = False,
        keywords: Callable[..., dict[str, Any]] | None = None,
        species: Sequence[str | int] = (),
        dtype: Any = None,
        workers: int | None = None,
        shapes: Series = "few",
    ) -> "JaxModel":
        """An energy function of jax-md with a neighbour list.

        The function is called as `energy(positions, neighbor, box=..., perturbation=...)` with the
        box and list of each structure, which jax-md makes with `space.periodic_general` for any
        box. Structures without periodic directions get a wide box.
        Each number of atoms needs a program of its own.

        Args:
            energy: returns one energy, or the energies of atoms, in eV; weights may be arrays in
                it, as in `jax.tree_util.Partial(energy_fn, params)`.
            cutoff: the cutoff of pairs, in Å. Cells must be twice as wide, since jax-md finds
                nearest images only.
            format: the format of the list: `Dense`, `Sparse` or `OrderedSparse` of
                `jax_md.partition`.
            fractional_coordinates: as chosen for `space.periodic_general`, whose default is True.
            keywords: maps atomic numbers [n] (an array in a traced program) to further keywords,
                such as `lambda numbers: {"species": jnp.where(numbers == 14, 0, 1)}`.
            species: see the class.
            dtype: see the class.
            workers: see the class.
            shapes: see the class.

        Raises:
            TypeError, ValueError: an argument is unusable.
        """
        require_function(energy, "energy")
        name = getattr(format, "name", None)
        if name not in FORMATS:
            raise TypeError(
                f"format must be one of jax_md.partition ({', '.join(FORMATS)}), got {format!r}"
            )
        require_switch(fractional_coordinates, "fractional_coordinates")
        if keywords is not None:
            require_function(keywords, "keywords")
        takes = Listed(LISTS, name, fractional_coordinates)
        listed = ListedEnergy(energy, format, keywords)
        options: dict[str, Any] = {"workers": workers, "shapes": shapes, "takes": takes}
        return cls(listed, cutoff, species, dtype, **options)

    @property
    def uses(self) -> frozenset[str]:
        if self.asks is not None:
            return frozenset(self.asks)
        return frozenset(_asked_by(self.energies, len(self.takes.arguments)))

    @property
    def is_conservative(self) -> bool:
        return self.conservative

    @property
    def n_at_once(self) -> int:
        return len(self._threads) * (MOST_PLACES if self._machine.model_pairs else 1)

    @property
    def _machine(self) -> Machine:
        return machine(self.devices[0] if self.devices else None)

    @property
    def _threads(self) -> list[Any]:
        """The device of each thread; None for JAX's default."""
        n_threads = self.workers or self._machine.model_threads or n_cores()
        return list(self.devices) or [None] * n_threads

    def on(self, devices: Sequence[Any]) -> "JaxModel":
        kinds = list(dict.fromkeys(devices))
        n_threads = self.workers or machine(devices[0]).model_threads
        return dataclasses.replace(self, devices=tuple(kinds * n_threads or devices))

    def check(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> None:
        self.check_but_lists(atoms, needs_stress)
        check_listable(atoms, float(self.cutoff), np.float64)

    def check_but_lists(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> None:
        """The part of `check` that concerns no neighbour lists."""
        _check_species(atoms, frozenset(numbers_of(self.species)))
        self.takes.check(atoms, float(self.cutoff))
        check_totals(atoms, tuple(sorted(self.uses)))
        program = self._program()
        with config_context(program.switches):
            self._check(program, needs_stress)

    def _program(self) -> Program:
        dtype = available_dtype(None) if self.dtype is None else np.dtype(self.dtype)
        form = ModelForm(self.takes.arguments, not self.conservative, tuple(sorted(self.uses)))
        layout = dataclasses.replace(self.takes, series=self.shapes)
        return Program(self.energies, form, layout, float(self.cutoff), dtype)

    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        program = self._program()
        with config_context(program.switches):
            program = program.with_places(self._machine.model_pairs)
            threads = self._threads
        return ModelSession(atoms, program, threads[: len(atoms)])

    def _check(self, program: Program, needs_stress: Sequence[bool]) -> None:
        """Raise TypeError if the function returns wrong types or shapes."""
        if isinstance(program.function, Nequix) and self.conservative:
            return  # known, and a trace takes a second
        graph = program.abstract_graph()
        n = graph["numbers"].shape[0]
        returned = returned_by(*program.parts, graph)
        parts = [returned] if self.conservative else returned
        wanted = [(n,), (n, 3), (3, 3)][: 1 if self.conservative else 3]
        if not isinstance(parts, list | tuple) or len(parts) != len(wanted):
            raise TypeError(
                "a model that is not conservative must return energies, forces and stress (or None)"
            )
        names = ("energies of atoms", "forces", "stress")
        for name, part, shape in zip(names, parts, wanted, strict=False):
            if part is None and name == "stress":
                refuse_stress(needs_stress, "the model has no stress", "choose another model")
            elif part is None or getattr(part, "shape", None) != shape:
                raise TypeError(
                    f"the model must return {name} of shape {shape} for a graph of {n}"
                    f" atoms, got {getattr(part, 'shape', type(part).__name__)}"
                )
            elif not jnp.issubdtype(part.dtype, jnp.floating):
                raise TypeError(f"the model must return {name} as floats, got {part.dtype}")


def hessian_of(
    model: JaxModel, atoms: Atoms, moving: np.ndarray
) -> Float[np.ndarray, "3*moving 3*moving"]:
    """As for a potential (`basinax.potentials.hessians`), in the precision of the model.

    Raises:
        ValueError: no neighbour list can be made.
    """
    program = model._program()
    with config_context(program.switches):
        pairs = VerletList(atoms.pbc, atoms.numbers, program.cutoff)
        (laid,) = program.laid_out([pairs], [atoms.positions], atoms.cell.array[None], [atoms])
        if isinstance(laid, ValueError):
            raise laid
        graph, parts = laid[1], program.parts
        n_rows = len(graph["positions"])
        return by_coordinates(lambda at: derived(*parts, graph, at), moving, n_rows)


def _asked_by(function: Callable[..., Any], n_arrays: int) -> Iterator[str]:
    """The names of `TOTALS` among a function's arguments after the arrays."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function without a signature
        return
    both = function, inspect.unwrap(function)  # which may be jitted
    bound = {name for f in both if isinstance(f, functools.partial) for name in f.keywords}
    for place, parameter in enumerate(parameters):
        is_named = parameter.kind is parameter.KEYWORD_ONLY
        is_named |= parameter.kind is parameter.POSITIONAL_OR_KEYWORD and place >= n_arrays
        if is_named and parameter.name in TOTALS and parameter.name not in bound:
            yield parameter.name


def _precision(dtype: Any) -> np.dtype:
    """The precision of a model; raises TypeError for another one."""
    try:
        found = np.dtype(dtype)
    except TypeError:  # of a text that is no type
        found = None
    if found not in (np.float32, np.float64):
        raise TypeError(f"dtype must be float32 or float64, got {dtype!r}")
    return found


def _check_species(atoms: Sequence[Atoms], known: frozenset[int]) -> None:
    """Raise ValueError if a structure has an element that the model does not know."""
    if not known:
        return
    for k, a in enumerate(atoms):
        unknown = sorted(set(np.unique(a.numbers).tolist()) - known)
        if unknown:
            names = ", ".join(chemical_symbols[z] for z in unknown)
            raise ValueError(
                f"{name_of(a, k)}: the model does not know {names}; it knows"
                f" {_in_few(sorted(known))}"
            )


def _in_few(numbers: Sequence[int]) -> str:
    symbols = [chemical_symbols[z] for z in numbers]
    few = ", ".join(symbols[:FEW])
    return few if len(symbols) <= FEW else f"{few} and {len(symbols) - FEW} others"
