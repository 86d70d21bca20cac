"""The fenced blocks of a page, and how they are run.

The words after the language say what is expected of a block:
`no-run` is shown only, `exit=2` ends with that code, `same` prints every line shown (but for `…`), and
`same=PATTERN` prints at least those of the lines shown in which the pattern is found. `file=PATH` is not run
but written to that file, for the blocks after it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
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
        return "no-run" not in self.marks and "DATA" not in self.text

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


def run_console(block: Block, folder: Path) -> str:
    """Run the commands of a block; what they print on either stream, as in a terminal of 80 columns."""
    programs = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": programs + os.pathsep + os.environ["PATH"], "COLUMNS": "80"}
    printed = []
    for command in block.commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == block.exit_code, f"{block.place}: $ {command}\n{done.stdout}"
        printed.append(done.stdout)
    return "".join(printed)


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run a block in the current folder; what it defines is there for the page's next one."""
    exec(compile(block.text, block.place, "exec"), names)
