"""`bundlemage data`: look at data before a model does."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bundlemage.cli import get
from bundlemage.cli.options import AsJson, Location, Tables, key_values, label
from bundlemage.progress import Shown

app = typer.Typer(no_args_is_help=True, help="Check, describe, shard, generate and fetch data.")
app.command("get")(get.get)


@app.command()
def check(
    location: Location = "sample",
    table: Tables = None,
    as_json: AsJson = False,
) -> None:
    """Report all problems of PATH: where it is, what is wrong, what to do. Exits 2 if there is any."""
    from bundlemage.cli import show
    from bundlemage.readers.ingest import ingest as read_in

    with Shown(show.notes, label(location)) as progress:
        problems = read_in(location, named=key_values(table, "--table"), progress=progress).problems
    if as_json:
        show.print_json({"ok": not problems, "problems": [asdict(problem) for problem in problems]})
    else:
        for problem in problems:
            colour = "red" if problem.severity == "error" else "yellow"
            show.notes.print(f"[{colour}]{problem.severity}:[/] ", end="", soft_wrap=True)
            show.notes.print(str(problem), markup=False, soft_wrap=True)
        errors = sum(problem.severity == "error" for problem in problems)
        if problems:
            show.notes.print(f"kinds of error: {errors}, of warning: {len(problems) - errors}")
        else:
            show.out.print("no problem found")
    if problems:
        raise typer.Exit(2)


@app.command()
def ingest(
    location: Location,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where the layout goes.")],
    shard_rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="The number of users, items or bundles in one file.")
    ] = 100_000,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing layout.")] = False,
    table: Tables = None,
    as_json: AsJson = False,
) -> None:
    """Write PATH as a sharded layout, which every command takes as data, and of which a worker reads a part.

    Tables need not fit into memory: half of it is used, and the rest goes to disk beside the layout.
    """
    from bundlemage.cli import show
    from bundlemage.readers.ingest import ingest as read_in

    with Shown(show.notes, label(location)) as progress:
        done = read_in(
            location,
            output,
            shard_rows,
            overwrite=overwrite,
            named=key_values(table, "--table"),
            progress=progress,
        )
    layout = done.layout
    assert layout is not None
    show.warnings(done.problems)
    if as_json:
        show.print_json(
            {
                "output": str(output),
                "dataset": layout.name,
                **layout.sizes,
                **{f"{name}_pairs": count for name, count in layout.pairs.items()},
                "files": len(layout.files),
                "fingerprint": done.fingerprint,
                "warnings": [asdict(problem) for problem in done.problems],
                "seconds": round(done.seconds, 3),
            }
        )
        return
    sizes, pairs = layout.sizes, layout.pairs
    show.out.print(
        f"{show.plain(layout.name)}: {sizes['users']:,} users, {sizes['bundles']:,} bundles, "
        f"{sizes['items']:,} items; {pairs['user_bundle']:,} user-bundle, {pairs['user_item']:,} user-item, "
        f"{pairs['bundle_item']:,} bundle-item pairs",
        soft_wrap=True,
    )
    show.out.print(
        f"{len(layout.files):,} files in [bold]{show.plain(output)}[/], in {done.seconds:,.1f} s",
        soft_wrap=True,
    )


@app.command()
def stats(location: Location = "sample", table: Tables = None, as_json: AsJson = False) -> None:
    """The paper's dataset table, its popularity-bias figure, and how alike item and bundle tastes are."""
    from bundlemage.cli import show
    from bundlemage.readers.load import read

    with show.notes.status(f"reading {label(location)}"):
        source = read(location, key_values(table, "--table"))
        figures = _statistics(source.dataset)
    show.warnings(source.warnings)
    if as_json:
        show.print_json(figures)
        return
    show.out.print(_table(figures))
    show.caveats(source.dataset)


def _statistics(dataset: Any) -> dict[str, Any]:
    import numpy as np

    from bundlemage.data.statistics import dataset_table, dissimilarity, popularity_bias

    similar = dissimilarity(dataset)
    similar = similar[~np.isnan(similar)]
    return {
        "dataset": dataset.name,
        **dataset_table(dataset),
        "popularity_bias": popularity_bias(dataset),
        "taste_similarity_median": float(np.median(similar)) if len(similar) else None,
        "notes": list(dataset.notes),
    }


def _table(figures: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=figures["dataset"], title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name in ("users", "bundles", "items"):
        table.add_row(name, f"{figures[name]:,}")
    for name in ("user_bundle", "user_item", "bundle_item"):
        label = name.replace("_", "-") + " pairs (density)"
        table.add_row(label, f"{figures[name + '_pairs']:,} ({figures[name + '_density']:.2%})")
    table.add_row("items per bundle, mean", f"{figures['items_per_bundle']:.2f}")
    table.add_row("popularity bias: mean rank of a bundle's items", f"{figures['popularity_bias']:.2%}")
    similar = figures["taste_similarity_median"]
    shown = "unknown" if similar is None else f"{similar:.2f}"
    table.add_row("cosine of item and bundle taste, median user", shown)
    return table


@app.command()
def sample(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where the tables go.")],
    users: Annotated[int, typer.Option(min=1)] = 800,
    items: Annotated[int, typer.Option(min=1)] = 600,
    bundles: Annotated[int, typer.Option(min=1)] = 240,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    format: Annotated[str, typer.Option(help="csv, tsv or parquet.")] = "csv",  # noqa: A002
    as_json: AsJson = False,
) -> None:
    """Write a generated game shop as tables, to try things on or to see what tables look like."""
    from typing import get_args

    from bundlemage.cli import show
    from bundlemage.errors import ConfigError
    from bundlemage.sample.generate import TableFormat, sample_shop, write_shop

    if format not in get_args(TableFormat):
        raise ConfigError(f"unknown format {format!r}; the formats are: {', '.join(get_args(TableFormat))}")
    with show.notes.status("generating"):
        shop = sample_shop(users, items, bundles, seed=seed).dataset
        files = write_shop(shop, output, format)  # type: ignore[arg-type]
    if as_json:
        show.print_json({"files": [str(file) for file in files]})
    else:
        show.out.print(show.described(shop), soft_wrap=True)
        names = ", ".join(file.name for file in files)
        show.out.print(f"written to [bold]{show.plain(output)}[/]: {names}", soft_wrap=True)
