"""The two streams of the command line, and errors as one line and an exit status."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.markup import escape

from basinax.cli._stream import Stream

out = Stream(highlight=False, soft_wrap=True)
err = Stream(highlight=False, soft_wrap=True, stderr=True)

NOTHING_CONVERGED = 1
BITS_DIFFER = 1
BAD_INPUT = 2
NOT_SAVED = 3
INTERRUPTED = 130


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"[yellow]warning:[/yellow] {escape(str(message))}")


@contextmanager
def reported(sources: list[str] | None = None) -> Iterator[None]:
    """Errors about what the user gave become one line and an exit status."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            fail(text_of(error))
        fail(f"{error.filename} cannot be read: {error.strerror or text_of(error)}")
    except (TypeError, ValueError, NotImplementedError) as error:
        fail(with_sources(text_of(error), sources or []))


def with_sources(text: str, sources: list[str]) -> str:
    """With the names of structures in place of their numbers."""
    if not sources:
        return text
    text = re.sub(r"\bsystem (\d+)\b", lambda m: sources[int(m[1])], text)
    return re.sub(r"(?<=systems \()[\d, ]+", lambda m: _names(m[0], sources), text)


def _names(numbers: str, sources: list[str]) -> str:
    return re.sub(r"\d+", lambda m: sources[int(m[0])], numbers)


def fail(text: str) -> NoReturn:
    print_error(text)
    raise typer.Exit(BAD_INPUT)


def print_error(text: str) -> None:
    err.print(f"[red]error:[/red] {escape(text)}")


def text_of(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
