"""What unit tests of several rooms share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of small adapters, as ``--adapter`` names it: ``f"{tiny}:TinyRows"``."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return "tiny_adapters"
