"""The sentence of a reason: true facts of the tables, in plain words, in every language."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from copy import copy
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po

from bundlemage import History, Recommender
from bundlemage.core.history import User
from bundlemage.designer import sentences
from bundlemage.designer.sentences import LONGEST_TITLE, Sentences
from bundlemage.errors import ConfigError
from bundlemage.messages import FOLDER, VARIABLE, language_of, languages
from bundlemage.wire.design_answers import Code, Evidence, Explanation
from bundlemage.wire.shop import ShopSettings
from tests.designing import goods_of, numbers, owned_by, small_sample
from tests.small_shop import dataset_of

NOT_FOR_READERS = ("likelier", "factor", "%", " times", "None", "{", "..", "  ")


@pytest.fixture(scope="module")
def model() -> Recommender:
    return small_sample()[0]


def row(matrix: Any, place: int) -> set[int]:
    return set(matrix[place].indices.tolist())


class Tables:
    """What the tables say, without the code under test."""

    def __init__(self, model: Recommender, user: User) -> None:
        self.model, self.data, self.user = model, model.dataset, user
        self.tags = goods_of(model).tags
        self.owned = owned_by(model, user)
        if isinstance(user, History):
            self.items, self.bundles = set(map(str, user.items)), set(map(str, user.bundles))
        else:
            place = self.data.users.position(str(user))
            self.items = {self.data.items[each] for each in row(self.data.user_item, place)}
            self.bundles = {self.data.bundles[each] for each in row(self.data.user_bundle, place)}

    def inside(self, bundle: str) -> set[str]:
        places = row(self.data.bundle_item, self.data.bundles.position(bundle))
        return {self.data.items[place] for place in places}

    def faults(
        self, told: Explanation, bundle: str | None, item: str | None, partial: list[str]
    ) -> list[str]:
        """What is not true of the evidence."""
        wrong = [self._fault(each, bundle, item, partial) for each in told.evidence]
        wrong += [self._repeated(*told.evidence)] if len(told.evidence) == 2 else []
        named = [self.inside(each.id) for each in told.evidence if each.code == "has_bundle" and each.id]
        wrong += [self._unrelated(told, {item} if item else self.inside(bundle or ""))]
        if any(each.code == "owns_part" for each in told.evidence) and bundle:
            both = self.owned & self.inside(bundle)
            counted = [items for items in named if 2 * len(both & items) >= len(both)]
            wrong += [f"{told.words!r} counts what a bundle has"] if counted else []
        return [each for each in wrong if each]

    def _fault(self, fact: Evidence, bundle: str | None, item: str | None, partial: list[str]) -> str:
        data = self.data
        match fact.code:
            case "has_item":
                title = data.item_title(data.items.position(fact.id or ""))
                is_true = fact.id in self.items and fact.title == title
            case "has_bundle":
                title = data.bundle_title(data.bundles.position(fact.id or ""))
                is_true = fact.id in self.bundles and fact.title == title and fact.id != bundle
            case "bundle_has":
                is_true = fact.id in partial
            case "owns_part":
                both = self.inside(bundle or "") & self.owned
                is_true = (fact.count, fact.of) == (len(both), len(self.inside(bundle or "")))
                is_true &= fact.id is None or both == {fact.id}
            case "tag_share":
                items = self.inside(bundle) if bundle else {item or ""}
                share = sum(fact.tag in self.tags[each] for each in items) / len(items)
                count = sum(fact.tag in self.tags[each] for each in self.owned)
                everywhere = sum(fact.tag in tags for tags in self.tags.values()) / len(self.tags)
                is_true = (fact.count, fact.of) == (count, len(self.owned))
                is_true &= share >= 0.5 and count / len(self.owned) >= 1.5 * everywhere
            case "has_this":
                is_true = bundle in self.bundles or item in self.owned
            case "whole_history":
                is_true = bool(self.owned)
            case "popular":
                sold = data.user_bundle if bundle else data.user_item
                ids = data.bundles if bundle else data.items
                is_true = fact.count == sold[:, ids.position(bundle or item or "")].nnz > 0
            case _:
                is_true = True
        return "" if is_true else f"{fact} is not true"

    def _main_tags(self, items: set[str]) -> set[str]:
        counts = Counter(tag for item in items for tag in self.tags[item])
        return {tag for tag, count in counts.items() if 2 * count >= len(items)}

    def _unrelated(self, told: Explanation, answer: set[str]) -> str:
        """No item or bundle is named that has nothing to do with the answer."""
        for each in told.evidence:
            if each.id is None or each.code == "owns_part":
                continue
            items = self.inside(each.id) if each.code == "has_bundle" else {each.id}
            tags, of_answer = self._main_tags(items), self._main_tags(answer)
            if not items & answer and tags and of_answer and not tags & of_answer:
                return f"{each} has nothing to do with the answer"
        return ""

    def _repeated(self, one: Evidence, other: Evidence) -> str:
        def content(fact: Evidence) -> set[str]:
            if fact.id is None:
                return set()
            return self.inside(fact.id) if fact.code == "has_bundle" else {fact.id}

        first, second = content(one), content(other)
        if one.code == other.code and one.title == other.title and one.title:
            return f"{one} is told twice"
        return f"{one} contains {other}" if first and second and (first <= second or second <= first) else ""


def wording_faults(told: Explanation) -> list[str]:
    """What is wrong with a sentence, whatever it says."""
    if not told.words:
        return [] if told.evidence[0].code == "nothing" else ["has no words"]
    words, faults = told.words, [word for word in NOT_FOR_READERS if word in told.words]
    faults += ["is long"] if len(words) >= 200 else []
    faults += ["is not one sentence"] if not re.fullmatch(r"[A-Z].*\.", words) or "\n" in words else []
    text = words
    for fact in told.evidence:
        for known in (fact.title, fact.tag):
            text = text.replace(known or "\0", "")
    named = set(re.findall(r"\d+", text.replace(",", "").replace(".", "")))
    given = {str(each) for fact in told.evidence for each in (fact.count, fact.of) if each is not None}
    faults += [f"{named - given} is in no parameter"] if not named <= given else []
    faults += [f"{fact.title} is missing" for fact in told.evidence if fact.title and fact.title not in words]
    faults += [f"{fact.tag} is missing" for fact in told.evidence if fact.tag and fact.tag not in words]
    return faults


def some_reasons(model: Recommender) -> Iterator[tuple[User, str | None, str | None, list[str], Explanation]]:
    """300 reasons: for recommended bundles, for other bundles, and for items that complete a bundle."""
    users = model.dataset.users.ids[::16]
    languages_and_readers = [("en", "customer"), ("en", "shop"), ("de", "customer"), ("de", "shop")]
    for number, user in enumerate(users):
        language, to = languages_and_readers[number % 4]
        said: Any = {"language": language, "to": to}
        bundles = [each.id for each in model.recommend(user, 3)]
        bundles.append(model.dataset.bundles[7 * number % len(model.dataset.bundles)])
        for bundle, told in zip(bundles, model.explain_bundles(user, bundles, **said), strict=True):
            yield user, bundle, None, [], told
        partial = ["g0022"] if number % 2 else []
        for item in model.complete(user, partial, 2):
            yield user, None, item.id, partial, model.explain(user, item=item.id, items=partial, **said)


def test_300_reasons_are_true_and_can_be_read(model: Recommender) -> None:
    wrong, asked = [], 0
    for user, bundle, item, partial, told in some_reasons(model):
        asked += 1
        faults = Tables(model, user).faults(told, bundle, item, partial) + wording_faults(told)
        wrong += [f"{user}, {bundle or item}: {told.words!r}: {fault}" for fault in faults]
        assert 1 <= len(told.evidence) <= 2
    assert asked == 300
    assert not wrong, "\n".join(wrong)


class TestEvidence:
    def test_users_without_a_history_are_told_what_sells(self, model: Recommender) -> None:
        best = model.recommend(History(), 1)[0]
        told = model.explain(History(), bundle=best.id)
        (fact,) = told.evidence
        place = model.dataset.bundles.position(best.id)
        assert (fact.code, fact.count) == ("popular", model.dataset.user_bundle[:, place].nnz)
        assert told.words == f"Because {fact.count} customers have bought it."

    def test_a_ranking_by_sales_is_not_called_personal(self, model: Recommender) -> None:
        for name in ("popularity", "item-popularity"):
            same_for_all = Recommender(name, device="cpu").fit(model.dataset, progress=False)
            for best in same_for_all.recommend("u0007", 5):
                (fact,) = same_for_all.explain("u0007", bundle=best.id).evidence
                assert fact.code in ("popular",) if best.source == "popular" else ("popular", "nothing")

    def test_a_visitor_has_reasons_as_well(self, model: Recommender) -> None:
        visitor = History(items=["g0001"], bundles=["b0003"])
        best = model.recommend(visitor, 1)[0].id
        told = model.explain(visitor, bundle=best)
        assert not Tables(model, visitor).faults(told, best, None, [])
        assert "The Thornnewt Games Collection" in told.words

    def test_a_bundle_without_an_id_is_called_by_its_size(self, model: Recommender) -> None:
        inside = sorted(Tables(model, History()).inside("b0003"))
        told = model.explain(History(bundles=[inside[:3]]), bundle="b0003")
        assert told.words.startswith("Because you have a bundle of 3 items")

    def test_what_the_user_has_already_is_the_only_reason(self, model: Recommender) -> None:
        """Owning a bundle speaks for it in every model: the strongest reason is often the bundle itself."""
        data, words = model.dataset, set()
        for place, user in enumerate(data.users.ids[:40]):
            owned = [data.bundles[each] for each in row(data.user_bundle, place)]
            told = model.explain_bundles(user, owned)
            words |= {each.words for each in told if each.evidence[0].code == "has_this"}
        assert words == {"Because you already have it."}

    def test_where_customers_buy_again_it_was_bought_before(self, model: Recommender) -> None:
        again = copy(model)
        again.shop_settings = ShopSettings(owned="show")
        owned = model.dataset.bundles[min(row(model.dataset.user_bundle, 0))]
        user = model.dataset.users[0]
        assert again.explain(user, bundle=owned).words == "Because you have bought it before."

    def test_a_bundle_that_another_one_contains_is_owned_already(self, model: Recommender) -> None:
        data = model.dataset
        inside = [row(data.bundle_item, place) for place in range(len(data.bundles))]
        small, large = next(
            (one, other)
            for one, items in enumerate(inside)
            for other, more in enumerate(inside)
            if items < more
        )
        visitor = History(items=["g0022"], bundles=[data.bundles[large]])
        told = model.explain(visitor, bundle=data.bundles[small])
        assert told.words == "Because you have everything in this bundle."
        item = data.items[min(inside[small])]
        assert model.explain(visitor, item=item).words == "Because you already have it."

    def test_designed_items_are_not_each_others_reason(self, model: Recommender) -> None:
        """What "the bundle already has" stands before the item, and the first item fits the user."""
        wrong = []
        for user in model.dataset.users.ids[::80]:
            for design in model.design(user, n=2):
                for place, item in enumerate(design.items):
                    assert item.why is not None
                    partial = design.ids[:place]
                    wrong += Tables(model, user).faults(item.why, None, item.id, partial)
                    wrong += wording_faults(item.why)
        assert not wrong, "\n".join(wrong)

    def test_the_model_decides_what_is_named_first(self, model: Recommender) -> None:
        best = model.recommend("u0007", 1)[0].id
        told = model.explain("u0007", bundle=best)
        assert told.evidence[0].id == numbers(told).reasons[0].id

    def test_an_item_added_to_a_bundle(self, model: Recommender) -> None:
        (design,) = model.design("u0007", start=["g0022"], size=2, n=1, language="de", to="shop")
        why = design.items[-1].why
        assert why is not None
        assert (
            why.words
            == model.explain(
                "u0007", item=design.items[-1].id, items=["g0022"], language="de", to="shop"
            ).words
        )

    @pytest.mark.parametrize("name", ["ease", "item-knn", "owned-share"])
    def test_closed_forms_give_true_reasons(self, model: Recommender, name: str) -> None:
        closed = Recommender(name, device="cpu").fit(model.dataset, progress=False)
        for user in ("u0001", "u0007", "u0300"):
            bundle = closed.recommend(user, 1)[0].id
            told = closed.explain(user, bundle=bundle)
            assert not Tables(model, user).faults(told, bundle, None, []) + wording_faults(told)

    @pytest.mark.parametrize("name", ["ease-items", "co-occurrence", "popularity"])
    def test_closed_forms_give_true_reasons_for_items(self, model: Recommender, name: str) -> None:
        closed = Recommender(name, device="cpu").fit(model.dataset, progress=False)
        for user, partial in (("u0001", ["g0022"]), ("u0007", ["g0022", "g0401"]), ("u0300", [])):
            item = closed.complete(user, partial, 1)[0].id
            told = closed.explain(user, item=item, items=partial)
            assert not Tables(model, user).faults(told, None, item, partial) + wording_faults(told)
            if name == "popularity":
                assert [fact.code for fact in told.evidence] == ["popular"]

    def test_a_shop_without_titles_and_tags(self) -> None:
        shop = dataset_of(
            [[0, 1], [0, 2], [3, 4], [3, 5], [0, 1]],
            [[0], [1], [2], [2, 3], [0, 1]],
            [[0, 1], [0, 2], [3, 4], [3, 5]],
            6,
        )
        model = Recommender("owned-share", device="cpu").fit(shop, progress=False)
        told = model.explain("u3", bundle="b2")
        assert all(fact.title is None for fact in told.evidence)
        assert re.search(r"bundle b\d|item i\d|in this bundle|have it|customers?", told.words), told.words
        german = model.explain(History(items=["i0"]), bundle="b1", language="de").words
        assert german == "Weil Sie Artikel i0 aus diesem Bundle haben."


def fact(code: Code, **values: Any) -> Evidence:
    return Evidence(code=code, **values)


BUNDLE = fact("has_bundle", id="b0003", title="The Thornnewt Games Collection")
TAG = fact("tag_share", tag="Seafaring", count=10, of=14)


class TestSentences:
    @pytest.mark.parametrize(
        ("evidence", "english", "german"),
        [
            (
                (BUNDLE, TAG),
                "Because you have The Thornnewt Games Collection, and 10 of your 14 items are tagged "
                "Seafaring.",
                "Weil Sie „The Thornnewt Games Collection“ haben und 10 Ihrer 14 Artikel das Schlagwort "
                "„Seafaring“ haben.",
            ),
            (
                (fact("has_item", id="7"), fact("has_bundle", id="8")),
                "Because you have item 7 and bundle 8.",
                "Weil Sie Artikel 7 und Bundle 8 haben.",
            ),
            (
                (BUNDLE, fact("owns_part", count=6, of=10)),
                "Because you have The Thornnewt Games Collection and 6 of the 10 items in this bundle.",
                "Weil Sie „The Thornnewt Games Collection“ und 6 der 10 Artikel dieses Bundles haben.",
            ),
            (
                (fact("owns_part", id="g1", title="Tides", count=1, of=3),),
                "Because you have Tides from this bundle.",
                "Weil Sie „Tides“ aus diesem Bundle haben.",
            ),
            (
                (fact("owns_part", count=2, of=7), fact("has_item", id="g2", title="House of Mirrors")),
                "Because you have 2 of the 7 items in this bundle, and House of Mirrors.",
                "Weil Sie 2 der 7 Artikel dieses Bundles und „House of Mirrors“ haben.",
            ),
            (
                (fact("popular", count=1),),
                "Because 1 customer has bought it.",
                "Weil 1 Kunde es gekauft hat.",
            ),
            (
                (fact("popular", count=1234),),
                "Because 1,234 customers have bought it.",
                "Weil 1.234 Kunden es gekauft haben.",
            ),
            (
                (fact("tag_share", tag="Horror", count=3, of=3),),
                "Because all 3 of your items are tagged Horror.",
                "Weil alle Ihre 3 Artikel das Schlagwort „Horror“ haben.",
            ),
            (
                (BUNDLE, fact("owns_part", id="g1", title="Tides", count=1, of=3)),
                "Because you have The Thornnewt Games Collection, and you have Tides from this bundle.",
                "Weil Sie „The Thornnewt Games Collection“ haben und Sie „Tides“ aus diesem Bundle haben.",
            ),
            (
                (fact("whole_history"),),
                "Because it suits what you already have.",
                "Weil es zu dem passt, was Sie bereits haben.",
            ),
            ((fact("nothing"),), "", ""),
        ],
        ids=str,
    )
    def test_for_the_customer(self, evidence: tuple[Evidence, ...], english: str, german: str) -> None:
        assert Sentences("en").of(evidence) == english
        assert Sentences("de").of(evidence) == german

    @pytest.mark.parametrize(
        ("evidence", "english", "german"),
        [
            (
                (BUNDLE, TAG),
                "Because the customer has The Thornnewt Games Collection, and 10 of the customer's 14 items "
                "are tagged Seafaring.",
                "Weil der Kunde „The Thornnewt Games Collection“ hat und 10 von 14 Artikeln des Kunden das "
                "Schlagwort „Seafaring“ haben.",
            ),
            (
                (fact("tag_share", tag="Horror", count=3, of=3),),
                "Because all 3 of the customer's items are tagged Horror.",
                "Weil alle 3 Artikel des Kunden das Schlagwort „Horror“ haben.",
            ),
            (
                (fact("has_this"),),
                "Because the customer already has it.",
                "Weil der Kunde es bereits hat.",
            ),
            (
                (fact("whole_history"),),
                "Because it suits what the customer already has.",
                "Weil es zu dem passt, was der Kunde bereits hat.",
            ),
            (
                (fact("nothing"),),
                "No single item, bundle or tag explains this choice.",
                "Kein einzelner Artikel, kein Bundle und kein Schlagwort erklärt diese Wahl.",
            ),
        ],
        ids=str,
    )
    def test_for_the_shop(self, evidence: tuple[Evidence, ...], english: str, german: str) -> None:
        assert Sentences("en", "shop").of(evidence) == english
        assert Sentences("de", "shop").of(evidence) == german

    @pytest.mark.parametrize(
        ("code", "language", "to", "told"),
        [
            ("has_this", "en", "customer", "Because you have bought it before."),
            ("has_this", "en", "shop", "Because the customer has bought it before."),
            ("has_this", "de", "customer", "Weil Sie es schon einmal gekauft haben."),
            ("has_this", "de", "shop", "Weil der Kunde es schon einmal gekauft hat."),
            ("owns_part", "en", "customer", "Because you have bought everything in this bundle before."),
            ("owns_part", "en", "shop", "Because the customer has bought everything in this bundle before."),
            ("owns_part", "de", "customer", "Weil Sie schon alle Artikel dieses Bundles gekauft haben."),
            ("owns_part", "de", "shop", "Weil der Kunde schon alle Artikel dieses Bundles gekauft hat."),
        ],
    )
    def test_where_customers_buy_again(self, code: Code, language: str, to: Any, told: str) -> None:
        again = Sentences(language, to, bought_again=True)
        assert again.of((fact(code, count=3, of=3),)) == told

    @pytest.mark.parametrize(
        ("title", "shown"),
        [
            ("  Two\n lines ", "Two lines."),
            ('"Quoted"', "Quoted."),
            ("Acme Inc.", "Acme Inc."),
            ("100% wool %(what)s", "100% wool %(what)s."),
            ("x" * 500, "x" * (LONGEST_TITLE - 1) + "…"),
            ("Who's There?", "Who's There?"),
            ("Overcooked!", "Overcooked!"),
            (" \n", "item 1."),
        ],
        ids=lambda text: text[:20],
    )
    def test_odd_titles(self, title: str, shown: str) -> None:
        assert Sentences("en").of((fact("has_item", id="1", title=title),)) == f"Because you have {shown}"

    @pytest.mark.parametrize(
        ("tag", "shown"),
        [
            ("brand:Acme", "Acme"),
            ("brand:Acme:Pro", "Acme:Pro"),
            ("Star Wars: Rebels", "Star Wars: Rebels"),
            ("size:40", "size:40"),
            ("brand:", "brand:"),
        ],
    )
    def test_the_kind_of_a_tag_is_left_out(self, tag: str, shown: str) -> None:
        told = Sentences("en").of((fact("tag_share", tag=tag, count=3, of=5),))
        assert told == f"Because 3 of your 5 items are tagged {shown}."

    def test_the_language_is_that_of_the_shop(self, model: Recommender) -> None:
        assert Sentences(None, locale="de_AT").language == "de"
        assert Sentences(None, locale="ja_JP").language == "en"
        assert Sentences("de-CH").language == "de"

    def test_an_unknown_language_or_reader_is_told(self, model: Recommender) -> None:
        with pytest.raises(ConfigError, match=r"'xx'; the languages are: de, en"):
            model.explain("u0007", bundle="b0001", language="xx")
        with pytest.raises(ConfigError, match="'customer' or 'shop'"):
            model.explain("u0007", bundle="b0001", to="nobody")  # type: ignore[arg-type]


class TestCatalogues:
    def extracted(self) -> dict[Any, str]:
        found = extract_from_file("python", sentences.__file__)
        return {text if isinstance(text, str) else tuple(text): "" for _, text, _, _ in found}

    def test_the_template_has_every_text_of_the_code(self) -> None:
        template = read_po(BytesIO((FOLDER / "messages.pot").read_bytes()))
        of_template = {
            each.id if isinstance(each.id, str) else tuple(each.id) for each in template if each.id
        }
        assert of_template == set(self.extracted()), "update the template: docs/how-to/reasons.md"

    @pytest.mark.parametrize("language", [each for each in languages() if each != "en"])
    def test_a_language_is_complete_and_its_placeholders_agree(self, language: str) -> None:
        path = FOLDER / language / "LC_MESSAGES" / "messages.po"
        found = read_po(BytesIO(path.read_bytes()), abort_invalid=True)
        assert not found.obsolete
        texts = {}
        for message in found:
            if message.id:
                both = (message.id, message.string or "")
                ids, strings = ([each] if isinstance(each, str) else list(each) for each in both)
                assert all(strings), f"{ids[0]!r} is not translated"
                assert not message.fuzzy, f"{ids[0]!r} is fuzzy"
                names = {tuple(sorted(re.findall(r"%\((\w+)\)s", text))) for text in (*ids, *strings)}
                assert len(names) == 1, f"{ids[0]!r} has other placeholders than its translation"
                texts[ids[0] if len(ids) == 1 else tuple(ids)] = strings
        assert set(texts) == set(self.extracted())

    def test_a_folder_adds_a_language_and_changes_english(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        head = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
        for language, text in (("fr", "Parce que %(reason)s."), ("en", "We chose it because %(reason)s.")):
            file = tmp_path / language / "LC_MESSAGES" / "messages.po"
            file.parent.mkdir(parents=True)
            file.write_text(
                f'{head}#, python-format\nmsgid "Because %(reason)s."\nmsgstr "{text}"\n', "utf-8"
            )
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        assert {"de", "en", "fr"} <= set(languages())
        assert Sentences("fr").of((TAG,)).startswith("Parce que 10 of your")
        assert Sentences("en").of((TAG,)).startswith("We chose it because 10 of your")
        assert Sentences("de").of((TAG,)).startswith("Weil 10 Ihrer")

    def test_a_catalogue_without_a_header_has_the_plurals_of_its_language(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "pl" / "LC_MESSAGES" / "messages.po"
        file.parent.mkdir(parents=True)
        forms = "\n".join(f'msgstr[{number}] "%(count)s {"abc"[number]}"' for number in range(3))
        texts = 'msgid "%(count)s customer has bought it"\nmsgid_plural "%(count)s customers have bought it"'
        file.write_bytes(BOM_UTF8 + f"{texts}\n{forms}\n".encode())
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        told = [Sentences("pl").of((fact("popular", count=count),)) for count in (1, 3, 5, 22)]
        assert told == ["Because 1 a.", "Because 3 b.", "Because 5 c.", "Because 22 b."]

    @pytest.mark.parametrize(
        ("language", "text", "told"),
        [
            ("fr", 'msgid ""\nmsgstr "Content-Type: text/plain; charset=foo\\n"', "unknown encoding: foo"),
            ("fr", 'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=f(n);\\n"', "plural form"),
            ("fr", "not a catalogue", "cannot be read as a catalogue"),
            ("tlh", 'msgid "you already have it"\nmsgstr "nuq"', "folder 'tlh', which is no language"),
            ("my words", 'msgid "you already have it"\nmsgstr "x"', "which is no language"),
        ],
    )
    def test_a_catalogue_that_cannot_be_used_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, text: str, told: str
    ) -> None:
        file = tmp_path / language / "LC_MESSAGES" / "messages.po"
        file.parent.mkdir(parents=True)
        file.write_text(f"{text}\n", "utf-8")
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        with pytest.raises(ConfigError, match=told):
            Sentences(language)

    def test_a_wrong_catalogue_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "it" / "LC_MESSAGES" / "messages.po"
        file.parent.mkdir(parents=True)
        file.write_text('#, python-format\nmsgid "Because %(reason)s."\nmsgstr "%(raison)s"\n', "utf-8")
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        with pytest.raises(ConfigError, match=r"messages\.po, line 2"):
            Sentences("it")
        monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
        with pytest.raises(ConfigError, match="not a folder"):
            language_of("en")
