"""The object that a Python user works with: fit, ask, evaluate, save, load. Ids go in, ids come out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bundlemage.artifact.card import model_card
from bundlemage.artifact.files import Artifact, load_artifact, load_without_users, save_artifact
from bundlemage.asker import Asker
from bundlemage.campaigns import chances
from bundlemage.campaigns.chances import Calibration
from bundlemage.campaigns.run import run_campaign
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.core.filters import Filter
from bundlemage.core.history import Id
from bundlemage.core.shop import Shop, Trade
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Source, Split, SplitPlan
from bundlemage.errors import ArtifactError, ConfigError
from bundlemage.evaluation.protocols import Evaluation, case_metrics, evaluation_of
from bundlemage.models.base import Interactions, Matcher, Model, SalesScorer, Sizes, can, require
from bundlemage.models.config import ModelConfig
from bundlemage.models.ensemble import build_ensemble, check_ensemble, members_of
from bundlemage.models.registry import make_config
from bundlemage.progress import Progress, for_people, in_silence
from bundlemage.training.credit import NewBundleCredit, find_credit
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import EpochProgress, EpochRecord, Observer
from bundlemage.training.loop import TrainingResult
from bundlemage.training.members import train_members

Sales: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""How often each item and each bundle was sold."""


class Recommender(Asker):
    """A model together with the shop it was fitted to."""

    def __init__(self, model: str = "bundlemage", *, ensemble: int = 1, **settings: Any) -> None:
        """A model by its name, with its settings; `ensemble` is the number of members, which are averaged.

        Members of an ensemble differ in the seed. N of them take N times as long to train and to answer.
        """
        super().__init__()
        self.model_name = model
        self.config: ModelConfig = make_config(model, settings)
        check_ensemble(ensemble, model)
        self.ensemble = ensemble
        self.plan = SplitPlan()
        self.protocol = "none"
        self.metrics: dict[str, Any] = {}
        self.history: tuple[EpochRecord, ...] = ()
        self.training: TrainingResult | None = None
        self.new_bundle_credit: NewBundleCredit | None = None
        """The number of sales that a bundle is credited with if it came after training. None where scores do
        not depend on sales, for models of earlier versions, and before `calibrate`: then it is the median."""

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
        calibration: Calibration | None = None,
    ) -> Recommender:
        """Learn from a dataset, or from what a reader returned, divided by `plan`; or from a split.

        Held-out pairs are not learned from, but they belong to a user's history afterwards.
        With a `folder`, training survives being killed: fit again with `resume` and the same data.
        `progress` shows a bar in a terminal or a notebook. `calibrate=False` leaves out what `calibrate`
        does, for models that are only compared. `calibration` is that of another model, for a model that is
        trained on everything and has no validation cases of its own.
        """
        split = _split(data, plan)
        with for_people() as shown:
            model, training = train_members(
                self.model_name,
                self.config,
                split,
                self.ensemble,
                folder=folder,
                resume=resume,
                checkpoint_every=checkpoint_every,
                observers=[*observers, *([EpochProgress(shown)] if progress else [])],
            )
        self.take(split, model, training, calibration=calibration)
        if training.interrupted:
            return self
        if calibrate:
            self.calibrate(split)
        elif split.new_bundles is not None:  # the credit decides where the bundles of the test rank
            self._find_credit(split)
        return self

    def take(
        self, split: Split, model: Model, training: TrainingResult, *, calibration: Calibration | None = None
    ) -> Recommender:
        """Take over a model that was trained on a split, by this process or by others; returns itself."""
        self.plan, self.protocol = split.plan, split.protocol
        self.training, self.history = training, training.history
        self._fitted = (model, Shop(split.dataset, resolve_device(self.config.device)))
        self._index, self.calibration, self.new_bundle_credit = None, calibration, None
        return self

    def calibrate(self, split: Split) -> None:
        """Find `calibration` and `new_bundle_credit`, unless they are known, from the split of the fitting.

        `fit` does this, except with `calibrate=False` or after an interruption. The credit needs a small
        model that is trained on matching alone. Saving writes both, and does not look for them.
        """
        self.check_same_shop(split)
        if self.calibration is None:
            self.calibration = chances.calibrate(self.model, split, self.shop.device)
        self._find_credit(split)

    def _find_credit(self, split: Split) -> None:
        if can(self.model, SalesScorer) and self.new_bundle_credit is None:
            epochs = 0 if self.training is None else self.training.best_epoch
            credit = find_credit(self.model_name, self.config, split, self.shop.device, epochs=epochs)
            self.model.credit_new_bundles(credit.sales)
            self.new_bundle_credit = credit

    def evaluate(self, split: Split) -> Evaluation:
        """Metrics on a split's test cases. Histories come from the split's training part."""
        self.check_same_shop(split)
        data = Interactions.of(split.train, self.shop.device)
        return evaluation_of(self.model, split, case_metrics(self.model, split, data))

    def check_same_shop(self, split: Split) -> None:
        """Raise `ConfigError` if a split has other users, items or bundles than the model."""
        for kind in ("users", "items", "bundles"):
            mine, theirs = getattr(self.dataset, kind), getattr(split.dataset, kind)
            if mine != theirs:
                raise ConfigError(
                    f"this data has other {kind} than the model was trained on "
                    f"({len(theirs):,} against {len(mine):,}): evaluate on the data it was trained on"
                )

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
        """Bundles for every user of the shop, or for these, worth most together under limits that all share.

        Settings are those of `campaigns.settings.Campaign`: per_user, stock, shown_at_most,
        different_at_most, budget, reserve, value, format and so on. Who is shown what goes to files in
        `folder`/parts; killed at any moment, `resume` goes on to the very same files.
        """
        require(self.model, Matcher)
        return run_campaign(
            Campaign.of(where=where or Filter(), **settings),
            Path(folder),
            self.model,
            self.shop,
            self.calibration,
            users,
            resume=resume,
            progress=progress,
        )

    # ── Saving and loading ───────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model with its ids, catalogue and histories as one folder. Returns the folder.

        `overwrite` replaces a saved model at this path.
        """
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
        """Read a saved model, and check the checksum of each file."""
        artifact = load_artifact(Path(path))
        return cls._of(artifact, Path(path), device, len(artifact.dataset.users))

    @classmethod
    def load_without_users(cls, path: Path, users: int, sales: Sales, *, device: str = "auto") -> Recommender:
        """Read a saved model for `rank_bundles`, without its users' histories, and without any check.

        `users` is how many users it was trained on, `sales` how often each item and bundle was sold.
        """
        return cls._of(load_without_users(path), path, device, users, sales)

    @classmethod
    def _of(
        cls, artifact: Artifact, path: Path, device: str, users: int, sales: Sales | None = None
    ) -> Recommender:
        config, dataset = artifact.config, artifact.dataset
        members = config.get("ensemble", 1)  # models of earlier versions are single ones
        try:
            loaded = cls(config["model"], ensemble=members, **config["settings"])
        except ConfigError as error:
            raise ArtifactError(f"{path} does not fit this program: {error}. {TRAIN_AGAIN}") from None
        loaded.config = make_config(loaded.model_name, {**config["settings"], "device": device})
        loaded.plan = SplitPlan(**config["split"])
        loaded.protocol = config["protocol"]
        loaded.metrics = artifact.metrics
        loaded.history = tuple(map(EpochRecord.from_line, artifact.history.splitlines()))
        audience = config.get("audience")  # models of earlier versions have none
        loaded.calibration = None if audience is None else Calibration(**audience)
        credit = config.get("new_bundle_credit")
        loaded.new_bundle_credit = None if credit is None else NewBundleCredit.from_json(credit)
        on_device = resolve_device(device)
        sizes = replace(Sizes.of(dataset), users=users)
        model = build_ensemble(loaded.model_name, loaded.config, sizes, members)
        try:
            model.load_state_dict(artifact.weights)
        except RuntimeError as error:
            raise ArtifactError(
                f"{path} does not fit the {model.title} of this program: {' '.join(str(error).split())} "
                f"{TRAIN_AGAIN}"
            ) from None
        model.to(on_device).eval()
        trade = Trade.of(dataset)
        if sales is not None:
            trade = replace(trade, item_sales=sales[0], bundle_sales=sales[1])
        loaded._fitted = (model, Shop(dataset, on_device, trade))
        return loaded


TRAIN_AGAIN = "Train the model again, or use the version that saved it."


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


def beside_popularity(recommender: Recommender, split: Split) -> list[Recommender]:
    """The model, and one by popularity that learned from the same split, unless the model is that already."""
    if recommender.model_name == "popularity":
        return [recommender]
    popularity = Recommender("popularity", device=str(recommender.shop.device))
    return [recommender, popularity.fit(split, calibrate=False)]


def evaluate_beside_popularity(recommender: Recommender, split: Split) -> list[Evaluation]:
    """The metrics of the model, and those of popularity to compare them with."""
    return [model.evaluate(split) for model in beside_popularity(recommender, split)]
