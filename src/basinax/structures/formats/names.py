"""Elements of atoms that have names, as in files of proteins: `CA` of alanine is a carbon atom."""

import re

from ase.data import atomic_numbers

_RESIDUES = """
ALA ARG ASN ASP ASX CYS CYX CYM GLN GLU GLX GLY HIS HID HIE HIP HSD HSE HSP ILE LEU LYS LYN MET MSE
PHE PRO PYL SEC SER THR TRP TYR VAL ASH GLH ACE NME NMA NH2 A C G U T I DA DC DG DT DU DI RA RC RG
RU HOH WAT H2O DOD SOL TIP TIP3 TP3 TIP4 TP4 TIP5 SPC SPCE
"""

RESIDUES = frozenset(_RESIDUES.split())
"""Residues of proteins and nucleic acids, and water; all other names may be of any element."""

IONS = {"SOD": "Na", "CLA": "Cl", "POT": "K", "CAL": "Ca", "CES": "Cs", "LIT": "Li", "RUB": "Rb"}
"""Ions whose names in force fields do not begin with their symbol."""

HALOGENS = ("Cl", "Br")
"""Elements of organic molecules whose names are often written one column too far to the right."""


def element_of(name: str, residue: str, is_at_left: bool | None = None) -> str | None:
    """The element of an atom; None if it is not clear.

    Args:
        name: the name, such as `CA`, `1HB`, `OXT` or `CL-`.
        residue: the name of the residue; may be empty.
        is_at_left: whether the name begins in the column for elements of two letters; None if the
            columns say nothing.
    """
    found = re.match(r"[\d*']*([A-Za-z]+)", name.strip())
    if found is None:
        return None
    letters, residue = found[1], residue.strip().upper()
    one = "H" if letters[0] == "D" else letters[0].upper()
    one = one if one in atomic_numbers and one != "X" else None
    two = letters[:2].capitalize() if len(letters) > 1 else ""
    two = two if two in atomic_numbers else None
    if residue in RESIDUES:
        if letters[:2].upper() == "SE" and residue in ("MSE", "SEC"):
            return "Se"
        return one if one in ("H", "C", "N", "O", "P", "S") else None
    if residue in IONS and letters.upper() in (residue, IONS[residue].upper()):
        return IONS[residue]
    is_ion = letters.upper() == re.sub(r"[^A-Z]", "", residue) or residue in ("ION", "IONS")
    # "Cl1" is chlorine in any program.
    if one is None or two is None or is_ion or letters[1].islower():
        return two or one
    if is_at_left is None:
        return "H" if one == "H" and len(name.strip()) == 4 else None
    if is_at_left:
        return two
    return None if two in HALOGENS else one
