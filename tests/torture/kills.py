"""Kills the service again and again while it starts, writes, reloads and follows a publication."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bundlemage.store.records import ModelRecord
from tests.torture.ledger import MOST_FAULTS, Bought, Ledger, Put, faults_of_store
from tests.torture.shop import EndedError, Shop, faults_of_log

WRITERS = 4
HANGS_AFTER = 30.0
MOMENTS = ("writing", "writing", "starting", "reloading", "publishing")
"""When a kill may come. Writing is listed twice, so it is twice as likely as each of the others."""
Say = Callable[[str, int, int], None]


@dataclass
class Killed:
    """The result of killing a service again and again."""

    kills: Counter[str] = field(default_factory=Counter)
    confirmed: int = 0
    unconfirmed: int = 0
    replayed: int = 0
    publications: int = 0
    faults: list[str] = field(default_factory=list)


class Writer(threading.Thread):
    """Writes until it is told to stop, whatever happens to the service."""

    def __init__(self, shop: Shop, ledger: Ledger, number: int, seed: int) -> None:
        super().__init__(name=f"writer {number}")
        self._shop, self._ledger, self._number = shop, ledger, number
        self._dice = random.Random(f"{seed}:writer:{number}")
        self._connection: http.client.HTTPConnection | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            count = 0
            while not self.stopped.is_set():
                count += 1
                if self._dice.random() < 0.8:
                    self._buy(count)
                else:
                    self._put(count)
        except Exception as error:
            self._ledger.fault(f"{self.name}: {error!r}")

    def _buy(self, count: int) -> None:
        name = f"w{self._number}-{count}"
        users = tuple(f"{name}-{part}" for part in range(self._dice.choice([1, 1, 3])))
        key = f"key-{name}" if self._dice.random() < 0.5 else None
        write = Bought(users, f"b{self._dice.randint(1, 100):04}", key)
        with self._ledger.lock:
            self._ledger.bought.append(write)
        interactions = [{"user_id": user, "bundle_id": write.bundle} for user in users]
        headers = {} if key is None else {"Idempotency-Key": key}
        again = key is not None or self._dice.random() < 0.5
        told = self._until_answered(
            "POST", "/v1/interactions", {"interactions": interactions}, headers, again
        )
        if told is None:
            return
        status, answer = told
        if status != 200:
            self._ledger.fault(f"POST /v1/interactions answers {status}: {answer}")
            return
        write.confirmed = True
        if key is not None:
            self._ledger.replayed += bool(answer["replayed"])
            if answer["new"] != len(users):  # a second execution would find them all known
                self._ledger.fault(f"{write} was carried out twice: {answer}")

    def _put(self, count: int) -> None:
        """Put a new bundle, or replace the writer's own one."""
        name = f"wb{self._number}" if self._dice.random() < 0.5 else f"wb{self._number}-{count}"
        items = tuple(f"g{self._dice.randint(1, 300):04}" for _ in range(self._dice.randint(1, 6)))
        write = Put(name, tuple(dict.fromkeys(items)), f"title {count}")
        with self._ledger.lock:
            self._ledger.puts.append(write)
        body = {"items": list(write.items), "title": write.title}
        # A PUT may be carried out twice without harm, so it is always sent again.
        told = self._until_answered("PUT", f"/v1/bundles/{name}", body, {}, again=True)
        if told is None:
            return
        if told[0] not in (200, 201):
            self._ledger.fault(f"PUT /v1/bundles answers {told[0]}: {told[1]}")
            return
        write.confirmed = True

    def _until_answered(
        self, method: str, path: str, body: Any, headers: dict[str, str], again: bool
    ) -> tuple[int, Any] | None:
        """Send until there is an answer other than 503. Returns None if it gives up. Then nobody knows
        whether the write took place."""
        while not self.stopped.is_set():
            try:
                status, answer = self._send(method, path, body, headers)
            except TimeoutError:
                self._ledger.fault(f"{method} {path}: no answer within {HANGS_AFTER:g} s")
                return None
            except (OSError, http.client.HTTPException) as error:
                self._close()
                if not again and not isinstance(error, ConnectionRefusedError):
                    return None
                self.stopped.wait(0.01)
                continue
            if status != 503:
                return status, answer
            if not again:
                return None
            self.stopped.wait(0.05)
        return None

    def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._shop.port, timeout=HANGS_AFTER)
        sent = {**self._shop.authorization("write"), "Content-Type": "application/json", **headers}
        self._connection.request(method, path, json.dumps(body), sent)
        answer = self._connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class Operator:
    """Changes the model, through the service or directly in the store. It knows which models may be published
    now."""

    def __init__(self, shop: Shop, dice: random.Random) -> None:
        self._shop, self._dice = shop, dice
        self._records = shop.records
        self._allowed = {self._records[0].version}
        """The version that was published last, and all that may have been published since."""
        self._published = self._records[0].version
        self.publications = 0
        self.faults: list[str] = []

    def reload(self) -> None:
        """Tell the service to serve another model. The service may be killed meanwhile."""
        record = self._other()
        self._allowed = {self._published, record.version}
        with suppress(OSError, http.client.HTTPException):
            status, told = self._shop.ask(
                "POST", "/v1/models/reload", {"version": record.version}, role="admin"
            )
            if status == 200 and told["serving"] == record.version:
                self._confirm(record.version)
            elif status != 503:
                self.faults.append(f"POST /v1/models/reload of {record.version} answers {status}: {told}")

    def publish(self) -> None:
        """Publish another model directly in the store, as `bundlemage retrain` does."""
        record = self._other()
        self._allowed = {self._published, record.version}
        with self._shop.store() as store:
            store.publish(record)
        self._confirm(record.version)

    def fault(self) -> str | None:
        """What is wrong with the published model; None if it is the last one that was published."""
        with self._shop.store() as store:
            published = store.state().model
        allowed, self._allowed = self._allowed, {str(published)}
        self._published = str(published)
        if published in allowed:
            return None
        return f"a publication was undone: {published} is published; expected one of {sorted(allowed)}"

    def _confirm(self, version: str) -> None:
        self._published, self._allowed = version, {version}
        self.publications += 1

    def _other(self) -> ModelRecord:
        return self._dice.choice([record for record in self._records if record.version != self._published])


