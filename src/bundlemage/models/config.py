"""Settings of models: their types, bounds and meaning. An unknown setting is an error.

A config class also declares its `space`: the values that `bundlemage tune` tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bundlemage.errors import ConfigError, fault_in_words, in_short

SelectBy = Literal["matching", "generation", "both"]
Mixer = Literal["gate", "average"]
Choice = str | int | float | bool


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`, both included. If both are ints, only whole numbers."""

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
    """One of the listed values. They need not be numbers."""

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
    """The settings that `bundlemage tune` searches by default, and their values. The values of a setting
    include its default."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Copies a setting's description from the base class if a subclass only changes the default."""
        for name, field in cls.model_fields.items():
            for base in cls.__bases__:
                if field.description is None and issubclass(base, ModelConfig) and name in base.model_fields:
                    field.description = base.model_fields[name].description

    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of all random numbers: initial weights, order of batches, masks, dropout."""
    device: str = "auto"
    """`auto` (CUDA, then MPS, then CPU), or a name such as `cpu`, `cuda`, `cuda:1`, `mps`."""


class RecencyConfig(ModelConfig):
    """The setting of every model that can count recent events more than old ones."""

    half_life: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["fit"] | None = "fit"
    """The age in days at which an event counts half as much as a new one, in histories, losses and sales.
    None: all ages count the same. `fit` finds the best number on validation cases, or none is better; without
    times it is None."""

    @property
    def chosen_half_life(self) -> float | None:
        """The half-life in days. None if there is none, or if it was not chosen."""
        return None if isinstance(self.half_life, str) else self.half_life


class LearnedConfig(ModelConfig):
    """The settings of every model that learns by gradient steps."""

    space = {
        "learning_rate": Between(0.0003, 0.03, log=True),
        "weight_decay": OneOf(0.0, 0.000001, 0.00001, 0.0001),
        "batch_size": OneOf(250, 500, 1000, 2000),
    }

    epochs: int = Field(200, ge=1)
    """Maximum number of passes over the training data."""
    patience: int = Field(50, ge=1)
    """Stop after this many epochs without a better validation score. In a small shop an epoch has few steps,
    so a model may need dozens of epochs before the score improves."""
    select_by: SelectBy = "matching"
    """The task whose validation score decides which epoch is best. The weights of that epoch are kept."""
    batch_size: int = Field(2000, ge=1)
    """Maximum number of users, or (user, bundle) pairs, per step."""
    min_steps: int = Field(1, ge=1)
    """Minimum number of steps of a phase in an epoch. If needed, batches are made smaller."""
    small_shop_steps: int = Field(1, ge=1)
    """The same for a phase of fewer than 5,000 rows, such as users. The larger of both numbers counts."""
    learning_rate: float = Field(0.001, gt=0)
    """Adam's step size."""
    schedule: Literal["constant", "cosine"] = "constant"
    """`constant` keeps the step size; `cosine` lowers it along a half cosine to 0 in the last epoch."""
    weight_decay: float = Field(0.00001, ge=0)
    """weight_decay × weight is added to the gradient."""
    weight_average: float = Field(0.0, ge=0, lt=1)
    """Decay of the exponential moving average that replaces the trained weights; 0 for no average."""


