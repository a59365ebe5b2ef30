"""Files are read as their formats mean them, or refused, or named in a warning: never otherwise.

The texts are those that ASE 3.29 reads as something else.
"""

import gzip
import os
import subprocess
import sys
import warnings
from typing import Any

import ase.io
import numpy as np
import pytest
import spglib
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import covalent_radii
from ase.neighborlist import neighbor_list

from basinax.cli.guard import Unreadable
from basinax.cli.inputs import items_of, read_structures
from basinax.neighbors.contacts import SHORTEST, closest_contact
from basinax.structures.formats.crystals import crystals


def pdb(*atoms: str) -> str:
    """Lines of atoms: name, residue, element with charge; each `|` ends a field."""
    lines = []
    for k, atom in enumerate(atoms):
        name, residue, symbol = atom.split("|")
        lines.append(
            f"ATOM  {k + 1:5d} {name:4} {residue:>3} A{k + 1:4d}    {3.0 * k:8.3f}{0:8.3f}{0:8.3f}"
            f"  1.00  0.00          {symbol:>2}\n"
        )
    return "".join(lines)


def cif(cell: str, group: str, *sites: str) -> str:
    names = ("length_a", "length_b", "length_c", "angle_alpha", "angle_beta", "angle_gamma")
    lines = [f"_cell_{name} {x}" for name, x in zip(names, cell.split(), strict=True)]
    columns = ["label", "type_symbol", "fract_x", "fract_y", "fract_z"]
    loop = ["loop_", *(f"_atom_site_{name}" for name in columns)]
    return "\n".join(["data_x", *lines, group, *loop, *sites, ""])


def data(*sections: str, style: str = "atomic", atoms: str = "2 2 0 0 3\n1 1 0 0 0") -> str:
    box = "2 atoms\n2 atom types\n0 4 xlo xhi\n0 4 ylo yhi\n0 4 zlo zhi\n0.3 0 0 xy xz yz\n"
    return "\n".join(["title\n", box, *sections, f"Atoms # {style}\n", atoms, ""])


MASSES = "Masses\n\n2 63.546 # Cu_core\n1 196.967\n"
CRYSTAL = "CRYST1{0:9.3f}{0:9.3f}{0:9.3f}  90.00  90.00  90.00 P 1           1\n"
NAME = "_symmetry_space_group_name_H-M"
HEXAGONAL, RHOMBOHEDRAL = "4.546 4.546 11.862 90 90 120", "4.746 4.746 4.746 57.23 57.23 57.23"
IRON, SITE = "2.87 2.87 2.87 90 90 90", "FE1 FE 0 0 0"
SILICON = "5.431 5.431 5.431 90 90 90"
MOL = "x\n     a\n\n  2  0  0  0  0  0  0  0  0  0999 V2000\n{}M  END\n"
OH = (
    "    0.0000    0.0000    0.0000 O   0  {}  0  0\n"
    "    0.0000    0.0000    0.9800 H   0  0  0  0\n"
)
CUT_MOL = MOL.format(OH.format(0)).removesuffix("M  END\n").replace("  2", "  3", 1)
CHARGE = "M  CHG  1   1  -1\n"
GAUSSIAN = "#p b3lyp/6-31g*{}\n\ntitle\n\n{}\nO 0.0 0.0 0.0\nH 0.0 0.0 0.98\n\n"
NWCHEM = "charge -1\ngeometry {}\n {} 0.0 0.0 0.0\n H 0.0 0.0 {}\nend\n\ntask scf\n"
DUMP = (
    "ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS pp pp pp\n0 4\n0 4\n0 4\n"
    "ITEM: ATOMS id {} x y z\n1 1 0 0 0\n"
)
COORD = "$coord{}\n0 0 0 o\n0 0 1.85 h\n{}$end\n"
POSCAR = "{}\n1\n4 0 0\n0 4 0\n0 0 4\n{}1 1\n{}Direct\n0 0 0 .FALSE. f F\n.5 .5 0 T T T\n"
GRO = "t\n{:5d}\n{}   3.0   3.0   3.0\n"
CUBE = "a\nb\n1 0 0 0\n{0} 3 0 0\n2 0 3 0\n2 0 0 3\n8 8 0 0 0\n" + "0 " * 8 + "\n"
RES = "TITL\nCELL 1 5 5 5 90 90 90\nLATT -1\nSFAC C\nUNIT 1\n"
CP2K = """&MOTION
  &CONSTRAINT
    &FIXED_ATOMS
      LIST 1
    &END FIXED_ATOMS
  &END CONSTRAINT
&END MOTION
&FORCE_EVAL
  &DFT
    CHARGE -1
    MULTIPLICITY 2
  &END DFT
  &SUBSYS
    &CELL
      A 8.0 0.0 0.0
      B 0.0 8.0 0.0
      C 0.0 0.0 8.0
      PERIODIC NONE
    &END CELL
    &COORD
O 0.0 0.0 0.0
O 0.0 0.0 1.3
    &END COORD
  &END SUBSYS
&END FORCE_EVAL
"""
ESPRESSO = (
    "&system\nibrav = 0, nat = 1, ntyp = 1\n{}\n/\nATOMIC_SPECIES\nH 1 h.upf\n"
    "CELL_PARAMETERS angstrom\n3 0 0\n0 3 0\n0 0 3\nATOMIC_POSITIONS angstrom\nH 0 0 0\n"
)
ABINIT = "natom 1 charge 1\n{}\nrprim 1 0 0 0 1 0 0 0 1\nntypat 1 typat 1 znucl 14\nxred 0 0 0\n"
DFTB = 'Geometry = {{\n  TypeNames = {{ "H" }}\n  TypesAndCoordinates{} {{\n    1 0 0 0\n  }}\n}}\n'
VECTORS = "".join(f"lattice_vector {x}\n" for x in ("4 0 0", "0 4 0", "0 0 4"))
CON = "0\n0\n4 4 4\n90 90 90\n0 0\n0 0 0\n1\n1\n63.5\nCu\nof 1\n1 1 1 0 0\n"
XYZ = "2\n{}\n{} 0 0 0\nH 0 0 0.98\n"


