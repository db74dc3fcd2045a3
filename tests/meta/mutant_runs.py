"""Runs of tests on mutants: all is imported and collected once, and a forked process exchanges one function.

Only tests that enter the function run, the nearest first. What else runs while modules are imported, or is no
code of a function, is tried again in processes that import the changed module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import pytest
from mutant_places import Functions, exchange, find_codes, find_functions, find_places
from mutant_processes import Task, Tell, limit, run_each, run_quietly
from mutant_reach import IMPORT, Reach, measure, merge, read_reach, stamp_sources, write_reach
from mutants import Change, find_path, install, is_sound

if TYPE_CHECKING:
    from mutant_results import Results

_SECONDS = 5.0
_TIMES = 5.0
"""A test may take so much more, and so many times, than what it takes without a mutant."""
_LOADING = 15.0
"""Seconds that importing and collecting all tests may take."""
_EXAMPLES = 24
_ARGUMENTS = (
    "-x",
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "--hypothesis-profile=ci",
    "--no-header",
    "--no-summary",
    "--assert=plain",  # pytest would import pymllm, which is a plugin, by a hook of its own: without a change
)

Stage = tuple[str, ...]
"""Files and folders of tests that are equally near."""


class _Unshrunk:
    """A plugin that sets fewer examples and no shrinking, since there are many mutants."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings  # pytest is to import it first

        once = settings(settings.default, max_examples=_EXAMPLES, phases=[Phase.explicit, Phase.generate])
        settings.register_profile("mutants", once)
        settings.load_profile("mutants")


