"""A pytest plugin for runs on mutants: endless tests fail, and what Hypothesis finds stays as long as it is.

The limit is of processor time, so that a busy machine is not taken for a mutant that hangs.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

_STATS = Path("mutmut-stats.json")  # mutmut runs pytest where it keeps them
_SECONDS = 30.0
_TIMES = 10.0
"""A test may take so much, and so many times what it takes without a mutant."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    once = settings(settings.default, phases=[Phase.explicit, Phase.generate])
    settings.register_profile("mutants", once)
    settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if "__mutmut_" not in os.environ.get("MUTANT_UNDER_TEST", ""):  # it has other words for runs without one
        return (yield)
    usual = json.loads(_STATS.read_text(encoding="utf-8"))["duration_by_test"].get(item.nodeid, 0.0)
    signal.signal(signal.SIGVTALRM, lambda signum, frame: os._exit(pytest.ExitCode.TESTS_FAILED))
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS + _TIMES * usual)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