def gro(*atoms: str) -> str:
    rows = [atom.split("|") for atom in atoms]
    return GRO.format(
        len(rows),
        "".join(
            f"{k + 1:5d}{residue:5}{name:>5}{k + 1:5d}{0.5 * k:8.3f}{0:8.3f}{0:8.3f}\n"
            for k, (name, residue) in enumerate(rows)
        ),
    )


READ = {
    # A unit cube stands for no crystal; a cell holds for all models; no model is empty.
    "cube.pdb": (CRYSTAL.format(1) + pdb(" AR |AR|AR"), "Ar", {"pbc": 0}),
    "zero.pdb": (CRYSTAL.format(0) + pdb(" AR |AR|AR"), "Ar", {"pbc": 0}),
    "models.pdb": (
        CRYSTAL.format(9) + (pdb(" AR |AR|AR") + "ENDMDL\n") * 2 + "END\n",
        "Ar Ar",
        {"pbc": 3},
    ),
    "names.pdb": (
        pdb(*(f"{x}|GLN|" for x in (" N  ", " CA ", " HG ", " CD ", "1HB ", "HE21", " OXT"))),
        "NCHCH2O",
        {},
    ),
    "left.pdb": (pdb("N   |CYS|", "CA  |CYS|", "SG  |CYS|"), "NCS", {}),
    "ions.pdb": (pdb("CA  |CA|", "CA  |GLY|CA", "ZN  |ZN|", "NA  |NA|"), "Ca2ZnNa", {}),
    "ligand.pdb": (pdb(" C1 |LIG|", "CL1 |LIG|", " CA |LIG|"), "CClC", {}),
    "charge.pdb": (pdb(" O  |LIG| O1-", " D  |LIG| D"), "OH", {"charges": -1}),
    "open.gro": ("\n".join(gro("OW|SOL", "HW1|SOL").splitlines()[:-1]), "OH", {"pbc": 0}),
    "turned.pdb": (
        "ORIGX1      0.000000  1.000000  0.000000        0.00000\n"
        "ORIGX2     -1.000000  0.000000  0.000000        0.00000\n"
        "ORIGX3      0.000000  0.000000  1.000000        0.00000\n"
        + CRYSTAL.format(9)
        + pdb(" AR |AR|AR", " AR |AR|AR"),
        "Ar2",
        {"place": 3.0},
    ),
    "quartz.cif": (
        cif(SILICON, f"{NAME} 'P 1'", "Si1 0 0 0", "O1 0.5 0 0", "H1A 0 0.5 0").replace(
            "_atom_site_type_symbol\n", ""
        ),
        "SiOH",
        {},
    ),
    "own.cjson": (
        '{"atoms": {"elements": {"number": [14]}, "coords": {"3d": [0, 0, 1]}}, "unitCell": {'
        '"a": 2, "b": 2, "c": 2, "alpha": 90, "beta": 90, "gamma": 90, "cellVectors": '
        "[0, 2, 0, 2, 0, 0, 0, 0, 2]}}",
        "Si",
        {"turned": 2.0},
    ),
    "comment.abi": (ABINIT.format("! acell 5 5 5\nacell 10 10 10"), "Si", {"charge": 1}),
    "kinds.restart": (
        CP2K.replace("O 0.0 0.0 0.0", "CA 0.0 0.0 0.0").replace(
            "    &COORD", "    &KIND CA\n      ELEMENT C\n    &END KIND\n    &COORD"
        ),
        "CO",
        {},
    ),
    "angles.cif": (
        cif(IRON, f"{NAME} 'I m -3 m'", SITE).replace("_cell_angle_beta 90\n", ""),
        "Fe2",
        {"pbc": 3},
    ),
    "names.gro": (gro("NA|NA", "CL|CL", "OW|SOL", "CA|ALA", "1HB|ALA", "Cu|X"), "NaClOCHCu", {}),
    "blank.gro": (gro("NA|NA") + "\n \n", "Na", {"pbc": 3}),
    "blank.xyz": (XYZ.format("", "O") + "\n \n", "OH", {}),
    "names.g96": ("POSITION\n1 ALA CA 1 0 0 0\n2 CA CA 2 1 0 0\nEND\n", "CCa", {}),
    "a.data": (data(MASSES), "AuCu", {"tilt": 0.3}),
    "b.lammps-data": (data(MASSES), "AuCu", {"tilt": 0.3}),
    "data.lmp": (data("Atom Type Labels\n\n1 Au\n2 Cu\n"), "AuCu", {"tilt": 0.3}),
    "hexagonal.cif": (cif(HEXAGONAL, f"{NAME} 'R -3 m'", "Bi Bi 0 0 0.2339(3)"), "Bi6", {}),
    "r.cif": (cif(RHOMBOHEDRAL, f"{NAME} 'R -3 m'", "Bi Bi 0.2339 0.2339 0.2339"), "Bi2", {}),
    "n.cif": (
        cif(RHOMBOHEDRAL, "_symmetry_Int_Tables_number 166", "Bi Bi 0.2339 0.2339 0.2339"),
        "Bi2",
        {},
    ),
    "one.cif": (cif(SILICON, f"{NAME} 'F d -3 m :1'", "Si Si4+ 0 0 0"), "Si8", {}),
    "two.cif": (cif(SILICON, f"{NAME} 'F d -3 m Z'", "Si Si 0.125 0.125 0.125"), "Si8", {}),
    "upper.cif": (cif(IRON, f"{NAME} 'I m -3 m'", SITE), "Fe2", {}),
    "table.mol": (MOL.format(OH.format(0) + CHARGE), "OH", {"charges": -1}),
    "column.sdf": (MOL.format(OH.format(5)) + "$$$$\n", "OH", {"charges": -1}),
    "radical.mol": (MOL.format(OH.format(0) + "M  RAD  1   1   2\n"), "OH", {"spin": 2}),
    "heavy.mol": (MOL.format(OH.format(0).replace(" H ", " D ")), "OH", {}),
    "both.mol": (MOL.format(OH.format(3) + CHARGE), "OH", {"charges": -1}),
    "comma.gjf": (GAUSSIAN.format("", "0,2"), "OH", {"spin": 2}),
    "end.xyz": (XYZ.format("charge=-1 spin=1", "O"), "OH", {"charge": -1, "spin": 1}),
    "a.poscar": (POSCAR.format("x", "Cu Au\n", "selective\n"), "CuAu", {"fixed": 1}),
    "ions.config": ("x\n0 0 3\nNa+ 1\n0 0 0\nOW 2\n2 0 2\nHW 3\n2 0 3\n", "NaOH", {}),
    "ion.restart": (CP2K, "O2", {"pbc": 0, "charge": -1, "spin": 2}),
    "xy.restart": (
        CP2K.replace("NONE", "XY").replace("CHARGE", "!"),
        "O2",
        {"pbc": 2, "charge": None},
    ),
    "comment.pwi": (ESPRESSO.format("! tot_charge = 1"), "H", {"charge": None}),
    "charge.pwi": (ESPRESSO.format("ecut = 1, tot_charge = 1"), "H", {"charge": 1}),
    "half.pwi": (ESPRESSO.format("tot_charge = 5.0d-1"), "H", {"charge": 0.5}),
}
"""Contents by name, with the elements of all structures and what else is expected."""


