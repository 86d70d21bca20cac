"""The final training on all data, and how long training goes on before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bundlemage import Recommender, SplitPlan
from bundlemage.data.splits import Split
from bundlemage.models.auto import LEARNED, Auto
from bundlemage.models.base import SalesScorer, Sizes, require
from bundlemage.models.registry import build, make_config
from bundlemage.scorecard import scorecard
from bundlemage.store.repository import Store
from bundlemage.training import loop
from bundlemage.training.history import kept
from bundlemage.training.validation import EpochValue, Validation
from tests.cli.run import run, run_apart, run_json, stopped
from tests.service.running import command
from tests.small_shop import QUICK, small_shop
from tests.unit.test_auto import LEARNS_NOTHING, SHOP, found

SETTINGS: dict[str, Any] = QUICK | {"epochs": 6}
SMALL = [
    *("--set", "embedding_dim=8", "--set", "batch_size=512", "--set", "min_steps=1"),
    *("--device", "cpu", "--epochs", "6"),
]


@pytest.fixture(scope="module")
def split() -> Split:
    return SplitPlan("paper").divide(SHOP)


@pytest.fixture(scope="module")
def measured(split: Split) -> Recommender:
    model = Recommender("auto", **SETTINGS).fit(split, progress=False)
    model.metrics = scorecard(model, split).to_json()
    return model


@pytest.fixture(scope="module")
def final(measured: Recommender, split: Split) -> Recommender:
    return measured.refit(split, progress=False)


class TestRefit:
    def test_it_learns_from_all_data(self, final: Recommender, measured: Recommender, split: Split) -> None:
        assert measured.held_out == split.held_out.nnz > 0
        assert measured.protocol == "paper"
        assert (final.held_out, final.protocol, final.plan.protocol) == (0, "none", "none")
        model = final.model
        assert isinstance(model, Auto)
        ours = model.part(LEARNED)
        assert ours is not None
        sales = require(ours, SalesScorer).known_sales().numpy()
        assert (sales == split.dataset.user_bundle.sum(0).A1).all()

    def test_it_is_the_same_model_as_one_trained_so(self, measured: Recommender, final: Recommender) -> None:
        """BundleMage with the best number of epochs and closed forms, all fitted on all data."""
        best = kept(measured.history)[0].epoch
        assert final.history == measured.history  # the curve, and figures of every epoch
        assert isinstance(final.model, Auto)
        assert isinstance(measured.model, Auto)
        assert final.model.parts == measured.model.parts
        ours = final.model.part(LEARNED)
        assert ours is not None
        alone = Recommender(**SETTINGS | {"epochs": best}).fit(
            SHOP, SplitPlan("none"), progress=False, calibrate=False
        )
        mine, theirs = ours.state_dict(), alone.model.state_dict()
        differ = {name for name in theirs if not torch.equal(mine[name], theirs[name])}
        assert differ <= {"new_bundle_credit"}  # it is found by calibrating
        for part, member in zip(final.model.parts, final.model.members, strict=True):
            if part.model != LEARNED:
                closed = Recommender(part.model, device="cpu", **part.settings).fit(
                    SHOP, SplitPlan("none"), progress=False, calibrate=False
                )
                for name, tensor in closed.model.state_dict().items():
                    if name == "new_bundle_credit":
                        continue  # it is found by calibrating
                    assert torch.equal(member.state_dict()[name], tensor), (part.model, name)

    def test_figures_and_choice_are_those_of_the_measured_model(
        self, measured: Recommender, final: Recommender
    ) -> None:
        assert final.choice == measured.choice
        assert final.choice_in_words() == measured.choice_in_words() != []
        assert final.metrics["test"] == measured.metrics["test"]
        assert final.metrics["final"] == {"held_out_before": measured.held_out}
        assert "final" not in measured.metrics

    def test_a_later_training_may_take_as_many_epochs(
        self, measured: Recommender, final: Recommender, tmp_path: Path
    ) -> None:
        saved = final.save(tmp_path / "model")
        config = json.loads((saved / "config.json").read_text())
        assert config["settings"]["epochs"] == SETTINGS["epochs"]
        assert (config["protocol"], config["held_out"]) == ("none", 0)
        assert config["choice"] is not None
        loaded = Recommender.load(saved, device="cpu")
        assert loaded.held_out == 0
        assert loaded.choice == measured.choice
        assert loaded.calibration == final.calibration
        card = (saved / "README.md").read_text()
        assert "trained on all pairs" in card
        assert f"{measured.held_out:,} user-bundle pairs" in card
        assert all(line in card for line in final.choice_in_words())

    def test_chances_are_carried_over(self, measured: Recommender, final: Recommender) -> None:
        """Its own held-out pairs would be pairs that it has learned."""
        assert measured.calibration is not None
        if final.calibration is not None:
            values = [value for value in vars(final.calibration).values() if isinstance(value, float)]
            assert values
            assert np.isfinite(values).all()

    @pytest.mark.parametrize("name", ["bundlemage", "ease"])
    def test_other_models_are_refitted_too(self, name: str, split: Split) -> None:
        own = SETTINGS if name == "bundlemage" else {"device": "cpu"}
        model = Recommender(name, **own).fit(split, progress=False, calibrate=False)
        final = model.refit(split, progress=False)
        best = kept(model.history)[0].epoch if name == "bundlemage" else 0
        assert (final.held_out, final.protocol, final.history) == (0, "none", model.history)
        assert final.training is not None
        assert len(final.training.history) == best
        alone = Recommender(name, **own | ({"epochs": best} if best else {})).fit(
            SHOP, SplitPlan("none"), progress=False
        )
        assert found(final.recommend("u0001", 5)) == found(alone.recommend("u0001", 5))
        if best:
            assert final.config.model_dump()["epochs"] == SETTINGS["epochs"]

    def test_without_bundlemage_nothing_is_trained_by_steps(self) -> None:
        split = SplitPlan("paper").divide(small_shop())
        model = Recommender("auto", **LEARNS_NOTHING).fit(split, progress=False, calibrate=False)
        final = model.refit(split, progress=False)
        assert final.training is not None
        assert final.training.history == ()
        assert isinstance(final.model, Auto)
        assert final.model.part(LEARNED) is None

    def test_an_ensemble_takes_the_mean_of_its_best_epochs(self, split: Split) -> None:
        model = Recommender(ensemble=2, **SETTINGS).fit(split, progress=False, calibrate=False)
        epochs = [record.epoch for record in kept(model.history)]
        final = model.refit(split, progress=False)
        assert final.ensemble == 2
        assert len(final.history) == 2 * max(1, round(sum(epochs) / 2))


class TestCommand:
    def test_train_final(self, tmp_path: Path) -> None:
        given = ["train", "sample:tiny", *SMALL]
        plain = run_json(*given, "-o", tmp_path / "plain")
        told = run_json(*given, "-o", tmp_path / "final", "--final")
        assert told["test"] == plain["test"]
        assert told["best_epoch"] == plain["best_epoch"]
        one, other = (Recommender.load(tmp_path / name, device="cpu") for name in ("plain", "final"))
        assert one.held_out > 0 == other.held_out
        assert (one.protocol, other.protocol) == ("some-users", "none")
        assert one.choice == other.choice
        assert one.config.model_dump() == other.config.model_dump()
        assert not list(tmp_path.glob("*.checkpoints*"))

        again = run("evaluate", tmp_path / "final", "--device", "cpu")
        text = " ".join(again.output.split())
        assert "no case is left to test it" in text
        assert "README.md" in text
        assert "no case is left" not in run("evaluate", tmp_path / "plain", "--device", "cpu").output

    def test_without_held_out_pairs_it_is_refused(self, tmp_path: Path) -> None:
        refused = run(
            "train", "sample:tiny", "-o", tmp_path / "model", "--final", "--protocol", "none", code=2
        )
        text = " ".join(refused.stderr.split())
        assert "--final needs held-out pairs" in text
        assert "--protocol none" in text
        assert not (tmp_path / "model").exists()

    @pytest.mark.parametrize("model", ["bundlemage", "auto"])
    def test_kill_in_the_final_training_and_resume_give_the_same_model(
        self, model: str, tmp_path: Path
    ) -> None:
        """The checkpoints of the first training are there until the end, so it is not trained again."""
        given = ["train", "sample:tiny", "--final", "--model", model, *SMALL, "--json"]
        whole = json.loads(run_apart(*given, "-o", tmp_path / "whole"))
        assert whole["best_epoch"] > 2
        killed = [*given, "-o", tmp_path / "killed"]
        stopped("last.safetensors", whole["epochs"] + 2, *killed, "--checkpoint-every", 1)
        assert not (tmp_path / "killed").exists()
        assert (tmp_path / "killed.checkpoints-final").is_dir()
        resumed = json.loads(run_apart(*killed, "--resume"))
        assert resumed["test"] == whole["test"]
        for name in ("model.safetensors", "user_bundle.parquet"):
            one, other = ((tmp_path / folder / name).read_bytes() for folder in ("whole", "killed"))
            assert one == other, name
        configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("whole", "killed")]
        assert configs[0] == configs[1]
        assert (configs[0]["held_out"], configs[0]["protocol"]) == (0, "none")
        assert not list(tmp_path.glob("*.checkpoints*"))


@pytest.mark.parametrize("final", [False, True])
def test_serve_warns_about_a_model_that_held_data_out(
    final: bool, split: Split, measured: Recommender, tmp_path: Path
) -> None:
    model = measured.refit(split, progress=False) if final else measured
    saved = model.save(tmp_path / "model")
    db = f"sqlite:///{tmp_path}/shop.db"
    store = Store.open(db)
    store.import_dataset(model.dataset)
    store.close()
    with command(saved, db) as service:
        service.kill()
        text = " ".join(service.log().split())
    assert ("has not learned from" in text) == ("--final" in text) == (not final)
    assert (f"{measured.held_out:,} purchases" in text) == (not final)


class TestEarlyStopping:
    """The validation values come from a list, and everything else is real."""

    def epochs(
        self, values: list[float], monkeypatch: pytest.MonkeyPatch, split: Split, patience: int
    ) -> int:
        left = iter(values)

        def of(self: Validation, model: Any) -> EpochValue:
            return EpochValue({}, {}, next(left))

        monkeypatch.setattr(Validation, "of", of)
        config = make_config("bundlemage", QUICK | {"epochs": len(values), "patience": patience})
        return len(loop.train(build("bundlemage", config, Sizes.of(split.dataset)), config, split).history)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([0.3, 0.2, 0.1, 0.1, 0.1, 0.1], 4),  # three epochs without improvement
            ([0.1, 0.2, 0.3, *[0.29] * 9], 7),
            ([0.0] * 12, 12),  # still zero
            ([0.0] * 8 + [0.2, *[0.09] * 6], 13),
            # One lucky epoch, and then it rises steadily below that.
            ([0.1, 0.1, 0.4, 0.25, 0.27, 0.3, 0.33, 0.36, 0.39, 0.395], 10),
            # It rises no longer after the lucky epoch.
            ([0.1, 0.1, 0.4, 0.1, 0.1, 0.1, 0.1], 6),
        ],
    )
    def test_it_does_not_stop_while_validation_rises_or_is_zero(
        self, values: list[float], expected: int, monkeypatch: pytest.MonkeyPatch, split: Split
    ) -> None:
        assert self.epochs(values, monkeypatch, split, 3) == expected

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 8))
    def test_rising_compares_the_last_epochs_with_those_before(
        self, values: list[float], patience: int
    ) -> None:
        last, before = values[-patience:], values[-2 * patience : -patience]
        expected = bool(before) and np.median(last) > np.median(before) + 1e-12
        if not before or abs(np.median(last) - np.median(before)) > 1e-12:
            assert loop._rising(values, patience) == expected
