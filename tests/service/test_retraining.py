"""Retraining: who is asked about, who wins, and that nothing half-done is ever published."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import httpx
import numpy as np
import pytest

from bundlemage import Recommender
from bundlemage.artifact.files import artifact_version
from bundlemage.data.dataset import BundleDataset, Vocabulary, as_binary
from bundlemage.data.dataset import binary_matrix as matrix
from bundlemage.data.splits import Split, SplitPlan
from bundlemage.errors import ArtifactError, BusyError, ConfigError, UnsupportedError
from bundlemage.live import EMPTY, Live, Question, Stock
from bundlemage.retraining import run
from bundlemage.retraining.comparison import DECISIVE, compare_matching
from bundlemage.retraining.holding_out import hold_out
from bundlemage.retraining.purchases import Purchases, choose_purchases
from bundlemage.retraining.run import Retrained, retrain
from bundlemage.retraining.unseen import learned_by
from bundlemage.scorecard import Scorecard, scorecard
from bundlemage.store.records import Bundle, CatalogueChange, InteractionRecord, Item
from bundlemage.store.repository import Store
from bundlemage.training.history import EpochRecord, Observer
from tests.forked import start_forked
from tests.growing_shop import (
    QUICK,
    USERS,
    early_model,
    early_shop,
    late_model,
    late_shop,
    open_early,
    open_late,
    record_of,
    sell,
)
from tests.small_shop import pairs_of, row_of
from tests.waiting import wait_until

Names = set[tuple[str, str]]
NOTHING_LEARNED: dict[str, Any] = {
    **{"learning_rate": 1e-9, "epochs": 1, "popularity_weight": 0.0},
    "residual": False,  # or random vectors would already rank bundles of a user's own items first
}


@pytest.fixture(scope="module")
def little_learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Else a model of hardly any purchases is good already: it goes by what a user's items have in common.
    return early_model(tmp_path_factory.mktemp("models") / "shop", scores="dot", residual=False)


@pytest.fixture(scope="module")
def much_learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return late_model(tmp_path_factory.mktemp("models") / "good")


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/file.db")
    yield opened
    opened.close()


def stock_of(dataset: BundleDataset, withdrawn: frozenset[str] = frozenset()) -> Stock:
    return EMPTY.after(
        CatalogueChange(
            1,
            [Item(name) for name in dataset.items],
            [
                Bundle(
                    name,
                    tuple(dataset.items[place] for place in row_of(dataset.bundle_item, row)),
                    withdrawn=name in withdrawn,
                )
                for row, name in enumerate(dataset.bundles)
            ],
        )
    )


def named(dataset: BundleDataset, matrix: Any) -> Names:
    return {(dataset.users[user], dataset.bundles[bundle]) for user, bundle in pairs_of(matrix)}


def upside_down(dataset: BundleDataset) -> BundleDataset:
    """The same shop with its users and bundles in another order, so that only names tell who is who."""
    return replace(
        dataset,
        user_item=dataset.user_item[::-1],
        user_bundle=dataset.user_bundle[::-1, ::-1],
        bundle_item=dataset.bundle_item[::-1],
        users=Vocabulary("user", dataset.users.ids[::-1]),
        bundles=Vocabulary("bundle", dataset.bundles.ids[::-1]),
    )


NO_BUNDLE = np.zeros(0, np.int32)


def purchases_of(
    store: Store, dataset: BundleDataset, serving: Recommender, stock: Stock | None = None
) -> Purchases:
    """The cases of a dataset whose purchases have no times."""
    learned, random = learned_by(serving), np.random.default_rng(0)
    return choose_purchases(store, dataset, learned, stock or stock_of(dataset), 30, random)


def asked(split: Split) -> Names:
    assert split.test is not None
    pairs = zip(split.test.users, split.test.positives.indices, strict=True)
    return {(split.dataset.users[user], split.dataset.bundles[bundle]) for user, bundle in pairs}


def test_an_ensemble_is_replaced_by_one_of_as_many_members(file_store: Store, tmp_path: Path) -> None:
    open_early(file_store, early_model(tmp_path / "shop", ensemble=2, epochs=1))
    sell(file_store)
    outcome = retrain(file_store, force=True, settings={"epochs": 1})
    assert outcome.path is not None
    model = Recommender.load(outcome.path, device="cpu")
    assert model.ensemble == 2
    assert model.model.title == "BundleMage × 2"


# ── Who wins ─────────────────────────────────────────────────────────────────────────────────────────


def test_more_purchases_make_a_better_model_and_it_is_published(
    store: Store, little_learned: Path, tmp_path: Path
) -> None:
    open_early(store, little_learned)
    store.put(Item("new item"))
    store.put(Bundle("new bundle", ("new item", "i0")))
    store.add_interactions([InteractionRecord("someone new", "bundle", "new bundle")])
    sell(store)

    outcome = retrain(store, models=tmp_path / "models")

    assert outcome.published
    assert outcome.cases == USERS
    assert outcome.comparison is not None
    found = outcome.comparison
    assert found.candidate[DECISIVE] > found.serving[DECISIVE] + 0.25
    assert found.difference > 5 * found.standard_error > 0
    assert store.state().model == outcome.version != outcome.serving
    record = store.model(outcome.version or "")
    assert record is not None
    assert Path(record.path) == outcome.path
    assert record.metrics["retrain"]["candidate"] == found.candidate
    assert record.metrics["retrain"]["instead_of"] == artifact_version(little_learned)
    rows = [row["model"] for row in record.metrics["test"]]
    assert rows[0] == "BundleMage"
    assert "Popularity" in rows
    assert outcome.path is not None
    assert outcome.path.parent == tmp_path / "models"
    model = Recommender.load(outcome.path, device="cpu")
    assert "new item" in model.dataset.items
    assert "new bundle" in model.dataset.bundles
    # The store knows times, so a half-life is chosen, or none, which the serving model left open.
    as_before = model.config.model_copy(update={"half_life": "fit"})
    assert as_before == Recommender.load(little_learned, device="cpu").config
    assert model.held_out == 0
    assert model.history[-1].validation  # the curve is that of the training with validation cases

    # All that is in the store has now had its part in the new model.
    again = retrain(store)
    assert not again.published
    assert again.cases == 0
    assert "0 users" in again.reason
    assert "30 are needed" in again.reason
    assert "--force" in again.reason
    assert store.state().model == outcome.version


def test_a_worse_model_is_thrown_away_unless_forced_or_tolerated(
    file_store: Store, much_learned: Path, tmp_path: Path
) -> None:
    open_late(file_store, much_learned)
    folder = tmp_path / "models"

    refused = retrain(file_store, settings=NOTHING_LEARNED, models=folder)
    assert not refused.published
    assert refused.version is None
    assert refused.path is None
    assert refused.comparison is not None
    assert refused.comparison.candidate[DECISIVE] < refused.comparison.serving[DECISIVE] - 0.1
    assert "is lower than" in refused.reason
    assert file_store.state().model == artifact_version(much_learned)
    assert list(folder.iterdir()) == []

    gap = -refused.comparison.difference
    assert not retrain(file_store, settings=NOTHING_LEARNED, models=folder, tolerance=gap * 0.99).published
    tolerated = retrain(file_store, settings=NOTHING_LEARNED, models=folder, tolerance=gap * 1.01)
    assert tolerated.published
    assert "is allowed" in tolerated.reason

    file_store.publish(record_of(much_learned))
    forced = retrain(file_store, settings=NOTHING_LEARNED, models=folder, force=True)
    assert forced.published
    assert forced.reason.startswith("forced: its ndcg@10")
    assert forced.comparison == refused.comparison  # the same seed, the same cases, the same model
    assert file_store.state().model == forced.version
    assert forced.path is not None
    assert Recommender.load(forced.path, device="cpu").config.model_dump()["learning_rate"] == 1e-9


def test_too_few_users_to_ask_about(file_store: Store, little_learned: Path, tmp_path: Path) -> None:
    open_early(file_store, little_learned)
    sell(file_store, 29)

    def refuse(split: Split, outcome: Retrained) -> None:
        raise AssertionError("it trains")

    waiting = retrain(file_store, on_split=refuse)
    assert (waiting.published, waiting.cases, waiting.training) == (False, 29, None)
    assert "29 users have a bundle" in waiting.reason
    quick = {"epochs": 1}
    assert retrain(file_store, min_cases=29, models=tmp_path / "a", settings=quick).comparison is not None

    file_store.publish(record_of(little_learned))
    forced = retrain(file_store, force=True, models=tmp_path / "b", settings=quick)
    assert forced.published
    assert forced.comparison is None
    assert forced.training is not None
    assert file_store.state().model == forced.version


def test_a_single_case_is_too_few(file_store: Store, little_learned: Path) -> None:
    open_early(file_store, little_learned)
    sell(file_store, 1)
    reason = retrain(file_store, min_cases=1).reason
    assert reason.startswith("1 user has a bundle that is new to the serving model, and 2 are needed")


# ── Who is asked about ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["paper", "full", "cold-bundles", "none", "files"])
def test_the_bundles_asked_for_are_new_to_both_models(protocol: str, file_store: Store) -> None:
    late = late_shop()
    users, bundles = late.user_bundle.nonzero()
    sold = np.random.default_rng(1).random(len(users)) < 0.7
    before = upside_down(
        late.with_interactions(user_bundle=matrix(users[sold], bundles[sold], late.user_bundle.shape))
    )
    plan = SplitPlan("none" if protocol == "files" else protocol, seed=3)
    split = plan.divide(before)
    if protocol == "files":
        split = replace(split, protocol="bgcn", plan=SplitPlan())
    serving = Recommender(**QUICK | {"epochs": 1}).fit(split, progress=False)
    seen = named(before, split.train.user_bundle)
    if split.validation is not None:
        rows, columns = split.validation.positives.nonzero()
        tuned_by = zip(split.validation.users[rows], columns, strict=True)
        seen |= {(before.users[user], before.bundles[bundle]) for user, bundle in tuned_by}
    assert (seen == named(before, before.user_bundle)) == (protocol in ("none", "files"))

    purchases = purchases_of(file_store, late, serving)
    assert purchases.since is None
    plan = SplitPlan("none", 0, 20)
    found = hold_out(late, purchases, NO_BUNDLE, plan, np.random.default_rng(0))

    fresh = named(late, late.user_bundle) - seen
    assert asked(found) <= fresh
    assert {user for user, _ in asked(found)} == {user for user, _ in fresh}
    assert found.test is not None
    assert found.validation is not None
    assert len(set(found.test.users.tolist())) == len(found.test)
    learned = named(late, found.train.user_bundle)
    rows, columns = found.validation.positives.nonzero()
    chosen_by = named(late, matrix(found.validation.users[rows], columns, late.user_bundle.shape))
    assert learned | chosen_by | asked(found) == named(late, late.user_bundle)
    assert not learned & chosen_by
    assert not asked(found) & (learned | chosen_by)
    assert pairs_of(found.train.bundle_item) == pairs_of(late.bundle_item)


def test_nobody_is_asked_about_what_is_not_sold_or_with_nothing_to_go_by(file_store: Store) -> None:
    late = late_shop()
    serving = Recommender(**QUICK | {"epochs": 1}).fit(early_shop(), SplitPlan("none"), progress=False)
    gone = frozenset(f"b{number}" for number in range(0, 40, 2))
    sold = [case.bundle for case in purchases_of(file_store, late, serving, stock_of(late, gone)).cases]
    assert sold
    assert not set(sold) & gone

    nothing_else = late.with_interactions(user_item=as_binary(late.user_item.multiply(0)))
    assert len(purchases_of(file_store, nothing_else, serving).cases) == USERS
    one_each = as_binary(early_shop().user_bundle[:, ::-1])  # not those that were sold early
    only_one = nothing_else.with_interactions(user_bundle=one_each)
    assert len(purchases_of(file_store, only_one, serving).cases) == 0
    with_items = late.with_interactions(user_bundle=one_each)
    assert len(purchases_of(file_store, with_items, serving).cases) == 10


def test_a_comparison_counts_the_lists_that_the_service_would_show(
    little_learned: Path, much_learned: Path, file_store: Store
) -> None:
    late = late_shop()
    old, new = (Recommender.load(path, device="cpu") for path in (little_learned, much_learned))
    stock = stock_of(late, frozenset({"b1", "b9"}))
    # Some users have seen three of the bundles that they did not buy.
    cases = [
        replace(case, shown=frozenset({"b2", "b3", "b4"} - {case.bundle} if number % 2 else ()))
        for number, case in enumerate(purchases_of(file_store, late, old, stock).cases)
    ]
    progress: list[tuple[Any, ...]] = []
    lives = Live(old, stock), Live(new, stock)
    found = compare_matching(*lives, cases, lambda *step: progress.append(step))

    def gains(recommender: Recommender) -> list[float]:
        live, values = Live(recommender, stock), []
        for case in cases:
            (answer,) = live.answer([Question(case.history, 20)])
            assert isinstance(answer, list)
            names = [one.id for one in answer if one.id not in case.shown][:10]
            values.append(1 / math.log2(names.index(case.bundle) + 2) if case.bundle in names else 0.0)
        return values

    theirs, ours = np.array(gains(old)), np.array(gains(new))
    assert found.cases == len(theirs)
    assert found.serving[DECISIVE] == pytest.approx(theirs.mean())
    assert found.candidate[DECISIVE] == pytest.approx(ours.mean())
    assert found.difference == pytest.approx((ours - theirs).mean())
    assert found.standard_error == pytest.approx((ours - theirs).std(ddof=1) / math.sqrt(len(ours)))
    assert set(found.serving) == {f"{name}@{k}" for name in ("ndcg", "recall") for k in (5, 10, 20)}
    assert [step for step in progress if step[1] == step[2]] == [
        (f"cases of the {name} model", len(ours), len(ours)) for name in ("serving", "new")
    ]


# ── What can go wrong ────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_work_is_said_before_training(
    file_store: Store, little_learned: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="has no model"):
        retrain(file_store)
    open_early(file_store, little_learned)
    sell(file_store)
    with pytest.raises(ConfigError, match="unknown setting 'epoch'"):
        retrain(file_store, settings={"epoch": 3})
    with pytest.raises(ConfigError, match="tolerance"):
        retrain(file_store, tolerance=-1)
    with pytest.raises(UnsupportedError, match="--force"):
        retrain(file_store, settings={"tasks": "generation"})
    for force in (False, True):
        with pytest.raises(UnsupportedError, match=r"knows only the users .* service cannot serve it"):
            retrain(file_store, model="bpr", force=force)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="no model can be written to"):
        retrain(file_store, models=tmp_path / "file" / "models")
    moved = early_model(tmp_path / "moved", seed=1, epochs=1)
    file_store.publish(record_of(moved))
    Recommender.load(little_learned, device="cpu").save(moved, overwrite=True)
    with pytest.raises(ArtifactError, match="no longer holds the model"):
        retrain(file_store)


def test_a_model_published_meanwhile_stays(file_store: Store, little_learned: Path, tmp_path: Path) -> None:
    open_early(file_store, little_learned)
    sell(file_store)
    other = record_of(early_model(tmp_path / "other", seed=1, epochs=1))

    def rival(stage: str, done: float, of: float, note: str = "") -> None:
        if stage.startswith("cases of"):
            file_store.publish(other)

    outcome = retrain(file_store, progress=rival, models=tmp_path / "models")
    assert not outcome.published
    assert other.version in outcome.reason
    assert file_store.state().model == other.version


@pytest.mark.parametrize("force", [False, True])
def test_a_model_published_at_the_last_moment_stays_unless_forced(
    file_store: Store, little_learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    open_early(file_store, little_learned)
    sell(file_store)
    other = record_of(early_model(tmp_path / "other", seed=1, epochs=1))

    def after_the_verdict(*given: Any) -> Scorecard:
        file_store.publish(other)
        return scorecard(*given)

    monkeypatch.setattr(run, "scorecard", after_the_verdict)
    outcome = retrain(file_store, models=tmp_path / "models", force=force)
    assert outcome.published == force
    if force:
        assert file_store.state().model == outcome.version
        return
    assert (outcome.version, outcome.path) == (None, None)
    assert outcome.comparison is not None
    assert (
        outcome.reason
        == f"the model {other.version} was published meanwhile, and the new model was not compared with it"
    )
    assert file_store.state().model == other.version
    assert len(file_store.models()) == 2
    assert list((tmp_path / "models").iterdir()) == []


def test_interrupted_nothing_is_published(file_store: Store, little_learned: Path, tmp_path: Path) -> None:
    open_early(file_store, little_learned)
    sell(file_store)

    class CtrlC(Observer):
        def on_epoch(self, record: EpochRecord) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrain(file_store, observers=[CtrlC()], models=tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []
    assert file_store.state().model == artifact_version(little_learned)


def test_names_of_folders(file_store: Store, little_learned: Path, tmp_path: Path) -> None:
    """The first is the serving one's with a time, and the next has another time, not two."""
    open_early(file_store, little_learned)
    sell(file_store)
    quick = {"settings": {"epochs": 1}, "force": True, "models": tmp_path}
    paths = [retrain(file_store, **quick).path for _ in range(2)]  # type: ignore[arg-type]
    for path in paths:
        assert path is not None
        stem, *times = path.name.split("-")
        assert stem == "shop"
        assert time.strptime(times[0], "%Y%m%dT%H%M%S")
    assert paths[0] != paths[1]


