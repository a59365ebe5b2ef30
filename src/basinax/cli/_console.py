"""The two streams of the command line, and errors as one line and an exit status."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)

NOTHING_CONVERGED = 1
BITS_DIFFER = 1
BAD_INPUT = 2
INTERRUPTED = 130


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"[yellow]warning:[/yellow] {escape(str(message))}")


@contextmanager
def reported(sources: list[str] | None = None) -> Iterator[None]:
    """Errors about what the user gave become one line and an exit status."""
    try:
        yield
    except OSError as error:
        fail(f"{error.filename} cannot be read: {error.strerror or text_of(error)}")
    except (TypeError, ValueError, NotImplementedError) as error:
        text = text_of(error)
        if sources:
            text = re.sub(r"\bsystem (\d+)\b", lambda m: sources[int(m[1])], text)
            text = re.sub(r"(?<=systems \()[\d, ]+", lambda m: _names(m[0], sources), text)
        fail(text)


def _names(numbers: str, sources: list[str]) -> str:
    return re.sub(r"\d+", lambda m: sources[int(m[0])], numbers)


def fail(text: str) -> NoReturn:
    err.print(f"[red]error:[/red] {escape(text)}")
    raise typer.Exit(BAD_INPUT)


def text_of(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
