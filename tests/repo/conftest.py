"""The fixtures that the tests of pages share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BUILDER = Path(__file__).parents[2] / "docs" / "builder"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let tests import the makers of pages by their plain names, and forget these modules afterwards."""
    monkeypatch.syspath_prepend(BUILDER)
    yield
    for path in BUILDER.glob("*.py"):
        sys.modules.pop(path.stem, None)
