"""The two streams of the command line, and errors as one line and an exit status.

A stream may fail before the run ends: a reader leaves, a disk is full, a terminal closes.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from basinax.numerics.oom import TITLE, is_out_of_memory

COLUMNS = 80
"""The width of output without a terminal."""


class TerminalStream(Console):
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


# Printed lines contain file names, so markup and emoji codes are off.
out = TerminalStream(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = TerminalStream(highlight=False, soft_wrap=True, markup=False, emoji=False, stderr=True)

NOTHING_CONVERGED = NOT_EVALUATED = 1
BITS_DIFFER = 1
BAD_INPUT = 2
NOT_SAVED = 3
OUT_OF_TIME = 4
INTERRUPTED = 130


LONGEST = 1000
"""The largest number of characters of a printed line, so that it fits a screen."""


def readable(text: str) -> str:
    """The text with escapes for characters that no stream can encode, such as stray bytes."""
    text = re.sub("[\udc80-\udcff]", lambda m: f"\\x{ord(m[0]) - 0xDC00:02x}", text)
    return text.encode("utf-8", "backslashreplace").decode()


def shown(text: str) -> str:
    """The text as one line, with escapes for control characters, cut in the middle if long."""
    if len(text) > LONGEST:
        head, tail = text[: LONGEST * 2 // 3], text[-LONGEST // 3 :]
        text = f"{head} ... {tail}"
    text = readable(text)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_line(stream: TerminalStream, text: str, label: str = "", style: str = "") -> None:
    """Print one line after a label in a style."""
    stream.print(Text.assemble((label, style), shown(text)))


def print_error(text: str) -> None:
    print_line(err, text, "error: ", "red")


def check_printed(what: str) -> None:
    """Exit if requested output could not be printed."""
    if out.fault:
        print_error(f"{what} cannot be printed: {out.fault}")
        raise typer.Exit(NOT_SAVED)


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print_line(err, _as_line(str(message)), "warning: ", "yellow")


NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""The errors of a disk that is full or read-only."""


@contextmanager
def reported(sources: list[str] | None = None) -> Iterator[None]:
    """A context that turns errors about input and options into one line and an exit status."""
    try:
        yield
    except OSError as error:
        done = "written" if error.errno in NOT_WRITTEN else "read"
        name = "" if error.filename is None else f"{error.filename} cannot be {done}: "
        fail(name + (error.strerror or text_of(error)))
    except (TypeError, ValueError, NotImplementedError, ArithmeticError, ImportError) as error:
        fail(with_sources(text_of(error), sources or []))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        text = text_of(error).removeprefix(f"{TITLE}: ")
        fail(f"there is not enough memory for what is asked for: {text}")


def with_sources(text: str, sources: list[str]) -> str:
    """The text with names of structures, or paths, in place of their numbers.

    What is like a number, but a part of a file's name, stays.
    """
    like_numbers = [source for source in sources if "system" in source or "path" in source]

    def name_of(number: str, otherwise: str) -> str:
        return sources[int(number)] if int(number) < len(sources) else otherwise

    def named(found: re.Match) -> str:
        if found[1] is None:  # numbers in brackets
            return re.sub(r"\d+", lambda m: name_of(m[0], m[0]), found[0])
        is_file = any(found[0] in source and source in text for source in like_numbers)
        return found[0] if is_file else name_of(found[1], found[0])

    numbers = r"\b(?:system|path) (\d+)\b|(?:(?<=systems \()|(?<=paths \())[\d, ]+"
    return re.sub(numbers, named, text)


def fail(*texts: str) -> NoReturn:
    """Print errors, one per line, and exit."""
    for text in texts:
        print_error(text)
    raise typer.Exit(BAD_INPUT)


def text_of(error: BaseException) -> str:
    return _as_line(str(error)) or type(error).__name__


def _as_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip())
