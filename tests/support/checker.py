"""Types of the package checked as its tests run, shapes of arrays too."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""Integers are floats, as for type checkers."""
