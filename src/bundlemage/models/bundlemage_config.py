"""BundleMage's settings: the paper's, and what makes the model more accurate."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bundlemage.models.config import LearnedConfig, SelectBy
from bundlemage.models.premix import Mixer
from bundlemage.models.space import Between, OneOf, Space


class BundleMageConfig(LearnedConfig):
    """The defaults are the most accurate settings found on validation cases (docs/results.md). The recipe
    `youshu/bundlemage-paper` has the paper's own; its ablations are settings, too."""

    space: ClassVar[Space] = {
        "learning_rate": OneOf(0.001, 0.002, 0.004),
        "embedding_dim": OneOf(128, 200, 400),
        "shared_fraction": OneOf(0.3, 0.5, 0.7),
        "temperature": Between(0.15, 0.3),
        "generation_temperature": Between(0.06, 0.2),
        "generation_weight": OneOf(0.1, 0.2, 0.3, 0.5, 1.0),
        "mask_bundles": OneOf(0.3, 0.5, 0.7, 0.8),
        "mask_items": OneOf(0.3, 0.5, 0.7),
        "item_dropout": OneOf(0.0, 0.2, 0.4, 0.6),
        "dropout": OneOf(0.0, 0.1, 0.3, 0.5),
        "initial_spread": OneOf(0.01, 0.03, 0.06, 0.1),
    }

    # ── Training ──
    epochs: int = Field(60, ge=1)
    """The most passes over the training data."""
    patience: int = Field(12, ge=1)
    """Stop after this many epochs without a better value on validation."""
    select_by: SelectBy = "both"
    """Which task's validation cases choose the epoch that is kept: `matching` and `generation` by their
    nDCG@5, `both` by the mean of the two relative to popularity. For generation some bundles of the training
    data are held out."""
    batch_size: int = Field(1024, ge=1)
    """The most users, or (user, bundle) pairs, per step."""
    min_steps: int = Field(8, ge=1)
    """The fewest steps of a phase in an epoch: a small shop gets smaller batches."""
    learning_rate: float = Field(0.004, gt=0)
    """Adam's step size. The paper's is 0.001."""
    weight_average: float = Field(0.99, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, which is then what is used; 0 for none."""

    # ── The paper's model ──
    embedding_dim: int = Field(400, ge=2, multiple_of=2)
    """d, the length of every vector; even, as it is halved inside. The paper's is 200."""
    shared_fraction: float = Field(0.7, ge=0, le=1)
    """How much of an item's two embeddings is one and the same; 0 is the ablation -Sep, 1 is -Sha.
    The paper's is 0.5."""
    mixer: Mixer = "gate"
    """How item and bundle history are mixed; `average` is the ablation -Avg."""
    tasks: Literal["both", "matching", "generation"] = "both"
    """What is learned; `matching` is the ablation -Lgen, `generation` is -Lmat."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the user's vector z_u and on the pair's vector z_b^(u). The paper's is 0.3."""
    mask_bundles: float = Field(0.7, ge=0, le=1)
    """ρ, how much of a user's bundles is hidden while they are being predicted. The paper's is 0.5."""
    mask_items: float = Field(0.5, ge=0, le=1)
    """ψ, how much of a bundle's items is hidden while they are being predicted."""
    masking: Literal["row", "batch"] = "batch"
    """`row` hides that share of every user and bundle, as the paper says; `batch` hides that share of
    a batch's entries wherever they fall, as the program behind the paper's tables did."""
    loss_weighting: Literal["sum", "mean"] = "sum"
    """`mean` divides by the number of a user's bundles and a bundle's items, as the equations do;
    `sum` does not, as the program behind the paper's tables did, and measures better."""
    hide_target: bool = True
    """Whether the bundle that is being completed is left out of its owner's history meanwhile, as a bundle
    that does not exist yet will be. The program behind the paper's tables left it in; hidden measures better.
    """

    # ── How scores are formed ──
    scores: Literal["cosine", "dot"] = "cosine"
    """`cosine` compares directions alone and divides by a temperature; `dot` is the paper's inner product."""
    temperature: float = Field(0.2, gt=0)
    """What cosines are divided by in matching. A lower one tells apart more sharply."""
    generation_temperature: float = Field(0.085, gt=0)
    """The same in generation."""
    learn_temperature: bool = False
    """Whether the two temperatures are learned, from these values on."""
    residual: bool = True
    """Whether a feed-forward layer's input is added to its output. The paper's layers have no such path."""
    pair_mixer: Literal["gate", "join"] = "gate"
    """How user and incomplete bundle become one vector: `gate` weighs them in each dimension, as user's items
    and bundles are weighed; `join` is the paper's z_b^(u), each projected to half the length and joined."""
    popularity_weight: float = Field(1.0, ge=0)
    """Times log(1 + sales) of a bundle, added to its score for everyone; 0 for none, as in the paper."""
    item_popularity_weight: float = Field(0.5, ge=0)
    """The same of an item in generation, times log(1 + bundles that hold it)."""
    fit_popularity: bool = True
    """Whether these two are multiplied by the weight, from 0 to 1, under which the training data is most
    likely by popularity alone: about 1 where good sellers go on selling, 0 where every bundle is bought once.
    """
    new_bundle_credit: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["fit", "median"] = "fit"
    """How many sales a bundle that came after training is credited with. `fit` finds the number that ranks
    new bundles best and costs the known ones little, by holding bundles out of the training data; `median`
    takes each for a bundle like the median."""
    initial_spread: float = Field(0.06, ge=0)
    """Standard deviation of the first item vectors; 0 for Xavier's, as in the program behind the paper."""
    propagation: int = Field(0, ge=0)
    """How often each item's matching vector takes up the mean of the bundles that hold it."""

    # ── What is learned from ──
    generation_weight: float = Field(0.2, gt=0)
    """Times the generation loss. The paper's is 1."""
    item_dropout: float = Field(0.4, ge=0, lt=1)
    """How much of a user's items is hidden in each training step."""
    pairs_per_bundle: int = Field(2, ge=0)
    """How many of a bundle's users it is completed for in an epoch, drawn anew each time; 0 for all."""
    every_bundle: bool = True
    """Whether generation also learns from bundles that nobody has bought: they are completed for someone
    without a history."""
    sampled_softmax: int = Field(0, ge=0)
    """How many items, or bundles, a step compares the right ones with, drawn by popularity; 0 for all. It is
    for catalogues beyond a million items: a step then touches, and remembers, only the rows it needs."""
