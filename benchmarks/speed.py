"""How fast training and answers are, as one table: `python -m benchmarks.speed`."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.figures import Figure, Growth, Outcome, shown
from benchmarks.measurements import MEASUREMENTS, NAMES, Measurement
from benchmarks.running import run
from benchmarks.setting import Setting

WIDTH = 150
"""Of the table where no terminal says how wide it is."""

app = typer.Typer(add_completion=False)


@app.command()
def main(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads; 2 on the CPU (tiny: 1), torch's choice with a GPU."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure this alone; may be given several times.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Say what there is to measure.")] = False,
    tiny: Annotated[bool, typer.Option(help="Sizes for a test: the figures mean nothing.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Youshu's folder; else 'youshu' in BUNDLEMAGE_DATA, or beside the repository."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="For the time to accuracy; else the library's defaults.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Run everything so often, and show medians.")] = 1,
    in_process: Annotated[
        bool,
        typer.Option(help="Start no processes: for tests and profilers; memory and cold start are wrong."),
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything here, too.")] = None,
) -> None:
    """Measure speed and memory, each measurement in a process of its own, and print one table.

    Exit code 1 if a measurement failed. A figure that is not as wanted fails nothing: it is marked.
    """
    if list_them:
        for measurement in MEASUREMENTS:
            typer.echo(f"{measurement.name:10}{measurement.title}")
        return
    from bundlemage.cli.compare import can_be_written
    from bundlemage.errors import BundleMageError
    from bundlemage.training.devices import resolve_device

    chosen = _chosen(only)
    try:
        where = resolve_device(device)
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            can_be_written(json_file)
    except BundleMageError as error:
        raise typer.BadParameter(str(error)) from None
    if threads is None and where.type == "cpu":
        threads = 1 if tiny else 2
    command = shlex.join(["python", "-m", "benchmarks.speed", *sys.argv[1:]])
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="bundlemage-bench-") as scratch:
        setting = Setting(str(where), threads, tiny, str(data) if data else None, recipe, scratch)
        for number, measurement in enumerate(chosen, start=1):
            say = _Progress(f"{number}/{len(chosen)}")
            if measurement.long_on_cpu and where.type == "cpu" and not (only or tiny):
                reason = f"an hour or more on a CPU: name it with --only {measurement.name}"
                outcomes.append(Outcome(measurement.name, measurement.title, "skipped", reason=reason))
                continue
            outcomes.append(run(measurement, setting, repeat, say, in_process=in_process))
            say(f"{measurement.name}: {outcomes[-1].status} in {outcomes[-1].seconds:.1f} s")
    machine = _machine(where, threads)
    _show(outcomes, machine, command, tiny)
    if json_file is not None:
        content = {
            "machine": machine,
            "command": command,
            "tiny": tiny,
            "repeat": repeat,
            "measurements": [outcome.to_json() for outcome in outcomes],
        }
        json_file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(1)


def _chosen(only: list[str] | None) -> list[Measurement]:
    for name in only or ():
        if name not in NAMES:
            raise typer.BadParameter(f"{name!r} is no measurement; they are: {', '.join(NAMES)}")
    return [measurement for measurement in MEASUREMENTS if not only or measurement.name in only]


class _Progress:
    """Lines on stderr with their place in the whole and the time of day."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __call__(self, text: str) -> None:
        print(f"[{self.place}] {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _machine(where: Any, threads: int | None) -> dict[str, Any]:
    import torch

    from bundlemage.studies.cells import device_in_words

    return {
        "cpu": device_in_words(torch.device("cpu")),
        "threads": threads or torch.get_num_threads(),
        "gpu": device_in_words(where) if where.type == "cuda" else None,
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
    }


# ── The table ────────────────────────────────────────────────────────────────────────────────────


def _show(outcomes: list[Outcome], machine: dict[str, Any], command: str, tiny: bool) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    parts = [
        machine["gpu"],
        machine["cpu"],
        f"{machine['threads']} threads used",
        f"torch {machine['torch']}",
    ]
    table = Table(title=" · ".join(part for part in parts if part), caption=command)
    for heading in ("measurement", "figure", "value", "wanted", "note"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for outcome in outcomes:
        _add(table, outcome)
    console.print(table)
    if tiny:
        console.print("Tiny sizes: these figures say only that the bench runs.")


def _add(table: Table, outcome: Outcome) -> None:
    if outcome.status != "measured":
        style = "red" if outcome.status == "failed" else "dim"
        table.add_row(
            outcome.title, outcome.status, "", "", escape(outcome.reason), style=style, end_section=True
        )
        return
    for number, figure in enumerate(outcome.figures):
        verdict = {None: "", True: "  yes", False: "  [red]NO[/red]"}[figure.met]
        last = number == len(outcome.figures) - 1
        title = "" if number else outcome.title
        table.add_row(
            title, *_cells(figure), f"{figure.wanted}{verdict}", escape(_note(figure)), end_section=last
        )


def _cells(figure: Figure | Growth) -> tuple[str, str]:
    values = figure.values if isinstance(figure, Growth) else (figure.value,)
    return figure.name, f"{' → '.join(map(shown, values))} {figure.unit}".strip()


def _note(figure: Figure | Growth) -> str:
    if not isinstance(figure, Growth):
        return figure.note
    sizes = " → ".join(f"{point:,}" for point in figure.points)
    return f"{sizes}; slopes {', '.join(f'{slope:.2f}' for slope in figure.slopes)}"


if __name__ == "__main__":
    app()
