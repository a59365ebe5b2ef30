"""The text of structure files, in UTF-8 whatever the locale and whatever mark it begins with."""

import codecs
import io
from pathlib import Path
from typing import IO, Any

from ase.io.formats import open_with_compression

MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The first bytes of texts, as some editors and shells write them, with their encodings."""


def binary(path: Path) -> IO[bytes]:
    """The unpacked content of a file; a text with a mark is in UTF-8 without it."""
    file: Any = open_with_compression(str(path), "rb")
    if getattr(file, "name", None) is None:  # readers of ASE ask those of bz2 and xz, too
        file.name = str(path)
    try:
        head = file.read(3)
        encoding = next((MARKS[mark] for mark in MARKS if head.startswith(mark)), None)
        if encoding is None:
            file.seek(0)
            return file
        text = (head + file.read()).decode(encoding)
    except BaseException:
        file.close()
        raise
    file.close()
    plain = io.BytesIO(text.encode())
    plain.name = str(path)
    return plain


def has_mark(path: Path) -> bool:
    with open_with_compression(str(path), "rb") as file:
        return file.read(3).startswith(tuple(MARKS))


def opened(path: Path) -> io.TextIOWrapper:
    """The file as text."""
    return io.TextIOWrapper(binary(path), encoding="utf-8")


def created(path: Path) -> io.TextIOWrapper:
    """A new file for text, packed if its ending says so."""
    return io.TextIOWrapper(open_with_compression(str(path), "wb"), encoding="utf-8")


def text_in(path: Path) -> str:
    """The whole text; one that is no UTF-8 is read as Latin-1."""
    with binary(path) as file:
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")
