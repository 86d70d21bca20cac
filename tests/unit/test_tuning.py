"""What is searched, what is advised, and what a study keeps: without a training, or with one of a moment."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bundlemage.data.splits import SplitPlan
from bundlemage.errors import CheckpointError, ConfigError, MissingExtraError
from bundlemage.models.base import Matcher, Sizes, can
from bundlemage.models.baselines.views import CrossCBRConfig
from bundlemage.models.config import Between, BundleMageConfig, Domain, LearnedConfig, OneOf, Space
from bundlemage.models.registry import MODELS, build, make_config
from bundlemage.progress import in_silence
from bundlemage.recipe import Recipe
from bundlemage.tuning.adviser import Adviser
from bundlemage.tuning.session import blind, chosen_space, first_point, make_trial, tune
from bundlemage.tuning.study import Search, StudyFolder, Trial
from tests.small_shop import QUICK, pairs_of, small_shop

WITH_SPACE = [name for name, model in MODELS.items() if model.config_class.space]


# ── The space ────────────────────────────────────────────────────────────────────────────────────


def some_values(domain: Domain) -> list[Any]:
    return [*domain.choices] if isinstance(domain, OneOf) else [domain.low, domain.middle, domain.high]


def test_every_model_that_learns_by_steps_declares_a_space() -> None:
    learned = {name for name, model in MODELS.items() if issubclass(model.config_class, LearnedConfig)}
    assert learned <= set(WITH_SPACE)
    assert {"ease", "item-knn"} <= set(WITH_SPACE)


@pytest.mark.parametrize("name", WITH_SPACE)
def test_a_models_space_holds_its_defaults_and_gives_models_that_match(name: str) -> None:
    config_class = MODELS[name].config_class
    defaults = {setting: config_class.model_fields[setting].default for setting in config_class.space}
    assert chosen_space(config_class, {}, {}) == config_class.space
    assert first_point(config_class, config_class.space, {}) == defaults
    draw = random.Random(0)
    for setting, domain in config_class.space.items():
        for value in some_values(domain):
            chosen = {other: draw.choice(some_values(at)) for other, at in config_class.space.items()}
            config = make_config(name, {**chosen, setting: value})
            assert can(build(name, config, Sizes(3, 4, 2)), Matcher)


def test_a_space_is_narrowed_replaced_and_fixed() -> None:
    given: Space = {
        "learning_rate": Between(0.001, 0.01),
        "dropout": OneOf(0, 0.5),
        "patience": Between(5, 9),
    }
    space = chosen_space(BundleMageConfig, given, {"batch_size": 64})
    assert space["learning_rate"] == Between(0.001, 0.01)
    narrowed = chosen_space(CrossCBRConfig, {"contrast": Between(0.01, 0.1)}, {})
    assert narrowed["contrast"] == Between(0.01, 0.1, log=True)  # as the class counts it
    assert space["dropout"] == OneOf(0.0, 0.5)
    assert space["patience"] == Between(5, 9)
    assert "batch_size" not in space
    assert space["mask_bundles"] == BundleMageConfig.space["mask_bundles"]
    # Where the usual value is not in it, the search begins in the middle.
    begun = first_point(BundleMageConfig, space, {"mask_bundles": 0.8})
    assert (begun["mask_bundles"], begun["patience"], begun["dropout"]) == (0.8, 7, 0.5)
    assert begun["learning_rate"] == 0.004


@pytest.mark.parametrize(
    ("given", "fixed", "message"),
    [
        ({"seed": OneOf(1, 2)}, {}, "'seed' cannot be searched for"),
        ({"dropout": Between(0.0, 0.5)}, {"dropout": 0.1}, "'dropout' is both fixed to 0.1"),
        ({"dropout": Between(0.0, 1.5)}, {}, "space of 'dropout' is 0..1.5: setting 'dropout' is 1.5"),
        ({"embedding_dim": Between(64, 70)}, {}, "is 65; .*Name the values one by one.*=64,70"),
        ({"dropuot": OneOf(0.1, 0.2)}, {}, "unknown setting 'dropuot'"),
    ],
)
def test_an_impossible_space_is_refused(given: Space, fixed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen_space(BundleMageConfig, given, fixed)


def test_a_domain_has_something_to_choose() -> None:
    for wrong in (
        lambda: Between(2, 1),
        lambda: Between(0.0, 1.0, log=True),
        lambda: OneOf(1),
        lambda: OneOf(2, 2),
    ):
        with pytest.raises(ConfigError):
            wrong()
    assert Between(1, 100, log=True).middle == 10
    assert 3 in Between(1, 5)
    assert 3.5 not in Between(1, 5)
    assert True not in OneOf(0, 1)
    assert (str(Between(0.001, 0.1, log=True)), str(OneOf(True, "a"))) == ("0.001..0.1,log", "true,a")


# ── The advice ───────────────────────────────────────────────────────────────────────────────────

SPACE: Space = {
    "rate": Between(0.001, 1.0, log=True),
    "width": Between(1, 64),
    "kind": OneOf("a", "b"),
    "idle": Between(0.0, 1.0),
}
FIRST = {"rate": 0.1, "width": 8, "kind": "a", "idle": 0.5}


def made_up(adviser: Adviser, number: int) -> Trial:
    """A trial whose curve follows from its settings, without a training."""
    settings = adviser.ask(number)
    height = settings["width"] / 64 - abs(settings["rate"] - 0.3) + (settings["kind"] == "b")
    curve: list[float] = []
    state = "complete"
    if number % 7 == 6:
        trial = Trial(number, settings, "failed", None, 0, 0, 0.1, (), "it was too much")
        adviser.tell(trial)
        return trial
    for epoch in range(1, 9):
        curve.append(height * epoch)
        if adviser.stops(number, epoch, curve[-1]):
            state = "pruned"
            break
    trial = Trial(number, settings, state, max(curve), len(curve), len(curve), 0.1, tuple(curve))  # type: ignore[arg-type]
    adviser.tell(trial)
    return trial


def test_advice_follows_from_the_trials_alone() -> None:
    """Made anew at any moment, from what is on disk, the adviser goes on as if nothing had happened."""
    whole = Adviser(SPACE, FIRST, 3, 2, [])
    trials = [made_up(whole, number) for number in range(24)]
    assert trials[0].settings == FIRST
    assert {trial.state for trial in trials} == {"complete", "pruned", "failed"}
    stored = [Trial(**json.loads(json.dumps(asdict(trial)))) for trial in trials]
    for cut in (1, 7, 13, 20):
        resumed = Adviser(SPACE, FIRST, 3, 2, stored[:cut])
        assert [made_up(resumed, number) for number in range(cut, 24)] == trials[cut:]
    other = Adviser(SPACE, FIRST, 4, 2, [])
    assert [made_up(other, number) for number in range(4)][1:] != trials[1:4]


def test_what_failed_is_not_tried_on_and_on() -> None:
    adviser = Adviser({"rate": OneOf("slow", "fast", "wild")}, {"rate": "slow"}, 0, 2, [])
    tried = []
    for number in range(30):
        settings = adviser.ask(number)
        tried.append(settings["rate"])
        value = {"slow": 0.1, "fast": 0.2, "wild": None}[settings["rate"]]
        state = "failed" if value is None else "complete"
        adviser.tell(Trial(number, settings, state, value, 0, 0, 0.1))  # type: ignore[arg-type]
    assert tried[:12].count("wild") >= 2
    assert tried[12:].count("wild") <= 3
    assert tried[12:].count("fast") >= 12


def test_the_search_goes_where_it_is_good_and_says_what_mattered() -> None:
    adviser = Adviser(SPACE, FIRST, 0, 2, [])
    trials = [made_up(adviser, number) for number in range(20)]
    kinds = [trial.settings["kind"] for trial in trials[10:]]
    assert kinds.count("b") > 7  # of two, the one that is worth a whole point
    importance = adviser.importance(trials)
    assert importance is not None
    assert set(importance) == set(SPACE)
    assert max(importance, key=lambda name: importance[name]) == "kind"
    assert importance["idle"] < 0.2
    assert sum(importance.values()) == pytest.approx(1)
    assert adviser.importance(trials[:5]) is None


# ── Trials ───────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_the_test_can_be_reached_from_a_trial() -> None:
    split = SplitPlan().divide(small_shop())
    assert split.test is not None
    assert split.generation is not None
    given = blind(split)
    assert given.test is None
    assert given.generation is None
    assert given.dataset is given.train
    asked = {
        (int(user), bundle)
        for row, user in enumerate(split.test.users)
        for bundle in split.test.positives[row].indices.tolist()
    }
    assert asked & pairs_of(split.dataset.user_bundle) == asked
    assert not asked & pairs_of(given.dataset.user_bundle)
    assert given.validation is split.validation


def after_two(report: tuple[int, float]) -> bool:
    return report[0] == 2


def test_a_trial_that_goes_wrong_says_why() -> None:
    split = blind(SplitPlan().divide(small_shop()))
    diverged = make_trial(("bpr", QUICK, split), (0, {"learning_rate": 1e30}), after_two)
    assert diverged.value is None
    assert "no longer finite" in str(diverged.reason)
    stopped = make_trial(("bpr", QUICK, split), (0, {}), after_two)
    assert (stopped.state, len(stopped.curve)) == ("pruned", 2)
    assert stopped.value == max(stopped.curve)

    def broken(report: tuple[int, float]) -> bool:
        raise ValueError("no such thing")

    assert make_trial(("bpr", QUICK, split), (0, {}), broken).reason == "ValueError: no such thing"


def interrupting(report: tuple[int, float]) -> bool:
    raise KeyboardInterrupt


def test_ctrl_c_is_no_failure() -> None:
    split = blind(SplitPlan().divide(small_shop()))
    with pytest.raises(KeyboardInterrupt):
        make_trial(("bpr", QUICK, split), (0, {}), interrupting)


# ── The folder ───────────────────────────────────────────────────────────────────────────────────


def test_a_study_is_not_lost_and_not_mixed_up(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.path.mkdir()
    (folder.path / ".study.json.1.tmp").write_text("{")  # as a kill may leave it
    folder.check(resume=False)
    identity = {"space": {"a": {"one_of": (1, 2)}, "b": {"one_of": [3, 4]}}, "training data": "x"}
    assert folder.open(identity) == []
    trial = Trial(0, {"a": 1}, "complete", 0.1 + 0.2, 2, 1, 0.5, (0.1 + 0.2, 0.25))
    folder.keep(trial)
    (folder.path / "trials" / ".00001.json.1.tmp").write_text("{")
    assert folder.open(identity) == [trial]
    assert sorted(file.name for file in folder.path.rglob("*.*")) == ["00000.json", "study.json"]
    with pytest.raises(CheckpointError, match="holds a study already: add --resume"):
        folder.check(resume=False)
    folder.check(resume=True)
    other = {"space": {"a": {"one_of": [1, 5]}, "b": {"one_of": [3, 4]}}, "training data": "y"}
    with pytest.raises(CheckpointError) as refused:
        folder.open(other)
    assert '{"a": {"one_of": [1, 2]}} and is {"a": {"one_of": [1, 5]}}' in str(refused.value)
    assert "the training data is not the same" in str(refused.value)
    (folder.path / "trials" / "00000.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"00000\.json is missing or damaged"):
        folder.open(identity)
    with pytest.raises(CheckpointError, match="holds other files"):
        StudyFolder(tmp_path).check(resume=True)


def test_the_best_is_a_recipe(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.open({})
    settings = {
        "hidden_dims": (10, 5),
        "pooling": "both",
        "bundle_bias": True,
        "learning_rate": 1e-05,
        "seed": 3,
    }
    events = {"page view": 0.25, "buy": 1.0}
    folder.keep_best("dam", settings, {"protocol": "full", "positives": None}, events)
    recipe = Recipe.load(folder.path / "best.toml")
    assert recipe == Recipe("dam", {**settings, "hidden_dims": [10, 5]}, {"protocol": "full"}, events=events)
    assert recipe.recommender().config.seed == 3


# ── What is refused before a training ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model": "popularity"}, "nothing to search for: popularity has no space"),
        ({"model": "ease-items"}, "completes bundles and recommends none"),
        ({"settings": {"tasks": "generation"}}, "BundleMage, with these settings, completes bundles"),
        ({"plan": SplitPlan("none")}, "protocol none leaves no validation cases"),
        ({"settings": {"dropuot": 1}}, "unknown setting 'dropuot'"),
    ],
)
def test_a_search_that_cannot_be_judged_is_refused(
    asked: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(Search("sample", tmp_path / "study", **asked), in_silence)
    assert not (tmp_path / "study").exists()


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "bundlemage.tuning.adviser")
    with pytest.raises(MissingExtraError, match=r"tuning needs an extra: pip install 'bundlemage\[tune\]'"):
        tune(Search("sample", tmp_path / "study"), in_silence)


def test_a_model_without_epochs_is_judged_once(tmp_path: Path) -> None:
    study = tune(Search("sample", tmp_path / "study", model="item-knn", trials=3), in_silence)
    assert study.best is not None
    assert [trial.epochs for trial in study.trials] == [0, 0, 0]
    assert all(trial.value for trial in study.trials)


def test_a_study_is_not_gone_on_with_by_another_default(tmp_path: Path) -> None:
    """As after an upgrade: what nobody has named is a part of what was tried, too."""
    search = Search("sample", tmp_path / "study", model="ease", settings={"device": "cpu"}, trials=1)
    tune(search, in_silence)
    file = tmp_path / "study" / "study.json"
    stored = json.loads(file.read_text())
    unnamed = {**make_config("ease", {}).model_dump(mode="json"), "seed": 0}
    kept = {name for name in unnamed if name not in stored["space"] and name != "device"}
    assert stored["settings"] == {name: unnamed[name] for name in kept}
    stored["settings"]["since_then_gone"] = 0.5
    file.write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match=r'settings was \{"since_then_gone": 0\.5\} and is \{\}'):
        tune(replace(search, resume=True), in_silence)
