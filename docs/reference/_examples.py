"""Tells griffe, which reads the sources for the site, what it does not know of them.

Examples in docstrings are blocks of code, and classes of equinox are data classes: a page shows how
one is made, with the defaults of its fields.
"""

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)(?:    .+\n)+(?=\n)")
DATACLASS = griffe.Decorator(griffe.ExprName("dataclasses.dataclass"), lineno=None, endlineno=None)
FIELD = griffe.ExprName("dataclasses.field")


class Examples(griffe.Extension):
    """An extension of griffe, which runs after the one that makes signatures of data classes."""

    def on_class_instance(self, *, cls: griffe.Class, **_) -> None:
        """A state is made by its transform, a tuple by a function; the others by their users."""
        if not cls.name.endswith("State") and "NamedTuple" not in map(str, cls.bases):
            cls.decorators.append(DATACLASS)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_) -> None:
        """A field of equinox is one of a data class."""
        if isinstance(attr.value, griffe.ExprCall) and str(attr.value.function) == "eqx.field":
            attr.value.function = FIELD

    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring:
            text = INDENTED.sub(_fenced, obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", text)

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        _show_defaults(pkg)


def _fenced(block: re.Match[str]) -> str:
    code = re.sub("^    ", "", block[0], flags=re.MULTILINE)
    return f"```python\n{code}```\n"


def _show_defaults(parent: griffe.Object) -> None:
    """Let each field stand with its default alone."""
    for member in parent.members.values():
        if member.is_alias:
            continue
        value = member.value if member.is_attribute else None
        if isinstance(value, griffe.ExprCall) and str(value.function).endswith("field"):
            member.value = {option.name: option.value for option in value.arguments}.get("default")
        _show_defaults(member)
