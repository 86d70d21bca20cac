"""Every trial of some searches as Markdown: `python -m benchmarks.tuning_log STUDY... > LOG.md`.

A STUDY is a folder that `bundlemage tune` wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def main(studies: Annotated[list[Path], typer.Argument(help="Folders of `bundlemage tune`.")]) -> None:
    """Print a section for each study: what was searched, and each trial, the best first."""
    for folder in studies:
        study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
        trials = [
            json.loads(file.read_text(encoding="utf-8"))
            for file in sorted((folder / "trials").glob("*.json"))
        ]
        typer.echo("\n".join(section(folder.name, study, trials)))


def section(name: str, study: dict[str, Any], trials: list[dict[str, Any]]) -> list[str]:
    """One study as lines of Markdown."""
    ended = {state: sum(trial["state"] == state for trial in trials) for state in ("pruned", "failed")}
    fixed = {**study.get("settings", {}), **study.get("start", {})}
    lines = [
        f"## {name}",
        "",
        f"{len(trials)} trials, {ended['pruned']} stopped early, {ended['failed']} failed. Fixed: "
        + (shown(fixed) or "nothing")
        + ".",
        "",
        "| value | trial | best epoch | settings |",
        "|---|---|---|---|",
    ]
    for trial in sorted(trials, key=lambda trial: -(trial["value"] or 0)):
        value = "failed" if trial["value"] is None else f"{trial['value']:.4f}"
        stopped = " (stopped)" if trial["state"] == "pruned" else ""
        epochs = f"{trial['best_epoch']} of {trial['epochs']}{stopped}"
        lines.append(f"| {value} | {trial['number']} | {epochs} | {shown(trial['settings'])} |")
    return [*lines, ""]


def shown(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {str(value).lower()}"
        for name, value in settings.items()
    )


if __name__ == "__main__":
    typer.run(main)
