"""How rows become pairs, against the same rules written one row at a time."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.events import UNDATED
from bundlemage.data.splits import Source
from bundlemage.errors import ConfigError, DataError
from bundlemage.readers.assemble import read_frames
from bundlemage.readers.pairs import Rows, check_events, pairs_of_rows

WORTH = {"view": 0.2, "cart": 0.5, "buy": 1.0, "seen": 0.0, "return": -1.0}
OTHERS: dict[str, Any] = {
    "user_bundle": {"user_id": ["u0", "u1"], "bundle_id": ["b", "c"]},
    "bundle_item": {"bundle_id": ["b", "b", "c"], "item_id": ["i0", "i1", "i2"]},
}


def slowly(rows: list[dict[str, Any]], worth: dict[str, float]) -> tuple[dict[Any, Any], set[Any]]:
    """The time and weight of each pair, and the rejected pairs."""
    events = [
        (row["pair"], row.get("event"), worth.get(row.get("event", ""), 1.0), row.get("weight", 1.0), row)
        for row in rows
    ]
    events = [event for event in events if event[2] != 0 and event[3] != 0]
    once = all(event[3] == 1 for event in events)
    by_pair = defaultdict(list)
    for event in events:
        by_pair[event[0]].append(event)
    taken, rejected = {}, set()
    for pair, its in by_pair.items():
        latest = max(row.get("at", UNDATED) for *_, row in its)
        if any(value < 0 for _, _, value, _, row in its if row.get("at", UNDATED) == latest):
            rejected.add(pair)
            continue
        sums: dict[Any, Fraction] = defaultdict(Fraction)
        for _, kind, _, weight, _ in its:
            sums[kind] = Fraction(1) if once else sums[kind] + Fraction(weight)
        weight = max(float(total) * worth.get(kind or "", 1.0) for kind, total in sums.items())
        taken[pair] = (latest, np.float32(weight))
    return taken, rejected


def quickly(rows: list[dict[str, Any]], worth: dict[str, float]) -> tuple[dict[Any, Any], set[Any]]:
    names = list(worth)
    has = {name: any(name in row for row in rows) for name in ("event", "weight", "at")}
    columns = Rows(
        np.array([row["pair"] for row in rows]),
        np.array([names.index(row["event"]) for row in rows], np.int32) if has["event"] else None,
        np.array(list(worth.values())) if has["event"] else None,
        np.array([float(row.get("weight", 1)) for row in rows]) if has["weight"] else None,
        np.array([row.get("at", UNDATED) for row in rows]) if has["at"] else None,
    )
    pairs = pairs_of_rows(columns.counting().in_order())
    size = len(pairs.keys)
    at = np.full(size, UNDATED) if pairs.at is None else pairs.at
    weight = np.ones(size, np.float32) if pairs.weight is None else pairs.weight
    assert (np.diff(pairs.keys) > 0).all()
    assert (np.diff(pairs.rejected) > 0).all()
    facts = zip(at.tolist(), weight, strict=True)
    return dict(zip(pairs.keys.tolist(), facts, strict=True)), set(pairs.rejected.tolist())


@pytest.mark.parametrize(
    "known", ["", "event", "weight", "at", "event weight", "event at", "event weight at"]
)
def test_as_written_one_row_at_a_time(known: str) -> None:
    random = np.random.default_rng(len(known))
    for _ in range(60):
        rows: list[dict[str, Any]] = []
        for _ in range(int(random.integers(1, 40))):
            row: dict[str, Any] = {"pair": int(random.integers(0, 12))}
            if "event" in known:
                row["event"] = str(random.choice(list(WORTH)))
            if "weight" in known:
                row["weight"] = float(random.choice([0, 1, 1, 2, 5]))
            if "at" in known and random.random() < 0.8:
                row["at"] = int(random.integers(0, 4))
            rows.append(row)
        assert quickly(rows, WORTH) == slowly(rows, WORTH)


def test_the_order_of_rows_does_not_matter() -> None:
    random = np.random.default_rng(0)
    rows = [
        {"pair": int(pair), "event": "buy", "weight": float(weight), "at": int(at)}
        for pair, weight, at in zip(
            random.integers(0, 5, 4000),
            random.random(4000) * 10.0 ** random.integers(-6, 6, 4000),
            random.integers(0, 100, 4000),
            strict=True,
        )
    ]
    expected = quickly(rows, WORTH)
    for _ in range(5):
        random.shuffle(rows)
        assert quickly(rows, WORTH) == expected


def source(events: dict[str, float] | None = None, **columns: Any) -> Source:
    return read_frames(
        pa.table(columns), **{name: pa.table(table) for name, table in OTHERS.items()}, events=events
    )


def weights_of(data: BundleDataset) -> dict[tuple[str, str], float]:
    rows, columns = data.user_item.nonzero()
    values = np.ones(len(rows)) if data.item_events.weight is None else data.item_events.weight
    return {
        (data.users[row], data.items[column]): round(float(value), 4)
        for row, column, value in zip(rows, columns, values, strict=True)
    }


def test_the_rules_in_a_data_set() -> None:
    found = source(
        WORTH,
        user_id=["u0", "u0", "u0", "u0", "u1", "u1", "u1", "u2"],
        item_id=["i0", "i0", "i0", "i1", "i1", "i1", "i2", "i2"],
        event=["view", "view", "buy", "view", "buy", "return", "return", "seen"],
        weight=[2, 4, 1, 1, 1, 1, 1, 1],
        at=[
            "2026-01-01",
            "2026-01-05",
            "2026-01-02",
            "2026-01-01",
            "2026-01-01",
            "2026-01-02",
            "2026-01-03",
            "",
        ],
    )
    data = found.dataset
    assert weights_of(data) == {("u0", "i0"): 1.2, ("u0", "i1"): 0.2}
    assert data.item_events.at is not None
    assert np.diff(data.item_events.at).tolist() == [-4 * 86_400_000_000]
    rejected = data.item_events.rejected
    assert rejected is not None
    assert [(data.users[r], data.items[c]) for r, c in zip(*rejected.nonzero(), strict=True)] == [
        ("u1", "i1"),
        ("u1", "i2"),
    ]
    assert "u2" in data.users, "the ids of rows that are left out stay known"
    assert found.event_types == {"user_item": {"view": 3, "buy": 2, "return": 2, "seen": 1}}
    assert found.warnings == ()


def test_weights_that_are_all_one_say_nothing() -> None:
    plain: Any = {"user_id": ["u0", "u0", "u1"], "item_id": ["i0", "i0", "i1"]}
    expected = source(**plain).dataset
    for weight in ([1, 1, 1], ["1", "", "1.0"], [None, None, None]):
        data = source(**plain, weight=pa.array(weight)).dataset
        assert not data.item_events
        assert data.fingerprint() == expected.fingerprint()
    assert weights_of(source(**plain, weight=[1, 2, 1]).dataset) == {("u0", "i0"): 3, ("u1", "i1"): 1}
    left_out = source(**plain, weight=[1, 1, 0]).dataset
    assert weights_of(left_out) == {("u0", "i0"): 1}


def test_types_of_events_without_weights_count_as_one_and_are_named() -> None:
    columns: Any = {
        "user_id": ["u0", "u0", "u1"],
        "item_id": ["i0", "i0", "i1"],
        "event": ["view", "refund", "view"],
    }
    found = source(**columns)
    assert not found.dataset.item_events
    (warning,) = found.warnings
    assert (warning.kind, warning.severity) == ("events-alike", "warning")
    assert warning.message == (
        "'event' holds several types of events, and each counts as 1: 'view' (2 rows) and 'refund' (1 row)"
    )
    assert warning.fix == "Say what each is worth, as in --events view=0.2,refund=-1"
    assert source(**{**columns, "event": ["buy"] * 3}).warnings == ()


def test_a_type_of_event_that_is_not_named() -> None:
    columns: Any = {"user_id": ["u0", "u1"], "item_id": ["i0", "i1"]}
    with pytest.raises(DataError) as raised:
        source({"buy": 1}, **columns, event=["view", None])
    (problem,) = raised.value.problems
    assert problem.kind == "unknown-event"
    assert problem.message == (
        "'event' holds types of events that --events does not name: none (1 row) and 'view' (1 row)"
    )
    with pytest.raises(DataError) as raised:
        source({"buy": 1}, **columns)
    (problem,) = raised.value.problems
    assert problem.kind == "no-event-column"
    assert problem.message == "--events buy=1 is given, but user_item and user_bundle have no column 'event'"


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e7, "1", True, None])
def test_a_weight_of_an_event_that_is_no_number(weight: Any) -> None:
    with pytest.raises(ConfigError, match=r"the event 'view' has the weight .*; expected a number"):
        check_events({"buy": 1, "view": weight})


def test_at_least_one_event_must_count() -> None:
    with pytest.raises(ConfigError, match="no event has a weight above 0"):
        check_events({"view": 0, "return": -1})
    assert check_events({}) is None
    assert check_events({"buy": 1}) == {"buy": 1.0}
