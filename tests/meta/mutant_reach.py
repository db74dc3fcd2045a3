"""Which tests enter which functions, and how long each takes: no other test can notice a change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest
from mutant_places import find_functions, find_lines
from mutants import stamp

IMPORT = ""
"""Stands among tests for: before any of them, while modules were imported and tests collected."""


class Reach(NamedTuple):
    """The measurements of a run without a mutant."""

    seconds: dict[str, float]
    """Processor time of each test."""

    entered: dict[str, list[str]]
    """Tests that enter a function, by its place."""


class Measuring:
    """A plugin that names the running test to coverage.py; its owner starts coverage before any import."""

    def __init__(self, noted: coverage.Coverage) -> None:
        self._noted = noted
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._noted.switch_context(item.nodeid)
        before = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - before
        return result


def measure(folder: Path, rooms: Sequence[str], run: Callable[[Measuring], int]) -> Reach:
    """Run the tests once and note which tests enter each function; exit if a test fails without a mutant."""
    noted = coverage.Coverage(
        data_file=None, config_file=False, include=[f"{folder / room}/*" for room in rooms]
    )
    noted.start()
    plugin = Measuring(noted)
    status = run(plugin)
    noted.stop()
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit("the tests fail without a mutant")
    return Reach(plugin.seconds, _entered(noted.get_data(), folder))


def _entered(data: coverage.CoverageData, folder: Path) -> dict[str, list[str]]:
    """Sum up lines to functions."""
    lines = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
    found = {}
    for place, functions in find_functions(folder).items():
        code = functions[0].__code__
        known = lines.get(code.co_filename, {})
        found[place] = sorted({test for line in find_lines(code) for test in known.get(line, ())})
    return found


class Sources(NamedTuple):
    """The stamps of the sources that a reach belongs to."""

    stamp: int
    """Of the package, and of what tests share."""

    files: dict[str, int]
    """Of each file of tests."""


def stamp_sources(root: Path, folders: Sequence[str]) -> Sources:
    """Return the stamps of a repository's package and of some folders of tests."""
    tests = [path for folder in folders for path in (root / folder).rglob("*.py")]
    files = {path for path in tests if path.name.startswith("test_")}
    shared = [*(root / "tests").glob("*.py"), *(path for path in tests if path not in files)]
    whole = stamp(root, [*(root / "src").rglob("*.py"), *shared])
    return Sources(whole, {str(path.relative_to(root)): stamp(root, [path]) for path in sorted(files)})


def read_reach(path: Path, sources: Sources) -> tuple[Reach, set[str]]:
    """Return what `write_reach` wrote of files of tests that are as they were, and which these are."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"stamp": None}
    if known["stamp"] != sources.stamp:
        return Reach({}, {}), set()
    same = {file for file, stamped in sources.files.items() if known["files"].get(file) == stamped}
    seconds = {test: value for test, value in known["seconds"].items() if test.partition("::")[0] in same}
    tests = [test if test in seconds else None for test in known["seconds"]] + [IMPORT]
    entered = {
        place: [test for number in numbers if (test := tests[number]) is not None]
        for place, numbers in known["entered"].items()
    }
    return Reach(seconds, entered), same


def write_reach(path: Path, sources: Sources, reach: Reach) -> None:
    """Keep what a run without a mutant told, for as long as the sources are the same."""
    numbers = {test: number for number, test in enumerate([*reach.seconds, IMPORT])}
    known = {
        "stamp": sources.stamp,
        "files": sources.files,
        "seconds": reach.seconds,
        "entered": {place: [numbers[test] for test in tests] for place, tests in reach.entered.items()},
    }
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
    unfinished.replace(path)


def merge(first: Reach, second: Reach) -> Reach:
    """Return what two runs of different tests tell together."""
    places = first.entered.keys() | second.entered.keys()
    entered = {
        place: sorted({*first.entered.get(place, ()), *second.entered.get(place, ())}) for place in places
    }
    return Reach({**first.seconds, **second.seconds}, entered)
