"""What every benchmark shares."""

from __future__ import annotations

from tests.source_tree import pytest_make_collect_report

__all__ = ["pytest_make_collect_report"]
