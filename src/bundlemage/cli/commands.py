"""Turns functions into commands: parameters become options, and the docstring describes them."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.models import ParameterInfo


def add(app: typer.Typer, *functions: Callable[..., None]) -> None:
    """Add functions to an app as commands of the same names.

    A docstring ends with sections of options. The line `-o, --output DIR: What it is.` describes an option:
    its names, a placeholder for its value, and its help text. The line `folder DIR: What it is.` describes an
    argument. A section with another title than "Options" becomes a panel of the help. A parameter needs no
    line if its type is annotated with an `OptionGroup`, or with a `typer.Option` that has a help text.
    """
    for function in functions:
        name, text = function.__name__.strip("_").replace("_", "-"), _documentation(function)[0]
        app.command(name, cls=_command_class(function), help=text)(lambda: None)


def _command_class(function: Callable[..., None]) -> type[TyperCommand]:
    """A command class that builds its options only when the command runs: this may import a slow module."""

    class Command(TyperCommand):
        def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
            options = FromFunction(function)
            parameters = options.parameters()

            def run(**values: Any) -> None:
                options.value(values)

            run.__dict__["__signature__"] = inspect.Signature(list(parameters.values()))
            run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
            app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
            app.command(self.name, help=self.help, context_settings=dict(self.context_settings))(run)
            return typer.main.get_command(app).make_context(info_name, args, parent, **extra)

    return Command


class OptionGroup(ABC):
    """Several options that make one value, as in `where: Annotated[Filter, FromFunction(...)]`."""

    @abstractmethod
    def parameters(self) -> dict[str, inspect.Parameter]:
        """A parameter for each option, by its name."""

    @abstractmethod
    def value(self, values: dict[str, Any]) -> Any:
        """Build the value from the values of its options, and remove those from `values`."""


class FromFunction(OptionGroup):
    """The parameters of a function as options. The value is what the function returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def parameters(self) -> dict[str, inspect.Parameter]:
        parameters: dict[str, inspect.Parameter] = {}
        for name, parameter in self._signature().items():
            group = _mark(parameter, OptionGroup)
            parameters |= group.parameters() if group else {name: parameter}
        for name, attributes in _documentation(self.function)[1].items():
            known = name if name in parameters else f"{name}_"  # `set_`, as Python itself has a `set`
            parameters[known] = _described(parameters[known], attributes)
        kind = inspect.Parameter.KEYWORD_ONLY
        return {name: parameter.replace(kind=kind) for name, parameter in parameters.items()}

    def value(self, values: dict[str, Any]) -> Any:
        groups = {name: _mark(parameter, OptionGroup) for name, parameter in self._signature().items()}
        return self.function(
            **{name: group.value(values) if group else values.pop(name) for name, group in groups.items()}
        )

    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function, eval_str=True).parameters


def _mark(parameter: inspect.Parameter, kind: type) -> Any:
    """The first metadata of the type `kind` in a parameter's `Annotated` type, or None."""
    marks = getattr(parameter.annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def _documentation(function: Callable[..., Any]) -> tuple[str, dict[str, dict[str, Any]]]:
    """The text of a docstring, and for each parameter the attributes of its `typer.Option`."""
    text, *sections = re.split(r"\n\n(?=[^\n]+:\n    )", inspect.cleandoc(function.__doc__ or ""))
    described = {}
    for section in sections:
        title, _, entries = section.partition(":\n")
        for entry in re.split(r"\n    (?=\S)", entries.removeprefix("    ")):
            names, words = " ".join(entry.split()).split(": ", 1)
            first, last = names.split()[0], names.split()[-1]
            flags = re.findall(r"(?<!\S)--[^\s,]+", names) + re.findall(r"(?<!\S)-\w", names)
            parameter = flags[0].split("/")[0].removeprefix("--").replace("-", "_") if flags else first
            described[parameter] = {
                "param_decls": tuple(flags) or None,
                "metavar": None if last in flags else last,
                "help": words,
                "rich_help_panel": None if title == "Options" else title,
            }
    return text, described


def _described(parameter: inspect.Parameter, attributes: dict[str, Any]) -> inspect.Parameter:
    """The parameter with these attributes of its option, or of its argument if it has no option names."""
    kind = parameter.annotation
    info = copy(_mark(parameter, ParameterInfo))
    if info is None:
        info = typer.Option() if attributes["param_decls"] else typer.Argument()
    vars(info).update(attributes, default=...)
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return parameter.replace(annotation=Annotated[kind, info])
