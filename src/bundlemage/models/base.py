"""The contract that every model keeps, in parts: what it can do follows from the parts that its class names.

`Matcher` scores bundles, `Completer` scores items, `Learner` learns by gradient steps, `Divisible` can be
trained by several processes, `Indexable` can be searched by an index. Ask with `can`, and use a part with
`require`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeGuard, TypeVar, get_args

import torch
from torch import Tensor, nn

from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.models.config import ModelConfig
from bundlemage.models.division import ALONE, Division
from bundlemage.models.ragged import Ragged


@dataclass(frozen=True)
class Sizes:
    """The numbers of users, items and bundles that a model is built for."""

    users: int
    items: int
    bundles: int

    @classmethod
    def of(cls, dataset: BundleDataset) -> Sizes:
        """The sizes of a dataset."""
        return cls(len(dataset.users), len(dataset.items), len(dataset.bundles))


@dataclass(frozen=True)
class Histories:
    """The items and bundles of a batch of users. Bundles are rows of a table of bundle contents."""

    items: Ragged
    bundles: Ragged
    users: Tensor | None = None
    """Positions of the users in the training data, for models that know no other users."""

    def __len__(self) -> int:
        return len(self.items)

    def rows(self, index: Tensor) -> Histories:
        """The histories of the chosen rows, in the order of `index`."""
        users = None if self.users is None else self.users[index]
        return Histories(self.items.rows(index), self.bundles.rows(index), users)


@dataclass(frozen=True)
class Interactions:
    """A dataset on a device."""

    user_item: Ragged
    user_bundle: Ragged
    bundle_item: Ragged
    items: int
    """The number of items."""
    held_out: Tensor | None = field(default=None, kw_only=True)
    """[bundles] bool: bundles whose contents generation must not learn, because it is judged by them."""

    @classmethod
    def of(cls, dataset: BundleDataset, device: torch.device) -> Interactions:
        """Copies a dataset to a device."""
        matrices = (dataset.user_item, dataset.user_bundle, dataset.bundle_item)
        user_item, user_bundle, bundle_item = (Ragged.from_csr(matrix, device) for matrix in matrices)
        return cls(user_item, user_bundle, bundle_item, len(dataset.items))

    def to(self, device: torch.device) -> Interactions:
        """Returns a copy on another device."""
        matrices = (self.user_item, self.user_bundle, self.bundle_item)
        user_item, user_bundle, bundle_item = (rows.to(device) for rows in matrices)
        held_out = None if self.held_out is None else self.held_out.to(device)
        return Interactions(user_item, user_bundle, bundle_item, self.items, held_out=held_out)

    def histories(self, users: Tensor) -> Histories:
        """The histories of some users, by their positions."""
        return Histories(self.user_item.rows(users), self.user_bundle.rows(users), users)

    @cached_property
    def with_nobody(self) -> Interactions:
        """The same data with one more user at the end, who has no items and no bundles."""
        user_item, user_bundle = (
            Ragged(rows.values, torch.cat([rows.offsets, rows.offsets[-1:]]))
            for rows in (self.user_item, self.user_bundle)
        )
        return replace(self, user_item=user_item, user_bundle=user_bundle)

    def completion(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The user and the bundle of some rows of a phase over `completions` or `user_bundle`.

        Rows after the last pair stand for bundles without a buyer. Their user is the one of `with_nobody`.
        """
        pairs = len(self.user_bundle.values)
        if not pairs:
            return torch.full_like(rows, len(self.user_bundle)), rows
        users, bundles = self.user_bundle.entries(rows.clamp(max=pairs - 1))
        is_pair = rows < pairs
        return torch.where(is_pair, users, len(self.user_bundle)), torch.where(is_pair, bundles, rows - pairs)

    def learned_contents(self) -> Ragged:
        """The contents of the bundles that generation may learn from. Held-out bundles are empty."""
        if self.held_out is None:
            return self.bundle_item
        return self.bundle_item.keep(~self.held_out[self.bundle_item.row_of_entry()])


@dataclass(frozen=True)
class Factors:
    """The bundles' side of scores that are a product of two vectors."""

    vectors: Tensor  # [bundles, d]
    bias: Tensor  # [bundles]
    """The part of a bundle's score that is the same for every user."""


Over = Literal["users", "items", "bundles", "user_item", "user_bundle", "bundle_item", "completions"]


@dataclass(frozen=True)
class Phase:
    """A part of an epoch: one pass, in shuffled batches, over one kind of row."""

    name: str
    over: Over
    """`users`, `items`, `bundles`: positions. `user_item`, `user_bundle`, `bundle_item`: pairs, by their
    index among the entries of that matrix (`Ragged.entries` returns the pair). `completions`: pairs of a user
    and a bundle, and bundles without a buyer (`Interactions.completion`)."""
    at_most: int | None = None
    """For pairs: the most pairs of each right side in one epoch, drawn anew each time. None takes all."""
    learns_contents: bool = False
    """Whether the phase learns what is in bundles. Then it leaves out bundles that are held out."""

    def __post_init__(self) -> None:
        if self.over not in get_args(Over):
            known = ", ".join(get_args(Over))
            raise ConfigError(f"the phase {self.name!r} runs over {self.over!r}; it can run over: {known}")


