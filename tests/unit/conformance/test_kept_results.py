"""Results are kept as soon as they are known, and only for what they are of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.adapters.cabinet.fault import Fault
from pymllm.conformance.detection import Detection, FaultResult, HuntPlan, HuntTask
from pymllm.conformance.faults_run import KeptResults
from pymllm.errors import UsageError

FAULT = Fault("x", "is wrong", ("R1",), ("radix",))
TASK = HuntTask(FAULT, HuntPlan())
FOUND = Detection(0, "R1", "page 3", "machine", "radix", {"page_size": 1, "window": None}, 12, 0.5, 4)
RESULT = FaultResult(FAULT, (FOUND,), ("seed 1: not caught",), 1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_a_result_is_known_to_the_next_run(path: Path) -> None:
    """All of it; the run that found it has no need of it."""
    KeptResults(path).keep(TASK, RESULT)
    assert KeptResults(path).find(TASK) == RESULT


def test_a_result_counts_only_for_what_it_is_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault, looked for in the same way, in the same package."""
    KeptResults(path).keep(TASK, RESULT)
    kept = KeptResults(path)
    assert kept.find(HuntTask(replace(FAULT, laws=("R2",)), TASK.plan)) is None
    assert kept.find(HuntTask(FAULT, HuntPlan((1,)))) is None
    monkeypatch.setattr("pymllm.conformance.faults_run.build_version", lambda: "another")
    assert KeptResults(path).find(TASK) is None


def test_a_result_of_a_strangers_cache_counts_until_its_source_changes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a cache that a fault no longer breaks would count as one that was caught."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kept_cache.py").write_text("SIZE = 1\n", encoding="utf-8")
    (tmp_path / "kept_adapter.py").write_text("import kept_cache\n", encoding="utf-8")
    task = HuntTask(replace(FAULT, adapters=("kept_adapter:Cache",)), TASK.plan)
    KeptResults(path).keep(task, RESULT)
    assert KeptResults(path).find(task) is not None
    (tmp_path / "kept_cache.py").write_text("SIZE = 2\n", encoding="utf-8")
    assert KeptResults(path).find(task) is None


@pytest.mark.parametrize("broken", ['{"key": "half', "[]", '{"key": "x"}'])
def test_a_line_that_was_not_finished_is_passed_over(path: Path, broken: str) -> None:
    """Whoever died while it was written has it to do again; what is written next is a line of its own."""
    path.write_text(broken, encoding="utf-8")
    kept = KeptResults(path)
    assert kept.find(TASK) is None
    kept.keep(TASK, RESULT)
    assert KeptResults(path).find(TASK) == RESULT
    assert path.read_text(encoding="utf-8").splitlines()[0] == broken


@pytest.mark.parametrize("text", ["# My notes\n", '{"id": "x"}\n\n', "[]\n", "\n"])
def test_somebody_elses_file_gets_no_lines(path: Path, text: str) -> None:
    """A mistyped name must not cost a file; one that died in its first line goes on."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="no line of it is a result of faults; name another"):
        KeptResults(path)
    assert path.read_text(encoding="utf-8") == text
    path.write_text('{"key": "ha\n' + text, encoding="utf-8")
    assert KeptResults(path).find(TASK) is None
    with pytest.raises(UsageError, match="no regular file"):
        KeptResults(Path("/dev/zero"))


def test_a_file_that_cannot_be_had_is_refused(path: Path) -> None:
    """X1: before anything is looked for."""
    path.mkdir()
    with pytest.raises(UsageError, match="results cannot be kept in"):
        KeptResults(path)
