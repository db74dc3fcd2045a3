"""What the tests of pages share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BUILDER = Path(__file__).parents[2] / "docs" / "builder"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets tests import what makes pages; each module goes by a plain name, so it is forgotten afterwards."""
    monkeypatch.syspath_prepend(BUILDER)
    yield
    for path in BUILDER.glob("*.py"):
        sys.modules.pop(path.stem, None)
