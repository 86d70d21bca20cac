"""The object a user holds: fit, recommend, complete, evaluate, save, load. Ids in, ids out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.artifact.card import model_card
from bundlemage.artifact.files import Artifact, load_artifact, load_without_users, save_artifact
from bundlemage.campaigns.audience import forecast
from bundlemage.campaigns.chances import Calibration, calibrate
from bundlemage.campaigns.forecasts import BundleForecast
from bundlemage.campaigns.run import Ask, run_campaign
from bundlemage.campaigns.settings import CampaignSummary, campaign_settings, campaign_users
from bundlemage.core.answering import Questions, rankings, rows_at_a_time
from bundlemage.core.bulk import record_batches, slices
from bundlemage.core.filters import Filter
from bundlemage.core.ranking import Ranking
from bundlemage.core.shop import History, Id, NewBundles, Recommendation, Shop, Trade, User, best
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Source, Split, SplitPlan
from bundlemage.designer.design import Designs, design
from bundlemage.designer.explain import Explanation, explain_bundles, explain_item
from bundlemage.errors import ArtifactError, BundleMageError, ConfigError, UnsupportedError
from bundlemage.evaluation.results import Evaluation, evaluate
from bundlemage.models.base import Histories, Interactions, Model, Sizes
from bundlemage.models.config import ModelConfig
from bundlemage.models.ensemble import build_ensemble, check_ensemble, members_of
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import make_config
from bundlemage.retrieval.guard import LEAST_BUNDLES, IndexReport, built
from bundlemage.retrieval.index import BundleIndex
from bundlemage.training.credit import NewBundleCredit, find_credit
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import EpochRecord, Observer
from bundlemage.training.loop import TrainingResult, train
from bundlemage.training.members import Trainer, train_members
from bundlemage.training.progress import bar_for_people
from bundlemage.wire.design import DesignRequest

Row = TypeVar("Row")
Sales: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""How often each item and each bundle was sold."""


