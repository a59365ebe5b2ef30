"""Outputs of programs, and files that these read beside others, are read as they are meant."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
from ase.units import Bohr

from basinax.cli.guard import Unreadable
from basinax.cli.inputs import files_beside, read_structures

OUTCAR = """ POTCAR:    PAW_PBE Cu 22Jun2005
 POTCAR:    PAW_PBE Cu 22Jun2005
   ions per type =               2
   ISPIN  =      1    spin polarized calculation?
--------------------------------------- Iteration      1(   1)
      direct lattice vectors                 reciprocal lattice vectors
     4.0 0.0 0.0 0.25 0.0 0.0
     0.0 4.0 0.0 0.0 0.25 0.0
     0.0 0.0 4.0 0.0 0.0 0.25
 POSITION                                       TOTAL-FORCE (eV/Angst)
 ---
 0.0 0.0 0.0 0.0 0.0 0.0
 2.0 2.0 0.0 0.0 0.0 0.0
  FREE ENERGIE OF THE ION-ELECTRON SYSTEM (eV)
  ---
  free  energy   TOTEN  =        -1.0 eV

  energy  without entropy=       -1.0  energy(sigma->0) =       -1.0
"""
ONETEP = """%block lattice_cart
ang
9 0 0
0 9 0
0 0 9
%endblock lattice_cart
include_file : positions.dat
%block species # of atoms
H H 1 1 6.0
%endblock species
"""
GAUSSIAN = """ Entering Gaussian System, Link 0=g16
 Charge = {} Multiplicity = {}
                         Standard orientation:
 ---
 Center     Atomic      Atomic             Coordinates (Angstroms)
 Number     Number       Type             X           Y           Z
 ---
      1          8           0        0.000000    0.000000    0.000000
      2          1           0        0.000000    0.000000    0.980000
 ---
 SCF Done:  E(UB3LYP) =  -75.9     A.U. after   10 cycles
"""
FRAGMENTS = "1 Multiplicity = 2 in supermolecule\n Charge = 0 Multiplicity = 1 in fragment 1.\n!"
ORCA = """                                 * O   R   C   A *
|  1> ! Opt
{}
Number of atoms                             ...      2
Total Charge           Charge          ....    {}
Multiplicity           Mult            ....    {}
CARTESIAN COORDINATES (ANGSTROEM)
---
  O      0.000000    0.000000    0.000000
  H      0.000000    0.000000    0.980000
FINAL SINGLE POINT ENERGY       -75.9
                             ****ORCA TERMINATED NORMALLY****
"""
NWCHEM = """              Northwest Computational Chemistry Package (NWChem) 7.0.2
{}
                             Geometry "geometry" -> ""
                             -------------------------

 Output coordinates in angstroms (scale by  1.889725989 to convert to a.u.)

  No.       Tag          Charge          X              Y              Z
 ---- ---------------- ---------- -------------- -------------- --------------
    1 O                    8.0000     0.00000000     0.00000000     0.00000000
    2 H                    1.0000     0.00000000     0.00000000     0.98000000

                                 NWChem {} Module
                                 -----------------

{}
"""
OF_DFT = "          Charge           :    -1\n          Spin multiplicity:     3\n"
OF_SCF = "  open shells     =     1\n  charge          =   1.00\n"
GAMESS = """          *         GAMESS VERSION = 30 SEP 2021 (R2)          *
 INPUT CARD> $STATPT {} $END
 ATOM      ATOMIC                      COORDINATES (BOHR)
           CHARGE         X                   Y                   Z
 O           8.0     0.0000000000        0.0000000000        0.0000000000
 H           1.0     0.0000000000        0.0000000000        1.8000000000

 CHARGE OF MOLECULE                           =   -1
 SPIN MULTIPLICITY                            =    3
"""
STEP = """{}
 COORDINATES OF ALL ATOMS ARE (ANGS)
   ATOM   CHARGE       X              Y              Z
 ------------------------------------------------------------
 O           8.0   0.0000000000   0.0000000000   0.0000000000
 H           1.0   {:.10f}   0.0000000000   0.0000000000

"""
SEARCH, FOUND = (
    " BEGINNING GEOMETRY SEARCH POINT NSERCH= 0",
    " ***** EQUILIBRIUM GEOMETRY LOCATED *****",
)
PUNCH = " $DATA\nt\n{}\nO 8.0 0.0 0.0 0.0\n $END\nE(RHF)= -74.0, E(NUC)= 0.0\n{}"
ABINIT = """.Version 9.6.2 of ABINIT
-outvars: echo values of preprocessed input variables --------
            acell      1.0000000000E+01  1.0000000000E+01  2.0000000000E+01 Bohr
           natfix           1
            natom           1
             nkpt           1
           ntypat           1
           optcell           2
            rprim      1.0 0.0 0.0
                       0.5 1.0 0.0
                       0.0 0.0 1.0
            typat      1
            znucl       14.00000
