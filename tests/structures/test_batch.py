"""ASE structures to a batch and back."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.lj import LennardJones
from ase.constraints import FixAtoms, FixCom, FixedLine, FixScaled, FixSubsetCom, Hookean

from basinax.atoms import Batch, batch_shape
from structures import STRUCTURES, fcc, mixed, moved

SYSTEMS = [mixed(atoms) for atoms in STRUCTURES.values()]


def test_every_structure_comes_back_with_everything_that_was_there():
    first = fcc(1)
    first.info["name"] = "argon"
    first.set_array("charge", np.arange(4.0))
    first.set_tags([3, 2, 1, 0])
    first.calc = LennardJones()
    structures = [first, *SYSTEMS]
    for original, copy in zip(
        structures, Batch.from_atoms(structures).to_atoms(structures), strict=True
    ):
        assert copy == original
        assert copy.info == original.info
        assert copy.arrays.keys() == original.arrays.keys()
        assert copy.calc is None
        assert copy is not original
    np.testing.assert_array_equal(copy.arrays["numbers"], original.arrays["numbers"])


def test_positions_of_the_batch_go_into_the_copies_alone():
    structures = [fcc(1), Atoms("Ar")]
    batch = Batch.from_atoms(structures)
    copies = moved(batch, np.asarray(batch.positions) + 1.0).to_atoms(structures)
    np.testing.assert_array_equal(copies[0].positions, structures[0].positions + 1.0)
    np.testing.assert_array_equal(structures[0].positions, fcc(1).positions)


def test_systems_start_on_multiples_of_eight_rows_and_padding_belongs_to_none():
    batch = Batch.from_atoms([Atoms("Ar"), fcc(2), Atoms("Ne2", [[0, 0, 0], [3, 0, 0]])])
    assert batch.index.is_aligned
    assert batch.index.sizes.tolist() == [1, 32, 2]
    ids = np.asarray(batch.index.ids)
    assert [int(np.argmax(ids == k)) for k in range(3)] == [0, 8, 40]
    padding = ids == batch.n_systems
    assert (np.asarray(batch.numbers)[padding] == 0).all()
    assert (np.asarray(batch.positions)[padding] == 0).all()
    assert np.asarray(batch.numbers)[40:42].tolist() == [10, 10]


def test_batches_of_like_size_have_one_shape():
    def shape(structures):
        return [(x.shape, x.dtype) for x in jax.tree.leaves(Batch.from_atoms(structures))]

    assert shape([fcc(2)] * 28 + [fcc(1)] * 12) == shape([fcc(2)] * 29 + [fcc(1)] * 11)


def test_padding_adds_an_eighth_of_the_rows_at_most():
    for size in range(1, 600, 37):
        n_rows, n_systems = batch_shape([8] * size)
        assert n_rows % 8 == 0
        assert 8 * size <= n_rows <= max(8 * size * 9 / 8, 8 * size + 8)
        assert size <= n_systems <= max(size * 9 / 8, size + 1)
    assert len({batch_shape([8 * size]) for size in range(1024, 2048)}) <= 9


def test_rows_and_systems_are_as_many_as_wished():
    batch = Batch.from_atoms([fcc(1)], n_rows=64, n_systems=5)
    assert (batch.n_rows, batch.n_systems) == (64, 5)
    assert batch.index.sizes.tolist() == [4, 0, 0, 0, 0]
    assert batch.to_atoms([fcc(1)]) == [fcc(1)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_positions_and_cells_have_the_dtype_wished(dtype):
    batch = Batch.from_atoms(SYSTEMS, dtype)
    assert batch.positions.dtype == batch.cells.dtype == dtype
    assert batch.numbers.dtype == jnp.int32


def flat():
    return Atoms("Ar", cell=[[5, 0, 0], [0, 5, 0], [5, 5, 0]], pbc=True)


def with_a_broken_position():
    atoms = fcc(1)
    atoms.positions[2, 1] = np.nan
    return atoms


def with_a_broken_cell():
    atoms = fcc(1)
    atoms.cell[0, 0] = np.inf
    return atoms


def constrained(*constraints):
    atoms = fcc(1)
    atoms.set_constraint(list(constraints))
    return atoms


def skewed(constraint):
    return Atoms("Ar", cell=[[4, 0, 0], [2, 4, 0], [0, 0, 4]], pbc=True, constraint=constraint)


def without_mass(constraint):
    return Atoms("Ar", masses=[0.0], constraint=constraint)


def line_without_direction():
    line = FixedLine([0], [0, 0, 1])
    line.dir = np.full(3, np.nan)  # what ASE makes of [0, 0, 0], with a warning
    return line


@pytest.mark.parametrize(
    ("atoms", "error", "message"),
    [
        ([], ValueError, "at least one structure, got an empty list"),
        ([fcc(1), Atoms()], ValueError, r"system 1 \(no atoms\) has no atoms: remove it"),
        (fcc(1), TypeError, r"got one Atoms: pass \[atoms\]"),
        ([fcc(1), "Ar"], TypeError, r"entry 1 is a str: read files with ase.io.read\('Ar', ':'"),
        ("Ar.xyz", TypeError, "got a str: read files"),
        (Path("Ar.xyz"), TypeError, "got a .*Path: read files"),
        ([with_a_broken_position()], ValueError, r"system 0 \(Ar4\): the position of atom 2"),
        ([with_a_broken_cell()], ValueError, r"system 0 \(Ar4\): the cell is not finite"),
        ([fcc(1), Atoms("Ne", pbc=True)], ValueError, r"system 1 \(Ne\) has pbc=.* are zero"),
        ([flat()], ValueError, "not independent"),
        ([Atoms("Ne", cell=[5, 5, 0], pbc=[1, 0, 1])], ValueError, "or pbc to False"),
        (
            [fcc(1), constrained(FixAtoms([0]), Hookean(0, 1, 5.0, 4.0))],
            NotImplementedError,
            r"system 1 \(Ar4\) has constraints \(Hookean\)",
        ),
        (
            [skewed(FixScaled([0], (1, 0, 0)))],
            NotImplementedError,
            r"\(FixScaled\).* alone, or all: .* FixedLine",
        ),
        ([without_mass(FixCom())], ValueError, "FixCom needs a mass"),
        (
            [constrained(FixSubsetCom([0, 1]))],
            NotImplementedError,
            r"supported are [\w, ]+\. Remove them",
        ),
        ([constrained(FixAtoms([0, 4]))], ValueError, r"system 0 .*FixAtoms holds atoms \[0, 4\]"),
        ([constrained(line_without_direction())], ValueError, "FixedLine has a direction without"),
    ],
)
def test_unusable_structures_are_named(atoms, error, message):
    with pytest.raises(error, match=message):
        Batch.from_atoms(atoms)


def test_a_flat_cell_is_fine_where_the_system_is_open():
    atoms = Atoms("Ne", cell=[5, 5, 0], pbc=[True, True, False])
    assert Batch.from_atoms([atoms, molecule("H2O")]).to_atoms([atoms, molecule("H2O")])[0] == atoms


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"n_rows": 12}, ValueError, "n_rows a multiple of 8"),
        ({"n_rows": 8}, ValueError, "16 rows"),
        ({"n_systems": 1}, ValueError, "n_systems must be at least 2"),
        ({"dtype": "float16"}, TypeError, "float32 or float64, got float16"),
    ],
)
def test_impossible_shapes_and_dtypes_are_refused(keywords, error, message):
    with pytest.raises(error, match=message):
        Batch.from_atoms([fcc(1), fcc(1)], **keywords)


def test_other_structures_than_those_of_the_batch_are_refused():
    with pytest.raises(ValueError, match=r"originals must be the structures of the batch"):
        Batch.from_atoms([fcc(1)]).to_atoms([fcc(2)])
