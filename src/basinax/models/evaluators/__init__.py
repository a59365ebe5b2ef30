"""Potentials that the host evaluates, structure by structure: ASE calculators, other programs."""
