"""Writes public names into the pages of the reference, so that no page lists them by hand.

A line `<!-- names: basinax from optimizers -->` stands for every name that `basinax`
makes public and that is defined in that room or module; of several modules in the order in
which they are given. Sources are read, not imported.
"""

import functools
import re

import griffe

GROUP = re.compile(r"^<!-- names: (\S+) from ([\w. ]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_) -> str:
    """Return the page with its groups written out; mkdocs calls this for each page."""
    return GROUP.sub(lambda group: _directives(group[1], group[2].split()), markdown)


def _directives(package: str, modules: list[str]) -> str:
    names = dict.fromkeys(
        name
        for module in modules
        for name, origin in _origins(package).items()
        if f"{origin}.".startswith(f"basinax.{module}.")
    )
    if not names:
        raise ValueError(f"no public name of {package} is defined in {modules}: mend the page")
    return "\n\n".join(f"::: {package}.{name}" for name in sorted(names, key=_rank))


def _rank(name: str) -> tuple[bool, bool, bool]:
    """Functions come first, states last; else the order of modules on the page."""
    return name.endswith("State"), name.startswith("Abstract"), name < "a"


@functools.cache
def _origins(package: str) -> dict[str, str]:
    """Where each public name is defined."""
    loader = griffe.GriffeLoader(search_paths=["src"])
    loader.load("basinax")
    loader.resolve_aliases(implicit=True, external=False)
    members = loader.modules_collection[package].members
    return {
        name: _final_path(member)
        for name, member in members.items()
        if member.is_alias and name[0] != "_"
    }


def _final_path(alias: griffe.Alias) -> str:
    """The path of the definition; that of the import where another package holds it."""
    try:
        return alias.final_target.path
    except griffe.AliasResolutionError:
        return alias.target_path
