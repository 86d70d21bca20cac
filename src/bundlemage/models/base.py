"""The contract that every model keeps, so that training, evaluation and serving are written once."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.models.config import ModelConfig
from bundlemage.models.division import Division
from bundlemage.models.ragged import Ragged


@dataclass(frozen=True)
class Sizes:
    """How many of each a model is built for."""

    users: int
    items: int
    bundles: int

    @classmethod
    def of(cls, dataset: BundleDataset) -> Sizes:
        return cls(len(dataset.users), len(dataset.items), len(dataset.bundles))


@dataclass(frozen=True)
class Histories:
    """What each of a batch of people has: items, and bundles as rows of a table of bundle contents."""

    items: Ragged
    bundles: Ragged
    users: Tensor | None = None
    """Positions of users known from training, for models that know no others."""

    def __len__(self) -> int:
        return len(self.items)

    def rows(self, index: Tensor) -> Histories:
        """The chosen people, in the order asked for."""
        users = None if self.users is None else self.users[index]
        return Histories(self.items.rows(index), self.bundles.rows(index), users)


@dataclass(frozen=True)
class Interactions:
    """A dataset on a device."""

    user_item: Ragged
    user_bundle: Ragged
    bundle_item: Ragged
    items: int
    """How many items there are."""
    held_out: Tensor | None = field(default=None, kw_only=True)
    """[bundles] bool: bundles from whose contents generation must not learn, as it is judged by them."""

    @classmethod
    def of(cls, dataset: BundleDataset, device: torch.device) -> Interactions:
        return cls(
            Ragged.from_csr(dataset.user_item, device),
            Ragged.from_csr(dataset.user_bundle, device),
            Ragged.from_csr(dataset.bundle_item, device),
            len(dataset.items),
        )

    def to(self, device: torch.device) -> Interactions:
        user_item, user_bundle, bundle_item = (
            rows.to(device) for rows in (self.user_item, self.user_bundle, self.bundle_item)
        )
        held_out = None if self.held_out is None else self.held_out.to(device)
        return Interactions(user_item, user_bundle, bundle_item, self.items, held_out=held_out)

    def histories(self, users: Tensor) -> Histories:
        return Histories(self.user_item.rows(users), self.user_bundle.rows(users), users)

    @cached_property
    def with_nobody(self) -> Interactions:
        """The same with one more user, the last one, who has nothing."""
        user_item, user_bundle = (
            Ragged(rows.values, torch.cat([rows.offsets, rows.offsets[-1:]]))
            for rows in (self.user_item, self.user_bundle)
        )
        return replace(self, user_item=user_item, user_bundle=user_bundle)

    def completion(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """User and bundle of some rows of a phase over `completions` or `user_bundle`.

        Rows after the last pair stand for bundles, one each, completed for nobody: see `with_nobody`.
        """
        pairs = len(self.user_bundle.values)
        if not pairs:
            return torch.full_like(rows, len(self.user_bundle)), rows
        users, bundles = self.user_bundle.entries(rows.clamp(max=pairs - 1))
        is_pair = rows < pairs
        return torch.where(is_pair, users, len(self.user_bundle)), torch.where(is_pair, bundles, rows - pairs)

    def learned_contents(self) -> Ragged:
        """What is in the bundles that generation may learn from; the others are empty."""
        if self.held_out is None:
            return self.bundle_item
        return self.bundle_item.keep(~self.held_out[self.bundle_item.row_of_entry()])


@dataclass(frozen=True)
class Factors:
    """The bundles' side of scores that are a product of two vectors."""

    vectors: Tensor  # [bundles, d]
    bias: Tensor  # [bundles]
    """What a bundle's score has for everyone alike."""


Over = Literal["users", "items", "bundles", "user_item", "user_bundle", "bundle_item", "completions"]


@dataclass(frozen=True)
class Phase:
    """A part of an epoch: one pass, in shuffled batches, over one kind of row."""

    name: str
    over: Over
    """`users`, `items`, `bundles`: every one, by its position. `user_bundle` and the other two: every pair,
    by its index among the entries of that matrix (`Ragged.entries` gives the pair). `completions`: every
    pair of a user and a bundle, and every bundle without a buyer (`Interactions.completion`)."""
    at_most: int | None = None
    """For pairs: how many of each right side in one epoch, drawn anew each time; all of them if not said."""

    def __post_init__(self) -> None:
        if self.over not in get_args(Over):
            known = ", ".join(get_args(Over))
            raise ConfigError(f"the phase {self.name!r} runs over {self.over!r}; it can run over: {known}")


