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
