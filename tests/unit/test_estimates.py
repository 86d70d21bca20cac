"""Forecasts from a sample and for segments, lists of buyers, and the exact sums that all of them use."""

from __future__ import annotations

import csv
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage import History, Recommender, SplitPlan
from bundlemage.campaigns import everyone
from bundlemage.campaigns.chances import normaliser
from bundlemage.campaigns.estimate import possible_sums, ratio
from bundlemage.core.segments import Segment
from bundlemage.errors import ConfigError, StoppedError, UnsupportedError
from bundlemage.models.base import Indexable, Matcher, can, require
from bundlemage.wire.design_answers import BundleForecast
from tests.cli.run import run, run_json
from tests.small_shop import QUICK, row_of, shop_of_unequal_tastes, small_shop
from tests.unit.test_audience import one_by_one

SEEDS = 200
SAMPLE = 60


@pytest.fixture(scope="module")
def model() -> Recommender:
    """Its forecasts tell bundles apart."""
    model = Recommender(**QUICK | {"epochs": 8, "learning_rate": 0.01})
    return model.fit(shop_of_unequal_tastes(), SplitPlan("none"), progress=False)


@pytest.fixture(scope="module")
def items(model: Recommender) -> list[str]:
    return [model.dataset.items[n] for n in (3, 17, 41)]


@pytest.fixture(scope="module")
def alone(model: Recommender, items: list[str]) -> dict[str, float]:
    """The chance of each user who lacks an item, computed one by one with NumPy."""
    return one_by_one(model, items)


