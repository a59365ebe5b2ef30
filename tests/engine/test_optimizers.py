"""Optimizers on clusters, crystals and a molecule: the bits of a batch are those alone."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ase import Atoms
from ase.build import bulk
from ase.cluster import Icosahedron
from jaxtyping import Array, Float

from basinax import (
    BFGS,
    FIRE,
    FIRE2,
    LBFGS,
    Adam,
    Armijo,
    BFGSLineSearch,
    ClipByGlobalNorm,
    ConjugateGradient,
    GradientDescent,
    LBFGSLineSearch,
    MaxStepSize,
    MDMin,
    Status,
    chain,
    rounded,
)
from basinax.atoms import AbstractPotential, LennardJones, Morse, Properties, relax
from comparison import same
from cover import every_day

pytestmark = pytest.mark.usefixtures("few_shapes", "few_places")


class Springs(AbstractPotential):
    """A chain of atoms, each bound to the one before and after it: ½ k (r - r₀)²."""

    stiffness: Float[Array, ""]
    length: Float[Array, ""]
    species: tuple[int, ...] = eqx.field(static=True, default=())

    @property
    def cutoff(self) -> float:
        return 1.0

    def __call__(self, batch, neighbors, *, stress=False):
        ids, x = batch.index.ids, batch.positions
        is_bound = (ids[1:] == ids[:-1]) & (ids[1:] < batch.n_systems)
        d = x[1:] - x[:-1]
        r2 = rounded(d[:, 0] * d[:, 0]) + rounded(d[:, 1] * d[:, 1]) + rounded(d[:, 2] * d[:, 2])
        r = rounded(jnp.sqrt(jnp.where(is_bound, r2, 1.0)))
        k, away = self.stiffness.astype(x.dtype), r - self.length.astype(x.dtype)
        energy = jnp.where(is_bound, rounded(0.5 * rounded(k * rounded(away * away))), 0.0)
        pull = rounded(rounded(k * away) / r)[:, None]
        bond = jnp.where(is_bound[:, None], rounded(pull * d), 0.0)
        forces = jnp.pad(bond, ((0, 1), (0, 0))) - jnp.pad(bond, ((1, 0), (0, 0)))
        atom_energies = jnp.pad(energy, (0, 1))
        return Properties(batch.index.sum(atom_energies), forces, atom_energies)


def rattled(atoms: Atoms, seed: int, width: float = 0.15) -> Atoms:
    atoms.rattle(width, seed=seed)
    return atoms


HOPELESS = 5
"""The structure whose atoms are at one place, and that fails."""


def several(large, small, hopeless) -> list[Atoms]:
    """Six structures of two blocks of rows and six of one, of which a batch holds five at once.

    The first is the largest.
    """
    return [
        rattled(large(), 0),
        *(rattled(a.copy(), k) for k in (1, 2) for a in (small(), large())),
        hopeless,
        *(rattled(a.copy(), k) for k in (3, 4, 5) for a in (small(), large()[:-1])),
    ]


def argon() -> list[Atoms]:
    crystal = bulk("Ar", "fcc", 5.3, cubic=True)
    cluster = lambda: Atoms("Ar13", Icosahedron("Ar", 2, latticeconstant=5.4).positions)  # noqa: E731
    heap = Atoms("Ar13", [[3.6 * k, 0, 0] for k in range(12)] + [[0, 0, 0]])
    return several(cluster, crystal.copy, heap)


def crystals() -> list[Atoms]:
    crystal = bulk("Ar", "fcc", 5.3, cubic=True)
    heap = Atoms("Ar4", np.zeros((4, 3)), cell=[5, 5, 5], pbc=True)
    return several(lambda: crystal.repeat((3, 1, 1)), crystal.copy, heap)


def molecules() -> list[Atoms]:
    chain_of = lambda n: Atoms(f"C{n}", [[1.5 * k, 0, 0] for k in range(n)])  # noqa: E731
    return several(lambda: chain_of(13), lambda: chain_of(5), Atoms("C13", np.zeros((13, 3))))


SETTINGS = {
    "argon": (argon, LennardJones(epsilon=0.0104, sigma=3.4, cutoff=8.5)),
    "Morse crystals": (crystals, Morse(epsilon=0.0134784, rho0=5.849, r0=3.786)),
    "molecules of springs": (molecules, Springs(jnp.asarray(20.0), jnp.asarray(1.5))),
}


# One for each kind of state: a few numbers, past steps, a dense matrix, a line search with several
# evaluations a step; and the options of `relax`, by turns.
OF_THREE = np.array([0.06, 0.1, 0.13])
"""A setting of one structure after another, in turns."""

CASES = {
    "FIRE": (FIRE(dt=OF_THREE), "argon", np.float32, {"keep_best": True}),
    "FIRE2 with ABC": (FIRE2(use_abc=True), "argon", np.float32, {}),
    "MDMin": (MDMin(), "molecules of springs", np.float64, {"is_recorded": True}),
    "Adam": (Adam(OF_THREE), "molecules of springs", np.float32, {"keep_best": True}),
    "Barzilai-Borwein": (
        chain(GradientDescent(0.01, barzilai_borwein=True), MaxStepSize(OF_THREE)),
        "molecules of springs",
        np.float64,
        {},
    ),
    "optax": (
        chain(ClipByGlobalNorm(1.0), optax.scale_by_adam(), optax.scale(-0.05)),
        "molecules of springs",
        np.float64,
        {},
    ),
    "BFGS": (BFGS(), "Morse crystals", np.float64, {"cell": "strain", "keep_best": True}),
    "BFGS in a chain": (
        chain(chain(ClipByGlobalNorm(1.0), BFGS(alpha=500 * OF_THREE)), MaxStepSize(0.1)),
        "molecules of springs",
        np.float32,
        {"is_recorded": True},
    ),
    "BFGSLineSearch": (BFGSLineSearch(), "molecules of springs", np.float64, {}),
    "LBFGS": (LBFGS(memory=10), "Morse crystals", np.float32, {}),
    "LBFGSLineSearch with Armijo": (
        LBFGSLineSearch(memory=10, search=Armijo()),
        "molecules of springs",
        np.float32,
        {"keep_best": True},
    ),
    "ConjugateGradient": (ConjugateGradient(), "Morse crystals", np.float64, {}),
}


def turned(optimizer, which: list[int]):
    """With the settings of these structures."""
    of_each = lambda x: x[np.array(which) % 3] if np.shape(x) == (3,) else x  # noqa: E731
    return jax.tree.map(of_each, optimizer)


EVERY_DAY = ("LBFGSLineSearch with Armijo",)
"""Past steps, and a line search; without it `LBFGS` is in optimizers/test_reset.py every day,
FIRE's few numbers in test_relax.py, and dense matrices are reset and run beside others in
optimizers/test_bfgs.py.
"""


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize("name", every_day(CASES.keys(), EVERY_DAY.__contains__))
def test_a_structure_ends_as_if_alone_where_places_are_taken_again(name, tmp_path):
    optimizer, setting, dtype, options = CASES[name]
    make, potential = SETTINGS[setting]
    atoms, options = make(), {"fmax": 2e-5, "max_steps": 150, "dtype": dtype} | options
    is_recorded, folders = options.pop("is_recorded", False), itertools.count()

    def relaxed(which):
        chosen, own = [atoms[k] for k in which], turned(optimizer, which)
        folder = tmp_path / str(next(folders)) if is_recorded else None
        return relax(chosen, potential, own, trajectory=folder, **options)

    everything = range(len(atoms))
    batch = relaxed(everything)
    assert batch.status[HOPELESS] == Status.NOT_FINITE
    # The first brings room for dense matrices of its size, and so the program of all.
    for which in ([0], [0, 1], [0, 6], [0, 10], [0, 11]):
        few = relaxed(which)
        assert [k for i, k in enumerate(which) if not same(few, i, batch, k)] == []
