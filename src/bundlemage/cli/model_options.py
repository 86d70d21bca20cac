"""Options that are read from a pydantic model, so that each setting is described in one place."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from bundlemage.cli.commands import OptionGroup
from bundlemage.cli.options import ids, key_values
from bundlemage.errors import ConfigError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class FromModel(OptionGroup):
    """The fields of a model as options. The value is a dict of the fields that were not left out."""

    module: str
    name: str
    panel: str | None = None
    """The panel of the help for fields that `panels` does not name."""
    panels: Mapping[str, str | None] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of options that differ from the name of the field."""
    metavars: Mapping[str, str] = field(default_factory=dict)
    """Placeholders in the help for fields with several values that are not ids."""
    without: tuple[str, ...] = ()
    """Fields that do not become options."""
    only: tuple[str, ...] = ()
    """If not empty: the fields that are options."""
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
        for name, info in getattr(import_module(self.module), self.name).model_fields.items():
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
            kind = str
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
        """The text of an option as the value that Python code would pass."""
        kind, option = _plain(info.annotation), _flag(name)
        if get_origin(kind) is dict:
            pairs = key_values(value, option)
            return {key: _number(text, f"{option} '{key}={text}'") for key, text in pairs.items()}
        if get_origin(kind) is tuple:
            return value if name in self.metavars else ids(value)
        return _range(value, option) if _is_range(kind) else value


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


def _range(text: str, option: str) -> Any:
    least, dash, most = text.partition("-")
    try:
        both = [float(end) if end else None for end in (least, most)]
    except ValueError:
        both = []
    if not both or not (least or most):
        raise ConfigError(f"{option} {text!r}: write it as 4, as 3-5, or as 3- for at least 3")
    return both if dash else both[0]


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{where}: a number comes after the '=', as in NAME=2") from None
