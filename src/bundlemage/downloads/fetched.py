"""A folder of fetched public data: what is there already, what is not, and where each file came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from bundlemage.data.folders import into_place
from bundlemage.downloads.download import (
    PAUSES,
    Download,
    Watcher,
    download,
    sha256_of,
)
from bundlemage.downloads.public_data import PublicData, PublicFile, hosts
from bundlemage.downloads.web import DownloadError
from bundlemage.errors import ConfigError

SOURCES = "SOURCES.json"
VERIFIED = "verified by its SHA-256"
UNVERIFIED = "not verified: no published checksum"

State = Literal["fetched", "already there", "kept"]


@dataclass(frozen=True)
class Fetched:
    """A file that is there now."""

    file: str
    """The path."""
    state: State
    url: str
    size: int
    sha256: str
    verified: bool
    note: str


@dataclass(frozen=True)
class Order:
    """A file that is to be there, and whether it is."""

    file: PublicFile
    url: str
    target: Path
    there: Fetched | None


class FetchWatcher(Watcher):
    """Told of each file, too. Does nothing; override what is of interest."""

    def on_order(self, order: Order) -> None:
        """This file is next; it may be there already."""

    def on_fetched(self, fetched: Fetched) -> None:
        """This file has come."""


def orders(
    data: PublicData, folder: Path, mirror: str | None = None, *, overwrite: bool = False
) -> list[Order]:
    """Every file of the data below `folder`. Raises if another file stands in the place of one."""
    inner = folder / data.folder
    known = _sources(inner)
    base = _mirror_base(mirror)
    found, different = [], []
    for file in data.files:
        url = f"{base}/{data.name}/{data.folder}/{file.name}" if base else file.url
        target = inner / file.name
        there, fault = _look(file, url, target, known.get(file.name))
        if fault or (overwrite and there and not there.verified):
            there = None
        if fault and not overwrite:
            different.append(fault)
        found.append(Order(file, url, target, there))
    if different:
        raise DownloadError("\n".join(different))
    return found


def fetch(
    data: PublicData,
    folder: Path,
    mirror: str | None = None,
    *,
    overwrite: bool = False,
    watcher: FetchWatcher | None = None,
    pauses: Sequence[float] = PAUSES,
) -> list[Fetched]:
    """Bring the files of the data below `folder`, but those that are there."""
    watcher = watcher or FetchWatcher()
    allowed = frozenset({urlsplit(mirror).hostname or ""}) if mirror else hosts(data)
    done = []
    for order in orders(data, folder, mirror, overwrite=overwrite):
        watcher.on_order(order)
        if order.there:
            done.append(order.there)
            continue
        file = order.file
        found = download(Download(order.url, order.target, allowed, file.size, file.sha256), watcher, pauses)
        fetched = _fetched(file, order.url, order.target, "fetched", found)
        _record(data, order.target.parent, fetched)
        watcher.on_fetched(fetched)
        done.append(fetched)
    return done


def _look(
    file: PublicFile, url: str, target: Path, known: dict[str, Any] | None
) -> tuple[Fetched | None, str | None]:
    """What lies at the target, or why it is not what belongs there."""
    if not target.exists():
        return None, None
    if not target.is_file():
        raise DownloadError(
            f"{target}: something that is no file stands where the file belongs; move it away"
        )
    found = sha256_of(target)
    advice = "It stays as it is: move it away, or give --overwrite to fetch the published one over it"
    if file.sha256:
        if found == file.sha256:
            return _fetched(file, url, target, "already there", found), None
        return None, (
            f"{target}: this is another file than the published one: its SHA-256 is {found}, "
            f"expected was {file.sha256}. {advice}"
        )
    if known is None:
        return _fetched(file, url, target, "kept", found), None
    if found == known.get("sha256"):
        return _fetched(file, str(known.get("url", url)), target, "already there", found), None
    return None, f"{target}: this is not the file that was fetched: it was changed since. {advice}"


def _fetched(file: PublicFile, url: str, target: Path, state: State, found: str) -> Fetched:
    note = VERIFIED if file.sha256 else UNVERIFIED
    return Fetched(str(target), state, url, target.stat().st_size, found, file.sha256 is not None, note)


def _sources(folder: Path) -> dict[str, dict[str, Any]]:
    """The record of what was fetched into this folder, by file name."""
    path = folder / SOURCES
    if not path.exists():
        return {}
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {str(name): dict(entry) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DownloadError(
            f"{path}: this is not the record that 'bundlemage data get' writes; move it away"
        ) from None


def _record(data: PublicData, folder: Path, fetched: Fetched) -> None:
    """Written after each file, so that a run that is killed has recorded what it brought."""
    name = Path(fetched.file).name
    entry = {key: value for key, value in asdict(fetched).items() if key not in ("file", "state")}
    entry["fetched"] = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "data": data.name,
        "publication": data.publication,
        "pages": data.pages,
        "files": {**_sources(folder), name: entry},
    }
    temporary = folder / f"{SOURCES}.tmp"
    temporary.write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    into_place(temporary, folder / SOURCES)


def _mirror_base(mirror: str | None) -> str:
    if mirror is None:
        return ""
    try:
        address = urlsplit(mirror)
        fits = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        fits = False
    # A password would be written into SOURCES.json, and urllib would not send it anyway.
    if not fits or "@" in address.netloc or address.query or address.fragment:
        raise ConfigError("--mirror: write it as http://HOST/PATH or https://HOST/PATH, without a password")
    return mirror.rstrip("/")
