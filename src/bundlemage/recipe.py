"""Recipes: small TOML files with a model, its settings and its split. They make a run repeatable.

The built-in recipes are in `recipes/` beside this file. They have names such as `youshu/bpr`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from bundlemage.data.splits import SplitPlan
from bundlemage.errors import ConfigError
from bundlemage.models.auto import LEARNED
from bundlemage.models.registry import AUTO
from bundlemage.readers.pairs import check_events
from bundlemage.recommender import Recommender

_BUILT_IN = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """A model, its settings, how to split the data, how many models to train and average, and the shop."""

    model: str = "bundlemage"
    settings: Mapping[str, Any] = field(default_factory=dict)
    split: Mapping[str, Any] = field(default_factory=dict)
    ensemble: int = 1
    shop: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the shop, such as its currency."""
    events: Mapping[str, float] = field(default_factory=dict)
    """The weights of types of events, such as `view = 0.2` and `buy = 1`."""

    def __post_init__(self) -> None:
        check_events(self.events)

    @classmethod
    def find(cls, text: str) -> Recipe:
        """Returns a recipe. `text` is the path of its file, or the name of a built-in recipe."""
        if text.endswith(".toml"):
            return cls.load(Path(text))
        if text not in recipe_names():
            hints = [f" Did you mean {near!r}?" for near in get_close_matches(text, recipe_names(), 1)]
            raise ConfigError(
                f"unknown recipe {text!r}: give the path of a .toml file, or one of: "
                f"{', '.join(recipe_names())}.{''.join(hints)}"
            )
        return cls.load(_BUILT_IN / f"{text}.toml")

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Read a recipe; raises `ConfigError` if it cannot be read or has an unknown key."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"recipe {path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"recipe {path} is not valid TOML: {error}") from None
        known = {"model": str, "ensemble": int, "settings": dict, "split": dict, "shop": dict, "events": dict}
        for key, value in content.items():
            if key not in known:
                raise ConfigError(f"recipe {path}: unknown key {key!r}; the keys are: {', '.join(known)}")
            if not isinstance(value, known[key]):
                raise ConfigError(f"recipe {path}: {key!r} must be a {known[key].__name__}, not {value!r}")
        return cls(**content)

    def changed(
        self,
        settings: Mapping[str, Any],
        split: Mapping[str, Any],
        shop: Mapping[str, Any] | None = None,
        events: Mapping[str, float] | None = None,
    ) -> Recipe:
        """Returns a copy of the recipe with some settings replaced. `events` replaces all of the recipe's."""
        return replace(
            self,
            settings={**self.settings, **settings},
            split={**self.split, **split},
            shop={**self.shop, **(shop or {})},
            events=self.events if events is None else events,
        )

    def learned(self) -> Recipe:
        """Returns the recipe of the part that learns: for `auto`, BundleMage with the same settings."""
        if self.model != AUTO:
            return self
        settings = {name: value for name, value in self.settings.items() if name != "parts"}
        return replace(self, model=LEARNED, settings=settings)

    def recommender(self) -> Recommender:
        """Returns a recommender with these settings. It is not trained yet."""
        return Recommender(self.model, ensemble=self.ensemble, shop=self.shop, **self.settings)

    def plan(self) -> SplitPlan:
        """Returns the plan of the split; raises `ConfigError` if a setting is unknown."""
        known = [entry.name for entry in fields(SplitPlan)]
        for key in self.split:
            if key not in known:
                raise ConfigError(f"unknown split setting {key!r}; the settings are: {', '.join(known)}")
        return SplitPlan(**self.split)


@cache
def recipe_names() -> tuple[str, ...]:
    """Returns the names of the built-in recipes, such as `youshu/bpr`."""
    files = (file.relative_to(_BUILT_IN) for file in _BUILT_IN.rglob("*.toml"))
    return tuple(sorted(file.with_suffix("").as_posix() for file in files))
