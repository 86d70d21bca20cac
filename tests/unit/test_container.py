"""The container's files, as far as they can be checked without an engine that builds and runs them."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from ruamel.yaml import YAML
from typer.main import get_command
from typer.testing import CliRunner

from bundlemage.cli.main import app as command_line
from bundlemage.service.routes import health

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "compose.yaml"
_VARIABLE = re.compile(r"\$\{(\w+)(:[-?])?([^}]*)\}")


def tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Dockerfile and what follows it, continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    begins = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return found[begins:]


def the_one(name: str) -> str:
    (value,) = (value for found, value in last_stage() if found == name)
    return value


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in the_one("ENV").split())


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    parsed: dict[str, Any] = YAML(typ="safe").load(COMPOSE)
    return parsed


def known_variables() -> dict[str, str]:
    """The environment variables that `bundlemage serve` reads, and the options that they stand for."""
    commands: Any = get_command(command_line)
    serve = commands.commands["serve"].make_context("serve", [], resilient_parsing=True).command
    return {option.envvar: option.opts[0] for option in serve.params if option.envvar}


# The Dockerfile


def test_the_linter_finds_nothing(tmp_path: Path) -> None:
    done = tool("hadolint", DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text().replace("python:3.12-slim\nLABEL", "python\nLABEL"))
    assert "DL3006" in tool("hadolint", worse).stdout  # or it was not looked at


def test_it_does_not_run_as_root() -> None:
    names = [name for name, _ in last_stage()]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", the_one("USER"))
    assert "RUN" not in names[names.index("USER") :]
    assert the_one("USER").partition(":")[0] in next(value for name, value in last_stage() if name == "RUN")


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored: list[str] = []
    sent: list[str] = []
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            (sent if line.startswith("!") else ignored).append(line.lstrip("!"))
    assert ignored[0] == "*", "what is not named must stay out"
    copied = [
        value.split()[:-1] for name, value in instructions() if name == "COPY" and "--from" not in value
    ]
    sources = {source for each in copied for source in each}
    assert sources == set(sent)
    for source in sources:
        assert (ROOT / source).exists()
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored[1:])
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.findall(r'^(?:readme|license-files) = \[?"(\S+?)"', project, re.MULTILINE)
    assert len(needed) == 2
    assert set(needed) <= sources


def test_its_versions_are_the_pinned_ones() -> None:
    (install,) = (value for name, value in instructions() if name == "RUN" and "pip install" in value)
    assert install == "PIP_CONSTRAINT=constraints.txt /opt/bundlemage/bin/pip install '.[serve]'"


def test_its_settings_are_known_to_the_command(compose: dict[str, Any]) -> None:
    given = {name for name in environment() if name.startswith("BUNDLEMAGE_")}
    asked = {name for name in compose["services"]["service"]["environment"] if name.startswith("BUNDLEMAGE_")}
    assert given
    assert given | asked <= set(known_variables())
    assert environment()["BUNDLEMAGE_PORT"] == the_one("EXPOSE")
    assert environment()["BUNDLEMAGE_DB"].startswith(f"sqlite:///{the_one('VOLUME')}/")
    command = json.loads(the_one("CMD"))
    assert command[:2] == ["bundlemage", "serve"]
    assert command[2].startswith(the_one("VOLUME"))


@pytest.fixture
def living() -> Iterator[int]:
    """The port of a server that has the service's health routes."""
    app = FastAPI()
    app.include_router(health.router)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(timeout=20)