# ── Exact sums ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [1, 7, 2**21])
def test_sums_in_blocks_are_those_of_all_scores(
    model: Recommender, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(everyone, "SCORES_AT_A_TIME", width * len(model.dataset.users))
    matcher, histories, contents = model.model, model.shop.everyone(), model.shop.interactions.bundle_item
    assert can(matcher, Indexable)
    pauses: list[None] = []
    with torch.inference_mode():
        scores = require(matcher, Matcher).score_bundles(histories, contents).double().numpy()
        factors = matcher.factors_of_bundles(contents)
        found = everyone.log_sums_of(
            matcher.factors_of_users(histories, contents), factors, lambda: pauses.append(None)
        )
        assert torch.allclose(found, normaliser(matcher, histories, contents), atol=1e-5)
    assert found[:, 0].numpy() == pytest.approx(np.log(np.exp(scores).sum(1)), abs=1e-5)
    assert len(pauses) == -(-scores.shape[1] // width)


def test_large_scores_do_not_overflow() -> None:
    from bundlemage.models.base import Factors

    random = np.random.default_rng(0)
    vectors, bundles = (torch.from_numpy(random.normal(0, 30, (9, 5))).float() for _ in range(2))
    found = everyone.log_sums_of(vectors, Factors(bundles, torch.zeros(9)), lambda: None)
    expected = (vectors.double() @ bundles.double().T).logsumexp(1)
    assert expected.abs().max() > 1000
    assert found[:, 0].double().numpy() == pytest.approx(expected.numpy(), rel=1e-5)


def test_users_whose_vectors_are_not_kept_have_the_same_forecast(
    model: Recommender, items: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model.score_bundle(items)
    assert before.replacement is not None
    monkeypatch.setattr(everyone, "MOST_KEPT", 0)
    assert model.score_bundle(items) == before


# ── Samples ──────────────────────────────────────────────────────────────────────────────────────


def test_intervals_of_samples_hold_the_exact_figure(model: Recommender, items: list[str]) -> None:
    """And an estimate is right on average: its error is small beside that of one sample."""
    exact = model.score_bundle(items)
    assert exact.expected is not None
    found = [model.score_bundle(items, k=1, sample=SAMPLE, seed=seed) for seed in range(SEEDS)]
    assert all((each.asked, each.of, each.sampled) == (SAMPLE, exact.asked, True) for each in found)
    held = [(each.low or 0) <= exact.expected <= (each.high or 0) for each in found]
    assert np.mean(held) >= 0.9
    estimates = np.array([each.expected for each in found], float)
    error = estimates.std() / SEEDS**0.5
    assert estimates.std() > 0
    assert abs(estimates.mean() - exact.expected) < 3 * error + 0.02 * exact.expected
    widths = [(each.high or 0) - (each.low or 0) for each in found]
    assert np.mean(widths) >= (exact.high or 0) - (exact.low or 0)


@pytest.mark.parametrize("size", [50, 200, 350])
def test_the_spread_of_possible_sums_is_that_of_samples(size: int) -> None:
    """Without the calibration's own interval, the sampling error covers 90% by itself."""
    random = np.random.default_rng(1)
    population = np.stack([np.ones(400), random.gamma(2, 1, 400), random.gamma(1, 2, 400)])
    chances = random.random(400)
    inside = random.random(400) < 0.4
    real = np.array([population[1].sum(), (chances * inside).sum() / chances.sum()])
    values, spreads, hits = [], [], []
    for seed in range(SEEDS):
        chosen = np.random.default_rng(seed).permutation(400)[:size]
        own = chances[chosen]
        terms = np.concatenate([population[:, chosen], own[None], (own * inside[chosen])[None]])
        found = possible_sums(terms, 400, seed)
        possible = np.stack([found[1], ratio(found[4], found[3])])
        values.append([terms[1].sum() * 400 / size, terms[4].sum() / terms[3].sum()])
        spreads.append(possible.std(1))
        low, high = np.quantile(possible, [0.025, 0.975], axis=1)
        hits.append((low <= real) & (real <= high))
    assert np.mean(values, axis=0) == pytest.approx(real, rel=0.02)
    assert np.mean(spreads, axis=0) == pytest.approx(np.std(values, axis=0), rel=0.2)
    assert np.mean(hits, axis=0).min() >= 0.87


def test_a_sample_of_everybody_is_exact(model: Recommender, items: list[str]) -> None:
    whole = len(model.dataset.users)
    exact = model.score_bundle(items)
    assert model.score_bundle(items, sample=whole) == model.score_bundle(items, sample=10 * whole) == exact
    assert (possible_sums(np.ones((3, 9)), 9) == 9).all()


def test_an_estimate_comes_first(model: Recommender, items: list[str]) -> None:
    told: list[BundleForecast] = []
    exact = model.score_bundle(items, sample=SAMPLE, seed=3, on_estimate=told.append)
    assert told == [model.score_bundle(items, sample=SAMPLE, seed=3)]
    assert told != [model.score_bundle(items, sample=SAMPLE, seed=4)]
    assert exact == model.score_bundle(items)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"sample": 0}, "at least 30"),
        ({"sample": 1}, "at least 30"),
        ({"users": lambda: [{}], "of": "5"}, "of is '5'; it must be a whole number, at least 1"),
        ({"users": lambda: [{}], "of": -5}, "of is -5; it must be a whole number, at least 1"),
        ({"users": lambda: [{"a": History(), "b": History()}], "of": 1}, "'of' is 1, but there are 2 users"),
        ({"sample": 2.5}, "sample is 2.5; it must be a whole number"),
        ({"of": 10}, "give 'users' as well"),
        ({"users": list, "sample": 50}, "draw the sample yourself"),
    ],
)
def test_a_wrong_sample_is_refused(
    model: Recommender, items: list[str], wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        model.score_bundle(items, **wrong)


# ── Stopping ─────────────────────────────────────────────────────────────────────────────────────


def test_work_stops_in_the_middle_of_a_batch(
    model: Recommender, items: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(everyone, "SCORES_AT_A_TIME", len(model.dataset.users))  # one bundle at a time
    calls: list[float] = []

    def progress(stage: str, done: float, of: float, note: str = "", /) -> None:
        calls.append(done)
        if len(calls) == 5:
            raise StoppedError("enough")

    with pytest.raises(StoppedError):
        model.score_bundle(items, progress=progress)
    assert calls == [0] * 5


# ── Segments ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def tagged() -> Recommender:
    return Recommender(**QUICK).fit(small_shop(users=120, bundles=60), SplitPlan("none"), progress=False)


def naive(model: Recommender, segment: Segment) -> set[str]:
    """The users of a segment, found with plain loops."""
    data, found = model.dataset, set()
    table = data.catalogue.items.to_pylist() if data.catalogue is not None else []
    for row, user in enumerate(data.users):
        own, bundles = row_of(data.user_item, row), row_of(data.user_bundle, row)
        has = own.union(*(row_of(data.bundle_item, bundle) for bundle in bundles))
        if segment.tag is not None and not any(segment.tag in (table[n]["tags"] or ()) for n in has):
            continue
        if len(own) < (segment.least_items or 0) or len(bundles) < (segment.least_bundles or 0):
            continue
        if segment.most_items is not None and len(own) > segment.most_items:
            continue
        if segment.most_bundles is not None and len(bundles) > segment.most_bundles:
            continue
        if segment.users is not None and user not in segment.users:
            continue
        found.add(user)
    return found


def some_segments(model: Recommender) -> list[Segment]:
    data = model.dataset
    sizes = np.diff(data.user_item.indptr)
    middle, bundles = int(np.median(sizes)), int(np.median(np.diff(data.user_bundle.indptr)))
    segments = [
        Segment(least_items=middle + 1),
        Segment(most_items=middle),
        Segment(least_bundles=bundles, most_bundles=bundles),
        Segment(users=[*data.users.ids[::3], "nobody"]),
        Segment(least_items=middle, users=data.users.ids[:50]),
    ]
    if data.catalogue is not None:
        tags = {tag for row in data.catalogue.items["tags"].to_pylist() for tag in row or ()}
        segments += [Segment(tag=tag) for tag in sorted(tags)[:2]]
    return segments


@pytest.mark.parametrize("name", ["model", "tagged"])
def test_a_segment_has_the_chances_of_its_users(name: str, request: pytest.FixtureRequest) -> None:
    model: Recommender = request.getfixturevalue(name)
    names = [model.dataset.items[n] for n in (3, 17, 41)]
    alone = one_by_one(model, names)
    checked = 0
    for segment in some_segments(model):
        users = naive(model, segment)
        if not users:
            continue
        checked += 1
        found = model.score_bundle(names, k=4, among=segment)
        assert (found.in_segment, found.asked, found.of) == (
            len(users),
            len(model.dataset.users),
            found.asked,
        )
        inside = {user: chance for user, chance in alone.items() if user in users}
        assert found.expected == pytest.approx(sum(inside.values()), rel=1e-3, abs=1e-6)
        assert found.threshold is not None
        assert found.above == sum(chance > found.threshold for chance in inside.values())
        best = sorted(inside, key=lambda user: -inside[user])[:4]
        assert [inside[each.id] for each in found.people] == pytest.approx([inside[user] for user in best])
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.high <= len(users)
        assert (found.weakest, found.replacement) == (None, None)
    assert checked >= 4


def test_parts_add_up_to_the_shop(model: Recommender, items: list[str]) -> None:
    whole = model.score_bundle(items)
    parts = [
        model.score_bundle(items, among=segment)
        for segment in (Segment(most_items=3), Segment(least_items=4))
        if naive(model, segment)
    ]
    assert sum(part.expected or 0 for part in parts) == pytest.approx(whole.expected, rel=1e-6)
    assert sum(part.in_segment or 0 for part in parts) == whole.asked


def test_a_sample_speaks_of_a_segment_too(model: Recommender, items: list[str]) -> None:
    segment = Segment(users=model.dataset.users.ids[::2])
    exact = model.score_bundle(items, among=segment)
    found = [model.score_bundle(items, sample=SAMPLE, seed=seed, among=segment) for seed in range(40)]
    assert exact.expected is not None
    held = [(each.low or 0) <= exact.expected <= (each.high or 0) for each in found]
    assert np.mean(held) >= 0.9
    assert np.mean([each.in_segment for each in found]) == pytest.approx(exact.in_segment, rel=0.1)


@pytest.mark.parametrize("count", [1, 5, 20, 50])
def test_a_sample_holds_the_figure_of_listed_users(
    model: Recommender, alone: dict[str, float], items: list[str], count: int
) -> None:
    """All of them are scored, as hardly any are in the sample. The likeliest are the hardest case."""
    likeliest = sorted(alone, key=lambda user: -alone[user])[:count]
    segment = Segment(users=likeliest)
    exact = model.score_bundle(items, among=segment)
    assert exact.expected is not None
    held = []
    for seed in range(40):
        found = model.score_bundle(items, sample=SAMPLE, seed=seed, among=segment)
        assert (found.in_segment, found.sampled) == (count, True)
        assert {each.id for each in found.people} <= set(likeliest)
        assert found.low is not None
        assert found.high is not None
        held.append(found.low <= round(exact.expected) <= found.high)
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("size", [40, 60, 90])
def test_intervals_of_small_parts_of_a_sample(tagged: Recommender, size: int) -> None:
    """There is no number from fewer than 30 sampled users, and the others are in their intervals."""
    items = [tagged.dataset.items[n] for n in (3, 17, 41)]
    sizes = np.diff(tagged.dataset.user_item.indptr)
    segments = [Segment(least_items=int(n)) for n in np.unique(np.quantile(sizes, [0.1, 0.3, 0.5, 0.8]))]
    segments += [each for each in some_segments(tagged) if each.tag is not None]
    assert len(segments) > 4
    held, unknown = [], 0
    for segment in segments:
        exact = tagged.score_bundle(items, among=segment).expected or 0
        for seed in range(10):
            found = tagged.score_bundle(items, sample=size, seed=seed, among=segment)
            if found.expected is None:
                unknown += 1
                assert (found.low, found.high, found.above, found.expected_takings) == (None,) * 4
                assert "of the sampled users are in the segment, too few" in (found.note or "")
                continue
            assert (found.in_segment or 0) * size / found.of > 29
            held.append((found.low or 0) <= exact <= (found.high or 0))
    assert np.mean(held) >= 0.9
    assert unknown > 0


def test_a_sample_that_is_given_may_be_too_small(model: Recommender, items: list[str]) -> None:
    def users() -> list[dict[str, History]]:
        return [{"a": History([model.dataset.items[5]]), "b": History([model.dataset.items[6]])}]

    found = model.score_bundle(items, users=users, of=500)
    assert (found.expected, found.low, found.high, found.above) == (None,) * 4
    assert all(each.chance is None for each in found.people)
    assert found.weakest is not None
    assert found.weakest.without is None
    assert "Only 2 users were sampled, too few for an estimate" in (found.note or "")
    assert model.score_bundle(items, users=users).expected is not None


def test_a_bundle_without_an_id_in_a_history_is_refused(model: Recommender, items: list[str]) -> None:
    pages = [{"a": History(bundles=[items[:2]])}]
    for ask in (model.score_bundle, model.buyers):
        with pytest.raises(ConfigError, match="has a bundle without an id"):
            ask(items, users=lambda: pages)


def test_draws_leave_no_memory_behind() -> None:
    import tracemalloc

    tracemalloc.start()
    possible_sums(np.ones((5, 200_000)), 400_000)
    now, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert now < 1e6
    assert highest < 2e7  # a table of all draws would have 80 MB


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "no condition"),
        ({"users": "u1"}, "write \\['u1'\\]"),
        ({"least_items": -1}, "from 0 up"),
        ({"most_bundles": 1.5}, "whole number"),
        ({"least_items": 4, "most_items": 3}, "above"),
        ({"tag": 3}, "one tag"),
        ({"users": 5}, "'users' is 5; expected a list of ids"),
    ],
)
def test_a_wrong_segment_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Segment(**wrong)


