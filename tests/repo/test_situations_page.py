"""docs/situations.md is what the registry says."""

from __future__ import annotations

from pathlib import Path

from pymllm.cli.situations import make_page
from pymllm.oracle.situations import SITUATIONS

PAGE = Path(__file__).parents[2] / "docs" / "situations.md"


def test_the_page_is_that_of_the_registry() -> None:
    """After a change: pymllm situations --page docs/situations.md."""
    assert PAGE.read_text(encoding="utf-8") == make_page(SITUATIONS)
