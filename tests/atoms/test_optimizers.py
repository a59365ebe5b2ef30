"""Optimizers on clusters, crystals and a molecule: the bits of a batch are those alone."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.cluster import Icosahedron
from jaxtyping import Array, Float

from basinax import (
    BFGS,
    FIRE2,
    LBFGS,
    Armijo,
    BFGSLineSearch,
    ConjugateGradient,
    LBFGSLineSearch,
    Status,
    rounded,
)
from basinax.atoms import AbstractPotential, LennardJones, Morse, Properties, relax

pytestmark = pytest.mark.usefixtures("few_shapes")


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


def argon() -> list[Atoms]:
    """More rows than a program of one of them has room for, and dense Hessians of two sizes.

    The first two, which are relaxed alone as well, need one program for that.
    """
    cluster = Atoms("Ar13", Icosahedron("Ar", 2, latticeconstant=5.4).positions)
    crystal = bulk("Ar", "fcc", 5.3, cubic=True)
    off = [cluster, cluster.copy(), crystal, crystal.repeat((2, 2, 1))]
    made = [rattled(a, k) for k, a in enumerate(off)]
    return [*made, Atoms("Ar13", [[3.6 * k, 0, 0] for k in range(12)] + [[0, 0, 0]])]


def molecules() -> list[Atoms]:
    shapes = [rattled(Atoms("C13", [[1.5 * k, 0, 0] for k in range(13)]), seed) for seed in (3, 4)]
    return [*shapes, Atoms("C13", np.zeros((13, 3)))]


SETTINGS = {
    "argon": (argon, LennardJones(epsilon=0.0104, sigma=3.4, cutoff=8.5)),
    "Morse crystals": (
        lambda: (
            [rattled(bulk("Ar", "fcc", 5.3, cubic=True), k) for k in range(3)]
            + [Atoms("Ar4", np.zeros((4, 3)), cell=[5, 5, 5], pbc=True)]
        ),
        Morse(epsilon=0.0134784, rho0=5.849, r0=3.786),
    ),
    "molecules of springs": (molecules, Springs(jnp.asarray(20.0), jnp.asarray(1.5))),
}
"""The last structure of each has atoms at one place, and fails."""


def outcome(result, k: int) -> list[np.ndarray]:
    fields = ("energies", "fmax", "steps", "evaluations", "status")
    atoms = result.atoms[k]
    return [np.asarray(getattr(result, f)[k]) for f in fields] + [
        atoms.positions,
        atoms.get_forces(),
    ]


# One or two for each kind of state: a few numbers, past steps, a dense matrix, a line search with
# several evaluations a step. tests/test_isolation.py and tests/test_bfgs.py have every optimizer.
CASES = {
    "BFGS": (BFGS(), "argon", np.float64),
    "LBFGSLineSearch with Armijo": (
        LBFGSLineSearch(memory=10, search=Armijo()),
        "molecules of springs",
        np.float32,
    ),
    "LBFGS": (LBFGS(memory=10), "Morse crystals", np.float32),
    "ConjugateGradient": (ConjugateGradient(), "Morse crystals", np.float64),
    "BFGSLineSearch": (BFGSLineSearch(), "molecules of springs", np.float64),
    "FIRE2 with ABC": (FIRE2(use_abc=True), "argon", np.float32),
}


@pytest.mark.parametrize("name", CASES)
def test_a_structure_ends_as_if_alone_beside_one_that_fails(name):
    optimizer, setting, dtype = CASES[name]
    make, potential = SETTINGS[setting]
    atoms, settings = make(), {"fmax": 1e-9, "max_steps": 420, "dtype": dtype}
    batch = relax(atoms, potential, optimizer, **settings)
    assert batch.status[-1] == Status.NOT_FINITE
    for k, a in enumerate(atoms[:2]):
        alone = relax([a], potential, optimizer, **settings)
        for got, expected in zip(outcome(batch, k), outcome(alone, 0), strict=True):
            np.testing.assert_array_equal(got, expected)
