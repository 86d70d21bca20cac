"""`bundlemage models`: what there is to train and compare."""

from __future__ import annotations

from bundlemage.cli.options import AsJson


def models(as_json: AsJson = False) -> None:
    """List every model, those of other installed packages included.

    "Learns" means by gradient steps; the others count or solve. A model that does not know new users answers
    only for those it was trained on.
    """
    from rich.table import Table

    from bundlemage.cli import show
    from bundlemage.studies.abilities import every_model

    found = every_model()
    if as_json:
        show.print_json([facts.to_json() for facts in found])
        return
    wide = show.out.width >= 140
    table = Table(title="models", title_justify="left")
    for column in ("name", "matches", "generates", "learns", "new users"):
        table.add_column(column, justify="left" if column == "name" else "center", no_wrap=True)
    table.add_column("publication" if wide else "published", overflow="fold")
    for facts in found:
        if facts.error is not None:
            table.add_row(show.plain(facts.name), *[""] * 4, f"[red]{show.plain(facts.error)}[/]")
            continue
        yes = (facts.matches, facts.generates, facts.learns, facts.knows_new_users)
        # A plain rule has no publication; its title says what it is.
        shown = facts.publication if wide else facts.publication.rpartition(", ")[2]
        origin = show.plain(shown) or f"[dim]{show.plain(facts.title)}[/]"
        table.add_row(show.plain(facts.name), *("✓" if one else "" for one in yes), origin)
    show.out.print(table)
    if not wide:
        show.out.print("[dim]--json, or a terminal of 140 columns, has the publications in full.[/]")
