"""Runs of tests on mutants: in forked processes, the nearest tests first, and never without an end.

Limits are of processor time, so that a busy machine is not taken for a mutant that hangs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from mutants import Change, install

__all__ = ["Results", "Stage", "run_all", "stages_for"]

_SECONDS = 20.0
_TIMES = 5.0
"""A stage may take so much, and so many times what it takes without a mutant."""
_ARGUMENTS = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=ci", "--no-header", "--no-summary")

Stage = tuple[str, ...]
"""Tests that run together."""


class _Unshrunk:
    """What Hypothesis finds in a mutant may stay as long as it is."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings  # pytest is to import it first

        once = settings(settings.default, phases=[Phase.explicit, Phase.generate])
        settings.register_profile("mutants", once)
        settings.load_profile("mutants")


class Results:
    """What became of mutants, kept in a file.

    Parameters
    ----------
    path : Path
        Read where it exists, written after every mutant.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.seconds: dict[str, float] = known.get("seconds", {})
        self.noticed: dict[str, str] = known.get("noticed", {})

    def save(self) -> None:
        """Write the file anew."""
        text = json.dumps({"seconds": self.seconds, "noticed": self.noticed}, indent=1, ensure_ascii=False)
        self._path.write_text(text + "\n", encoding="utf-8")


class _Job(NamedTuple):
    name: str
    change: Change
    stages: list[Stage]


def stages_for(root: Path, module: str, rooms: Sequence[str]) -> list[Stage]:
    """Return the tests that may notice a change: the mirror, the room, the other rooms, the machines."""
    _, room, *path = module.split(".")
    mirror = Path("tests", "unit", room, *path[:-1], f"test_{path[-1]}.py")
    nearest: list[Stage] = [(str(mirror),)] if (root / mirror).exists() else []
    others: list[Stage] = [(f"tests/unit/{other}",) for other in rooms if other != room]
    return [*nearest, (f"tests/unit/{room}",), *others, ("tests/properties",)]


def _usual_seconds(root: Path, stage: Stage, results: Results) -> float:
    """Return the processor time of a stage without a mutant; see it pass once.

    Raises
    ------
    SystemExit
        A test fails: it would seem to notice every mutant.
    """
    key = " ".join(stage)
    if key not in results.seconds:
        before = _children_seconds()
        _, status = os.waitpid(_fork(lambda: _run(stage), root), 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise SystemExit(f"{key} fails without a mutant")
        results.seconds[key] = _children_seconds() - before
        results.save()
    return results.seconds[key]


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_all(
    root: Path,
    changes: dict[str, Change],
    rooms: Sequence[str],
    jobs: int,
    results: Results,
    show: Callable[[str, str], None],
) -> None:
    """Run the nearest tests on each mutant, then the next on those that nobody has noticed, and so on.

    Parameters
    ----------
    root : Path
        Of the repository.
    changes : dict of str to Change
        By name.
    rooms : sequence of str
        Whose unit tests take part.
    jobs : int
        Processes.
    results : Results
        Gets for each name which stage noticed, or nothing.
    show : callable
        Is told each.
    """
    waiting = deque(
        _Job(name, change, stages_for(root, change.module, rooms)) for name, change in changes.items()
    )
    running: dict[int, _Job] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            job = waiting.popleft()
            running[_start(root, job, results)] = job
        pid, status = os.wait()
        job = running.pop(pid)
        if os.waitstatus_to_exitcode(status) == 0 and len(job.stages) > 1:
            waiting.append(_Job(job.name, job.change, job.stages[1:]))
            continue
        is_noticed = os.waitstatus_to_exitcode(status) != 0
        results.noticed[job.name] = " ".join(job.stages[0]) if is_noticed else ""
        results.save()
        show(job.name, results.noticed[job.name])


def _start(root: Path, job: _Job, results: Results) -> int:
    stage = job.stages[0]
    limit = _SECONDS + _TIMES * _usual_seconds(root, stage, results)

    def run() -> int:
        signal.signal(signal.SIGVTALRM, lambda signum, frame: os._exit(pytest.ExitCode.TESTS_FAILED))
        signal.setitimer(signal.ITIMER_VIRTUAL, limit)
        resource.setrlimit(resource.RLIMIT_CPU, (int(2 * limit), int(2 * limit) + 1))  # where no signal helps
        install(job.change, root)
        return _run(stage)

    return _fork(run, root)


def _run(stage: Stage) -> int:
    return int(pytest.main([*_ARGUMENTS, *stage], plugins=[_Unshrunk()]))


def _fork(run: Callable[[], int], root: Path) -> int:
    """Run something in a process of its own, in silence; return its id."""
    pid = os.fork()
    if pid:
        return pid
    os.chdir(root)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    status = 1
    try:
        status = run()
    finally:
        sys.stdout.flush()
        os._exit(status)
    raise AssertionError("not reached")
