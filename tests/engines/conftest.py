"""The campaign that each engine plays in shards, played by one process."""

from __future__ import annotations

import pytest

from tests.engines.campaigns import PLAYED, SHORT, single


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Its ledger, merged alone."""
    return single(tmp_path_factory.mktemp("whole"), PLAYED)


@pytest.fixture(scope="session")
def whole_short(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """That of the short one."""
    return single(tmp_path_factory.mktemp("short"), SHORT)
