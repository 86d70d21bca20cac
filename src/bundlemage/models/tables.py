"""What a model keeps ready: vectors for scoring, and the graph between items and the bundles of training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.bipartite import Bipartite
from bundlemage.models.ragged import Ragged


class Table:
    """Vectors to be looked up and multiplied with, again and again while no weight changes."""

    def __init__(self, rows: Tensor, cosine: bool) -> None:
        self.rows = rows  # [rows, d]
        self.cosine = cosine

    @cached_property
    def factors(self) -> Tensor:
        """The vectors as scores take them: of length one where scores are cosines."""
        return F.normalize(self.rows, dim=1) if self.cosine else self.rows  # [rows, d]

    @cached_property
    def columns(self) -> Tensor:
        """Laid out so, the product with one vector takes a third of the time on a CPU."""
        return self.factors.T.contiguous()  # [d, rows]

    @cached_property
    def mean(self) -> Tensor:
        return self.factors.mean(0)  # [d]


@dataclass(frozen=True)
class KnownContents:
    """What is in the bundles of training, and for each item whose row is here, the bundles that hold it."""

    whole: Ragged
    graph: Bipartite

    def __deepcopy__(self, memo: object) -> KnownContents:
        return self  # never changed, so a model's copy shares it