================================================================================
----iterations are completed or convergence reached----
--- !EnergyTerms
total_energy_eV     : -2.41E+02
...
 cartesian coordinates (angstrom) at end:
    1      0.0     0.0     0.0
== END DATASET(S) ==============================================================
{}"""
LAST = """-outvars: echo values of variables after computation  --------
            acell      8.0000000000E+00  1.0000000000E+01  2.0000000000E+01 Bohr
       cellcharge      1.00000000E+00
            rprim      1.0 0.0 0.0
                       0.5 1.0 0.0
                       0.0 0.0 1.0
"""
ESPRESSO = """     Program PWSCF v.7.2 starts on 10Oct2023 at 10:00:00

     lattice parameter (alat)  =       7.5589  a.u.
     number of atoms/cell      =            2
     number of atomic types    =            1
     celldm(1)=   7.558900  celldm(2)=   0.000000  celldm(3)=   0.000000
     crystal axes: (cart. coord. in units of alat)
               a(1) = (   1.000000   0.000000   0.000000 )
               a(2) = (   0.000000   1.000000   0.000000 )
               a(3) = (   0.000000   0.000000   1.000000 )

     site n.     atom                  positions (alat units)
         1           Cu  tau(   1) = (   0.0000000   0.0000000   0.0000000  )
         2           Cu  tau(   2) = (   0.5800000   0.0000000   0.0000000  )

!    total energy              =      -2.20000000 Ry
ATOMIC_POSITIONS (angstrom)
Cu            0.0000000000        0.0000000000        0.0000000000    0   0   0
Cu            2.3000000000        0.0000000000        0.0000000000{}
!    total energy              =      -2.21000000 Ry
Begin final coordinates
ATOMIC_POSITIONS (angstrom)
Cu            0.0000000000        0.0000000000        0.0000000000    0   0   0
Cu            2.2500000000        0.0000000000        0.0000000000    1   0   1
End final coordinates
"""
DMOL = """!BIOSYM archive 3
PBC=ON

!DATE     Nov 30 00:00:00 2026
PBC   4.00000   4.00000   4.00000  90.00000  90.00000  90.00000 ({})
Cu1      0.00000000     0.00000000     0.00000000 XXXX 1      xx      Cu  0.000
end
end

