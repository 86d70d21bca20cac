"""The order of purchases in time: which of a user's bundles came last, and what came before a moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from bundlemage.data.events import UNDATED, Mask, Times
from bundlemage.errors import ConfigError

ORDERS = ("auto", "random", "time")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Moments:
    """Two moments, in microseconds since 1970. Before the first is training, from the second on the test."""

    validate_from: int
    test_from: int

    def training(self, at: Times) -> Mask:
        """Marks what happened before both moments. What has no time counts as before everything."""
        before: Mask = at < self.validate_from
        return before

    def validation(self, at: Times) -> Mask:
        """Marks what happened between the moments."""
        between: Mask = (at >= self.validate_from) & (at < self.test_from)
        return between

    def test(self, at: Times) -> Mask:
        """Marks what happened from the second moment on."""
        since: Mask = at >= self.test_from
        return since

    def __str__(self) -> str:
        return f"{in_words(self.validate_from)} and {in_words(self.test_from)}"


def microseconds(text: str) -> int:
    """Returns a date or time in ISO form as microseconds since 1970. Without an offset it is in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no date: write it as 2024-05-01 or 2024-05-01T12:00") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return (at - _EPOCH) // timedelta(microseconds=1)


def in_words(at: int) -> str:
    """Returns a moment as a date, or with its time if it is not midnight in UTC."""
    moment = _EPOCH + timedelta(microseconds=at)
    return f"{moment:%Y-%m-%d}" if at % 86_400_000_000 == 0 else f"{moment:%Y-%m-%d %H:%M:%S}"


def moments_of(
    at: Times, test_share: float, validation_share: float, test_from: str | None, validate_from: str | None
) -> Moments:
    """Returns the moments that leave about these shares of the dated purchases for test and validation.

    `at` are the times of the purchases. A moment is the time of a purchase, or the one that the caller names.
    Raises `ConfigError` if no purchase is left for training, validation or test.
    """
    dated = np.sort(at[at != UNDATED])
    times, before = np.unique(dated, return_index=True)  # `before` counts the purchases before each time
    if len(times) < 3:
        raise ConfigError(
            f"the user-bundle pairs have {len(times)} different times, and the protocol 'time' needs three "
            "or more: one each for training, validation and test. Use another protocol, or give finer times"
        )

    def nearest(share: float, first: int, last: int) -> int:
        """The time, of those from `first` to before `last`, that leaves about this share before it."""
        return int(times[first:last][np.abs(before[first:last] - share * len(dated)).argmin()])

    testing = nearest(1 - test_share, 2, len(times)) if test_from is None else microseconds(test_from)
    if validate_from is not None:
        validating = microseconds(validate_from)
    else:
        last = int(np.searchsorted(times, testing))
        trained = np.count_nonzero(dated < testing) / len(dated) - validation_share
        validating = nearest(trained, 1, last) if last > 1 else testing
    moments = Moments(validating, testing)
    for part in ("training", "validation", "test"):
        if not getattr(moments, part)(at).any():
            raise ConfigError(
                f"no purchase is left for {part}: the moments are {moments}, and the purchases are from "
                f"{in_words(int(dated[0]))} to {in_words(int(dated[-1]))}. Choose other moments"
            )
    return moments


def ranks_in_user(
    users: npt.NDArray[np.integer],
    counted: Mask,
    at: Times | None,
    random: np.random.Generator,
) -> npt.NDArray[np.int32]:
    """Returns the rank of each pair among the pairs of its user, the newest first.

    Pairs with equal times, without a time, or without `at` have a random order. Pairs outside the mask
    `counted` rank last. `users` are in ascending order.
    """
    key = np.where(counted, random.random(len(users)), 2.0)
    # The complement of a time is lower for a later one. That of UNDATED is the highest number.
    age = np.zeros(len(users), np.int64) if at is None else np.where(counted, ~at, ~np.int64(UNDATED))
    order = np.lexsort((key, age, users))
    starts = np.searchsorted(users, users)
    rank = np.empty(len(users), np.int32)
    rank[order] = np.arange(len(users)) - starts[order]
    return rank
