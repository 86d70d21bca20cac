"""Negatives are things that the row has not, and every such thing comes up."""

from __future__ import annotations

import torch

from bundlemage.models.losses import Negatives
from bundlemage.models.ragged import Ragged


def test_what_a_row_has_is_known() -> None:
    negatives = Negatives(Ragged.from_lists([[3, 0], [], [1]]), 4)
    rows = torch.arange(3)[:, None].expand(3, 4)
    found = negatives.owns(rows, torch.arange(4).expand(3, 4))
    assert found.tolist() == [
        [True, False, False, True],
        [False, False, False, False],
        [False, True, False, False],
    ]


def test_nothing_that_the_row_has_is_drawn_and_everything_else_is() -> None:
    torch.manual_seed(0)
    negatives = Negatives(Ragged.from_lists([[0, 1], [9]]), 10)
    drawn = negatives.draw(torch.tensor([0, 1]), 4000)
    assert drawn.shape == (2, 4000)
    # A draw is repeated a few times and not for ever: one in 0.2⁵ may slip through.
    assert float(torch.isin(drawn[0], torch.tensor([0, 1])).float().mean()) < 0.003
    assert set(range(2, 10)) <= set(drawn[0].tolist())
    assert set(drawn[1].tolist()) == set(range(9))


def test_a_shop_without_pairs_has_negatives_too() -> None:
    drawn = Negatives(Ragged.from_lists([[], []]), 3).draw(torch.tensor([0, 1]), 5)
    assert bool((drawn >= 0).all() and (drawn < 3).all())


def test_entries_and_transposition_tell_the_same_pairs() -> None:
    ragged = Ragged.from_lists([[2, 0], [], [2], [1, 2]])
    rows, values = ragged.entries(torch.arange(5))
    pairs = set(zip(rows.tolist(), values.tolist(), strict=True))
    assert pairs == {(0, 2), (0, 0), (2, 2), (3, 1), (3, 2)}
    turned = ragged.transposed(4)
    assert len(turned) == 4
    back = set(zip(turned.values.tolist(), turned.row_of_entry().tolist(), strict=True))
    assert back == pairs


def test_shares_add_up_to_one_in_each_row() -> None:
    ragged = Ragged.from_lists([[0, 1], [], [2], [0, 1, 2]])
    scores = torch.tensor([0.0, 1.0, 90.0, -100.0, -101.0, -99.0])
    shares = ragged.softmax(scores)
    torch.testing.assert_close(shares[:2], scores[:2].softmax(0))
    assert float(shares[2]) == 1.0
    torch.testing.assert_close(shares[3:], scores[3:].softmax(0))
    table = torch.eye(3)
    torch.testing.assert_close(ragged.weighted_sum_of(table, shares)[3], scores[3:].softmax(0))
