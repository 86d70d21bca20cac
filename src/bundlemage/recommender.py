"""`Recommender`, the main class of the Python API: fit, recommend, evaluate, save and load a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bundlemage.artifact.files import (
    Artifact,
    load_artifact,
    load_without_users,
    model_card,
    one_line,
    save_artifact,
)
from bundlemage.asker import Asker
from bundlemage.campaigns import chances
from bundlemage.campaigns.chances import Calibration
from bundlemage.campaigns.new_bundles import NewBundleCalibration, calibrate_new_bundles
from bundlemage.campaigns.plan import Offer
from bundlemage.campaigns.run import run_campaign, settings_of, what_if
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.campaigns.what_if import WhatIf
from bundlemage.core.filters import Filter
from bundlemage.core.history import Id
from bundlemage.core.owned_rule import best_share
from bundlemage.core.shop import Shop, Trade
from bundlemage.data.checked_json import typed
from bundlemage.data.dataset import ITEM_SCHEMA, BundleDataset, catalogue_table
from bundlemage.data.splits import Source, Split, SplitPlan
from bundlemage.errors import ArtifactError, ConfigError, UnsupportedError
from bundlemage.evaluation import Evaluation, case_metrics, evaluation_of
from bundlemage.models.auto import Auto, AutoConfig
from bundlemage.models.base import (
    ContentLearner,
    Matcher,
    Model,
    SalesScorer,
    Sizes,
    can,
    known_by_content,
    require,
)
from bundlemage.models.blend import Blend
from bundlemage.models.config import LearnedConfig, ModelConfig, RecencyConfig
from bundlemage.models.ragged import KeptForLast
from bundlemage.models.registry import check_ensemble, make_config, restored
from bundlemage.progress import Progress, in_silence, stderr_display
from bundlemage.training.assumed_sales import AssumedSales, find_assumed_sales
from bundlemage.training.choice import Choice, sentences
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import EpochProgress, EpochRecord, Observer, kept
from bundlemage.training.loop import TrainingResult, train_members
from bundlemage.training.probes import Probes
from bundlemage.training.recency import Recency
from bundlemage.wire.shop import ShopSettings

Sales: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""The number of sales of each item, and of each bundle."""


