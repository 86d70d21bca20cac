"""One measurement in a process of its own: `python -m benchmarks.worker ORDER ANSWER`, both JSON files."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.setting import Setting, Skipped, peak_bytes


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """The figures, or why there are none."""
    setting = Setting.from_json(order["setting"])
    module, function = order["function"].split(":")
    try:
        with _threads(setting.threads):
            measure = getattr(import_module(f"benchmarks.{module}"), function)
            figures = measure(setting, *order["sizes"])
    except Skipped as reason:
        return {"status": "skipped", "reason": str(reason)}
    except Exception as error:  # whatever is wrong with one measurement, the others still run
        traceback.print_exc()
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    found = [figure.to_json() for figure in figures]
    return {"status": "measured", "figures": found, "peak_bytes": peak_bytes()}


if __name__ == "__main__":
    written = answer(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(written), encoding="utf-8")
