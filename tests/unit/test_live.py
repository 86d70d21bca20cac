"""A model in a shop that is open: the catalogue and people's histories change, the model does not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage import Filter, Recommender, sample_shop
from bundlemage import live as live_module
from bundlemage.core.history import History
from bundlemage.core.shop import Recommendation
from bundlemage.data import dataset, layered
from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import ConfigError, UnknownIdError, UnsupportedError
from bundlemage.live import EMPTY, Live, Question, Stock
from bundlemage.models import bundlemage
from bundlemage.models.base import Completer, Embedder, Matcher, SalesScorer, can, require
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.registry import model_class, model_names
from bundlemage.store.records import Bundle, CatalogueChange, Item, Owned, Sales
from bundlemage.wire.answers import Known
from tests.designing import numbers


def stock_of(dataset: BundleDataset) -> Stock:
    assert dataset.catalogue is not None
    items = [
        Item(row["item_id"], row["title"], row["price"], tuple(row["tags"] or ()), row["stock"])
        for row in dataset.catalogue.items.to_pylist()
    ]
    contents = dataset.bundle_item
    bundles = [
        Bundle(
            row["bundle_id"],
            tuple(
                dataset.items[p]
                for p in contents.indices[contents.indptr[n] : contents.indptr[n + 1]].tolist()
            ),
            row["title"],
            row["price"],
            row["discount"],
            tuple(row["tags"] or ()),
        )
        for n, row in enumerate(dataset.catalogue.bundles.to_pylist())
    ]
    return EMPTY.after(CatalogueChange(1, items, bundles))


def owned_by(dataset: BundleDataset, user: str) -> Owned:
    row = dataset.users.position(user)

    def ids(matrix: object, names: object) -> tuple[str, ...]:
        return tuple(names[p] for p in matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]])  # type: ignore

    return Owned(ids(dataset.user_item, dataset.items), ids(dataset.user_bundle, dataset.bundles))


@pytest.fixture(scope="module")
def recommender() -> Recommender:
    return Recommender(embedding_dim=64, device="cpu").fit(sample_shop().dataset, progress=False)


@pytest.fixture(scope="module")
def live(recommender: Recommender) -> Live:
    dataset = recommender.dataset
    sales = Sales(
        dict(zip(dataset.items, dataset.user_item.sum(0).A1.astype(int).tolist(), strict=True)),
        dict(zip(dataset.bundles, dataset.user_bundle.sum(0).A1.astype(int).tolist(), strict=True)),
    )
    return Live(recommender, stock_of(dataset), sales)


def ask(live: Live, user: Owned, k: int = 10, **more: object) -> Sequence[Recommendation]:
    (answer,) = live.answer([Question(user, k, **more)])  # type: ignore[arg-type]
    if isinstance(answer, Exception):
        raise answer
    return answer


def ids(found: Sequence[Recommendation]) -> list[str]:
    return [answer.id for answer in found]


def test_as_long_as_nothing_changes_it_answers_as_the_recommender_does(
    live: Live, recommender: Recommender
) -> None:
    for user in ("u0007", "u0100", "u0555"):
        owned = owned_by(recommender.dataset, user)
        mine, theirs = ask(live, owned), recommender.recommend(user, 10)
        assert ids(mine) == ids(theirs)
        assert [m.score for m in mine] == pytest.approx([t.score for t in theirs], rel=1e-5)
        mine = ask(live, owned, 5, partial=("g0022", "g0401"))
        assert ids(mine) == ids(recommender.complete(user, ["g0022", "g0401"], 5))


def test_filters_and_owned_things_are_as_in_the_recommender(live: Live, recommender: Recommender) -> None:
    owned = owned_by(recommender.dataset, "u0007")
    for where in (
        Filter(max_price=40),
        Filter(tags=["Seafaring"]),
        Filter(in_stock=True),
        Filter(exclude=["b0166"]),
    ):
        assert ids(ask(live, owned, 10, where=where)) == ids(recommender.recommend("u0007", 10, where=where))
    everything = ids(ask(live, owned, 300, owned="show"))
    assert set(owned.bundles) <= set(everything)
    assert not set(owned.bundles) & set(ids(ask(live, owned, 300)))


def test_a_batch_of_different_questions_is_answered_as_one_by_one(
    live: Live, recommender: Recommender
) -> None:
    questions = [
        Question(owned_by(recommender.dataset, user), k, where, partial=partial)
        for user, k, where, partial in (
            ("u0007", 3, None, None),
            ("u0008", 7, None, None),
            ("u0009", 2, Filter(max_price=30), None),
            ("u0007", 4, None, ("g0022",)),
            ("u0010", 5, None, ()),
        )
    ]
    together = live.answer(questions)
    for question, answer in zip(questions, together, strict=True):
        assert isinstance(answer, list)
        (alone,) = live.answer([question])
        assert isinstance(alone, list)
        assert ids(answer) == ids(alone)
        assert len(answer) == question.k


def test_one_bad_question_does_not_spoil_the_others(live: Live) -> None:
    good, bad = live.answer([Question(Owned(), 3), Question(Owned(), 3, Filter(among=["nowhere"]))])
    assert isinstance(good, list)
    assert isinstance(bad, UnknownIdError)


def test_a_purchase_changes_the_answer(live: Live, recommender: Recommender) -> None:
    owned = owned_by(recommender.dataset, "u0007")
    first = ask(live, owned)
    after = ask(live, replace(owned, bundles=(*owned.bundles, first[0].id)))
    assert first[0].id not in ids(after)
    assert [a.score for a in after] != [a.score for a in first[1:]]


def test_a_new_bundle_reaches_whom_it_fits_and_not_whom_it_does_not(
    live: Live, recommender: Recommender
) -> None:
    fitting = owned_by(recommender.dataset, "u0007")
    best = live.stock.bundles[ask(live, fitting)[0].id]
    worst = live.stock.bundles[ask(live, fitting, 240)[-1].id]
    new = CatalogueChange(2, [], [Bundle("like the best", best.items), Bundle("like the worst", worst.items)])
    now = live.after(new)
    ranks = {answer.id: answer.rank for answer in ask(now, fitting, 242)}
    assert ranks["like the best"] <= 20
    assert ranks["like the worst"] > 100
    assert "like the best" not in ids(ask(live, fitting, 242))  # the snapshot before is as it was


def test_a_new_bundle_has_its_price_and_tags_in_filters(live: Live) -> None:
    new = Bundle("spring", ("g0022", "g0401"), "Spring", 12.5, 0.2, ("Brand new",))
    now = live.after(CatalogueChange(2, [], [new]))
    assert ids(ask(now, Owned(), 5, where=Filter(tags=["Brand new"]))) == ["spring"]
    (answer,) = ask(now, Owned(("g0022",)), 5, where=Filter(tags=["Brand new"], max_price=12.5))
    assert (answer.title, answer.source) == ("Spring", "model")


def test_a_changed_bundle_is_judged_by_what_is_in_it_now(live: Live, recommender: Recommender) -> None:
    owned = owned_by(recommender.dataset, "u0007")
    everything = ask(live, owned, 240)
    best, worst = everything[0].id, everything[-1].id
    changed = replace(live.stock.bundles[worst], items=live.stock.bundles[best].items)
    now = live.after(CatalogueChange(2, [], [changed]))
    ranks = {answer.id: answer.rank for answer in ask(now, owned, 240)}
    assert ranks[worst] < len(everything) * 2 / 3  # what it sold before still counts, so it is not first


def test_withdrawn_things_are_not_shown_nor_bundles_with_them(live: Live, recommender: Recommender) -> None:
    owned = owned_by(recommender.dataset, "u0007")
    first, second = ask(live, owned)[:2]
    item = live.stock.items[live.stock.bundles[second.id].items[0]]
    change = CatalogueChange(
        2, [replace(item, withdrawn=True)], [replace(live.stock.bundles[first.id], withdrawn=True)]
    )
    now = live.after(change)
    shown = ids(ask(now, owned, 240))
    assert first.id not in shown
    assert second.id not in shown
    assert not now.recommendable(now.stock.bundles[second.id])
    assert item.id not in ids(ask(now, owned, 600, partial=()))
    # what was bought still counts
    history = Owned(bundles=(first.id,))
    assert [a.score for a in ask(now, history)] != [a.score for a in ask(now, Owned())]


def test_what_the_model_does_not_know_yet_is_passed_over_and_counted(live: Live) -> None:
    change = CatalogueChange(
        2, [Item("g9999")], [Bundle("only new", ("g9999",)), Bundle("half", ("g9999", "g0022"))]
    )
    now = live.after(change)
    owned = Owned(("g0022", "g9999"), ("only new", "half"))
    assert now.known_of(owned) == Known(items=1, bundles=1, not_in_model=2)
    assert "only new" not in ids(ask(now, owned, 242))
    same = Owned(("g0022",), ("half",))
    assert ask(now, owned, 5) == ask(now, same, 5)
    assert not now.recommendable(now.stock.bundles["only new"])
    assert now.recommendable(now.stock.bundles["half"])
    assert not now.in_model("g9999")


def test_whoever_has_nothing_gets_what_sells_best(live: Live) -> None:
    answers = ask(live, Owned(), 5, stock="show")
    assert {answer.source for answer in answers} == {"popular"}
    best = sorted(live.sales.bundles.values(), reverse=True)[:5]
    assert [live.sales.bundles[answer.id] for answer in answers] == best
    fresh = live.after(CatalogueChange(1, [], []), Sales({}, {answers[4].id: 1000}))
    assert ask(fresh, Owned(), 1, stock="show")[0].id == answers[4].id


def test_similar_bundles_are_those_with_similar_contents(live: Live) -> None:
    twin = replace(live.stock.bundles["b0166"], id="twin")
    now = live.after(CatalogueChange(2, [], [twin]))
    found = now.similar("b0166", 5)
    assert found[0].id == "twin"
    assert found[0].score == pytest.approx(1, abs=1e-5)
    assert "b0166" not in ids(found)
    assert [answer.rank for answer in found] == [1, 2, 3, 4, 5]
    assert "twin" not in ids(now.similar("b0166", 5, where=Filter(exclude=["twin"])))
    with pytest.raises(UnknownIdError):
        now.similar("nowhere", 5)


def test_the_gate_is_a_share(live: Live, recommender: Recommender) -> None:
    shares = {live.gate(owned_by(recommender.dataset, user)) for user in ("u0007", "u0008", "u0009")}
    assert len(shares) == 3
    assert all(0 < share < 1 for share in shares)


def test_every_question_has_the_same_answer_as_in_the_recommender(
    live: Live, recommender: Recommender
) -> None:
    user = "u0007"
    owned = owned_by(recommender.dataset, user)
    mine, theirs = live.similar("b0166", 5), recommender.similar("b0166", 5)
    assert ids(mine) == ids(theirs)
    assert [m.score for m in mine] == pytest.approx([t.score for t in theirs], abs=1e-5)
    assert live.gate(owned) == pytest.approx(recommender.gate(user), rel=1e-5)
    for asked in ({"bundle": "b0166"}, {"item": "g0022", "items": ["g0401"]}):
        why, other = live.explain(owned, **asked), recommender.explain(user, **asked)
        assert {(r.kind, r.id): r.effect for r in numbers(why).reasons} == pytest.approx(
            {(r.kind, r.id): r.effect for r in numbers(other).reasons}, abs=1e-4
        )
    designs, others = (asker.design(who, size=3, n=2) for asker, who in ((live, owned), (recommender, user)))
    assert [one.ids for one in designs] == [one.ids for one in others]
    names = recommender.dataset.users.ids

    def pages() -> Iterator[dict[str, Owned]]:
        for some in (names[:500], names[500:]):
            yield {name: owned_by(recommender.dataset, name) for name in some}

    forecast = live.score_bundle(["g0022", "g0401"], users=pages)
    other_forecast = recommender.score_bundle(["g0022", "g0401"])
    assert forecast.asked == other_forecast.asked == len(names)
    assert forecast.expected == pytest.approx(other_forecast.expected, rel=1e-4)
    assert [one.id for one in forecast.people] == [one.id for one in other_forecast.people]


def test_a_model_that_knows_only_its_users_cannot_serve() -> None:
    bound = Recommender("bpr", epochs=1, device="cpu").fit(sample_shop().dataset, progress=False)
    with pytest.raises(UnsupportedError, match="new users"):
        Live(bound, EMPTY)


def test_unknown_people_are_as_in_the_recommender(live: Live, recommender: Recommender) -> None:
    given = History(items=["g0022"], bundles=["b0013"])
    mine = ask(live, Owned(("g0022",), ("b0013",)))
    assert ids(mine) == ids(recommender.recommend(given, 10))


NAMES = st.sampled_from(["b0001", "b0002", "b0166", "spring", "summer"])
PARTS = st.sampled_from(["g0001", "g0002", "g0022", "new-1", "new-2"])
ITEMS = st.builds(
    Item,
    PARTS,
    price=st.none() | st.integers(0, 50).map(float),
    tags=st.sampled_from([(), ("Seafaring",), ("late",)]),
    stock=st.none() | st.integers(0, 2),
    withdrawn=st.booleans(),
)
BUNDLES = st.builds(
    Bundle,
    NAMES,
    st.lists(PARTS, min_size=1, max_size=4, unique=True).map(tuple),
    price=st.none() | st.integers(0, 50).map(float),
    tags=st.sampled_from([(), ("Seafaring",), ("late",)]),
    withdrawn=st.booleans(),
    expected_sales=st.none() | st.sampled_from([0.0, 50.0]),
) | st.builds(
    Bundle,
    NAMES,
    st.lists(PARTS, min_size=1, max_size=2, unique=True).map(tuple),
    sells_like=st.sampled_from(["b0001", "b0166", "spring"]),
)
FILTERS = (None, Filter(max_price=25), Filter(tags=["late", "Seafaring"]), Filter(in_stock=True))


def some(things: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """A change names each thing once."""
    return st.lists(things, max_size=3, unique_by=lambda thing: thing.id)


CHANGES = st.lists(st.tuples(some(ITEMS), some(BUNDLES), st.booleans()), max_size=5)
OWNED = Owned(("g0001", "g0022"), ("b0166", "spring"))


@settings(max_examples=30, deadline=None)
@given(CHANGES)
def test_many_small_changes_come_to_the_same_as_opening_anew(
    live: Live, changes: list[tuple[list[Item], list[Bundle], bool]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layered, "MOST_CHANGES", 4)
        patch.setattr(dataset, "MOST_CHANGES", 4)
        patch.setattr(bundlemage, "MERGED_ROWS", 1)
        first = now = live.after(CatalogueChange(2, [Item("new-1"), Item("new-2")], []))
        before = everything(first)
        for number, (items, bundles, merge) in enumerate(changes):
            now = now.after(CatalogueChange(3 + number, items, bundles))
            everything(now)  # so that the next snapshot takes over what this one has computed
            if merge:
                now.merge_changes()
        assert_as_anew(now)
        assert everything(first) == pytest.approx(before, rel=1e-4)  # the snapshot before is as it was


@pytest.mark.parametrize("name", [n for n in model_names() if model_class(n).knows_new_users])
def test_every_model_scores_a_changed_shop_as_if_it_were_opened_anew(name: str) -> None:
    shop = sample_shop().dataset
    learns = "epochs" in model_class(name).config_class.model_fields
    options: dict[str, Any] = {"epochs": 1} if learns else {}
    model = Recommender(name, device="cpu", **options).fit(shop, progress=False)
    stock = stock_of(shop)
    now = Live(model, stock)
    everything(now)
    other = replace(stock.bundles["b0001"], items=stock.bundles["b0002"].items)
    for number, bundle in enumerate(
        [Bundle("spring", ("g0001", "g0022")), other, Bundle("b0002", ("g0022",))]
    ):
        now = now.after(CatalogueChange(2 + number, [], [bundle]))
        assert_as_anew(now)


def assert_as_anew(now: Live) -> None:
    """A snapshot gives the same answers as one that is made from the whole catalogue."""
    catalogue = CatalogueChange(9, list(now.stock.items.values()), list(now.stock.bundles.values()))
    fresh = EMPTY.after(catalogue)
    anew = Live(now.recommender, fresh, now.sales)
    assert holders(now.stock) == holders(fresh)
    assert seen(now) == seen(anew)
    gone, gone_anew = (
        {name for name, gone in zip(live.dataset.items, live.shop.trade.items_gone, strict=True) if gone}
        for live in (now, anew)
    )
    assert gone == gone_anew
    assert everything(now) == pytest.approx(everything(anew), rel=1e-4, abs=1e-6)


def everything(live: Live) -> dict[tuple[Any, ...], float]:
    """The scores of all bundles and items, with each filter, and of some similar bundles."""
    scores: dict[tuple[Any, ...], float] = {}
    for where in FILTERS:
        if can(live.model, Matcher):
            found = ask(live, OWNED, 300, where=where)
            scores.update({("bundles", where, answer.id): answer.score for answer in found})
        if can(live.model, Completer):
            found = ask(live, OWNED, 600, where=where, partial=())
            scores.update({("items", where, answer.id): answer.score for answer in found})
    if can(live.model, Embedder):
        scores.update({("similar", answer.id): answer.score for answer in live.similar("b0003", 300)})
    if can(live.model, Embedder) and can(live.model, Matcher):
        scores["reason",] = numbers(live.explain(Owned(("g0300", "g0301")), bundle="b0003")).reasons[0].effect
    return scores


def holders(stock: Stock) -> dict[str, list[str]]:
    return {name: sorted(held) for name, held in stock.holders.items() if held}


def seen(live: Live) -> dict[str, tuple[list[int], bool]]:
    """By name: what is in a bundle as the model sees it, and whether it can be sold."""
    contents, gone = live.shop.dataset.bundle_item, live.shop.trade.bundles_gone
    return {
        name: (contents.indices[contents.indptr[n] : contents.indptr[n + 1]].tolist(), bool(gone[n]))
        for n, name in enumerate(live.shop.dataset.bundles)
    }


def test_a_change_of_price_leaves_what_the_model_has_worked_out(live: Live) -> None:
    cheaper = replace(live.stock.bundles["b0166"], price=1.0)
    assert live.after(CatalogueChange(2, [], [cheaper])).shop.interactions is live.shop.interactions
    other = replace(cheaper, items=cheaper.items[1:])
    assert live.after(CatalogueChange(2, [], [other])).shop.interactions is not live.shop.interactions


def embedded_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bundles in each call that embeds bundles from now on."""
    sizes: list[int] = []
    embed = BundleMage.bundle_embeddings

    def counted(self: BundleMage, items: Any, contents: Any) -> Any:
        sizes.append(len(contents))
        return embed(self, items, contents)

    monkeypatch.setattr(BundleMage, "bundle_embeddings", counted)
    return sizes


