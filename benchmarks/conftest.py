"""What every benchmark shares."""

from __future__ import annotations

from benchmarks.gpu_fixtures import all_results, card, gpu_results, pytest_addoption, pytest_terminal_summary
from tests.source_tree import pytest_make_collect_report

__all__ = [
    "all_results",
    "card",
    "gpu_results",
    "pytest_addoption",
    "pytest_make_collect_report",
    "pytest_terminal_summary",
]
