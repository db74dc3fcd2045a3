"""A page of the tutorials, played: its files are written, its Python is asked, its commands are typed.

A block of code is one of these:

- with a title, a file of the reader's folder;
- ``pycon``, a session of Python, which goes on through the page;
- ``console``, commands behind ``$`` with what they print on either stream, where ``...`` stands for anything;
- ``sh``, commands for another machine or another day, and ``text``: neither is played.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', flags=re.DOTALL | re.MULTILINE
)
_RULE = re.compile(r"([-=_])\1{4,}")
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_PROGRAMS = {"pymllm": "-m pymllm", "pytest": "-m pytest -p pymllm.pytest_plugin", "python": ""}


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    language: str
    title: str | None
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of code of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(found["language"], found["title"], found["text"]) for found in _FENCE.finditer(text)]


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a console with what it is said to print."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        end = next(number for number, line in enumerate(lines, 1) if not line.rstrip("\n").endswith("\\"))
        yield "".join(lines[:end]).strip(), "".join(lines[end:])


@dataclass
class Reader:
    """A reader that follows a page, in an empty folder with an empty terminal of 100 columns."""

    folder: Path
    programs: Path
    names: dict[str, object] = field(default_factory=lambda: {"__name__": "__main__"})
    status: int = 0

    def play(self, page: Path) -> int:
        """Do all that a page says, assert that it answers so, and return how many answers were compared."""
        self._lay_programs_out()
        compared = 0
        for block in blocks_of(page):
            if block.title is not None:
                (self.folder / block.title).write_text(block.text, encoding="utf-8")
            elif block.language == "pycon":
                compared += self._ask(page, block.text)
            elif block.language == "console":
                for command, printed in commands_of(block):
                    self._type(command, printed)
                    compared += 1
            else:
                assert block.language in ("sh", "text"), (
                    f"{page.name}: a block of {block.language} that nobody plays"
                )
        return compared

    def _lay_programs_out(self) -> None:
        """Let the names that are typed mean the package under test, wherever it is installed."""
        self.programs.mkdir()
        for name, arguments in _PROGRAMS.items():
            program = self.programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
            program.chmod(0o755)

    def _ask(self, page: Path, session: str) -> int:
        examples = doctest.DocTestParser().get_doctest(session, {}, page.name, str(page), 0)
        examples.globs = self.names
        told: list[str] = []
        done = doctest.DocTestRunner(optionflags=_OPTIONS).run(examples, out=told.append, clear_globs=False)
        assert not done.failed, "".join(told)
        return done.attempted

    def _type(self, command: str, printed: str) -> None:
        script = f"(exit {self.status})\n{command}\n"
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        self.status = done.returncode
        same = doctest.OutputChecker().check_output(_ruled(printed), _ruled(done.stdout), _OPTIONS)
        assert same, f"$ {command}\nthe page has\n{printed}\nand this was printed\n{done.stdout}"

    def _environment(self) -> dict[str, str]:
        """Return the machine's environment without a GPU and without the options of the test run."""
        kept = {
            name: os.environ[name]
            for name in ("HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")
            if name in os.environ
        }
        return {
            **kept,
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "100",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PYMLLM_PROGRESS": "off",  # a slow machine has more to say
        }


def _ruled(text: str) -> str:
    """Cut lines that only fill the width to one length: how long they are follows from what is printed."""
    return _RULE.sub(lambda found: found[1] * 5, text)
