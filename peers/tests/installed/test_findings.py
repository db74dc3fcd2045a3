"""Every finding of peers/findings is seen again by the command on its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pymllm.adapters.registry import find_adapter, make_adapter
from pymllm.cli import main
from pymllm.errors import AdapterError

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "peers" / "findings").glob("*/*.md"))
COMMANDS = [
    (page, command)
    for page in PAGES
    for command in re.findall(r"^pymllm (rerun .*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
]


@pytest.mark.parametrize(
    ("page", "command"), COMMANDS, ids=[f"{page.stem}-{command.split()[-1]}" for page, command in COMMANDS]
)
def test_the_command_of_a_page_shows_its_law_broken(
    page: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 1, and names the law that the page names."""
    monkeypatch.chdir(ROOT)
    law = re.search(r"^\| law \| (\w+):", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert law is not None
    missing = find_adapter(command.split()[-1]).find_missing()
    if missing is not None:
        pytest.skip(missing)
    try:
        make_adapter(command.split()[-1]).close()
    except AdapterError as error:
        if "is not the version" not in error.message:
            raise
        pytest.skip(error.message)
    result = CliRunner().invoke(main, command.split(), catch_exceptions=False)
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith(f"{law[1]}  VIOLATED by {command.split()[-1]}: ")
