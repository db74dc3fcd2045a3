"""Run tests while faults are planted, and tell what became of them.

A pytest session inside the running one collects the tests once; then each runs again for every fault that it
is to notice. Nothing is reported and nothing cached: the outcome goes to whoever asked.
"""

from __future__ import annotations

import contextlib
import io
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest
from _pytest.runner import runtestprotocol

from pymllm.adapters.cabinet.planting import Edit, StaleEditError, planted

__all__ = ["Outcome", "run_with_faults"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests of one name did.

    Parameters
    ----------
    passed : bool
        There is a test of that name that passed, and none that failed.
    error : BaseException or None
        What the first failing one raised, or that an edit is stale.
    docstring : str
        That of the tests.
    """

    passed: bool
    error: BaseException | None
    docstring: str


def run_with_faults(
    faults: Mapping[str, Sequence[Edit]],
    tests: Mapping[str, str],
    hypothesis_seed: str,
    most_seconds: int = 30,
) -> dict[str, Outcome]:
    """Run tests, each with its faults in the code.

    Parameters
    ----------
    faults : mapping of str to sequence of Edit
        What to plant, by a name for it.
    tests : mapping of str to str
        For each of these names the node id of a test, relative to the root of the repository; without the
        part in brackets all its parameters are meant.
    hypothesis_seed : str
        The running session's: Hypothesis has one for the process.
    most_seconds : int
        What runs longer with one fault fails with a `TimeoutError`, since a fault may make a loop endless.

    Returns
    -------
    dict of str to Outcome
        By the same names.

    Raises
    ------
    RuntimeError
        A file is not there, or cannot be imported.
    """
    loop = _Loop(faults, tests, most_seconds)
    options = [
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={ROOT}",
        f"--hypothesis-seed={hypothesis_seed}",
    ]
    quiet = ["--capture=no", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    files = sorted({str(ROOT / test.partition("::")[0]) for test in tests.values()})
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        pytest.main([*options, *quiet, *files], plugins=[loop])
    if set(loop.outcomes) != set(tests):
        raise RuntimeError(f"the session inside broke off:\n{said.getvalue()}")
    return loop.outcomes


class _Loop:
    """A plugin that runs the collected tests as often as there are faults for them."""

    def __init__(
        self, faults: Mapping[str, Sequence[Edit]], tests: Mapping[str, str], most_seconds: int
    ) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._faults = faults
        self._tests = tests
        self._most_seconds = most_seconds
        self._errors: list[BaseException] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for name, edits in self._faults.items():
            items = [item for item in session.items if _is_meant(item, self._tests[name])]
            try:
                self.outcomes[name] = self._watch(items, edits)
            except StaleEditError as stale:
                self.outcomes[name] = Outcome(False, stale, "")
        return True

    def _watch(self, items: Sequence[pytest.Item], edits: Sequence[Edit]) -> Outcome:
        self._errors.clear()
        with planted(edits), _at_most(self._most_seconds):
            reports = [report for item in items for report in runtestprotocol(item, log=False)]
        passed = any(report.when == "call" and report.passed for report in reports)
        failed = any(report.failed for report in reports)
        docstrings = [item.function.__doc__ or "" for item in items if isinstance(item, pytest.Function)]
        return Outcome(passed and not failed, self._errors[0] if failed else None, "".join(docstrings[:1]))

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None and not isinstance(call.excinfo.value, pytest.skip.Exception):
            self._errors.append(call.excinfo.value)


def _is_meant(item: pytest.Item, test: str) -> bool:
    return test in (item.nodeid, item.nodeid.partition("[")[0])


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise inside the block once it has taken too long."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
