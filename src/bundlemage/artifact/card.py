"""The model card of a saved model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bundlemage.data.dataset import BundleDataset
from bundlemage.training.assumed_sales import AssumedSales
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, kept


def model_card(
    title: str,
    config: dict[str, Any],
    dataset: BundleDataset,
    metrics: dict[str, Any],
    history: Sequence[EpochRecord],
    assumed: AssumedSales | None = None,
) -> str:
    """Returns the card as Markdown: the model, its training data, its test metrics, its settings, its use."""
    settings = "\n".join(f"| `{key}` | {value} |" for key, value in sorted(config["settings"].items()))
    notes = "".join(f"\n> {note}\n" for note in dataset.notes)
    return f"""# {title} trained on {dataset.name}

Recommends this shop's bundles to a user and completes partial bundles. The shop has
{len(dataset.users):,} users, {len(dataset.bundles):,} bundles and {len(dataset.items):,} items
({dataset.user_bundle.nnz:,} user-bundle, {dataset.user_item.nnz:,} user-item and
{dataset.bundle_item.nnz:,} bundle-item pairs). The protocol `{config["protocol"]}`
with seed {config["split"]["seed"]} divided the pairs into training and held-out pairs.
{notes}
## How good it is
{_metrics(metrics)}
{_training(history)}{"" if assumed is None else f"{chr(10)}{assumed}{chr(10)}"}
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

This folder also contains the purchase histories of the training users: protect it as you protect those.
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
    return "\n\n".join(tables) or "It was not evaluated: no test cases were held out."


def _training(history: Sequence[EpochRecord]) -> str:
    records = kept(history)
    if not records:
        return ""
    if len(records) == 1:
        chosen = f"the weights are those of epoch {_epoch(records[0])}"
    else:
        each = "; ".join(f"of member {record.member} epoch {_epoch(record)}" for record in records)
        chosen = f"it is the mean of {len(records)} members, and the weights are those {each}"
    return f"\nTrained for {len(history)} epochs; {chosen}.\n"


def _epoch(record: EpochRecord) -> str:
    value = record.validation.get(SELECTION_METRIC)
    return f"{record.epoch}" + ("" if value is None else f" (validation {SELECTION_METRIC} {value:.4f})")
