"""`bundlemage retrain`: trains the serving model again on what the live service has recorded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from bundlemage.cli import show
from bundlemage.cli.options import AsJson, OtherDevice
from bundlemage.cli.serve import Database, check_extra, database_url, open_store
from bundlemage.cli.texts import only_given, settings
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.data.splits import Split
    from bundlemage.retraining import Retrained


def retrain(
    db: Database = None,
    set_: list[str] | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    device: OtherDevice = None,
    models: Path | None = None,
    tolerance: float = 0.0,
    force: bool = False,
    as_json: AsJson = False,
) -> None:
    """Train the serving model again on the database's data, and publish it if it is not worse.

    Both models are tested on bundles that neither has learned from. A running service switches to a published
    model by itself. The command is safe to run from cron: only one runs at a time, and if it is killed, the
    old model keeps serving.

    Options:
        --set NAME=VALUE: A setting that differs from the serving model's, e.g. embedding_dim=64. Repeatable.
        --epochs: The maximum number of passes over the data.
        --seed: Seed of the training, and of the choice of held-out cases.
        --models DIR: Folder for new models. Default: the folder of the serving model.
        --tolerance: How far the new model's nDCG@10 may be below the serving model's.
        --force: Publish the new model whatever the comparison says, or if nothing can be compared.
    """
    check_extra()
    from bundlemage import retraining

    changed = {**settings(set_), **only_given({"epochs": epochs, "device": device})}
    store = open_store(database_url(db, None), must_exist=True)
    with closing(store), Shown(show.notes) as progress:
        outcome = retraining.retrain(
            store,
            settings=changed,
            models=models,
            force=force,
            tolerance=tolerance,
            seed=seed,
            on_split=_announce,
            progress=progress,
        )
    if not as_json:
        _show(outcome, retraining.DECISIVE)
        return
    training = outcome.training
    show.print_json(
        {
            **{
                name: getattr(outcome, name)
                for name in ("published", "reason", "serving", "version", "cases")
            },
            "path": None if outcome.path is None else str(outcome.path),
            "decided_by": retraining.DECISIVE,
            "tolerance": tolerance,
            "comparison": None if outcome.comparison is None else vars(outcome.comparison),
            "epochs": len(training.history) if training else 0,
            "seconds": round(training.seconds, 3) if training else 0.0,
            "device": training.device if training else None,
            "test": [row.to_json() for row in outcome.test],
        }
    )


def _announce(split: Split, serving: str) -> None:
    """Print the size of the training data and of the comparison."""
    show.note(show.described(split.dataset))
    cases = len(split.test) if split.test else 0
    compared = (
        f"{cases:,} users have a bundle that is new to the serving model {serving}; both models are tested "
        "on these"
        if cases
        else f"nothing is compared with the serving model {serving}"
    )
    show.note(f"{compared}; learning from {split.train.user_bundle.nnz:,} user-bundle pairs")


def _show(outcome: Retrained, decisive: str) -> None:
    from bundlemage.evaluation import Evaluation

    comparison = outcome.comparison
    if comparison is not None:
        rows = [
            Evaluation(name, "store", "retrain", metrics, comparison.cases, None, 0)
            for name, metrics in (("serving", comparison.serving), ("new", comparison.candidate))
        ]
        show.out.print(show.evaluations(rows))
        show.say(
            f"{decisive} differs by {comparison.difference:+.4f}, with a standard error of "
            f"{comparison.standard_error:.4f}."
        )
    if outcome.path is None:
        show.say(f"[bold]Not published[/], {outcome.serving} goes on serving: {outcome.reason}.")
        return
    here = Path.cwd()
    path = outcome.path.relative_to(here) if outcome.path.is_relative_to(here) else outcome.path
    show.say(
        f"[bold]Published[/] {outcome.version} as {show.plain(path)}: {outcome.reason}.\n"
        "A running service switches to it with its next answer."
    )
