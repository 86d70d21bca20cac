"""Segments: a part of the users, by what they own, by how much they own, or by their ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bundlemage.core.filters import Mask, Shelf
from bundlemage.errors import ConfigError
from bundlemage.models.base import Histories
from bundlemage.models.ragged import Ragged

NUMBERS = ("least_items", "most_items", "least_bundles", "most_bundles")


@dataclass(frozen=True)
class Segment:
    """Conditions on users. A user is in the segment if all conditions are met.

    Only items and bundles that the model knows count. There is no table of users, so there are no conditions
    on properties such as a user's country: list the ids of such users in `users`.
    """

    tag: str | None = None
    """Only users who own an item with this tag, alone or in a bundle."""
    least_items: int | None = None
    """Only users with at least this many items of their own. Items in bundles do not count."""
    most_items: int | None = None
    least_bundles: int | None = None
    """Only users with at least this many bundles."""
    most_bundles: int | None = None
    users: Collection[str | int] | None = None
    """Only users with these ids. Ids of users without a history are ignored."""

    def __post_init__(self) -> None:
        if isinstance(self.users, str):
            raise ConfigError(f"a segment's 'users' is a list, not a string: write [{self.users!r}]")
        if self.users is not None:
            if not isinstance(self.users, Iterable):
                raise ConfigError(f"a segment's 'users' is {self.users!r}; expected a list of ids")
            object.__setattr__(self, "users", frozenset(map(str, self.users)))
        if self.tag is not None and not isinstance(self.tag, str):
            raise ConfigError(f"a segment's 'tag' is {self.tag!r}; expected one tag, as text")
        for name in NUMBERS:
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
                raise ConfigError(f"a segment's {name!r} is {number!r}; expected a whole number from 0 up")
        for least, most in (NUMBERS[:2], NUMBERS[2:]):
            low, high = getattr(self, least), getattr(self, most)
            if low is not None and high is not None and low > high:
                raise ConfigError(
                    f"a segment's {least!r} {low} is above its {most!r} {high}: no user is in it"
                )
        if self.tag is None and self.users is None and all(getattr(self, name) is None for name in NUMBERS):
            raise ConfigError(
                f"the segment has no condition; give at least one of: tag, {', '.join(NUMBERS)}, users"
            )


class SegmentTest:
    """Tests which users of a shop are in a segment."""

    def __init__(self, segment: Segment, items: Shelf, contents: Ragged) -> None:
        """`items` is the shelf of the shop's items, `contents` the items of its bundles. Raises `ConfigError`
        if no item has the tag."""
        if not isinstance(segment, Segment):
            raise ConfigError(f"give a segment such as Segment(tag='Horror'), not {segment!r}")
        self.segment = segment
        self.unseen = set(map(str, segment.users or ()))
        """The users that the segment lists and that were not among those tested."""
        self._tagged: tuple[Tensor, Tensor] | None = None
        if segment.tag is None:
            return
        places = items.tagged.get(segment.tag)
        if places is None or not len(places):
            raise ConfigError(f"no user is in the segment: {items.no_such_tag(segment.tag)}")
        tagged = torch.zeros(len(items.ids), dtype=torch.bool, device=contents.device)
        tagged[torch.from_numpy(np.asarray(places, dtype=np.int64)).to(contents.device)] = True
        self._tagged = tagged, _any_of(contents, tagged)

    def __call__(self, ids: Sequence[str], histories: Histories) -> Mask:
        """True for each user who is in the segment."""
        segment, items, bundles = self.segment, histories.items.strong, histories.bundles.strong
        inside = torch.ones(len(histories), dtype=torch.bool, device=items.device)
        for rows, least, most in (
            (items, segment.least_items, segment.most_items),
            (bundles, segment.least_bundles, segment.most_bundles),
        ):
            if least is not None:
                inside &= rows.lengths >= least
            if most is not None:
                inside &= rows.lengths <= most
        if self._tagged is not None:
            of_items, of_bundles = self._tagged
            inside &= _any_of(items, of_items) | _any_of(bundles, of_bundles)
        mask: Mask = inside.cpu().numpy()
        if segment.users is not None:
            listed = segment.users
            is_listed = np.fromiter((name in listed for name in ids), bool, len(ids))
            self.unseen.difference_update(ids)
            mask = mask & is_listed
        return mask


def _any_of(rows: Ragged, marked: Tensor) -> Tensor:
    """True for each row that has a marked value."""  # [rows] bool
    found = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    found[rows.row_of_entry()[marked[rows.values]]] = True
    return found
