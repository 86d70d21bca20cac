"""The questions that a model can answer about a shop. `Recommender` and `Live` inherit from `Asker`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from bundlemage.campaigns.audience import UNCALIBRATED, buyers, forecast
from bundlemage.campaigns.chances import Calibration
from bundlemage.campaigns.everyone import UserBatches
from bundlemage.campaigns.new_bundles import NewBundleCalibration
from bundlemage.campaigns.sample import SAMPLE, TYPICAL, Sample, expected_buyers, randomly_chosen
from bundlemage.core.answering import (
    ROWS_AT_A_TIME,
    Batch,
    batch_of,
    exact_ranking,
    nearest,
    rows_at_a_time,
    slices,
)
from bundlemage.core.filters import Filter
from bundlemage.core.history import History, Id, NewBundles, User
from bundlemage.core.ownership import BundleFacts
from bundlemage.core.ranking import Ranking, record_batches
from bundlemage.core.segments import Segment, SegmentTest
from bundlemage.core.shop import Candidates, RecommendedBundle, RecommendedItem, Shop
from bundlemage.core.steering import Steering, pool_size
from bundlemage.data.dataset import BundleDataset
from bundlemage.designer.design import design
from bundlemage.designer.explain import Explainer
from bundlemage.designer.sentences import Sentences
from bundlemage.errors import (
    BundleMageError,
    ConfigError,
    OutOfTimeError,
    UnsupportedError,
    check_whole,
    dict_of,
    list_of,
)
from bundlemage.models.base import (
    Completer,
    Embedder,
    Gated,
    Histories,
    Indexable,
    Matcher,
    Model,
    can,
    require,
)
from bundlemage.models.ragged import KeptForLast, Ragged
from bundlemage.progress import Progress, in_silence
from bundlemage.retrieval import LEAST_BUNDLES, BundleIndex, IndexReport, build_index
from bundlemage.wire.design import DesignRequest, ImpossibleDesignError
from bundlemage.wire.design_answers import BundleForecast, Design, Designs, Explanation
from bundlemage.wire.requests import LEAST_SAMPLED, Audience
from bundlemage.wire.shop import BundleRules, ItemRules, ShopSettings

Row = TypeVar("Row")
Pages: TypeAlias = Callable[[], Iterable[Mapping[str, History]]]
"""A function that returns pages of users: user id → history. It is called more than once."""


_Page: TypeAlias = tuple[Any, Histories]
"""The ids of some users, as an Arrow array, and their encoded histories."""
TOGETHER = 200
"""The most users for whom a bundle is designed together. Of more users, a random sample is drawn."""
MOST_KEPT = 2**25
"""Maximum number of interactions of encoded histories that are kept in memory. They take 256 MiB."""


class _KeptPages:
    """Reads pages of users, and keeps them for the next time if they are not too large for memory."""

    def __init__(self, read: Callable[[], Iterable[_Page]]) -> None:
        self._read = read
        self._kept: list[_Page] | None = None

    def __call__(self) -> Iterator[_Page]:
        if self._kept is not None:
            yield from self._kept
            return
        kept, room = list[_Page](), MOST_KEPT
        for page in self._read():
            room -= sum(len(ragged.values) + len(ragged) for ragged in (page[1].items, page[1].bundles))
            if room >= 0:
                kept.append(page)
            else:
                kept.clear()
            yield page
        if room >= 0:
            self._kept = kept


class Asker:
    """Answers questions with a model and a shop. Parameters and answers use the shop's ids."""

    def __init__(self) -> None:
        self.calibration: Calibration | None = None
        """Turns scores into probabilities; None for a model that was fitted without validation cases."""
        self.new_bundle_calibration: NewBundleCalibration | None = None
        """Turns scores of a new bundle into a number of buyers; None for a model of an earlier version, and
        after `fit(…, calibrate=False)`."""
        self.shop_settings = ShopSettings()
        """How answers treat what users own and what is sold out, and how prices are written."""
        self._fitted: tuple[Model, Shop] | None = None
        self._index: BundleIndex | None = None
        self._sample: KeptForLast[Sample] = KeptForLast()

    @property
    def model(self) -> Model:
        """The fitted model."""
        return self._fit_or_fail()[0]

    @property
    def shop(self) -> Shop:
        """The shop: its users, items, bundles and interactions."""
        return self._fit_or_fail()[1]

    @property
    def dataset(self) -> BundleDataset:
        """The shop's data, held-out pairs included."""
        return self.shop.dataset

    def _fit_or_fail(self) -> tuple[Model, Shop]:
        if self._fitted is None:
            raise BundleMageError("this recommender is not fitted yet: call fit, or use Recommender.load")
        return self._fitted

    # ── Bundles for a user, items for a bundle ───────────────────────────────────────────────────

    def recommend(
        self,
        user: User,
        k: int = 10,
        *,
        where: Filter | None = None,
        new_bundles: NewBundles | None = None,
        expected_sales: Mapping[str, float] | None = None,
        sells_like: Mapping[str, Id] | None = None,
        **rules: Unpack[BundleRules],
    ) -> list[RecommendedBundle]:
        """Returns the k bundles that fit a user best. Leaves out bundles that `where` excludes.

        `rules` replace those of `shop_settings`, unless they are None. `owned` says what happens to bundles
        whose items the user owns, and `stock` what happens to bundles with a sold-out item. `diversity` (0 to
        1) varies the list, and `match_popularity` (0 to 1) makes its mix of best sellers and others follow
        that of the user's own bundles. Bundles that the user has are left out unless `owned` is `show`.

        `new_bundles` are further candidates that the shop did not have at training: id → item ids. The
        model assumes that each has sold `new_bundle_credit` times. To change this for a new bundle, give
        its sales in `expected_sales`, or use `sells_like` to name a bundle of the shop with the same sales.

        >>> model.recommend("u0007", new_bundles={"box": ["g0022", "g0401"]}, sells_like={"box": "b0013"})
        """
        return self.recommend_many(
            [user],
            k,
            where=where,
            new_bundles=new_bundles,
            expected_sales=expected_sales,
            sells_like=sells_like,
            **rules,
        )[0]

    def recommend_many(
        self,
        users: Iterable[User],
        k: int = 10,
        *,
        where: Filter | None = None,
        new_bundles: NewBundles | None = None,
        expected_sales: Mapping[str, float] | None = None,
        sells_like: Mapping[str, Id] | None = None,
        **rules: Unpack[BundleRules],
    ) -> list[list[RecommendedBundle]]:
        """`recommend` for several users. Returns a list for each user. For all users, use `recommend_all`."""
        require(self.model, Matcher)
        settings = self._rules(rules, BundleRules)
        new = dict_of("new_bundles", new_bundles)
        sales = dict_of("expected_sales", expected_sales), dict_of("sells_like", sells_like)
        expected = self.shop.expectations(self.model, new, *sales)
        candidates = self.shop.bundles(where, new, settings.stock, settings.decimals)
        batches = (
            batch_of(self.shop, *self._encode(part, new, expected), users=part)
            for part in self._in_batches(users, k, self._width(candidates))
        )
        return [
            answers
            for batch, ranking in self._rankings(batches, candidates, k, settings)
            for answers in self.shop.recommended_bundles(
                candidates, ranking, batch.owned, batch.contents, settings
            )
        ]

    def complete(
        self,
        user: User,
        items: Sequence[Id] = (),
        k: int = 5,
        *,
        where: Filter | None = None,
        **rules: Unpack[ItemRules],
    ) -> list[RecommendedItem]:
        """Returns the k items that best complete a partial bundle for a user. `items` may be empty.

        Items of the partial bundle are left out. Items that the user owns, alone or in a bundle, are left out
        unless `owned` is `show`. `stock` says what happens to items that are sold out. None: as in
        `shop_settings`.
        """
        return self.complete_many([(user, items)], k, where=where, **rules)[0]

    def complete_many(
        self,
        cases: Iterable[tuple[User, Sequence[Id]]],
        k: int = 5,
        *,
        where: Filter | None = None,
        **rules: Unpack[ItemRules],
    ) -> list[list[RecommendedItem]]:
        """`complete` for several pairs of a user and a partial bundle. Returns a list of items for each."""
        require(self.model, Completer)
        settings = self._rules(rules, ItemRules)
        candidates = self.shop.items(where, settings.stock)

        def batches() -> Iterator[Batch]:
            for part in self._in_batches(cases, k, len(candidates.ids), "cases"):
                try:
                    users, bundles = [user for user, _ in part], [items for _, items in part]
                except (TypeError, ValueError):
                    raise ConfigError("give each case as a pair: a user and a list of items") from None
                inside = [self.shop.item_positions(items) for items in bundles]
                given = Ragged.from_lists(inside, self.shop.device)
                yield batch_of(self.shop, *self._encode(users), given, users)

        return [
            answers
            for batch, ranking in self._rankings(batches(), candidates, k, settings)
            for answers in self.shop.recommended_items(candidates, ranking, batch.owned)
        ]

    def similar(self, bundle: Id, k: int = 10, *, where: Filter | None = None) -> list[RecommendedBundle]:
        """Returns the k bundles that are most similar to a bundle.

        A score is the cosine between the model's vectors of both bundles. The bundle itself is left out. The
        answer is for nobody in particular, so no item counts as owned. The shop's rule for sold-out bundles
        holds.
        """
        check_whole("k", k, 1)
        place, contents = self.shop.bundle_position(bundle), self.shop.interactions.bundle_item
        if contents.offsets[place] == contents.offsets[place + 1]:
            raise ConfigError(
                f"the bundle {str(bundle)!r} has no items, so it cannot be compared with others"
            )
        with torch.inference_mode():
            only_this = contents.rows(torch.tensor([place], device=contents.device))
            vector = require(self.model, Embedder).vectors_of_bundles(only_this)
        rules = self.shop_settings
        candidates = self.shop.bundles(where, stock=rules.stock, decimals=rules.decimals)
        ranking = nearest(self.model, contents, vector, candidates, k, exclude=place)
        nothing = Ragged.from_lists([()], contents.device)
        return self.shop.recommended_bundles(candidates, ranking, nothing, contents, rules)[0]

    def gate(self, user: User) -> float:
        """Returns the weight of a user's items in the model's vector of the user, 0 to 1. The rest is the
        weight of the user's bundles."""
        with torch.inference_mode():
            return float(require(self.model, Gated).item_share(*self._encode([user]))[0])

    # ── Designing ────────────────────────────────────────────────────────────────────────────────

    def design(
        self,
        user: User,
        request: DesignRequest | None = None,
        *,
        users: Callable[[], tuple[Sequence[History], int]] | None = None,
        progress: Progress = in_silence,
        own_costs: bool = True,
        **conditions: Any,
    ) -> Designs:
        """Returns whole bundles for a user that meet all conditions, given as a request or as its fields.

        >>> model.design("u0007", start=["g0022"], size=(3, 5), budget=40, tags={"at least": {"Horror": 1}})

        The best bundle comes first. Each has its price, score and reasons, its rank for the user and its
        expected number of buyers. If no bundle is possible, raises `ImpossibleDesignError`, which names the
        conflicting conditions and possible changes. With `margin` and without `costs`, the costs of the
        catalogue are used if `own_costs`.

        `users` returns a random sample of the users who may buy a bundle, and the number of all of them. By
        default these are the users of the shop.
        """
        require(self.model, Completer)
        request = _request(request, conditions)
        sentences = self._sentences(request.language, request.to)
        histories, contents = self._encode([user])
        explainer = partial(Explainer, self.model, self.shop, user, histories, contents, sentences, progress)
        owned = self.shop.owned([user], histories, contents)
        question = (histories, contents, owned, request, self.shop_settings, explainer, progress)
        designs = design(self.model, self.shop, *question, own_costs=own_costs)
        if not request.buyers:
            return designs
        return self._with_buyers(designs, lambda: self._some_of(users))

    def design_many(
        self,
        users: Iterable[User] | Segment | None = None,
        request: DesignRequest | None = None,
        *,
        progress: Progress = in_silence,
        **conditions: Any,
    ) -> Designs:
        """Returns whole bundles for several users together: those with the highest mean probability.

        `users` are ids or histories, or a segment, such as `Segment(tag="Horror")`; None: all users of the
        shop. An id that is listed twice counts once. The search uses at most 200 of them, drawn at random,
        and the number of buyers is estimated from at most 2,000. A user who has any item of a bundle does not
        count in the search; with `not_owned=False`, only one who has all its items does not. There are no
        ranks and no reasons.
        """
        require(self.model, Completer)
        request = _request(request, conditions)
        everyone = self._users_of(users)
        together = [everyone[place] for place in randomly_chosen(len(everyone), TOGETHER)]
        histories, contents = self._encode(together)
        owned = self.shop.owned(together, histories, contents)
        question = (histories, contents, owned, request, self.shop_settings, None, progress)
        designs = design(self.model, self.shop, *question)
        if not request.buyers:
            return designs

        def group() -> Sample | None:
            if users is None:
                return None
            chosen = [everyone[place] for place in randomly_chosen(len(everyone))]
            return Sample.of(self.model, self.shop, *self._encode(chosen), len(everyone))

        return self._with_buyers(designs, lambda: self._some_of(None), group)

    def design_each(
        self,
        users: Iterable[User] | Segment | None = None,
        request: DesignRequest | None = None,
        *,
        progress: Progress = in_silence,
        **conditions: Any,
    ) -> list[tuple[Design, list[User]]]:
        """Returns the best bundle for each of several users, each bundle once, with the users it is for. The
        bundle for the most users comes first.

        `users` are as in `design_many`. A user for whom no bundle is possible, or is found in time, has none.
        The time limit of the request is for one user, and `n` is ignored. `progress` counts the users.
        """
        request = _request(request, conditions).model_copy(update={"n": 1, "reasons": False, "buyers": False})
        everyone = self._users_of(users)
        found: dict[frozenset[str], tuple[Design, list[User]]] = {}
        refused: ImpossibleDesignError | OutOfTimeError | None = None
        for number, user in enumerate(everyone):
            progress("users", number, len(everyone))
            try:
                (bundle,) = self.design(user, request)
            except (ImpossibleDesignError, OutOfTimeError) as error:
                refused = error
                continue
            found.setdefault(frozenset(bundle.ids), (bundle, []))[1].append(user)
        if refused is not None and not found:
            raise refused
        return sorted(found.values(), key=lambda each: -len(each[1]))

    def users_in(self, segment: Segment) -> list[str]:
        """Returns the ids of the users of the shop who are in a segment; raises `ConfigError` if none is."""
        names = self.dataset.users.ids
        test = SegmentTest(segment, self.shop.item_shelf, self.shop.interactions.bundle_item)
        found = [names[place] for place in np.flatnonzero(test(names, self.shop.everyone()))]
        if not found:
            raise ConfigError("no user is in this segment: give other conditions")
        return found

    def _users_of(self, users: Iterable[User] | Segment | None) -> list[User]:
        """The users of a question about several: those given, those of a segment, or all of the shop."""
        if isinstance(users, Segment):
            return [*self.users_in(users)]
        listed = list_of("users", self.dataset.users.ids if users is None else users)
        # An id that is listed twice counts once. Histories have no ids: equal ones may be of two people.
        keys = (n if isinstance(user, History) else str(user) for n, user in enumerate(listed))
        found = list(dict(zip(keys, listed, strict=True)).values())
        if not found:
            raise ConfigError("there are no users to design a bundle for: give at least one, or none for all")
        return found

    def _some_of(self, users: Callable[[], tuple[Sequence[History], int]] | None) -> Sample:
        """A sample of the users of the shop, or of others."""
        if users is not None:
            histories, count = users()
            return Sample.of(self.model, self.shop, *self._encode(histories), count)

        def of_the_shop() -> Sample:
            everyone = self.shop.everyone()
            places = torch.from_numpy(randomly_chosen(len(everyone))).to(self.shop.device)
            contents = self.shop.interactions.bundle_item
            return Sample.of(self.model, self.shop, everyone.rows(places), contents, len(everyone))

        return self._sample.of(self.model, of_the_shop)

    def _with_buyers(
        self,
        designs: Designs,
        sample: Callable[[], Sample],
        group: Callable[[], Sample | None] = lambda: None,
    ) -> Designs:
        """Adds the expected numbers of buyers, or a note that says why they are not known. `sample` returns
        users of the shop, and `group` those who count; None: all users of the shop."""
        calibration = self.new_bundle_calibration
        if not can(self.model, Matcher):
            return designs  # its note says so
        if calibration is None:
            return designs.model_copy(update={"note": UNCALIBRATED})
        if calibration.reason is not None:
            note = f"There is too little data to say how many users would buy a bundle: {calibration.reason}."
            return designs.model_copy(update={"note": note})
        users = sample()
        if not users.users:
            note = "The shop has no users, so the number of buyers is not known."
            return designs.model_copy(update={"note": note})
        positions = self.dataset.items.positions
        bundles = [positions(bundle.ids).tolist() for bundle in designs]
        found = expected_buyers(self.model, self.shop, users, bundles, calibration, group())
        updated = (
            bundle.model_copy(update={"expected_buyers": expected, "low": low, "high": high})
            for bundle, (expected, low, high) in zip(designs, found, strict=True)
        )
        return designs.model_copy(
            update={"bundles": tuple(updated), "note": None if calibration.tells_apart else TYPICAL}
        )

    def explain(
        self,
        user: User,
        *,
        bundle: Id | None = None,
        item: Id | None = None,
        items: Sequence[Id] = (),
        language: str | None = None,
        to: Audience = "customer",
    ) -> Explanation:
        """Returns the reason why `bundle` is recommended to a user, or why `item` is added to `items`.

        `words` is a sentence for the customer ("you have") or, with `to="shop"`, about the customer ("the
        customer has"). Its language is that of the shop's locale, unless `language` names another one, such
        as `de`.
        `evidence` has the same facts as codes and parameters. `details` has the numbers: the model scores
        again without each of the user's items and bundles, and without each of `items`.
        """
        items = list_of("items", items)
        if (bundle is None) == (item is None) or (items and item is None):
            raise ConfigError("explain either a 'bundle', or an 'item' as an addition to 'items'")
        if bundle is not None:
            return self.explain_bundles(user, [bundle], language=language, to=to)[0]
        require(self.model, Completer)
        sentences = self._sentences(language, to)
        place, inside = self.dataset.items.position(str(item)), tuple(self.shop.item_positions(items))
        return Explainer(self.model, self.shop, user, *self._encode([user]), sentences).item(place, inside)

    def explain_bundles(
        self,
        user: User,
        bundles: Sequence[Id],
        *,
        language: str | None = None,
        to: Audience = "customer",
        progress: Progress = in_silence,
    ) -> list[Explanation]:
        """Returns the reason why each of the bundles is recommended to a user, in the same order."""
        require(self.model, Matcher)
        sentences = self._sentences(language, to)
        places = [self.shop.bundle_position(bundle) for bundle in list_of("bundles", bundles)]
        encoded = self._encode([user])
        return Explainer(self.model, self.shop, user, *encoded, sentences, progress).bundles(places)

    def _sentences(self, language: str | None, to: Audience) -> Sentences:
        """Raises `ConfigError` if there are no sentences in this language."""
        shop = self.shop_settings
        return Sentences(language, to, shop.locale, bought_again=shop.owned == "show")

    def score_bundle(
        self,
        items: Sequence[Id],
        price: float | None = None,
        *,
        discount: float | None = None,
        k: int = 10,
        among: Segment | None = None,
        sample: int | None = None,
        seed: int = 0,
        on_estimate: Callable[[BundleForecast], object] | None = None,
        users: Pages | None = None,
        of: int | None = None,
        listed: Pages | None = None,
        count: int = 0,
        progress: Progress = in_silence,
    ) -> BundleForecast:
        """Returns the audience of a bundle that does not exist yet, among all users of the shop or `users`.

        The forecast has the k most likely buyers, the expected number of buyers, the most similar bundles,
        the weakest item and a better one. The model does not know prices: a price, or a discount on the
        items' prices, is only used to compute the revenue.

        `among` limits the forecast to a segment, such as `Segment(tag="Horror")`. With `sample`, the forecast
        is an estimate from so many users, drawn at random with the `seed`. With `on_estimate`, this function
        is first called with such an estimate (from `sample` or 2,000 users), and the exact forecast is
        returned later. An error that `progress` raises stops the work.

        An estimate needs at least 30 users of the segment in the sample, unless the segment lists at most
        2,000 users: these are counted exactly.

        `users` replaces the users of the shop. If they are a random sample, `of` is the number of users that
        they were drawn from, and `listed` may have the users that the segment lists. `count` is the number of
        `users`, 0 if it is unknown; it is only told to `progress`.

        >>> model.score_bundle(["g0022", "g0401"], among=Segment(tag="Horror"), on_estimate=print)
        """
        require(self.model, Matcher)
        check_whole("k", k, 1)
        check_whole("seed", seed, 0)
        if sample is not None:
            check_whole("sample", sample, LEAST_SAMPLED)
        if users is not None and (sample is not None or on_estimate is not None):
            raise ConfigError(
                "with 'users' draw the sample yourself, and give the number of all users in 'of'"
            )
        if of is not None:
            check_whole("of", of, 1)
        if (of is not None or listed is not None) and users is None:
            raise ConfigError("'of' says what the sample 'users' was drawn from: give 'users' as well")

        def ask(
            batches: UserBatches, of: int | None, count: int, listed: UserBatches | None = None
        ) -> BundleForecast:
            return forecast(
                self.model,
                self.shop,
                batches,
                items,
                price,
                settings=self.shop_settings,
                discount=discount,
                k=k,
                calibration=self.new_bundle_calibration,
                segment=among,
                of=of,
                listed=listed,
                count=count,
                progress=progress,
            )

        if users is not None:
            return ask(self._batches(users), of, count, None if listed is None else self._batches(listed))
        whole = len(self.shop.user_ids)
        size = sample or (SAMPLE if on_estimate is not None else whole)
        if size < whole:
            chosen = randomly_chosen(whole, size, seed)
            estimate = ask(self._own_batches(chosen), whole, size, self._listed(among))
            if on_estimate is None:
                return estimate
            on_estimate(estimate)
        return ask(self._own_batches(None), None, whole)

    def buyers(
        self,
        items: Sequence[Id],
        *,
        among: Segment | None = None,
        least_chance: float | None = None,
        users: Pages | None = None,
        count: int = 0,
        progress: Progress = in_silence,
    ) -> pa.Table:
        """Returns the users who would buy a bundle that does not exist yet, as an Arrow table.

        Columns: user_id, chance. The likeliest come first. The table has the users with at least
        `least_chance`, or above the threshold of `score_bundle` if it is None. Other parameters are as in
        `score_bundle`. Raises `UnsupportedError` if the model has no calibration for new bundles.
        """
        require(self.model, Matcher)
        return buyers(
            self.model,
            self.shop,
            self._own_batches(None) if users is None else self._batches(users),
            items,
            least_chance=least_chance,
            calibration=self.new_bundle_calibration,
            segment=among,
            count=len(self.shop.user_ids) if users is None else count,
            progress=progress,
        )

    def _own_batches(self, chosen: npt.NDArray[np.int64] | None) -> UserBatches:
        """The users of the shop in batches: all, or those at the chosen positions."""
        names, histories = self.shop.user_ids, self.shop.everyone()
        if chosen is not None:
            names = names.take(pa.array(chosen))
            histories = self.shop.interactions.histories(torch.from_numpy(chosen).to(self.shop.device))
        return partial(self._in_parts, lambda: [(names, histories)])

    def _listed(self, segment: Segment | None) -> UserBatches | None:
        """The users that a segment lists; None if it lists none, or too many to score them all."""
        if not isinstance(segment, Segment) or segment.users is None or len(segment.users) > SAMPLE:
            return None
        names = self.dataset.users.known(map(str, segment.users))
        return self._own_batches(np.sort(self.dataset.users.positions(names).astype(np.int64)))

    def _batches(self, users: Pages) -> UserBatches:
        """The users of pages in batches."""
        if not callable(users):
            raise ConfigError(f"'users' is {users!r}; expected a function that returns pages of users")

        def encoded(page: Mapping[str, History]) -> _Page:
            histories, contents = self._encode(list(page.values()))
            if len(contents) > len(self.shop.interactions.bundle_item):
                raise ConfigError(
                    "a history in 'users' has a bundle without an id, which a forecast cannot read: give the "
                    "id of a bundle of the shop, or put its items into 'items'"
                )
            return pa.array(list(page), pa.string()), histories

        return partial(self._in_parts, _KeptPages(lambda: map(encoded, users())))

    def _in_parts(self, read: Callable[[], Iterable[_Page]]) -> Iterator[tuple[list[str], Histories]]:
        rows = ROWS_AT_A_TIME
        if not can(self.model, Indexable):  # all scores of a batch are in memory
            rows = rows_at_a_time(len(self.dataset.bundles), self.shop.device)
        for names, histories in read():
            for number, part in enumerate(slices(histories, rows)):
                yield names.slice(number * rows, len(part)).to_pylist(), part

    # ── All users at once ────────────────────────────────────────────────────────────────────────

    def recommend_all(
        self,
        k: int = 10,
        *,
        users: Iterable[Id] | None = None,
        where: Filter | None = None,
        **rules: Unpack[BundleRules],
    ) -> Iterator[pa.RecordBatch]:
        """`recommend` for all users of the shop, or for `users`. Yields Arrow batches of up to 1,024 users.

        Columns: user_id, rank, bundle_id, score, source, owned_items and missing_items (how many items of the
        bundle the user owns and lacks), to_pay and sold_out. Memory does not grow with the number of users. A
        user has no row if all bundles are owned or excluded.
        """
        if users is None:
            histories, names = self.shop.everyone(), self.shop.user_ids
        else:
            chosen = list(map(str, list_of("users", users)))
            histories, names = self.shop.known(chosen), pa.array(chosen, pa.string())
        return self.record_batches(histories, names, k, where=where, **rules)

    def record_batches(
        self,
        histories: Histories,
        names: pa.Array,
        k: int = 10,
        *,
        where: Filter | None = None,
        **rules: Unpack[BundleRules],
    ) -> Iterator[pa.RecordBatch]:
        """`recommend_all` for users with these ids and histories."""
        shop, settings = self.shop, self._rules(rules, BundleRules)

        def facts(batch: Batch, ranking: Ranking) -> BundleFacts:
            rows, _, positions = ranking.answers()
            return shop.lines(rows, positions, batch.owned, batch.contents).facts(settings)

        ranked = self._ranked(histories, k, where, settings)
        with_facts = ((ranking, facts(batch, ranking)) for batch, ranking in ranked)
        return record_batches(with_facts, names, shop.bundle_ids)

    def rank_bundles(
        self,
        histories: Histories,
        k: int = 10,
        *,
        where: Filter | None = None,
        **rules: Unpack[BundleRules],
    ) -> Iterator[Ranking]:
        """`recommend` for any number of histories, with positions instead of ids. Users may be new.

        In histories and rankings, bundles and items are positions in `dataset.bundles` and `dataset.items`.
        Yields rankings in the order of the histories, each for up to 1,024 of them.
        """
        ranked = self._ranked(histories, k, where, self._rules(rules, BundleRules))
        return (ranking for _, ranking in ranked)

    def _ranked(
        self, histories: Histories, k: int, where: Filter | None, rules: ShopSettings
    ) -> Iterator[tuple[Batch, Ranking]]:
        """Yields the users with these histories in batches, and the best bundles of each batch."""
        require(self.model, Matcher)
        check_whole("k", k, 1)
        candidates = self.shop.bundles(where, stock=rules.stock, decimals=rules.decimals)
        rows = rows_at_a_time(self._width(candidates), self.shop.device)
        batches = (
            batch_of(self.shop, part, self.shop.interactions.bundle_item)
            for part in slices(self.shop.checked(histories), rows)
        )
        return self._rankings(batches, candidates, k, rules)

    # ── Millions of bundles ──────────────────────────────────────────────────────────────────────

    def use_index(
        self,
        least_recall: float = 0.95,
        *,
        least_bundles: int = LEAST_BUNDLES,
        most_share: float = 0.25,
        seed: int = 0,
        progress: Progress = in_silence,
    ) -> IndexReport:
        """Use an index to search bundles from now on, in `recommend`, `recommend_all` and `rank_bundles`.

        The index is built in memory. A search of the index may look at a share of at most `most_share` of the
        bundles. For some users of the shop, an exact search finds the ten best bundles. If the index finds
        a smaller share of these than `least_recall`, `RecallError` is raised, and the search stays exact. The
        search also stays exact for fewer than `least_bundles` bundles: an index would be slower. The scores
        of an index are estimates. Returns a report on the index and on the quality of its answers.
        """
        require(self.model, Matcher)
        self._index = None
        self._index, report = build_index(
            self.model,
            self.shop,
            least_recall,
            self.shop_settings,
            least_bundles=least_bundles,
            most_share=most_share,
            seed=seed,
            progress=progress,
        )
        return report

    # ── Steps that all questions share ───────────────────────────────────────────────────────────

    def _encode(
        self,
        users: Sequence[User],
        new: NewBundles | None = None,
        expected: Mapping[str, float] | None = None,
    ) -> tuple[Histories, Ragged]:
        """`Shop.encode`; raises `UnsupportedError` for a new user if the model cannot score new users."""
        if not self.model.knows_new_users and any(isinstance(user, History) for user in users):
            raise UnsupportedError(f"{self.model.title} knows only the users it was trained on")
        return self.shop.encode(users, new, expected)

    def _width(self, candidates: Candidates) -> int:
        """Approximate number of scores to compute for one user."""
        return len(candidates.ids) if self._index is None else self._index.width

    def _in_batches(
        self, rows: Iterable[Row], k: int, width: int, what: str = "users"
    ) -> Iterator[list[Row]]:
        check_whole("k", k, 1)
        remaining = rows if isinstance(rows, Iterator) else iter(list_of(what, rows))
        while batch := list(islice(remaining, rows_at_a_time(width, self.shop.device))):
            yield batch

    def _rules(self, rules: ItemRules | BundleRules, known: type) -> ShopSettings:
        """Returns the settings of the shop with the rules of one question. None: the shop's rule."""
        for name in rules.keys() - known.__annotations__.keys():
            names = ", ".join(known.__annotations__)
            raise TypeError(f"there is no rule {name!r} for this question; its rules are {names}")
        own = {name: rule for name, rule in rules.items() if rule is not None}
        return self.shop_settings.changed(own) if own else self.shop_settings

    def _rankings(
        self, batches: Iterable[Batch], candidates: Candidates, k: int, rules: ShopSettings
    ) -> Iterator[tuple[Batch, Ranking]]:
        """Yields each batch with its k best candidates. Uses the index, if any, or an exact search."""
        ranker = candidates.ranker()
        for batch in batches:
            steering = Steering.of(rules) if batch.partial is None else None
            pool = pool_size(steering, k)
            with torch.inference_mode():  # not around the yield: the caller may train in between
                if self._index is not None and batch.partial is None:
                    ranking = self._index.rank(batch, ranker, pool, rules, depth=k)
                else:
                    ranking = exact_ranking(self.model, batch, ranker, pool, rules)
                if steering is not None:
                    ranking = steering.choose(self.model, batch, ranker, ranking, k)
            yield batch, ranking


def _request(request: DesignRequest | None, conditions: Mapping[str, Any]) -> DesignRequest:
    """Returns the request for designs, which is given whole or as its fields."""
    if request is None:
        return DesignRequest.of(**conditions)
    if not isinstance(request, DesignRequest) or conditions:
        fields = ", ".join(["request", *conditions])
        raise ConfigError(
            f"'request' is {request!r}, and {fields} are given: give either a DesignRequest or its fields, "
            "such as size=4"
        )
    return request
