"""`bundlemage models`: what there is to train and compare."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from bundlemage.cli import show
from bundlemage.cli.options import AsJson


def models(name: str | None = None, as_json: AsJson = False) -> None:
    """List every model, those of other installed packages included; or the settings of one.

    "Learns" means by gradient steps; the others count or solve. A model that does not know new users answers
    only for those it was trained on.

    Options:
        name NAME: A model whose settings are to be shown.
    """
    if name is None:
        _list(as_json)
    else:
        _settings(name, as_json)


def _list(as_json: bool) -> None:
    from bundlemage.studies.abilities import every_model

    every = every_model()
    if as_json:
        show.print_json([asdict(facts) for facts in every])
        return
    wide = show.out.width >= 140
    table = Table(title="models", title_justify="left")
    for column in ("name", "matches", "generates", "learns", "new users"):
        table.add_column(column, justify="left" if column == "name" else "center", no_wrap=True)
    table.add_column("publication" if wide else "published", overflow="fold")
    for facts in every:
        if facts.error is not None:
            continue
        yes = (facts.matches, facts.generates, facts.learns, facts.knows_new_users)
        # A plain rule has no publication; its title says what it is.
        shown = facts.publication if wide else facts.publication.rpartition(", ")[2]
        origin = show.plain(shown) or f"[dim]{show.plain(facts.title)}[/]"
        table.add_row(show.plain(facts.name), *("✓" if one else "" for one in yes), origin)
    show.out.print(table)
    for facts in every:
        if facts.error is not None:
            show.out.print(
                f"[red]{show.plain(facts.name)} is left out:[/] {show.plain(facts.error)}", soft_wrap=True
            )
    more = "" if wide else " --json, or a terminal of 140 columns, has the publications in full."
    show.out.print(f"[dim]'bundlemage models NAME' shows the settings of one.{more}[/]")


def _settings(name: str, as_json: bool) -> None:
    from bundlemage.models.registry import model_class

    config_class = model_class(name).config_class
    fields, space = config_class.model_fields, config_class.space
    if as_json:
        schema: dict[str, Any] = config_class.model_json_schema()
        searched = {setting: domain.to_json() for setting, domain in space.items()}
        show.print_json({"name": name, "settings": schema["properties"], "space": searched})
        return
    table = Table(title=f"settings of {show.plain(name)}", title_justify="left")
    table.add_column("setting", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for setting, field in fields.items():
        meaning = " ".join((field.description or "").replace("`", "").split())
        table.add_row(setting, show.plain(field.default), show.plain(meaning))
    show.out.print(table)
    if space:
        show.out.print("What 'bundlemage tune' searches by default:")
    for setting, domain in space.items():
        show.out.print(f"  {setting}={show.plain(domain)}")
