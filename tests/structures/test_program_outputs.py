"""Outputs of programs, and files that these read beside others, are read as they are meant."""

import bz2
import gzip
import lzma

import pytest

from basinax.cli.inputs import read_structures

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
SEARCH, FOUND = "BEGINNING GEOMETRY SEARCH POINT NSERCH=   0 ...\n", "EQUILIBRIUM GEOMETRY LOCATED"
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