def kill_again_and_again(shop: Shop, kills: int, seed: int, say: Say) -> Killed:
    """Start and kill the service `kills` times while writers write. Then check what the store has."""
    killed, ledger = Killed(), Ledger()
    dice = random.Random(f"{seed}:kills")
    seconds_to_start = _first_start(shop, dice, killed, say)
    operator = Operator(shop, dice)
    writers = [Writer(shop, ledger, number, seed) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        while killed.kills.total() < kills and len(ledger.faults) + len(killed.faults) < MOST_FAULTS:
            moment = dice.choice(MOMENTS)
            try:
                seconds_to_start = _one_kill(shop, operator, moment, dice, seconds_to_start)
            except EndedError as error:
                killed.faults.append(f"{moment}: the service ended by itself: {error}")
                shop.kill()
            killed.kills[moment] += 1
            fault = operator.fault()
            if fault is not None:
                killed.faults.append(f"{moment}: {fault}")
            say("killing", killed.kills.total(), kills)
        _last_start(shop, ledger, killed, writers)
    finally:
        for writer in writers:
            writer.stopped.set()
        for writer in writers:
            writer.join()
        shop.kill()
    killed.faults += ledger.faults + operator.faults
    with shop.store() as store:
        killed.faults += faults_of_store(store, ledger)
    fault = operator.fault()
    if fault is not None:
        killed.faults.append(f"at the end: {fault}")
    killed.faults += [fault for path in shop.logs for fault in faults_of_log(path)][:MOST_FAULTS]
    killed.confirmed, killed.unconfirmed = ledger.confirmed, ledger.unconfirmed
    killed.replayed, killed.publications = ledger.replayed, operator.publications
    return killed


def _first_start(shop: Shop, dice: random.Random, killed: Killed, say: Say) -> float:
    """Kill the first start, which imports the shop, at some moment. Returns how long a start takes."""
    say("killing", 0, 0)
    shop.start()
    time.sleep(dice.uniform(0, 1.0))
    shop.kill()
    killed.kills["importing"] += 1
    began = time.monotonic()
    shop.start()
    shop.wait_until_ready()
    seconds = time.monotonic() - began
    shop.kill()
    killed.kills["writing"] += 1
    shop.create_keys()
    shop.publish_all()
    return seconds


def _one_kill(
    shop: Shop, operator: Operator, moment: str, dice: random.Random, seconds_to_start: float
) -> float:
    """Start the service, and kill it at the given moment. Returns how long a start takes."""
    began = time.monotonic()
    shop.start()
    if moment == "starting":
        time.sleep(dice.uniform(0, seconds_to_start))
    elif moment == "publishing":
        time.sleep(dice.uniform(0, seconds_to_start))
        operator.publish()
        shop.wait_until_ready()
        time.sleep(dice.uniform(0, 0.2))
    else:
        shop.wait_until_ready()
        seconds_to_start = time.monotonic() - began
        reloading = threading.Thread(target=operator.reload)
        if moment == "reloading":
            reloading.start()
        time.sleep(dice.uniform(0, 1.0 if moment == "writing" else 0.3))
        shop.kill()
        if moment == "reloading":
            reloading.join()
        return seconds_to_start
    shop.kill()
    return seconds_to_start


def _last_start(shop: Shop, ledger: Ledger, killed: Killed, writers: list[Writer]) -> None:
    """Let the writers finish, compare what the service answers with what it confirmed, and stop it."""
    shop.start()
    shop.wait_until_ready()
    before = ledger.confirmed
    deadline = time.monotonic() + HANGS_AFTER
    while ledger.confirmed < before + WRITERS and time.monotonic() < deadline:
        time.sleep(0.05)
    if ledger.confirmed < before + WRITERS:
        killed.faults.append(f"the service confirms no write within {HANGS_AFTER:g} s after its last start")
    for writer in writers:
        writer.stopped.set()
    for writer in writers:
        writer.join()
    for write in [each for each in ledger.bought if each.confirmed][-50:]:
        status, told = shop.ask("GET", f"/v1/users/{write.users[0]}", role="read")
        if status != 200 or [each["id"] for each in told["bundles"]] != [write.bundle]:
            killed.faults.append(f"GET /v1/users answers {status} {told}; confirmed was {write}")
    code = shop.stop()
    if code not in (0, -15, 143):
        killed.faults.append(f"the service ended with exit code {code} after SIGTERM")
