"""Contents of files that the potential does not use, named in one warning."""

from typing import Any

from ase import Atoms

from basinax.atoms._charges import unused_by_words, uses_of
from basinax.cli._console import print_warning


def warn_of_unused(atoms: list[Atoms], sources: list[str], potential: Any) -> None:
    """List the contents of files that the potential does not use, in one warning."""
    if unused := unused_by_words(atoms, sources, uses_of(potential)):
        print_warning(f"the potential {type(potential).__name__} does not use {unused}")
