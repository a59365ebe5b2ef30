"""Writes `examples/data`: noble gases as crystals, supercells, slabs, clusters and mixtures.

Running it again gives the same files byte for byte: what is random in a structure is seeded by its
name or composition alone, and all lengths are rounded to 1e-6 Angstrom, far above what another
machine's libraries could change.

    python examples/make_data.py [FOLDER]
"""

import sys
import zlib
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, fcc110, fcc111
from ase.cluster import Decahedron, Icosahedron, Octahedron
from ase.io import write

# Cubic lattice constants at 4 K in Angstrom: C. Kittel, Introduction to Solid State Physics, 8th
# edition (Wiley 2005), chapter 1, table 3. ASE's own differ by up to 1.5 %: 4.43, 5.26, 5.72, 6.20.
LATTICE_CONSTANT = {"Ne": 4.46, "Ar": 5.31, "Kr": 5.64, "Xe": 6.13}
ELEMENTS = tuple(LATTICE_CONSTANT)

VACUUM = 10.0  # Angstrom on each side of a slab; it is open in z, so this is for the eye only.


def crystals() -> list[Atoms]:
    """Cells of 1 to 4 atoms, smaller than any usual cutoff: an atom's images are its neighbours.

    In a cell of one atom every force is zero by symmetry: such a start is converged.
    """
    frames = []
    for element, a in LATTICE_CONSTANT.items():
        frames += [
            named(bulk(element, "fcc", a=a), f"{element}-fcc-primitive"),
            rattled(fcc(element, 0.97), f"{element}-fcc-cubic-compressed", 0.03),
            rattled(fcc(element, 1.03), f"{element}-fcc-cubic-expanded", 0.03),
            rattled(hcp(element), f"{element}-hcp", 0.03),
        ]
    frames += [
        named(bulk("Ar", "fcc", a=0.97 * LATTICE_CONSTANT["Ar"]), "Ar-fcc-primitive-compressed"),
        named(bulk("Ar", "fcc", a=1.03 * LATTICE_CONSTANT["Ar"]), "Ar-fcc-primitive-expanded"),
        rattled(hcp("Ar", orthorhombic=True), "Ar-hcp-orthorhombic", 0.05),
        rattled(hcp("Xe", orthorhombic=True), "Xe-hcp-orthorhombic", 0.05),
        rattled(sheared(fcc("Ne"), 0.08), "Ne-fcc-sheared", 0.03),
        rattled(sheared(fcc("Kr"), 0.15), "Kr-fcc-sheared", 0.03),
    ]
    return frames


def supercells() -> list[Atoms]:
    """Rattled fcc cells of 32 and 108 atoms, and some that lack an atom."""
    frames = []
    for element in ELEMENTS:
        frames += [
            rattled(fcc(element).repeat(2), f"{element}32-rattled-{fraction}", fraction)
            for fraction in (0.02, 0.04, 0.06)
        ]
        frames.append(rattled(fcc(element).repeat(3), f"{element}108-rattled-0.03", 0.03))
    for element in ("Ar", "Kr"):
        vacancy = fcc(element).repeat(2)
        del vacancy[0]
        frames.append(rattled(vacancy, f"{element}31-vacancy", 0.02))
    return frames


def slabs() -> list[Atoms]:
    """Low-index surfaces of 16 to 36 atoms, periodic in x and y only, two with an adatom."""
    frames = []
    for element, a in LATTICE_CONSTANT.items():
        frames += [
            rattled(fcc111(element, (2, 2, 4), a=a, vacuum=VACUUM), f"{element}-fcc111", 0.02),
            rattled(fcc100(element, (2, 2, 4), a=a, vacuum=VACUUM), f"{element}-fcc100", 0.02),
        ]
    argon, xenon = LATTICE_CONSTANT["Ar"], LATTICE_CONSTANT["Xe"]
    on_argon = fcc111("Ar", (3, 3, 4), a=argon, vacuum=VACUUM)
    add_adsorbate(on_argon, "Ar", height=0.55 * argon, position="fcc")
    on_xenon = fcc100("Xe", (2, 2, 4), a=xenon, vacuum=VACUUM)
    add_adsorbate(on_xenon, "Xe", height=0.5 * xenon, position="hollow")
    frames += [
        rattled(fcc110("Ar", (2, 2, 6), a=argon, vacuum=VACUUM), "Ar-fcc110", 0.02),
        rattled(on_argon, "Ar-fcc111-adatom", 0.02),
        rattled(on_xenon, "Xe-fcc100-adatom", 0.02),
    ]
    return frames


