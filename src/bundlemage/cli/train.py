"""`bundlemage train`, `evaluate` and `tune`: from data to a saved, measured model with good settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli import measures, show
from bundlemage.cli.options import (
    AsJson,
    Count,
    Device,
    EngineOptions,
    Events,
    Location,
    ModelFolder,
    OtherDevice,
    Tables,
)
from bundlemage.cli.texts import event_weights, key_values, label, only_given, settings
from bundlemage.errors import BundleMageError, ConfigError, NoModelYetError, Problem
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bundlemage.data.splits import Split
    from bundlemage.models.config import Domain
    from bundlemage.recommender import Recommender
    from bundlemage.scorecard import Scorecard
    from bundlemage.training.loop import TrainingResult
    from bundlemage.tuning.study import Study


SMALL_PART = 0.5
"""`train` warns if it learns from a smaller part of the purchases."""
FEW_TESTED = 0.1
"""`train` warns if a smaller part of the users is tested."""


def train(
    output: Path,
    engine: EngineOptions,
    location: Location = "sample",
    recipe: str | None = None,
    model: str | None = None,
    set_: list[str] | None = None,
    shop: list[str] | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: OtherDevice = None,
    protocol: str | None = None,
    split_seed: int | None = None,
    histories: str | None = None,
    order: str | None = None,
    test_from: str | None = None,
    validate_from: str | None = None,
    final: bool = False,
    ensemble: int | None = None,
    table: Tables = None,
    events: Events = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: Annotated[int | None, typer.Option(min=0)] = None,
    tensorboard: Path | None = None,
    item_tables: str = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model on PATH and save it to DIR.

    Training can be killed at any time: the same command with --resume continues after the last checkpoint
    and ends with the same model. Ctrl-C stops early and keeps the best model so far.

    Several workers give the same model as one process; each of them holds a part of the data.

    Options:
        -o, --output DIR: Folder for the model.
        --recipe: A TOML file with model, settings and split, or the name of a built-in recipe such as
            youshu/bundlemage. Options override the recipe.
        --model: auto (the best of BundleMage and closed forms, or a blend of them), bundlemage, or any other
            that 'bundlemage models' lists.
        --set NAME=VALUE: A hyperparameter, e.g. embedding_dim=64. Repeatable.
        --shop KEY=VALUE: A setting of the shop that is saved with the model: currency=EUR, locale=de_DE,
            price_ending=0.99, pays=missing, owned=show, stock=hide, mostly_owned=0.8
            or diversity=0.3. Repeatable.
        --epochs: The maximum number of passes over the data.
        --seed: The seed of everything random in training.
        --protocol: auto (the data's own split, else paper, else some-users if paper would leave less than
            half of the pairs for training), paper, some-users, full, time (what came before a date is
            learned, the next purchases validate, and the last ones are tested), cold-bundles, new-bundles,
            new-bundles-known, or none.
        --split-seed: The seed of the split, if it is random.
        --histories: Whether users' items are used as-given or without-held-out, that is without the items of
            the user's held-out bundles. auto (the default) leaves them out if they give away more than 3% of
            the held-out pairs.
        --order: Which bundles of a user are held out: the last ones (time), any (random), or, by default, the
            last ones if their times are known (auto).
        --test-from DATE: For --protocol time: the date from which purchases are tested. By default, the last
            20% of the purchases are tested.
        --validate-from DATE: For --protocol time: the date from which purchases validate. By default, the 10%
            of the purchases before the tested ones validate.
        --final: Afterwards, train again on all data, with the number of epochs that was best and the same
            choice of models, and save that model. It is the one to serve. The figures are those of the
            model that held pairs out.
        --ensemble N: Train N members with seeds that count up from --seed, and save their mean as one model.
            Training, memory and answers cost N times as much.
        --resume: Continue an interrupted run.
        --overwrite: Replace a model or run in DIR.
        --checkpoint-every N: Epochs between checkpoints; 0 for none. By default, checkpoints take about 5% of
            the time.
        --tensorboard DIR: Also write logs for TensorBoard to this folder.
        --item-tables HOW: With several workers: 'replicated' gives each worker all items, 'sharded' gives it
            a part of them, and 'auto' shards only if a worker cannot hold all items.
    """
    from bundlemage.engines.training import TrainingJob, final_folder, final_job
    from bundlemage.models.registry import AUTO, model_class
    from bundlemage.recipe import Recipe
    from bundlemage.scorecard import commands, scorecard
    from bundlemage.training.checkpoint import RunFolder
    from bundlemage.training.history import EpochProgress, TensorBoard
    from bundlemage.wire.shop import ShopSettings

    options = {"epochs": epochs, "seed": seed, "device": device}
    chosen = (Recipe.find(recipe) if recipe else Recipe(AUTO)).changed(
        {**settings(set_), **only_given(options)},
        only_given(
            {
                "protocol": protocol,
                "seed": split_seed,
                "histories": histories,
                "order": order,
                "test_from": test_from,
                "validate_from": validate_from,
            }
        ),
        settings(shop, "--shop"),
        event_weights(events),
    )
    chosen = replace(chosen, **only_given({"model": model, "ensemble": ensemble}))
    checkpoints = output.with_name(output.name + ".checkpoints")
    _check_output(output, checkpoints, resume, overwrite)
    if epochs is not None and "epochs" not in model_class(chosen.model).config_class.model_fields:
        raise ConfigError(f"--epochs: {chosen.model} does not learn by steps, so it has no epochs")
    if final and chosen.plan().protocol == "none":
        raise ConfigError("--final needs held-out pairs to find the epochs: leave --protocol none out")
    job = TrainingJob(
        location, chosen, checkpoints, key_values(table, "--table"), resume, checkpoint_every, item_tables
    )
    engine.check(job)
    with show.notes.status(f"reading {label(location)}"):
        split = job.split
    show.warn(*job.source.warnings)
    _warn_bought_again(job.source.warnings, ShopSettings.of(chosen.shop).owned)
    _announce(split, f"{chosen.ensemble} × {chosen.model}" if chosen.ensemble > 1 else chosen.model, final)
    if split.train.weighted and not model_class(chosen.model).reads_weights:
        show.note(
            f"{model_class(chosen.model).title} does not read the weights of events: every pair counts the "
            "same, also what was only viewed"
        )
    logs = [TensorBoard(tensorboard)] if tensorboard else []
    with Shown(show.notes) as progress:
        recommender = engine.train(job, [EpochProgress(progress), *logs], progress)
    training = recommender.training
    assert training is not None
    with show.notes.status("calibrating, and measuring how to rank new bundles and who buys them"):
        recommender.calibrate(split)
    with show.notes.status("evaluating the model and closed forms"):
        command = commands(recommender, location, output, job.tables, final=final)
        card = scorecard(recommender, split, command)
        recommender.metrics = card.to_json()
    measured, interrupted = recommender, training.interrupted
    if final and not interrupted:
        show.note(f"training again on all {split.dataset.user_bundle.nnz:,} user-bundle pairs")
        try:
            with Shown(show.notes) as progress:
                on_all = engine.train(final_job(job, measured), [EpochProgress(progress)], progress)
            interrupted = bool(on_all.training and on_all.training.interrupted)
        except NoModelYetError:
            interrupted = True
        if not interrupted:  # otherwise the measured model is saved, which is finished
            with show.notes.status("calibrating"):
                recommender = on_all.follow(measured, split)
    recommender.save(output, overwrite=overwrite or resume)
    if not interrupted:
        for folder in (checkpoints, final_folder(checkpoints)):
            RunFolder(folder).discard()
    if as_json:
        chosen_parts = {"choice": measured.choice.to_json()} if measured.choice else {}
        if measured.recency is not None:
            chosen_parts["recency"] = measured.recency.to_json()
        show.print_json({"model": str(output), **_summary(training), **chosen_parts, **recommender.metrics})
    else:
        for part in _report(measured, card):
            show.out.print(part)
        show.caveats(split.dataset)
        again_too = ", and a final training on all data" if recommender is not measured else ""
        show.out.print(
            f"Saved to [bold]{show.plain(output)}[/] after {len(training.history)} epochs "
            f"in {training.seconds:.1f} s on {training.device}{again_too}."
        )
    if interrupted:
        show.note("Interrupted: the best model so far is saved; --resume continues from here.")
        raise typer.Exit(130)


