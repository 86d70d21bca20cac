"""The structure planted in the sample shop before purchases are drawn: genres, product lines, tastes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bundlemage.sample import words
from bundlemage.sample.draws import Integers, Random, Wheel, popularity, shuffled, spread

Floats = npt.NDArray[np.float64]

GENRE_PACK = -1
"""The line of a bundle that is a pack of a whole genre."""

_LINE_PER_BUNDLE = 2.5  # a line has this many games for each game of a bundle: room for several bundles
_SMALLEST_LINE = 4
_PACK_SHARE = 0.2
# The weights of a user's three favourite genres (which may coincide), and the share spread evenly over all.
_FAVOURITES, _CURIOSITY = (0.6, 0.22, 0.1), 0.08
# Bundle taste equals item taste, is half of it, or is independent: the percentage of users for each.
_SHIFTS = (35, 20, 45)


@dataclass(frozen=True, eq=False)
class Tastes:
    """The planted structure. A taste is a probability for each genre; popularity is a weight."""

    genres: tuple[str, ...]
    lines: tuple[str, ...]
    """Series and studios."""
    line_genre: Integers  # [lines], ascending
    item_line: Integers  # [items]
    item_genre: Integers  # [items]
    item_popularity: Integers  # [items]
    bundle_line: Integers  # [bundles], or GENRE_PACK
    bundle_genre: Integers  # [bundles]
    bundle_popularity: Integers  # [bundles]
    user_item_taste: Floats  # [users, genres]
    user_bundle_taste: Floats  # [users, genres]


def plant(random: Random, users: int, items: int, bundles: int, items_per_bundle: float) -> Tastes:
    """Draw the structure of a shop of this size."""
    line_size = max(_SMALLEST_LINE, _LINE_PER_BUNDLE * items_per_bundle)
    line_count = max(1, int(items / line_size))
    # Every genre has a line and a bundle, so that users who like it find something.
    genre_count = min(len(words.GENRES), line_count, bundles)
    genre_wheel = Wheel(popularity(random, genre_count))

    line_genre = np.sort(_cover(random, genre_wheel, genre_count, line_count))
    item_line = _item_lines(random, items, line_count)
    bundle_genre = shuffled(random, _cover(random, genre_wheel, genre_count, bundles))
    item_taste, bundle_taste = _user_tastes(random, genre_wheel, genre_count, users)
    return Tastes(
        genres=tuple(genre["name"] for genre in words.GENRES[:genre_count]),
        line_genre=line_genre,
        item_line=item_line,
        item_genre=line_genre[item_line],
        item_popularity=popularity(random, items),
        bundle_line=_bundle_lines(random, bundle_genre, line_genre),
        bundle_genre=bundle_genre,
        bundle_popularity=popularity(random, bundles),
        user_item_taste=item_taste,
        user_bundle_taste=bundle_taste,
        # Last, so that other words leave every number as it was.
        lines=tuple(words.line_names(random, line_count)),
    )


def _cover(random: Random, wheel: Wheel, choices: int, size: int) -> Integers:
    """Draw from a wheel so that every choice comes up at least once."""
    more = np.zeros(size - choices, np.int64)
    return np.concatenate([np.arange(choices), wheel.spin(random, more, more + choices)])


def _item_lines(random: Random, items: int, line_count: int) -> Integers:
    """Lines of different sizes, from half the mean to twice the mean."""
    mean = items // line_count
    lowest = np.full(line_count, max(1, mean // 2))
    sizes = spread(random, items, lowest, highest=np.full(line_count, 2 * mean + 2))
    return shuffled(random, np.repeat(np.arange(line_count), sizes))


def _bundle_lines(random: Random, bundle_genre: Integers, line_genre: Integers) -> Integers:
    """For each bundle a line of its genre, or none."""
    alike = Wheel(np.ones(len(line_genre)))
    first, last = (np.searchsorted(line_genre, bundle_genre, side) for side in ("left", "right"))
    line = alike.spin(random, first, last)
    return np.where(random.random(len(line)) < _PACK_SHARE, GENRE_PACK, line)


def _user_tastes(random: Random, genre_wheel: Wheel, genre_count: int, users: int) -> tuple[Floats, Floats]:
    item_taste = _favourites(random, genre_wheel, genre_count, users)
    other_taste = _favourites(random, genre_wheel, genre_count, users)
    start = np.zeros(users, np.int64)
    shift = Wheel(_SHIFTS).spin(random, start, start + len(_SHIFTS))[:, None] / (len(_SHIFTS) - 1)
    return item_taste, (1 - shift) * item_taste + shift * other_taste


def _favourites(random: Random, genre_wheel: Wheel, genre_count: int, users: int) -> Floats:
    taste = np.full((users, genre_count), _CURIOSITY / genre_count)
    start = np.zeros(users, np.int64)
    for weight in _FAVOURITES:
        taste[np.arange(users), genre_wheel.spin(random, start, start + genre_count)] += weight
    return taste