class BundleMageConfig(LearnedConfig, RecencyConfig):
    """Settings of BundleMage. The defaults were the most accurate on validation cases (docs/results.md). The
    recipe `youshu/bundlemage-paper` has the paper's settings. The paper's ablations are settings, too."""

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
    """The score that selects the best epoch: nDCG@5 on the validation cases of `matching` or `generation`.
    `both` uses the geometric mean of the two, each divided by the nDCG@5 of popularity. For generation, some
    training bundles are held out as validation cases."""
    batch_size: int = Field(1024, ge=1)
    min_steps: int = Field(8, ge=1)
    small_shop_steps: int = Field(24, ge=1)
    learning_rate: float = Field(0.004, gt=0)
    """Adam's step size. The paper's is 0.001."""
    weight_average: float = Field(0.99, ge=0, lt=1)

    # ── The paper's model ──
    embedding_dim: int = Field(400, ge=2, multiple_of=2)
    """d, the length of every vector. It must be even, because some layers halve it. The paper's is 200."""
    shared_fraction: float = Field(0.7, ge=0, le=1)
    """The fraction of an item's vector that both tasks share; the remainder is separate for each task. 0 is
    the ablation -Sep, 1 is -Sha. The paper's is 0.5."""
    mixer: Mixer = "gate"
    """How a user's item and bundle history are mixed; `average` is the ablation -Avg."""
    tasks: Literal["both", "matching", "generation"] = "both"
    """The tasks that are learned; `matching` is the ablation -Lgen, `generation` is -Lmat."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """The dropout rate on the user's vector z_u and on the pair's vector z_b^(u). The paper's is 0.3."""
    mask_bundles: float = Field(0.7, ge=0, le=1)
    """ρ, the share of a user's bundles that are hidden and then predicted. The paper's is 0.5."""
    mask_items: float = Field(0.5, ge=0, le=1)
    """ψ, the share of a bundle's items that are hidden and then predicted."""
    masking: Literal["row", "batch"] = "batch"
    """`row` hides the shares ρ of each user's bundles and ψ of each bundle's items, as in the paper. `batch`
    hides each entry with these probabilities, as in the authors' program."""
    loss_weighting: Literal["sum", "mean"] = "sum"
    """`mean` divides each loss by the number of the user's bundles, and the generation loss also by the
    number of the bundle's items, as in the paper's equations. `sum` does not, as in the authors' program; it
    is more accurate."""
    hide_target: bool = True
    """Whether the bundle to complete is removed from the user's history. (A new bundle would be in no
    history.) The authors' program does not remove it; removing is more accurate."""

    # ── How scores are formed ──
    scores: Literal["cosine", "dot"] = "cosine"
    """`cosine` compares directions and divides by a temperature; `dot` is the paper's inner product."""
    temperature: float = Field(0.2, gt=0)
    """Cosines in matching are divided by this. A lower value separates candidates more sharply."""
    generation_temperature: float = Field(0.085, gt=0)
    """Cosines in generation are divided by this."""
    learn_temperature: bool = False
    """Whether the two temperatures are learned, starting from these values."""
    residual: bool = True
    """Whether a feed-forward layer's input is added to its output. The paper's model does not do this."""
    pair_mixer: Literal["gate", "join"] = "gate"
    """How a user and an incomplete bundle become one vector. `gate` is a weighted mean, with a weight for
    each dimension. `join` is the paper's z_b^(u): both are projected to half the length and concatenated."""
    popularity_weight: float = Field(1.0, ge=0)
    """The weight of log(1 + sales) in a bundle's score; 0 for none, as in the paper."""
    item_popularity_weight: float = Field(0.5, ge=0)
    """The weight of log(1 + number of bundles with the item) in an item's score."""
    fit_popularity: bool = True
    """Whether both popularity weights are multiplied by a factor from 0 to 1 that is fitted to the training
    data. It is about 1 if popular bundles keep selling, and 0 if every bundle is bought once."""
    new_bundle_credit: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["fit", "median"] = "fit"
    """The number of sales that is assumed for a bundle added after training. `fit` holds out bundles and
    finds the number that ranks new bundles best at little cost to known bundles. `median` is the median of
    all bundles' sales."""
    initial_spread: float = Field(0.06, ge=0)
    """Standard deviation of the initial item vectors; 0 for Xavier's value, as in the authors' program."""
    propagation: int = Field(0, ge=0)
    """Number of averaging steps: each takes the mean of an item's matching vector over the items that share
    its bundles; 0 for none."""

    content: bool = True
    """Whether the model learns, after training, to predict an item's vectors from the catalogue: title,
    description, tags, price and the shop's own vectors. It can then use items that came after training. Known
    items keep their vectors. Without effect if the catalogue says nothing, or with `propagation`."""

    # ── Training data and losses ──
    generation_weight: float = Field(0.2, gt=0)
    """The weight of the generation loss. The paper's is 1."""
    item_dropout: float = Field(0.4, ge=0, lt=1)
    """The share of a user's items that are hidden in each training step."""
    pairs_per_bundle: int = Field(2, ge=0)
    """Number of users for whom each bundle is completed in an epoch, drawn in each epoch; 0 for all."""
    every_bundle: bool = True
    """Whether generation also learns from bundles that nobody bought. They are completed for a user without a
    history."""
    sampled_softmax: int = Field(0, ge=0)
    """Number of negative items, or bundles, that a step draws by popularity; 0 to compare with the whole
    catalogue. It is for more than a million items: a step then updates only the vectors that it uses."""

    def model_post_init(self, _: Any) -> None:
        if self.propagation and self.sampled_softmax:
            raise ConfigError(
                "propagation uses all bundles in each step, but sampled_softmax is meant to avoid that: "
                "set one of them to 0"
            )


Config = TypeVar("Config", bound=BaseModel)


def parse_config(config_class: type[Config], settings: Mapping[str, Any]) -> Config:
    """Makes a config from settings. Raises one ConfigError that names every wrong setting."""
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
                lines.append(f"setting {key!r} is {in_short(fault['input'])}{fault_in_words(fault)}")
        raise ConfigError("; ".join(lines)) from None
