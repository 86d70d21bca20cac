"""`bundlemage evaluate`: a saved model on the test cases of its data."""

from __future__ import annotations

from typing import Annotated

import typer

from bundlemage.cli.options import AsJson, Device, ModelFolder, Tables, key_values
from bundlemage.errors import ConfigError


def evaluate(
    folder: ModelFolder,
    location: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The data that it was trained on.")
    ] = None,
    table: Tables = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the model in DIR on what was held out of PATH when it was trained."""
    from bundlemage.cli import show
    from bundlemage.data.load import SAMPLE, read
    from bundlemage.measure import evaluate_beside_popularity
    from bundlemage.recommender import Recommender

    with show.notes.status("loading and evaluating"):
        recommender = Recommender.load(folder, device=device)
        if location is None and recommender.dataset.name != SAMPLE:
            raise ConfigError(
                f"on what data? This model was trained on {recommender.dataset.name!r}: "
                "name its place, as in 'bundlemage evaluate DIR PATH'"
            )
        source = read(location or SAMPLE, key_values(table, "--table"))
        show.warnings(source.warnings)
        split = recommender.plan.divide(source.dataset, source.ready)
        rows = evaluate_beside_popularity(recommender, split)
        changed = source.dataset.fingerprint() != recommender.dataset.fingerprint()
    if changed:
        show.notes.print(
            "[yellow]warning:[/] the data is not what the model was trained on: its split is another, "
            "and the figures may include what the model has seen"
        )
    if as_json:
        show.print_json({"model": folder, "data_changed": changed, "test": [row.to_json() for row in rows]})
        return
    show.out.print(f"{show.described(split.dataset)}; protocol {split.protocol}", soft_wrap=True)
    show.out.print(show.evaluations(rows))
    show.caveats(split.dataset)
