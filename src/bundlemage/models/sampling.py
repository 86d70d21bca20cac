"""Things that a row has not: negatives for losses that compare one thing with another."""

from __future__ import annotations

import torch
from torch import Tensor

from bundlemage.models.ragged import Ragged

ROUNDS = 4
"""How often something that the row has is drawn again. What is left after that is (share of all things that
the row has)⁵ of the draws: nothing for the usual row of a shop, a third for one that has 80% of all."""


class Negatives:
    """Draws uniformly among `columns` things, all but those that a row of `owned` has."""

    def __init__(self, owned: Ragged, columns: int) -> None:
        self.columns = columns
        self.keys = (owned.row_of_entry() * columns + owned.values).sort().values  # [entries]

    def owns(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Whether the row has the column, elementwise."""
        if not len(self.keys):
            return torch.zeros_like(rows + columns, dtype=torch.bool)
        wanted = rows * self.columns + columns
        place = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        return self.keys[place] == wanted

    def draw(self, rows: Tensor, count: int = 1) -> Tensor:
        """`count` for each row, without a wait for the device."""  # [rows, count]
        shape = (len(rows), count)
        drawn = torch.randint(self.columns, shape, device=rows.device)
        for _ in range(ROUNDS):
            again = torch.randint(self.columns, shape, device=rows.device)
            drawn = torch.where(self.owns(rows[:, None], drawn), again, drawn)
        return drawn
