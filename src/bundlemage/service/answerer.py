"""What answers: the model that serves, the catalogue as the store has it now, and people's histories.

One thread asks the model. Before each batch it looks whether the store has moved on, so that what one process
has written counts in the next answer of every process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import torch

from bundlemage.core.filters import Filter
from bundlemage.errors import (
    BundleMageError,
    ConfigError,
    UnknownThingsError,
    UnstorableError,
)
from bundlemage.live import EMPTY, Answer, Live, Question, load_published
from bundlemage.service.batching import Batcher
from bundlemage.service.settings import Settings
from bundlemage.store.records import ModelRecord, Owned, Served
from bundlemage.store.repository import Store

T = TypeVar("T")
log = logging.getLogger("bundlemage.service")

SERVED_EVERY = 0.5
"""Seconds between writings of what was served. It is for statistics: so much of it is lost in a crash."""
FOLLOW_EVERY = 2.0
"""Seconds between looks for a newly published model while nobody asks."""
SALES_EVERY = 300.0
FORGET_EVERY = 3600.0
SAY_AGAIN_AFTER = 60.0
TRY_AGAIN_AFTER = 60.0
"""Seconds until a model that could not be loaded is tried again."""


@dataclass(frozen=True)
class Ask:
    """A question of a user whom the store knows, or of a history that came along."""

    user_id: str | None
    owned: Owned | None
    k: int
    where: Filter | None
    include_owned: bool
    partial: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Serving:
    """A model with its place in the shop, as one thing that is swapped."""

    live: Live
    record: ModelRecord


@dataclass(frozen=True)
class Told:
    """An answer, and what it was given from."""

    answer: Answer
    serving: Serving


Work = Ask | Callable[[Serving], Any]


class Engine:
    """Starts with a model, and follows the store from then on."""

    def __init__(self, store: Store, record: ModelRecord, settings: Settings) -> None:
        self.store = store
        self.failed: dict[str, str] = {}
        """Versions that could not be loaded, and why."""
        self._served_days = settings.served_days
        torch.set_num_threads(settings.threads)
        stock = EMPTY.after(store.catalogue())
        live = Live(load_published(record), stock, store.sales())
        _check_same_shop(live, record)
        self._serving = Serving(live.warm(), record)
        self._next: Serving | None = None
        self._loading = threading.Lock()
        self._tried: dict[str, float] = {}
        self._shown: deque[Served] = deque(maxlen=100_000)
        self._writing_shown = threading.Lock()
        self._fresh_sales: Any = None
        self._stop = threading.Event()
        self.batcher: Batcher[Work, Any] = Batcher(
            self._work, waiting=settings.queue_limit, patience=settings.answer_timeout_s
        )
        self._housekeeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        self._housekeeper.start()

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────

    async def ask(self, ask: Ask) -> Told:
        return cast(Told, await self.batcher.ask(ask))

    async def on_live(self, work: Callable[[Serving], T]) -> T:
        """Run something on the model's thread, with catalogue and model up to date."""
        return cast(T, await self.batcher.ask(work))

    @property
    def serving(self) -> Serving:
        """What served last. For what must be up to date, there is `on_live`."""
        return self._serving

    def shown(self, served: Served) -> None:
        """Remember an answer, to be written with others."""
        self._shown.append(served)

    def _work(self, batch: list[Work]) -> Sequence[Any]:
        serving = self._up_to_date()
        asks = [work for work in batch if isinstance(work, Ask)]
        told = iter(self._answers(serving, asks) if asks else ())
        return [next(told) if isinstance(work, Ask) else _attempt(work, serving) for work in batch]

    def _answers(self, serving: Serving, asks: Sequence[Ask]) -> list[Told | Exception]:
        unknown = [_unknown(serving.live, ask) for ask in asks]
        if any(unknown):
            told = iter(self._answers(serving, [a for a, bad in zip(asks, unknown, strict=True) if not bad]))
            return [bad or next(told) for bad in unknown]
        names = list({ask.user_id for ask in asks if ask.user_id is not None})
        histories = self.store.histories(names) if names else {}
        questions = [
            Question(
                histories[ask.user_id] if ask.user_id is not None else ask.owned or Owned(),
                ask.k,
                ask.where,
                ask.include_owned,
                ask.partial,
            )
            for ask in asks
        ]
        answers = serving.live.answer(questions)
        return [answer if isinstance(answer, Exception) else Told(answer, serving) for answer in answers]

    # ── Following the store ──────────────────────────────────────────────────────────────────────

    def _up_to_date(self) -> Serving:
        """Only the answering thread comes here, so nothing else changes what serves."""
        # In this order: what is next was published before, so the state that is read now knows of it.
        following, sales = self._next, self._fresh_sales
        serving = self._serving if following is None else following
        state = self.store.state()
        known = serving.live.stock.version
        if state.catalogue < known:  # the database was put back to an earlier time: nothing is as it was
            stock = EMPTY.after(self.store.catalogue())
            serving = Serving(Live(serving.live.recommender, stock, self.store.sales()), serving.record)
        elif state.catalogue > known or sales is not None:
            live = serving.live.after(self.store.catalogue(known), sales)
            serving = Serving(live, serving.record)
        self._serving = serving
        if self._next is following:  # not before: what fails above is done again
            self._next = None
        if self._fresh_sales is sales:
            self._fresh_sales = None
        if state.model is not None and state.model != serving.record.version:
            self._load_soon(state.model)
        return serving

    def _load_soon(self, version: str) -> None:
        """Another process has published a model: load it beside the one that serves."""
        if self._loading.locked() or time.monotonic() - self._tried.get(version, -1e9) < TRY_AGAIN_AFTER:
            return
        self._tried[version] = time.monotonic()
        threading.Thread(target=self._follow, args=(version,), name="loading", daemon=True).start()

    def _follow(self, version: str) -> None:
        try:
            record = self.store.model(version)
            if record is not None:
                self._swap(record, publish=False)
        except Exception as error:
            self.failed[version] = str(error)
            log.exception("the published model %s cannot be loaded; the one before goes on serving", version)

    def load(self, record: ModelRecord) -> None:
        """Load a model beside the one that serves, publish it if it is not yet, and swap the two."""
        self._swap(record, publish=True)

    def _swap(self, record: ModelRecord, *, publish: bool) -> None:
        with self._loading:
            published = self.store.state().model == record.version
            if not published and not publish:  # something else was published while this waited
                return
            following = None
            if (self._next or self._serving).record.version != record.version:
                now = self._serving.live
                live = Live(load_published(record), now.stock, now.sales)
                _check_same_shop(live, record)
                following = Serving(live.warm(), record)
            if not published:
                self.store.publish(record)
            self._next = following or self._next
            self.failed.pop(record.version, None)
            self._tried.pop(record.version, None)  # if it is published again, it is followed at once

    # ── Housekeeping ─────────────────────────────────────────────────────────────────────────────

    def _keep_house(self) -> None:
        follow_at = sales_at = time.monotonic()
        said_at = follow_at - SAY_AGAIN_AFTER
        forget_at = follow_at - FORGET_EVERY  # also where the service is restarted every day
        while not self._stop.wait(SERVED_EVERY):
            try:
                self.write_shown()
                self.store.tidy()
                if time.monotonic() - follow_at > FOLLOW_EVERY:
                    self._follow_published()
                    follow_at = time.monotonic()
                if time.monotonic() - sales_at > SALES_EVERY:
                    self._fresh_sales, sales_at = self.store.sales(), time.monotonic()
                if time.monotonic() - forget_at > FORGET_EVERY:
                    self.store.forget_served(datetime.now(UTC) - timedelta(days=self._served_days))
                    forget_at = time.monotonic()
            except BundleMageError as error:
                if time.monotonic() - said_at > SAY_AGAIN_AFTER:  # not twice a second
                    log.warning("housekeeping waits: %s", error)
                    said_at = time.monotonic()
            except Exception:
                log.exception("housekeeping failed; it goes on")

    def _follow_published(self) -> None:
        version = self.store.state().model
        if version is not None and version != (self._next or self._serving).record.version:
            self._load_soon(version)

    def write_shown(self) -> None:
        """What was served, into the store."""
        with self._writing_shown:  # two at once would take from an empty queue, or see half of it written
            waiting = [self._shown.popleft() for _ in range(len(self._shown))]
            if not waiting:
                return
            try:
                self.store.add_served(waiting)
            except UnstorableError:
                raise  # it would be refused for ever, and all that comes after it
            except BundleMageError:
                self._shown.extendleft(reversed(waiting))
                raise

    def close(self) -> None:
        self._stop.set()
        self._housekeeper.join(timeout=10)
        self.batcher.close()
        try:
            self.write_shown()
        except BundleMageError as error:
            log.warning("what was served last is not written: %s", error)


