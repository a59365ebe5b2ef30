"""Makes `kept_back.extxyz`: 20 common compounds, of which no choice of a recipe has seen any.

From SMILES, by RDKit's distance geometry with one seed (`pip install rdkit`), as they come out:
no force field has seen them. None is among those of `molecules.extxyz`.

    python benchmarks/data/_kept_back.py
"""

from pathlib import Path

from ase import Atoms
from ase.io import write
from rdkit import Chem
from rdkit.Chem.AllChem import EmbedMolecule

SMILES = {
    "naproxen": "COc1ccc2cc(C(C)C(=O)O)ccc2c1",
    "ascorbic_acid": "OCC(O)C1OC(=O)C(O)=C1O",
    "nicotine": "CN1CCCC1c1cccnc1",
    "adenine": "Nc1ncnc2[nH]cnc12",
    "tryptophan": "NC(Cc1c[nH]c2ccccc12)C(=O)O",
    "camphor": "CC1(C)C2CCC1(C)C(=O)C2",
    "vanillin": "COc1cc(C=O)ccc1O",
    "serotonin": "NCCc1c[nH]c2ccc(O)cc12",
    "metformin": "CN(C)C(=N)NC(N)=N",
    "citric_acid": "OC(=O)CC(O)(CC(=O)O)C(=O)O",
    "limonene": "CC1=CCC(CC1)C(C)=C",
    "benzocaine": "CCOC(=O)c1ccc(N)cc1",
    "salbutamol": "CC(C)(C)NCC(O)c1ccc(O)c(CO)c1",
    "phenytoin": "O=C1NC(=O)C(N1)(c1ccccc1)c1ccccc1",
    "thymine": "Cc1c[nH]c(=O)[nH]c1=O",
    "methionine": "CSCCC(N)C(=O)O",
    "saccharin": "O=C1NS(=O)(=O)c2ccccc12",
    "chloramphenicol": "OCC(NC(=O)C(Cl)Cl)C(O)c1ccc([N+](=O)[O-])cc1",
    "fluconazole": "OC(Cn1cncn1)(Cn1cncn1)c1ccc(F)cc1F",
    "biotin": "OC(=O)CCCCC1SCC2NC(=O)NC12",
}
SEED = 1


def main() -> None:
    made = []
    for name, smiles in SMILES.items():
        molecule = Chem.AddHs(Chem.MolFromSmiles(smiles))
        assert EmbedMolecule(molecule, randomSeed=SEED) == 0, name
        symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
        positions = molecule.GetConformer().GetPositions()
        made.append(Atoms(symbols, positions, info={"name": name}))
    write(Path(__file__).parent / "kept_back.extxyz", made)


if __name__ == "__main__":
    main()
