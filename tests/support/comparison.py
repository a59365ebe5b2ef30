"""What relaxations are compared with: those of other batches bit for bit, and ASE's filters."""

import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT as ASEEMT
from ase.filters import FrechetCellFilter, StrainFilter, UnitCellFilter

from basinax.atoms import Frechet, Strain, UnitCell

FIELDS = ("energies", "fmax", "steps", "evaluations", "status")


def same_bits(a, b) -> bool:
    """Whether numbers have the same bits, NaN and signs of zeros included, or texts are equal."""
    if np.asarray(a).dtype.kind == "U":
        return np.array_equal(a, b)
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a), np.signbit(b))


def same(a, i, b, j) -> bool:
    """Whether structure i of one result has the bits of structure j of another."""
    pairs = [(getattr(a, f)[i], getattr(b, f)[j]) for f in FIELDS]
    ours, theirs = a.atoms[i], b.atoms[j]
    pairs += [(ours.positions, theirs.positions), (ours.cell.array, theirs.cell.array)]
    pairs += [(ours.calc.results[key], theirs.calc.results[key]) for key in theirs.calc.results]
    return all(same_bits(x, y) for x, y in pairs)


def same_ends(result, others) -> bool:
    """Whether a batch ends in the bits of these results, one after another."""
    ends = [atoms for other in others for atoms in other.atoms]
    return all(
        np.array_equal(a.positions, b.positions)
        and np.array_equal(a.cell, b.cell)
        and np.array_equal(*(x.get_forces(apply_constraint=False) for x in (a, b)))
        and a.get_potential_energy() == b.get_potential_energy()
        for a, b in zip(result.atoms, ends, strict=True)
    )


class RememberingFilter(FrechetCellFilter):
    """ASE asks for forces several times a step, and takes long over logarithms of matrices."""

    place, found = None, None

    def get_forces(self, **how):
        place = self.atoms.positions.tobytes(), self.atoms.cell.array.tobytes(), how
        if place != self.place:
            self.place, self.found = place, super().get_forces(**how)
        return self.found.copy()


def filtered(atoms: Atoms, cell, calculator=None):
    """ASE's filter of the same options, with ASE's EMT if there is no other calculator."""
    atoms = atoms.copy()
    atoms.calc = calculator or ASEEMT()
    if isinstance(cell, Strain):
        return StrainFilter(atoms, mask=None if cell.mask is None else [int(m) for m in cell.mask])
    make, factor = {
        UnitCell: (UnitCellFilter, "cell_factor"),
        Frechet: (RememberingFilter, "exp_cell_factor"),
    }[type(cell)]
    return make(
        atoms,
        mask=cell.mask,
        scalar_pressure=cell.pressure,
        hydrostatic_strain=cell.hydrostatic_strain,
        constant_volume=cell.constant_volume,
        **{factor: cell.cell_factor},
    )
