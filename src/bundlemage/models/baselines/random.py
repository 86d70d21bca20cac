"""Chance: another order for each user, which is the same every time."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.models.base import Completer, Histories, Matcher, Sizes
from bundlemage.models.closed_form import blocks
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Ragged

# Three odd 64-bit constants with no pattern in their bits, as signed numbers.
_STEP, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
_BITS = 24
"""As many as a float32 holds exactly."""
_FINER = 64
"""How many times smaller a block is than usual: one that fits a cache is mixed several times faster."""


class Random(Matcher, Completer):
    """Scores by a hash of the seed, the user's history, and the bundle or item. Nothing is drawn."""

    name = "random"
    title = "Random"

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.seed = self.new_buffer("seed", torch.tensor([config.seed], dtype=torch.int64))

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        return _scores(self._user(histories), len(contents))

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        return _scores(_mix(self._user(histories) + _set_hash(partial, 3)), self.sizes.items)

    def _user(self, histories: Histories) -> Tensor:
        """A hash of each user's history."""  # [rows]
        owned = _set_hash(histories.items, 1) + _set_hash(histories.bundles, 2)
        return _mix(owned + _mix(self.seed))


def _mix(numbers: Tensor) -> Tensor:
    """64-bit numbers in which every bit depends on every bit of `numbers`. The overflow is intended."""
    numbers = numbers + _STEP
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        numbers = (numbers ^ _shifted(numbers, shift)) * factor
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """A shift to the right with zeros from the left, though the numbers have a sign."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)


def _set_hash(rows: Ragged, kind: int) -> Tensor:
    """The same for the same members in any order."""  # [rows]
    hashed = _mix(rows.values * 4 + kind)
    return hashed.new_zeros(len(rows)).index_add_(0, rows.row_of_entry(), hashed)


def _scores(user: Tensor, columns: int) -> Tensor:
    """Evenly spread from 0 to 1."""  # [rows, columns]
    thing = _mix(torch.arange(columns, device=user.device))
    scores = torch.empty(len(user), columns, device=user.device)
    for which in blocks(len(user), columns * _FINER):
        mixed = _mix(user[which, None] + thing)
        scores[which] = _shifted(mixed, 64 - _BITS).float() / 2**_BITS
    return scores
