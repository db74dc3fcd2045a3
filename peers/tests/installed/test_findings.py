"""Every finding of docs/findings is seen again by the command on its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pymllm.adapters.registry import find_adapter, make_adapter
from pymllm.cli import main
from pymllm.errors import AdapterError
from pymllm.search.deviations import read_deviations

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "findings"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
COMMANDS = [
    (page.stem, command)
    for page in PAGES
    for command in re.findall(r"^pymllm (rerun .*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=lambda value: value.split()[-1])
def test_the_command_of_a_page_shows_its_law_broken(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 1, and names the law that the page names."""
    monkeypatch.chdir(ROOT)
    law = re.search(r"^\| law \| (\w+):", (FOLDER / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE)
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


def test_what_is_known_leads_to_a_page() -> None:
    """And says whether it is a defect."""
    for it in read_deviations(FOLDER / "known.toml"):
        page = ROOT / it.link
        assert page in PAGES, it
        assert it.kind != "open", it