def facts(structures: list[Atoms]) -> dict[str, Any]:
    """What tests ask about structures."""
    first = structures[-1]
    return {
        "pbc": int(first.pbc.sum()),
        "tilt": float(first.cell.array[1, 0]),
        "charges": float(first.get_initial_charges().sum()),
        "charge": first.info.get("charge"),
        "spin": first.info.get("spin"),
        "fixed": sum(len(c.index) for c in first.constraints),
        "place": float(first.positions[-1, 0]),
        "turned": float(first.cell.array[0, 1]),
    }


@pytest.mark.parametrize("name", READ)
def test_structures_are_those_that_a_file_means(name, tmp_path):
    text, elements, expected = READ[name]
    for content in (text.encode(), text.replace("\n", "\r\n").encode("utf-8-sig")):
        (tmp_path / name).write_bytes(content)
        found = read_structures(tmp_path / name)
        assert " ".join(str(atoms.symbols) for atoms in found) == elements
        assert {key: facts(found)[key] for key in expected} == expected


REFUSED = {
    "upper.config": ("x\n0 0 2\nCU 1\n0 0 0\nCU 2\n0 0 2\n", "the element of atom CU is not clear"),
    "part.pdb": (
        CRYSTAL.format(9).replace("P 1  ", "P 21 ") + pdb(" AR |AR|AR"),
        "atoms that only symmetry adds (P 21), which ASE does not read",
    ),
    "magnetic.cif": (
        cif(IRON, "loop_\n_space_group_symop_magn_operation.xyz\nx,y,z,+1\n", SITE),
        "that of a magnetic structure",
    ),
    "waves.cif": (cif(IRON, "_cell_modulation_dimension 1", SITE), "that of a modulated structure"),
    "hydrogen.cif": (
        cif(IRON, "", "O O 0 0 0 2").replace("_z\n", "_z\n_atom_site_attached_hydrogens\n"),
        "hydrogen atoms have no positions",
    ),
    "sides.pdb": (pdb("C1  |LIG|", "CA  |LIG|"), "the element of atom CA of residue LIG"),
    "places.pdb": (
        "".join(pdb(" CA |ALA|C").replace(" CA  ALA", f" CA {x}ALA") for x in "AB"),
        "alternate places A and B",
    ),
    "residues.pdb": (
        pdb(" CA |SER|C", " CA |THR|C")
        .replace(" CA  SER", " CA ASER")
        .replace(" CA  THR A   2", " CA BTHR A   1"),
        "alternate places A and B",
    ),
    "copies.pdb": (
        "MTRIX1   2 -1.000000  0.000000  0.000000        0.00000\n" + pdb(" AR |AR|AR"),
        "atoms that only its MTRIX records add",
    ),
    "unknown.cif": (cif(IRON, "", "O O 0 ? 0"), "a coordinate of its sites is ?, which is no"),
    "third.cif": (cif(IRON, "", "O O 0 1/3 0"), "a coordinate of its sites is 1/3, which is no"),
    "dummies.cif": (
        cif(IRON, "", "O O 0 0 0 dum").replace("_z\n", "_z\n_atom_site_calc_flag\n"),
        "some of its sites are dummies",
    ),
    "half.res": (RES + "C 1 0 0 0 10.5\n", "their occupancies are not 1"),
    "short.res": (RES + "C 1 0 0 0 1\nC 1 5.0E-06 +0.3 0 1\n", "ASE reads 1 of its 2 atoms"),
    "geometry.in": (
        VECTORS + "constrain_relaxation .true.\natom 0 0 0 Si\n",
        "constraints of lattice vectors",
    ),
    "dftb_in.hsd": (DFTB.format(" ="), "other lengths than Å"),
    "small.dftb_in.hsd": (DFTB.format(" [Angstrom] =").replace("TypeN", "typeN"), "small letters"),
    "angstrom.abi": (
        ABINIT.format("acell 10 10 10").replace("xred 0 0 0", "xcart 0 0 1.3 angstrom"),
        "lengths in Å behind xcart",
    ),
    "pair.cell": (
        "%block lattice_cart\n4 0 0\n0 4 0\n0 0 4\n%endblock lattice_cart\n%block positions_frac\n"
        "Si 0 0 0\nSi .5 .5 .5\n%endblock positions_frac\n%block ionic_constraints\n"
        "1 Si 1 0 0 1\n1 Si 2 0 0 -1\n%endblock ionic_constraints\n",
        "constraints that couple atoms",
    ),
    "units.pwi": (
        ESPRESSO.format("A = 5.4").replace("CELL_PARAMETERS angstrom", "CELL_PARAMETERS"),
        "a cell in units of A",
    ),
    "virtual.gro": (gro("MW|SOL"), "the element of atom MW of residue SOL"),
    "cut.gro": (gro("OW|SOL", "CA|ALA")[:-30], "says '2', and it has lines of 1 atoms"),
    "blank.extxyz": (XYZ.format("", "O") + "\n" + XYZ.format("", "O"), "line 5 is blank, and more"),
    "begin.xyz": ("\n" + XYZ.format("", "O"), "line 1 is blank, and more"),
    "wide.gro": (gro("OW|SOL").replace("0.000", "0.00000"), "columns are wider"),
    "none.data": (data(), "does not say which elements its types"),
    "labels.data": (data("Atom Type Labels\n\n1 c3\n2 hc\n"), "does not say which elements"),
    "names.data": (
        data("Atom Type Labels\n\n1 C\n2 O\n", MASSES, atoms="1 C 0 0 3\n2 O 0 0 0"),
        "its atoms have labels in place of types",
    ),
    "bead.data": (data("Masses\n\n1 72.0\n2 1.0\n"), "type 1 has mass 72, which no element has"),
    "style.data": (data(MASSES, style="dpd"), "write it behind Atoms"),
    "units.data": ("x, units = lj" + data(MASSES), "its units are lj"),
    "a.lammpstrj": (DUMP.format("type"), "numbers of types in place of elements"),
    "label.cif": (
        cif(IRON, "", "FE1 0 0 0").replace("_atom_site_type_symbol\n", ""),
        "may be Fe or F",
    ),
    "differ.cif": (
        cif(IRON, f"{NAME} 'P 1'\n_symmetry_Int_Tables_number 229", SITE),
        "number 229, which differ",
    ),
    "setting.cif": (
        cif(IRON, f"{NAME} 'C -1'\n_symmetry_Int_Tables_number 2", SITE),
        "number 2, and no setting has this symbol",
    ),
    "v3.mol": (MOL.format("").replace("V2000", "V3000"), "version V3000"),
    "bohr.com": (GAUSSIAN.format(" units=au", "0 1"), "lengths in bohr"),
    "call.com": (GAUSSIAN.format(" units(deg,au) opt", "0 1"), "lengths in bohr"),
    "second.com": (GAUSSIAN.format("\n opt Units=(Bohr)", "0 1"), "lengths in bohr"),
    "goes-on.nwi": (
        NWCHEM.format("\\\n units au", "O", 0.98),
        "a line that the next one continues",
    ),
    "lower.nwi": (NWCHEM.format("", "o", 0.98), "ASE reads 1 of its 2 atoms"),
    "symmetry.nwi": (NWCHEM.format("\n symmetry c2v", "O", 0.98), "that only symmetry adds"),
    "symmetry.res": ("TITL\nCELL 1 5 5 5 90 90 90\nLATT 1\nSFAC C\nC 1 0 0 0 1\n", "symmetry adds"),
    "centre.res": ("TITL\nCELL 1 5 5 5 90 90 90\nSFAC C\nC 1 .1 0 0 1\n", "centre of inversion"),
    "cut.mol": (CUT_MOL, "its fourth line says 3, and it has lines of 2 atoms"),
    "cut.sdf": (CUT_MOL, "its fourth line says 3, and it has lines of 2 atoms"),
    "cut.config": ("x\n0 0 3\nO 1\n0 0 0\nH 2\n0 0 1\n", "says 3, and it has lines of 2 atoms"),
    "coord.2": (COORD.format("", "").rpartition("$")[0], "a list of atoms without an end"),
    "coord": (COORD.format("", "$periodic 3\n"), "it has a cell"),
    "coord.1": (COORD.format(" natoms=2 angs", ""), "other lengths than bohr"),
    "a.poscar": (POSCAR.format("POSCAR by PhoNopy", "", ""), "does not name its elements"),
    "a.cube": (CUBE.format(-2), "lengths in Å"),
    "numbers.xyz": (XYZ.format("", 8), "no element 8: write symbols in place of numbers"),
    "labels.xyz": (XYZ.format("", "O1"), "there is no element O1"),
    "group.xsf": ("DIM-GROUP\n3 1\n", "does not understand it (AssertionError: DIM-GROUP)"),
    "short.gen": ("2 C\nO H\n1 1 0 0\n", "a line has 4 values in place of 5"),
    "word.gen": ("1 C\nO H\n1 1 0 0 x\n", "'x' stands where a number is expected"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_would_be_read_as_others_are_refused(name, tmp_path):
    text, reason = REFUSED[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(Unreadable) as error:
        read_structures(tmp_path / name)
    assert reason in str(error.value)


WARNED = {
    "held.restart": (CP2K, "does not read its constraints"),
    "types.lammpstrj": (
        DUMP.format("type element").replace("ATOMS\n1", "ATOMS\n2").replace("1 1 0", "1 1 C 0")
        + "2 2 C 0 0 2\n",
        "its 2 types are all C",
    ),
    "names.pdb": (pdb(" CA |ALA|"), "no element in columns 77 and 78"),
    "origin.cif": (cif(SILICON, f"{NAME} 'F d -3 m'", "Si Si 0 0 0"), "first of two origins"),
    "metric.cif": (cif("2 3 4 90 90 90", f"{NAME} 'F d -3 m'", SITE), "not have the symmetry"),
    "flat.mol": (
        MOL.replace("     a", f"{'':20}2D").format(OH.format(0).replace("0.9800", "0.0000")),
        "lengths mean nothing",
    ),
    "anion.com": (GAUSSIAN.format("", "-1 1"), "total charge of -1 e"),
    "open.nwi": (NWCHEM.format("", "O", 0.98) + "scf\n triplet\nend\n", "read its open shells"),
    "one.con": (CON, "does not read its periodicity"),
    "few.nwi": (NWCHEM.format("", "O", 0.98) + "set geometry:actlist 1\n", "read its active atoms"),
    "anion.nwi": (NWCHEM.format("units au", "O", 1.85), "total charge of -1 e"),
    "a.poscar": (POSCAR.format("Cu Au alloy", "", ""), "its elements Cu Au are taken from"),
    "a.cube": (CUBE.format(2), "is taken as a periodic cell"),
    "near.extxyz": (XYZ.format("", "O").replace("0.98", "0.2"), "atom 0) and H (atom 1) stand 0.2"),
    "dummy.xyz": (XYZ.format("", "X"), "dummy atoms (X)"),
    "pair.xyz": (XYZ.format("-1 1", "O"), "write charge=-1"),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_may_be_meant_otherwise_is_named_once_for_each_file(name, tmp_path, capsys):
    text, word = WARNED[name]
    path = tmp_path / name
    path.write_text(text * (3 if name.endswith("xyz") else 1), encoding="utf-8")
    for item in items_of([path]):
        item.read()
    assert capsys.readouterr().err.count(word) == 1


def test_lengths_in_bohr_are_converted(tmp_path):
    path = tmp_path / "a.nwi"
    path.write_text(NWCHEM.format("units au", "O", 1.85))
    (atoms,) = read_structures(path)
    assert atoms.get_distance(0, 1) == pytest.approx(0.979, abs=1e-3)


@pytest.mark.parametrize(("old", "new"), [("C m c a", "C m c e"), ("B m a b", "B m e b")])
def test_symbols_with_the_glides_of_before_1992_are_those_with_e(old, new):
    group = f"{NAME} '{{}}'\n_symmetry_Int_Tables_number 64"
    (a,), (b,) = (
        crystals(cif("5 6 7 90 90 90", group.format(name), "C C 0.11 0.23 0.37"), str)
        for name in (old, new)
    )
    assert len(a) == 16 and np.array_equal(a.positions, b.positions)


@pytest.mark.parametrize("hall", [9, 82, 91, 212, 231, 279, 283, 294, 434, 458, 461, 525, 526])
@pytest.mark.parametrize("kind", ["name", "Hall", "number"])
def test_every_setting_of_a_space_group_has_its_own_operations(hall, kind):
    with warnings.catch_warnings(action="ignore"):  # spglib warns of errors of later releases
        known: Any = spglib.get_spacegroup_type(hall)
        operations: Any = spglib.get_symmetry_from_database(hall)
    full, choice = known.international_full.replace("_", ""), known.choice
    group = {
        "name": f"{NAME} '{full}{f' :{choice}' if choice else ''}'",
        "Hall": f"_space_group_name_Hall '{known.hall_symbol}'",
        "number": f"_space_group_IT_number {known.number}\n"
        f"_space_group_IT_coordinate_system_code {choice or '.'}",
    }[kind]
    cells = {2: "5 6 7 80 85 95", 15: "5 6 7 90 100 90", 74: "5 6 7 90 90 90"}
    cells |= {194: "5 5 7 90 90 120", 230: "5 5 5 90 90 90"}
    cell = next(cell for last, cell in cells.items() if known.number <= last)
    cell = "5 5 5 70 70 70" if choice == "R" else cell
    cell = "5 6 7 90 90 100" if choice.startswith("c") and known.number < 16 else cell
    place, said = np.array([0.11, 0.23, 0.37]), []
    (atoms,) = crystals(cif(cell, group, "C C 0.11 0.23 0.37"), said.append)
    turned = operations["rotations"] @ place + operations["translations"]
    expected, found = (
        {tuple(x) for x in np.rint(1e4 * x).astype(int) % 10_000}
        for x in (turned, atoms.get_scaled_positions())
    )
    assert found == expected
    assert (len(atoms), said) == (len(expected), [])


def test_short_bonds_are_none_too_short():
    for name in ("H2", "N2", "LiH", "C2H2", "CO", "F2"):
        assert closest_contact(molecule(name)) is None
    for atoms in (Atoms(), Atoms("O", cell=[0, 0, 0], pbc=True), Atoms("O", [[np.nan] * 3])):
        assert closest_contact(atoms) is None
    assert closest_contact(bulk("C")) is None


def test_contacts_are_those_of_ase():
    rng = np.random.default_rng(0)
    for _ in range(40):
        n, cell = rng.integers(1, 30), 2 * rng.normal(size=(3, 3)) + 6 * np.eye(3)
        places, kinds = 4 * rng.normal(size=(n, 3)), rng.choice([1, 6, 26, 55], n)
        atoms = Atoms(kinds, places, cell=cell, pbc=rng.random(3) < 0.5)
        i, k, distances = neighbor_list("ijd", atoms, 5.0)
        shares = distances / (covalent_radii[kinds[i]] + covalent_radii[kinds[k]])
        found, least = closest_contact(atoms), shares.min(initial=np.inf)
        assert (found is not None) == (least < SHORTEST)
        if found is not None:
            radii = covalent_radii[kinds[[found.first, found.second]]]
            assert found.distance / radii.sum() == pytest.approx(least)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["a.extxyz", "a.xyz.gz", "POSCAR", "a.car", "a.cif", "a.json"])
def test_a_mark_of_the_encoding_changes_nothing(encoding, name, tmp_path):
    path, atoms = tmp_path / name, bulk("Ar", a=5.3, cubic=True)
    ase.io.write(path, atoms)
    pack, unpack = (gzip.compress, gzip.decompress) if name.endswith("gz") else (bytes, bytes)
    path.write_bytes(pack(unpack(path.read_bytes()).decode().encode(encoding)))
    (found,) = read_structures(path)
    assert len(found) == len(atoms)
    (item,) = items_of([path])
    assert len(item.read()) == len(atoms)


def test_texts_are_in_utf_8_in_any_locale(tmp_path):
    code = """
from pathlib import Path
from ase import Atoms
from basinax.structures.formats.formats import Form
path, atoms = Path("a.extxyz"), Atoms("Ar", info={"name": "größe"})
Form("extxyz").write(path, [atoms])
(found,) = Form("extxyz").read(path)
assert found.info == atoms.info
"""
    (tmp_path / "a.py").write_text(code, encoding="utf-8")
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "a.py"], cwd=tmp_path, env=os.environ | ascii, check=True)
    assert "name=größe" in (tmp_path / "a.extxyz").read_text(encoding="utf-8")
