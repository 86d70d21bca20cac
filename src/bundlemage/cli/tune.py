"""`bundlemage tune`: searches for the best settings of a model on validation cases."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli import show
from bundlemage.cli.options import AsJson, Count, EngineOptions, Location, OtherDevice, Tables
from bundlemage.cli.texts import key_values, label, only_given, settings
from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bundlemage.models.config import Domain
    from bundlemage.tuning.study import Study

BEST = 5
"""How many trials are shown at the end."""


def tune(
    output: Path,
    engine: EngineOptions,
    location: Location = "sample",
    model: str | None = None,
    recipe: str | None = None,
    set_: list[str] | None = None,
    space: list[str] | None = None,
    trials: Count = 30,
    timeout: float | None = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    device: OtherDevice = None,
    protocol: str | None = None,
    split_seed: int | None = None,
    table: Tables = None,
    resume: bool = False,
    as_json: AsJson = False,
) -> None:
    """Search for the best settings of a model on PATH.

    Each trial trains on the training part of the split and is judged by validation nDCG@5; the test cases are
    not used. Trials that are worse than half of the others are stopped early. A study can be
    killed at any time: the same command with --resume continues it. Ctrl-C ends early and keeps all trials.

    Options:
        -o, --output STUDY: The folder of the study.
        --model: bundlemage, or any other that 'bundlemage models' lists.
        --recipe: As for 'train'. The search begins with its settings, and varies only those it searches.
        --set NAME=VALUE: A setting that is not searched. Repeatable.
        --space NAME=LOW..HIGH|A,B,C: Values to try for a setting, instead of the default ones. Repeatable.
        --trials N: The total number of trials, including earlier ones.
        --timeout SECONDS: No trial begins after this time; running trials are finished.
        --seed: The seed of the search, and of each training in it.
        --protocol: auto (the data's own split, else paper), paper, full, cold-bundles, new-bundles or
            new-bundles-known.
        --split-seed: The seed of the split, if it is random.
        --workers, --jobs N: How many trials run at a time, each in its own process: by default one on this
            machine, and on Ray one for each GPU, or one for each processor if there is no GPU. With more than
            one, the next trial depends on which trial ends first, so two searches may differ.
        --resume: Continue a study.
    """
    from bundlemage.recipe import Recipe
    from bundlemage.tuning.study import Search

    chosen = Recipe.find(recipe) if recipe else Recipe()
    if chosen.ensemble != 1:
        raise ConfigError("a study tries single models: leave 'ensemble' out of the recipe")
    fixed = {**settings(set_), **only_given({"seed": seed, "device": device})}
    start = dict(chosen.settings)
    search = Search(
        model=model or chosen.model,
        settings=fixed,
        seed=fixed.pop("seed", start.pop("seed", 0)),
        start={name: value for name, value in start.items() if name not in fixed},
        plan=chosen.changed({}, only_given({"protocol": protocol, "seed": split_seed})).plan(),
        location=location,
        output=output,
        space={name: _domain(name, text) for name, text in key_values(space, "--space").items()},
        trials=trials,
        timeout=timeout,
        tables=key_values(table, "--table"),
        resume=resume,
    )
    if resume and not output.exists():
        show.note("nothing to resume: starting from the beginning")
    with Shown(show.notes, "tuning") as progress:
        study = engine.tune(search, progress)
    show.warn(*study.warnings)
    if as_json:
        show.print_json(study.to_json())
    else:
        for part in _summary(study, label(location)):
            show.out.print(part)
    if study.interrupted:
        show.note("Interrupted: every trial that ended is kept; --resume continues from here.")
        raise typer.Exit(130)
    if study.best is None:
        raise BundleMageError(f"every trial failed. The first one: {study.trials[0].reason}")


def _domain(name: str, text: str) -> Domain:
    """`LOW..HIGH`, `LOW..HIGH,log`, or values with commas between them."""
    from bundlemage.models.config import Between, OneOf

    def value(part: str) -> Any:
        return settings([f"{name}={part.strip()}"])[name]

    ends, _, scale = text.partition(",")
    try:
        if ".." not in text:
            return OneOf(*map(value, text.split(",")))
        low, high = map(value, ends.split("..", 1))
        if all(type(end) in (int, float) for end in (low, high)) and scale.strip() in ("", "log"):
            return Between(low, high, bool(scale))
    except ConfigError as error:
        raise ConfigError(f"--space {name}={error}") from None
    raise ConfigError(
        f"--space {name}={text}: write a range as {name}=LOW..HIGH, or {name}=LOW..HIGH,log, with two "
        f"numbers; or the values as {name}=A,B,C"
    )


def _summary(study: Study, location: str) -> Iterator[RenderableType]:
    """The best trials, what mattered, and what to do next."""
    states = [trial.state for trial in study.trials]
    counts = f"{len(states)} trials, {states.count('pruned')} stopped early, {states.count('failed')} failed"
    title = f"{show.plain(study.model)}: the best of {counts}"
    table = show.table(title, ">trial", f">validation {study.metric}", ">epochs", "settings")
    for trial in study.ranked[:BEST]:
        chosen = "  ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in trial.settings.items()
        )
        table.add_row(str(trial.number + 1), f"{trial.value:.4f}", str(trial.epochs), show.plain(chosen))
    yield table
    for reason in dict.fromkeys(trial.reason for trial in study.trials if trial.reason):
        yield f"[red]failed:[/] {show.plain(reason)}"
    if study.importance:
        parts = (f"{name} {part:.0%}" for name, part in study.importance.items())
        yield f"What made the difference: {', '.join(parts)}"
    elif find_spec("sklearn") is None:
        yield "[dim]Install scikit-learn to see here which settings made the difference.[/]"
    if len(study.trials) < study.asked and not study.interrupted:
        yield f"The time was up after {len(study.trials)} of {study.asked} trials; --resume continues."
    if study.best is not None:
        yield (
            f"Train with the best: [bold]bundlemage train {show.plain(location)} "
            f"--recipe {show.plain(study.recipe)} -o MODEL[/]"
        )