def test_its_health_check(living: int) -> None:
    options, _, command = the_one("HEALTHCHECK").partition("CMD ")
    assert "--start-period" in options
    program, *arguments = json.loads(command)
    assert program == "python"

    def check(port: int) -> int:
        variables = {**os.environ, "BUNDLEMAGE_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
        return subprocess.run([sys.executable, *arguments], env=variables, check=False, timeout=30).returncode

    assert check(living) == 0
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert check(nobody.getsockname()[1]) == 1


# The compose file


def test_the_table_of_settings_is_that_of_the_command() -> None:
    defined = {(f"`{option}`", f"`{variable}`") for variable, option in known_variables().items()}
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    assert defined == set(re.findall(r"^\| (`--[\w-]+`) \| (`\w+`) \|", page, re.MULTILINE))


def test_the_compose_file_is_one(tmp_path: Path) -> None:
    done = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)
    assert done.returncode == 0, done.stdout
    worse = tmp_path / "compose.yaml"
    worse.write_text(COMPOSE.read_text().replace("depends_on:", "depend_on:"))
    assert tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", worse).returncode == 1


def test_no_secret_has_a_default() -> None:
    variables = _VARIABLE.findall(COMPOSE.read_text())
    passwords = [(rule, text) for name, rule, text in variables if "PASSWORD" in name]
    assert len(passwords) == 2
    assert all(rule == ":?" and text for rule, text in passwords)
    assert all(rule for _, rule, _ in variables), "every other variable has a default"
    ignored = (ROOT / ".dockerignore").read_text()
    assert "!.env" not in ignored


def test_the_service_is_confined(compose: dict[str, Any]) -> None:
    service = compose["services"]["service"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [volume.partition(":")[2] for volume in service["volumes"]] == [the_one("VOLUME")]
    assert "user" not in service
    (published,) = service["ports"]
    assert _VARIABLE.sub(lambda found: found[3], published) == f"127.0.0.1:8000:{the_one('EXPOSE')}"


def test_the_database_is_reached_by_the_service_alone(compose: dict[str, Any]) -> None:
    service, database = compose["services"]["service"], compose["services"]["database"]
    assert "ports" not in database
    assert database["cap_drop"] == ["ALL"]
    assert database["cap_add"] == ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"]
    assert service["depends_on"] == {"database": {"condition": "service_healthy"}}
    made = database["environment"]
    url = f"postgresql://{made['POSTGRES_USER']}@database:5432/{made['POSTGRES_DB']}"
    assert service["environment"]["BUNDLEMAGE_DB"] == url
    assert service["environment"]["PGPASSWORD"] == made["POSTGRES_PASSWORD"]
    assert f"--dbname={made['POSTGRES_DB']}" in database["healthcheck"]["test"]


def test_both_start_again_and_keep_their_data(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert service["restart"] == "unless-stopped"
        kept = [volume.partition(":")[0] for volume in service["volumes"]]
        assert len(kept) == 1
        assert kept[0] in compose["volumes"]


def test_the_password_may_stand_beside_the_url(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compose file has it."""
    address, password = re.sub(r":[^:@/]+@", "@", postgres_url), re.search(r":([^:@/]+)@", postgres_url)
    assert password
    monkeypatch.setenv("PGPASSWORD", password[1])
    monkeypatch.setenv("BUNDLEMAGE_DB", address)
    assert CliRunner().invoke(command_line, ["keys", "list"]).exit_code == 0


def test_the_commands_at_the_head_of_both_files_work(tmp_path: Path) -> None:
    """The key and the training, run as they stand there but for the place of the data."""
    heads = [
        re.findall(r"^#.*?\b(bundlemage (?:keys|train) .*)$", file.read_text(), re.MULTILINE)
        for file in (DOCKERFILE, COMPOSE)
    ]
    assert [len(found) for found in heads] == [2, 2]
    assert sorted(heads[0]) == sorted(heads[1])
    (keys,) = (command for command in heads[0] if " keys " in command)
    (train,) = (command for command in heads[0] if " train " in command)
    variables = {"BUNDLEMAGE_DB": f"sqlite:///{tmp_path}/bundlemage.db"}
    made = CliRunner().invoke(command_line, keys.split()[1:], env=variables)
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("bm_")
    assert train.split()[1:] == ["train", "/shop", "-o", json.loads(the_one("CMD"))[2]]
