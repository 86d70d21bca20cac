"""`bundlemage evaluate`: a saved model on the test cases of its data."""

from __future__ import annotations

from pathlib import Path

from bundlemage.cli import show
from bundlemage.cli.options import AsJson, Device, EngineOptions, ModelFolder, Tables, key_values
from bundlemage.progress import Shown


def evaluate(
    folder: ModelFolder,
    engine: EngineOptions,
    location: str | None = None,
    table: Tables = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the model in DIR on what was held out of PATH when it was trained.

    Options:
        location PATH: The data that it was trained on.
    """
    from bundlemage.engines.evaluating import EvaluationJob

    job = EvaluationJob(Path(folder), location, key_values(table, "--table"), device=device)
    with Shown(show.notes, "evaluating") as progress:
        progress("loading", 0, 0)
        rows = engine.evaluate(job, progress)
        changed = job.data_changed
    show.warnings(job.source.warnings)
    if changed:
        show.notes.print(
            "[yellow]warning:[/] this is not the data that the model was trained on: its split differs, and "
            "the figures may include cases that the model has seen"
        )
    if as_json:
        show.print_json({"model": folder, "data_changed": changed, "test": [row.to_json() for row in rows]})
        return
    show.out.print(f"{show.described(job.split.dataset)}; protocol {job.split.protocol}", soft_wrap=True)
    show.out.print(show.evaluations(rows))
    show.caveats(job.split.dataset)
