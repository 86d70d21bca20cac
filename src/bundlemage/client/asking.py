"""How the arguments of the client's methods become the JSON of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from bundlemage.errors import ConfigError
from bundlemage.wire.requests import Body, HistoryOf, Where

Id: TypeAlias = str | int


def someone(user: Id | HistoryOf | Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request that says whom the answer is for: a user id or a history."""
    if isinstance(user, str | int):
        return {"user_id": str(user)}
    history = fields_of(user)
    if history is None:
        raise ConfigError(
            f"a user is an id or {{'items': […], 'bundles': […]}}, and not {type(user).__name__}"
        )
    return {"history": {name: ids(name, names) for name, names in history.items()}}


def conditions(where: Where | Mapping[str, Any] | None) -> dict[str, Any]:
    """The filter of a request."""
    if where is None:
        return {}
    fields = fields_of(where)
    if fields is None:
        raise ConfigError(f"where is a dict such as {{'max_price': 40}}, and not {type(where).__name__}")
    fields = {name: value for name, value in fields.items() if value is not None}
    for name in ("exclude", "among"):
        if name in fields:
            fields[name] = ids(name, fields[name])
    if "tags" in fields:
        fields["tags"] = listed("tags", fields["tags"])
    return fields


def fields_of(part: object) -> dict[str, Any] | None:
    """The fields of a part of a request, which may be a dict or a model; None for anything else."""
    if isinstance(part, Body):
        return part.model_dump(exclude_unset=True)
    return dict(part) if isinstance(part, Mapping) else None


def ids(name: str, values: Any) -> list[str]:
    """A list of ids as texts. `name` is the argument's name, for the error message."""
    return [str(value) for value in listed(name, values)]


def listed(name: str, values: Any) -> list[Any]:
    """A list of the values. One text is an error: it would be taken for a list of letters."""
    if isinstance(values, str):
        raise ConfigError(f"{name} is a list, not one text: write [{values!r}]")
    return list(values)
