"""The words for conversations that do not go on."""

from __future__ import annotations

import re
from pathlib import Path

from pymllm.adapters.process.verdicts import VERDICTS

PAGE = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_the_page_has_every_verdict_and_no_other() -> None:
    """In the order in which they are listed, with the same words."""
    table = PAGE.split("| verdict | the program |")[1].split("\n\n")[0]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", table, flags=re.MULTILINE)) == VERDICTS
