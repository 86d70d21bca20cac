"""The space of a search: the space of the config class, with the changes of the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bundlemage.errors import ConfigError
from bundlemage.models.config import Between, Domain, ModelConfig, OneOf, Space, parse_config

NEVER = {
    "seed": "the best seed is the luckiest one, not the best setting",
    "device": "where a model is trained is not what makes it good",
}
MOST_CHECKED = 10_000
"""How many values of a range of whole numbers are checked as settings, at most."""


def chosen_space(config_class: type[ModelConfig], changes: Space, fixed: Mapping[str, Any]) -> Space:
    """The class's space with `changes` and without the `fixed` settings.

    Raises ConfigError if a value in it is not a valid setting.
    """
    for name in changes:
        if name in NEVER:
            raise ConfigError(f"{name!r} is not to be searched for: {NEVER[name]}. Set it with --set")
        if name in fixed:
            raise ConfigError(
                f"{name!r} is set to {fixed[name]!r} and is to be searched for as well: do one of the two"
            )
    declared = config_class.space
    wanted = {**declared, **{name: _fitted(config_class, name, domain) for name, domain in changes.items()}}
    space = {name: domain for name, domain in wanted.items() if name not in fixed}
    for name, domain in space.items():
        _check(config_class, name, domain, fixed)
    return space


def first_point(config_class: type[ModelConfig], space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the first trial: the usual ones, so that the best trial is not worse than these.

    A setting outside of its space starts in the middle of the space.
    """
    usual = parse_config(config_class, settings)
    return {
        name: value if (value := getattr(usual, name)) in domain else domain.middle
        for name, domain in space.items()
    }


def _fitted(config_class: type[ModelConfig], name: str, domain: Domain) -> Domain:
    """A domain in the setting's type, with a logarithmic scale if the class has one."""
    field, declared = config_class.model_fields.get(name), config_class.space.get(name)
    in_fractions = field is not None and field.annotation is float
    if isinstance(domain, OneOf):
        return OneOf(*(float(one) if in_fractions and type(one) is int else one for one in domain.choices))
    low, high = (float(end) if in_fractions else end for end in (domain.low, domain.high))
    return Between(low, high, domain.log or (isinstance(declared, Between) and declared.log))


def _check(config_class: type[ModelConfig], name: str, domain: Domain, fixed: Mapping[str, Any]) -> None:
    for value in _values(domain):
        try:
            parse_config(config_class, {**fixed, name: value})
        except ConfigError as error:
            hint = ""
            if isinstance(domain, Between) and domain.whole:
                hint = f". Name the values one by one, e.g. {name}={domain.low},{domain.high}"
            raise ConfigError(f"the space of {name!r} is {domain}: {error}{hint}") from None


def _values(domain: Domain) -> Iterable[Any]:
    if isinstance(domain, OneOf):
        return domain.choices
    if domain.whole:
        low, high = int(domain.low), int(domain.high)
        return {*range(low, min(high, low + MOST_CHECKED) + 1), high}
    return domain.low, domain.high
