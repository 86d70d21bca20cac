"""The interfaces of models, called parts. A model's class inherits from a part for each thing it can do.

`Matcher` scores bundles, `Completer` scores items, `Learner` learns by gradient steps, `Divisible` can be
trained by several processes, `Indexable` can be searched by an index. `can` tests whether a model has a part,
and `require` raises an error if it does not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, TypeGuard, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.models.config import ModelConfig
from bundlemage.models.division import ALONE, Division
from bundlemage.models.later import LaterBundles
from bundlemage.models.ragged import Contents, KeptForLast, Ragged


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
    """The items and bundles of a batch of users.

    A bundle is given by the number of its row in `contents`, which has the items of each bundle.
    """

    items: Ragged
    bundles: Ragged
    users: Tensor | None = None
    """The users' positions in the training data, for models that can score only those users."""
    rejected_items: Ragged | None = None
    """Items that each user returned or dislikes. They are not in `items`. None: there are none."""
    rejected_bundles: Ragged | None = None
    """The same for bundles."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def bundle_counts(self) -> Tensor:
        """The number of bundles that each user bought."""  # [rows]
        return self.bundles.strong.lengths

    def rows(self, index: Tensor) -> Histories:
        """The histories of the chosen rows, in the order of `index`."""
        return self._each(lambda rows: rows.rows(index), lambda users: users[index])

    def between(self, start: int, end: int) -> Histories:
        """Consecutive rows. Only the offsets are copied."""
        return self._each(lambda rows: rows.between(start, end), lambda users: users[start:end])

    def to(self, device: torch.device) -> Histories:
        """Returns a copy on another device."""
        return self._each(lambda rows: rows.to(device), lambda users: users.to(device))

    def append(self, other: Histories) -> Histories:
        """These users followed by the users of the other. The users' positions are lost if either lacks
        them."""
        users = None
        if self.users is not None and other.users is not None:
            users = torch.cat([self.users, other.users])
        return Histories(
            self.items.append(other.items),
            self.bundles.append(other.bundles),
            users,
            _joined(self, self.rejected_items, other, other.rejected_items),
            _joined(self, self.rejected_bundles, other, other.rejected_bundles),
        )

    def _each(self, change: Callable[[Ragged], Ragged], chosen: Callable[[Tensor], Tensor]) -> Histories:
        users = None if self.users is None else chosen(self.users)
        rejected = (
            None if rows is None else change(rows) for rows in (self.rejected_items, self.rejected_bundles)
        )
        return Histories(change(self.items), change(self.bundles), users, *rejected)


def _joined(one: Histories, first: Ragged | None, other: Histories, second: Ragged | None) -> Ragged | None:
    """The rows of `first`, then those of `second`. None stands for as many empty rows as users."""
    if first is None and second is None:
        return None
    rows = (
        Ragged.from_lists([()] * len(users), users.items.device) if found is None else found
        for users, found in ((one, first), (other, second))
    )
    return next(rows).append(next(rows))


@dataclass(frozen=True)
class Interactions:
    """A dataset as tensors on a device."""

    user_item: Ragged
    user_bundle: Ragged
    bundle_item: Ragged
    items: int
    """The number of items."""
    held_out: Tensor | None = field(default=None, kw_only=True)
    """[bundles] bool: bundles in validation cases of generation. The model must not learn their contents."""
    rejected_items: Ragged | None = field(default=None, kw_only=True)
    """The items that each user rejected; None: there are none."""
    rejected_bundles: Ragged | None = field(default=None, kw_only=True)
    """The bundles that each user rejected; None: there are none."""

    @classmethod
    def of(cls, dataset: BundleDataset, device: torch.device, half_life: float | None = None) -> Interactions:
        """Copies a dataset to a device. `half_life` is the model's setting: it lowers the weights of old
        events (`Events.strengths`)."""
        user_item, user_bundle = (
            Ragged.from_csr(matrix, device, events.strengths(half_life), events.purchases)
            for matrix, events in (
                (dataset.user_item, dataset.item_events),
                (dataset.user_bundle, dataset.bundle_events),
            )
        )
        rejected_items, rejected_bundles = (
            None if events.rejected is None else Ragged.from_csr(events.rejected, device)
            for events in (dataset.item_events, dataset.bundle_events)
        )
        return cls(
            user_item,
            user_bundle,
            Ragged.from_csr(dataset.bundle_item, device),
            len(dataset.items),
            rejected_items=rejected_items,
            rejected_bundles=rejected_bundles,
        )

    def to(self, device: torch.device) -> Interactions:
        """Returns a copy on another device."""
        tensors: dict[str, Any] = {
            name: part for name, part in vars(self).items() if isinstance(part, Ragged | Tensor)
        }
        return replace(self, **{name: part.to(device) for name, part in tensors.items()})

    @property
    def weighted(self) -> bool:
        """Whether some events count more than others."""
        return self.user_item.weights is not None or self.user_bundle.weights is not None

    def histories(self, users: Tensor) -> Histories:
        """Returns the histories of the users at these positions."""
        rejected = (self.rejected_items, self.rejected_bundles)
        chosen = (None if rows is None else rows.rows(users) for rows in rejected)
        return Histories(self.user_item.rows(users), self.user_bundle.rows(users), users, *chosen)

    def everyone(self) -> Histories:
        """Returns the histories of all users, in the order of their positions."""
        users = torch.arange(len(self.user_item), device=self.user_item.device)
        return Histories(self.user_item, self.user_bundle, users, self.rejected_items, self.rejected_bundles)

    @cached_property
    def with_nobody(self) -> Interactions:
        """The same data with one more user at the end, who has no items and no bundles. It is for learning,
        which does not ask what users rejected."""
        return replace(
            self,
            user_item=self.user_item.with_empty_row(),
            user_bundle=self.user_bundle.with_empty_row(),
            rejected_items=None,
            rejected_bundles=None,
        )

    def completion(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the user and the bundle of each row of a phase over `completions` or `user_bundle`.

        Rows after the last pair are bundles without a buyer. Their user is the extra one of `with_nobody`.
        """
        pairs = len(self.user_bundle.values)
        if not pairs:
            return torch.full_like(rows, len(self.user_bundle)), rows
        users, bundles = self.user_bundle.entries(rows.clamp(max=pairs - 1))
        is_pair = rows < pairs
        return torch.where(is_pair, users, len(self.user_bundle)), torch.where(is_pair, bundles, rows - pairs)

    def pair_weights(self, rows: Tensor) -> Tensor | None:
        """Returns the weight of the pair in each row of a phase (see `completion`). None: all are 1."""
        weights = self.user_bundle.weights
        if weights is None or not len(weights):
            return None
        return torch.where(rows < len(weights), weights[rows.clamp(max=len(weights) - 1)], 1.0)

    def learned_contents(self) -> Ragged:
        """The contents of the bundles that generation may learn from. Held-out bundles are empty."""
        if self.held_out is None:
            return self.bundle_item
        return self.bundle_item.keep(~self.held_out[self.bundle_item.row_of_entry()])


