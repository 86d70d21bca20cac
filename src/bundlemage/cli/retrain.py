"""`bundlemage retrain`: the serving model trained anew on what the live service has learned of the shop."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli.options import AsJson, settings
from bundlemage.cli.serve import Database, check_extra, database_url, open_store

if TYPE_CHECKING:
    from bundlemage.retraining.retrain import Retrained
    from bundlemage.training.history import Observer


def retrain(
    db: Database = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A hyperparameter other than the serving model's, e.g. embedding_dim=64. Repeatable.",
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="The most passes over the data.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Everything random in training and in holding out follows from it.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = None,
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where new models go; beside the serving one if not said.", show_default=False
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="By how much nDCG@10 may be lower than the serving model's.")
    ] = 0.0,
    force: Annotated[
        bool,
        typer.Option("--force", help="Publish whatever the comparison says, or without one if need be."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train the serving model anew on what the database holds, and publish it if it is not worse.

    Both models are asked for bundles that neither has learned from. A running service goes over to a
    published model by itself. Safe to run from cron: one at a time, and killed at any moment it leaves the
    old model serving.
    """
    check_extra()
    from bundlemage.cli import show
    from bundlemage.retraining import retrain as retraining

    changed = {
        **settings(setting),
        **{name: value for name, value in (("epochs", epochs), ("device", device)) if value is not None},
    }
    store = open_store(database_url(db, None), must_exist=True)
    with ExitStack() as ending:
        ending.callback(store.close)
        outcome = retraining.retrain(
            store,
            settings=changed,
            models=models,
            force=force,
            tolerance=tolerance,
            seed=seed,
            observers=_observers(ending),
        )
    if as_json:
        show.print_json(_described(outcome, tolerance))
    else:
        _show(outcome)


def _observers(ending: ExitStack) -> list[Observer]:
    """A bar for training, then one for comparing."""
    from bundlemage.cli import show
    from bundlemage.data.splits import Split
    from bundlemage.retraining.retrain import RetrainingObserver
    from bundlemage.training.progress import ProgressBar

    class Comparing(RetrainingObserver):
        bar: Any = None

        def on_split(self, split: Split, serving: str) -> None:
            show.notes.print(show.described(split.dataset), soft_wrap=True)
            asked = len(split.test) if split.test else 0
            compared = (
                f"{asked:,} users have a bundle that is new to the serving model {serving}, to compare by"
                if asked
                else f"nothing is compared with the serving model {serving}"
            )
            show.notes.print(
                f"{compared}; learning from {split.train.user_bundle.nnz:,} user-bundle pairs",
                soft_wrap=True,
            )

        def on_compared(self, done: int, total: int) -> None:
            if self.bar is None:  # only now: a terminal has one bar at a time
                self.bar = ending.enter_context(show.counting("comparing"))
            self.bar(done, total)

    return [ProgressBar(show.notes), Comparing()]


def _show(outcome: Retrained) -> None:
    from bundlemage.cli import show
    from bundlemage.evaluation.results import Evaluation
    from bundlemage.retraining.comparing import DECISIVE

    found = outcome.comparison
    if found is not None:
        rows = [
            Evaluation(name, "store", "retrain", metrics, found.cases, None, 0)
            for name, metrics in (("serving", found.serving), ("new", found.candidate))
        ]
        show.out.print(show.evaluations(rows))
        show.out.print(
            f"{DECISIVE} differs by {found.difference:+.4f}, with a standard error of "
            f"{found.standard_error:.4f}.",
            soft_wrap=True,
        )
    if outcome.path is not None:
        here = Path.cwd()
        path = outcome.path.relative_to(here) if outcome.path.is_relative_to(here) else outcome.path
        show.out.print(
            f"[bold]Published[/] {outcome.version} as {show.plain(path)}: {outcome.reason}.\n"
            "A running service goes over to it with its next questions.",
            soft_wrap=True,
        )
    else:
        show.out.print(
            f"[bold]Not published[/], {outcome.serving} goes on serving: {outcome.reason}.", soft_wrap=True
        )


def _described(outcome: Retrained, tolerance: float) -> dict[str, Any]:
    from bundlemage.retraining.comparing import DECISIVE

    found, training = outcome.comparison, outcome.training
    return {
        "published": outcome.published,
        "reason": outcome.reason,
        "serving": outcome.serving,
        "version": outcome.version,
        "path": None if outcome.path is None else str(outcome.path),
        "cases": outcome.cases,
        "decided_by": DECISIVE,
        "tolerance": tolerance,
        "comparison": None if found is None else vars(found),
        "epochs": len(training.history) if training else 0,
        "seconds": round(training.seconds, 3) if training else 0.0,
        "device": training.device if training else None,
        "test": [row.to_json() for row in outcome.test],
    }
