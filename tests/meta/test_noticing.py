"""The runner tells what a test does under a fault, and what it could not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from noticing import Outcome, run_with_faults

from pymllm.adapters.cabinet.planting import Edit, StaleEditError

TESTS = "tests/unit/mem_cache/test_chunk_cache.py"
TEST = f"{TESTS}::test_insert_adopts_nothing_and_frees_nothing"
INSERT = "pymllm.mem_cache.chunk_cache:ChunkCache.insert"

Watch = Callable[[Sequence[Edit], str], Outcome]


@pytest.fixture
def watch(pytestconfig: pytest.Config) -> Watch:
    """Run one test under edits, for a second at most."""

    def run(edits: Sequence[Edit], test: str) -> Outcome:
        seed = pytestconfig.option.hypothesis_seed
        return run_with_faults({"it": edits}, {"it": test}, seed, most_seconds=1)["it"]

    return run


def test_a_sound_run_passes(watch: Watch) -> None:
    """Nothing is planted, nothing fails, and the docstring is there to read."""
    outcome = watch([], TEST)
    assert outcome.passed
    assert outcome.error is None
    assert "R4" in outcome.docstring


def test_what_a_failing_test_raised_is_told(watch: Watch) -> None:
    """The error itself, so that its law can be read."""
    outcome = watch([Edit(INSERT, "return InsertResult()", "return InsertResult(1)")], TEST)
    assert not outcome.passed
    assert isinstance(outcome.error, AssertionError)


def test_an_endless_fault_is_given_up(watch: Watch) -> None:
    """A plant that hangs is a failure of its own, and the session goes on."""
    outcome = watch([Edit(INSERT, "return InsertResult()", "while True:\n    pass")], TEST)
    assert isinstance(outcome.error, TimeoutError)
    assert watch([], TEST).passed


def test_a_test_that_is_gone_has_not_passed(watch: Watch) -> None:
    """A renamed test is noticed, and so is a moved file."""
    assert not watch([], f"{TESTS}::test_of_old").passed
    with pytest.raises(RuntimeError, match="no_such_file"):
        watch([], "tests/unit/no_such_file.py::test_of_old")


def test_a_stale_edit_is_told_and_stops_nothing(watch: Watch) -> None:
    """One plant that no longer fits is one failure."""
    outcome = watch([Edit(INSERT, "no such text", "")], TEST)
    assert not outcome.passed
    assert isinstance(outcome.error, StaleEditError)
