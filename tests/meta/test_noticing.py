"""The runner reports the outcome of a test under a fault, and the tests that it could not run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from noticing import Outcome, run_with_faults

from pymllm.faults.plant import Edit, StaleEditError

INSERT = "pymllm.mem_cache.chunk_cache:ChunkCache.insert"
ROWS = Edit(INSERT, "return InsertResult()", "return InsertResult(1)")
MARKED = '''
import pytest
from pymllm.mem_cache import ChunkCache, RadixKey

@pytest.mark.notices("it")
def test_insert() -> None:
    """R4: nothing is adopted."""
    assert ChunkCache().insert(RadixKey([1])).prefix_len == 0

@pytest.mark.notices("some", when="2", shows_as=ValueError)
@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number: int) -> None:
    """R5."""
    assert number == 2
    ChunkCache().insert(RadixKey([1]))
'''

Watch = Callable[..., Outcome]


@pytest.fixture
def watch(pytestconfig: pytest.Config, tmp_path: Path) -> Watch:
    """Run the tests that are marked with a name under edits, for a second at most."""
    path = tmp_path / "test_marked.py"
    path.write_text(MARKED, encoding="utf-8")

    def run(edits: Sequence[Edit], name: str = "it", path: Path = path) -> Outcome:
        seed = pytestconfig.option.hypothesis_seed
        return run_with_faults({name: edits}, seed, [path], most_seconds=1)[name]

    return run


def test_a_sound_run_passes(watch: Watch) -> None:
    """Nothing is planted, nothing fails, and the docstring is there to read."""
    outcome = watch([])
    assert outcome.passed
    assert outcome.error is None
    assert "R4" in outcome.docstring


def test_what_a_failing_test_raised_is_told(watch: Watch) -> None:
    """The error itself, so that its law can be read."""
    outcome = watch([ROWS])
    assert not outcome.passed
    assert isinstance(outcome.error, AssertionError)


def test_an_endless_fault_is_given_up(watch: Watch) -> None:
    """A plant that hangs is a failure of its own, and the session goes on."""
    outcome = watch([Edit(INSERT, "return InsertResult()", "while True:\n    pass")])
    assert isinstance(outcome.error, TimeoutError)
    assert watch([]).passed


def test_a_mark_may_mean_one_of_a_tests_parameters(watch: Watch) -> None:
    """And an error of the class itself, which alone counts then."""
    assert watch([], "some").passed
    raising = Edit(INSERT, "return InsertResult()", "raise ValueError")
    assert watch([raising], "some").is_noticed
    assert not watch([raising]).is_noticed


def test_a_test_that_is_gone_has_not_passed(watch: Watch, tmp_path: Path) -> None:
    """A mark that was lost is noticed, and so is a moved file."""
    assert watch([], "lost") == Outcome((), False, None)
    with pytest.raises(RuntimeError, match="no_such_file"):
        watch([], path=tmp_path / "test_no_such_file.py")


def test_a_stale_edit_is_told_and_stops_nothing(watch: Watch) -> None:
    """One plant that no longer fits is one failure."""
    outcome = watch([Edit(INSERT, "no such text", "")])
    assert not outcome.passed
    assert isinstance(outcome.error, StaleEditError)
