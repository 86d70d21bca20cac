"""Settings of models. Each is written once, with its type, bounds and meaning, and an unknown one is refused.

A config class also declares its `space`: the values among which `bundlemage tune` searches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bundlemage.errors import ConfigError

SelectBy = Literal["matching", "generation", "both"]
Mixer = Literal["gate", "average"]
Choice = str | int | float | bool


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`, both included. If both are whole, whole numbers only."""

    low: float
    high: float
    log: bool = False
    """Whether the scale is logarithmic."""

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"{self}: the first number must be less than the second")
        if self.log and self.low <= 0:
            raise ConfigError(f"{self}: a logarithmic range begins above 0")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def middle(self) -> Choice:
        middle = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
        return int(middle) if self.whole else middle

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (not self.whole or value == int(value))

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + ",log" * self.log

    def to_json(self) -> dict[str, Any]:
        return {"between": [self.low, self.high], "log": self.log}


@dataclass(frozen=True, init=False)
class OneOf:
    """One of some values. They need not be numbers."""

    choices: tuple[Choice, ...]

    def __init__(self, *choices: Choice) -> None:
        if len({repr(choice) for choice in choices}) < max(2, len(choices)):
            shown = ",".join(map(str, choices)) or "nothing"
            raise ConfigError(f"{shown}: name two or more values, each once, or a range such as 0.1..0.4")
        object.__setattr__(self, "choices", choices)

    @property
    def middle(self) -> Choice:
        return self.choices[len(self.choices) // 2]

    def __contains__(self, value: object) -> bool:
        return any(value == choice and type(value) is type(choice) for choice in self.choices)

    def __str__(self) -> str:
        return ",".join(
            str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in self.choices
        )

    def to_json(self) -> dict[str, Any]:
        return {"one_of": list(self.choices)}


Domain = Between | OneOf
Space = dict[str, Domain]
"""Setting → the values that it may have."""


class ModelConfig(BaseModel):
    """The settings of every model."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    space: ClassVar[Space] = {}
    """What `bundlemage tune` searches by default: the settings that matter most, each with its default among
    the values."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """A setting that a subclass only gives another default keeps its description."""
        for name, field in cls.model_fields.items():
            if field.description is None:
                bases = (base for base in cls.__mro__[1:] if issubclass(base, ModelConfig))
                described = (
                    base.model_fields[name].description for base in bases if name in base.model_fields
                )
                field.description = next(described, None)

    seed: int = Field(0, ge=0, lt=2**32)
    """Decides everything that is random: first weights, order of batches, masks, dropout."""
    device: str = "auto"
    """`auto` (CUDA, then MPS, then CPU), or a name such as `cpu`, `cuda`, `cuda:1`, `mps`."""


class LearnedConfig(ModelConfig):
    """The settings of every model that learns by gradient steps."""

    space = {
        "learning_rate": Between(0.0003, 0.03, log=True),
        "weight_decay": OneOf(0.0, 0.000001, 0.00001, 0.0001),
        "batch_size": OneOf(250, 500, 1000, 2000),
    }

    epochs: int = Field(200, ge=1)
    """The most passes over the training data."""
    patience: int = Field(50, ge=1)
    """Stop after this many epochs without a better value on validation. In a small shop an epoch has few
    steps, so the first dozens of epochs may show no progress."""
    select_by: SelectBy = "matching"
    """The task whose validation cases choose the epoch that is kept."""
    batch_size: int = Field(2000, ge=1)
    """The most users, or (user, bundle) pairs, per step."""
    min_steps: int = Field(1, ge=1)
    """The fewest steps of a phase in an epoch. In a small shop batches get smaller for it."""
    learning_rate: float = Field(0.001, gt=0)
    """Adam's step size."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Whether the step size is constant, or falls along a half cosine to 0 at the last of `epochs`."""
    weight_decay: float = Field(0.00001, ge=0)
    """Added to the gradient as weight_decay × weight."""
    weight_average: float = Field(0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights. The average is then used; 0 for none."""


class BundleMageConfig(LearnedConfig):
    """The defaults are the most accurate settings found on validation cases (docs/results.md). The recipe
    `youshu/bundlemage-paper` has the paper's own settings. The paper's ablations are settings, too."""

    space = {
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
    patience: int = Field(12, ge=1)
    select_by: SelectBy = "both"
    """The task whose validation cases choose the epoch that is kept: `matching` or `generation` by nDCG@5,
    `both` by the mean of the two relative to popularity. For generation some bundles are held out."""
    batch_size: int = Field(1024, ge=1)
    min_steps: int = Field(8, ge=1)
    learning_rate: float = Field(0.004, gt=0)
    """Adam's step size. The paper's is 0.001."""
    weight_average: float = Field(0.99, ge=0, lt=1)

    # ── The paper's model ──
    embedding_dim: int = Field(400, ge=2, multiple_of=2)
    """d, the length of every vector. It is even, because layers halve it. The paper's is 200."""
    shared_fraction: float = Field(0.7, ge=0, le=1)
    """The share of an item's two embeddings that is the same in both; 0 is the ablation -Sep, 1 is -Sha.
    The paper's is 0.5."""
    mixer: Mixer = "gate"
    """How item and bundle history are mixed; `average` is the ablation -Avg."""
    tasks: Literal["both", "matching", "generation"] = "both"
    """The tasks that are learned; `matching` is the ablation -Lgen, `generation` is -Lmat."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """The dropout rate on the user's vector z_u and on the pair's vector z_b^(u). The paper's is 0.3."""
    mask_bundles: float = Field(0.7, ge=0, le=1)
    """ρ, the share of a user's bundles that is hidden while they are predicted. The paper's is 0.5."""
    mask_items: float = Field(0.5, ge=0, le=1)
    """ψ, the share of a bundle's items that is hidden while they are predicted."""
    masking: Literal["row", "batch"] = "batch"
    """`row` hides that share of every user and bundle, as the paper says; `batch` hides that share of
    a batch's entries wherever they fall, as the program behind the paper's tables did."""
    loss_weighting: Literal["sum", "mean"] = "sum"
    """`mean` divides by the number of a user's bundles and a bundle's items, as the equations do;
    `sum` does not, as the program behind the paper's tables did, and measures better."""
    hide_target: bool = True
    """Whether a bundle is left out of its owner's history while it is completed, because a bundle that does
    not exist yet is in no history. The program behind the paper's tables left it in; hiding measures better.
    """

    # ── How scores are formed ──
    scores: Literal["cosine", "dot"] = "cosine"
    """`cosine` compares directions and divides by a temperature; `dot` is the paper's inner product."""
    temperature: float = Field(0.2, gt=0)
    """The divisor of cosines in matching. A lower one separates candidates more sharply."""
    generation_temperature: float = Field(0.085, gt=0)
    """The divisor of cosines in generation."""
    learn_temperature: bool = False
    """Whether the two temperatures are learned, starting from these values."""
    residual: bool = True
    """Whether a feed-forward layer's input is added to its output. The paper's layers have no such path."""
    pair_mixer: Literal["gate", "join"] = "gate"
    """How user and incomplete bundle become one vector: `gate` weighs them in each dimension, as it weighs a
    user's items and bundles; `join` is the paper's z_b^(u), each projected to half the length and joined."""
    popularity_weight: float = Field(1.0, ge=0)
    """The weight of log(1 + sales) in a bundle's score; 0 for none, as in the paper."""
    item_popularity_weight: float = Field(0.5, ge=0)
    """The weight of log(1 + bundles that hold the item) in an item's score."""
    fit_popularity: bool = True
    """Whether these two are multiplied by the weight, from 0 to 1, that makes the training data most likely
    by popularity alone: about 1 where popular bundles keep selling, 0 where every bundle is bought once."""
    new_bundle_credit: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["fit", "median"] = "fit"
    """The number of sales that a bundle is credited with if it came after training. `fit` holds bundles out
    and finds the number that ranks new bundles best at little cost to known ones; `median` is the median of
    all bundles' sales."""
    initial_spread: float = Field(0.06, ge=0)
    """Standard deviation of the first item vectors; 0 for Xavier's, as in the program behind the paper."""
    propagation: int = Field(0, ge=0)
    """How often the mean of an item's bundles is added to the item's matching vector."""

    # ── What is learned from ──
    generation_weight: float = Field(0.2, gt=0)
    """The weight of the generation loss. The paper's is 1."""
    item_dropout: float = Field(0.4, ge=0, lt=1)
    """The share of a user's items that is hidden in each training step."""
    pairs_per_bundle: int = Field(2, ge=0)
    """For how many of its users a bundle is completed in an epoch, drawn anew each time; 0 for all."""
    every_bundle: bool = True
    """Whether generation also learns from bundles without a buyer. They are completed for a user without a
    history."""
    sampled_softmax: int = Field(0, ge=0)
    """The number of items, or bundles, that a step draws by popularity to compare the right ones with; 0 for
    all. It is for catalogues beyond a million items: a step then touches only the rows that it needs."""

    def model_post_init(self, _: Any) -> None:
        if self.propagation and self.sampled_softmax:
            raise ConfigError(
                "propagation walks over all bundles in each step, which sampled_softmax is meant to avoid: "
                "set one of them to 0"
            )


Config = TypeVar("Config", bound=BaseModel)


def parse_config(config_class: type[Config], settings: Mapping[str, Any]) -> Config:
    """Makes a config of settings. Raises one ConfigError that names every wrong setting."""
    try:
        return config_class(**settings)
    except ValidationError as error:
        known = config_class.model_fields
        lines = []
        for fault in error.errors():
            key = ".".join(map(str, fault["loc"]))
            if fault["type"] == "extra_forbidden":
                lines.append(f"unknown setting {key!r}; the settings are: {', '.join(sorted(known))}")
            else:
                lines.append(f"setting {key!r} is {fault['input']!r}: {fault['msg'].lower()}")
        raise ConfigError("; ".join(lines)) from None
