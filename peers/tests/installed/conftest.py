"""Other people's packages: their tests run where `tox -e peers` and its like have installed them.

Tests of checkouts, and of findings in them, ask for themselves whether a variable names one.
"""

from __future__ import annotations

import importlib.util

import pytest

NEEDED = {
    "test_sglang.py": ("sglang", "tox -e peers and tox -e peers-older install it"),
    "test_vllm.py": ("vllm", "tox -e peers installs it"),
    "test_dynamo.py": ("dynamo", "tox -e peers-dynamo installs it"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a package which is not installed."""
    for item in items:
        package, installs = NEEDED.get(item.path.name, ("", "")) if "peers" in item.path.parts else ("", "")
        if package and importlib.util.find_spec(package) is None:
            item.add_marker(pytest.mark.skip(reason=f"{package} is not installed; {installs}"))
