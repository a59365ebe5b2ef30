"""Streams that may end before the run does: a reader goes, a disk is full, a terminal closes."""

import os
import re
from contextlib import suppress
from typing import Any

from rich.console import Console

COLUMNS = 80
"""The width of a terminal that has none."""


class Stream(Console):
    """A console that raises nothing where its stream cannot be written to.

    A run is worth more than the words about it.
    """

    fault: str | None = None
    """Why something could not be printed, if anything could not."""

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
        """Writes text as it is, however long."""
        try:
            self.file.write(readable(text))
            self.file.flush()
        except OSError as error:
            self._end(error.strerror or str(error))

    def on_broken_pipe(self) -> None:
        self._end("its reader has gone")

    def _end(self, fault: str) -> None:
        """Drop the text that Python holds back, which would fail again at its exit."""
        self.fault, self.quiet = fault, True
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())
            os.close(nowhere)


def readable(text: str) -> str:
    """The text with escapes for characters that no stream can encode, such as stray bytes."""
    text = re.sub("[\udc80-\udcff]", lambda m: f"\\x{ord(m[0]) - 0xDC00:02x}", text)
    return text.encode("utf-8", "backslashreplace").decode()
