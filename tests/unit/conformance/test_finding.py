"""Who can see a violation again."""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.program import play_steps, run_program
from pymllm.conformance.shrinker import Finding, make_finding, pick_smallest
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import AllocRows, FreeRow, ReadRows, Span, WriteRow

CONFIG = {"max_reqs": 3, "max_context_len": 4}
PROGRAM = [AllocRows(2), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), ReadRows()]


def found(adapter: str, law: str) -> FoundViolation:
    """What a machine would have kept: the program up to the step that an adapter is wrong in."""
    examiner = Examiner(make_adapter(adapter, dict(CONFIG)))
    with pytest.raises(InvariantViolation) as caught:
        play_steps(examiner, enumerate(PROGRAM, 1))
    assert caught.value.law == law
    return FoundViolation(examiner.history, caught.value)


def test_outcomes_alone_show_what_the_oracle_found(tiny: str) -> None:
    """P2: with and without the implementation."""
    finding = make_finding(found(f"{tiny}:KeepsEntries", "P2"))
    assert (finding.law, finding.step, finding.is_rerun, finding.is_judged) == ("P2", 4, True, True)


def test_what_was_seen_from_inside_needs_the_implementation(tiny: str) -> None:
    """P1: outcomes are as they must be."""
    finding = make_finding(found(f"{tiny}:WrongInside", "P1"))
    assert (finding.step, finding.is_rerun, finding.is_judged) == (1, True, False)


def test_what_needs_an_engine_is_not_seen_again(tiny: str) -> None:
    """E3: neither way; nor does an adapter that is gone show anything."""
    violation = InvariantViolation("E3", "one slot is gone")
    history = run_program(f"{tiny}:TinyRows", CONFIG, PROGRAM)
    finding = make_finding(FoundViolation(history, violation))
    assert (finding.is_rerun, finding.is_judged) == (False, False)
    gone = History(Header("gone", "rows", CONFIG), history.steps)
    assert not make_finding(FoundViolation(gone, violation)).is_rerun
    senseless = History(Header(f"{tiny}:TinyRows", "rows", {}), [])
    finding = make_finding(FoundViolation(senseless, violation))
    assert (finding.step, finding.is_rerun, finding.is_judged) == (0, False, False)


def test_the_smallest_program_of_each_law_is_kept() -> None:
    """Smallest first; of two as small the one that came first."""

    def finding(law: str, steps: int, seed: int = 0) -> Finding:
        history = History(
            Header("tiny", "rows", seed=seed), [Step(1 + at, ReadRows()) for at in range(steps)]
        )
        return Finding(InvariantViolation(law, "looked"), history, True, True)

    first = finding("P2", 3, seed=1)
    kept = pick_smallest([finding("P1", 4), first, finding("P2", 3, seed=2), finding("P1", 5)])
    assert [(it.law, len(it.history)) for it in kept] == [("P2", 3), ("P1", 4)]
    assert kept[0] is first
    assert pick_smallest([]) == ()
