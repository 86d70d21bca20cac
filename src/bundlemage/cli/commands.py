"""Turns functions into commands. Parameters become options; the docstring describes them.

The fields of a pydantic model can also become options, so that each setting is described in one place.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand
from typer.models import ParameterInfo

from bundlemage.cli.texts import ids, numbers
from bundlemage.errors import ConfigError, fault_in_words

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo


def add(app: typer.Typer, *functions: Callable[..., None]) -> None:
    """Add functions to an app as commands of the same names.

    A docstring ends with sections of options. The line `-o, --output DIR: What it is.` describes an option:
    its names, a placeholder for its value, and its help text. The line `folder DIR: What it is.` describes an
    argument. A section with another title than "Options" becomes a panel of the help. A parameter needs no
    line if its type is annotated with an option group, or with a `typer.Option` that has a help text.
    """
    for function in functions:
        name, text = function.__name__.strip("_").replace("_", "-"), _documentation(function)[0]
        app.command(name, cls=_command_class(function), help=text)(lambda: None)


def _command_class(function: Callable[..., None]) -> type[TyperCommand]:
    """A command class that builds its options only when the command runs: this may import a slow module."""

    class Command(TyperCommand):
        def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
            try:
                return self._made_context(info_name, args, parent, **extra)
            except typer.BadParameter as error:
                from pydantic import ValidationError  # late: typer has imported it only now

                if isinstance(error.__cause__, ValidationError):
                    error.message = _in_words(error.__cause__)
                raise

        def _made_context(self, info_name: Any, args: Any, parent: Any, **extra: Any) -> Any:
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


def _in_words(error: ValidationError) -> str:
    """What is wrong with the value of an option. The name of the option stands before it."""
    fault = error.errors()[0]
    words = fault_in_words(fault)
    return (
        words.removeprefix("; ") if words[0] == ";" else f"{fault['input']!r}{words.removeprefix(', which')}"
    )


@dataclass(frozen=True)
class FromFunction:
    """A group of options that give one value, as in `where: Annotated[Filter, FromFunction(...)]`. Each
    parameter of the function is an option, and the value is the function's result."""

    function: Callable[..., Any]

    def parameters(self) -> dict[str, inspect.Parameter]:
        """A parameter for each option, by its name."""
        parameters: dict[str, inspect.Parameter] = {}
        for name, parameter in self._signature().items():
            group = _mark(parameter, FromFunction | FromModel)
            parameters |= group.parameters() if group else {name: parameter}
        for name, attributes in _documentation(self.function)[1].items():
            known = name if name in parameters else f"{name}_"  # `set_`, as Python itself has a `set`
            parameters[known] = _described(parameters[known], attributes)
        kind = inspect.Parameter.KEYWORD_ONLY
        return {name: parameter.replace(kind=kind) for name, parameter in parameters.items()}

    def value(self, values: dict[str, Any]) -> Any:
        """Build the value from the values of its options, and remove those from `values`."""
        arguments = {}
        for name, parameter in self._signature().items():
            group = _mark(parameter, FromFunction | FromModel)
            arguments[name] = group.value(values) if group else values.pop(name)
        return self.function(**arguments)

    def _signature(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function, eval_str=True).parameters


def _mark(parameter: inspect.Parameter, kind: type | UnionType) -> Any:
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
    """Gives these attributes to the parameter's option, or to its argument if there are no option names."""
    kind = parameter.annotation
    info = copy(_mark(parameter, ParameterInfo))
    if info is None:
        info = typer.Option() if attributes["param_decls"] else typer.Argument()
    vars(info).update(attributes, default=...)
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return parameter.replace(annotation=Annotated[kind, info])


