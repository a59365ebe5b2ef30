"""No potential, cell or constraint leaves a rounding or an order to the compiler."""

import dataclasses
import functools

import equinox as eqx
import jax
import numpy as np
import pytest

from basinax import FIRE, check_order
from basinax.atoms import EMT, Batch, Frechet, UnitCell, ZhouEAM
from basinax.engine.device import Settings, advanced, moved
from basinax.engine.moving_cells import cell_moves
from basinax.minimize.criteria import MaxForce
from basinax.minimize.run import Evaluation, start
from basinax.structures.read import intake
from covalent import POTENTIALS as COVALENT, of
from cover import exhaustive, named_daily
from ions import POTENTIALS as IONIC, SYSTEMS as IONS
from metal_tables import ELEMENTS, metal, potential
from metals import SYSTEMS as METALS
from moving_crystals import ARGON, CONSTRAINTS, crystal, symmetric
from structures import POTENTIALS as NOBLE, STRUCTURES, listed, mixed

ONE_METAL = [metal("cluster of 13", ("Cu",)), metal("cell of 32", ("Cu",))]
ALLOYS = [metal("cluster of 13", ELEMENTS), metal("cell of 32", ELEMENTS)]
GASES = [mixed(STRUCTURES["cell of 32"]), mixed(STRUCTURES["cluster of 13"])]

CASES = {
    **{name: (made, GASES) for name, made in NOBLE.items()},
    **{name: (made, [IONS["cluster of 13"], IONS["silica"]]) for name, made in IONIC.items()},
    **{
        name: (made, [of(elements, "pair", scale), of(elements, "cell of 8", scale)])
        for name, (made, elements, scale) in COVALENT.items()
    },
    "EMT": (EMT(), [METALS["slab with a molecule"], METALS["cluster of 13"]]),
    "EMT with the cutoff of ASAP": (EMT(asap_cutoff=True), [METALS["cluster of 13"]]),
    "Zhou": (ZhouEAM(*ELEMENTS), ALLOYS),
    "Zhou, one element": (ZhouEAM("Cu"), ONE_METAL),
    "tables": (potential("mix.eam.fs"), ALLOYS),
    "tables of one element": (potential("one.eam"), ONE_METAL),
}


def findings_of(name, dtype, *, stress):
    potential, systems = CASES[name]
    batch = Batch.from_atoms(systems, dtype)
    evaluate = functools.partial(_evaluated, stress=stress)
    return check_order(evaluate, potential, batch, listed(batch, potential, folded=[0])).findings


def _evaluated(potential, batch, lists, *, stress):
    return potential(batch, lists, stress=stress)


@pytest.mark.parametrize(("dtype", "stress"), [exhaustive(np.float32, False), (np.float64, True)])
@pytest.mark.parametrize("name", CASES)
def test_the_order_of_a_potential_is_its_own(name, dtype, stress):
    assert findings_of(name, dtype, stress=stress) == ()


@pytest.mark.parametrize("name", [x if x == "EMT" else exhaustive(x) for x in CASES])
def test_what_a_program_closes_over_changes_no_bit(name):
    """Numbers and lists are then constants of the program, which XLA sees."""
    potential, systems = CASES[name]
    batch = Batch.from_atoms(systems, np.float64)
    lists = listed(batch, potential, folded=[0])

    @jax.jit
    def closed(positions):
        return potential(dataclasses.replace(batch, positions=positions), lists, stress=True)

    found = closed(batch.positions), eqx.filter_jit(potential)(batch, lists, stress=True)
    for ours, theirs in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_rounding_that_a_potential_leaves_out_is_found(monkeypatch):
    monkeypatch.setattr("basinax.potentials.buckingham.rounded", lambda x: x)
    found = findings_of("BKS", np.float64, stress=False)
    origins = [finding.origin for finding in found if finding.rule == "product in a sum"]
    assert any("buckingham.py:" in origin for origin in origins)


KINDS = {
    "none": (None, np.float64),
    "UnitCell": (UnitCell(), np.float32),
    "Frechet": (Frechet(), np.float64),
}


@pytest.mark.parametrize("kind", named_daily(KINDS, ["Frechet"]))
@pytest.mark.parametrize("name", [*CONSTRAINTS, "symmetry"])
def test_the_order_of_a_turn_with_constraints_and_cells_is_its_own(name, kind):
    how, dtype = kind
    systems = [symmetric()] if name == "symmetry" else [crystal(name, 0), crystal(name, 1)]
    batch = Batch.from_atoms(systems, dtype)
    moves = how and cell_moves(how, intake(systems), batch.n_systems, dtype)
    params, prefix = batch.positions, batch.index
    if moves is not None:
        params, prefix = moves.start(batch.positions), moves.prefix(batch.index)
    lists = listed(batch, ARGON, folded=[0])

    def turn(batch, moves, lists, params, settings):
        def evaluate(params):
            here = moved(batch, moves, params)
            found = ARGON(here, lists, stress=moves is not None)
            if moves is None:
                return Evaluation(found.energies, -found.forces, found.energies == found.energies)
            lost = moves.is_lost(here, ARGON.cutoff)
            energies, gradient, observed = moves.of_properties(params, found, here, lost)
            return Evaluation(energies, gradient, ~lost, observed)

        extras = evaluate(params).extras
        run = start(settings.optimizer, params, prefix, extras=extras)
        return advanced(evaluate, run, settings, batch, moves, 1)

    settings = Settings(FIRE(), MaxForce(0.01), 10)
    assert check_order(turn, batch, moves, lists, params, settings).findings == ()