class _Telling:
    """Says which test failed, and ends the run there."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(report.nodeid or "collection")


class _Importing:
    """Imports what else only a test would import: its functions would come sound, after their exchange."""

    def __init__(self, root: Path, rooms: Sequence[str]) -> None:
        self._paths = [
            path.relative_to(root / "src").with_suffix("")
            for room in rooms
            for path in sorted((root / "src" / "pymllm" / room).rglob("*.py"))
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        for path in self._paths:
            with contextlib.suppress(ImportError):  # of what is for a device that is not here
                importlib.import_module(".".join(path.parts).removesuffix(".__init__"))


def stages_for(root: Path, module: str, rooms: Sequence[str]) -> list[Stage]:
    """Return the tests that may notice a change: its namesake, the room, other rooms, machines."""
    _, room, *path = module.split(".")
    named = Path("tests", "unit", room, *path[:-1], f"test_{path[-1]}.py")
    nearest: list[Stage] = [(str(named),)] if (root / named).exists() else []
    others: list[Stage] = [(f"tests/unit/{other}",) for other in rooms if other != room]
    return [*nearest, (f"tests/unit/{room}",), *others, ("tests/properties",)]


def run_all(
    root: Path,
    changes: dict[str, Change],
    rooms: Sequence[str],
    jobs: int,
    folder: Path,
    results: Results,
    show: Callable[[str, str], None],
) -> None:
    """Run the tests of some rooms that matter on each mutant; keep and show each result as it is known."""
    tests = [*(f"tests/unit/{room}" for room in rooms), "tests/properties"]
    reach = _find_reach(root, tests, rooms, folder / "reach.json")
    codes, entering = {}, {}
    for name, change in changes.items():
        path = find_path(root, change.module)
        found = find_codes(change, path)
        # Functions that nobody has are of a module that cannot be imported here.
        codes[name] = found if reach.entered.keys() >= found.keys() else {}
        places = find_places(change, path)
        entering[name] = {test for place in places for test in reach.entered.get(place, ())}
    imported = {name for name in changes if not codes[name] or IMPORT in entering[name]}

    def note(name: str, by: str) -> None:
        results.keep(name, by)
        show(name, by)

    def note_exchanged(name: str, by: str) -> None:
        if by or name not in imported:  # nobody so far is no result: it is tried again where it is imported
            note(name, by)

    def tasks(items: Sequence[pytest.Item], functions: Functions) -> Iterator[Task]:
        for name, change in changes.items():
            if not codes[name]:
                continue
            stages = stages_for(root, change.module, rooms)
            entered = [item for item in items if item.nodeid in entering[name]]
            chosen = _order(entered, stages, reach)
            run = partial(_run_items, codes[name], functions, chosen, reach)
            yield Task(name, run, sum(_seconds(item, reach) for item in chosen) + _SECONDS)

    def serve() -> None:
        if _run_tests(tests, _Importing(root, rooms), _Server(root / "src", tasks, jobs, note_exchanged)):
            raise SystemExit("what runs the tests has failed")

    run_quietly(serve)
    results.reload()  # what another process has kept
    again = [name for name in changes if name in imported and not results.known.get(name)]
    run_each((_import_task(root, name, changes[name], entering[name], reach) for name in again), jobs, note)


def _find_reach(root: Path, tests: Sequence[str], rooms: Sequence[str], path: Path) -> Reach:
    """Return the tests that enter each function, after a run of the tests for which this is not known."""
    sources = stamp_sources(root, tests)
    known, same = read_reach(path, sources)
    if left := sorted(sources.files.keys() - same):
        quiet = partial(_run_tests, left, _Importing(root, rooms))
        folder = root / "src" / "pymllm"
        run_quietly(lambda: write_reach(path, sources, merge(known, measure(folder, rooms, quiet))))
    return read_reach(path, sources)[0]


def _run_tests(tests: Sequence[str], *plugins: object) -> int:
    return int(pytest.main([*_ARGUMENTS, *tests], plugins=[_Unshrunk(), *plugins]))


class _Server:
    """A plugin that runs no test itself: forked processes do, one for every mutant."""

    def __init__(
        self,
        folder: Path,
        tasks: Callable[[Sequence[pytest.Item], Functions], Iterator[Task]],
        jobs: int,
        note: Callable[[str, str], None],
    ) -> None:
        self._folder = folder
        self._tasks = tasks
        self._jobs = jobs
        self._note = note

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        functions = find_functions(self._folder)
        gc.collect()
        gc.freeze()  # so that processes share what is there for as long as they can
        run_each(self._tasks(session.items, functions), self._jobs, self._note)
        return True


def _order(items: Sequence[pytest.Item], stages: Sequence[Stage], reach: Reach) -> list[pytest.Item]:
    """Return the nearest first, and of equally near ones the quick."""

    def rank(item: pytest.Item) -> tuple[int, float]:
        path = item.nodeid.partition("::")[0]
        near = next(rank for rank, stage in enumerate(stages) if path.startswith(stage))
        return near, reach.seconds[item.nodeid]

    return sorted(items, key=rank)


def _seconds(item: pytest.Item, reach: Reach) -> float:
    return _SECONDS + _TIMES * reach.seconds[item.nodeid]


def _run_items(
    codes: dict[str, CodeType], functions: Functions, items: Sequence[pytest.Item], reach: Reach, tell: Tell
) -> None:
    """Run tests in this process, after some functions have got other codes; stop at the first that fails."""
    exchange(codes, functions)
    for item in items[:1]:
        item.config.pluginmanager.register(_Telling(tell))
    for item, after in zip_longest(items, items[1:]):
        limit(_seconds(item, reach), tell, f"{item.nodeid} takes too long")
        item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
        if item.session.testsfailed:
            return


def _import_task(root: Path, name: str, change: Change, entering: set[str], reach: Reach) -> Task:
    """Return the task to import a changed module and run the files of tests that enter the function.

    Where it runs before any test, or nobody enters it, all of its room.
    """
    files = {test.partition("::")[0] for test in entering - {IMPORT}}
    if IMPORT in entering or not files:
        files.add(f"tests/unit/{change.module.split('.')[1]}")
    usual = sum(seconds for test, seconds in reach.seconds.items() if test.startswith((*files,)))

    def run(tell: Tell) -> None:
        install(change, root)
        _run_tests(sorted(files, reverse=True), _Telling(tell))  # those of rooms before the state machines
        if is_sound(change.module):
            raise ImportError(f"{change.module} was imported without its change")

    return Task(name, run, _TIMES * (usual + _LOADING))