# ── Options from a pydantic model ────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class FromModel:
    """The fields of a pydantic model as options. The value is a dict of the fields that the user has set."""

    model: str
    """The import path of the pydantic model. It is imported only when its command runs."""
    panel: str | None = None
    """The panel of the help for fields that `panels` does not name."""
    panels: Mapping[str, str | None] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The option names of a field, if they are not the field's own name."""
    metavars: Mapping[str, str] = field(default_factory=dict)
    """Placeholders in the help for fields that hold several values other than ids."""
    without: tuple[str, ...] = ()
    """Fields that do not become options."""
    only: tuple[str, ...] = ()
    """If not empty, only these fields become options."""
    environment: str = ""
    """Prefix of environment variables that may be used instead of the options."""

    def parameters(self) -> dict[str, inspect.Parameter]:
        return {name: self._option(name, info) for name, (_, info) in self._fields()}

    def value(self, values: dict[str, Any]) -> Any:
        settings: dict[str, Any] = {}
        for name, (part, info) in self._fields():
            value = values.pop(name)
            if value is not None:
                target = settings if part is None else settings.setdefault(part, {})
                target[name] = self._read(name, info, value)
        return settings

    def _fields(self) -> Iterator[tuple[str, tuple[str | None, FieldInfo]]]:
        """The fields by name. A field that is itself a model is replaced by the fields of that model."""
        for name, info in resolve_name(self.model).model_fields.items():
            kind = _plain(info.annotation)
            if name in self.without or (self.only and name not in self.only):
                continue
            if hasattr(kind, "model_fields") and not _is_range(kind):
                yield from ((each, (name, inner)) for each, inner in kind.model_fields.items())
            else:
                yield name, (None, info)

    def _option(self, name: str, info: FieldInfo) -> inspect.Parameter:
        kind, default, metavar = _plain(info.annotation), info.default, None
        names, words = self.names.get(name, (_flag(name),)), " ".join((info.description or "").split())
        if get_origin(kind) in (tuple, dict):
            metavar = self.metavars.get(name, "NAME=N" if get_origin(kind) is dict else "ID,ID")
            kind, default = list[str] | None, None
            words = f"{words} Repeatable."
        elif _is_range(kind):
            metavar = "N|N-N"
            if default is None:
                metavar, words = "MOST|LEAST-MOST", f"{words} '20-' is at least 20."
            kind, default = str | None, None if default is None else f"{default.least}-{default.most}"
        elif get_origin(kind) is Literal:
            kind, metavar = str, f"<{'|'.join(map(str, get_args(kind)))}>"
        elif default is True and name not in self.names:
            names = (f"{_flag(name)}/--no-{name.replace('_', '-')}",)
        annotation = kind | None if default is None else kind
        panel = self.panels.get(name, self.panel)
        variable = f"{self.environment}{name.upper()}" if self.environment else None
        option = typer.Option(*names, metavar=metavar, help=words, envvar=variable, rich_help_panel=panel)
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, option]
        )

    def _read(self, name: str, info: FieldInfo, value: Any) -> Any:
        """Convert the text of an option to the value that Python code would pass."""
        kind, option = _plain(info.annotation), _flag(name)
        if get_origin(kind) is dict:
            return numbers(value, option, "write a number from 0 up after the '=', as in NAME=2")
        if get_origin(kind) is tuple:
            return value if name in self.metavars else ids(value)
        return _range(value, option, kind) if _is_range(kind) else value


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plain(kind: Any) -> Any:
    """A type without its constraints, and without None."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if NoneType in get_args(kind):
        return _plain(next(each for each in get_args(kind) if each is not NoneType))
    return kind


def _is_range(kind: Any) -> bool:
    return {"least", "most"} == set(getattr(kind, "model_fields", ()))


def _range(text: str, option: str, kind: Any) -> Any:
    """The range in a text such as `4`, `3-5` or, if the range may be open, `3-`."""
    least, dash, most = text.partition("-")
    is_open = not kind.model_fields["most"].is_required()
    try:
        low, high = float(least), float(most) if most or (dash and not is_open) else None
    except ValueError:
        example = "40, or a range, such as 20-40 or 20-" if is_open else "4, or a range, such as 3-5"
        raise ConfigError(f"{option} {text!r}: write a number, such as {example}") from None
    if high is not None and low > high:
        raise ConfigError(f"{option} {text}: the smaller number must come first, as in {most}-{least}")
    return [low, high] if dash else low
