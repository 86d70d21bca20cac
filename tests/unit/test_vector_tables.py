"""A table of bundle vectors that differs from another one in some rows gives what a whole table gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bundlemage.models.bundlemage import ChangedTable, VectorTable, table_after
from bundlemage.models.ragged import Contents, Ragged

ITEMS = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
STAMPS = st.lists(st.sampled_from([0] * 8 + [1, 2]), min_size=16, max_size=20)
"""The items of row n follow from n and its stamp. 0 is the usual stamp, so that few rows differ."""


def contents(stamps: list[int]) -> Contents:
    rows = [[(7 * row + 11 * stamp + step) % 30 for step in range(3)] for row, stamp in enumerate(stamps)]
    plain = Ragged.from_lists(rows)
    unknown = torch.full((len(rows),), torch.nan)
    return Contents(plain.values, plain.offsets, unknown, torch.tensor(stamps))


@settings(max_examples=60, deadline=None)
@given(st.lists(STAMPS, min_size=2, max_size=5), st.booleans())
def test_every_method_is_that_of_a_whole_table(history: list[list[int]], cosine: bool) -> None:
    embedded: list[int] = []

    def embed(rows: Ragged) -> Tensor:
        embedded.append(len(rows))
        return rows.mean_of(ITEMS)

    first = contents(history[0])
    table = VectorTable(embed(first), cosine, first.stamps)
    before = history[0]
    for stamps in history[1:]:
        now = contents(stamps)
        embedded.clear()
        after = table_after(table, now, embed)
        whole = VectorTable(now.mean_of(ITEMS), cosine)
        if after is None:
            after = VectorTable(whole.rows, cosine, now.stamps)
        else:
            different = [row for row, stamp in enumerate(stamps) if before[row : row + 1] != [stamp]]
            assert sum(embedded) <= len(different)
            assert isinstance(after, ChangedTable)
        table, before = after, stamps
        z, bias = torch.randn(3, 8), torch.randn(len(stamps))
        some = torch.randint(len(stamps), (6,))
        bundles = Ragged(some, torch.tensor([0, 2, 2, 6]))
        for mine, theirs in (
            (after.scores(z, bias), whole.scores(z, bias)),
            (after.scores(z, None), whole.scores(z, None)),
            (after.rows_at(some), whole.rows[some]),
            (after.mean_of(bundles), whole.mean_of(bundles)),
            (after.mean, whole.mean),
            (after.rows, whole.rows),
            (after.columns, whole.columns),
        ):
            assert mine == pytest.approx(theirs, abs=1e-5)


def test_contents_that_are_quite_different_get_a_table_of_their_own() -> None:
    first = contents([0] * 20)
    table = VectorTable(first.mean_of(ITEMS), True, first.stamps)
    assert table_after(table, contents([1] * 5 + [0] * 15), lambda rows: rows.mean_of(ITEMS)) is not None
    assert table_after(table, contents([1] * 6 + [0] * 14), lambda rows: rows.mean_of(ITEMS)) is None
