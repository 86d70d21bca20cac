"""A campaign on disk, which continues after a kill as if there had been none.

`plan.json` says what is done and how, `parts/part-00000.parquet` and so on hold which user is shown which
bundles, and `campaign.json` holds the summary as soon as all parts are finished. Until then, `tallies/` holds
what the parts add to the summary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.campaigns.settings import Format
from bundlemage.data.folders import ResumableFolder, json_bytes, write_whole
from bundlemage.errors import CheckpointError

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
SUMMARY = "campaign.json"


class CampaignFolder(ResumableFolder):
    """Where a campaign is written, as Parquet or as lines of JSON."""

    kind = "campaign"
    file = "plan.json"
    others = ("tallies/part-*.json", SUMMARY)
    checksums = frozenset({"model", "catalogue", "users"})

    def __init__(self, path: Path, form: Format) -> None:
        super().__init__(path)
        self.part_name = f"parts/part-{{:05d}}.{form}"
        self.lines = form == "jsonl"

    def begin(self, identity: Mapping[str, Any], **more: Any) -> None:
        (self.path / "tallies").mkdir(parents=True, exist_ok=True)
        super().begin(identity, **more)

    def write_part(self, number: int, rows: pa.Table, tally: Mapping[str, Any]) -> None:
        """Write a part and what it adds to the summary: this first, so that every part has its tally."""
        write_whole(self._tally(number), json_bytes(tally))
        if self.lines:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows.to_pylist())
            write_whole(self.part(number), "".join(lines).encode())
            return
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        write_whole(self.part(number), sink.getvalue().to_pybytes())

    def parts_done(self) -> int:
        """The number of finished parts. They are written in order, so a gap is an error."""
        finished = self.finished_parts()
        for number, file in enumerate(finished):
            if file != self.part(number):
                raise CheckpointError(
                    f"{file.parent} lacks {self.part(number).name} but holds later parts, so it was removed; "
                    f"{self.anew}"
                )
        return len(finished)

    def read_part(self, number: int) -> pa.Table:
        """The rows of a part, with the columns of `SCHEMA`."""
        file = self.part(number)
        try:
            if self.lines:
                rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
                return pa.Table.from_pylist(rows, SCHEMA)
            return pq.read_table(file, schema=SCHEMA)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self.damaged(file, error) from None

    def read_tally(self, number: int) -> dict[str, Any]:
        """What a part adds to the summary."""
        return self.read(self._tally(number))

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished campaign, without what served only to continue it; None if unfinished."""
        if not (self.path / SUMMARY).exists():
            return None
        self._remove_tallies()
        return self.read(self.path / SUMMARY)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary and remove what served only to continue the campaign."""
        write_whole(self.path / SUMMARY, json_bytes(summary))
        self._remove_tallies()

    def _remove_tallies(self) -> None:
        self.tidy()
        tallies = self.path / "tallies"
        for file in tallies.glob("part-*.json"):
            file.unlink(missing_ok=True)
        if tallies.is_dir():
            tallies.rmdir()

    def _tally(self, number: int) -> Path:
        return self.path / f"tallies/part-{number:05d}.json"
