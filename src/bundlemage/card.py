"""The model card that lies beside a saved model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bundlemage.data.dataset import BundleDataset
from bundlemage.training.credit import NewBundleCredit
from bundlemage.training.history import SELECTION_METRIC, EpochRecord


def model_card(
    title: str,
    config: dict[str, Any],
    dataset: BundleDataset,
    metrics: dict[str, Any],
    history: Sequence[EpochRecord],
    credit: NewBundleCredit | None = None,
) -> str:
    """What this model is, what it was trained on, how good it is, and how to use it."""
    settings = "\n".join(f"| `{key}` | {value} |" for key, value in sorted(config["settings"].items()))
    notes = "".join(f"\n> {note}\n" for note in dataset.notes)
    return f"""# {title} trained on {dataset.name}

Recommends this shop's bundles to a user and completes partial bundles. The shop has
{len(dataset.users):,} users, {len(dataset.bundles):,} bundles and {len(dataset.items):,} items
({dataset.user_bundle.nnz:,} user-bundle, {dataset.user_item.nnz:,} user-item and
{dataset.bundle_item.nnz:,} bundle-item pairs). The protocol `{config["protocol"]}`
with seed {config["split"]["seed"]} says which of the pairs were learned from and which were held out.
{notes}
## How good it is
{_metrics(metrics)}
{_training(history)}{"" if credit is None else f"{chr(10)}{credit}{chr(10)}"}
## Settings
| setting | value |
|---|---|
{settings}

## Use
```python
from bundlemage import Recommender

model = Recommender.load("this-folder")
model.recommend({next(iter(dataset.users), "")!r}, k=5)
```

This folder also holds the purchase histories of the users it was trained on: keep it as you keep those.
"""


def _metrics(metrics: dict[str, Any]) -> str:
    tables = []
    for task in ("matching", "generation"):
        rows = [(row["model"], row[task]) for row in metrics.get("test", []) if row.get(task)]
        if rows:
            names = list(rows[0][1])
            lines = [f"| {task} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
            lines += [
                f"| {model} | {' | '.join(f'{values[name]:.4f}' for name in names)} |"
                for model, values in rows
            ]
            tables.append("\n".join(lines))
    return "\n\n".join(tables) or "It was not evaluated: there was nothing held out to test on."


def _training(history: Sequence[EpochRecord]) -> str:
    kept = [record for record in history if record.improved]
    if not kept:
        return ""
    value = kept[-1].validation.get(SELECTION_METRIC)
    chosen = f" (validation {SELECTION_METRIC} {value:.4f})" if value is not None else ""
    return f"\nTrained for {len(history)} epochs; the weights are those of epoch {kept[-1].epoch}{chosen}.\n"
