"""Recipes: a model, its settings and its split in a small TOML file, so that a run can be repeated."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bundlemage.data.splits import SplitPlan
from bundlemage.errors import ConfigError
from bundlemage.recommender import Recommender

_SPLIT_KEYS = tuple(entry.name for entry in fields(SplitPlan))


@dataclass(frozen=True)
class Recipe:
    model: str = "bundlemage"
    settings: Mapping[str, Any] = field(default_factory=dict)
    split: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Read a recipe; anything in it that is not known is refused."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"recipe {path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"recipe {path} is not valid TOML: {error}") from None
        known = {"model": str, "settings": dict, "split": dict}
        for key, value in content.items():
            if key not in known:
                raise ConfigError(f"recipe {path}: unknown key {key!r}; the keys are: {', '.join(known)}")
            if not isinstance(value, known[key]):
                raise ConfigError(f"recipe {path}: {key!r} must be a {known[key].__name__}, not {value!r}")
        return cls(**content)

    def changed(self, settings: Mapping[str, Any], split: Mapping[str, Any]) -> Recipe:
        """The same with some things set otherwise."""
        return Recipe(self.model, {**self.settings, **settings}, {**self.split, **split})

    def recommender(self) -> Recommender:
        return Recommender(self.model, **self.settings)

    def plan(self) -> SplitPlan:
        for key in self.split:
            if key not in _SPLIT_KEYS:
                raise ConfigError(f"unknown split setting {key!r}; they are: {', '.join(_SPLIT_KEYS)}")
        return SplitPlan(**self.split)