# ── The parts of a model ─────────────────────────────────────────────────────────────────────────


class Model(nn.Module, ABC):
    """What every model has. A model also is a `Matcher`, a `Completer`, or both.

    Everything that must be saved is a parameter or a buffer. A buffer may have a size that follows from the
    data: register it empty, and loading gives it the saved size.
    """

    lacks: ClassVar[str] = ""
    """Of a part: what to say of a model without it. `{title}` stands for the model's title."""

    name: ClassVar[str]
    title: ClassVar[str]
    publication: ClassVar[str] = ""
    """Authors, title, venue and year. Empty for a plain rule."""
    config_class: ClassVar[type[ModelConfig]] = ModelConfig
    knows_new_users: ClassVar[bool] = True
    """Whether it scores for users who were not in the training data."""
    config: ModelConfig

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes

    def new_buffer(self, name: str, tensor: Tensor) -> Tensor:
        """Registers a buffer, and returns it to be assigned to the attribute of that name."""
        self.register_buffer(name, tensor)
        return tensor

    def does(self, kind: type[Model]) -> bool:
        """Whether the model, with its settings, does the work of a part that its class names."""
        return True

    def observe(self, data: Interactions) -> None:
        """Takes from the training data what no gradient teaches, such as counts and closed forms."""

    def encoded(self, people: Histories, contents: Ragged) -> Any:
        """Users in the form that `bundle_fit` and `item_fit` take, so that each is encoded once."""
        return people

    def checked(self, method: str, scores: Tensor, rows: int, columns: int) -> Tensor:
        """Returns the scores. Raises UnsupportedError if their shape is wrong or one is not finite."""
        where = f"{type(self).__name__}.{method}"
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (rows, columns):
            kind = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise UnsupportedError(f"{where} gave {kind}; a tensor of the shape {[rows, columns]} is wanted")
        # A sum is finite only if every term is. Large terms may add up to infinity, hence the second test.
        if not bool(torch.isfinite(scores.sum())) and not bool(torch.isfinite(scores).all()):
            raise UnsupportedError(
                f"{where} gave a score that is not a finite number, so there is no ranking"
            )
        return scores

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name, buffer in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if buffer is not None and saved is not None and saved.shape != buffer.shape:
                self._buffers[name] = torch.empty_like(saved, device=buffer.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


Part = TypeVar("Part", bound=Model)


def can(model: Model, kind: type[Part]) -> TypeGuard[Part]:
    """Whether a model does the work of a part, such as `Matcher`, with its settings."""
    return isinstance(model, kind) and model.does(kind)


def require(model: Model, kind: type[Part]) -> Part:
    """The model as one of its parts. Raises UnsupportedError if it does not do that work."""
    if not can(model, kind):
        raise UnsupportedError(kind.lacks.format(title=model.title))
    return model


class Matcher(Model):
    """Scores bundles for users."""

    lacks = "{title} learned generation alone: it does not recommend bundles"

    @abstractmethod
    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """A score for every row of `contents`, [rows, bundles].

        `contents` has the items of each bundle. The first `sizes.bundles` rows are the bundles of training,
        and the others came later.
        """

    def score_candidates(self, histories: Histories, candidates: Tensor, contents: Ragged) -> Tensor:
        """Scores of some rows of `contents`, by their positions [rows, candidates].

        A model overrides it where it is less work to score only some bundles.
        """
        return self.bundle_scores(histories, contents).gather(1, candidates)

    @property
    def scores_candidates_apart(self) -> bool:
        """Whether `score_candidates` is less work than scoring every bundle."""
        return type(self).score_candidates is not Matcher.score_candidates

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        """Scores of bundles that are not in `contents`, as `score_bundles` would score them, [rows, new]."""
        return self.bundle_scores(histories, contents.append(new))[:, len(contents) :]

    def bundle_scores(self, histories: Histories, contents: Ragged) -> Tensor:
        """The result of `score_bundles`, checked."""
        scores = self.score_bundles(histories, contents)
        return self.checked("score_bundles", scores, len(histories), len(contents))

    def bundle_fit(self, people: Any, which: Tensor, bundles: Tensor, contents: Ragged, among: int) -> Tensor:
        """How far bundles stand out: a bundle's score less the mean score of the first `among` bundles.

        Row n asks about bundle `bundles[n]` for row `which[n]` of `people`, as `encoded` returned them.
        """
        scores = self.bundle_scores(people, contents)
        return scores[which, bundles] - scores[:, :among].mean(1)[which]  # [rows]

    def known_users(self, histories: Histories) -> Tensor:
        """Positions of users of the training data, for a model that knows no others."""
        if histories.users is None:
            raise UnsupportedError(f"{self.title} knows only the users it was trained on")
        return histories.users

    def named_bundles(self, histories: Histories) -> Ragged:
        """The bundles of each history that were in the training data."""
        return histories.bundles.keep(histories.bundles.values < self.sizes.bundles)

    def with_unnamed(self, scores: Tensor, contents: Ragged) -> Tensor:
        """Scores of the bundles of training, with a lower one added for each bundle that came later."""
        later = len(contents) - scores.shape[1]
        if not later:
            return scores
        lowest = scores.amin(1, keepdim=True) - 1 if scores.shape[1] else scores.new_zeros(len(scores), 1)
        return torch.cat([scores, lowest.expand(-1, later)], dim=1)


class Completer(Model):
    """Scores items as additions to incomplete bundles."""

    lacks = "{title} learned matching alone: it does not complete bundles"

    @abstractmethod
    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """A score for every item as an addition to each row of `partial`, [rows, items]."""

    def score_item_candidates(
        self, histories: Histories, partial: Ragged, candidates: Tensor, contents: Ragged
    ) -> Tensor:
        """Scores of some items, by their positions [rows, candidates], as additions to `partial`."""
        return self.item_scores(histories, partial, contents).gather(1, candidates)

    def item_scores(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """The result of `score_items`, checked."""
        scores = self.score_items(histories, partial, contents)
        return self.checked("score_items", scores, len(histories), self.sizes.items)

    def item_fit(
        self, people: Any, which: Tensor, partial: Ragged, items: Tensor, contents: Ragged
    ) -> Tensor:
        """As `Matcher.bundle_fit`: an item's score as an addition to a row of `partial`, less the mean over
        all items."""  # [rows]
        scores = self.item_scores(people.rows(which), partial, contents)
        return scores.gather(1, items[:, None])[:, 0] - scores.mean(1)


class Learner(Model):
    """Learns by gradient steps. Its config class is a `LearnedConfig`."""

    lacks = "{title} does not learn by steps"

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The phases of an epoch, in their order."""

    @abstractmethod
    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """The loss of one batch of a phase, a scalar."""

    def settle(self, data: Interactions) -> None:
        """Computes buffers that scoring needs from the weights and the training data.

        It is called without gradients after the last step of each epoch. A graph model propagates here.
        """

    @property
    def fixed_shapes(self) -> bool:
        """Whether the size of every array in `loss` follows from the batch size, and nothing in it waits for
        the device. On a GPU the loop then records a step once and replays it."""
        return False

    @property
    def touches_rows(self) -> bool:
        """Whether `loss` gives sparse gradients of the rows that it looked at."""
        return False


class Divisible(Learner):
    """Can be trained by several processes. It does all sums over items and bundles through `division`."""

    lacks = "{title} is not trained by several processes: use one worker"
    divided_tables: ClassVar[tuple[str, ...]]
    """The parameters with a row for each item, which may be divided by rows among processes."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.division: Division = ALONE

    def check_divisible(self) -> None:
        """Raises UnsupportedError if several processes cannot train the model with its settings."""

    def divide(self, division: Division) -> None:
        """Makes this the model of one of several processes, which keeps its own rows of the tables."""
        self.check_divisible()
        self.division = division
        for name in self.divided_tables:
            whole = getattr(self, name)
            here = division.rows_of(len(whole))
            setattr(self, name, nn.Parameter(whole.detach()[here.start : here.stop].clone()))


class Indexable(Matcher):
    """Its bundle scores are a product of two vectors and a bias, so that an index can search them."""

    lacks = (
        "the scores of {title} are not a product of two vectors that an index could search: use it without "
        "an index"
    )

    @abstractmethod
    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        """The vectors and biases of the rows of `contents` from `start` on."""

    @abstractmethod
    def factors_of_users(self, histories: Histories, contents: Ragged) -> Tensor:
        """The vectors of users, [rows, d]."""


class Embedder(Model):
    """Has vectors that tell which items, and which bundles, are alike."""

    lacks = "{title} has no vectors of items and bundles, so it cannot say which are alike"

    @abstractmethod
    def vectors_of_items(self) -> Tensor:
        """A vector for every item. Items that go into the same bundles have similar directions."""

    @abstractmethod
    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        """A vector for every row of `contents`. Similar bundles have similar directions."""


class Gated(Model):
    """Weighs item history against bundle history by a gate."""

    lacks = "{title} has no gate between item and bundle history"

    @abstractmethod
    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        """The weight of item history for each user, 0 to 1. Bundle history has the rest."""  # [rows]


class SalesScorer(Matcher):
    """Its bundle scores have a term for sales, so a bundle that came after training is credited with some.

    It reads `Contents.expected_sales`, and has the settings `tasks` and `new_bundle_credit`.
    """

    lacks = (
        "the scores of {title}, as it is configured, have no term for sales: it cannot go by how often a new "
        "bundle is expected to sell"
    )

    @abstractmethod
    def credit_new_bundles(self, sales: float) -> None:
        """Sets the number of sales that a new bundle is credited with if nothing is expected of it."""

    @abstractmethod
    def known_sales(self) -> Tensor:
        """The sales of each bundle in the training data, [bundles]."""

    @abstractmethod
    def popularity_bias(self, sales: Tensor) -> Tensor:
        """The term of a score for bundles with these sales."""
