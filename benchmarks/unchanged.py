"""Whether data with ids alone gives the same results as in another checkout, in the same time.

`python -m benchmarks.unchanged --source BEFORE` trains the same model in both checkouts, in turns. The data
has no times, weights or catalogue. It compares weights and answers byte by byte, and the processor time. Exit
code 1 if a byte differs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.setting import ROOT

WORK = """
import hashlib, json, sys, time
from dataclasses import replace
import numpy as np, torch
from bundlemage import Recommender, read
from bundlemage.data.splits import SplitPlan

data, epochs, dim, users = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
began = time.process_time()
source = read(data)
dataset = replace(source.dataset, catalogue=None)
split = source.ready or SplitPlan("paper").divide(dataset)
parts = {name: replace(getattr(split, name), catalogue=None) for name in ("dataset", "train")}
split = replace(split, **parts)
seconds = {"read and split": time.process_time() - began}
began = time.process_time()
model = Recommender("bundlemage", epochs=epochs, patience=epochs, embedding_dim=dim, device="cpu")
model.fit(split, progress=False, calibrate=False)
seconds["train"] = time.process_time() - began
names = [dataset.users[n] for n in range(min(users, len(dataset.users)))]
began = time.process_time()
answers = [[(each.id, each.score) for each in model.recommend(name, k=10)] for name in names]
seconds["answer"] = time.process_time() - began
began = time.process_time()
metrics = model.evaluate(split).to_json()
seconds["evaluate"] = time.process_time() - began
digest = hashlib.sha256()
for name, tensor in sorted(model.model.state_dict().items()):
    digest.update(name.encode() + tensor.numpy().tobytes())
figures = {task: {name: metrics[task][name] for name in ("ndcg@5", "recall@20")}
           for task in ("matching", "generation") if metrics[task]}
print(json.dumps({"seconds": seconds, "same": {
    "data": dataset.fingerprint(), "split": split.key, "weights": digest.hexdigest(),
    "answers": hashlib.sha256(json.dumps(answers).encode()).hexdigest(), "figures": json.dumps(figures)}}))
"""

app = typer.Typer(add_completion=False)


@app.command()
def main(
    source: Annotated[Path, typer.Option(help="The other checkout.")],
    data: Annotated[str, typer.Option(help="The data to train on.")] = "sample",
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    dim: Annotated[int, typer.Option(min=2, help="embedding_dim")] = 64,
    users: Annotated[int, typer.Option(min=1, help="Recommendations are asked for so many users.")] = 500,
    repeat: Annotated[int, typer.Option(min=1, help="How often each checkout runs.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything here, too.")] = None,
) -> None:
    """Train and ask in both checkouts, in turns, and compare."""
    console = Console()
    if not (source / "src" / "bundlemage").is_dir():
        raise typer.BadParameter(f"--source: {source} is no checkout; it has no src/bundlemage")
    checkouts = (source.resolve(), ROOT)
    runs: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    with console.status("running"):
        for number in range(repeat):
            # The order changes, so that a slow time of the machine hits both alike.
            for place in (0, 1) if number % 2 == 0 else (1, 0):
                runs[place].append(_run(checkouts[place], [data, epochs, dim, users]))
    before, here = runs
    table = Table(title=f"{data}: this checkout and the other one, {repeat} runs each")
    for title in ("what", "equal", "other, s", "this, s", "median ratio"):
        table.add_column(title, justify="left" if title in ("what", "equal") else "right")
    same = {name: all(run["same"][name] == text for run in before + here)
            for name, text in before[0]["same"].items()}  # fmt: skip
    for name, is_same in same.items():
        table.add_row(name, "yes" if is_same else "[red]NO[/]", "", "", "")
    ratios = {}
    for name in before[0]["seconds"]:
        pairs = [
            (each["seconds"][name], other["seconds"][name]) for each, other in zip(before, here, strict=True)
        ]
        ratios[name] = statistics.median(new / old for old, new in pairs)
        old, new = (statistics.median(times) for times in zip(*pairs, strict=True))
        table.add_row(name, "", f"{old:.3f}", f"{new:.3f}", f"{ratios[name]:.3f}")
    console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps({"same": same, "ratios": ratios, "runs": [before, here]}, indent=2))
    if not all(same.values()):
        raise typer.Exit(1)


def _run(checkout: Path, arguments: list[Any]) -> dict[str, Any]:
    """Returns what one process with the code of a checkout has printed."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORK, *map(str, arguments)]
    ran = subprocess.run(command, env=environment, cwd=checkout, check=False, capture_output=True, text=True)
    if ran.returncode:
        raise typer.BadParameter(
            f"--source or --data: the run in {checkout} failed: {ran.stderr.strip()[-2000:]}"
        )
    printed: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return printed


if __name__ == "__main__":
    app()
