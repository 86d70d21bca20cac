"""`bundlemage data get`, against a real server."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundlemage.downloads.public_data import PUBLIC_DATA
from tests.cli.run import run, run_json
from tests.published_files import write_bgcn
from tests.real_data import real_data
from tests.waiting import wait_until
from tests.web_server import Web, serving


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def netease(tmp_path: Path) -> Iterator[Web]:
    """A mirror with small files: NetEase's have no published sums, so that any will do."""
    folder = write_bgcn(tmp_path / "published")
    files = {f"/netease/bgcn/{file.name}": file.read_bytes() for file in folder.iterdir()}
    with serving(Web(files)) as web:
        yield web


def test_the_list_names_everything_there_is() -> None:
    for shown in (run("data", "get").stdout, run("data", "get", "list").stdout):
        for data in PUBLIC_DATA.values():
            assert data.name in shown
            assert all(page in shown for page in data.pages)
            assert all(entry.page in shown for entry in data.by_hand)


def test_the_list_for_programs_has_every_address() -> None:
    listed = {data["name"]: data for data in run_json("data", "get")["data"]}
    assert list(listed) == list(PUBLIC_DATA)
    for name, data in PUBLIC_DATA.items():
        assert [file["url"] for file in listed[name]["files"]] == [file.url for file in data.files]
    assert not any(file["verifiable"] for file in listed["netease"]["files"])
    assert all(file["verifiable"] for file in listed["youshu"]["files"])


def test_what_is_fetched_can_be_read(netease: Web, tmp_path: Path) -> None:
    shown = run("data", "get", "netease", "-o", tmp_path / "netease", "--mirror", netease.url).stdout
    folder = tmp_path / "netease" / "bgcn"
    content = (folder / "user_item.txt").read_bytes()
    for text in (
        str(folder / "user_item.txt"),
        f"from     {netease.url}/netease/bgcn/user_item.txt",
        "size     about 12,974,109 bytes",
        "SHA-256  not known",
        f"its SHA-256 is {hashlib.sha256(content).hexdigest()}",
        "6 files",
        "6 not verified: no published checksum",
        "https://github.com/BundleRecommender/BundleMage",
        f"put into {tmp_path / 'netease' / 'authors/mat'}",
        f"bundlemage data check {folder}",
        f"bundlemage train {folder}",
    ):
        assert text in shown
    assert run("data", "check", folder).stdout == "no problem found\n"
    assert sorted(json.loads((folder / "SOURCES.json").read_text())["files"]) == sorted(
        file.name for file in PUBLIC_DATA["netease"].files
    )


def test_programs_get_json_alone_on_stdout(netease: Web, tmp_path: Path) -> None:
    arguments = ("data", "get", "netease", "-o", tmp_path / "to", "--mirror", netease.url)
    found = run_json(*arguments)
    assert {file["state"] for file in found["files"]} == {"fetched"}
    assert found["folder"] == str(tmp_path / "to" / "bgcn")
    assert found["next"][0] == f"bundlemage data check {tmp_path / 'to' / 'bgcn'}"
    assert {file["state"] for file in run_json(*arguments)["files"]} == {"already there"}


