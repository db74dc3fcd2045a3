"""The pictures of the pages, made from the program's output: python docs/builder/pictures.py.

`tests/repo/test_pages.py` makes them, too, and compares their words with those in ``docs/assets``.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from pymllm.history.files import load_history
from pymllm.report.picture import draw_program

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"
HELD = "held-page.jsonl"  # what verify wrote of the cache in examples/ when its evict did not look at holds
COLUMNS = 92

_TABLE = re.compile(r"^Laws$", re.MULTILINE)  # it and what follows is left out
_VERSIONS = re.compile(r"^pymllm \d.*\n(?:.+\n)+\n", re.MULTILINE)
_TERMINAL = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
role="img"><title>A terminal: pymllm verify finds the bug of a slot allocator</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, monospace; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/>\
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's picture of a terminal without the fonts that it would load from another machine."""


def record_session(folder: Path) -> str:
    """Record a terminal while `verify` finds the bug of the README's slot allocator."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    adapter = re.search(r'^```python title="my_adapter.py"\n(.*?)^```$', readme, re.DOTALL | re.MULTILINE)
    assert adapter is not None
    (folder / "my_adapter.py").write_text(adapter[1], encoding="utf-8")
    shown = ""
    for command in (
        "pymllm verify --adapter my_adapter:MySlots --examples 30",
        "pymllm judge runs/my_adapter-MySlots-X4-0.jsonl",
    ):
        printed = _on_a_terminal(command.split()[1:], folder)
        shown += f"$ {command}\n{_TABLE.split(printed)[0].rstrip()}\n\n"
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True, highlight=False)
    console.print(Text.from_ansi(_VERSIONS.sub("...\n", shown).rstrip()))
    return console.export_svg(
        title="pymllm verify finds the bug of a slot allocator",
        theme=MONOKAI,
        code_format=_TERMINAL,
        unique_id="session",
    )


def _on_a_terminal(arguments: Sequence[str], folder: Path) -> str:
    """Return the output of the program on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [sys.executable, "-m", "pymllm", *arguments],
        cwd=folder,
        env={**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    ):
        os.close(theirs)
        parts = []
        with suppress(OSError):  # how a terminal on Linux says that nobody writes to it any more
            while part := os.read(ours, 65536):
                parts.append(part)
        os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def draw_held_page(folder: Path) -> str:
    """Let `rerun` draw a program that evicts a held page; examples/ has the cache without the bug."""
    for name in ("stranger_adapter.py", "stranger_cache.py"):
        shutil.copy(ROOT / "examples" / name, folder)
    cache = folder / "stranger_cache.py"
    sound = cache.read_text(encoding="utf-8")
    broken = sound.replace(" and not self.holds[it]", "")
    assert broken != sound
    cache.write_text(broken, encoding="utf-8")
    _run(
        ["rerun", str(ASSETS / HELD), "--adapter", "stranger_adapter:StrangerCache", "--picture", "held.svg"],
        folder,
        status=1,
    )
    return (folder / "held.svg").read_text(encoding="utf-8")


CAPACITIES = (2048, 4096, 6144, 8192, 12288)
REQUESTS = 60


def draw_capacities(folder: Path) -> str:
    """Draw which share of its prompt tokens a chat finds again, by the capacity of the cache."""
    capacities = [word for capacity in CAPACITIES for word in ("--capacity", str(capacity))]
    runs = json.loads(_run(["replay", "chat", "--requests", str(REQUESTS), *capacities, "--json"], folder))[
        "runs"
    ]
    rates = [100 * run["token_hit_rate"] for run in runs]
    ceiling = 100 * runs[-1]["ceiling_hit_rate"]
    return "\n".join(_chart(rates, ceiling))


def _chart(rates: Sequence[float], ceiling: float) -> Iterator[str]:
    left, right, top, bottom = 70, 690, 60, 290

    def x(capacity: float) -> float:
        return round(left + (right - left) * capacity / CAPACITIES[-1], 1)

    def y(percent: float) -> float:
        return round(bottom - (bottom - top) * percent / 100, 1)

    title = f"Prompt tokens that a chat of {REQUESTS} requests finds in the cache"
    yield (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 350" width="720" height="350" role="img">'
        f"<title>{title}</title><style>text {{ font: 13px system-ui, sans-serif; fill: #57606a; }}"
        ".head { fill: #1b1f24; font-weight: 600; } .line { stroke: #d5dae0; }</style>"
    )
    yield '<rect width="720" height="350" fill="#fff"/>'
    yield f'<text x="{left - 50}" y="28" class="head">{title}</text>'
    for percent in range(0, 101, 25):
        yield f'<path class="line" d="M{left} {y(percent)}H{right}"/>'
        yield f'<text x="{left - 8}" y="{y(percent) + 4}" text-anchor="end">{percent} %</text>'
    yield f'<path d="M{left} {y(ceiling)}H{right}" stroke="#57606a" stroke-dasharray="5 4"/>'
    yield f'<text x="{left + 6}" y="{y(ceiling) - 6}">an unlimited cache: {ceiling:.1f} %</text>'
    points = " ".join(f"{x(at)},{y(rate)}" for at, rate in zip(CAPACITIES, rates, strict=True))
    yield f'<polyline points="{points}" fill="none" stroke="#0a58ca" stroke-width="2"/>'
    for capacity, rate in zip(CAPACITIES, rates, strict=True):
        place = f'cx="{x(capacity)}" cy="{y(rate)}" r="4" fill="#0a58ca"'
        yield f"<circle {place}><title>{capacity:,} tokens: {rate:.1f} %</title></circle>"
    for capacity in CAPACITIES:
        yield f'<text x="{x(capacity)}" y="{bottom + 20}" text-anchor="middle">{capacity:,}</text>'
    middle = f'x="{(left + right) / 2}" y="{bottom + 44}" text-anchor="middle"'
    yield f"<text {middle}>capacity of the radix cache, tokens</text>"
    yield "</svg>\n"


def _run(arguments: Sequence[str], folder: Path, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pymllm", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != status:
        raise RuntimeError(f"pymllm {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def draw_finding(folder: Path) -> str:
    """Draw the program of a finding from its file: mllm frees a slot twice, and the oracle says so."""
    return draw_program(load_history(ROOT / "peers/findings/mllm/duplicates-are-freed-twice.jsonl"))


PICTURES: dict[str, Callable[[Path], str]] = {
    "session.svg": record_session,
    "held-page.svg": draw_held_page,
    "capacities.svg": draw_capacities,
    "finding.svg": draw_finding,
}
"""What makes each picture, given an empty folder to work in."""


if __name__ == "__main__":
    for name, make in PICTURES.items():
        with tempfile.TemporaryDirectory() as empty:
            (ASSETS / name).write_text(make(Path(empty)), encoding="utf-8")
