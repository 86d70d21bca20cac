"""A campaign on disk, so that it can be cut off at any moment and go on as if it had not been.

`plan.json` says what is done and how, `parts/part-00000.parquet` and so on hold what is shown to whom, and
`campaign.json` is there when all of it is done. No file is changed in place: each is written beside its name,
flushed to the disk and renamed. `tallies/` holds, until the end, what parts do not tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.campaigns.settings import Format
from bundlemage.data.folders import write_whole
from bundlemage.errors import CheckpointError, ConfigError, differences

SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("rank", pa.int32()),
        ("bundle_id", pa.string()),
        ("chance", pa.float32()),
        ("value", pa.float64()),
        ("price", pa.float64()),
    ]
)


class CampaignFolder:
    """Where a campaign is written."""

    def __init__(self, path: Path, form: Format) -> None:
        self.path, self.form = path, form
        self.parts, self.tallies = path / "parts", path / "tallies"

    def open(self, *, resume: bool) -> dict[str, Any] | None:
        """The plan of a campaign that was cut off; None: there is none, and the folder is ready."""
        plan = self.path / "plan.json"
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; name a folder for the campaign")
        if plan.exists() and not resume:
            raise ConfigError(
                f"{self.path} holds a campaign already: add --resume (resume=True) to go on with it, or "
                "choose another folder"
            )
        if plan.exists():
            return _read(plan)
        others = [file for file in self.path.rglob("*") if file.is_file() and not _temporary(file)]
        if others:
            raise ConfigError(
                f"{self.path} holds other files, such as {others[0].name}; choose a folder of its own for "
                "the campaign"
            )
        self.parts.mkdir(parents=True, exist_ok=True)
        self.tallies.mkdir(exist_ok=True)
        return None

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        write_whole(self.path / "plan.json", _json(plan))

    def write_part(self, number: int, rows: pa.Table, tally: Mapping[str, Any]) -> None:
        """The tally first: so a part is never without one."""
        write_whole(self._tally(number), _json(tally))
        if self.form == "jsonl":
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows.to_pylist())
            write_whole(self.part(number), "".join(lines).encode())
            return
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        write_whole(self.part(number), sink.getvalue().to_pybytes())

    def part(self, number: int) -> Path:
        return self.parts / f"part-{number:05d}.{self.form}"

    def _tally(self, number: int) -> Path:
        return self.tallies / f"part-{number:05d}.json"

    def parts_done(self) -> int:
        found = {file.name for file in self.parts.glob(f"part-*.{self.form}")}
        count = len(found)
        missing = [name for name in (self.part(number).name for number in range(count)) if name not in found]
        if missing:
            raise CheckpointError(
                f"{self.parts} lacks {missing[0]} but holds later parts: somebody took it away. Begin the "
                "campaign anew in another folder"
            )
        return count

    def read_part(self, number: int) -> pa.Table:
        """The bundles and chances of a part."""
        file = self.part(number)
        try:
            if self.form == "jsonl":
                rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
                return pa.Table.from_pylist(rows, SCHEMA)
            return pq.read_table(file, schema=SCHEMA)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise CheckpointError(
                f"{file} cannot be read ({error}). Begin the campaign anew in another folder"
            ) from None

    def read_tally(self, number: int) -> dict[str, Any]:
        return _read(self._tally(number))

    def summary(self) -> dict[str, Any] | None:
        file = self.path / "campaign.json"
        return _read(file) if file.exists() else None

    def finish(self, summary: Mapping[str, Any]) -> None:
        write_whole(self.path / "campaign.json", _json(summary))
        self.tidy()

    def tidy(self) -> None:
        """Remove what served only to go on."""
        for file in [*self.path.rglob(".*.tmp"), *self.tallies.glob("part-*.json")]:
            file.unlink(missing_ok=True)
        if self.tallies.is_dir():
            self.tallies.rmdir()


def check_same(folder: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings or another model than the campaign began with."""
    different = differences(was["settings"], now["settings"])
    different += differences(was["fingerprints"], now["fingerprints"], now["fingerprints"])
    if different:
        raise ConfigError(
            f"{folder} holds another campaign: {'; '.join(different)}. Go on as it was begun, or choose "
            "another folder"
        )


def _temporary(file: Path) -> bool:
    return file.name.startswith(".") and file.name.endswith(".tmp")


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()


def _read(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}). Begin the campaign anew in another folder"
        ) from None
    return found
