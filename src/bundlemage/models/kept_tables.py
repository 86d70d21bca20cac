"""Tables of vectors that a model keeps for scoring."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch.nn.functional as F
from torch import Tensor

from bundlemage.models.base import Model, Sizes
from bundlemage.models.config import ModelConfig


class VectorTable:
    """Vectors for scoring, in the layouts that products need."""

    def __init__(self, rows: Tensor, cosine: bool) -> None:
        self.rows = rows  # [rows, d]
        self.cosine = cosine

    @cached_property
    def factors(self) -> Tensor:
        """The vectors as used in scores: scaled to length one if scores are cosines."""
        return F.normalize(self.rows, dim=1) if self.cosine else self.rows  # [rows, d]

    @cached_property
    def columns(self) -> Tensor:
        """`factors`, transposed. Products with one vector take a third of the time on a CPU."""
        return self.factors.T.contiguous()  # [d, rows]

    @cached_property
    def mean(self) -> Tensor:
        return self.factors.mean(0)  # [d]


class KeptTables(Model):
    """A model that caches tables. It drops them when weights may change: by training, moving and loading.

    Several threads may use a model: a table never changes, it is only replaced by another one.
    """

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self._tables: dict[str, tuple[object, VectorTable]] = {}
        self.register_load_state_dict_post_hook(KeptTables.forget_tables)  # type: ignore[no-untyped-call]

    @property
    @abstractmethod
    def cosine(self) -> bool:
        """Whether scores are cosines."""

    def kept(self, name: str, of: object) -> VectorTable | None:
        """The table of this name, if it was built from the same object."""
        entry = self._tables.get(name)
        return entry[1] if entry is not None and entry[0] is of else None

    def table(self, name: str, of: object, rows: Callable[[], Tensor]) -> VectorTable:
        """Returns the cached table of this name for the object `of`, or builds it from `rows()`."""
        table = None if self.training else self.kept(name, of)
        if table is None:
            table = VectorTable(rows(), self.cosine)
            self._tables[name] = (of, table)
        return table

    def train(self, mode: bool = True) -> Self:
        self.forget_tables()
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:  # moving or casting the weights
        self.forget_tables()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def forget_tables(self, *_: object) -> None:
        """Drops all tables. (A tensor's version cannot show a change: fused Adam does not increase it.)"""
        self._tables = {}
