"""`bundlemage reproduce`: the paper's results from the data at hand, as a report."""

from __future__ import annotations

from pathlib import Path

from bundlemage.cli import show
from bundlemage.cli.options import AsJson, Device, Jobs, OptionalCount
from bundlemage.cli.texts import ids, seed_list
from bundlemage.errors import ConfigError


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

    The folder REPORT gets index.html, report.md, figures/ and results.json. If files are missing, the
    command says where they are published, and computes the rest. A command that was killed continues where it
    stopped. Exits 2 if the data's folder has none of the files.

    Options:
        dataset NAME: youshu, steam, netease, or sample, the built-in shop.
        -o, --output REPORT: The report's folder. Without it, the results go to the cache, and no report is
            written.
        --data DIR: The data's folder with authors/mat, authors/gen, bgcn or pathak in it; any may be missing.
        --seeds N,...: Each model is trained once for each seed. Default: 0,1,2, or 0 for the sample.
        --cache DIR: Folder for results, shared with 'compare'.
        --only-cached: Train nothing: what is not in the cache is shown as not run.
        --epochs N: Maximum number of passes over the data, for every model; a low number is a quick trial.
        --skip NAME,...: Leave out a model, or a section: matching, generation, ablations, full-ranking,
            cases. Repeatable.
        --note TEXT: A sentence for the report on how it was made.
    """
    from bundlemage.cli.compare_progress import watching
    from bundlemage.studies.figures import require_plots
    from bundlemage.studies.findings import ReproduceOptions, gather
    from bundlemage.studies.plan import STUDIES
    from bundlemage.studies.report import banners, check_writable, results_of, summary, write_report
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
    drawn = [] if output is None else write_report(findings, output)
    if as_json:
        show.print_json({"report": None if output is None else str(output), **results_of(findings)})
    else:
        for banner in banners(findings):
            show.say(f"[yellow]{show.plain(banner)}[/]")
        for line in summary(findings):
            show.say(f"• {show.plain(line)}")
        end = f"The results are in {show.plain(cache)}."
        if output is not None:
            files = f"index.html, report.md, results.json and {len(drawn)} figure{'s' * (len(drawn) != 1)}"
            end = f"Written to [bold]{show.plain(output)}[/]: {files}."
        show.say(end)
    if findings.nothing:
        raise ConfigError(
            f"{data} has no files of {dataset}: a report shows only the paper's figures and what is missing"
        )