def test_listed_users_without_a_history_are_told(model: Recommender, items: list[str]) -> None:
    known = model.dataset.users.ids[:3]
    note = model.score_bundle(items, among=Segment(users=[*known, "nobody", "no one"])).note or ""
    assert "Left out, because they have no history: 2 of the 5 listed users." in note
    assert "listed" not in (model.score_bundle(items, among=Segment(users=known)).note or "")
    assert "listed" not in (model.score_bundle(items, among=Segment(users=known), sample=30).note or "")
    note = model.score_bundle(items, among=Segment(users=[*known, "nobody"]), sample=30).note or ""
    assert "Left out, because they have no history: 1 of the 4 listed users." in note


def test_a_segment_without_users_is_refused(tagged: Recommender) -> None:
    names = [tagged.dataset.items[3]]
    for ask in (tagged.score_bundle, tagged.buyers, partial(tagged.score_bundle, sample=30)):
        with pytest.raises(
            ConfigError,
            match=r"no user is in the segment: none of the listed users is in the data .'nobody'.$",
        ):
            ask(names, among=Segment(users=["nobody"]))
        with pytest.raises(ConfigError, match="'a', 'b', 'c' and 2 more"):
            ask(names, among=Segment(users=["a", "b", "c", "d", "e"]))
        with pytest.raises(ConfigError, match="see whether its conditions exclude each other"):
            ask(names, among=Segment(users=tagged.dataset.users.ids[:2], least_items=10_000))
    with pytest.raises(ConfigError, match="no item has the tag 'nothing'"):
        tagged.score_bundle(names, among=Segment(tag="nothing"))


