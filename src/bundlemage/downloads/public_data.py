"""The public data sets, which public_data.toml lists, and the download of their files into a folder."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from bundlemage.data.folders import json_bytes, write_whole
from bundlemage.downloads.download import PAUSES, Download, DownloadError, download, sha256_of
from bundlemage.errors import ConfigError
from bundlemage.progress import Progress, in_silence

SOURCES = "SOURCES.json"
"""The name of a file in the data set's folder. It records the origin of each downloaded file."""


@dataclass(frozen=True)
class PublicFile:
    """A file that can be downloaded."""

    url: str
    size: int | None = None
    """The size in bytes of the published file; None: not known."""
    sha256: str | None = None
    about: int | None = None
    """The approximate size in bytes if `size` is not known. It is shown, but not checked."""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class ByHand:
    """Published data that users must download by hand: no URL leads directly to the file."""

    what: str
    page: str
    put: tuple[str, ...]
    """The folders for the file, relative to the data set's folder. Empty if no reader supports the format."""


@dataclass(frozen=True)
class PublicData:
    """A public data set."""

    name: str
    title: str
    sizes: str
    """The numbers of users, bundles and items in the table of the BundleMage paper."""
    publication: str
    pages: tuple[str, ...]
    """The web pages where the files were published."""
    folder: str
    """The name of the folder for the files. It is also the name of their format."""
    files: tuple[PublicFile, ...]
    by_hand: tuple[ByHand, ...] = ()
    note: str = ""

    @property
    def hosts(self) -> frozenset[str]:
        """The only hosts from which files are downloaded."""
        return frozenset(urlsplit(file.url).hostname or "" for file in self.files)


_TOML = (resources.files("bundlemage.downloads") / "public_data.toml").read_text(encoding="utf-8")
PUBLIC_DATA = TypeAdapter(dict[str, PublicData]).validate_python(tomllib.loads(_TOML))


def public_data(name: str) -> PublicData:
    """Returns the data set with that name. If there is none, raises `ConfigError` with the known names."""
    if name not in PUBLIC_DATA:
        known = ", ".join(PUBLIC_DATA)
        raise ConfigError(f"unknown public data {name!r}; the names are: {known} ('list' describes them)")
    return PUBLIC_DATA[name]


@dataclass(frozen=True)
class Fetched:
    """A file of a data set that is now in the folder."""

    file: str
    """The path."""
    state: Literal["fetched", "already there", "kept"]
    """`kept`: the file existed before, and no checksum is known to compare it with."""
    url: str
    size: int
    sha256: str
    verified: bool
    note: str


def fetch(
    data: PublicData,
    folder: Path,
    mirror: str | None = None,
    *,
    overwrite: bool = False,
    say: Callable[[str], object] = lambda _text: None,
    progress: Progress = in_silence,
    pauses: Sequence[float] = PAUSES,
) -> list[Fetched]:
    """Download the files of a data set that are not below `folder` yet. Returns all of its files.

    `mirror` is the base URL of another server. Files that differ from the published ones are downloaded
    again with `overwrite`; without it, `DownloadError` names them. `say` is called with messages for the user
    about each file. `pauses` are the seconds to wait before each further attempt.
    """
    inner = folder / data.folder
    recorded, base = _sources(inner), _mirror_base(mirror)
    listed, problems = [], []
    for file in data.files:
        url = f"{base}/{data.name}/{data.folder}/{file.name}" if base else file.url
        fetched, problem = _existing(file, url, inner / file.name, recorded.get(file.name))
        if overwrite and fetched and not fetched.verified:
            fetched = None
        if problem and not overwrite:
            advice = "It was not changed: move it away, or add --overwrite to replace it"
            problems.append(f"{inner / file.name}: {problem}. {advice}")
        listed.append((file, url, fetched))
    if problems:
        raise DownloadError("\n".join(problems))
    hosts = frozenset({urlsplit(mirror).hostname or ""}) if mirror else data.hosts
    done = []
    for file, url, fetched in listed:
        target = inner / file.name
        if fetched is not None:
            say(f"{target}: {fetched.state} ({fetched.note})")
        else:
            size = f"{file.size:,} bytes" if file.size is not None else f"about {file.about or 0:,} bytes"
            say(f"{target}\n  from     {url}\n  size     {size}")
            say(f"  SHA-256  {file.sha256 or 'not known'}")
            checksum = download(Download(url, target, hosts, file.size, file.sha256), progress, pauses)
            fetched = _fetched(file, url, target, "fetched", checksum)
            _record(data, inner, fetched)
            known = "" if fetched.verified else f"; its SHA-256 is {checksum}"
            say(f"  fetched  {fetched.size:,} bytes, {fetched.note}{known}")
        done.append(fetched)
    return done


def _existing(
    file: PublicFile, url: str, target: Path, recorded: dict[str, Any] | None
) -> tuple[Fetched | None, str | None]:
    """Returns the existing file, or the reason why it is wrong; (None, None) if no file exists."""
    if not target.exists():
        return None, None
    if not target.is_file():
        raise DownloadError(f"{target}: this is not a file, and a file is needed here; move it away")
    checksum = sha256_of(target)
    if file.sha256 and checksum != file.sha256:
        return None, f"this is not the published file: its SHA-256 is {checksum}, expected {file.sha256}"
    if not file.sha256:
        if recorded is None:
            return _fetched(file, url, target, "kept", checksum), None
        if checksum != recorded.get("sha256"):
            return None, "this file was changed after it was downloaded"
        url = str(recorded.get("url", url))
    return _fetched(file, url, target, "already there", checksum), None


def _fetched(
    file: PublicFile,
    url: str,
    target: Path,
    state: Literal["fetched", "already there", "kept"],
    checksum: str,
) -> Fetched:
    note = "verified by its SHA-256" if file.sha256 else "not verified: no published checksum"
    return Fetched(str(target), state, url, target.stat().st_size, checksum, file.sha256 is not None, note)


def _sources(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the records of the files that were downloaded into this folder, by file name."""
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
    """Add a file to SOURCES.json. This is done after each file, so a killed run loses no record."""
    entry = {key: value for key, value in asdict(fetched).items() if key not in ("file", "state")}
    entry["fetched"] = datetime.now(UTC).isoformat(timespec="seconds")
    record = {
        "data": data.name,
        "publication": data.publication,
        "pages": data.pages,
        "files": {**_sources(folder), Path(fetched.file).name: entry},
    }
    write_whole(folder / SOURCES, json_bytes(record))


def _mirror_base(mirror: str | None) -> str:
    if mirror is None:
        return ""
    try:
        address = urlsplit(mirror)
        valid = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        valid = False
    # A password would be written into SOURCES.json, and urllib would not send it.
    if not valid or "@" in address.netloc or address.query or address.fragment:
        raise ConfigError("--mirror: write it as http://HOST/PATH or https://HOST/PATH, without a password")
    return mirror.rstrip("/")
