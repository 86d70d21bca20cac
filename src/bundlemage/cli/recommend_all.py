"""`bundlemage recommend --all`: the answers for every user of a shop, as one Parquet file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bundlemage.cli import show
from bundlemage.errors import ConfigError
from bundlemage.training.progress import SECONDS_BETWEEN_LINES

if TYPE_CHECKING:
    from bundlemage.filters import Filter
    from bundlemage.recommender import Recommender


def check_replaceable(file: Path, *, overwrite: bool) -> None:
    """Known before the work: that the file can be written, and that nothing is lost which was to stay."""
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file in it, e.g. {file / 'answers.parquet'}")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(f"{file} cannot be written: no permission to write in {file.parent.resolve()}")
    if not file.exists():
        return
    if not overwrite:
        raise ConfigError(f"{file} exists already: add --overwrite to replace it, or choose another file")
    with file.open("rb") as opened:
        if opened.read(4) not in (b"PAR1", b""):
            raise ConfigError(
                f"{file} is not a Parquet file, so --overwrite does not replace it: choose another file"
            )


def recommend_all(
    model: Recommender, k: int, where: Filter | None, include_owned: bool, file: Path
) -> dict[str, Any]:
    """Write the file, showing how far it is; what was done, for programs."""
    from bundlemage.bulk import write_parquet

    began = time.monotonic()
    batches = model.recommend_all(k, where=where, include_owned=include_owned)
    users = len(model.dataset.users)
    rows = write_parquet(_watched(batches, users, show.notes), file)
    seconds = time.monotonic() - began
    return {
        "users": users,
        "rows": rows,
        "seconds": round(seconds, 3),
        "users_per_second": round(users / seconds, 1),
        "file": str(file),
    }


def _watched(batches: Iterator[Any], users: int, console: Console) -> Iterator[Any]:
    """The same batches; a bar in a terminal, a line now and then elsewhere."""
    began = last_line = time.monotonic()
    done = 0
    with Progress(
        TextColumn("recommending"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("users, {task.fields[speed]}/s, left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=users, speed="…")
        for batch in batches:
            yield batch
            done += len(batch.column("user_id").dictionary)  # also users who got no answer
            now = time.monotonic()
            speed = done / max(now - began, 1e-9)
            bar.update(task, completed=done, speed=f"{speed:,.0f}")
            if not console.is_terminal and now - last_line >= SECONDS_BETWEEN_LINES:
                last_line = now
                console.print(
                    f"{done:,} of {users:,} users, {speed:,.0f} a second, "
                    f"{(users - done) / speed:,.0f} s left"
                )
