"""Shuffled batches over the rows that a phase names."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.models.base import Interactions, Phase


def phase_rows(phase: Phase, data: Interactions) -> Tensor:
    """All rows of one phase, in order, on the data's device."""
    count = {
        "users": len(data.user_bundle),
        "items": data.items,
        "bundles": len(data.bundle_item),
        "user_item": len(data.user_item.values),
        "user_bundle": len(data.user_bundle.values),
        "bundle_item": len(data.bundle_item.values),
    }[phase.over]
    return torch.arange(count, device=data.user_bundle.device)


def shuffled(rows: Tensor, batch_size: int) -> tuple[Tensor, ...]:
    """The rows in a random order, cut into batches. The order is drawn on the CPU: one on every device."""
    order = rows[torch.randperm(len(rows)).to(rows.device)]
    return tuple(order[start : start + batch_size] for start in range(0, len(rows), batch_size))
