"""The text of the repository is finished and tied to no machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pymllm"
PRAGMA = "# pragma: needs cuda"
FOLDERS = ["src", "tests", "benchmarks", "docs", "examples", "peers", ".ci", "constraints"]
SUFFIXES = {".py", ".md", ".toml", ".ini", ".txt", ".json", ".sh", ""}


def is_left_by_a_tool(path: Path) -> bool:
    """Whether it is coverage's data, a worktree's link to git, or in a hidden folder other than .ci."""
    *folders, name = path.relative_to(ROOT).parts
    return name in (".coverage", ".git") or any(part.startswith(".") and part != ".ci" for part in folders)


TEXTS = sorted(
    path
    for path in [*ROOT.iterdir(), *(child for folder in FOLDERS for child in (ROOT / folder).rglob("*"))]
    if path.is_file() and path.suffix in SUFFIXES and path.name != "LICENSE" and not is_left_by_a_tool(path)
)

# Each pattern is written so that it does not match its own line.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X]|HAC[K])\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(wor[k]|tm[p]|roo[t]|hom[e]|User[s]|op[t]|mn[t])/\w")
SILENCED = re.compile(r"#\s*(type: ignor[e](?!\[)|noq[a](?!: ?[A-Z])|pragma: n[o])")


def lines_matching(pattern: re.Pattern[str], path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    name = path.relative_to(ROOT)
    return [f"{name}:{number}: {line}" for number, line in enumerate(lines, 1) if pattern.search(line)]


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH])
def test_nothing_is_left_unfinished_or_tied_to_one_machine(pattern: re.Pattern[str]) -> None:
    """A reader finds no note to self and no path of a developer's disk."""
    assert [line for path in TEXTS for line in lines_matching(pattern, path)] == []


def test_a_silenced_check_names_what_it_silences() -> None:
    """An ignore carries its code, and coverage is hidden only by the CUDA pragma."""
    assert [line for path in TEXTS for line in lines_matching(SILENCED, path) if path.suffix == ".py"] == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (UNFINISHED, "# TO" + "DO: later"),
        (MACHINE_PATH, "open('/tm" + "p/x')"),
        (SILENCED, "x = 1  # type: ignor" + "e"),
        (SILENCED, "x = 1  # noq" + "a"),
        (SILENCED, "x = 1  # pragma: n" + "o cover"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    """The tests above can fail."""
    assert pattern.search(line)


# File -> lines with the pragma. A GPU test must reach each of them; raise a number together with that test.
LISTED: dict[str, int] = {
    "core/inference/contexts/host_numbers.py": 1,
    "core/inference/contexts/slot_states.py": 2,
    "instrument/torch_memory.py": 1,
    "mem_cache/slots/device_store.py": 3,
    "mem_cache/kernels/fused_rows.py": 2,
    "mem_cache/slots/host_store.py": 1,
    "mem_cache/kernels/row_kernels.py": 3,
}


def test_lines_that_need_cuda_are_counted_by_file() -> None:
    """Hiding one more line from coverage is a decision that shows in this file."""
    found = {
        str(path.relative_to(SOURCE)): count
        for path in sorted(SOURCE.rglob("*.py"))
        if (count := path.read_text(encoding="utf-8").count(PRAGMA))
    }
    assert found == LISTED
