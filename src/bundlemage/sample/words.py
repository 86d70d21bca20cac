"""Names and titles for the sample shop, built from the words in words.toml."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources

import numpy as np
import numpy.typing as npt

Random = np.random.Generator
Integers = npt.NDArray[np.int64]

WORDS = tomllib.loads((resources.files("bundlemage.sample") / "words.toml").read_text(encoding="utf-8"))
GENRES = WORDS["genres"]

_ROMAN = {"M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9}
_ROMAN |= {"V": 5, "IV": 4, "I": 1}


def pick(random: Random, choices: int, size: int) -> Integers:
    """Draw `size` integers from 0 to `choices` - 1."""
    drawn: Integers = (random.random(size) * choices).astype(np.int64)
    return drawn


def shuffled(random: Random, values: Integers) -> Integers:
    """Returns the values in random order."""
    order: Integers = values[np.argsort(random.random(len(values)), kind="stable")]
    return order


def line_names(random: Random, count: int) -> list[str]:
    """Returns names for `count` product lines. Even lines are series of games, odd lines are studios."""
    stems, kinds = WORDS["stems"], WORDS["studio_kinds"]
    series = [stem + ending for stem in stems for ending in WORDS["series_endings"]]
    studios = [f"{stem}{end} {kind}" for stem in stems for end in WORDS["studio_endings"] for kind in kinds]
    orders = [shuffled(random, np.arange(len(names))).tolist() for names in (series, studios)]
    names = []
    for line in range(count):
        choices, order = (series, orders[0]) if is_series(line) else (studios, orders[1])
        names.append(choices[order[line // 2 % len(order)]])
    return numbered(names, "{} {roman}")


def is_series(line: int) -> bool:
    """Whether a product line is a series of games. Otherwise it is a studio."""
    return line % 2 == 0


def _word(words: Sequence[str], draw: int) -> str:
    return words[draw % len(words)]


def game_titles(
    random: Random, genres: Sequence[int], lines: Sequence[int], names: Sequence[str]
) -> list[str]:
    """Returns a unique title for each game, from words of its genre. It includes the series' name, if any.

    `genres` and `lines` have an entry for each game. `names` are the names of the lines.
    """
    draws = zip(*(pick(random, 1 << 20, len(genres)).tolist() for _ in range(5)), strict=True)
    titles = []
    for genre, line, (pattern, a, b, c, d) in zip(genres, lines, draws, strict=True):
        noun, place = _word(GENRES[genre]["nouns"], a), _word(GENRES[genre]["places"], b)
        adjective, things = _word(WORDS["adjectives"], c), _word(WORDS["things"], d)
        series = names[line] if is_series(line) else None
        if pattern % 8 < 4:
            start = series or _word(WORDS["stems"], c) + _word(WORDS["world_endings"], d)
            titles.append(f"{start} {noun}")
        else:
            subtitle = f"{place} of {adjective} {things}" if pattern % 8 < 7 else f"The {adjective} {noun}"
            titles.append(f"{series}: {subtitle}" if series else subtitle)
    return numbered(titles, "{} {roman}")


def bundle_titles(
    random: Random, genres: Sequence[int], lines: Sequence[int], names: Sequence[str]
) -> list[str]:
    """Returns a unique title for each bundle. The line -1 means a pack of a whole genre."""
    draws = zip(*(pick(random, 1 << 20, len(genres)).tolist() for _ in range(2)), strict=True)
    titles = []
    for genre, line, (a, b) in zip(genres, lines, draws, strict=True):
        if line < 0:
            words = GENRES[genre]
            titles.append(f"{_word(words['moods'], a)} {words['name']} {_word(WORDS['pack_forms'], b)}")
        else:
            forms = WORDS["series_bundles" if is_series(line) else "studio_bundles"]
            titles.append(_word(forms, a).format(names[line]))
    return numbered(titles, "{}, Vol. {number}")


def numbered(names: Iterable[str], form: str) -> list[str]:
    """Number repeated names like sequels: Lantern Quest, Lantern Quest II, Lantern Quest III."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        numbered = form.format(name, number=seen[name], roman=_roman(seen[name]))
        unique.append(numbered if seen[name] > 1 else name)
    return unique


def _roman(number: int) -> str:
    numeral = ""
    for letters, value in _ROMAN.items():
        count, number = divmod(number, value)
        numeral += letters * count
    return numeral
