"""`bundlemage data`: check, describe, shard, generate and fetch data."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from bundlemage.cli import show
from bundlemage.cli.commands import add
from bundlemage.cli.options import AsJson, Count, Events, Location, OptionalCount, Seed, Tables
from bundlemage.cli.texts import event_weights, key_values, label, only_given
from bundlemage.errors import ConfigError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.downloads.public_data import ByHand

app = typer.Typer(no_args_is_help=True, help="Check, describe, shard, generate and fetch data.")


def check(
    location: Location = "sample", table: Tables = None, events: Events = None, as_json: AsJson = False
) -> None:
    """Report each problem of the data at PATH, with its place and a fix. Exits 2 if there is an error.

    It also says in how many user-bundle pairs the user's items give the bundle away, in how many they would
    do so by chance, and which share of a bundle's items users have. This is no problem of the data.
    """
    from bundlemage.readers.ingest import ingest as read_in

    with Shown(show.notes, label(location)) as progress:
        tables, weights = key_values(table, "--table"), event_weights(events)
        checked = read_in(location, named=tables, events=weights, progress=progress)
    problems, leakage = checked.problems, checked.leakage
    counts = Counter(problem.severity for problem in problems)
    ok = not counts["error"]
    if as_json:
        listed = [asdict(problem) for problem in problems]
        found = (
            None
            if leakage is None
            else {**asdict(leakage), "share": leakage.share, "by_chance": leakage.by_chance}
        )
        known = {name: asdict(facts) for name, facts in checked.about_events.items()}
        shown = {"events": known} if known else {}
        show.print_json({"ok": ok, "problems": listed, "leakage": found, **shown})
    else:
        colours = {"error": "red", "warning": "yellow", "note": "blue"}
        for problem in problems:
            show.note(f"[{colours[problem.severity]}]{problem.severity}:[/] {show.plain(problem)}")
        if ok and not counts["warning"]:
            show.out.print("no problem found")
        else:
            show.notes.print(f"kinds of errors: {counts['error']}; kinds of warnings: {counts['warning']}")
        show.event_facts(checked.about_events)
        if leakage is not None:
            show.leakage(leakage)
    if not ok:
        raise typer.Exit(2)


def ingest(
    location: Location,
    output: Path,
    shard_rows: Count = 100_000,
    overwrite: bool = False,
    table: Tables = None,
    events: Events = None,
    as_json: AsJson = False,
) -> None:
    """Write the data at PATH as shards. Every command can read shards, and a worker can read only its part.

    Tables may be larger than memory: half of the memory is used, and temporary files next to the output hold
    the rest.

    Options:
        -o, --output DIR: Folder for the shards.
        --shard-rows N: The number of users, items or bundles in one file.
        --overwrite: Replace existing shards.
    """
    from bundlemage.readers.assemble import repeated_purchases
    from bundlemage.readers.ingest import ingest as read_in

    with Shown(show.notes, label(location)) as progress:
        done = read_in(
            location,
            output,
            shard_rows,
            overwrite=overwrite,
            named=key_values(table, "--table"),
            events=event_weights(events),
            progress=progress,
        )
    layout = done.layout
    assert layout is not None
    show.warn(*done.problems)
    for problem in repeated_purchases(done.problems):
        show.note(f"[blue]note:[/] {show.plain(problem)}")
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
    show.say(show.sizes(layout.name, {**layout.sizes, **layout.pairs}))
    show.say(f"{len(layout.files):,} files in [bold]{show.plain(output)}[/], in {done.seconds:,.1f} s")


def stats(
    location: Location = "sample", table: Tables = None, events: Events = None, as_json: AsJson = False
) -> None:
    """Show the paper's table of sizes, the popularity bias, and the similarity of item and bundle tastes."""
    import numpy as np

    from bundlemage.data.statistics import (
        dataset_table,
        event_facts,
        popularity_bias,
        preference_similarity,
    )
    from bundlemage.readers.load import read

    with show.notes.status(f"reading {label(location)}"):
        source = read(location, key_values(table, "--table"), event_weights(events))
        data = source.dataset
        similar = preference_similarity(data)
        similar = similar[~np.isnan(similar)]
        figures: dict[str, Any] = {
            "dataset": data.name,
            **dataset_table(data),
            "popularity_bias": popularity_bias(data),
            "taste_similarity_median": float(np.median(similar)) if len(similar) else None,
            "notes": list(data.notes),
        }
        known = event_facts(source)
        if known:
            figures["events"] = {name: asdict(facts) for name, facts in known.items()}
    show.warn(*source.warnings)
    if as_json:
        show.print_json(figures)
        return
    rows = show.table(data.name, "", ">")
    rows.show_header = False
    for name in ("users", "bundles", "items"):
        rows.add_row(name, f"{figures[name]:,}")
    for name in show.RELATIONS:
        pairs = f"{figures[name + '_pairs']:,} ({figures[name + '_density']:.2%})"
        rows.add_row(name.replace("_", "-") + " pairs (density)", pairs)
    rows.add_row("items per bundle, mean", f"{figures['items_per_bundle']:.2f}")
    rows.add_row("popularity bias: mean rank of a bundle's items", f"{figures['popularity_bias']:.2%}")
    median = figures["taste_similarity_median"]
    shown = "unknown" if median is None else f"{median:.2f}"
    rows.add_row("cosine of item and bundle taste, median user", shown)
    show.out.print(rows)
    show.event_facts(known)
    show.caveats(data)


