"""Recognition of out-of-memory errors, without importing JAX."""

OF_JAX = ("JaxRuntimeError", "XlaRuntimeError")
"""The names of JAX's error class."""

TITLE = "RESOURCE_EXHAUSTED"
"""The text that marks such an error."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host has run out of memory."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return type(error).__name__ in OF_JAX and (TITLE in text or "Out of memory" in text)
