"""Potentials from text such as `lennard-jones:epsilon=0.01,sigma=3.4`, as in a command line."""

import functools
from typing import Any

from basinax._specs import choose, make, parse
from basinax.atoms.potentials import AbstractPotential, LennardJones, Morse


def potential_from(text: str) -> AbstractPotential:
    """The potential of a text: its name, and its options as `NAME:KEY=VALUE,...`.

    A value for an element or a pair stands behind a dot. Element symbols choose published
    parameters; with neither symbols nor `epsilon`, Lennard-Jones has those of all noble gases.

    >>> potential_from("lennard-jones:epsilon=0.0104,sigma=3.4,cutoff=8.5").cutoff
    8.5
    >>> mixture = potential_from(
    ...     "lennard-jones:epsilon.Ar=0.0104,epsilon.Kr=0.0140,epsilon.Ar-Kr=0.0119,sigma=3.5"
    ... )
    >>> neon_and_argon = potential_from("lennard-jones:Ne,Ar,cutoff=9")

    Raises:
        ValueError: the name, an option or an element is unknown, or a number is out of range.
    """
    spec = parse(text)
    maker = choose("potential", spec.name.lower(), _MAKERS)
    options = _per_species(spec.options)
    is_named = maker is LennardJones and not {"epsilon", "sigma"} & set(options)
    if is_named:
        maker = functools.partial(LennardJones.named, *spec.words)
    elif spec.words:
        raise ValueError(f"potential {spec.name}: expected KEY=VALUE, got {spec.words[0]!r}")
    return make("potential", spec.name, maker, options)


_MAKERS = {"lennard-jones": LennardJones, "morse": Morse}


def _per_species(options: dict[str, Any]) -> dict[str, Any]:
    """`sigma.Ar` and `sigma.Ar-Kr` become entries of one mapping."""
    gathered: dict[str, Any] = {}
    for key, value in options.items():
        name, dot, species = key.partition(".")
        if not dot:
            gathered[name] = value
            continue
        first, dash, second = species.partition("-")
        gathered.setdefault(name, {})[(first, second) if dash else first] = value
    return gathered