def test_the_folder_is_called_after_the_data(
    netease: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("data", "get", "netease", "--mirror", netease.url)
    assert (tmp_path / "netease" / "bgcn" / "bundle_item.txt").exists()


def test_a_busy_server_is_waited_for(netease: Web, tmp_path: Path) -> None:
    netease.answers = [503]
    told = run("data", "get", "netease", "-o", tmp_path / "to", "--mirror", netease.url).stderr
    assert "the server answered 503; trying again in 1 s" in told


def test_wrong_bytes_are_refused(tmp_path: Path) -> None:
    with serving(Web({"/youshu/bgcn/Youshu_data_size.txt": b"8039\t4771\t32771\n"})) as web:
        told = run("data", "get", "youshu", "-o", tmp_path, "--mirror", web.url, code=2).stderr
    assert told.count("error:") == 1
    assert "is not the published file" in told
    assert [path.name for path in (tmp_path / "bgcn").iterdir()] == []


def test_a_missing_file_is_named_and_what_came_stays(tmp_path: Path) -> None:
    with serving(Web({"/youshu/bgcn/Youshu_data_size.txt": b"8039\t4771\t32770\n"})) as web:
        told = run("data", "get", "youshu", "-o", tmp_path, "--mirror", web.url, code=2).stderr
    assert "user_bundle_train.txt: there is no such file (404)" in told
    assert "publisher may have moved it" in told
    assert (tmp_path / "bgcn" / "Youshu_data_size.txt").read_text() == "8039\t4771\t32770\n"


def test_ones_own_file_is_not_overwritten_unasked(netease: Web, tmp_path: Path) -> None:
    arguments = ("data", "get", "netease", "-o", tmp_path, "--mirror", netease.url)
    run(*arguments)
    mine = tmp_path / "bgcn" / "user_item.txt"
    mine.write_text("mine")
    assert "--overwrite" in run(*arguments, code=2).stderr
    assert mine.read_text() == "mine"
    run(*arguments, "--overwrite")
    assert mine.read_text() != "mine"


def test_no_network_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real addresses, through a proxy that is not there: so no test ever asks the network."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.delenv("no_proxy")
        told = run("data", "get", "steam", "-o", tmp_path / "steam", code=2).stderr
    assert told.startswith("error: no network: raw.githubusercontent.com could not be reached")
    first = PUBLIC_DATA["steam"].files[0].url
    assert told.endswith(
        f"fetch the file by hand from {first} and put it into {tmp_path / 'steam' / 'pathak'}\n"
    )


def test_mistakes_are_answered(tmp_path: Path) -> None:
    assert "youshu, steam, netease" in run("data", "get", "amazon", code=2).stderr
    assert "--mirror" in run("data", "get", "youshu", "--mirror", "ftp://a.org", code=2).stderr


def test_killed_in_the_middle_it_goes_on(netease: Web, tmp_path: Path) -> None:
    """A slow server, kill -9, and the same command again."""
    path, content = "/netease/bgcn/bundle_item.txt", b"0\t0\n" * 100_000
    netease.files[path], netease.seconds_per_kilobyte = content, 0.02
    command = [sys.executable, "-m", "bundlemage", "data", "get", "netease", "-o", str(tmp_path / "to")]
    process = subprocess.Popen(
        [*command, "--mirror", netease.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    part = tmp_path / "to" / "bgcn" / "bundle_item.txt.part"
    wait_until(lambda: (part.exists() and part.stat().st_size > 0) or process.poll() is not None, "a part")
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    there = part.stat().st_size
    assert 0 < there < len(content)
    assert not (tmp_path / "to" / "bgcn" / "bundle_item.txt").exists()

    netease.asked.clear()
    netease.seconds_per_kilobyte = 0.0
    found = run_json("data", "get", "netease", "-o", tmp_path / "to", "--mirror", netease.url)
    assert [(asked.path, asked.range) for asked in netease.asked] == [(path, f"bytes={there}-")]
    assert [file["state"] for file in found["files"]] == ["already there"] * 5 + ["fetched"]
    assert (tmp_path / "to" / "bgcn" / "bundle_item.txt").read_bytes() == content
    assert not list((tmp_path / "to" / "bgcn").glob("*.part*"))


@pytest.mark.parametrize("name", ["youshu", "steam"])
def test_the_sums_are_those_of_the_real_files(name: str, tmp_path: Path) -> None:
    data = PUBLIC_DATA[name]
    folder = real_data(f"{name}/{data.folder}")
    files = {f"/{name}/{data.folder}/{file.name}": file.read_bytes() for file in folder.iterdir()}
    with serving(Web(files)) as web:
        found = run_json("data", "get", name, "-o", tmp_path, "--mirror", web.url)
    assert all(file["verified"] and file["state"] == "fetched" for file in found["files"])
    assert run("data", "check", tmp_path / data.folder).stdout == "no problem found\n"
