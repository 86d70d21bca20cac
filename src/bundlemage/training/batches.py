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
        }.get(phase.over)
        self.device = data.user_bundle.device
        self.count = (
            len(pairs.values)
            if pairs is not None
            else {"users": len(data.user_bundle), "items": data.items, "bundles": len(data.bundle_item)}[
                phase.over
            ]
        )
        self.at_most = phase.at_most
        self.groups: Tensor | None = None
        if phase.at_most is not None:
            if pairs is None:
                raise ConfigError(f"the phase {phase.name!r} is over {phase.over}: at_most is for pairs")
            self.groups = pairs.values.cpu()
            self.count = int(torch.bincount(self.groups).clamp(max=phase.at_most).sum())

        # Memory from which sending does not wait. It was read long ago when the next epoch writes to it.
        self.pinned = (
            torch.empty(self.count, dtype=torch.int64, pin_memory=True)
            if self.device.type == "cuda"
            else None
        )

    def __len__(self) -> int:
        """How many an epoch has."""
        return self.count

    def shuffled(self, batch_size: int) -> tuple[Tensor, ...]:
        order = torch.randperm(self.count if self.groups is None else len(self.groups))
        if self.groups is not None:
            order = order[_early(self.groups[order], self.at_most or 0)]
        if self.pinned is not None:
            order = self.pinned.copy_(order)
        order = order.to(self.device, non_blocking=True)
        return tuple(order[start : start + batch_size] for start in range(0, self.count, batch_size))


def _early(groups: Tensor, at_most: int) -> Tensor:
    """Marks the first `at_most` of each group."""
    together = torch.argsort(groups, stable=True)
    sizes = torch.bincount(groups)
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    early = torch.empty(len(groups), dtype=torch.bool)
    early[together] = torch.arange(len(groups)) - starts < at_most
    return early