def _warn_bought_again(problems: Sequence[Problem], owned: str) -> None:
    """Warn if customers seem to buy the same things again, and the shop does not show what they own."""
    from bundlemage.readers.assemble import repeated_purchases

    if owned != "show":
        show.warn(*map(str, repeated_purchases(problems)))


def _report(recommender: Recommender, card: Scorecard) -> Iterator[RenderableType]:
    """What training has found: curves, figures beside those of closed forms, the choice, their meaning."""
    from bundlemage.training.history import SELECTION_METRIC

    yield show.curve(recommender.history, SELECTION_METRIC)
    yield show.evaluations(card.rows)
    yield from measures.answer_lists(card.rows)
    for line in recommender.choice_in_words():
        yield show.plain(line)
    if card.rule is not None:
        yield show.plain(card.rule)
    for text in card.findings:
        yield f"[yellow]note:[/] {show.plain(text)}"
    for about in (recommender.new_bundle_credit, recommender.new_bundle_calibration):
        if about is not None:
            yield f"[dim]{show.plain(about.in_short)}[/]"


def evaluate(
    folder: ModelFolder,
    engine: EngineOptions,
    location: str | None = None,
    table: Tables = None,
    events: Events = None,
    steering: bool = False,
    device: Device = "auto",
    slices: bool = False,
    slice_by: list[str] | None = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate the model in DIR on the test cases of PATH, which were held out of its training.

    Options:
        location PATH: The data that the model was trained on. Without --events, its types of events have
            the same weights as in training.
        --slices: Also show the figures for cold, warm and hot users, and for bundles by popularity, by size,
            new or known.
        --slice-by COLUMN: Also show the figures by a column of the catalogue, such as tags or price.
            Repeatable; shows all other slices, too.
        --steering: Also print what varied lists, and lists as popular as what users have, cost in accuracy.
    """
    from bundlemage.engines.jobs import EvaluationJob
    from bundlemage.scorecard import steering_of

    tables, weights = key_values(table, "--table"), event_weights(events)
    job = EvaluationJob(Path(folder), location, tables, weights, slice_by or (), device=device)
    with show.notes.status("reading the data"):
        _ = job.source  # raises an error if there is none, before the model is loaded
    with Shown(show.notes, "evaluating") as progress:
        progress("loading", 0, 0)
        card = engine.evaluate(job, progress)
        changed = job.data_changed
        curve = steering_of(job.recommender, job.split, progress) if steering else []
    show.warn(*job.source.warnings)
    if changed:
        show.warn(
            "this is not the data that the model was trained on: its split differs, and "
            "the figures may include cases that the model has seen"
        )
    if as_json:
        choice = job.recommender.choice
        inside = {} if choice is None else {"choice": choice.to_json()}
        costs = {"steering": [point.to_json() for point in curve]} if steering else {}
        if (recency := job.recommender.recency) is not None:
            inside["recency"] = recency.to_json()
        show.print_json({"model": folder, "data_changed": changed, **inside, **card.to_json(), **costs})
        return
    show.say(f"{show.described(job.split.dataset)}; protocol {job.split.protocol}")
    if job.split.protocol == "none" and job.recommender.metrics.get("final"):
        show.say(
            "This model was trained on all data, so no case is left to test it. The card in "
            f"{show.plain(Path(folder) / 'README.md')} has the figures from before the final training."
        )
        return
    show.out.print(show.evaluations(card.rows), *measures.answer_lists(card.rows))
    if slices or slice_by:
        show.out.print(*measures.slices(card.slices))
    for line in job.recommender.choice_in_words():
        show.say(show.plain(line))
    if card.rule is not None:
        show.say(show.plain(card.rule))
    if curve:
        show.out.print(show.steering(curve))
    for text in card.findings:
        show.say(f"[yellow]note:[/] {show.plain(text)}")
    show.caveats(job.split.dataset)
    show.leakage(job.split.leakage, job.split.histories)


def _summary(training: TrainingResult) -> dict[str, Any]:
    from bundlemage.training.history import kept, mean_validation

    records = kept(training.history)
    members = [
        {"member": record.member, "best_epoch": record.epoch, "validation": dict(record.validation)}
        for record in records
    ]
    return {
        "epochs": len(training.history),
        "best_epoch": training.best_epoch,
        "validation": mean_validation(training.history),
        **({"members": members} if len(members) > 1 else {}),
        "seconds": round(training.seconds, 3),
        "device": training.device,
        "interrupted": training.interrupted,
    }


def _check_output(output: Path, checkpoints: Path, resume: bool, overwrite: bool) -> None:
    """Raise an error before training if it would replace files without --resume or --overwrite."""
    from bundlemage.artifact.files import check_replaceable
    from bundlemage.errors import ArtifactError, CheckpointError
    from bundlemage.training.checkpoint import RunFolder

    output.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(output.parent, os.W_OK):
        raise ArtifactError(
            f"{output} cannot be written: no permission to write in {output.parent.resolve()}"
        )
    can_resume = RunFolder(checkpoints).can_resume()
    if resume or overwrite:
        check_replaceable(output)
        if resume and output.exists() and not can_resume:
            raise CheckpointError(
                f"nothing to resume: {output} is a finished model. Use --overwrite to train again."
            )
        if resume and not can_resume:
            show.note("nothing to resume: starting from the beginning")
    elif can_resume:
        raise CheckpointError(
            f"{checkpoints} holds an interrupted run: "
            "add --resume to continue it, or --overwrite to start over"
        )
    elif output.exists():
        raise ArtifactError(
            f"{output} exists already: add --overwrite to replace it, or choose another folder"
        )


def _announce(split: Split, model: str, final: bool) -> None:
    import numpy as np

    from bundlemage.data.splits import held_out_in_words

    learned, known = split.train.user_bundle.nnz, split.dataset.user_bundle.nnz
    show.note(show.described(split.dataset))
    rest = held_out_in_words(split) if learned < known else "none is held out"
    show.note(
        f"protocol {split.protocol}: learning from {learned:,} of {known:,} user-bundle pairs, {rest}; "
        f"model {model}"
    )
    if split.moments is not None and split.dataset.item_events.at is None:
        show.warn(
            "user_item has no times, so histories may have items that were taken after the test began: add a "
            "column 'at' to it"
        )
    show.leakage(split.leakage, split.histories)
    tested, users = len(split.test or ()), len(split.dataset.users)
    if 0 < tested < FEW_TESTED * users:
        show.warn(
            f"only {tested:,} of {users:,} users are tested, because {split.protocol} holds out no bundle of "
            "the others for the test: the figures say little about the others"
        )
    if not learned:
        show.warn(
            "no user-bundle pair is left for training, so the model cannot learn "
            "which user takes which bundle: add more data, or use --protocol none, which holds nothing out"
        )
    elif learned < SMALL_PART * known:
        advice = "the final training uses all of them" if final else "add --final, to train again on all"
        reason = "the others"
        sales = np.bincount(split.held_out.indices)
        best = int(sales.argmax())
        if sales[best] > SMALL_PART * known and not split.train.bundle_item[best].nnz:
            reason = f"the bundle {split.dataset.bundles[best]}, which has {sales[best]:,} of them"
            advice += ", or hold out other bundles with another --split-seed"
        elif split.protocol == "paper":
            advice += ", or use --protocol some-users, which holds out less"
        show.warn(
            f"the model learns from {learned:,} of {known:,} purchases of bundles, because {split.protocol} "
            f"holds out {reason}: {advice}"
        )


# ── Searching for settings ───────────────────────────────────────────────────────────────────────


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
    histories: str | None = None,
    order: str | None = None,
    table: Tables = None,
    events: Events = None,
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
        --recipe: As for 'train'. The search begins with the recipe's settings, and varies only those in the
            space.
        --set NAME=VALUE: A setting that is not searched. Repeatable.
        --space NAME=LOW..HIGH|A,B,C: Values to try for a setting, instead of the default ones. Repeatable.
        --trials N: The total number of trials, including earlier ones.
        --timeout SECONDS: No trial begins after this time; running trials are finished.
        --seed: The seed of the search, and of each training in it.
        --protocol: As for 'train', except none.
        --split-seed: The seed of the split, if it is random.
        --histories: As for 'train'.
        --order: As for 'train'.
        --workers, --jobs N: Number of trials at a time, each in its own process. The default is one on this
            machine. On Ray it is one for each GPU, or one for each processor if there is no GPU. With more
            than one, the next trial depends on which trial ends first, so two searches may differ.
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
        plan=chosen.changed(
            {},
            only_given({"protocol": protocol, "seed": split_seed, "histories": histories, "order": order}),
        ).plan(),
        location=location,
        output=output,
        space={name: _domain(name, text) for name, text in key_values(space, "--space").items()},
        trials=trials,
        timeout=timeout,
        tables=key_values(table, "--table"),
        events=chosen.changed({}, {}, events=event_weights(events)).events,
        resume=resume,
    )
    if resume and not output.exists():
        show.note("nothing to resume: starting from the beginning")
    with Shown(show.notes, "tuning") as progress:
        study = engine.tune(search, progress)
    show.warn(*study.warnings)
    show.leakage(study.leakage, study.histories)
    if as_json:
        show.print_json(study.to_json())
    else:
        for part in _study_lines(study, label(location)):
            show.out.print(part)
    if study.interrupted:
        show.note("Interrupted: every trial that ended is kept; --resume continues from here.")
        raise typer.Exit(130)
    if study.best is None:
        raise BundleMageError(f"every trial failed. The first one failed because: {study.trials[0].reason}")


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


def _study_lines(study: Study, location: str) -> Iterator[RenderableType]:
    """The best trials, the importance of the settings, and the next command."""
    states = [trial.state for trial in study.trials]
    counts = f"{len(states)} trials, {states.count('pruned')} stopped early, {states.count('failed')} failed"
    title = f"{show.plain(study.model)}: the best of {counts}"
    table = show.table(title, ">trial", f">validation {study.metric}", ">epochs", "settings")
    for trial in study.ranked[:5]:
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
        yield f"Importance of the settings: {', '.join(parts)}"
    elif find_spec("sklearn") is None:
        yield "[dim]Install scikit-learn to see the importance of the settings here.[/]"
    if len(study.trials) < study.asked and not study.interrupted:
        done = f"{len(study.trials)} of {study.asked} trials"
        yield f"The time limit ended the study after {done}; --resume continues."
    if study.best is not None:
        yield (
            f"Train with the best settings: [bold]bundlemage train {show.plain(location)} "
            f"--recipe {show.plain(study.recipe)} -o MODEL[/]"
        )
