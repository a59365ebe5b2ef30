"""Commands of typer from functions that take classes of options."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from basinax.cli._config import print_settings


def takes(
    *groups: Any, unused: Sequence[Any] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that makes a command of a function of these classes, in their order.

    If the options include `print_config`, the command can print them instead.

    Args:
        unused: classes whose options are accepted, hidden, and ignored.
    """

    def command_of(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            given = [
                group(**{field.name: values[field.name] for field in dataclasses.fields(group)})
                for group in groups
            ]
            if values["print_config"]:
                print_settings(given)
            else:
                function(*given)

        parameters = [p for group in groups for p in inspect.signature(group).parameters.values()]
        for group in unused:
            parameters += map(_hidden, inspect.signature(group).parameters.values())
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        return command

    return command_of


def _hidden(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, option = parameter.annotation.__origin__, copy.copy(parameter.annotation.__metadata__[0])
    option.hidden, option.help = True, "Not used."
    return parameter.replace(annotation=Annotated[kind, option])
