"""Other people's packages: their tests run where `tox -e peers` or `peers-older` has installed them.

Tests of checkouts, and of findings in them, ask for themselves whether a variable names one.
"""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("sglang") is None:

    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        """Skip what needs a package that is not there."""
        missing = pytest.mark.skip(
            reason="sglang is not installed; tox -e peers and tox -e peers-older install it"
        )
        for item in items:
            if item.path.name == "test_sglang.py":
                item.add_marker(missing)