def sample(
    output: Path,
    kind: str = "games",
    users: OptionalCount = None,
    items: OptionalCount = None,
    bundles: OptionalCount = None,
    seed: Seed = 0,
    format_: str = "csv",
    as_json: AsJson = False,
) -> None:
    """Write the tables of a generated shop, to try commands or as an example of tables.

    The kinds of shops:

    - games: a shop of games; many users buy bundles of other genres than their games.
    - one-buyer: every bundle is made for one user, who has no other items than those of the bundles.
    - only-in-bundles: users have no other items than those of their bundles.
    - one-bundle-users: four users of five have one bundle.
    - best-sellers: users have no tastes; a few bundles have most of the sales.
    - tiny: 50 users and 40 bundles.
    - large-catalogue: 150 users, 1,500 bundles and 3,000 items.
    - near-copies: groups of bundles that differ in one item or two; users buy one of a group.
    - no-items: users have bundles and no items.
    - views: for each purchase, a user has views of four other things, which tell nothing about the user; the
      column 'event' tells them apart.
    - seasons: purchases of two years, with times; tastes drift, and bundles come, go and have seasons.

    Options:
        -o, --output DIR: Folder for the tables.
        --kind KIND: The kind of shop, from the list above.
        --users N: The number of users; only for games, where it is 800 by default.
        --items N: The number of items; only for games, where it is 600 by default.
        --bundles N: The number of bundles; only for games, where it is 240 by default.
        --seed N: The seed of the generator.
        --format FORMAT: csv, tsv or parquet.
    """
    from bundlemage.sample.generate import TableFormat, sample_shop, write_shop
    from bundlemage.sample.kinds import EVENTS, GAMES, shop_of_kind

    if format_ not in get_args(TableFormat):
        raise ConfigError(f"unknown format {format_!r}; the formats are: {', '.join(get_args(TableFormat))}")
    sizes = only_given({"users": users, "items": items, "bundles": bundles})
    if sizes and kind != GAMES:
        raise ConfigError(f"--{next(iter(sizes))} is for the kind {GAMES}: the other kinds have fixed sizes")
    with show.notes.status("generating"):
        shop = sample_shop(**sizes, seed=seed).dataset if kind == GAMES else shop_of_kind(kind, seed).dataset
        types = EVENTS if kind == "views" else None
        files = write_shop(shop, output, format_, types)  # type: ignore[arg-type]
    if as_json:
        show.print_json({"files": [str(file) for file in files]})
    else:
        show.say(show.described(shop))
        names = ", ".join(file.name for file in files)
        show.say(f"written to [bold]{show.plain(output)}[/]: {names}")


