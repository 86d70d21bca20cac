"""What a setting may be while the best one is searched for. A config class declares its own `space`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bundlemage.errors import ConfigError

Choice = str | int | float | bool


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`, both included; two whole ends mean whole numbers."""

    low: float
    high: float
    log: bool = False
    """Whether tenfold is as far everywhere: from 0.001 to 0.01 as from 0.01 to 0.1."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"{self}: the first number must be less than the second")
        if self.log and self.low <= 0:
            raise ConfigError(f"{self}: a logarithmic range begins above 0")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def middle(self) -> Choice:
        found = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
        return int(found) if self.whole else found

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (not self.whole or value == int(value))

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + ",log" * self.log

    def to_json(self) -> dict[str, Any]:
        return {"between": [self.low, self.high], "log": self.log}


@dataclass(frozen=True, init=False)
class OneOf:
    """One of some values, which need not be numbers."""

    choices: tuple[Choice, ...]

    def __init__(self, *choices: Choice) -> None:
        if len({repr(choice) for choice in choices}) < max(2, len(choices)):
            shown = ",".join(map(str, choices)) or "nothing"
            raise ConfigError(f"{shown}: name two or more values, each once, or a range such as 0.1..0.4")
        object.__setattr__(self, "choices", choices)

    @property
    def middle(self) -> Choice:
        return self.choices[len(self.choices) // 2]

    def __contains__(self, value: object) -> bool:
        return any(value == choice and type(value) is type(choice) for choice in self.choices)

    def __str__(self) -> str:
        return ",".join(
            str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in self.choices
        )

    def to_json(self) -> dict[str, Any]:
        return {"one_of": list(self.choices)}


Domain = Between | OneOf
Space = Mapping[str, Domain]
"""Setting → what it may be."""