"""
OCTOPUS = "ExcessCharge = -1\n%Coordinates\n 'O' | 0 | 0 | 0\n%\n"

READ = {
    "fragments.log": (GAUSSIAN.format(FRAGMENTS, 2), {"charge": 1, "spin": 2}),
    "jobs.log": (GAUSSIAN.format(1, 2) + GAUSSIAN.format(1, 2), {"charge": 1, "spin": 2}),
    "dft.nwo": (NWCHEM.format("", "DFT", OF_DFT), {"charge": -1, "spin": 3}),
    "scf.nwo": (NWCHEM.format("", "SCF", OF_SCF), {"charge": 1}),
    "gamess.out": (GAMESS.format(""), {"charge": -1, "spin": 3}),
    "inp": (OCTOPUS, {"charge": -1}),
}
"""Contents by name, with the charge and spin in e that are expected."""


@pytest.mark.parametrize("name", READ)
def test_total_charges_and_spins_of_outputs_are_kept(name, tmp_path):
    text, expected = READ[name]
    (tmp_path / name).write_text(text)
    for atoms in read_structures(tmp_path / name):
        assert {x: atoms.info[x] for x in ("charge", "spin") if x in atoms.info} == expected


JOBS = {
    "two.log": GAUSSIAN.format(1, 2) + GAUSSIAN.format(0, 1),
    "two.out": ORCA.format("", 1, 2) + ORCA.format("", 0, 1),
}


@pytest.mark.parametrize("name", JOBS)
def test_totals_that_differ_between_jobs_are_not_kept(name, tmp_path, capsys):
    (tmp_path / name).write_text(JOBS[name])
    for atoms in read_structures(tmp_path / name):
        assert not atoms.info
    said = capsys.readouterr().err
    assert "several total charges (0, 1), and none is kept: split it into one file a job" in said
    assert "several spins (1, 2)" in said


def test_cells_of_abinit_have_their_scale_and_are_the_last(tmp_path):
    (tmp_path / "a.abo").write_text(ABINIT.format(LAST))
    (atoms,) = read_structures(tmp_path / "a.abo")
    np.testing.assert_allclose(atoms.cell, Bohr * np.array([[8, 0, 0], [5, 10, 0], [0, 0, 20]]))
    assert atoms.info == {"charge": 1}
    assert atoms.get_potential_energy() == -241


def test_flags_of_positions_in_outputs_of_quantum_espresso_fix_atoms(tmp_path, capsys):
    cut = "ATOMIC_POSITIONS (angstrom)\nCu 0.0 0.0"
    (tmp_path / "a.pwo").write_text(ESPRESSO.format("    1   0   1") + cut)
    images = read_structures(tmp_path / "a.pwo")
    assert len(images) == 2
    for atoms in images:
        held, partly = atoms.constraints
        assert (list(held.index), list(partly.index)) == ([0], [1])
        assert list(partly.mask) == [False, True, False]
    (tmp_path / "a.pwo").write_text(ESPRESSO.format(""))
    assert not any(atoms.constraints for atoms in read_structures(tmp_path / "a.pwo"))
    assert "the flags of its positions differ" in capsys.readouterr().err


def test_the_last_geometry_of_an_optimisation_by_gamess_is_read(tmp_path, capsys):
    other = STEP.format(FOUND, 1.2).replace("H  ", "HE ")
    for last, distance in ((STEP.format(FOUND, 0.97), 0.97), (other, 1.8 * Bohr)):
        (tmp_path / "a.out").write_text(GAMESS.format("") + STEP.format(SEARCH, 0.99) + last)
        (atoms,) = read_structures(tmp_path / "a.out")
        assert atoms.get_distance(0, 1) == pytest.approx(distance)
    assert "its first geometry is read" in capsys.readouterr().err


REFUSED = {
    "a.abo": (ABINIT.format(""), "a cell that changed, and not its last one"),
    "b.abo": (ABINIT.format(LAST.replace("acell ", "acell1")), "cells of several data sets"),
    "a.arc": (DMOL.format("P21"), "atoms that only symmetry adds"),
    "a.dat": (PUNCH.format("C2v", ""), "atoms that only symmetry adds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_outputs_that_would_be_read_as_others_are_refused(name, tmp_path):
    text, reason = REFUSED[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(Unreadable, match=reason):
        read_structures(tmp_path / name)


@pytest.mark.parametrize("text", ["XYZCoordinates = 'a.xyz'\n", f"Units = 'eVA'\n{OCTOPUS}"])
def test_lengths_of_octopus_in_other_units_are_refused(text, tmp_path):
    (tmp_path / "inp").write_text(text)
    (tmp_path / "a.xyz").write_text("1\n\nH 0 0 0\n")
    with pytest.raises(Unreadable, match="lengths in Å"):
        read_structures(tmp_path / "inp")


FIXED = " Symbolic Z-matrix:\n O   -1   0.   0.   0.\n H   0   0.   0.   .98\n"
NAMED = {
    "a.abo": (ABINIT.format(LAST), "fixed atoms"),
    "a.dat": (PUNCH.format("C1", "--- DATA FROM NSERCH=   1 ---\n"), "geometries behind the first"),
    "a.gamess.out": (GAMESS.format("IFREEZ(1)=1,2,3"), "fixed coordinates"),
    "b.gamess.out": (GAMESS.format("") + " RUNTYP=IRC\n", "geometries behind the first"),
    "a.log": (GAUSSIAN.format(0, 1) + FIXED, "fixed atoms"),
    "b.log": (GAUSSIAN.format(0, 1) + " ! R1    R(1,2)   0.98    Frozen   !\n", "constraints"),
    "a.nwo": (NWCHEM.format(" set geometry:actlist 1", "DFT", OF_DFT), "fixed atoms"),
    "b.nwo": (NWCHEM.format("constraints\n fix atom 1\nend", "DFT", OF_DFT), "fixed atoms"),
    "c.nwo": (NWCHEM.format("", "SCF", OF_SCF), "open shells"),
    "d.nwo": (
        NWCHEM.format("", "SCF", "  alpha electrons =     5\n  beta  electrons =     4\n"),
        "open shells",
    ),
    "a.orca.out": (ORCA.format("|  2> %geom Constraints {C 0 C} end end", 0, 1), "constraints"),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_outputs_hold_and_ase_does_not_read_is_named(name, tmp_path, capsys):
    text, word = NAMED[name]
    (tmp_path / name).write_text(text)
    read_structures(tmp_path / name)
    assert f"ASE does not read its {word}\n" in capsys.readouterr().err


def test_what_outputs_do_not_hold_is_not_named(tmp_path, capsys):
    alike = NWCHEM.format("", "SCF", "  alpha electrons =     5\n  beta  electrons =     5\n")
    texts = {
        "a.log": GAUSSIAN.format(0, 1) + FIXED.replace("-1", " 0"),
        "a.nwo": alike,
        "a.gamess.out": GAMESS.format("").replace("   -1", "    0"),
        "a.orca.out": ORCA.format("|  2> # no constraints", 0, 1),
        "a.arc": DMOL.format("P1"),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        read_structures(tmp_path / name)
    assert capsys.readouterr().err == ""


POSCAR = "x\n1\n4 0 0\n0 4 0\n0 0 4\n{}\nselective\nDirect\n0 0 0 .FALSE. F F\n.5 .5 0 T T F\n"
BESIDE = {
    "same": ({"POSCAR": POSCAR.format("Cu\n2")}, [[0], [1]], ""),
    "both": ({"POSCAR": POSCAR.format("Cu\n2"), "CONTCAR": POSCAR.format("Ni\n2")}, [], "CONTCAR"),
    "other": ({"POSCAR": POSCAR.format("Cu Ni\n1 1")}, [], "POSCAR beside it, which has other"),
    "more": ({"POSCAR": POSCAR.format("Cu\n3") + "0 .5 0 T T T\n"}, [], "which has other atoms"),
    "cut": ({"CONTCAR": "x\n1.0\n"}, [], "CONTCAR beside it, which cannot be read"),
    "free": ({"POSCAR": POSCAR.format("Ni\n2").replace("F", "T").replace(".TALSE.", "T")}, [], ""),
}
"""Files beside an OUTCAR, with the atoms that are held and what is said."""


@pytest.mark.parametrize("name", BESIDE)
def test_an_outcar_has_constraints_of_a_file_beside_it_that_has_its_atoms(name, tmp_path, capsys):
    files, held, said = BESIDE[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "OUTCAR").write_text(OUTCAR + OUTCAR[OUTCAR.index("      direct") :])
    images = read_structures(tmp_path / "OUTCAR")
    assert len(images) == 2
    for atoms in images:
        assert sorted(list(x.index) for x in atoms.constraints) == held
    err = capsys.readouterr().err
    assert said in err and err.count("warning") == bool(said)


def test_files_on_which_a_file_depends_are_known(tmp_path):
    texts = {
        "OUTCAR": (OUTCAR, ["CONTCAR"]),
        "POSCAR": ("x\n1\n4 0 0\n0 4 0\n0 0 4\n2\nDirect\n0 0 0\n.5 .5 0\n", ["POTCAR"]),
        "CONTCAR": (POSCAR.format("Cu\n2"), []),
        "run.dat": (ONETEP, ["positions.dat"]),
        "inp": ("XYZCoordinates = 'a.xyz'\n", ["a.xyz"]),
        "a.xtd": ("x", ["a.arc"]),
        "-": ("x", []),
    }
    for name in ("POTCAR", "positions.dat", "a.xyz", "a.arc"):
        (tmp_path / name).write_text("x")
    for name, (text, _) in texts.items():
        (tmp_path / name).write_text(text)
    for name, (_, expected) in texts.items():
        assert [x.name for x in files_beside(tmp_path / name)] == expected


@pytest.mark.parametrize("pack", [bz2, gzip, lzma])
def test_packed_outputs_of_vasp_are_read(pack, tmp_path):
    path = tmp_path / f"OUTCAR.{ {bz2: 'bz2', gzip: 'gz', lzma: 'xz'}[pack] }"
    path.write_bytes(pack.compress(OUTCAR.encode()))
    (atoms,) = read_structures(path)
    assert str(atoms.symbols) == "Cu2"


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of ASE
def test_files_that_a_file_names_are_those_beside_it(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    for folder, distance in ((tmp_path, 3.3), (tmp_path / "a", 0.74)):
        rows = f"ang\nH 0 0 0\nH 0 0 {distance}\n"
        text = f"%block positions_abs\n{rows}%endblock positions_abs\n"
        (folder / "positions.dat").write_text(text)
    (tmp_path / "a" / "run.dat").write_text(ONETEP)
    monkeypatch.chdir(tmp_path)
    (atoms,) = read_structures(tmp_path / "a" / "run.dat")
    assert atoms.get_distance(0, 1) == pytest.approx(0.74)
