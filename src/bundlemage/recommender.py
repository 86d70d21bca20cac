"""`Recommender`, the main class of the Python API: fit, recommend, evaluate, save and load a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

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
from bundlemage.campaigns.plan import Offer
from bundlemage.campaigns.run import run_campaign
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.core.filters import Filter
from bundlemage.core.history import Id
from bundlemage.core.shop import Shop, Trade
from bundlemage.data.checked_json import typed
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Source, Split, SplitPlan
from bundlemage.errors import ArtifactError, ConfigError
from bundlemage.evaluation import Evaluation, case_metrics, evaluation_of
from bundlemage.models.base import Interactions, Matcher, Model, SalesScorer, Sizes, can, require
from bundlemage.models.config import ModelConfig
from bundlemage.models.registry import check_ensemble, make_config, members_of, restored
from bundlemage.progress import Progress, in_silence, stderr_display
from bundlemage.training.assumed_sales import AssumedSales, find_assumed_sales
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import EpochProgress, EpochRecord, Observer
from bundlemage.training.loop import TrainingResult, train_members

Sales: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""The number of sales of each item, and of each bundle."""


class Recommender(Asker):
    """A model together with the data of the shop that it was trained on."""

    def __init__(self, model: str = "bundlemage", *, ensemble: int = 1, **settings: Any) -> None:
        """`model` is the name of a model, and `settings` are its settings.

        `ensemble` is the number of models that are trained with different seeds. Their scores are averaged.
        An ensemble of N models takes N times as long to train and to answer.
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
        calibration: Calibration | None = None,
    ) -> Recommender:
        """Train the model. Returns itself.

        `data` is a split, a dataset, or the result of a reader. `plan` says how to split the latter two.
        Held-out pairs are not used for training, but afterwards they are part of users' histories. With a
        `folder`, training writes checkpoints: after an interruption, call `fit` again with `resume` and the
        same data. `progress` shows a bar in a terminal or a notebook. `calibrate=False` skips `calibrate`,
        for models that are only compared. A model trained on all data has no validation cases; give it
        another model's `calibration`.
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
            )
        self.take(split, model, training, calibration=calibration)
        if training.interrupted:
            return self
        if calibrate:
            self.calibrate(split)
        elif split.new_bundles is not None:  # the ranks of the test bundles depend on the assumed sales
            self._find_assumed_sales(split)
        return self

    def take(
        self, split: Split, model: Model, training: TrainingResult, *, calibration: Calibration | None = None
    ) -> Recommender:
        """Use a model that was trained on this split, by this process or another one. Returns itself."""
        self.plan, self.protocol = split.plan, split.protocol
        self.training, self.history = training, training.history
        self._fitted = (model, Shop(split.dataset, resolve_device(self.config.device)))
        self._index, self.calibration, self.new_bundle_credit = None, calibration, None
        return self

    def calibrate(self, split: Split) -> None:
        """Compute `calibration` and `new_bundle_credit` if they are None. `split` is the one used by `fit`.

        `fit` calls this, except with `calibrate=False` or after an interruption. For the second value it
        trains a small model for matching only. `save` writes both values, and does not compute them.
        """
        self.check_same_shop(split)
        if self.calibration is None:
            self.calibration = chances.calibrate(self.model, split, self.shop.device)
        self._find_assumed_sales(split)

    def _find_assumed_sales(self, split: Split) -> None:
        if can(self.model, SalesScorer) and self.new_bundle_credit is None:
            epochs = 0 if self.training is None else self.training.best_epoch
            device = self.shop.device
            assumed = find_assumed_sales(self.model_name, self.config, split, device, epochs=epochs)
            self.model.assume_sales(assumed.sales)
            self.new_bundle_credit = assumed

    def evaluate(self, split: Split) -> Evaluation:
        """Return the metrics on a split's test cases. Histories come from the split's training part."""
        self.check_same_shop(split)
        data = Interactions.of(split.train, self.shop.device)
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
        offer = Offer(chosen, self.model, self.shop, self.calibration)
        return run_campaign(offer, Path(folder), users, resume=resume, progress=progress)

    # ── Saving and loading ───────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model, the ids, the catalogue and the histories to the folder `path`. Returns the folder.

        With `overwrite`, a saved model at this path is replaced.
        """
        assumed = self.new_bundle_credit
        config = {
            "model": self.model_name,
            "ensemble": members_of(self.model),
            "settings": self.config.model_dump(mode="json"),
            "protocol": self.protocol,
            "split": asdict(self.plan),
            "audience": None if self.calibration is None else asdict(self.calibration),
            "new_bundle_credit": None if assumed is None else assumed.to_json(),
        }
        artifact = Artifact(
            config=config,
            weights=dict(self.model.state_dict()),
            dataset=self.dataset,
            metrics=self.metrics,
            history="".join(record.to_line() for record in self.history),
            card=model_card(self.model.title, config, self.dataset, self.metrics, self.history, assumed),
        )
        save_artifact(artifact, Path(path), overwrite=overwrite)
        return Path(path)

    @classmethod
    def load(
        cls, path: str | Path, *, device: str = "auto", shared_weights: Path | None = None
    ) -> Recommender:
        """Read a saved model and verify the checksum of each file. Returns the recommender.

        Processes that give the same folder as `shared_weights` have the weights in memory only once.
        """
        artifact = load_artifact(Path(path), shared_weights)
        return cls._of(artifact, Path(path), device, len(artifact.dataset.users))

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
            loaded.plan = typed(SplitPlan, config["split"])
            loaded.protocol = config["protocol"]
            loaded.metrics = artifact.metrics
            loaded.history = tuple(map(EpochRecord.from_line, artifact.history.splitlines()))
            audience = config.get("audience")  # earlier versions did not save it
            loaded.calibration = None if audience is None else typed(Calibration, audience)
            assumed = config.get("new_bundle_credit")
            loaded.new_bundle_credit = None if assumed is None else typed(AssumedSales, assumed)
            model = restored(loaded.model_name, loaded.config, sizes, members, artifact.weights)
        except Exception as error:  # a damaged or forged model may fail in any way
            reason = one_line(error).rstrip(".")
            raise ArtifactError(f"{path} does not fit this program: {reason}. {TRAIN_AGAIN}") from error
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


def beside_popularity(recommender: Recommender, split: Split) -> list[Recommender]:
    """Returns the model and, unless it is itself popularity, a popularity model trained on the same split."""
    if recommender.model_name == "popularity":
        return [recommender]
    popularity = Recommender("popularity", device=str(recommender.shop.device))
    return [recommender, popularity.fit(split, calibrate=False)]


def evaluate_beside_popularity(recommender: Recommender, split: Split) -> list[Evaluation]:
    """Returns the metrics of the model, and those of a popularity model for comparison."""
    return [model.evaluate(split) for model in beside_popularity(recommender, split)]
