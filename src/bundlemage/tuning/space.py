"""The space of a search: the space of the model's config class, with the user's changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bundlemage.errors import ConfigError
from bundlemage.models.config import Between, Domain, ModelConfig, OneOf, Space, parse_config

NEVER = {
    "seed": "a seed that scores best is luck, not a better setting",
    "device": "the device does not change how good a model is",
}
MOST_CHECKED = 10_000
"""The maximum number of values of a range of whole numbers that are checked as settings."""


def chosen_space(config_class: type[ModelConfig], changes: Space, fixed: Mapping[str, Any]) -> Space:
    """Returns the space of `config_class`, with `changes` and without the `fixed` settings.

    Raises ConfigError if a value in the space is not a valid setting.
    """
    for name in changes:
        if name in NEVER:
            raise ConfigError(f"{name!r} cannot be searched for: {NEVER[name]}. Set it with --set")
        if name in fixed:
            raise ConfigError(
                f"{name!r} is both fixed to {fixed[name]!r} and in the space to search: choose one of the two"
            )
    declared = config_class.space
    wanted = {**declared, **{name: _fitted(config_class, name, domain) for name, domain in changes.items()}}
    space = {name: domain for name, domain in wanted.items() if name not in fixed}
    for name, domain in space.items():
        _check(config_class, name, domain, fixed)
    return space


def first_point(config_class: type[ModelConfig], space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the first trial: the defaults and `settings`. So the best trial is at least as good.

    A value that is not in the space is replaced by the middle of the space.
    """
    usual = parse_config(config_class, settings)
    return {
        name: value if (value := getattr(usual, name)) in domain else domain.middle
        for name, domain in space.items()
    }


def _fitted(config_class: type[ModelConfig], name: str, domain: Domain) -> Domain:
    """Converts a domain to the setting's type. The scale is logarithmic if that of the config class is."""
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