def test_only_bundles_with_new_contents_are_embedded(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.warm()
    sizes = embedded_rows(monkeypatch)
    spring, b0166 = Bundle("spring", ("g0022", "g0401")), live.stock.bundles["b0166"]
    now = live.after(CatalogueChange(2, [], [spring]))
    first = ask(now, OWNED)
    assert sum(sizes) == 1
    for change in (
        CatalogueChange(3, [], [replace(spring, price=3.0)]),
        CatalogueChange(4, [], [replace(b0166, withdrawn=True)]),
        CatalogueChange(5, [replace(live.stock.items["g0022"], withdrawn=True)], []),
        CatalogueChange(6, [], [replace(spring, expected_sales=7.0)]),
    ):
        now = now.after(change)
        ask(now, OWNED)
    assert sum(sizes) == 1
    now = now.after(CatalogueChange(7, [], [replace(b0166, items=("g0022",)), Bundle("summer", ("g0401",))]))
    ask(now, OWNED)
    assert sum(sizes) == 3
    monkeypatch.setattr(bundlemage, "MERGED_ROWS", 0)
    now.merge_changes()
    ask(now, OWNED)
    again = live.after(CatalogueChange(2, [], [spring]))  # another branch: it does not see the later rows
    assert [answer.id for answer in ask(again, OWNED)] == [answer.id for answer in first]
    assert sum(sizes) == 5  # "spring" and the first contents of b0166


def test_after_a_change_only_changed_records_are_read(
    recommender: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = stock_of(recommender.dataset)
    live = Live(recommender, stock)
    asked = [Question(OWNED, 1, where) for where in FILTERS]
    live.answer(asked)
    read: set[str] = set()

    def attribute(record: Bundle, name: str) -> Any:
        value = object.__getattribute__(record, name)
        if not name.startswith("__"):
            read.add(object.__getattribute__(record, "id"))
        return value

    monkeypatch.setattr(Bundle, "__getattribute__", attribute, raising=False)
    item = stock.items["g0022"]
    for change in (
        CatalogueChange(2, [], [Bundle("spring", ("g0022",), "Spring", 12.5, tags=("late",))]),
        CatalogueChange(
            3, [], [replace(stock.bundles["b0001"], items=("g0022",), price=1.0, tags=("late",))]
        ),
        CatalogueChange(4, [replace(item, price=1.0)], []),
        CatalogueChange(5, [replace(item, price=1.0, title="Other")], []),
    ):
        read.clear()
        live = live.after(change)
        shown = {answer.id for answers in live.answer(asked) for answer in answers}  # type: ignore[union-attr]
        # A bundle may cost what its items cost.
        repriced = {*stock.holders["g0022"], "spring", "b0001"} if change.version == 4 else set()
        assert read <= shown | {bundle.id for bundle in change.bundles} | repriced
    read.clear()
    live.after(CatalogueChange(6, [replace(item, price=1.0, withdrawn=True)], []))
    assert read <= set(stock.holders["g0022"]) | {"spring", "b0001"}


def test_a_filter_is_refused_when_nothing_has_a_price_tag_or_stock_any_more(recommender: Recommender) -> None:
    stock = stock_of(recommender.dataset)
    items = [Item(name) for name in stock.items]
    bundles = [Bundle(name, bundle.items) for name, bundle in stock.bundles.items()]
    now = Live(recommender, EMPTY.after(CatalogueChange(1, items, bundles)))
    filters = (Filter(max_price=9), Filter(tags=["late"]), Filter(in_stock=True))
    full = CatalogueChange(
        2,
        [Item(part, price=1.0, tags=("late",), stock=1) for part in bundles[0].items],
        [replace(bundles[0], price=1.0, tags=("late",))],
    )
    for change, expected in ((full, [bundles[0].id]), (CatalogueChange(3, items, bundles), None)) * 2:
        now = now.after(change)
        for where in filters:
            for partial in (None, ()):
                if expected is None:
                    with pytest.raises(ConfigError, match="cannot filter by"):
                        ask(now, Owned(), 5, where=where, partial=partial)
                else:
                    found = ids(ask(now, Owned(), 50, where=where, partial=partial))
                    assert found == expected if partial is None else set(found) == set(bundles[0].items)


def test_a_snapshot_goes_as_soon_as_another_has_its_place(live: Live) -> None:
    """Not only when Python's collector comes round, which a service holds back."""
    gc.collect()
    gc.disable()
    try:
        now = live.after(CatalogueChange(2, [], [Bundle("spring", ("g0022",), price=3.0)]))
        for where in (None, Filter(max_price=20), Filter(in_stock=True), Filter(tags=["Seafaring"])):
            ask(now, Owned(("g0022",)), where=where)
            ask(now, Owned(("g0022",)), where=where, partial=())
        parts: list[Any] = [now, now.shop, now.shop.bundle_shelf]
        gone = [weakref.ref(part) for part in parts]
        parts.clear()
        now = now.after(CatalogueChange(3, [], []))
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()


class TestExpectedSales:
    """A bundle that is newer than the model is ranked by what it is expected to sell."""

    ITEMS = ("g0004", "g0022", "g0401")

    def scores(self, live: Live, *bundles: Bundle) -> dict[str, float]:
        after = live.after(CatalogueChange(live.stock.version + 1, [], list(bundles)))
        answer = ask(after, owned_by(live.recommender.dataset, "u0007"), 10_000)
        return {found.id: found.score for found in answer}

    def new(self, name: str = "box", **said: Any) -> Bundle:
        return Bundle(name, self.ITEMS, **said)

    def test_more_sales_rank_higher_and_nothing_said_is_the_credit(self, live: Live) -> None:
        plain = self.scores(live, self.new())["box"]
        scores = [self.scores(live, self.new(expected_sales=count))["box"] for count in (0.0, 9.0, 900.0)]
        assert scores == sorted(set(scores))
        credit = float(live.model.state_dict()["new_bundle_credit"])
        assert self.scores(live, self.new(expected_sales=credit))["box"] == pytest.approx(plain, rel=1e-4)

    def test_a_bundle_sells_like_another(self, live: Live) -> None:
        sales = require(live.model, SalesScorer).known_sales()
        best = live.recommender.dataset.bundles[int(sales.argmax())]
        by_number = self.scores(live, self.new(expected_sales=float(sales.max())))["box"]
        assert self.scores(live, self.new(sells_like=best))["box"] == pytest.approx(by_number)
        chain = self.scores(live, self.new(sells_like="other"), self.new("other", sells_like=best))
        assert chain["box"] == pytest.approx(chain["other"])
        loop = self.scores(live, self.new(sells_like="other"), self.new("other", sells_like="box"))
        plain = self.scores(live, self.new(), self.new("other"))
        assert loop["box"] == pytest.approx(plain["box"])

    def test_only_sales_that_may_have_changed_are_looked_up(
        self, live: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of a bundle that sells like a training bundle never change."""
        asked: list[str] = []
        look_up = live_module._sales_of

        def counted(name: str, *more: Any) -> float:
            asked.append(name)
            return look_up(name, *more)

        monkeypatch.setattr(live_module, "_sales_of", counted)
        now = live.after(
            CatalogueChange(
                2,
                [],
                [
                    self.new("first", sells_like="b0001"),
                    self.new("second", sells_like="third"),
                    self.new("third", expected_sales=5.0),
                ],
            )
        )
        assert sorted(asked) == ["first", "second", "third"]
        asked.clear()
        now = now.after(CatalogueChange(3, [], [self.new("third", expected_sales=900.0)]))
        assert sorted(asked) == ["second", "third"]
        scores = self.scores(now)
        assert scores["second"] == pytest.approx(scores["third"])

    def test_it_can_be_taken_back(self, live: Live) -> None:
        plain = self.scores(live, self.new())
        high = live.after(CatalogueChange(live.stock.version + 1, [], [self.new(expected_sales=900.0)]))
        assert self.scores(high, self.new()) == pytest.approx(plain)
        assert self.scores(high)["box"] > plain["box"]

    def test_of_a_bundle_that_has_sold_its_sales_count(self, live: Live) -> None:
        name = next(iter(self.scores(live)))
        known = replace(live.stock.bundles[name], expected_sales=9e9)
        assert self.scores(live, known) == pytest.approx(self.scores(live))

    def test_contents_that_stay_are_not_embedded_again(self, live: Live) -> None:
        with_box = live.after(CatalogueChange(2, [], [self.new(expected_sales=9.0)]))
        again = with_box.after(CatalogueChange(3, [], [replace(self.new(expected_sales=9.0), price=3.0)]))
        assert again.shop.interactions is with_box.shop.interactions

    def test_a_model_that_does_not_go_by_sales_passes_it_over(self) -> None:
        shop = sample_shop().dataset
        plain = Recommender(embedding_dim=8, epochs=1, popularity_weight=0.0, device="cpu")
        live = Live(plain.fit(shop, progress=False), stock_of(shop))
        assert self.scores(live, self.new(expected_sales=9e9)) == self.scores(live, self.new())
