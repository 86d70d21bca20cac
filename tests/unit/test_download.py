"""Fetching, against a real server that misbehaves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundlemage.downloads import download as module
from bundlemage.downloads.download import (
    Download,
    DownloadError,
    check_address,
    download,
)
from bundlemage.downloads.public_data import (
    PUBLIC_DATA,
    SOURCES,
    PublicData,
    PublicFile,
    fetch,
    public_data,
)
from bundlemage.errors import ConfigError
from tests.web_server import Web, serving

CONTENT = bytes(range(256)) * 1000
OTHER = CONTENT[::-1]
SUM = hashlib.sha256(CONTENT).hexdigest()
QUICK = (0.0, 0.0, 0.0, 0.0)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web({"/file": CONTENT})) as found:
        yield found


class Heard:
    def __init__(self) -> None:
        self.bytes: list[tuple[float, float]] = []
        self.pauses: list[str] = []

    def __call__(self, stage: str, done: float, of: float, note: str = "", /) -> None:
        if stage == "bytes":
            self.bytes.append((done, of))
        else:
            self.pauses.append(note)


def wanted(web: Web, folder: Path, path: str = "/file", **known: object) -> Download:
    known = known or {"size": len(CONTENT), "sha256": SUM}
    return Download(web.url + path, folder / "file", frozenset({"127.0.0.1"}), **known)  # type: ignore[arg-type]


def unknown(web: Web, folder: Path) -> Download:
    return wanted(web, folder, size=None)


def break_off(web: Web, order: Download, after: int) -> None:
    """What a killed run leaves."""
    web.cuts = [after]
    with pytest.raises(DownloadError, match="received so far are kept"):
        download(order, pauses=())
    assert order.part.read_bytes() == web.files["/file"][:after]
    assert not order.target.exists()
    web.asked.clear()


def test_a_file_comes_whole_and_leaves_nothing_else(web: Web, tmp_path: Path) -> None:
    heard = Heard()
    assert download(wanted(web, tmp_path), heard) == SUM
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert heard.bytes[0] == (0, len(CONTENT))
    assert heard.bytes[-1] == (len(CONTENT), len(CONTENT))
    assert heard.pauses == []


@pytest.mark.parametrize("make", [wanted, unknown], ids=["known sum", "unknown sum"])
def test_a_later_run_asks_only_for_the_rest(make: object, web: Web, tmp_path: Path) -> None:
    order = make(web, tmp_path)  # type: ignore[operator]
    break_off(web, order, 100_000)
    heard = Heard()
    assert download(order, heard) == SUM
    assert [(asked.range, asked.if_range) for asked in web.asked] == [("bytes=100000-", '"one"')]
    assert heard.bytes[0] == (100_000, len(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_cut_connections_are_gone_on_from_at_once(web: Web, tmp_path: Path) -> None:
    web.cuts = [5_000, 70_000]
    heard = Heard()
    assert download(wanted(web, tmp_path), heard, QUICK) == SUM
    assert [asked.range for asked in web.asked] == [None, "bytes=5000-", "bytes=75000-"]
    assert ["broke after" in reason for reason in heard.pauses] == [True, True]


def test_a_changed_file_is_not_glued_to_the_old_one(web: Web, tmp_path: Path) -> None:
    order = unknown(web, tmp_path)
    break_off(web, order, 100_000)
    web.files["/file"], web.etag = OTHER, '"two"'
    download(order)
    assert order.target.read_bytes() == OTHER
    assert [asked.if_range for asked in web.asked] == ['"one"']


def test_a_server_that_ignores_if_range_is_found_out(web: Web, tmp_path: Path) -> None:
    """It goes on with the rest of a new file, whose ETag is another."""
    order = unknown(web, tmp_path)
    break_off(web, order, 100_000)
    web.files["/file"], web.etag, web.ignores_if_range = OTHER, '"two"', True
    download(order, pauses=QUICK)
    assert order.target.read_bytes() == OTHER
    assert [asked.range for asked in web.asked] == ["bytes=100000-", None]


def test_a_server_without_ranges_starts_over(web: Web, tmp_path: Path) -> None:
    break_off(web, wanted(web, tmp_path), 100_000)
    web.ranges = False
    assert download(wanted(web, tmp_path)) == SUM


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_without_a_version_nothing_is_gone_on_from(etag: str, web: Web, tmp_path: Path) -> None:
    web.etag = etag
    break_off(web, unknown(web, tmp_path), 100_000)
    assert download(unknown(web, tmp_path)) == SUM
    assert [asked.range for asked in web.asked] == [None]


def test_a_range_that_starts_elsewhere_is_refused(web: Web, tmp_path: Path) -> None:
    break_off(web, unknown(web, tmp_path), 100_000)
    web.wrong_range = True
    assert download(unknown(web, tmp_path), pauses=QUICK) == SUM
    assert [asked.range for asked in web.asked] == ["bytes=100000-", None]


def test_killed_between_the_last_byte_and_the_renaming(web: Web, tmp_path: Path) -> None:
    for order, requests in ((wanted(web, tmp_path / "a"), 0), (unknown(web, tmp_path / "b"), 1)):
        break_off(web, order, 100_000)
        order.part.write_bytes(CONTENT)
        assert download(order) == SUM
        assert len(web.asked) == requests  # without a known size the server must say that this was all


def test_a_part_that_is_too_long_is_dropped(web: Web, tmp_path: Path) -> None:
    for order in (wanted(web, tmp_path / "a"), unknown(web, tmp_path / "b")):
        break_off(web, order, 100_000)
        order.part.write_bytes(CONTENT + b"more")
        assert download(order, pauses=QUICK) == SUM
        assert order.target.read_bytes() == CONTENT


def test_a_part_from_another_address_is_dropped(web: Web, tmp_path: Path) -> None:
    break_off(web, unknown(web, tmp_path), 100_000)
    web.files["/elsewhere"] = OTHER
    download(wanted(web, tmp_path, "/elsewhere", size=None))
    assert (tmp_path / "file").read_bytes() == OTHER


def test_a_damaged_part_is_fetched_again_from_the_start(web: Web, tmp_path: Path) -> None:
    order = wanted(web, tmp_path)
    break_off(web, order, 100_000)
    order.part.write_bytes(OTHER[:100_000])
    assert download(order) == SUM
    assert [asked.range for asked in web.asked] == ["bytes=100000-", None]


def test_a_damaged_note_starts_over(web: Web, tmp_path: Path) -> None:
    order = unknown(web, tmp_path)
    break_off(web, order, 100_000)
    order.part_info.write_text("[]")
    assert download(order) == SUM
    assert [asked.range for asked in web.asked] == [None]


def test_wrong_bytes_are_thrown_away_and_the_old_file_stays(web: Web, tmp_path: Path) -> None:
    web.files["/file"] = OTHER
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(DownloadError, match=f"its SHA-256 is {hashlib.sha256(OTHER).hexdigest()}") as caught:
        download(wanted(web, tmp_path))
    assert SUM in str(caught.value)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_another_size_is_refused_before_it_comes(web: Web, tmp_path: Path) -> None:
    web.files["/file"] = CONTENT + b"more"
    with pytest.raises(DownloadError, match="256,004 bytes, the published one has 256,000"):
        download(wanted(web, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_more_than_the_known_size_is_refused_as_it_comes(web: Web, tmp_path: Path) -> None:
    web.files["/file"], web.say_length = CONTENT + b"more", False
    with pytest.raises(DownloadError, match="sent more than the 256,000 bytes"):
        download(wanted(web, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_unknown_length_could_be_cut_short_unseen(web: Web, tmp_path: Path) -> None:
    web.say_length = False
    with pytest.raises(DownloadError, match="does not say how long"):
        download(unknown(web, tmp_path))
    assert download(wanted(web, tmp_path)) == SUM


def test_a_file_in_chunks_says_itself_where_it_ends(web: Web, tmp_path: Path) -> None:
    web.chunked, web.cuts = True, [100_000]
    assert download(unknown(web, tmp_path), pauses=QUICK) == SUM
    assert [asked.range for asked in web.asked] == [None, "bytes=100000-"]


def test_a_file_without_end_is_stopped(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 100_000)
    with pytest.raises(DownloadError, match="more than any published file"):
        download(unknown(web, tmp_path))


def test_a_busy_server_is_asked_again_after_growing_pauses(web: Web, tmp_path: Path) -> None:
    web.answers = [503, 500, 429]
    heard = Heard()
    assert download(wanted(web, tmp_path), heard, (0.0, 0.01, 0.02)) == SUM
    assert heard.pauses == [
        "the server answered 503; trying again in 0 s",
        "the server answered 500; trying again in 0.01 s",
        "the server answered 429; trying again in 0.02 s",
    ]
    assert list(module.PAUSES) == sorted(set(module.PAUSES))


def test_a_server_that_stays_busy_is_given_up(web: Web, tmp_path: Path) -> None:
    web.answers = [503] * 9
    with pytest.raises(DownloadError, match="503; tried 3 times"):
        download(wanted(web, tmp_path), pauses=(0.0, 0.0))
    assert len(web.asked) == 3


def test_a_missing_file_is_named_and_not_asked_for_twice(web: Web, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"/gone: there is no such file \(404\).*may have moved it"):
        download(wanted(web, tmp_path, "/gone"), pauses=QUICK)
    assert len(web.asked) == 1


def test_a_refusal_is_not_asked_for_twice(web: Web, tmp_path: Path) -> None:
    web.answers = [403]
    with pytest.raises(DownloadError, match="answered 403"):
        download(wanted(web, tmp_path), pauses=QUICK)
    assert len(web.asked) == 1


def test_no_server_is_no_network(tmp_path: Path) -> None:
    with serving(Web()) as web:
        order = wanted(web, tmp_path)
    with pytest.raises(DownloadError) as caught:
        download(order)  # with the real pauses: it does not wait
    told = str(caught.value)
    assert told.startswith("no network: 127.0.0.1 could not be reached (Connection refused); ")
    assert told.endswith(f"fetch the file by hand from {order.url} and put it into {tmp_path}")


def test_a_web_page_is_not_a_file(web: Web, tmp_path: Path) -> None:
    web.headers = {"Content-Type": "text/html; charset=utf-8"}
    with pytest.raises(DownloadError, match="sent a web page"):
        download(unknown(web, tmp_path))
    web.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(DownloadError, match="sends the file compressed"):
        download(unknown(web, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_redirect_on_the_same_machine_is_followed_with_its_range(web: Web, tmp_path: Path) -> None:
    web.redirects["/old"] = "/file"
    web.cuts = [100_000]
    assert download(wanted(web, tmp_path, "/old"), pauses=QUICK) == SUM
    assert [(asked.path, asked.range) for asked in web.asked][-1] == ("/file", "bytes=100000-")


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/file", "http://localhost:{}/file"])
def test_a_redirect_to_anywhere_else_is_refused(place: str, web: Web, tmp_path: Path) -> None:
    web.redirects["/old"] = place.format(web.url.rpartition(":")[2])  # the same file is there, too
    with pytest.raises(DownloadError, match=r"which is refused|is not allowed"):
        download(wanted(web, tmp_path, "/old"), pauses=QUICK)
    assert list(tmp_path.iterdir()) == []


def test_https_is_not_left() -> None:
    allowed = frozenset({"a.org"})
    check_address("https://a.org/x", allowed, came_from="https://a.org/y")
    check_address("https://a.org/x", allowed, came_from="http://a.org/y")
    with pytest.raises(DownloadError, match=r"only https from a\.org"):
        check_address("http://a.org/x", allowed, came_from="https://a.org/y")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://a.org/x", "x", "http://[/"]
)
def test_other_addresses_are_never_asked(url: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError):
        download(Download(url, tmp_path / "file", frozenset({"127.0.0.1"})))


def test_two_programs_do_not_mix_their_bytes(web: Web, tmp_path: Path) -> None:
    order = wanted(web, tmp_path)
    with module._locked(tmp_path), pytest.raises(DownloadError, match="another program"):
        download(order)
    assert download(order) == SUM


# A folder of several files.

SMALL = PublicData(
    name="small",
    title="",
    sizes="",
    publication="",
    pages=(),
    folder="bgcn",
    files=(
        PublicFile("https://example.org/known.txt", len(CONTENT), SUM),
        PublicFile("https://example.org/unknown.txt", about=3),
    ),
)
PLACES = {"/small/bgcn/known.txt": CONTENT, "/small/bgcn/unknown.txt": b"abc"}


@pytest.fixture
def mirror() -> Iterator[Web]:
    with serving(Web(dict(PLACES))) as found:
        yield found


def test_what_is_there_and_right_is_not_fetched_again(mirror: Web, tmp_path: Path) -> None:
    first = fetch(SMALL, tmp_path, mirror.url)
    assert [(file.state, file.verified) for file in first] == [("fetched", True), ("fetched", False)]
    mirror.asked.clear()
    again = fetch(SMALL, tmp_path, mirror.url + "/")
    assert [file.state for file in again] == ["already there", "already there"]
    assert mirror.asked == []


def test_the_record_says_what_was_verified(mirror: Web, tmp_path: Path) -> None:
    fetch(SMALL, tmp_path, mirror.url)
    record = json.loads((tmp_path / "bgcn" / SOURCES).read_text())["files"]
    assert record["known.txt"]["verified"]
    entry = record["unknown.txt"]
    assert entry.pop("fetched").startswith("20")
    assert entry == {
        "url": f"{mirror.url}/small/bgcn/unknown.txt",
        "size": 3,
        "sha256": hashlib.sha256(b"abc").hexdigest(),
        "verified": False,
        "note": "not verified: no published checksum",
    }


@pytest.mark.parametrize("name", ["known.txt", "unknown.txt"])
def test_a_changed_file_is_kept_unless_told_otherwise(name: str, mirror: Web, tmp_path: Path) -> None:
    fetch(SMALL, tmp_path, mirror.url)
    (tmp_path / "bgcn" / name).write_bytes(b"mine")
    mirror.asked.clear()
    with pytest.raises(DownloadError, match=f"{name}: this .*--overwrite"):
        fetch(SMALL, tmp_path, mirror.url)
    assert mirror.asked == []
    assert (tmp_path / "bgcn" / name).read_bytes() == b"mine"
    fetch(SMALL, tmp_path, mirror.url, overwrite=True)
    assert (tmp_path / "bgcn" / name).read_bytes() == PLACES[f"/small/bgcn/{name}"]


def test_every_file_that_differs_is_named_before_anything_is_fetched(mirror: Web, tmp_path: Path) -> None:
    (tmp_path / "bgcn").mkdir()
    (tmp_path / "bgcn" / "known.txt").write_bytes(b"mine")
    with pytest.raises(DownloadError, match=r"known\.txt"):
        fetch(SMALL, tmp_path, mirror.url)
    assert mirror.asked == []


def test_a_file_put_there_by_hand_is_kept(mirror: Web, tmp_path: Path) -> None:
    (tmp_path / "bgcn").mkdir()
    (tmp_path / "bgcn" / "known.txt").write_bytes(CONTENT)
    (tmp_path / "bgcn" / "unknown.txt").write_bytes(b"by hand")
    assert [file.state for file in fetch(SMALL, tmp_path, mirror.url)] == ["already there", "kept"]
    assert mirror.asked == []


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "bgcn").mkdir()
    (tmp_path / "bgcn" / SOURCES).write_text("[1]")
    with pytest.raises(DownloadError, match=SOURCES):
        fetch(SMALL, tmp_path)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bgcn" / "known.txt").mkdir(parents=True)
    with pytest.raises(DownloadError, match="this is not a file"):
        fetch(SMALL, tmp_path, overwrite=True)


@pytest.mark.parametrize(
    "text", ["ftp://a.org", "a.org", "http://", "http://u:secret@a.org", "http://a:b/", "http://[/"]
)
def test_a_mirror_is_a_web_address_without_a_password(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--mirror") as caught:
        fetch(SMALL, tmp_path, text)
    assert "secret" not in str(caught.value)


# The catalogue itself.


@pytest.mark.parametrize("data", PUBLIC_DATA.values(), ids=list(PUBLIC_DATA))
def test_the_catalogue_is_sound(data: PublicData) -> None:
    import re

    assert data.hosts == {"raw.githubusercontent.com"}
    names = [file.name for file in data.files]
    assert len(set(names)) == len(names)
    for file in data.files:
        # A branch may change under us; a commit does not.
        assert re.fullmatch(
            r"https://raw\.githubusercontent\.com/[\w-]+/[\w-]+/[0-9a-f]{40}/[\w./-]+", file.url
        )
        assert (file.sha256 is None) == (file.size is None) == (file.about is not None)
        assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)


def test_unknown_data_is_answered_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match="youshu, steam, netease"):
        public_data("amazon")
