"""Warnings of a precision that a user may not have meant."""

from typing import Any

import numpy as np

from basinax.numerics.settings import warn, warn_once

RESOLVED = 100
"""Forces near 1 eV/Å, sums of larger terms, are known to so many units of the last place."""


def warn_of_single_precision(asked: Any, dtype: np.dtype) -> None:
    """Warn once a process where float32 is JAX's default, not the caller's choice."""
    if asked is None and dtype == np.float32:
        warn_once(
            "structures are relaxed in single precision (float32), JAX's default: call"
            ' jax.config.update("jax_enable_x64", True) first for double precision, or pass'
            ' dtype="float32" where single is meant'
        )


def warn_of_small_fmax(fmax: Any, dtype: np.dtype) -> None:
    """Warn where rounding of forces is larger than an `fmax` above 0."""
    least = RESOLVED * float(np.finfo(dtype).eps)
    small = np.asarray(0.0 if fmax is None else fmax)
    small = small[(small > 0) & (small < least)]
    if small.size:
        warn(
            f"fmax={small.min():.3g} eV/Å is less than forces are rounded by in {dtype}, about"
            f" {least:.1g} eV/Å: structures may not converge"
        )
