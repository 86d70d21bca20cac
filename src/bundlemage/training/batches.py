"""Shuffled batches over the rows that a phase names."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.errors import ConfigError
from bundlemage.models.base import Interactions, Phase


class Rows:
    """All rows of one phase. Their order is drawn on the CPU: one on every device."""

    def __init__(self, phase: Phase, data: Interactions) -> None:
        pairs = {
            "user_item": data.user_item,
            "user_bundle": data.user_bundle,
            "bundle_item": data.bundle_item,
            "completions": data.user_bundle,
        }.get(phase.over)
        self.device = data.user_bundle.device
        self.at_most = phase.at_most
        self.rows: Tensor | None = None  # those that there are, where not all numbers up to a count
        self.groups: Tensor | None = None  # the right side of each
        if pairs is None:
            if phase.at_most is not None:
                raise ConfigError(f"the phase {phase.name!r} is over {phase.over}: at_most is for pairs")
            counts = {"users": len(data.user_bundle), "items": data.items, "bundles": len(data.bundle_item)}
            self.count = counts[phase.over]
        else:
            right = pairs.values.cpu()
            if phase.over == "completions":
                self.rows, right = _completions(data)
            elif phase.over == "user_bundle" and data.held_out is not None and phase.learns_contents:
                self.rows = (~data.held_out.cpu()[right]).nonzero()[:, 0]
                right = right[self.rows]
            self.count = len(right)
            if phase.at_most is not None:
                self.groups = right
                self.count = int(torch.bincount(right).clamp(max=phase.at_most).sum())

        # Memory from which sending does not wait. It was read long ago when the next epoch writes to it.
        self.pinned = (
            torch.empty(self.count, dtype=torch.int64, pin_memory=True)
            if self.device.type == "cuda"
            else None
        )

    def __len__(self) -> int:
        """How many an epoch has."""
        return self.count

    def batch_size(self, most: int, min_steps: int) -> int:
        """At most `most`, and fewer where an epoch would have less than `min_steps` batches."""
        return max(1, min(most, -(-self.count // min_steps)))

    def shuffled(self, batch_size: int) -> tuple[Tensor, ...]:
        order = torch.randperm(self.count if self.groups is None else len(self.groups))
        if self.groups is not None:
            order = order[_early(self.groups[order], self.at_most or 0)]
        if self.rows is not None:
            order = self.rows[order]
        if self.pinned is not None:
            order = self.pinned.copy_(order)
        order = order.to(self.device, non_blocking=True)
        return tuple(order[start : start + batch_size] for start in range(0, self.count, batch_size))


def _completions(data: Interactions) -> tuple[Tensor, Tensor]:
    """The rows of a phase over `completions`, and the bundle of each."""
    bundles, taken = len(data.bundle_item), data.user_bundle.values.cpu()
    allowed = data.bundle_item.lengths.cpu() > 0
    if data.held_out is not None:
        allowed &= ~data.held_out.cpu()
    unbought = allowed & (torch.bincount(taken, minlength=bundles) == 0)
    pairs, alone = allowed[taken].nonzero()[:, 0], unbought.nonzero()[:, 0]
    return torch.cat([pairs, alone + len(taken)]), torch.cat([taken[pairs], alone])


def _early(groups: Tensor, at_most: int) -> Tensor:
    """Marks the first `at_most` of each group."""
    together = torch.argsort(groups, stable=True)
    sizes = torch.bincount(groups)
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    early = torch.empty(len(groups), dtype=torch.bool)
    early[together] = torch.arange(len(groups)) - starts < at_most
    return early