class Recommender:
    """A model together with the shop it was fitted to."""

    def __init__(self, model: str = "bundlemage", *, ensemble: int = 1, **settings: Any) -> None:
        """A model by its name, with settings of its own; with `ensemble`, so many of it, averaged.

        Members of an ensemble differ in the seed. N of them take N times as long to train and to answer.
        """
        self.model_name = model
        self.config: ModelConfig = make_config(model, settings)
        check_ensemble(ensemble, model)
        self.ensemble = ensemble
        self.plan = SplitPlan()
        self.protocol = "none"
        self.metrics: dict[str, Any] = {}
        self.history: tuple[EpochRecord, ...] = ()
        self.training: TrainingResult | None = None
        self._fitted: tuple[Model, Shop] | None = None
        self._calibration: Calibration | Split | None = None
        self._credit: NewBundleCredit | Split | None = None
        self._built: BundleIndex | None = None

    # ── Fitting ──────────────────────────────────────────────────────────────────────────────────

    def fit(
        self,
        data: BundleDataset | Source | Split,
        plan: SplitPlan | None = None,
        *,
        folder: Path | None = None,
        resume: bool = False,
        checkpoint_every: int | None = None,
        observers: Sequence[Observer] = (),
        progress: bool = True,
        calibration: Calibration | None = None,
        trainer: Trainer = train,
    ) -> Recommender:
        """Learn from a dataset, or from what a reader gave, divided as `plan` says; or from a split.

        Held-out pairs are not learned from, but they belong to a user's history afterwards.
        With a `folder`, training survives being killed: fit again with `resume` and the same data.
        `progress` shows a bar in a terminal or a notebook. `calibration` is that of another model, where this
        one is trained on everything and has no validation cases of its own. `trainer` is who trains, such as
        an engine's processes.
        """
        split = _split(data, plan)
        self.plan, self.protocol = split.plan, split.protocol
        model, self.training = train_members(
            self.model_name,
            self.config,
            split,
            self.ensemble,
            trainer,
            folder=folder,
            resume=resume,
            checkpoint_every=checkpoint_every,
            observers=[*observers, *(bar_for_people() if progress else ())],
        )
        self.history = self.training.history
        self._fitted = (model, Shop(split.dataset, resolve_device(self.config.device)))
        self._calibration = calibration or split
        self._credit = split if model.credits_new_bundles else None
        return self

    def evaluate(self, split: Split) -> Evaluation:
        """The model on a split's test cases. Histories come from the split's training part."""
        self.check_same_shop(split)
        if split.new_bundles is not None:
            self.settle_credit()
        return evaluate(self.model, split, Interactions.of(split.train, self.shop.device))

    def check_same_shop(self, split: Split) -> None:
        for kind in ("users", "items", "bundles"):
            mine, theirs = getattr(self.dataset, kind), getattr(split.dataset, kind)
            if mine != theirs:
                raise ConfigError(
                    f"this data has other {kind} than the model was trained on "
                    f"({len(theirs):,} against {len(mine):,}): evaluate on the data it was trained on"
                )

    @property
    def model(self) -> Model:
        return self._fit_or_fail()[0]

    @property
    def shop(self) -> Shop:
        return self._fit_or_fail()[1]

    @property
    def dataset(self) -> BundleDataset:
        """All that is known of the shop, held-out pairs included."""
        return self.shop.dataset

    def _fit_or_fail(self) -> tuple[Model, Shop]:
        if self._fitted is None:
            raise BundleMageError("this recommender is not fitted yet: call fit, or use Recommender.load")
        return self._fitted

    @property
    def calibration(self) -> Calibration | None:
        """How scores become chances; None where the model was fitted without validation cases.

        Worked out when it is first asked for, and saved with the model: a study that compares models need not
        wait for it.
        """
        if isinstance(self._calibration, Split):
            self._calibration = calibrate(self.model, self._calibration, self.shop.device)
        return self._calibration

    @property
    def new_bundle_credit(self) -> NewBundleCredit | None:
        """What a bundle that came after training is credited with; None where scores have no term for sales,
        and for models of earlier versions.

        Worked out when it is first needed: here, before saving, and before the first question about bundles
        that training did not know. It trains a small model on matching alone.
        """
        if isinstance(self._credit, Split):
            epochs = 0 if self.training is None else self.training.best_epoch
            found = find_credit(self.model_name, self.config, self._credit, self.shop.device, epochs=epochs)
            self.model.credit_new_bundles(found.sales)
            self._credit = found
        return self._credit

    def settle_credit(self) -> None:
        """See to it that the model credits new bundles as `new_bundle_credit` says."""
        _ = self.new_bundle_credit

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────

    def recommend(
        self,
        user: User,
        k: int = 10,
        *,
        where: Filter | None = None,
        new_bundles: NewBundles | None = None,
        expected_sales: Mapping[str, float] | None = None,
        sells_like: Mapping[str, Id] | None = None,
        include_owned: bool = False,
    ) -> list[Recommendation]:
        """The k bundles that fit a user best, of those that the user has not and that `where` lets through.

        `new_bundles` are further candidates that the shop had not at training: id → item ids. Each is ranked
        as if it had sold as often as `new_bundle_credit` says, unless you know better: `expected_sales` has
        a number of sales for some of them, `sells_like` a bundle of the shop that sold as often.

        >>> model.recommend("u0007", new_bundles={"box": ["g0022", "g0401"]}, sells_like={"box": "b0013"})
        """
        return self.recommend_many(
            [user],
            k,
            where=where,
            new_bundles=new_bundles,
            expected_sales=expected_sales,
            sells_like=sells_like,
            include_owned=include_owned,
        )[0]

    def recommend_many(
        self,
        users: Iterable[User],
        k: int = 10,
        *,
        where: Filter | None = None,
        new_bundles: NewBundles | None = None,
        expected_sales: Mapping[str, float] | None = None,
        sells_like: Mapping[str, Id] | None = None,
        include_owned: bool = False,
    ) -> list[list[Recommendation]]:
        """`recommend` for many at a time. For all users of a shop there is `recommend_all`."""
        self.check_matches()
        new = {str(name): items for name, items in (new_bundles or {}).items()}
        expected = self.shop.expectations(self.model, new, expected_sales or {}, sells_like or {})
        if new:
            self.settle_credit()
        candidates, index = self.shop.bundles(where, new), self._index

        def questions() -> Iterator[Questions]:
            for batch in self._in_batches(users, k, len(candidates.ids) if index is None else index.width):
                self._check_known(batch)
                yield Questions(*self.shop.encode(batch, new, expected))

        found = rankings(self.model, questions(), candidates, k, include_owned=include_owned, index=index)
        return [answers for ranking in found for answers in best(ranking, candidates)]

    def complete(
        self,
        user: User,
        items: Sequence[Id] = (),
        k: int = 5,
        *,
        where: Filter | None = None,
        include_owned: bool = False,
    ) -> list[Recommendation]:
        """The k items that best complete a partial bundle for a user; with no items, how to begin one.

        Items of the partial bundle never come back; items that the user owns only with `include_owned`.
        """
        return self.complete_many([(user, items)], k, where=where, include_owned=include_owned)[0]

    def complete_many(
        self,
        cases: Iterable[tuple[User, Sequence[Id]]],
        k: int = 5,
        *,
        where: Filter | None = None,
        include_owned: bool = False,
    ) -> list[list[Recommendation]]:
        """`complete` for many (user, items) at a time."""
        self.check_generates()
        candidates = self.shop.items(where)

        def questions() -> Iterator[Questions]:
            for batch in self._in_batches(cases, k, len(candidates.ids)):
                users = [user for user, _ in batch]
                self._check_known(users)
                rows = [self.shop.item_positions(items) for _, items in batch]
                yield Questions(*self.shop.encode(users), Ragged.from_lists(rows, self.shop.device))

        found = rankings(self.model, questions(), candidates, k, include_owned=include_owned)
        return [answers for ranking in found for answers in best(ranking, candidates)]

    def score_bundle(
        self, items: Sequence[Id], price: float | None = None, *, discount: float | None = None, k: int = 10
    ) -> BundleForecast:
        """The audience of a bundle that does not exist yet, among all users of the shop.

        Who would take it, how many they are, what it is like, which item it would miss least and what would
        do better there. The model does not know of prices: a price, or a discount on the items' prices, only
        turns buyers into takings.
        """
        self.check_matches()
        _check_k(k)

        def everyone() -> Iterator[tuple[list[str], Histories]]:
            rows, start = rows_at_a_time(len(self.dataset.bundles), self.shop.device), 0
            for part in slices(self.shop.everyone(), rows):
                yield self.shop.user_ids.slice(start, len(part)).to_pylist(), part
                start += len(part)

        return forecast(
            self.model,
            self.shop,
            everyone,
            items,
            price,
            discount=discount,
            k=k,
            calibration=self.calibration,
        )

    # ── Designing ────────────────────────────────────────────────────────────────────────────────

    def design(self, user: User, **wishes: Any) -> Designs:
        """Designs whole bundles for a user. `bundlemage.wire.design.DesignRequest` lists the wishes.

        >>> model.design("u0007", start=["g0022"], size=(3, 5), budget=40, tags={"at least": {"Horror": 1}})

        Best first, each with its price, score and reasons. `ImpossibleDesignError` says what cannot hold
        together, and what would have to change.
        """
        self.check_generates()
        request = DesignRequest.of(**wishes)
        self._check_known([user])
        return design(self.model, self.shop, *self.shop.encode([user]), request)

    def explain(
        self, user: User, *, bundle: Id | None = None, item: Id | None = None, items: Sequence[Id] = ()
    ) -> Explanation:
        """Why a bundle is for a user; or why an item, as an addition to `items`. The strongest reason first.

        Each thing that the user has, and each of `items`, is left out in turn, and the model asked again.
        """
        if (bundle is None) == (item is None) or (items and item is None):
            raise ConfigError("explain either a 'bundle', or an 'item' as an addition to 'items'")
        self._check_known([user])
        one, contents = self.shop.encode([user])
        if bundle is not None:
            self.check_matches()
            place = self.dataset.bundles.position(str(bundle))
            return explain_bundles(self.model, self.shop, one, contents, [place])[0]
        self.check_generates()
        place = self.dataset.items.position(str(item))
        partial = tuple(self.shop.item_positions(items))
        return explain_item(self.model, self.shop, one, contents, place, partial)

    # ── Asking for everyone ──────────────────────────────────────────────────────────────────────

    def recommend_all(
        self,
        k: int = 10,
        *,
        users: Iterable[Id] | None = None,
        where: Filter | None = None,
        include_owned: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """`recommend` for every user of the shop, or for these: Arrow batches, so many users at a time.

        Columns: user_id, rank, bundle_id, score, source. Memory does not grow with the number of users. A
        user for whom there is no bundle left has no row.
        """
        if users is None:
            histories, names = self.shop.everyone(), self.shop.user_ids
        elif isinstance(users, str):
            raise ConfigError(f"give a list of users, not one text: write [{users!r}]")
        else:
            chosen = list(map(str, users))
            histories, names = self.shop.known(chosen), pa.array(chosen, pa.string())
        found = self.rank_bundles(histories, k, where=where, include_owned=include_owned)
        return record_batches(found, names, self.shop.bundle_ids)

    def campaign(
        self,
        folder: str | Path,
        *,
        users: Iterable[Id] | None = None,
        where: Filter | None = None,
        resume: bool = False,
        progress: Callable[[int, int], None] | None = None,
        ask: Ask | None = None,
        **settings: Any,
    ) -> CampaignSummary:
        """Bundles for every user of the shop, or for these, worth most together under limits that all share.

        Settings are those of `campaigns.settings.Campaign`: per_user, stock, shown_at_most,
        different_at_most, budget, reserve, value, format and so on. Who is shown what goes to files in
        `folder`/parts; killed at any moment, `resume` goes on to the very same files. `ask` is who asks the
        model, such as an engine's processes.
        """
        self.check_matches()
        asked = campaign_settings(where=where or Filter(), **settings)
        chosen = campaign_users(self.shop, users)
        return run_campaign(
            asked,
            Path(folder),
            self.model,
            self.shop,
            self.calibration,
            chosen,
            resume=resume,
            progress=progress,
            ask=ask,
        )

    def rank_bundles(
        self,
        histories: Histories,
        k: int = 10,
        *,
        where: Filter | None = None,
        include_owned: bool = False,
    ) -> Iterator[Ranking]:
        """`recommend` by positions, for as many histories as you like, of known users or not.

        Bundles and items are given and answered by their positions in `dataset.bundles` and `dataset.items`.
        The rankings follow each other in the order of the histories, so many rows each.
        """
        self.check_matches()
        _check_k(k)
        candidates = self.shop.bundles(where)
        index = self._index
        rows = rows_at_a_time(len(candidates.ids) if index is None else index.width, self.shop.device)
        batches = (
            Questions(part, self.shop.interactions.bundle_item)
            for part in slices(self.shop.checked(histories), rows)
        )
        return rankings(self.model, batches, candidates, k, include_owned=include_owned, index=index)

    # ── Millions of bundles ──────────────────────────────────────────────────────────────────────

    def use_index(
        self,
        least_recall: float = 0.95,
        *,
        least_bundles: int = LEAST_BUNDLES,
        most_share: float = 0.25,
        seed: int = 0,
        progress: Callable[[str], None] | None = None,
    ) -> IndexReport:
        """Search the bundles by an index from here on, in `recommend` and its kin, in place of one by one.

        It is built in memory, and asked for the ten best bundles of some of the shop's users: where it finds
        less than `least_recall` of what an exact search finds, having looked at up to `most_share` of the
        bundles, that is a `RecallError`, and the search stays exact. It stays so, too, for fewer than
        `least_bundles`, where one person is answered sooner without. With an index, scores are estimates:
        the report says how good.
        """
        self.check_matches()
        self._built = None
        self._built, report = built(
            self.model,
            self.shop,
            least_recall,
            least_bundles=least_bundles,
            most_share=most_share,
            seed=seed,
            say=progress or (lambda _: None),
        )
        return report

    @property
    def _index(self) -> BundleIndex | None:
        """Of the model that is there now: one that is fitted anew has none."""
        return self._built if self._built is not None and self._built.model is self.model else None

    def check_matches(self) -> None:
        if not self.model.matches:
            raise UnsupportedError("this model learned generation alone: it does not recommend bundles")

    def check_generates(self) -> None:
        if not self.model.generates:
            raise UnsupportedError("this model learned matching alone: it does not complete bundles")

    def _in_batches(self, rows: Iterable[Row], k: int, candidates: int) -> Iterator[list[Row]]:
        _check_k(k)
        if isinstance(rows, str):
            raise ConfigError(f"give a list of users, not one text: write [{rows!r}]")
        remaining = iter(rows)
        while batch := list(islice(remaining, rows_at_a_time(candidates, self.shop.device))):
            yield batch

    def _check_known(self, users: Sequence[User]) -> None:
        if not self.model.knows_new_users and any(isinstance(user, History) for user in users):
            raise UnsupportedError(f"{self.model.title} knows only the users it was trained on")

    # ── Keeping ──────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model with its ids, catalogue and histories as one folder."""
        credit = self.new_bundle_credit
        config = {
            "model": self.model_name,
            "ensemble": members_of(self.model),
            "settings": self.config.model_dump(mode="json"),
            "protocol": self.protocol,
            "split": asdict(self.plan),
            "audience": None if self.calibration is None else asdict(self.calibration),
            "new_bundle_credit": None if credit is None else credit.to_json(),
        }
        artifact = Artifact(
            config=config,
            weights=dict(self.model.state_dict()),
            dataset=self.dataset,
            metrics=self.metrics,
            history="".join(record.to_line() for record in self.history),
            card=model_card(self.model.title, config, self.dataset, self.metrics, self.history, credit),
        )
        save_artifact(artifact, Path(path), overwrite=overwrite)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, *, device: str = "auto") -> Recommender:
        """A saved model, checked file by file."""
        artifact = load_artifact(Path(path))
        return cls._of(artifact, Path(path), device, len(artifact.dataset.users))

    @classmethod
    def load_without_users(cls, path: Path, users: int, sales: Sales, *, device: str = "auto") -> Recommender:
        """A saved model for histories that are given to it: `rank_bundles` needs no user in memory.

        How many users there are and what sells how often is told; no file is checked here.
        """
        return cls._of(load_without_users(path), path, device, users, sales)

    @classmethod
    def _of(
        cls, artifact: Artifact, path: Path, device: str, users: int, sales: Sales | None = None
    ) -> Recommender:
        members = artifact.config.get("ensemble", 1)  # models of earlier versions are single ones
        settings = {**artifact.config["settings"], "device": device}
        loaded = cls(artifact.config["model"], ensemble=members, **settings)
        loaded.plan = SplitPlan(**artifact.config["split"])
        loaded.protocol = artifact.config["protocol"]
        loaded.metrics = artifact.metrics
        loaded.history = tuple(map(EpochRecord.from_line, artifact.history.splitlines()))
        audience = artifact.config.get("audience")  # models of earlier versions have none
        loaded._calibration = None if audience is None else Calibration(**audience)
        credit = artifact.config.get("new_bundle_credit")
        loaded._credit = None if credit is None else NewBundleCredit.from_json(credit)
        where, dataset = resolve_device(device), artifact.dataset
        sizes = replace(Sizes.of(dataset), users=users)
        model = build_ensemble(loaded.model_name, loaded.config, sizes, members)
        try:
            model.load_state_dict(artifact.weights)
        except RuntimeError as error:
            raise ArtifactError(
                f"{path} does not fit the {model.title} of this program: {' '.join(str(error).split())} "
                "Train the model again, or use the version that saved it."
            ) from None
        model.to(where).eval()
        trade = Trade.of(dataset)
        loaded._fitted = (model, Shop(dataset, where, trade if sales is None else trade.selling(*sales)))
        return loaded


def _split(data: BundleDataset | Source | Split, plan: SplitPlan | None) -> Split:
    if isinstance(data, Split):
        if plan is not None:
            raise ConfigError("a split is divided already: give a plan with a dataset only")
        return data
    if isinstance(data, Source):
        return (plan or SplitPlan()).divide(data.dataset, data.ready)
    if isinstance(data, BundleDataset):
        return (plan or SplitPlan()).divide(data)
    raise ConfigError(
        f"fit takes a dataset or a split, not {type(data).__name__}: read it with bundlemage.read"
    )


def _check_k(k: int) -> None:
    if not isinstance(k, int) or k < 1:
        raise ConfigError(f"k is {k!r}; ask for at least one answer, in a whole number")