def test_one_at_a_time(store: Store) -> None:
    with store.alone("retrain"):
        with pytest.raises(BusyError, match="retrain is under way there already"), store.alone("retrain"):
            pass
        with store.alone("something else"):
            store.put(Item("lamp"))  # nobody waits for it
    with pytest.raises(ZeroDivisionError), store.alone("retrain"):
        _ = 1 / 0
    with store.alone("retrain"):
        pass


RETRAINING = """
import sys, time
from bundlemage.retraining.run import retrain
from bundlemage.store.repository import Store
from bundlemage.training.history import Observer

class Slow(Observer):
    def on_epoch(self, record):
        if record.epoch == 3:
            print("training", flush=True)
            sys.stdin.readline()

def never(record, instead_of):
    print("saved", flush=True)
    time.sleep(120)

store = Store.open(sys.argv[1])
store.publish = never
retrain(store, models=sys.argv[2], observers=[Slow()])
"""


def test_killed_at_a_bad_moment_it_leaves_the_old_model_and_no_lock(
    store: Store, store_url: str, little_learned: Path, tmp_path: Path
) -> None:
    open_early(store, little_learned)
    sell(store)
    models = tmp_path / "models"
    process = subprocess.Popen(
        [sys.executable, "-c", RETRAINING, store_url, str(models)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "training"
    with pytest.raises(BusyError):
        retrain(store)
    store.add_interactions([InteractionRecord("meanwhile", "item", "i1")])
    assert process.poll() is None  # it still waits for a line, so the write did not wait for it
    late = store_url.startswith("sqlite")  # there after all is saved but for the last step, else in training
    if late:
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == "saved"
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert store.state().model == artifact_version(little_learned)
    assert len(store.models()) == 1
    whole = [path for path in models.iterdir() if not path.name.startswith(".")]
    assert len(whole) == late
    for path in whole:
        Recommender.load(path, device="cpu")

    def published() -> bool:
        try:
            return retrain(store, settings={"epochs": 1}, models=models, force=True).published
        except BusyError:  # PostgreSQL hears of a lost connection a moment later
            return False

    wait_until(published, "a new model")


def test_a_running_service_goes_over_without_a_failed_request(tmp_path: Path, little_learned: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    command = ["serve", little_learned, "--db", url, "--port", 0]
    with (tmp_path / "stderr").open("w") as output:
        server = start_forked(command, stdout=PIPE, stderr=output.fileno())
    failed: list[str] = []
    versions: list[str] = []
    done = threading.Event()

    def ask(address: str) -> None:
        with httpx.Client(base_url=address, timeout=10) as client:
            while not done.is_set():
                answer = client.get("/v1/users/u1/bundles?k=3")
                if answer.status_code != 200:
                    failed.append(answer.text)
                else:
                    versions.append(answer.json()["model_version"])
                time.sleep(0.01)

    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = line.split(" at ")[1].strip().rstrip("/")
        asking = threading.Thread(target=ask, args=(address,))
        asking.start()
        store = Store.open(url)
        try:
            sell(store)
            outcome = retrain(store, models=tmp_path / "models")
        finally:
            store.close()
        assert outcome.published
        wait_until(lambda: outcome.version in versions or not asking.is_alive(), "an answer of the new model")
        time.sleep(0.2)
        done.set()
        asking.join()
    finally:
        done.set()
        server.terminate()
        server.wait(60)
    assert failed == []
    assert versions[0] == artifact_version(little_learned)
    assert versions[-1] == outcome.version
    assert len(set(versions)) == 2
    assert versions == sorted(versions, key=[versions[0], versions[-1]].index)  # once over, never back