def check_catalogue(live: Live, items: Sequence[str] = (), bundles: Sequence[str] = ()) -> None:
    """What comes along with a question must be in the catalogue: a typo is not passed over."""
    unknown = [name for name in items if name not in live.stock.items]
    if unknown:
        raise UnknownThingsError("item", unknown)
    unknown = [name for name in bundles if name not in live.stock.bundles]
    if unknown:
        raise UnknownThingsError("bundle", unknown)


def _unknown(live: Live, ask: Ask) -> UnknownThingsError | None:
    owned = ask.owned or Owned()
    try:
        check_catalogue(live, (*owned.items, *(ask.partial or ())), owned.bundles)
    except UnknownThingsError as error:
        return error
    return None


def _check_same_shop(live: Live, record: ModelRecord) -> None:
    stock = live.stock
    if stock.items and not any(map(live.in_model, stock.items)):
        first, other = next(iter(stock.items)), live.shop.dataset.items[0]
        raise ConfigError(
            f"the store and the model {record.path} are of different shops: no item is in both (the store "
            f"has {first!r}, the model {other!r}). Give each shop a database of its own with --db"
        )


def _attempt(work: Callable[[Serving], T], serving: Serving) -> T | Exception:
    try:
        return work(serving)
    except Exception as error:
        return error