class Recommender(Asker):
    """A model together with the data of the shop that it was trained on."""

    def __init__(
        self,
        model: str = "bundlemage",
        *,
        ensemble: int = 1,
        shop: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """`model` is the name of a model, and `settings` are its settings.

        `ensemble` is the number of models that are trained with different seeds. Their scores are averaged.
        An ensemble of N models takes N times as long to train and to answer. `shop` are settings of the shop,
        such as `{"currency": "EUR", "locale": "de_DE"}`: the fields of `wire.shop.ShopSettings`. They are
        saved with the model, and do not change what it learns.
        """
        super().__init__()
        self.shop_settings = ShopSettings.of(shop or {})
        self.model_name = model
        self.config: ModelConfig = make_config(model, settings)
        check_ensemble(ensemble, model)
        self.ensemble = ensemble
        self.choice: Choice | None = None
        """For `auto`: what it consists of, and why."""
        self.recency: Recency | None = None
        """Which half-life was chosen, and why. None if nothing was compared."""
        self.held_out = 0
        """Number of user-bundle pairs that the model has not learned from."""
        self.plan = SplitPlan()
        self.protocol = "none"
        self.metrics: dict[str, Any] = {}
        self.history: tuple[EpochRecord, ...] = ()
        self.training: TrainingResult | None = None
        self._later_items = 0
        """The number of items that `with_items` has added."""
        self._chose_share = False
        """Whether `fit` has chosen `shop_settings.mostly_owned`, so that it may choose again."""
        self.new_bundle_credit: AssumedSales | None = None
        """The number of sales assumed for a bundle that is added after training. It is None before
        `calibrate` and for models of earlier versions: the median is then assumed. It is also None if the
        model's scores do not depend on sales."""

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
        calibrate: bool = True,
    ) -> Recommender:
        """Train the model. Returns itself.

        `data` is a split, a dataset, or the result of a reader. `plan` says how to split the latter two.
        Held-out pairs are not used for training, but afterwards they are part of users' histories. With a
        `folder`, training writes checkpoints: after an interruption, call `fit` again with `resume` and the
        same data. `progress` shows a bar in a terminal or a notebook. `calibrate=False` skips `calibrate`,
        for models that are only compared.
        """
        split = _split(data, plan)
        with stderr_display() as shown:
            model, training = train_members(
                self.model_name,
                self.config,
                split,
                self.ensemble,
                folder=folder,
                resume=resume,
                checkpoint_every=checkpoint_every,
                observers=[*observers, *([EpochProgress(shown)] if progress else [])],
                progress=shown if progress else in_silence,
            )
        self.take(split, model, training)
        if training.interrupted:
            return self
        if calibrate:
            self.calibrate(split)
        elif split.new_bundles is not None:  # the ranks of the test bundles depend on the assumed sales
            self._find_assumed_sales(self._probes(split))
        return self

    def take(self, split: Split, model: Model, training: TrainingResult) -> Recommender:
        """Use a model that was trained on this split, by this process or another one. Returns itself."""
        self.plan, self.protocol = split.plan, split.protocol
        self.training, self.history, self.choice = training, training.history, training.choice
        self.recency = training.recency
        if training.recency is not None:  # what is trained later, such as a final model, uses the same one
            self.config = self.config.model_copy(update={"half_life": training.recency.half_life})
        self.config = model.config if isinstance(model, Auto) else self.config
        trained = training.learned if isinstance(model, Auto) else model
        if trained is not None:  # fewer members after Ctrl-C
            self.ensemble = len(trained.members) if isinstance(trained, Blend) else 1
        self._later_items = 0
        if split.train.catalogue is not None and can(model, ContentLearner):
            model.learn_content(split.train.catalogue.items, split.train)
        self._fitted = (
            model,
            Shop(
                split.dataset,
                resolve_device(self.config.device),
                half_life=model.half_life,
                by_content=known_by_content(model),
            ),
        )
        self._index, self.calibration = None, None
        self.new_bundle_calibration, self.new_bundle_credit = None, None
        self.held_out = split.dataset.user_bundle.nnz - split.train.user_bundle.nnz
        return self

    def refit(
        self, split: Split, *, observers: Sequence[Observer] = (), progress: bool = True
    ) -> Recommender:
        """Return the same kind of model, trained on all data. It is the one to serve.

        `split` is the one used by `fit`. The new model is trained for as many epochs as were best, and `auto`
        keeps its choice. Its metrics are those of this model, which has not seen the test cases. After Ctrl-C
        there is no such model: `KeyboardInterrupt` is raised.
        """
        final = Recommender(
            self.model_name,
            ensemble=self.ensemble,
            shop=self.shop_settings.model_dump(),
            **{**self.config.model_dump(mode="json"), **self.final_settings()},
        )
        plan = replace(split.plan, protocol="none")
        final.fit(split.dataset, plan, observers=observers, calibrate=False, progress=progress)
        if final.training is not None and final.training.interrupted:
            raise KeyboardInterrupt
        return final.follow(self, split)

    def final_settings(self) -> dict[str, Any]:
        """The settings with which `refit` trains: epochs, half-life, and what `auto` consists of."""
        settings: dict[str, Any] = {}
        if isinstance(self.config, LearnedConfig) and self.history:
            best = [record.epoch for record in kept(self.history)]
            settings["epochs"] = max(1, round(sum(best) / len(best)))
        if isinstance(self.config, RecencyConfig) and self.recency is not None:
            settings["half_life"] = self.config.half_life
        if isinstance(self.config, AutoConfig):
            settings["parts"] = self.config.model_dump(mode="json")["parts"]
        return settings

    def follow(self, measured: Recommender, split: Split) -> Recommender:
        """Take over what a model trained on all data cannot measure itself. Returns itself.

        `measured` is the same kind of model, trained on the training part of `split`.
        """
        self.metrics = {**measured.metrics, "final": {"held_out_before": measured.held_out}}
        self.choice, self.recency, self.history = measured.choice, measured.recency, measured.history
        self.shop_settings = measured.shop_settings
        if isinstance(measured.config, LearnedConfig):  # a later training finds its own number of epochs
            self.config = self.config.model_copy(update={"epochs": measured.config.epochs})
        if measured.calibration is not None:
            self.calibration = chances.carried(
                measured.calibration, measured.model, self.model, split.dataset, self.shop.device
            )
        self.calibrate(SplitPlan("none").divide(split.dataset))
        return self

    def choice_in_words(self) -> list[str]:
        """What training has chosen, and why: the half-life, and what `auto` consists of in each task."""
        told = [] if self.recency is None else [str(self.recency)]
        if self.choice is not None and isinstance(self.config, AutoConfig):
            told += sentences(self.choice, self.config.parts)
        return told

    def _choose_mostly_owned(self, split: Split) -> None:
        """Choose `shop_settings.mostly_owned` on the validation cases, unless the caller has set it."""
        if split.validation is None or not can(self.model, Matcher):
            return
        if "mostly_owned" in self.shop_settings.model_fields_set and not self._chose_share:
            return
        share = best_share(
            self.model, split.validation, self.model.interactions(split.train, self.shop.device)
        )
        if share is not None:
            self.shop_settings = self.shop_settings.model_copy(update={"mostly_owned": share})
            self._chose_share = True

    def calibrate(self, split: Split) -> None:
        """Compute `calibration`, `new_bundle_calibration` and `new_bundle_credit` if they are None. Choose
        `shop_settings.mostly_owned` on the validation cases if there are enough and nobody has set it.

        `split` is the one used by `fit`, which calls this, except with `calibrate=False` or after an
        interruption. For the last two values it trains up to three models for matching, each without some of
        the bundles. `save` writes all values, and does not compute them.
        """
        self.check_same_shop(split)
        self._choose_mostly_owned(split)
        if self.calibration is None:
            self.calibration = chances.calibrate(self.model, split, self.shop.device)
        probes = self._probes(split)
        self._find_assumed_sales(probes)
        if can(self.model, Matcher) and self.new_bundle_calibration is None:
            self.new_bundle_calibration = calibrate_new_bundles(probes)

    def _probes(self, split: Split) -> Probes:
        epochs = 0 if self.training is None else self.training.best_epoch
        return Probes(
            self.model_name, self.config, split, self.shop.device, epochs=epochs, members=self.ensemble
        )

    def _find_assumed_sales(self, probes: Probes) -> None:
        if can(self.model, SalesScorer) and self.new_bundle_credit is None:
            assumed = find_assumed_sales(self.config, probes)
            self.model.assume_sales(assumed.sales)
            self.new_bundle_credit = assumed

    def evaluate(self, split: Split) -> Evaluation:
        """Return the metrics on a split's test cases. Histories come from the split's training part."""
        self.check_same_shop(split)
        data = self.model.interactions(split.train, self.shop.device)
        return evaluation_of(self.model, split, case_metrics(self.model, split, data))

    def check_same_shop(self, split: Split) -> None:
        """Raise `ConfigError` if the users, items or bundles of a split differ from those of the model."""
        for kind in ("users", "items", "bundles"):
            own_ids, split_ids = getattr(self.dataset, kind), getattr(split.dataset, kind)
            if own_ids != split_ids:
                raise ConfigError(
                    f"this data has other {kind} than the model was trained on "
                    f"({len(split_ids):,} against {len(own_ids):,}): evaluate on the data it was trained on"
                )

    # ── Items that came after training ───────────────────────────────────────────────────────────

    def with_items(self, items: Any) -> Recommender:
        """Return a recommender that also knows these new items, by what their records say. Nothing is
        trained, and this recommender stays as it is.

        `items` are dicts with `item_id` and any of `title`, `description`, `tags`, `price` and `vector`, or a
        table with these columns. The new items can be in histories and new bundles, and are proposed by
        `complete` and `design`.

        >>> later = model.with_items([{"item_id": "g9001", "title": "Moons", "tags": ["Space"]}])
        >>> later.complete("u0001", ["g9001"], k=3)
        """
        table = item_records(items)
        names = table["item_id"].to_pylist()
        for name in names:
            if name in self.dataset.items:
                raise ConfigError(f"the item {name!r} is in the data that the model was trained on")
        model = require(self.model, ContentLearner)
        enough = model.knows_by_content(table)
        if not enough.all():
            missing = ", ".join(repr(name) for name, known in zip(names, enough, strict=True) if not known)
            raise ConfigError(
                f"nothing that the model knows is in the records of {missing}: give words, tags or a vector "
                "that items of the training data have, too"
            )
        extended, shop = copy(self), self.shop
        dataset = shop.dataset.with_items(table)
        larger_model = model.with_items(table)
        larger_shop = Shop(
            dataset,
            shop.device,
            shop.trade.with_more(items=len(names)),
            half_life=model.half_life,
            by_content=known_by_content(larger_model),
        )
        extended._fitted = (larger_model, larger_shop)
        extended._later_items += len(names)
        extended._index, extended._sample = None, KeptForLast()
        return extended

    # ── Campaigns ────────────────────────────────────────────────────────────────────────────────

    def campaign(
        self,
        folder: str | Path,
        *,
        users: Iterable[Id] | None = None,
        where: Filter | None = None,
        resume: bool = False,
        progress: Progress = in_silence,
        **settings: Any,
    ) -> CampaignSummary:
        """Choose bundles for all users, or for `users`, with the highest total value within shared limits.

        `settings` are those of `campaigns.settings.Campaign`: per_user, stock, shown_at_most,
        different_at_most, budget, reserve, value, format and so on. The chosen bundles are written to files
        in `folder`/parts. If the campaign is killed, `resume` continues it and writes the same files.
        Returns a summary.
        """
        require(self.model, Matcher)
        chosen = Campaign.of(where=where or Filter(), **settings)
        offer = Offer.of(chosen, self.model, self.shop, self.calibration, self.shop_settings)
        return run_campaign(offer, Path(folder), users, resume=resume, progress=progress)

    def what_if(
        self,
        folder: str | Path,
        changes: Mapping[str, float | str] | None = None,
        *,
        users: Iterable[Id] | None = None,
        **more: float | str,
    ) -> list[WhatIf]:
        """Returns by how much the expected value of a finished campaign would change with another limit.

        A change has the new size of a limit, or a difference such as "+200". The limits are budget,
        shown_at_most, different_at_most, per_user, and `stock:ITEM` with an item's id. Each change counts
        alone. `users` are those of the campaign, if it was not for all users.

        >>> model.what_if("spring", {"stock:g0022": "+200"}, budget=2000)
        """
        require(self.model, Matcher)
        asked = {**(changes or {}), **more}
        if not asked:
            raise ConfigError("give at least one change, such as budget=2000")
        chosen = Campaign.of(**settings_of(Path(folder)))
        offer = Offer.of(chosen, self.model, self.shop, self.calibration, self.shop_settings)
        return what_if(offer, Path(folder), asked, users)

    # ── Saving and loading ───────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model, the ids, the catalogue and the histories to the folder `path`. Returns the folder.

        With `overwrite`, a saved model at this path is replaced.
        """
        if self._later_items:
            raise UnsupportedError(
                "items that were added with with_items are not saved: save the recommender without them, and "
                "add them again after loading"
            )
        assumed, of_new = self.new_bundle_credit, self.new_bundle_calibration
        config = {
            "model": self.model_name,
            "ensemble": self.ensemble,
            "settings": self.config.model_dump(mode="json"),
            "protocol": self.protocol,
            "split": asdict(self.plan),
            "held_out": self.held_out,
            "audience": None if self.calibration is None else asdict(self.calibration),
            "new_bundle_audience": None if of_new is None else asdict(of_new),
            "new_bundle_credit": None if assumed is None else assumed.to_json(),
            "choice": None if self.choice is None else self.choice.to_json(),
            **({} if self.recency is None else {"recency": self.recency.to_json()}),
            "shop": self.shop_settings.model_dump(mode="json"),
        }
        artifact = Artifact(
            config=config,
            weights=dict(self.model.state_dict()),
            dataset=self.dataset,
            metrics=self.metrics,
            history="".join(record.to_line() for record in self.history),
            card=model_card(
                self.model.title,
                config,
                self.dataset,
                self.metrics,
                self.history,
                choice=self.choice_in_words(),
                about_new=[str(part) for part in (assumed, of_new) if part is not None],
            ),
        )
        save_artifact(artifact, Path(path), overwrite=overwrite)
        return Path(path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        shop: Mapping[str, Any] | None = None,
        shared_weights: Path | None = None,
    ) -> Recommender:
        """Read a saved model and verify the checksum of each file. Returns the recommender.

        `shop` are settings of the shop that replace the saved ones, such as `{"locale": "de_DE"}`. Processes
        that give the same folder as `shared_weights` have the weights in memory only once.
        """
        artifact = load_artifact(Path(path), shared_weights)
        loaded = cls._of(artifact, Path(path), device, len(artifact.dataset.users))
        loaded.shop_settings = loaded.shop_settings.changed(shop or {})
        return loaded

    @classmethod
    def load_without_users(cls, path: Path, users: int, sales: Sales, *, device: str = "auto") -> Recommender:
        """Read a saved model for `rank_bundles`, without users' histories and without verifying files.

        `users` is the number of users in the training data, `sales` the sales of each item and each bundle.
        """
        return cls._of(load_without_users(path), path, device, users, sales)

    @classmethod
    def _of(
        cls, artifact: Artifact, path: Path, device: str, users: int, sales: Sales | None = None
    ) -> Recommender:
        on_device = resolve_device(device)
        config, dataset = artifact.config, artifact.dataset
        sizes = replace(Sizes.of(dataset), users=users)
        try:
            members = config.get("ensemble", 1)  # earlier versions had no ensembles
            loaded = cls(config["model"], ensemble=members, **config["settings"])
            loaded.config = make_config(loaded.model_name, {**config["settings"], "device": device})
            # Earlier versions had no choice: they used histories as given, and did not know times.
            earlier = {"histories": "as given", "order": "random"}
            loaded.plan = typed(SplitPlan, {**earlier, **config["split"]})
            loaded.protocol = config["protocol"]
            loaded.metrics = artifact.metrics
            loaded.history = tuple(map(EpochRecord.from_line, artifact.history.splitlines()))
            audience = config.get("audience")  # earlier versions did not save it
            loaded.calibration = None if audience is None else typed(Calibration, audience)
            of_new = config.get("new_bundle_audience")
            loaded.new_bundle_calibration = None if of_new is None else typed(NewBundleCalibration, of_new)
            assumed = config.get("new_bundle_credit")
            loaded.new_bundle_credit = None if assumed is None else typed(AssumedSales, assumed)
            loaded.held_out = typed(int, config.get("held_out", 0))
            choice = config.get("choice")
            loaded.choice = None if choice is None else typed(Choice, choice)
            recency = config.get("recency")
            loaded.recency = None if recency is None else typed(Recency, recency)
            loaded.shop_settings = ShopSettings.of(config.get("shop", {}))  # earlier versions had none
            model = restored(loaded.model_name, loaded.config, sizes, members, artifact.weights)
        except Exception as error:  # a damaged or forged model may fail in any way
            reason = one_line(error).rstrip(".")
            raise ArtifactError(f"{path} does not fit this program: {reason}. {TRAIN_AGAIN}") from error
        model.to(on_device).eval()
        trade = Trade.of(dataset)
        if sales is not None:
            trade = replace(trade, item_sales=sales[0], bundle_sales=sales[1])
        own = known_by_content(model)
        shop = Shop(dataset, on_device, trade, half_life=model.half_life, by_content=own)
        loaded._fitted = (model, shop)
        return loaded


def item_records(items: Any) -> pa.Table:
    """Returns records of items as a table with the columns of `ITEM_SCHEMA`; raises ConfigError."""
    try:
        if isinstance(items, pa.Table) or hasattr(items, "__arrow_c_stream__"):
            table = pa.table(items)
        else:
            records = [dict(record) for record in items]
            fields = dict.fromkeys(name for record in records for name in record)
            table = pa.table({name: [record.get(name) for record in records] for name in fields})
        columns = {name: table[name].cast(ITEM_SCHEMA.field(name).type) for name in table.column_names}
        columns["item_id"]  # raises KeyError if it is missing
    except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
        known = ", ".join(ITEM_SCHEMA.names)
        raise ConfigError(
            f"the records of items are wrong ({one_line(error)}); the columns are: {known}"
        ) from None
    names = columns["item_id"].to_pylist()
    if None in names or len(set(names)) < len(names):
        raise ConfigError("each record needs an item_id of its own")
    return catalogue_table(ITEM_SCHEMA, columns)


TRAIN_AGAIN = "Train the model again, or use the version that saved it."


def _split(data: BundleDataset | Source | Split, plan: SplitPlan | None) -> Split:
    if isinstance(data, Split):
        if plan is not None:
            raise ConfigError(
                "a split is already divided, so it takes no plan: give a plan only with a dataset"
            )
        return data
    if isinstance(data, Source):
        return (plan or SplitPlan()).divide(data.dataset, data.ready)
    if isinstance(data, BundleDataset):
        return (plan or SplitPlan()).divide(data)
    raise ConfigError(
        f"fit takes a dataset or a split, not {type(data).__name__}: read it with bundlemage.read"
    )
