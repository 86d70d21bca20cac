"""Answers questions (`live.Question`) with the serving model, the current catalogue, and users' histories.

One thread calls the model. Questions that arrive while it is busy form the next batch. Before each batch the
thread checks whether the store has changed. So a change that one process writes affects the next answer of
every process.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, cast

import torch

from bundlemage.artifact.files import one_line
from bundlemage.core.shop import Recommendation
from bundlemage.errors import (
    ArtifactError,
    BundleMageError,
    BusyError,
    ConfigError,
    UnknownThingsError,
    UnstorableError,
)
from bundlemage.live import EMPTY, Live, Question, Stock, load_published
from bundlemage.service.settings import Settings
from bundlemage.service.shared import Shared
from bundlemage.store.records import ModelRecord, Owned, Sales, Served
from bundlemage.store.repository import Store
from bundlemage.wire.answers import Known

T = TypeVar("T")
log = logging.getLogger("bundlemage.service")

MOST_AT_ONCE = 64
"""Maximum number of questions in a batch."""
SERVED_EVERY = 0.5
"""Seconds between writes of served answers. A crash loses the answers since the last write. Statistics and
retrainings use them."""
FOLLOW_EVERY = 2.0
"""Seconds between checks for a newly published model when no question arrives."""
SALES_EVERY = 300.0
"""Seconds between readings of the sales numbers."""
FORGET_EVERY = 3600.0
"""Seconds between deletions of old served answers."""
WARN_AGAIN_AFTER = 60.0
"""Minimum number of seconds between two warnings of the housekeeping thread."""
TRY_AGAIN_AFTER = 60.0
"""Seconds until the service tries again to load a model after a failure."""


@dataclass(frozen=True)
class Answer:
    """Recommendations, the part of the history that the model knows, and the model and catalogue used."""

    recommendations: list[Recommendation]
    known: Known
    live: Live


Work = Question | Callable[[Live], Any]
Q = TypeVar("Q")
_Waiting: TypeAlias = tuple[Q, "asyncio.Future[Any]", threading.Lock]
"""A question, its answer, and a lock. The answering thread takes the lock when it begins to answer. A caller
who gives up before that takes it, too, and then the question is left out."""


class Answerer:
    """Answers questions. It serves the given model until another one is published in the store."""

    def __init__(self, store: Store, live: Live, settings: Settings, shared: Shared) -> None:
        self.store = store
        self.own_store = store.beside(connections=1)
        """The store for what runs on the answering thread. It has its own connection, so this thread never
        waits until another one returns a connection."""
        self.failed: dict[str, str] = {}
        """For each model version that could not be loaded: the reason."""
        self._served_days, self._shop = settings.served_days, settings.shop
        torch.set_num_threads(settings.threads)
        self.serving = live
        """The model and catalogue of the last answer. They may be outdated; `on_live` updates them first."""
        self._next: Live | None = None
        self._switched = False
        """Whether another model has taken over, and the memory of the last one may be given back."""
        self._loading, self._shared = threading.Lock(), shared
        self._tried: dict[str, float] = {}
        self._shown: deque[Served] = deque(maxlen=100_000)
        self._writing_shown = threading.Lock()
        self._fresh_sales: Any = None
        self._stop = threading.Event()
        version = store.state().model
        if version is not None and version != live.record.version:  # published after `live` was loaded
            self._follow(version)
        self.batcher: Batcher[Work] = Batcher(self._work, settings.answer_timeout_s)
        self._housekeeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        self._housekeeper.start()

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────

    async def ask(self, question: Question) -> Answer:
        """Returns the answer to a question about bundles or items."""
        return cast(Answer, await self.batcher.ask(question))

    async def on_live(self, work: Callable[[Live], T]) -> T:
        """Call `work` on the model's thread with the current catalogue and model. Returns its result.

        If `work` reads the store, it must use `own_store`.
        """
        return cast(T, await self.batcher.ask(work))

    def shown(self, served: Served) -> None:
        """Remember an answer. It is written to the store later, together with others."""
        self._shown.append(served)

    def _work(self, batch: list[Work]) -> Sequence[Any]:
        live = self._up_to_date()
        questions = [work for work in batch if isinstance(work, Question)]
        answers = iter(self._answers(live, questions) if questions else ())
        return [next(answers) if isinstance(work, Question) else _attempt(work, live) for work in batch]

    def _answers(self, live: Live, questions: Sequence[Question]) -> list[Answer | Exception]:
        errors = [_unknown(live, question) for question in questions]
        if any(errors):
            good = [question for question, error in zip(questions, errors, strict=True) if not error]
            answers = iter(self._answers(live, good))
            return [error or next(answers) for error in errors]
        names = list({question.user for question in questions if isinstance(question.user, str)})
        histories = histories_of(live, self.own_store, names) if names else {}
        owned = [histories[q.user] if isinstance(q.user, str) else q.user for q in questions]
        outcomes = live.answer([replace(q, user=user) for q, user in zip(questions, owned, strict=True)])
        return [
            outcome if isinstance(outcome, Exception) else Answer(outcome, live.known_of(user), live)
            for outcome, user in zip(outcomes, owned, strict=True)
        ]

    # ── Following the store ──────────────────────────────────────────────────────────────────────

    def _up_to_date(self) -> Live:
        """Returns the current model and catalogue. Only the answering thread calls this."""
        # Read `_next` first: its model is already published, so the state that is read next includes it.
        following, sales = self._next, self._fresh_sales
        live = self.serving if following is None else following
        state = self.own_store.state()
        known = live.stock.version
        if state.catalogue < known:  # the database was restored to an earlier time
            stock = EMPTY.after(self.own_store.catalogue())
            live = Live(live.recommender, stock, self.own_store.sales(), live.record)
        elif state.catalogue > known or sales is not None:
            live = live.after(self.own_store.catalogue(known), sales)
        self.serving = live
        if self._next is following:  # cleared last: after a failure above, the next call tries again
            self._next = None
        self._switched = self._switched or following is not None
        if self._fresh_sales is sales:
            self._fresh_sales = None
        if state.model is not None and state.model != live.record.version:
            self._load_soon(state.model)
        return live

    def _load_soon(self, version: str) -> None:
        """Start to load a model that another process has published. The current model serves meanwhile."""
        if self._loading.locked() or time.monotonic() - self._tried.get(version, -1e9) < TRY_AGAIN_AFTER:
            return
        self._tried[version] = time.monotonic()
        threading.Thread(target=self._follow, args=(version,), name="loading", daemon=True).start()

    def _follow(self, version: str) -> None:
        try:
            record = self.store.model(version)
            if record is not None:
                self.load(record, publish=False)
        except Exception as error:
            self.failed[version] = str(error)
            log.exception("the published model %s cannot be loaded; the previous model still serves", version)

    def load(self, record: ModelRecord, *, publish: bool = True, instead_of: str | None = None) -> bool:
        """Load a model while the current one serves. Publish it if needed, then serve it instead.

        Without `publish`, nothing happens if another model was published in the meantime. If `instead_of` is
        given but is not the published version, `SupersededError` is raised. If it is None, the record must be
        one of the store: returns False, and serves nothing else, if it was deleted meanwhile.
        """
        with self._loading, self._shared.loading:
            published = self.store.state().model == record.version
            if not published and not publish:  # another model was published while this one waited
                self._tried.pop(record.version, None)  # if published again, load it at once
                return True
            following = None
            if (self._next or self.serving).record.version != record.version:
                log.info("loading the model %s", record.version)
                now = self.serving
                following = _opened(record, now.stock, now.sales, self._shop, folder=self._shared.folder)
            if not published and instead_of is not None:
                self.store.publish(record, instead_of=instead_of)
            elif not published and not self.store.select_model(record.version):
                return False
            if following:
                self._next = following
                log.info("the model %s is loaded and serves", record.version)
            self.failed.pop(record.version, None)
            self._tried.pop(record.version, None)
            return True

    # ── Housekeeping ─────────────────────────────────────────────────────────────────────────────

    def _keep_house(self) -> None:
        follow_at = sales_at = time.monotonic()
        warned_at = follow_at - WARN_AGAIN_AFTER
        forget_at = follow_at - FORGET_EVERY  # at once, because a service may be restarted every day
        while not self._stop.wait(SERVED_EVERY):
            try:
                self.write_shown()
                self.store.tidy()
                self.serving.merge_changes()
                if self._switched:
                    self._switched = False
                    give_back_memory()
                if time.monotonic() - follow_at > FOLLOW_EVERY:
                    version = self.store.state().model
                    if version is not None and version != (self._next or self.serving).record.version:
                        self._load_soon(version)
                    follow_at = time.monotonic()
                if time.monotonic() - sales_at > SALES_EVERY:
                    self._fresh_sales, sales_at = self.store.sales(), time.monotonic()
                if time.monotonic() - forget_at > FORGET_EVERY:
                    self.store.forget_served(datetime.now(UTC) - timedelta(days=self._served_days))
                    forget_at = time.monotonic()
            except BundleMageError as error:
                if time.monotonic() - warned_at > WARN_AGAIN_AFTER:  # otherwise it would warn twice a second
                    log.warning("housekeeping failed and will be tried again: %s", error)
                    warned_at = time.monotonic()
            except Exception:
                log.exception("housekeeping failed unexpectedly and will be tried again")

    def write_shown(self) -> None:
        """Write the served answers to the store."""
        with self._writing_shown:  # two threads at once would each write only a part of the queue
            waiting = [self._shown.popleft() for _ in range(len(self._shown))]
            if not waiting:
                return
            try:
                self.store.add_served(waiting)
            except UnstorableError:
                raise  # the answers are dropped: the store would refuse them again, and block later answers
            except BundleMageError:
                self._shown.extendleft(reversed(waiting))
                raise

    def close(self) -> None:
        """Answer the waiting questions, write the served answers, and stop."""
        self._stop.set()
        self._housekeeper.join(timeout=10)
        self.batcher.close()
        try:
            self.write_shown()
        except BundleMageError as error:
            log.warning("the last answers are not written to the store: %s", error)


class Batcher(Generic[Q]):
    """Passes all waiting questions to a function as one batch. It never waits for more questions.

    So a single question is answered at once. Under load, batches grow.
    """

    def __init__(
        self,
        answer: Callable[[list[Q]], Sequence[Any]],
        patience: float,
        name: str = "answers",
        finish: bool = False,
    ) -> None:
        """`answer` returns an answer or an error for each question. A question fails after
        `patience` seconds. With `finish`, it does not fail any more once its batch has begun: a write that
        has begun may succeed, so its caller must not be told that it failed."""
        self._answer, self._patience, self._finish = answer, patience, finish
        self._began: float | None = None
        self._queue: queue.SimpleQueue[_Waiting[Q] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._closed = False
        self._thread.start()

    def __len__(self) -> int:
        """The number of waiting questions."""
        return self._queue.qsize()

    def busy_for(self) -> float:
        """For how many seconds the current batch has been running; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    async def ask(self, question: Q) -> Any:
        """Returns the answer to a question. Raises `BusyError` if it takes too long."""
        if self._closed:
            raise BusyError("the service is shutting down")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        begun = threading.Lock()
        self._queue.put((question, future, begun))
        try:
            async with asyncio.timeout(self._patience):
                return await (asyncio.shield(future) if self._finish else future)
        except TimeoutError:
            if not begun.acquire(blocking=False) and self._finish:
                return await future
            message = f"there was no answer within {self._patience:g} s: ask again in a second"
            raise BusyError(message) from None

    def close(self) -> None:
        """Answer the waiting questions, then stop."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            batch: list[_Waiting[Q] | None] = [first]
            while batch[-1] is not None and len(batch) < MOST_AT_ONCE and not self._queue.empty():
                batch.append(self._queue.get())
            self._began = time.monotonic()
            self._settle([waiting for waiting in batch if waiting is not None])
            self._began = None
            if batch[-1] is None:
                return

    def _settle(self, batch: list[_Waiting[Q]]) -> None:
        batch = [
            (question, future, begun)
            for question, future, begun in batch
            if not future.cancelled() and begun.acquire(blocking=False)
        ]
        if not batch:
            return
        try:
            outcomes = self._answer([question for question, *_ in batch])
        except Exception as error:
            outcomes = [error] * len(batch)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
        for (_, future, _), outcome in zip(batch, outcomes, strict=True):
            by_loop.setdefault(future.get_loop(), []).append((future, outcome))
        for loop, settled in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set_outcomes, settled)


def _set_outcomes(settled: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in settled:
        if future.done():  # the caller has disconnected
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def give_back_memory() -> None:
    """Return free memory to the system. The C library would keep what the replaced model has used."""
    with suppress(OSError, AttributeError):  # not Linux, or another C library
        ctypes.CDLL(None).malloc_trim(0)


def histories_of(
    live: Live, store: Store, user_ids: Sequence[str], *, in_order: bool = True
) -> dict[str, Owned]:
    """Returns the histories of users with all that the model reads of them (see `Store.histories`)."""
    return store.histories(user_ids, in_order=in_order, times=live.recency is not None)


def check_catalogue(live: Live, items: Sequence[str] = (), bundles: Sequence[str] = ()) -> None:
    """Raise `UnknownThingsError` if an id is not in the catalogue."""
    unknown = [name for name in items if name not in live.stock.items]
    if unknown:
        raise UnknownThingsError("item", unknown)
    unknown = [name for name in bundles if name not in live.stock.bundles]
    if unknown:
        raise UnknownThingsError("bundle", unknown)


def _unknown(live: Live, question: Question) -> UnknownThingsError | None:
    owned = Owned() if isinstance(question.user, str) else question.user
    try:
        check_catalogue(live, (*owned.items, *(question.partial or ())), owned.bundles)
    except UnknownThingsError as error:
        return error
    return None


def load_live(store: Store, record: ModelRecord, shop: Mapping[str, Any], device: str = "auto") -> Live:
    """Returns a published model with the store's catalogue, ready to serve. `shop` are settings of the shop
    that replace the saved ones."""
    return _opened(record, EMPTY.after(store.catalogue()), store.sales(), shop, device)


def _opened(
    record: ModelRecord,
    stock: Stock,
    sales: Sales,
    shop: Mapping[str, Any],
    device: str = "auto",
    folder: Path | None = None,
) -> Live:
    """Returns a model that has answered once. Raises `ConfigError` if it was trained for another shop, and
    `ArtifactError` if it cannot be loaded or cannot answer."""
    recommender = load_published(record, device, folder, shop)
    items = recommender.dataset.items
    if stock.items and not any(name in items for name in stock.items):
        first, other = next(iter(stock.items)), next(iter(items), "none")
        raise ConfigError(
            f"the store and the model {record.path} belong to different shops: no item is in both (the "
            f"store has {first!r}, the model {other!r}). Use a separate database for each shop (--db)"
        )
    try:
        return Live(recommender, stock, sales, record).warm()
    except BundleMageError:
        raise
    except Exception as error:  # weights that somebody altered may fail in any way
        raise ArtifactError(f"{record.path} cannot answer ({one_line(error)}); train it again") from error


def _attempt(work: Callable[[Live], T], live: Live) -> T | Exception:
    try:
        return work(live)
    except Exception as error:
        return error
