"""Streams that may fail before the run ends: a reader leaves, a disk is full, a terminal closes."""

import os
import re
from contextlib import suppress
from typing import Any

from rich.console import Console

COLUMNS = 80
"""The width of output without a terminal."""


class Stream(Console):
    """A console that raises no error if its stream cannot be written.

    A failed message must not end a run.
    """

    fault: str | None = None
    """The reason why output could not be printed, or None."""

    def __init__(self, **how: Any):
        super().__init__(**how)
        if self.width < 1:  # COLUMNS=0 would print nothing
            self.width = COLUMNS

    def print(self, *objects: Any, **how: Any) -> None:
        shown = [readable(x) if isinstance(x, str) else x for x in objects]
        try:
            super().print(*shown, **how)
        except OSError as error:
            self._end(error.strerror or str(error))

    def write(self, text: str) -> None:
        """Write text unchanged, however long."""
        try:
            self.file.write(readable(text))
            self.file.flush()
        except OSError as error:
            self._end(error.strerror or str(error))

    def on_broken_pipe(self) -> None:
        self._end("its reader has gone")

    def _end(self, fault: str) -> None:
        """Drop the text in Python's buffer, which would fail again at exit."""
        self.fault, self.quiet = fault, True
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


def readable(text: str) -> str:
    """The text with escapes for characters that no stream can encode, such as stray bytes."""
    text = re.sub("[\udc80-\udcff]", lambda m: f"\\x{ord(m[0]) - 0xDC00:02x}", text)
    return text.encode("utf-8", "backslashreplace").decode()