def clusters() -> list[Atoms]:
    """Free clusters of 1 to 75 atoms.

    Those of 13, 38, 55 and 75 atoms have the shapes of the Lennard-Jones global minima: D. J. Wales
    and J. P. K. Doye, J. Phys. Chem. A 101, 5111 (1997).
    """
    frames = [named(Atoms("Ar"), "Ar1")]
    for element in ELEMENTS:
        d = nearest_neighbor_distance(element)
        frames += [
            named(Atoms([element] * 2, [(0, 0, 0), (0.88 * d, 0, 0)]), f"{element}2-compressed"),
            rattled(icosahedron(element, 2), f"{element}13-icosahedron", 0.05),
        ]
    for element in ("Ne", "Kr"):
        d = nearest_neighbor_distance(element)
        chain = Atoms([element] * 3, [(0, 0, 0), (0.88 * d, 0, 0), (1.6 * d, 0.8 * d, 0)])
        frames.append(named(chain, f"{element}3-bent"))
    frames += [
        rattled(icosahedron("Ar", 3), "Ar55-icosahedron", 0.04),
        rattled(icosahedron("Xe", 3), "Xe55-icosahedron", 0.04),
        rattled(free(Octahedron("Ar", 4, 1, LATTICE_CONSTANT["Ar"])), "Ar38-octahedron", 0.04),
        rattled(free(Decahedron("Kr", 2, 2, 1, LATTICE_CONSTANT["Kr"])), "Kr75-decahedron", 0.04),
    ]
    return frames


def mixtures() -> list[Atoms]:
    """Argon with krypton: solid solutions, clusters with another core, a covered slab, a dimer."""
    between = (nearest_neighbor_distance("Ar") + nearest_neighbor_distance("Kr")) / 2
    covered = fcc111("Kr", (2, 2, 4), a=LATTICE_CONSTANT["Kr"], vacuum=VACUUM)
    covered.symbols[covered.get_tags() == 1] = "Ar"  # ASE counts layers from the top, from 1
    return [
        rattled(solid_solution(8), "Ar24Kr8-solution", 0.03),
        rattled(solid_solution(16), "Ar16Kr16-solution", 0.03),
        rattled(with_core(icosahedron("Kr", 2), "Ar"), "ArKr12-icosahedron", 0.04),
        rattled(with_core(icosahedron("Ar", 2), "Kr"), "KrAr12-icosahedron", 0.04),
        rattled(covered, "Kr-fcc111-covered-Ar", 0.02),
        named(Atoms("ArKr", [(0, 0, 0), (0.88 * between, 0, 0)]), "ArKr-compressed"),
    ]


def fcc(element: str, scale: float = 1.0) -> Atoms:
    return bulk(element, "fcc", a=scale * LATTICE_CONSTANT[element], cubic=True)


def hcp(element: str, *, orthorhombic: bool = False) -> Atoms:
    """Spheres at the distance that they have in fcc, stacked ABAB with the ideal c/a."""
    d = nearest_neighbor_distance(element)
    return bulk(element, "hcp", a=d, c=d * np.sqrt(8 / 3), orthorhombic=orthorhombic)


def sheared(atoms: Atoms, angle: float) -> Atoms:
    atoms.set_cell(
        atoms.cell @ np.array([[1, 0, 0], [angle, 1, 0], [0, angle, 1]]), scale_atoms=True
    )
    return atoms


def solid_solution(n_krypton: int) -> Atoms:
    """32 fcc sites at Vegard's lattice constant, `n_krypton` of them chosen at random."""
    share = n_krypton / 32
    a = (1 - share) * LATTICE_CONSTANT["Ar"] + share * LATTICE_CONSTANT["Kr"]
    atoms = bulk("Ar", "fcc", a=a, cubic=True).repeat(2)
    atoms.symbols[np.random.RandomState(n_krypton).permutation(32)[:n_krypton]] = "Kr"
    return atoms


def icosahedron(element: str, shells: int) -> Atoms:
    return free(Icosahedron(element, shells, LATTICE_CONSTANT[element]))


def with_core(cluster: Atoms, element: str) -> Atoms:
    """The cluster with `element` in place of the atom nearest its centre."""
    radii = np.linalg.norm(cluster.positions - cluster.positions.mean(axis=0), axis=1)
    cluster.symbols[np.argmin(radii)] = element
    return cluster


def free(cluster: Atoms) -> Atoms:
    """The atoms of an `ase.cluster` object without its cell."""
    return Atoms(cluster.symbols, cluster.positions)


def nearest_neighbor_distance(element: str) -> float:
    return LATTICE_CONSTANT[element] / np.sqrt(2)


def rattled(atoms: Atoms, name: str, fraction: float) -> Atoms:
    """Displaces each coordinate by a normal deviate of `fraction` of the neighbour distance."""
    stdev = fraction * min(nearest_neighbor_distance(element) for element in set(atoms.symbols))
    atoms.rattle(stdev, seed=zlib.crc32(name.encode()))
    return named(atoms, name)


def named(atoms: Atoms, name: str) -> Atoms:
    atoms.info = {"name": name}
    # Adding 0.0 turns -0.0, which would be written with its sign, into 0.0.
    atoms.positions = np.round(atoms.positions, 6) + 0.0
    atoms.cell = np.round(atoms.cell.array, 6) + 0.0
    return atoms


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in (crystals, supercells, slabs, clusters, mixtures):
        write(folder / f"{kind.__name__}.extxyz", kind(), format="extxyz")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
