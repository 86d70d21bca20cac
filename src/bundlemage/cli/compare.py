"""`bundlemage compare`, `reproduce` and `models`: compare models, reproduce the paper, list models."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bundlemage.cli import show
from bundlemage.cli.options import AsJson, Device, Events, Jobs, OptionalCount, Tables
from bundlemage.cli.texts import event_weights, ids, key_values, label, seed_list, settings
from bundlemage.errors import ConfigError
from bundlemage.readers.address import may_hold_a_password

if TYPE_CHECKING:
    from bundlemage.data.splits import Split, SplitPlan
    from bundlemage.studies.cells import Contender
    from bundlemage.studies.comparison import Comparison

DEFAULT_MODELS = ("bundlemage", "ease", "co-occurrence", "popularity")
"""BundleMage, a strong simple model for each of the two tasks, and the popularity baseline."""
TERMINAL_COLUMNS = ("ndcg@5", "ndcg@10", "ndcg@20", "recall@20")
"""The metrics that fit into a terminal of 100 columns."""
OUTPUTS = (".md", ".html", ".json")


def compare(
    locations: list[str] | None = None,
    model: list[str] | None = None,
    seeds: str = "0",
    protocol: list[str] | None = None,
    split_seed: int = 0,
    histories: str = "auto",
    order: str = "auto",
    set_: list[str] | None = None,
    epochs: int | None = None,
    device: Device = "auto",
    jobs: Jobs = 1,
    cache: Path = Path("runs/compare"),
    fresh: bool = False,
    metric: str = "ndcg@5",
    metrics: str | None = None,
    slice_by: list[str] | None = None,
    output: list[Path] | None = None,
    table: Tables = None,
    events: Events = None,
    as_json: AsJson = False,
) -> None:
    """Train and test models on PATH, and rank them.

    Results are kept in a cache. After an interruption, the same command continues where it stopped. If you
    add a model later, only this model runs. All models are tested on the same split; a recipe's own split is
    not used. Exits 1 if a model failed; the results of the other models are still shown.

    Options:
        locations [PATH]...: Folders of data, database URLs, or 'sample' for the built-in shop (the
            default).
        -m, --model NAME,...: Models, recipes (a .toml file, or a name such as youshu/bpr), or 'all'.
            Repeatable. By default: bundlemage, ease, co-occurrence, popularity.
        --seeds N,...: Each model is trained once for each seed.
        --protocol: auto (the data's own split, else paper, else some-users if paper would leave less than
            half of the pairs for training), paper, some-users, full, time, cold-bundles, new-bundles or
            new-bundles-known. Repeatable.
        --split-seed: The seed of the split, if it is random.
        --histories: As for 'train': auto, as-given or without-held-out.
        --order: As for 'train': auto, random or time. The protocol time always goes by time.
        --set NAME=VALUE: A hyperparameter of all models that have it, or of one: MODEL.NAME=VALUE.
            Repeatable.
        --epochs: The maximum number of passes over the data.
        --cache DIR: The folder where results are kept for later commands.
        --fresh: Ignore kept results and run everything again.
        --metric: The metric that ranks the models: ndcg@5, ndcg@20 or recall@20.
        --metrics NAME@K,...: The columns to show: ndcg, recall, mrr, hit, precision or map; k is 5, 10, 20 or
            40.
        --slice-by COLUMN: Files of --output also show the models by a column of the catalogue, such as tags
            or price. Repeatable.
        -o, --output FILE: Also write the results to a .md, .html or .json file. Repeatable.
    """
    from bundlemage.cli.compare_progress import watching
    from bundlemage.data.splits import SplitPlan, held_out_in_words
    from bundlemage.studies.comparison import check_metric
    from bundlemage.studies.comparison import compare as run
    from bundlemage.studies.outcome import METRICS, Cache
    from bundlemage.training.devices import resolve_device

    columns = tuple(part.strip() for part in metrics.split(",")) if metrics else ()
    for column in columns:
        if column not in METRICS:
            raise ConfigError(f"--metrics: unknown metric {column!r}; the metrics are: {', '.join(METRICS)}")
    check_metric(metric)
    for file in output or []:
        _check_output(file)
    contenders = _contenders(model, set_, epochs)
    seed_numbers = seed_list(seeds)
    plans = [
        SplitPlan(name, split_seed, histories=histories, order=order)
        for name in dict.fromkeys(protocol or ["auto"])
    ]
    tables, weights = key_values(table, "--table"), event_weights(events)
    splits = _splits(locations or ["sample"], tables, weights, plans)
    for split in splits:
        by_time = f": {held_out_in_words(split)}" if split.goes_by_time else ""
        show.note(f"{show.described(split.dataset)}; protocol {split.protocol}{by_time}")
        show.leakage(split.leakage, split.histories)
    resolve_device(device)
    options: dict[str, Any] = {"device": device, "metric": metric, "fresh": fresh, "jobs": jobs}
    options["slice_by"] = slice_by or ()
    with watching() as observer:
        comparison = run(contenders, splits, seed_numbers, cache=Cache(cache), observer=observer, **options)
    if as_json:
        show.print_json(
            {"command": command_line(), "warnings": comparison.suspicious(), **comparison.to_json()}
        )
    else:
        for results in comparison.tables:
            show.out.print(show.comparison_table(results.ranked(), columns or TERMINAL_COLUMNS))
        for missing in comparison.skipped:
            where = f"{show.plain(missing.dataset)}, {missing.protocol}"
            show.out.print(f"{show.plain(missing.label)} is not compared on {where}: {missing.message}")
        for split in splits:
            show.caveats(split.dataset)
        show.warn(*comparison.suspicious())
    for file in output or []:
        _write(file, comparison, columns)
        show.note(f"written: [bold]{show.plain(file)}[/]")
    if comparison.failures:
        raise typer.Exit(1)


# ── Reading the options ──────────────────────────────────────────────────────────────────────────


def _contenders(
    names: Sequence[str] | None, setting: Sequence[str] | None, epochs: int | None
) -> list[Contender]:
    from bundlemage.studies.cells import Contender, every_model

    chosen = list(DEFAULT_MODELS) if names is None else ids(names)
    if not chosen:
        raise ConfigError("--model: no model is named; 'bundlemage models' lists them")
    if "all" in chosen:
        models = every_model()
        show.warn(*(f"left out: {facts.error}" for facts in models if facts.error is not None))
        usable = (facts.name for facts in models if facts.error is None)
        chosen = [name for name in (*usable, *chosen) if name != "all"]
    contenders = [Contender.parse(name) for name in dict.fromkeys(chosen)]
    if epochs is not None:
        contenders = [
            each.with_settings({"epochs": epochs}) if "epochs" in each.known_settings else each
            for each in contenders
        ]
    for name, value in settings(setting).items():
        contenders = _changed(contenders, name, value)
    return contenders


def _changed(contenders: Sequence[Contender], name: str, value: Any) -> list[Contender]:
    """Returns all contenders, with the setting changed in those that it applies to."""
    owner, _, key = name.rpartition(".")
    if key in ("seed", "device"):
        raise ConfigError(f"--set {name}: use --{key}{'s' * (key == 'seed')}, which is for all models")
    labelled = [each for each in contenders if owner in ("", each.label)]
    named = labelled or [each for each in contenders if owner == each.model]
    if not named:
        known = ", ".join(each.label for each in contenders)
        raise ConfigError(f"--set {name}: there is no model {owner!r} in this comparison of {known}")
    affected = [each for each in named if key in each.known_settings]
    if not affected:
        known = ", ".join(sorted(set().union(*(each.known_settings for each in named)) - {"seed", "device"}))
        lacking = f"{owner} has no" if owner else "none of these models has a"
        raise ConfigError(f"--set {name}: {lacking} setting {key!r}; the settings are: {known or 'none'}")
    return [each.with_settings({key: value}) if each in affected else each for each in contenders]


def _splits(
    locations: Sequence[str],
    tables: dict[str, str],
    events: dict[str, float] | None,
    plans: Sequence[SplitPlan],
) -> list[Split]:
    from bundlemage.readers.load import read

    splits: list[tuple[str, Split]] = []
    for location in dict.fromkeys(locations):
        with show.notes.status(f"reading {label(location)}"):
            source = read(location, tables, events)
            show.warn(*source.warnings)
            splits += [(label(location), plan.divide(source.dataset, source.ready)) for plan in plans]
    places: dict[str, set[str]] = {}
    for place, split in splits:
        places.setdefault(split.dataset.name, set()).add(place)
    # Two folders of the same name are distinguished by their paths.
    return [
        replace(split, dataset=replace(split.dataset, name=place))
        if len(places[split.dataset.name]) > 1
        else split
        for place, split in splits
    ]


# ── Writing the results ───────────────────────────────────────────────────────────────────────────


def _check_output(file: Path) -> None:
    if file.suffix not in OUTPUTS:
        raise ConfigError(f"--output {file}: its name must end in one of {', '.join(OUTPUTS)}")
    if file.is_dir():
        raise ConfigError(f"--output {file}: this is a folder; name a file")
    if not file.parent.is_dir():
        raise ConfigError(f"--output {file}: there is no folder {file.parent}")
    can_be_written(file)


def can_be_written(file: Path) -> None:
    """Raise `ConfigError` if the file cannot be opened for writing. (Permissions alone are not reliable.)"""
    existed = file.exists()
    try:
        with file.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
    if not existed:
        file.unlink()


def _write(file: Path, comparison: Comparison, columns: Sequence[str]) -> None:
    import json

    from bundlemage.studies import render

    if file.suffix == ".json":
        content = {"command": command_line(), "warnings": comparison.suspicious(), **comparison.to_json()}
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    else:
        form: render.Form = "html" if file.suffix == ".html" else "markdown"
        text = render.comparison_page(comparison, form, command_line(), columns or render.COLUMNS)
    file.write_text(text, encoding="utf-8")


def command_line() -> str:
    """The command as it was typed, without database URLs, which may contain a password."""
    typed = ["DATABASE_URL" if may_hold_a_password(part) else part for part in sys.argv[1:]]
    return shlex.join(["bundlemage", *typed])


# ── The list of models ───────────────────────────────────────────────────────────────────────────


def models(name: str | None = None, as_json: AsJson = False) -> None:
    """List all models, including those of other installed packages; or show the settings of one model.

    The column "learns" marks models that are trained by gradient steps; the other models count occurrences
    or solve equations. The column "new users" marks models that can also answer for users outside the
    training data.

    Options:
        name NAME: The model whose settings to show.
    """
    from bundlemage.studies.cells import every_model

    if name is not None:
        _settings(name, as_json)
        return
    every = every_model()
    if as_json:
        show.print_json([asdict(facts) for facts in every])
        return
    wide = show.out.width >= 140
    table = show.table("models")
    for column in ("name", "matches", "generates", "learns", "new users"):
        table.add_column(column, justify="left" if column == "name" else "center", no_wrap=True)
    table.add_column("publication" if wide else "published", overflow="fold")
    for facts in every:
        if facts.error is not None:
            continue
        abilities = (facts.matches, facts.generates, facts.learns, facts.knows_new_users)
        # A simple rule has no publication; its title is shown instead.
        shown = facts.publication if wide else facts.publication.rpartition(", ")[2]
        origin = show.plain(shown) or f"[dim]{show.plain(facts.title)}[/]"
        table.add_row(show.plain(facts.name), *("✓" if able else "" for able in abilities), origin)
    show.out.print(table)
    for facts in every:
        if facts.error is not None:
            show.say(f"[red]{show.plain(facts.name)} is left out:[/] {show.plain(facts.error)}")
    more = "" if wide else " --json, or a terminal of 140 columns, shows the full publications."
    show.out.print(f"[dim]'bundlemage models NAME' shows the settings of one model.{more}[/]")


def _settings(name: str, as_json: bool) -> None:
    from bundlemage.models.registry import model_class

    config_class = model_class(name).config_class
    fields, space = config_class.model_fields, config_class.space
    if as_json:
        schema: dict[str, Any] = config_class.model_json_schema()
        searched = {setting: domain.to_json() for setting, domain in space.items()}
        show.print_json({"name": name, "settings": schema["properties"], "space": searched})
        return
    table = show.table(f"settings of {show.plain(name)}")
    table.add_column("setting", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for setting, field in fields.items():
        meaning = " ".join((field.description or "").replace("`", "").split())
        table.add_row(setting, show.plain(field.default), show.plain(meaning))
    show.out.print(table)
    if space:
        show.out.print("'bundlemage tune' searches these values by default:")
    for setting, domain in space.items():
        show.out.print(f"  {setting}={show.plain(domain)}")


# ── The paper's results ──────────────────────────────────────────────────────────────────────────


def reproduce(
    dataset: str,
    output: Path | None = None,
    data: Path | None = None,
    seeds: str | None = None,
    cache: Path = Path("runs/compare"),
    only_cached: bool = False,
    epochs: OptionalCount = None,
    skip: list[str] | None = None,
    note: str = "",
    device: Device = "auto",
    jobs: Jobs = 1,
    as_json: AsJson = False,
) -> None:
    """Rebuild the paper's tables, figures and case studies on a dataset, and write a report.

    The folder REPORT gets index.html, report.md, figures/ and results.json. If data files are missing, the
    command prints where they are published, and computes the rest. After an interruption, the same command
    continues where it stopped. Exits 2 if the data's folder has none of the files.

    Options:
        dataset NAME: youshu, steam, netease, or sample, the built-in shop.
        -o, --output REPORT: The report's folder. Without it, the results go to the cache, and no report is
            written.
        --data DIR: The data's folder with authors/mat, authors/gen, bgcn or pathak in it; any may be missing.
        --seeds N,...: Each model is trained once for each seed. Default: 0,1,2, or 0 for the sample.
        --cache DIR: Folder for results, shared with 'compare'.
        --only-cached: Train nothing. Results that are not in the cache are shown as not run.
        --epochs N: Maximum number of passes over the data, for every model; a low number is a quick trial.
        --skip NAME,...: Leave out a model, or a section: matching, generation, ablations, full-ranking,
            cases. Repeatable.
        --note TEXT: A sentence to add to the report, e.g. on how the results were measured.
    """
    from bundlemage.cli.compare_progress import watching
    from bundlemage.studies.figures import require_plots
    from bundlemage.studies.report import banners, check_writable, results_of, summary, write_report
    from bundlemage.studies.reproduction import STUDIES, ReproduceOptions, gather
    from bundlemage.training.devices import resolve_device

    if dataset not in STUDIES:
        raise ConfigError(f"unknown data set {dataset!r}; the data sets are: {', '.join(STUDIES)}")
    is_sample = dataset == STUDIES[-1]
    if is_sample and data is not None:
        raise ConfigError("the sample shop is built in: leave --data out")
    resolve_device(device)
    if output is not None:
        require_plots()
        check_writable(output)
    numbers = seed_list(seeds or ("0" if is_sample else "0,1,2"))
    left_out = tuple(dict.fromkeys(ids(skip)))
    options = ReproduceOptions(
        dataset, data, numbers, cache, device, epochs, only_cached, left_out, note=note, jobs=jobs
    )
    with watching() as observer:
        findings = gather(options, observer)
    for missing in findings.missing:
        for problem in dict.fromkeys(missing.problems):
            show.note(f"[yellow]missing:[/] {show.plain(problem)}")
        where = missing.where.replace(options.shown_folder, str(data))
        show.note(f"  {show.plain(where)}")
    figures = [] if output is None else write_report(findings, output)
    if as_json:
        show.print_json({"report": None if output is None else str(output), **results_of(findings)})
    else:
        for banner in banners(findings):
            show.say(f"[yellow]{show.plain(banner)}[/]")
        for line in summary(findings):
            show.say(f"• {show.plain(line)}")
        end = f"The results are in {show.plain(cache)}."
        if output is not None:
            files = (
                f"index.html, report.md, results.json and {len(figures)} figure{'s' * (len(figures) != 1)}"
            )
            end = f"Written to [bold]{show.plain(output)}[/]: {files}."
        show.say(end)
    if findings.no_data:
        raise ConfigError(
            f"{data} has no files of {dataset}: a report shows only the paper's figures and what is missing"
        )
