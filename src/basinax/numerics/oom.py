"""Lack of memory: its recognition, without importing JAX, and how much is tried after it.

Processes of calculators load this file by its path; it imports nothing of basinax.
"""

TITLE = "RESOURCE_EXHAUSTED"
"""The text that marks JAX's error."""

TEXTS = (TITLE.lower(), "out of memory", "defaultcpuallocator")
"""Texts of such errors of JAX and torch, in small letters."""

FEWER = "memory has run out: no more than half as many structures are evaluated at a time"
"""The warning that goes with `half`."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host has run out of memory."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in TEXTS)


def half(most: int, n_begun: int) -> int:
    """The most to evaluate at a time, after memory ran out for `n_begun` at a time.

    Less than that may have been set already, since these began.
    """
    return min(most, n_begun - n_begun // 2)
