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

from pymllm.errors import InvariantViolation
from pymllm.faults.plant import Edit, StaleEditError, planted

NOTICED = (AssertionError, pytest.fail.Exception, InvariantViolation)
"""What a test or a check raises when it has noticed something."""

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the tests that are marked ``notices(FAULT, ..., when=PARAMETERS, shows_as=ERROR)``.

    They ``passed`` if one did and none failed; ``error`` is what the first failing one raised, or that an
    edit is stale. Where the class under test refuses what the fault does, only that counts: ``shows_as``.
    """

    tests: tuple[str, ...]
    passed: bool
    error: BaseException | None
    docstring: str = ""
    shows_as: type[BaseException] | None = None

    @property
    def is_noticed(self) -> bool:
        """Whether a test failed as one does that has seen a law broken, and not because the plant is bad."""
        return isinstance(self.error, self.shows_as or NOTICED)


def run_with_faults(
    faults: Mapping[str, Sequence[Edit]],
    hypothesis_seed: str,
    paths: Sequence[Path] = (),
    most_seconds: int = 30,
) -> dict[str, Outcome]:
    """Run the tests that are marked for some faults, each with its fault in the code; return the outcomes.

    By default all files with a mark are collected. What runs too long fails with a `TimeoutError`, since a
    fault may make a loop endless; a file that cannot be imported is a RuntimeError.
    """
    loop = _Loop(faults, most_seconds)
    options = [
        "-c",
        str(ROOT / "pyproject.toml"),
        f"--rootdir={ROOT}",
        f"--hypothesis-seed={hypothesis_seed}",
    ]
    quiet = ["--capture=no", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        pytest.main([*options, *quiet, *map(str, paths or marked_files())], plugins=[loop])
    if set(loop.outcomes) != set(faults):
        raise RuntimeError(f"the session inside broke off:\n{said.getvalue()}")
    return loop.outcomes


def marked_files() -> list[Path]:
    """Return the files that are worth collecting: a session of all tests would take a minute."""
    files = (ROOT / "tests").rglob("test_*.py")
    return sorted(path for path in files if "@pytest.mark.notices(" in path.read_text(encoding="utf-8"))


class _Loop:
    """A plugin that runs the collected tests as often as there are faults for them."""

    def __init__(self, faults: Mapping[str, Sequence[Edit]], most_seconds: int) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._faults = faults
        self._most_seconds = most_seconds
        self._errors: list[BaseException] = []

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        parser.addini("faulthandler_timeout", "Belongs to pytest's own faulthandler, which is left out here.")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        marked: dict[str, list[tuple[pytest.Item, pytest.Mark]]] = {}
        for item in session.items:
            for mark in item.iter_markers("notices"):
                if _is_meant(item, mark):
                    for name in mark.args:
                        marked.setdefault(name, []).append((item, mark))
        for name, edits in self._faults.items():
            tests = marked.get(name, [])
            try:
                self.outcomes[name] = self._watch(tests, edits)
            except StaleEditError as stale:
                self.outcomes[name] = Outcome(tuple(item.nodeid for item, _ in tests), False, stale)
        return True

    def _watch(self, tests: Sequence[tuple[pytest.Item, pytest.Mark]], edits: Sequence[Edit]) -> Outcome:
        self._errors.clear()
        with planted(edits), _at_most(self._most_seconds):
            reports = [report for item, _ in tests for report in runtestprotocol(item, log=False)]
        passed = any(report.when == "call" and report.passed for report in reports)
        failed = any(report.failed for report in reports)
        docstrings = [item.function.__doc__ or "" for item, _ in tests if isinstance(item, pytest.Function)]
        return Outcome(
            tuple(item.nodeid for item, _ in tests),
            passed and not failed,
            self._errors[0] if failed else None,
            " ".join(docstrings),
            next((mark.kwargs["shows_as"] for _, mark in tests if "shows_as" in mark.kwargs), None),
        )

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None and not isinstance(call.excinfo.value, pytest.skip.Exception):
            self._errors.append(call.excinfo.value)


def _is_meant(item: pytest.Item, mark: pytest.Mark) -> bool:
    """Return whether a test has the parameters that its mark names, if the mark names any."""
    return "when" not in mark.kwargs or item.nodeid.endswith(f"[{mark.kwargs['when']}]")


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
