"""The collection of tests on a machine with the source tree and little else, as many with GPUs are."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from importlib.metadata import PackageNotFoundError, version

import pytest

BEYOND = ("click", "rich", "jsonschema", "prometheus_client", "jinja2", "plotly", "playwright")
"""Packages that no test which needs a GPU may need."""


def is_installed() -> bool:
    """Whether pymllm is: then its packages are there, and a missing one is an error like any other."""
    try:
        version("pymllm")
    except PackageNotFoundError:
        return False
    return True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file of tests that cannot be imported for want of such a package."""
    report = yield
    missing = re.search(r"ModuleNotFoundError: No module named '(\w+)'", report.longreprtext)
    if report.failed and missing and missing[1] in BEYOND and not is_installed():
        reason = f"Skipped: needs {missing[1]}, which is not installed; pip install pymllm brings it"
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, reason)
        # pytest leaves what was imported of it. Whoever imports from that file is to miss the package, too.
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) == str(collector.path):
                del sys.modules[name]
    return report
