"""Sites that several elements share, or that are empty in some of the cells.

ASE reads such a site as one atom of the most frequent element, and stores the shares separately.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ase import Atoms

from basinax.structures.read import name_of

ARRAYS = ("occupancy", "occupancies")
"""The names of shares in ASE's readers."""


def check_occupancies(structures: list[Atoms]) -> None:
    """Raise ValueError if a site is shared or partly empty: no single atom represents it."""
    for k, atoms in enumerate(structures):
        if "occupancy" not in atoms.info and atoms.arrays.keys().isdisjoint(ARRAYS):
            continue
        for site, where in _partial(atoms):
            raise ValueError(
                f"{name_of(atoms, k)} has a site of {site}, which one atom cannot stand"
                f" for: use an ordered structure, or remove {where} if the atoms are meant as they"
                " are"
            )


def _partial(atoms: Atoms) -> Iterator[tuple[str, str]]:
    """The sites in words, and the place of their description."""
    sites = atoms.info.get("occupancy")
    if isinstance(sites, Mapping):
        for site in sites.values():
            if isinstance(site, Mapping) and any(map(_is_part, site.values())):
                shares = " and ".join(f"{share} {symbol}" for symbol, share in site.items())
                yield shares, "'occupancy' from its info"
    for name in ARRAYS:
        shares = atoms.arrays.get(name)
        # Some programs fill this column with zeros, which carry no information.
        if shares is None or shares.dtype.kind not in "iuf" or not shares.any():
            continue
        for k in np.flatnonzero(shares.reshape(len(atoms), -1)[:, 0] != 1):
            yield f"{shares[k]} {atoms.symbols[k]}", f"the array {name!r}"


def _is_part(share: Any) -> bool:
    return isinstance(share, int | float) and share != 1
