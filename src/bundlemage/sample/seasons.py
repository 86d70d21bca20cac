"""Two years of a generated shop: tastes that drift, bundles that come and go, and themes with a season.

The shop's time is divided into months of about 30 days. All weights are whole numbers, as in `generate`.
"""

from __future__ import annotations

import numpy as np

from bundlemage.data.events import DAY, Times
from bundlemage.sample.words import Integers, Random, pick, shuffled

MONTHS = 24
_START = 19_358
"""The first day, 2023-01-01, in days since 1970."""
_DAYS = 731
"""The days of 2023 and 2024."""
_STAGE = 8
"""A user likes a theme for this many months, and then another one."""
_OLD_SHARE = 0.3
"""The share of the bundles that are older than the shop's data."""
_OF_A_MONTH = 1_000_000_000
"""A user's weights of a month sum to about this number."""


def drifting_taste(random: Random, users: int, themes: int) -> Integers:
    """Returns the weight of each theme for each user and month, [users, months, themes].

    A user has a favourite theme for some months, while the liking for the next one grows. The themes of a
    user follow each other at random. All themes have a small weight in addition.
    """
    stages = MONTHS // _STAGE + 2
    steps = 1 + pick(random, themes - 1, users * stages).reshape(users, stages)  # the next theme is another
    favourites = (pick(random, themes, users)[:, None] + np.cumsum(steps, axis=1)) % themes
    passed = np.arange(MONTHS) + pick(random, _STAGE, users)[:, None]  # [users, months]
    stage, month = np.divmod(passed, _STAGE)
    taste: Integers = np.full((users, MONTHS, themes), _STAGE, np.int64)
    rows, columns = np.arange(users)[:, None], np.arange(MONTHS)
    for theme, weight in (
        (np.take_along_axis(favourites, stage, axis=1), _STAGE - month),
        (np.take_along_axis(favourites, stage + 1, axis=1), month),
    ):
        taste[rows, columns, theme] += 9 * themes * weight
    return taste


def life_cycles(random: Random, theme: Integers, popular: Integers) -> Integers:
    """Returns the weight of each bundle in each month, [bundles, months].

    Most bundles appear in the course of the two years. A new bundle sells best, and each later month less. A
    theme sells three times better in one month of the year, and somewhat better around it. `popular` are the
    weights of the bundles apart from that.
    """
    bundles = len(theme)
    old = shuffled(random, np.arange(bundles)) < bundles * _OLD_SHARE
    begins = np.where(old, -pick(random, 12, bundles), pick(random, MONTHS, bundles))
    age = np.arange(MONTHS) - begins[:, None]
    life = np.where(age < 0, 0, 360 // (3 + np.maximum(age, 0)))
    peak = pick(random, 12, int(theme.max()) + 1)[theme]
    apart = np.abs((np.arange(MONTHS) - peak[:, None] + 6) % 12 - 6)
    season = 2 + np.maximum(4 - 2 * apart, 0)
    weights: Integers = (popular[:, None] // 1000 + 1) * life * season
    return weights


def monthly_weights(taste: Integers, of_things: Integers) -> Integers:
    """Returns the weight of each user, thing and month. Each month has the same weight for a user.

    `taste` is [users, months, things], `of_things` is [things, months].
    """
    weights = taste.transpose(0, 2, 1) * of_things
    shares: Integers = weights * _OF_A_MONTH // weights.sum(axis=1, keepdims=True)
    return shares


def drawn_months(random: Random, weights: Integers) -> Integers:
    """Draw a month for each row of `weights`, [pairs, months], in proportion to its weights."""
    ends = np.cumsum(weights, axis=1)
    target = (random.random(len(ends)) * ends[:, -1]).astype(np.int64)
    months: Integers = (ends <= target[:, None]).sum(axis=1)
    return months


def times_in(random: Random, months: Integers) -> Times:
    """Draw a second of each of these months."""
    first, last = (_DAYS * 86_400 * each // MONTHS for each in (months, months + 1))
    seconds = first + (random.random(len(months)) * (last - first)).astype(np.int64)
    at: Times = _START * DAY + seconds * 1_000_000
    return at
