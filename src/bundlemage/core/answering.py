"""From questions to ranked candidates: the one way, for one person and for a million."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bundlemage.core.ranking import Ranker, Ranking, top
from bundlemage.core.shop import Candidates, Recommendation
from bundlemage.models.base import Histories, Model
from bundlemage.models.ragged import Ragged

ROWS_AT_A_TIME = 1024
"""The most questions that are answered in one pass of the model."""
SCORES_AT_A_TIME = 2**21
"""About how many scores are held at once on a CPU: 8 MB, which a cache keeps from pass to pass."""
SCORES_ON_A_GPU = 2**25
FEWEST_ROWS = 32
"""With fewer, a matrix product is slow, however wide."""


@dataclass(frozen=True)
class Questions:
    """A batch of people, each asked about the same candidates."""

    histories: Histories
    contents: Ragged
    """The items of the bundles that histories speak of; the candidates come first."""
    partial: Ragged | None = None
    """Bundles to complete, one for each history; without them, bundles are recommended."""

    def rows(self, index: Tensor) -> Questions:
        """The questions of the chosen people."""
        partial = None if self.partial is None else self.partial.rows(index)
        return Questions(self.histories.rows(index), self.contents, partial)

    @property
    def nothing(self) -> Tensor:
        """True for whoever has neither items nor bundles."""  # [rows] bool
        return (self.histories.items.lengths == 0) & (self.histories.bundles.lengths == 0)


def rows_at_a_time(candidates: int, device: torch.device) -> int:
    """How many rows of scores are handled together, so that memory is bounded whatever the catalogue."""
    room = SCORES_AT_A_TIME if device.type == "cpu" else SCORES_ON_A_GPU
    return max(1, min(ROWS_AT_A_TIME, max(FEWEST_ROWS, room // max(1, candidates))))


class Search(Protocol):
    """Another way to the best bundles than a look at every one."""

    def rank(self, questions: Questions, ranker: Ranker, k: int, include_owned: bool) -> Ranking: ...


def rankings(
    model: Model,
    batches: Iterable[Questions],
    candidates: Candidates,
    k: int,
    *,
    include_owned: bool,
    index: Search | None = None,
) -> Iterator[Ranking]:
    """The k best candidates for each question, batch by batch; without an index, exactly."""
    ranker = candidates.ranker()
    for questions in batches:
        with torch.inference_mode():  # not around the yield: whoever asked may be training something
            if index is None:
                ranking = exact_ranking(model, questions, ranker, k, include_owned)
            else:
                ranking = index.rank(questions, ranker, k, include_owned)
        yield ranking


def exact_ranking(model: Model, questions: Questions, ranker: Ranker, k: int, include_owned: bool) -> Ranking:
    """By the scores of all candidates."""
    histories, contents, partial = questions.histories, questions.contents, questions.partial
    nothing = questions.nothing
    if partial is None:
        scores = model.score_bundles(histories, contents)
        model.checked("score_bundles", scores, len(histories), len(contents))
        # Bundles without a name, which histories brought along, are no candidates.
        scores = scores[:, : len(ranker.shares)]
        return ranker.rank(scores, nothing, [] if include_owned else [histories.bundles], k)
    scores = model.score_items(histories, partial, contents)
    model.checked("score_items", scores, len(histories), len(ranker.shares))
    hide = [partial] if include_owned else [partial, histories.items]
    return ranker.rank(scores, nothing & (partial.lengths == 0), hide, k)


def nearest(
    model: Model, contents: Ragged, vector: Tensor, candidates: Candidates, k: int, but: int | None = None
) -> list[Recommendation]:
    """The k bundles whose vectors point most nearly the same way, without `but`; a score is the cosine."""
    with torch.inference_mode():
        order = F.cosine_similarity(model.vectors_of_bundles(contents), vector) + candidates.hidden
        if but is not None:
            order[but] = -torch.inf
        values, positions = top(order[None], min(k, len(order)))
    found = zip(positions[0].tolist(), values[0].tolist(), strict=True)
    return [
        candidates.answer(position, score, rank, popular=False)
        for rank, (position, score) in enumerate(found, start=1)
        if score > -math.inf
    ]