def get(
    name: str = "list",
    output: Path | None = None,
    mirror: str | None = None,
    overwrite: bool = False,
    as_json: AsJson = False,
) -> None:
    """Download public data, resume a broken download, and verify it. Without NAME: list the data sets.

    Options:
        name NAME: youshu, steam or netease; 'list' describes them.
        -o, --output DIR: The data's folder; by default NAME.
        --mirror URL: A web server with the same files, as URL/NAME/LAYOUT/FILE.
        --overwrite: Replace files that differ from the published ones.
    """
    from bundlemage.downloads.public_data import fetch, public_data

    if name == "list":
        _list(as_json)
        return
    data = public_data(name)
    folder = output or Path(name)
    with Shown(show.notes, "fetching") as progress:

        def say(text: str) -> None:
            progress.close()
            (show.notes if as_json else show.out).print(show.plain(text), soft_wrap=True)

        done = fetch(data, folder, mirror, overwrite=overwrite, say=say, progress=progress)
    quoted = shlex.quote(str(folder / data.folder))
    next_steps = [f"bundlemage data check {quoted}", f"bundlemage train {quoted} -o MODEL"]
    if as_json:
        show.print_json(
            {
                "data": name,
                "folder": str(folder / data.folder),
                "files": [asdict(file) for file in done],
                "note": data.note or None,
                "by_hand": [{**asdict(entry), "put": _place(entry, folder)} for entry in data.by_hand],
                "next": next_steps,
            }
        )
        return
    unverified = sum(not file.verified for file in done)
    result = "all verified" if not unverified else f"{unverified} not verified: no published checksum"
    place = show.plain(folder / data.folder)
    show.say(f"[bold]{data.name}[/]: {len(done)} files in [bold]{place}[/], {result}")
    if data.note:
        show.say(f"[yellow]note:[/] {show.plain(data.note)}")
    for entry in data.by_hand:
        show.say(f"to download by hand: {entry.what}: {entry.page}")
        show.say(f"  {show.plain(_place(entry, folder))}")
    show.say("next:")
    for step in next_steps:
        show.say(f"  {show.plain(step)}")


def _place(entry: ByHand, folder: Path) -> str:
    places = " and ".join(str(folder / inner) for inner in entry.put)
    return f"put into {places}" if places else "BundleMage does not read it"


def _list(as_json: bool) -> None:
    from bundlemage.downloads.public_data import PUBLIC_DATA

    if as_json:
        listed = []
        for data in PUBLIC_DATA.values():
            files = [
                {"name": file.name, **asdict(file), "verifiable": bool(file.sha256)} for file in data.files
            ]
            listed.append({**asdict(data), "files": files})
        show.print_json({"data": listed})
        return
    table = show.table("Public data: bundlemage data get NAME", "name", "what", ">to fetch", "checksums")
    for data in PUBLIC_DATA.values():
        size = sum(file.size or file.about or 0 for file in data.files)
        known = sum(file.sha256 is not None for file in data.files)
        table.add_row(
            data.name,
            f"{data.title}\n[dim]{data.sizes}[/]",
            f"{len(data.files)} files\n{size / 1e6:.1f} MB",
            f"{known} of {len(data.files)}",
        )
    show.out.print(table)
    for data in PUBLIC_DATA.values():
        show.say(f"[bold]{data.name}[/]: {data.publication}")
        show.say(f"  from {' and '.join(data.pages)}")
        if data.note:
            show.say(f"  note: {data.note}")
        for entry in data.by_hand:
            show.say(f"  to download by hand: {entry.what}: {entry.page}")


add(app, check, ingest, stats, sample, get)
