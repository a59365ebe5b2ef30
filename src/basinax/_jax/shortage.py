"""Errors that say that memory has run out; known without importing JAX."""

OF_JAX = ("JaxRuntimeError", "XlaRuntimeError")
"""Names of JAX's class of errors."""

TITLE = "RESOURCE_EXHAUSTED"
"""Of such an error's text."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, of a device or of the host."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return type(error).__name__ in OF_JAX and (TITLE in text or "Out of memory" in text)