class Model(nn.Module, ABC):
    """A scorer. It learns from `loss` if it names phases, else from `observe` alone.

    Whatever must survive saving is a parameter or a buffer. A buffer may have the size of what was
    observed: register it empty, and loading gives it the size that was saved.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    publication: ClassVar[str] = ""
    """Authors, title, venue and year; empty for a plain rule."""
    config_class: ClassVar[type[ModelConfig]] = ModelConfig
    knows_new_users: ClassVar[bool] = True

    def __init__(self, config: ModelConfig, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    @property
    def matches(self) -> bool:
        """Whether `score_bundles` means anything as the model is configured."""
        return True

    @property
    def generates(self) -> bool:
        """Whether `score_items` means anything as the model is configured."""
        return False

    @property
    def phases(self) -> tuple[Phase, ...]:
        return ()

    @property
    def fixed_shapes(self) -> bool:
        """Whether every array that `loss` makes has a size that follows from the batch's alone, and nothing
        in it waits for the device. On a GPU the loop then records a step once and replays it."""
        return False

    @property
    def touches_rows(self) -> bool:
        """Whether `loss` gives sparse gradients, of the rows that it looked at."""
        return False

    @property
    def divided_tables(self) -> tuple[str, ...]:
        """The parameters that have a row for each item, and may be divided by rows among processes."""
        return ()

    def check_divisible(self) -> None:
        """Whether several processes can train it, as it is configured; else a word why not."""
        if not self.divided_tables:
            raise UnsupportedError(f"{self.title} is not trained by several processes: use one worker")

    def divide(self, division: Division) -> None:
        """From here on be one of several processes' models: keep the rows that are here."""
        self.check_divisible()
        for name in self.divided_tables:
            whole = getattr(self, name)
            here = division.rows_of(len(whole))
            setattr(self, name, nn.Parameter(whole.detach()[here.start : here.stop].clone()))

    @property
    def scores_candidates_apart(self) -> bool:
        """Whether `score_candidates` is less work than to score every bundle, because it scores no others."""
        return type(self).score_candidates is not Model.score_candidates

    def observe(self, data: Interactions) -> None:
        """Take from the training data what no gradient teaches: counts, closed forms."""

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        """The scalar to step down on, for one batch of a phase."""
        raise UnsupportedError(
            f"{type(self).__name__} names the phase {phase.name!r} but has no method 'loss'"
        )

    def settle(self, data: Interactions) -> None:
        """Work out, into buffers, what scoring needs from the weights as they now are and the training data.

        Called without gradients after the last step of each epoch; a graph model propagates here, once.
        """

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """A score for every row of `contents` (bundles by their items), known in training or not."""
        raise UnsupportedError(f"{self.title} does not match bundles to users")

    def score_candidates(self, histories: Histories, candidates: Tensor, contents: Ragged) -> Tensor:
        """Scores of some rows of `contents`, by their positions [rows, candidates].

        For a model whose scores are more than a product of two vectors, to score no more than is asked for.
        """
        scores = self.score_bundles(histories, contents)
        return self.checked("score_bundles", scores, len(histories), len(contents)).gather(1, candidates)

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """A score for every item as an addition to each row of `partial`."""
        raise UnsupportedError(f"{self.title} does not complete bundles")

    def score_item_candidates(
        self, histories: Histories, partial: Ragged, candidates: Tensor, contents: Ragged
    ) -> Tensor:
        """Scores of some items, by their positions [rows, candidates], as additions to `partial`."""
        scores = self.score_items(histories, partial, contents)
        return self.checked("score_items", scores, len(histories), self.sizes.items).gather(1, candidates)

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        """Scores of bundles that are not in `contents`, as `score_bundles` would give them."""  # [rows, new]
        scores = self.score_bundles(histories, contents.append(new))
        return self.checked("score_bundles", scores, len(histories), len(contents) + len(new))[
            :, len(contents) :
        ]

    # ── What a bundle that came after training is credited with, having had no time to sell ──────

    @property
    def credits_new_bundles(self) -> bool:
        """Whether scores go by sales, so that a new bundle is credited with some; then the three below hold.

        Such a model reads `Contents.expected_sales`, and has the settings `tasks` and `new_bundle_credit`.
        """
        return False

    def credit_new_bundles(self, sales: float) -> None:
        """From here on credit each new bundle, of which nothing else is said, with so many sales."""
        raise self._no_credit()

    def known_sales(self) -> Tensor:
        """How often each bundle of training was sold there."""  # [bundles]
        raise self._no_credit()

    def popularity_bias(self, sales: Tensor) -> Tensor:
        """What bundles that sold so often have in their scores, for everyone alike."""  # as `sales`
        raise self._no_credit()

    def _no_credit(self) -> UnsupportedError:
        return UnsupportedError(
            f"the scores of {self.title}, as it is configured, have no term for sales: it cannot go by how "
            "often a new bundle is expected to sell"
        )

    def encoded(self, people: Histories, contents: Ragged) -> Any:
        """People as the two methods below take them: whoever is asked about often is encoded once."""
        return people

    def bundle_fit(self, people: Any, which: Tensor, bundles: Tensor, contents: Ragged, among: int) -> Tensor:
        """One bundle's score for one of the people each, by their row in `which`, less the mean over the
        first `among` bundles: how far it stands out."""
        scores = self.score_bundles(people, contents)
        self.checked("score_bundles", scores, len(people), len(contents))
        return scores[which, bundles] - scores[:, :among].mean(1)[which]  # [rows]

    def item_fit(
        self, people: Any, which: Tensor, partial: Ragged, items: Tensor, contents: Ragged
    ) -> Tensor:
        """As `bundle_fit`: one item's score as an addition to each row of `partial`, less the mean over all
        items."""  # [rows]
        scores = self.score_items(people.rows(which), partial, contents)
        self.checked("score_items", scores, len(which), self.sizes.items)
        return scores.gather(1, items[:, None])[:, 0] - scores.mean(1)

    def vectors_of_items(self) -> Tensor:
        """A vector for every item; items that go into the same bundles have vectors that point alike."""
        raise UnsupportedError(f"{self.title} has no vectors of items, so it cannot say which are alike")

    def vectors_of_bundles(self, contents: Ragged) -> Tensor:
        """A vector for every row of `contents`; bundles that are alike have vectors that point alike."""
        raise UnsupportedError(f"{self.title} has no vectors of bundles, so it cannot say which are alike")

    def factors_of_bundles(self, contents: Ragged, start: int = 0) -> Factors:
        """For a model whose `score_bundles` is a product of two vectors and a bias, so that an index can
        search: those of the rows of `contents` from `start` on."""
        raise self._no_factors()

    def factors_of_people(self, histories: Histories, contents: Ragged) -> Tensor:
        """The other side of that product."""  # [rows, d]
        raise self._no_factors()

    def _no_factors(self) -> UnsupportedError:
        return UnsupportedError(
            f"the scores of {self.title} are not a product of two vectors that an index could search: use it "
            "without an index"
        )

    def item_share(self, histories: Histories, contents: Ragged) -> Tensor:
        """How far item history speaks for each person, 0 to 1; bundle history has the rest."""  # [rows]
        raise UnsupportedError(f"{self.title} has no gate between item and bundle history")

    def checked(self, method: str, scores: Tensor, rows: int, columns: int) -> Tensor:
        """Scores as the contract wants them, or a message for whoever wrote the model."""
        where = f"{type(self).__name__}.{method}"
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (rows, columns):
            given = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise UnsupportedError(f"{where} gave {given}; a tensor of the shape {[rows, columns]} is wanted")
        # A sum is finite only if all that went into it is: one pass, and more only where it is not. (Large
        # numbers may add up to infinity.)
        if not bool(torch.isfinite(scores.sum())) and not bool(torch.isfinite(scores).all()):
            raise UnsupportedError(
                f"{where} gave a score that is not a finite number, so there is no ranking"
            )
        return scores

    def known_users(self, histories: Histories) -> Tensor:
        """The positions of users of training, for a model that knows no others."""
        if histories.users is None:
            raise UnsupportedError(f"{self.title} knows only the users it was trained on")
        return histories.users

    # ── For models that know bundles by name, not by what is in them ─────────────────────────────

    def named_bundles(self, histories: Histories) -> Ragged:
        """The bundles of each history that were there at training."""
        return histories.bundles.keep(histories.bundles.values < self.sizes.bundles)

    def with_unnamed(self, scores: Tensor, contents: Ragged) -> Tensor:
        """Scores of the bundles of training, and below them all, one for each bundle that came later."""
        later = len(contents) - scores.shape[1]
        if not later:
            return scores
        lowest = scores.amin(1, keepdim=True) - 1 if scores.shape[1] else scores.new_zeros(len(scores), 1)
        return torch.cat([scores, lowest.expand(-1, later)], dim=1)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name, buffer in self._buffers.items():
            saved = state_dict.get(prefix + name)
            if buffer is not None and saved is not None and saved.shape != buffer.shape:
                self._buffers[name] = torch.empty_like(saved, device=buffer.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Completer(Model):
    """A model that completes bundles and does not match them to users."""

    @property
    def matches(self) -> bool:
        return False

    @property
    def generates(self) -> bool:
        return True
