"""The fenced blocks of a page, and how they are run.

The words after the language say what is expected of a block:
`no-run` is shown only, `exit=2` ends with that code, `same` prints every line shown (but for `…`), and
`same=PATTERN` prints at least those of the lines shown in which the pattern is found. `file=PATH` is not run
but written to that file, for the blocks after it. A command that ends in `&` runs until the page is done; a
service that listens on port 8000 listens on a free one here, and is asked there.

Many pages begin with the same training. It runs once for all pages: `Shell` keeps the model and the printed
text, and copies both for the next page with the same command and the same data.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forked import run_forked

ROOT = Path(__file__).resolve().parents[2]
_TRAINING = re.compile(
    r"bundlemage train (?P<data>shop) -o (?P<model>[\w/-]+)(?P<options>(?: --[\w-]+ [\w=.]+)*)(?:\s+#.*)?"
)
_PLAIN = re.compile(r"bundlemage [^|&;<>$`\n]*")
"""A command that needs no shell."""
_FENCE = re.compile(r"^```(\w+)?[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    place: str
    """The page and the line, for messages."""
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def runs(self) -> bool:
        needed = "curl" not in self.text or shutil.which("curl") is not None
        return "no-run" not in self.marks and "DATA" not in self.text and needed

    @property
    def file(self) -> str | None:
        return next((mark[5:] for mark in self.marks if mark.startswith("file=")), None)

    @property
    def exit_code(self) -> int:
        return int(next((mark[5:] for mark in self.marks if mark.startswith("exit=")), "0"))

    @property
    def commands(self) -> list[str]:
        """Lines after `$ `, with their continuations."""
        found: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(line[2:])
            elif found and found[-1].endswith("\\"):
                found[-1] += "\n" + line
        return found

    @property
    def expected_lines(self) -> list[str]:
        """The lines of the shown output that must be printed again."""
        pattern = next((mark.partition("=")[2] for mark in self.marks if mark.startswith("same")), None)
        if pattern is None:
            return []
        inside_command = False
        lines = []
        for line in self.text.splitlines():
            if line.startswith("$ ") or inside_command:
                inside_command = line.endswith("\\")
            elif line.strip() not in ("", "…") and re.search(pattern, line):
                lines.append(line.rstrip())
        return lines


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}",
            match[1],
            tuple(match[2].split()),
            match[3],
        )
        for match in _FENCE.finditer(text)
        if match[1] in languages
    ]


class Shell:
    """Runs the blocks of one page, one after another, in one folder."""

    def __init__(
        self, folder: Path, once: Callable[[str, Callable[[Path], None]], Path] | None = None
    ) -> None:
        """Commands run in `folder`. `once(name, make)` returns a folder that `make` filled for all pages."""
        self.folder = folder
        self._once = once
        self.names: dict[str, Any] = {"__name__": "page"}
        self._in_background: list[subprocess.Popen[str]] = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = str(probe.getsockname()[1])
        programs = str(Path(sys.executable).parent)
        self._environment = {
            **os.environ,
            "PATH": programs + os.pathsep + os.environ["PATH"],
            "COLUMNS": "80",
            "BUNDLEMAGE_PORT": self._port,
        }

    def _here(self, text: str) -> str:
        return text.replace("127.0.0.1:8000", f"127.0.0.1:{self._port}")

    def console(self, block: Block) -> str:
        """Run the commands of a block; what they print on either stream, as in a terminal of 80 columns."""
        printed = []
        for command in block.commands:
            if re.search(r"&\s*(#.*)?$", command):
                arguments = ["bash", "-c", "exec " + re.sub(r"&\s*(#.*)?$", "", self._here(command))]
                started = subprocess.Popen(
                    arguments, cwd=self.folder, env=self._environment, stdout=subprocess.DEVNULL, text=True
                )
                self._in_background.append(started)
                continue
            training = _TRAINING.fullmatch(command)
            if training and self._once and block.exit_code == 0:
                printed.append(self._trained(training, block))
            else:
                printed.append(self._run(self._here(command), block))
        return "".join(printed).replace(f"127.0.0.1:{self._port}", "127.0.0.1:8000")

    def _run(self, command: str, block: Block, folder: Path | None = None) -> str:
        """Run one command and return what it printed."""
        folder = folder or self.folder
        if _PLAIN.fullmatch(command):
            arguments = shlex.split(command, comments=True)[1:]
            done = run_forked(arguments, folder, self._environment, same_output=True)
        else:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=240,
                check=False,
            )
        assert done.returncode == block.exit_code, f"{block.place}: $ {command}\n{done.stdout}"
        return done.stdout

    def _trained(self, training: re.Match[str], block: Block) -> str:
        """Copy the model of a training that another page ran, or run it now. Return what it printed."""
        assert self._once is not None
        data = self.folder / training["data"]
        inputs = hashlib.sha256(training["options"].encode())
        for file in sorted(data.rglob("*")):
            if file.is_file():
                inputs.update(file.read_bytes())

        def train(place: Path) -> None:
            place.mkdir()
            shutil.copytree(data, place / training["data"])
            command = f"bundlemage train {training['data']} -o MODEL{training['options']}"
            (place / "printed.txt").write_text(self._run(command, block, place))

        place = self._once(f"page-{inputs.hexdigest()[:16]}", train)
        shutil.copytree(place / "MODEL", self.folder / training["model"])
        return (place / "printed.txt").read_text().replace("MODEL", training["model"])

    def python(self, block: Block) -> None:
        """Run a block in the current folder; what it defines is there for the page's next one."""
        exec(compile(self._here(block.text), block.place, "exec"), self.names)

    def close(self) -> None:
        """End what still runs in the background."""
        for process in self._in_background:
            process.send_signal(signal.SIGTERM)
        for process in self._in_background:
            process.wait(timeout=30)
