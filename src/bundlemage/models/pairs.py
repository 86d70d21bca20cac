"""Base classes of models that compare items or bundles that a user has with drawn negatives."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Interactions, Learner, Matcher, Phase
from bundlemage.models.config import LearnedConfig, OneOf
from bundlemage.models.losses import Negatives

ITEMS = Phase("items", over="user_item")
BUNDLES = Phase("bundles", over="user_bundle")
PAIRS = Phase("pairs", over="user_bundle")


class PairsConfig(LearnedConfig):
    """The settings of models that learn from pairs."""

    space = LearnedConfig.space | {"embedding_dim": OneOf(64, 128, 200)}

    embedding_dim: int = Field(200, ge=1)
    """The length of every vector."""
    negatives: int = Field(1, ge=1)
    """The number of negatives that are drawn for each item or bundle of a user in an epoch."""


class PairsModel(Matcher, Learner):
    """A model with a vector for each training user. It learns from pairs of a user and an item or bundle."""

    knows_new_users = False
    config: PairsConfig

    def observe(self, data: Interactions) -> None:
        self.negatives = {
            over: Negatives(data.user_item, self.sizes.items)
            if over == "user_item"
            else Negatives(data.user_bundle, self.sizes.bundles)
            for over in {phase.over for phase in self.phases} & {"user_item", "user_bundle"}
        }

    def choices(self, phase: Phase, pairs: Tensor, data: Interactions) -> tuple[Tensor, Tensor]:
        """Returns the users of pairs, and for each the item or bundle taken, then its negatives."""
        matrix = data.user_item if phase.over == "user_item" else data.user_bundle
        users, taken = matrix.entries(pairs)
        drawn = self.negatives[phase.over].draw(users, self.config.negatives)
        return users, torch.cat([taken[:, None], drawn], dim=1)  # [pairs], [pairs, 1 + negatives]


def random_vectors(count: int, dim: int, spread: float) -> nn.Parameter:
    """A table of vectors from a normal distribution with standard deviation `spread`."""
    return nn.Parameter(torch.randn(count, dim) * spread)
