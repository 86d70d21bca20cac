"""How good and how fast the designer is: `python -m benchmarks.design`, on one thread.

Random requests on the sample shop, on a shop with so many items, or on data or a model of your own.
Every answer and every refusal goes through the tests' independent checker.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from bundlemage import Recommender, sample_shop
from bundlemage.core.history import User
from bundlemage.errors import BundleMageError, OutOfTimeError
from bundlemage.readers.load import read
from bundlemage.sample.generate import Tastes
from bundlemage.wire.design import ImpossibleDesignError
from tests.designing import (
    Judge,
    Request,
    RequestMaker,
    owned_by,
    taste_of_reasons,
    violations,
    wrongly_refused,
)

METHODS = ("greedy", "beam", "exact")
SAME = 1e-5
"""Values that differ by less are equal: scores are of single precision."""
console = Console(highlight=False)
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Designed:
    """Random requests by one method."""

    method: str
    requests: int
    possible: int
    bundles: int
    violations: int | None
    wrongly_refused: int | None
    """None: nobody looked."""
    gave_up: int
    """How often it could not be found out in time whether anything is possible."""
    cut_short: int
    proven: int
    median_ms: float
    p95_ms: float
    most_ms: float
    median_ms_with_reasons: float
    p95_ms_with_reasons: float
    refusal_median_ms: float
    refusal_p95_ms: float


@dataclass(frozen=True)
class Gap:
    """How far the best bundle of a method is below the best of `exact`, on the same requests."""

    method: str
    requests: int
    mean: float
    largest: float
    equal: float
    """The share of requests on which the values are equal."""
    above: int
    """How often it is above `exact`, which must not be."""
    proven: float
    """The share in which `exact` says that there is nothing better, whatever this method found."""


@dataclass(frozen=True)
class Taste:
    """How often the strongest reason has the genre of what it is a reason for."""

    kind: str
    strongest: float
    by_chance: float
    asked: int


def ask(recommender: Recommender, user: User, request: Request) -> tuple[Any, float]:
    """The answer or the refusal, and how many milliseconds it took."""
    began = time.perf_counter()
    try:
        answer: Any = recommender.design(user, **request)
    except (ImpossibleDesignError, OutOfTimeError) as error:
        answer = error
    return answer, 1000 * (time.perf_counter() - began)


def questions(
    recommender: Recommender, seed: int, count: int, limit: float
) -> Iterable[tuple[User, Request]]:
    maker = RequestMaker(recommender, seed)
    return ((maker.user(), maker.request() | {"time_limit": limit}) for _ in range(count))


def percentile(values: list[float], at: float) -> float:
    return float(np.percentile(values, at)) if values else float("nan")


def design_many(
    recommender: Recommender, method: str, count: int, *, seed: int, limit: float, judged: bool, say: Any
) -> Designed:
    goods, tally = RequestMaker(recommender, seed).goods, Counter[str]()
    times: dict[str, list[float]] = defaultdict(list)
    for number, (user, request) in enumerate(questions(recommender, seed, count, limit)):
        asked = request | {"method": method}
        owned = owned_by(recommender, user)
        answer, took = ask(recommender, user, asked | {"reasons": False})
        wrong: list[str] = []
        if isinstance(answer, OutOfTimeError):
            tally["gave up"] += 1
        elif isinstance(answer, ImpossibleDesignError):
            times["refused"].append(took)
            wrong = wrongly_refused(goods, owned, request, answer) if judged else []
            tally["wrongly refused"] += bool(wrong)
        else:
            times["plain"].append(took)
            with_reasons, took = ask(recommender, user, asked)
            times["reasons"].append(took)
            judge = Judge(recommender, goods, user)
            wrong = violations(goods, owned, request, with_reasons, judge) if judged else []
            tally["violations"] += len(wrong)
            tally["bundles"] += len(answer)
            tally["cut"] += not answer.complete
            tally["proven"] += bool(answer.proven)
        for text in wrong:
            say(f"{method}, request {number}, {user}, {request}: {text}")
    return Designed(
        method=method,
        requests=count,
        possible=len(times["plain"]),
        bundles=tally["bundles"],
        violations=tally["violations"] if judged else None,
        wrongly_refused=tally["wrongly refused"] if judged else None,
        gave_up=tally["gave up"],
        cut_short=tally["cut"],
        proven=tally["proven"],
        median_ms=percentile(times["plain"], 50),
        p95_ms=percentile(times["plain"], 95),
        most_ms=percentile(times["plain"], 100),
        median_ms_with_reasons=percentile(times["reasons"], 50),
        p95_ms_with_reasons=percentile(times["reasons"], 95),
        refusal_median_ms=percentile(times["refused"], 50),
        refusal_p95_ms=percentile(times["refused"], 95),
    )


def gaps(recommender: Recommender, count: int, *, seed: int, limit: float) -> list[Gap]:
    values: dict[str, list[float]] = defaultdict(list)
    proven = 0
    for user, request in questions(recommender, seed, count, limit):
        asked = request | {"n": 1, "reasons": False}
        found = {method: ask(recommender, user, asked | {"method": method})[0] for method in METHODS}
        if any(isinstance(each, BundleMageError) for each in found.values()):
            continue
        proven += bool(found["exact"].proven)
        for method in METHODS:
            values[method].append(found[method][0].value)
    exact = np.array(values["exact"])
    result = []
    for method in METHODS:
        below = exact - np.array(values[method])
        result.append(
            Gap(
                method,
                len(exact),
                float(below.clip(min=0).mean()),
                float(below.max()),
                float((abs(below) < SAME).mean()),
                int((below < -SAME).sum()),
                proven / len(exact),
            )
        )
    return result


def prepared(
    items: int | None, data: Path | None, model: Path | None, epochs: int | None
) -> tuple[Recommender, Tastes | None]:
    """The model to ask, and the tastes that were planted where the shop is generated."""
    settings: dict[str, Any] = {"device": "cpu"} | ({} if epochs is None else {"epochs": epochs})
    if model is not None:
        recommender = Recommender.load(model, device="cpu")
        shop = sample_shop()
        known = recommender.dataset.fingerprint() == shop.dataset.fingerprint()
        return recommender, shop.tastes if known else None
    if data is not None:
        return Recommender(**settings).fit(read(data), progress=False), None
    if items is None:
        shop = sample_shop()
        return Recommender(**settings).fit(shop.dataset, progress=False), shop.tastes
    shop = sample_shop(users=2000, items=items, bundles=max(240, items // 50))
    short = {"epochs": 1} | settings
    return Recommender(**short).fit(shop.dataset, progress=False), None  # too short to have learned tastes


@app.command()
def main(
    items: Annotated[int | None, typer.Option(min=100, help="A generated shop with so many items.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data of your own, or published.")] = None,
    model: Annotated[Path | None, typer.Option(help="A trained model.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="How long to train.")] = None,
    designs: Annotated[int, typer.Option(min=1, help="Random requests for each method.")] = 1000,
    gap: Annotated[int, typer.Option(min=0, help="Requests on which methods are compared.")] = 200,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    time_limit: Annotated[float, typer.Option(min=0, help="Seconds for a design, at most.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Other requests.")] = 0,
    judged: Annotated[bool, typer.Option(help="Have every answer checked.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="The figures as JSON, too.")] = None,
) -> None:
    """Design random bundles; exit with 1 if any rule is broken."""
    for name in method or ():
        if name not in METHODS:
            raise typer.BadParameter(f"{name!r} is no method; they are: {', '.join(METHODS)}")
    if sum(given is not None for given in (items, data, model)) > 1:
        raise typer.BadParameter("give one of --items, --data and --model")
    torch.set_num_threads(1)
    say = Console(stderr=True, highlight=False).print
    began = time.monotonic()
    try:
        recommender, tastes = prepared(items, data, model, epochs)
    except BundleMageError as error:
        raise typer.BadParameter(str(error)) from None
    say(f"{recommender.dataset}; ready in {time.monotonic() - began:.0f} s")
    recommender.design(recommender.dataset.users.ids[0], n=1)  # what is worked out only once
    rows = []
    for name in method or METHODS:
        rows.append(
            design_many(recommender, name, designs, seed=seed, limit=time_limit, judged=judged, say=say)
        )
        say(f"{name}: done after {time.monotonic() - began:.0f} s")
    compared = gaps(recommender, gap, seed=seed + 1, limit=time_limit) if gap else []
    found = [] if tastes is None else [
        Taste(kind, *taste_of_reasons(recommender, tastes, kind, len(recommender.dataset.users)))
        for kind in ("item", "bundle")
    ]  # fmt: skip
    sections: dict[str, list[Any]] = {
        "designs": list(rows),
        "below exact (n=1)": list(compared),
        "strongest reason of the genre": list(found),
    }
    for title, lines in sections.items():
        show(title, lines)
    if json_file is not None:
        content = {"data": repr(recommender.dataset)} | {
            title: [asdict(line) for line in lines] for title, lines in sections.items()
        }
        json_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    wrong = any(row.violations or row.wrongly_refused for row in rows) or any(row.above for row in compared)
    raise typer.Exit(int(wrong))


def show(title: str, lines: list[Any]) -> None:
    """Figures as rows, methods as columns."""
    if not lines:
        return
    first, *others = asdict(lines[0])
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for line in lines:
        table.add_column(str(asdict(line)[first]), justify="right")
    for name in others:
        values = [asdict(line)[name] for line in lines]
        table.add_row(name.replace("_", " "), *map(shown, values))
    console.print(table)


def shown(value: float | None) -> str:
    if value is None:
        return "not checked"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


if __name__ == "__main__":
    app()
