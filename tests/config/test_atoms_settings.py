"""Settings of atoms without sense are refused by name, before anything runs or is allocated."""

from typing import Any

import numpy as np
import pytest
from ase import Atoms

from basinax import FIRE
from basinax.atoms import (
    EAM,
    EMT,
    Batch,
    Buckingham,
    Frechet,
    LennardJones,
    MaxAtomForce,
    MaxStress,
    Morse,
    NeighborTable,
    StillingerWeber,
    Strain,
    Tersoff,
    Trajectories,
    UnitCell,
    ZhouEAM,
    batch_shape,
    relax,
)
from basinax.potentials import stillinger_weber, tersoff

NO_NUMBERS: list[Any] = ["0.1", 1j, True, object(), [1.0, [2.0]]]
HUGE = 10**400
ARGON = LennardJones(epsilon=0.0104, sigma=3.4, cutoff=8.5)
DIMER = [Atoms("Ar2", [[0, 0, 0], [0, 0, 3.8]])]
TABLES = (np.zeros((1, 9)), np.zeros((1, 1, 9)), np.zeros((1, 1, 9)))

SENSELESS = {
    "positive": [*NO_NUMBERS, HUGE, -1.0, 0, np.nan, np.inf],
    "size": [*NO_NUMBERS, HUGE, -1.0, np.nan, np.inf],
    "tolerance": [*NO_NUMBERS, HUGE, -1.0, np.nan, [0.1, np.nan]],
    "finite": [*NO_NUMBERS, HUGE, np.nan, np.inf],
    "switch": [None, 1, "yes", np.nan],
    "count": [*NO_NUMBERS, -1, 0, 2.5, np.nan],
    "steps": [*NO_NUMBERS, None, -1, 2.5, np.nan, np.inf, [1, -1]],
    "dtype": [int, np.float16, complex, "no such", 5],
    "function": [5, "yes", True],
    "progress": [5, "yes"],
    "mask": ["xx", 5, [1, 2, 3], [np.nan] * 6, [2] * 6, np.eye(3) * 5],
    "word": [None, 5, "no such"],
    "room": [*NO_NUMBERS, 0, -8, 2.5, np.nan, HUGE, 2**40],
}
CELL = {
    "pressure": "finite",
    "mask": "mask",
    "hydrostatic_strain": "switch",
    "constant_volume": "switch",
    "cell_factor": "positive",
}


def relaxed(**settings):
    return relax(DIMER, ARGON, FIRE(), **settings)


def table(**settings):
    return NeighborTable(Batch.from_atoms(DIMER), **{"cutoff": 5.0, "skin": 1.0} | settings)


def tables(**settings):
    return EAM(["Cu"], *TABLES, **{"drho": 0.1, "dr": 0.1, "cutoff": 0.8} | settings)


TABLE = {
    "relax": (
        relaxed,
        {
            "fmax": "tolerance",
            "max_steps": "steps",
            "dtype": "dtype",
            "skin": "size",
            "keep_best": "switch",
            "throw": "switch",
            "progress": "progress",
            "should_stop": "function",
            "on_end": "function",
            "cell": "function",
            "convergence": "function",
            "optimizer": "function",
        },
    ),
    "Batch.from_atoms": (
        lambda **s: Batch.from_atoms(DIMER, **s),
        {"dtype": "dtype", "n_rows": "room", "n_systems": "room"},
    ),
    "batch_shape": (lambda sizes: batch_shape([sizes]), {"sizes": "count of atoms"}),
    "NeighborTable": (table, {"cutoff": "reach", "skin": "size"}),
    "Frechet": (Frechet, CELL),
    "UnitCell": (UnitCell, CELL),
    "Strain": (Strain, CELL),
    "MaxAtomForce": (MaxAtomForce, {"fmax": "tolerance"}),
    "MaxStress": (MaxStress, {"tolerance": "tolerance"}),
    "Trajectories": (
        lambda **s: Trajectories(**{"folder": "there"} | s),
        {"folder": "path", "interval": "count", "format": "word"},
    ),
    "LennardJones": (
        LennardJones,
        {
            "epsilon": "size",
            "sigma": "positive",
            "cutoff": "positive",
            "smooth": "switch",
            "onset": "positive",
            "mixing": "word",
        },
    ),
    "Morse": (
        Morse,
        {
            "epsilon": "size",
            "rho0": "positive",
            "r0": "positive",
            "rcut1": "positive",
            "rcut2": "positive",
        },
    ),
    "Buckingham": (
        lambda **s: Buckingham(**{"A": 1000.0, "rho": 0.3, "q": 1.0} | s),
        {
            "A": "size",
            "rho": "positive",
            "C": "size",
            "q": "finite",
            "alpha": "size",
            "cutoff": "positive",
            "short_cutoff": "positive",
            "shift": "switch",
        },
    ),
    "EAM": (tables, {"drho": "positive", "dr": "positive", "cutoff": "positive"}),
    "ZhouEAM": (lambda **s: ZhouEAM("Cu", **s), {"cutoff": "positive"}),
    "EMT": (lambda **s: EMT("Cu", **s), {"asap_cutoff": "switch"}),
}
SENSELESS["count of atoms"] = [*NO_NUMBERS, -1, 2.5, np.nan]
SENSELESS["reach"] = [*NO_NUMBERS, -0.1, np.nan]
SENSELESS["path"] = [None, 5, True, ["there"]]

CASES = [(setting, of) for of, (_, kinds) in TABLE.items() for setting in kinds]


@pytest.mark.parametrize(("setting", "of"), CASES, ids=str)
def test_settings_without_sense_are_refused_by_name(setting, of):
    make, kinds = TABLE[of]
    texts = []
    for value in SENSELESS[kinds[setting]]:
        with pytest.raises((TypeError, ValueError)) as error:
            make(**{setting: value})
        texts.append(str(error.value))
    assert [text for text in texts if setting not in text or len(text) > 300] == []


SENSIBLE = {
    "no pressure": lambda: Frechet(pressure=[0.1, np.float32(0.2)], cell_factor=3),
    "a mask of integers": lambda: UnitCell(mask=[1, 1, 0, 0, 0, 1]),
    "a long interval": lambda: Trajectories("there", interval=10**11),
    "no interaction": lambda: LennardJones(epsilon=0, sigma=np.float64(3.4)),
    "no charges": lambda: Buckingham(1000.0, 0.3, alpha=0),
    "no skin": lambda: table(skin=0),
    "a criterion a structure": lambda: MaxAtomForce([0.1, 0.2]),
}


@pytest.mark.parametrize("name", SENSIBLE)
def test_sensible_settings_are_taken(name):
    assert SENSIBLE[name]() is not None


TRIPLETS = [(StillingerWeber, stillinger_weber.NAMED["Si"]), (Tersoff, tersoff.SILICON)]


@pytest.mark.parametrize(("maker", "entry"), TRIPLETS, ids=["StillingerWeber", "Tersoff"])
def test_every_parameter_of_a_triplet_is_a_finite_number(maker, entry):
    for field in entry._fields:
        for value in SENSELESS["finite"]:
            with pytest.raises((TypeError, ValueError), match=f"{field} of Si Si Si must be"):
                maker({("Si", "Si", "Si"): entry._replace(**{field: value})})
