"""Runs measurements, each in a fresh process, so that cold starts and peak memory are what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Growth, Outcome, grown, medians
from benchmarks.measurements import Measurement
from benchmarks.setting import ROOT, Setting
from benchmarks.worker import answer

Say = Callable[[str], None]
BOUNDED = ("training", "peak memory")
"""What must grow no faster than linearly."""


class NoFiguresError(Exception):
    """A process ended without figures: `failed`, or `skipped`."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def run(
    measurement: Measurement, setting: Setting, repeat: int, say: Say, *, in_process: bool = False
) -> Outcome:
    """All sizes and repetitions of a measurement. It never raises for what goes wrong inside.

    `in_process` is for tests, which have no time to start many, and for profilers.
    """
    began = time.perf_counter()
    sizes = measurement.sizes(setting.tiny)
    if measurement.threads is not None:
        setting = replace(setting, threads=measurement.threads)
    at_sizes: list[list[Figure]] = []
    runs: list[dict[str, float]] = []
    peak = 0
    size: int | None = None
    try:
        for size in sizes or (None,):
            figures = []
            for number in range(repeat):
                say(_label(measurement, size, number, repeat))
                found = _answer(_order(measurement, setting, size), setting, say, in_process)
                figures.append([Figure.from_json(figure) for figure in found["figures"]])
                peak = max(peak, found["peak_bytes"])
            runs += [{figure.name: figure.value for figure in each} for each in figures]
            at_sizes.append(medians(figures))
    except NoFiguresError as error:
        return Outcome(
            measurement.name,
            measurement.title,
            "skipped" if error.status == "skipped" else "failed",
            reason=str(error) if size is None else f"at {size:,}: {error}",
            seconds=round(time.perf_counter() - began, 2),
        )
    kept: list[Figure] | list[Growth] = at_sizes[0]
    if sizes:
        kept = grown(sizes, at_sizes, () if setting.tiny else BOUNDED)
    return Outcome(
        measurement.name,
        measurement.title,
        "measured",
        kept,
        seconds=round(time.perf_counter() - began, 2),
        peak_bytes=peak,
        runs=runs if repeat > 1 else (),
    )


def _label(measurement: Measurement, size: int | None, number: int, repeat: int) -> str:
    at = "" if size is None else f" at {size:,}"
    return f"{measurement.name}{at}" + (f", run {number + 1} of {repeat}" if repeat > 1 else "")


def _order(measurement: Measurement, setting: Setting, size: int | None) -> dict[str, Any]:
    started = replace(setting, started=time.time())
    sizes = [] if size is None else [size]
    return {"function": measurement.function, "setting": started.to_json(), "sizes": sizes}


def _answer(order: dict[str, Any], setting: Setting, say: Say, in_process: bool) -> dict[str, Any]:
    """What a worker found, or `NoFiguresError`."""
    found = answer(order) if in_process else _in_a_process(order, setting, say)
    if found["status"] != "measured":
        raise NoFiguresError(found["status"], found["reason"])
    return found


def _in_a_process(order: dict[str, Any], setting: Setting, say: Say) -> dict[str, Any]:
    asked, answered, printed = (Path(setting.scratch) / name for name in ("order", "answer", "printed"))
    answered.unlink(missing_ok=True)
    asked.write_text(json.dumps(order), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.worker", str(asked), str(answered)]
    with printed.open("wb") as sink:
        ended = subprocess.run(command, env=_environment(setting), stdout=sink, stderr=sink, check=False)
    said = printed.read_text(encoding="utf-8", errors="replace").strip()
    if not answered.exists():
        code = ended.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return {"status": "failed", "reason": ": ".join([f"its process {how}", *said.splitlines()[-1:]])}
    found: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    if found["status"] == "failed":
        say(said)
    return found


def _environment(setting: Setting) -> dict[str, str]:
    """This process's own, with as many threads as asked for, and with all that is importable here."""
    paths = [str(ROOT), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    if setting.threads is not None:
        # Libraries read it when they start, which is before anyone could call a function of theirs.
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(setting.threads))
    return environment
