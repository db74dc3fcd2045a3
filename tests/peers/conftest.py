"""Other people's packages: their tests run where `tox -e peers` or `peers-older` has installed them."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a package that is not there."""
    for item in items:
        package = "vllm" if "vllm" in item.nodeid else "sglang"
        if "peers" in item.path.parts and importlib.util.find_spec(package) is None:
            reason = f"{package} is not installed; tox -e peers installs it"
            item.add_marker(pytest.mark.skip(reason=reason))
