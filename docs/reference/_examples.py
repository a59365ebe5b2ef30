"""Tells griffe, which reads the sources for the site, what it does not know of them.

Examples in docstrings are blocks of code, and classes of equinox are data classes: a page shows how
one is made.
"""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)(?:    .+\n)+(?=\n)")
DATACLASS = griffe.Decorator(griffe.ExprName("dataclasses.dataclass"), lineno=None, endlineno=None)


class Examples(griffe.Extension):
    """An extension of griffe."""

    def on_class_instance(self, *, cls: griffe.Class, **_) -> None:
        """A state is made by its transform, a tuple by a function; the others by their users."""
        if not cls.name.endswith("State") and "NamedTuple" not in map(str, cls.bases):
            cls.decorators.append(DATACLASS)

    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring:
            text = INDENTED.sub(_fenced, obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)


def _fenced(block: re.Match[str]) -> str:
    code = re.sub("^    ", "", block[0], flags=re.MULTILINE)
    return f"```python\n{code}```\n"