@dataclass(frozen=True)
class Factors:
    """Vectors and biases of bundles. A score is user vector · bundle vector + bias."""

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
    """For pairs: an epoch draws at most this many of the pairs with the same second member. None: all."""
    learns_contents: bool = False
    """Whether the phase learns the contents of bundles. If so, it skips held-out bundles."""

    def __post_init__(self) -> None:
        if self.over not in get_args(Over):
            known = ", ".join(get_args(Over))
            raise ConfigError(f"the phase {self.name!r} runs over {self.over!r}; it can run over: {known}")


# ── The parts of a model ─────────────────────────────────────────────────────────────────────────


class Model(nn.Module, ABC):
    """The base class of all models. Every model is also a `Matcher`, a `Completer`, or both.

    Everything that must be saved is a parameter or a buffer. If the size of a buffer depends on the data,
    register it with the size 0: loading gives it the saved size.
    """

    lacks: ClassVar[str] = ""
    """The error message for a model without this part. `{title}` stands for the model's title."""

    name: ClassVar[str]
    title: ClassVar[str]
    publication: ClassVar[str] = ""
    """Authors, title, venue and year. Empty if the model has no publication."""
    config_class: ClassVar[type[ModelConfig]] = ModelConfig
    knows_new_users: ClassVar[bool] = True
    """Whether the model can score for users who were not in the training data."""
    reads_weights: ClassVar[bool] = False
    """Whether strong and recent events count more. Otherwise every pair counts the same."""
    config: ModelConfig

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes
        self._later: KeptForLast[LaterBundles] = KeptForLast()

    def new_buffer(self, name: str, tensor: Tensor) -> Tensor:
        """Registers a buffer and returns it, to be assigned to the attribute of the same name."""
        self.register_buffer(name, tensor)
        return tensor

    @property
    def half_life(self) -> float | None:
        """The setting of this name, for `Interactions.of`; None: old events count as much as new ones."""
        return getattr(self.config, "chosen_half_life", None)

    def interactions(self, dataset: BundleDataset, device: torch.device) -> Interactions:
        """Returns a dataset as tensors, with the weights that this model gives to events."""
        return Interactions.of(dataset, device, self.half_life)

    def does(self, kind: type[Model]) -> bool:
        """Whether the settings enable this part of the model's class."""
        return True

    def observe(self, data: Interactions) -> None:
        """Computes from the training data what gradients do not learn: counts, closed-form solutions."""

    def encoded(self, histories: Histories, contents: Ragged) -> Any:
        """Encodes users once. The result is the argument `users` of `bundle_fit` and `item_fit`."""
        return histories

    def merge_changes(self) -> None:
        """Tidy up what the model keeps of a shop's bundles, after many small changes of them.

        It may take long. The service calls it while another thread answers questions with the same model.
        """

    def checked(self, method: str, scores: Tensor, rows: int, columns: int) -> Tensor:
        """Returns the scores. Raises UnsupportedError if their shape is wrong or one is not finite."""
        where = f"{type(self).__name__}.{method}"
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (rows, columns):
            kind = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise UnsupportedError(f"{where} returned {kind}; expected a tensor of shape {[rows, columns]}")
        # The sum is a quick test. Large finite scores can add up to infinity, hence the second test.
        if not bool(torch.isfinite(scores.sum())) and not bool(torch.isfinite(scores).all()):
            raise UnsupportedError(
                f"{where} returned a score that is not a finite number; a ranking needs finite scores"
            )
        return scores

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name, buffer in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if buffer is None or saved is None or saved.ndim != buffer.ndim:
                continue
            if all(size in (0, new) for size, new in zip(buffer.shape, saved.shape, strict=True)):
                self._buffers[name] = torch.empty_like(saved, device=buffer.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


Part = TypeVar("Part", bound=Model)


def can(model: Model, kind: type[Part]) -> TypeGuard[Part]:
    """Whether a model has a part, such as `Matcher`, and its settings enable the part."""
    return isinstance(model, kind) and model.does(kind)


def require(model: Model, kind: type[Part]) -> Part:
    """Returns the model, typed as the part. Raises UnsupportedError if it does not have the part."""
    if not can(model, kind):
        raise UnsupportedError(kind.lacks.format(title=model.title))
    return model


class Matcher(Model):
    """Scores bundles for users."""

    lacks = "{title} was trained for generation only: it does not recommend bundles"

    @abstractmethod
    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Returns a score for every bundle, [rows, bundles].

        `contents` has the items of each bundle. The first `sizes.bundles` rows are the bundles of the
        training data; the others were added later.
        """

    def score_candidates(self, histories: Histories, candidates: Tensor, contents: Ragged) -> Tensor:
        """Returns the scores of `candidates`, which has row numbers of `contents` for each user.

        The shape is [rows, candidates]. A model overrides this if scoring only some bundles is less work.
        """
        return self.bundle_scores(histories, contents).gather(1, candidates)

    @property
    def scores_candidates_apart(self) -> bool:
        """Whether `score_candidates` is less work than scoring every bundle."""
        return type(self).score_candidates is not Matcher.score_candidates

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        """Returns the scores of bundles that are not in `contents`; `new` has their items, [rows, new]."""
        return self.bundle_scores(histories, contents.append(new))[:, len(contents) :]

    @property
    def ranks_by_sales(self) -> bool:
        """Whether every user gets the best sellers. The answers then say so."""
        return False

    @property
    def forecaster(self) -> Matcher:
        """The model whose scores of new bundles tell how many users buy them."""
        return self

    def bundle_scores(self, histories: Histories, contents: Ragged) -> Tensor:
        """Returns the result of `score_bundles`, with its shape and values checked."""
        scores = self.score_bundles(histories, contents)
        return self.checked("score_bundles", scores, len(histories), len(contents))

    def bundle_fit(self, users: Any, which: Tensor, bundles: Tensor, contents: Ragged, among: int) -> Tensor:
        """Returns each bundle's score minus the mean score of the first `among` bundles.

        Entry n is for bundle `bundles[n]` and user `which[n]` of `users`, the result of `encoded`.
        """
        scores = self.bundle_scores(users, contents)
        return scores[which, bundles] - scores[:, :among].mean(1)[which]  # [rows]

    def known_users(self, histories: Histories) -> Tensor:
        """Returns the users' positions in the training data. Raises UnsupportedError for other users."""
        if histories.users is None:
            raise UnsupportedError(f"{self.title} knows only the users it was trained on")
        return histories.users

    def named_bundles(self, histories: Histories) -> Ragged:
        """The bundles of each history that were in the training data."""
        return histories.bundles.keep(histories.bundles.values < self.sizes.bundles)

    def with_later(self, scores: Tensor, contents: Ragged) -> Tensor:
        """Appends the scores of bundles that were added after training, from those of similar bundles."""
        known = scores.shape[1]
        if known == len(contents):
            return scores
        if not known:
            return scores.new_zeros(len(scores), len(contents))
        later = self._later.of(contents, lambda: LaterBundles.of(contents, known, self.sizes.items))
        return torch.cat([scores, later.scores(scores)], dim=1)


class Completer(Model):
    """Scores items as additions to incomplete bundles."""

    lacks = "{title} was trained for matching only: it does not complete bundles"

    @abstractmethod
    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """Returns a score for adding each item to each incomplete bundle in `partial`, [rows, items]."""

    def score_item_candidates(
        self, histories: Histories, partial: Ragged, candidates: Tensor, contents: Ragged
    ) -> Tensor:
        """Like `score_items`, only for the items at the positions `candidates`, [rows, candidates]."""
        return self.item_scores(histories, partial, contents).gather(1, candidates)

    def item_scores(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """Returns the result of `score_items`, with its shape and values checked."""
        scores = self.score_items(histories, partial, contents)
        return self.checked("score_items", scores, len(histories), self.sizes.items)

    def item_fit(self, users: Any, which: Tensor, partial: Ragged, items: Tensor, contents: Ragged) -> Tensor:
        """Returns the score for adding `items[n]` to row n of `partial`, minus the mean score of all items.
        The user is row `which[n]` of `users`, the result of `encoded`."""  # [rows]
        scores = self.item_scores(users.rows(which), partial, contents)
        return scores.gather(1, items[:, None])[:, 0] - scores.mean(1)


class Learner(Model):
    """Learns by gradient steps. Its config class is a `LearnedConfig`."""

    lacks = "{title} does not learn by gradient steps"

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The phases of an epoch, in their order."""

    @abstractmethod
    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """Returns the loss of one batch, a scalar. `rows` are the batch's rows of `phase.over`."""

    def settle(self, data: Interactions) -> None:
        """Computes, from the weights and the training data, the buffers that scoring uses.

        Training calls it without gradients after each epoch. A graph model propagates its vectors here.
        """

    @property
    def fixed_shapes(self) -> bool:
        """Whether the batch size determines the shape of every tensor in `loss`, and `loss` never waits for
        the device. If so, training on a GPU records a step once and replays it."""
        return False

    @property
    def touches_rows(self) -> bool:
        """Whether `loss` produces sparse gradients, only for the rows of a table that it used."""
        return False


class Divisible(Learner):
    """Can be trained by several processes. `division` computes all sums over items and bundles."""

    lacks = "{title} cannot be trained by several processes: use one worker"
    divided_tables: ClassVar[tuple[str, ...]]
    """The names of the parameters with one row per item. Each process keeps some of the rows."""

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.division: Division = ALONE

    def check_divisible(self) -> None:
        """Raises UnsupportedError if several processes cannot train the model with its settings."""

    def divide(self, division: Division) -> None:
        """Makes this the model of one of several processes, with only that process's rows of the tables."""
        self.check_divisible()
        self.division = division
        for name in self.divided_tables:
            whole = getattr(self, name)
            here = division.rows_of(len(whole))
            setattr(self, name, nn.Parameter(whole.detach()[here.start : here.stop].clone()))


class Indexable(Matcher):
    """A bundle's score is user vector · bundle vector + bias, so an index can find the highest scores."""

    lacks = (
        "the scores of {title} are not a product of two vectors that an index could search: use it without "
        "an index"
    )

    @abstractmethod
    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        """Returns the vectors and biases of the bundles of `contents`, beginning at row `start`."""

    @abstractmethod
    def factors_of_users(self, histories: Histories, contents: Ragged) -> Tensor:
        """Returns a vector for each user, [rows, d]."""


class Embedder(Model):
    """Has vectors of items and of bundles that show which of them are similar."""

    lacks = "{title} has no vectors of items and bundles, so it cannot tell which are similar"

    @abstractmethod
    def vectors_of_items(self) -> Tensor:
        """A vector for every item. Items that go into the same bundles have similar directions."""

    @abstractmethod
    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        """A vector for every row of `contents`. Similar bundles have similar directions."""

    def cosines(self, contents: Ragged, vector: Tensor) -> Tensor:
        """The cosine of each bundle's vector with `vector`, [1, d]."""  # [bundles]
        return F.cosine_similarity(self.vectors_of_bundles(contents), vector)


class Gated(Model):
    """Weighs item history against bundle history by a gate."""

    lacks = "{title} has no gate between item and bundle history"

    @abstractmethod
    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        """Returns each user's weight of item history, 0 to 1. Bundle history has the rest."""  # [rows]


class ContentLearner(Model):
    """Can know an item that came after training by what the catalogue says about it.

    Catalogues are tables with columns of `ITEM_SCHEMA`, with a row for each item.
    """

    lacks = (
        "{title} with these settings knows items only by who has them: it cannot take up an item that came "
        "after training"
    )

    @abstractmethod
    def learn_content(self, items: pa.Table, train: BundleDataset) -> None:
        """Learns, after training, how the catalogue of the training items says what they are like."""

    @abstractmethod
    def knows_by_content(self, items: pa.Table) -> npt.NDArray[np.bool_]:
        """For each item: whether its record says enough. False for all before `learn_content`."""

    @abstractmethod
    def with_items(self, items: pa.Table, places: Sequence[int] | None = None) -> Self:
        """Returns a model that also knows these items, and shares its weights with this one.

        Their positions are after all items of this model; or `places`, which may also have positions of
        items that were added before, and replaces these.
        """

    @property
    @abstractmethod
    def known_by_content(self) -> frozenset[int]:
        """The positions of items that are known by content only: those of `with_items`, and those of the
        training catalogue that nobody had."""


def known_by_content(model: Model) -> frozenset[int]:
    """The positions of the items that a model knows by their content only; none if it cannot."""
    return model.known_by_content if can(model, ContentLearner) else frozenset()


class SalesScorer(Matcher):
    """A model whose bundle scores contain a term for sales. A bundle added after training needs an assumed
    number of sales.

    The model reads `Contents.expected_sales`, and has the settings `tasks` and `new_bundle_credit`.
    """

    lacks = (
        "the scores of {title} with these settings have no term for sales: expected sales of a new bundle "
        "have no effect"
    )

    @abstractmethod
    def assume_sales(self, sales: float) -> None:
        """Sets the number of sales assumed for a new bundle that has no expected sales."""

    @abstractmethod
    def known_sales(self) -> Tensor:
        """Returns the sales of each bundle in the training data, [bundles]."""

    @abstractmethod
    def popularity_bias(self, sales: Tensor) -> Tensor:
        """Returns the score term of bundles with these numbers of sales."""

    def sales_of(self, contents: Ragged, assumed: Tensor, start: int = 0) -> Tensor:
        """Returns the sales of the bundles from `start` on. A bundle added after training counts with its
        expected sales, or with the `assumed` ones."""  # [bundles from start]
        known = self.known_sales()
        later = len(contents) - len(known)
        sales = torch.cat([known[start:], assumed.expand(later)[max(0, start - len(known)) :]])
        if isinstance(contents, Contents):
            expected = contents.expected_sales[start:].to(sales)
            sales = torch.where(expected.isnan(), sales, expected)
        return sales
