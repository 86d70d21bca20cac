"""`bundlemage evaluate`: a saved model on the test cases of its data."""

from __future__ import annotations

from bundlemage.cli.options import AsJson, Device, Location, ModelFolder, Tables, key_values


def evaluate(
    folder: ModelFolder,
    location: Location = "sample",
    table: Tables = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the model in DIR on what was held out of PATH when it was trained."""
    from bundlemage.cli import show
    from bundlemage.cli.train import evaluate_beside_popularity
    from bundlemage.data.load import read
    from bundlemage.recommender import Recommender

    with show.notes.status("loading and evaluating"):
        recommender = Recommender.load(folder, device=device)
        source = read(location, key_values(table, "--table"))
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
    show.out.print(f"{show.plain(split.dataset)}, protocol {split.protocol}")
    show.out.print(show.evaluations(rows))
    show.caveats(split.dataset)