# ── Buyers ───────────────────────────────────────────────────────────────────────────────────────


def test_buyers_are_the_users_above_the_threshold(
    model: Recommender, items: list[str], alone: dict[str, float]
) -> None:
    forecast = model.score_bundle(items)
    table = model.buyers(items)
    assert len(table) == forecast.above
    everybody = model.buyers(items, least_chance=0)
    found = dict(zip(everybody["user_id"].to_pylist(), everybody["chance"].to_pylist(), strict=True))
    assert found == pytest.approx(alone, rel=1e-3)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    segment = Segment(users=model.dataset.users.ids[::2])
    some = model.buyers(items, least_chance=0, among=segment)
    assert set(some["user_id"].to_pylist()) == set(found) & set(map(str, segment.users or ()))
    with pytest.raises(ConfigError, match="from 0 to 1"):
        model.buyers(items, least_chance=2)


def test_without_a_calibration_there_is_no_list(items: list[str]) -> None:
    shop = small_shop(users=60, bundles=30)
    plain = Recommender(**QUICK).fit(shop, SplitPlan("none"), progress=False, calibrate=False)
    with pytest.raises(UnsupportedError, match="chances of users are not known"):
        plain.buyers([shop.items[0]])


def test_the_command_writes_the_buyers(model: Recommender, items: list[str], tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    asked = ("score-bundle", tmp_path / "model", "--items", ",".join(items))
    users = model.dataset.users.ids[:200]
    file, listed = tmp_path / "buyers.csv", tmp_path / "users.txt"
    listed.write_text("\n".join(users))
    shown = run(*asked, "--output", file, "--least-chance", 0, "--users", listed)
    expected = model.buyers(items, least_chance=0, among=Segment(users=users))
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["user_id"] for row in rows] == expected["user_id"].to_pylist()
    assert [float(row["chance"]) for row in rows] == pytest.approx(expected["chance"].to_pylist(), rel=1e-6)
    assert "users of the segment would buy it" in shown.output
    assert "200 users with a chance of at least 0.0% are in" in shown.output
    every = run(*asked, "--output", tmp_path / "likely.csv").output
    assert re.search(r"\d+ users? with a chance above \d+\.\d% (is|are) in", every)
    listed.write_text("nobody\n")
    told = run(*asked, "--users", listed, code=2).stderr
    assert "none of the listed users is in the data" in told
    run(*asked, "--output", file, code=2)  # it exists
    run(*asked, "--output", file, "--overwrite", "--sample", 9, code=2)
    run(*asked, "--least-chance", 0.1, code=2)
    estimate = run_json(*asked, "--sample", SAMPLE)
    assert estimate["sampled"]
    assert (
        json.loads(model.score_bundle(items, sample=SAMPLE, k=5).model_dump_json())["low"] == estimate["low"]
    )
