"""docs/verify.md: its adapter works, its profiles and statuses are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pymllm.cli import main
from pymllm.conformance.machines import PROFILES
from pymllm.oracle.verdicts import Verdict

PAGE = (Path(__file__).parents[2] / "docs" / "verify.md").read_text(encoding="utf-8")

TABLE = """
class RowTable:
    def __init__(self, rows, columns):
        self.size, self.free = rows, list(range(1, rows + 1))
        self.cells = [[0] * columns for _ in range(rows + 1)]

    def take(self, count):
        if count > len(self.free):
            return None
        return [self.free.pop(0) for _ in range(count)]

    def give_back(self, row):
        self.cells[row] = [0] * len(self.cells[row])
        self.free.append(row)
"""


@pytest.mark.parametrize(
    ("change", "status"), [(("", ""), 0), (("self.cells[row] = [0] * len(self.cells[row])", "pass"), 1)]
)
def test_the_adapter_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], status: int
) -> None:
    """Whoever pastes it has something to start from; and it finds what is wrong with a table."""
    example, *_ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    name = f"page_adapter_{status}"
    (tmp_path / f"{name}.py").write_text(example.replace("my_rows", f"{name}_rows"), encoding="utf-8")
    (tmp_path / f"{name}_rows.py").write_text(TABLE.replace(*change), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["verify", "--adapter", f"{name}:MyRows", "--examples", "40", "--jobs", "1"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == status, result.output


def test_the_page_has_each_profile_with_its_length() -> None:
    """Acts and seed."""
    for profile in PROFILES.values():
        (row,) = re.findall(rf"^\| `{profile.name}`.*$", PAGE, flags=re.MULTILINE)
        _, _, acts, _, seed, _ = (cell.strip() for cell in row.split("|"))
        assert acts == str(profile.steps)
        assert seed == ("drawn, and printed" if profile.seed is None else str(profile.seed))


def test_the_page_has_each_verdict_with_its_status() -> None:
    """Four verdicts, three statuses."""
    for verdict in Verdict:
        assert re.search(rf"^\| `{verdict.value}` \|", PAGE, flags=re.MULTILINE | re.IGNORECASE)
        assert re.search(rf"^\| {verdict.exit_status} \|", PAGE, flags=re.MULTILINE)
