"""Tests of an adapter beside its judge, and of answers that are no answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pymllm.adapters.base import Adapter
from pymllm.adapters.registry import make_adapter
from pymllm.errors import AdapterError, InvariantViolation, ProgramError
from pymllm.history.operations import (
    Alloc,
    AllocRows,
    Free,
    Key,
    Malformed,
    Match,
    Operation,
    ReadHalves,
    Span,
)
from pymllm.history.outcomes import Done, Effect, Failed, Matched, NoRoom, Outcome, Slots, Unsupported
from pymllm.machines.examiner import Examiner, find_wrong_answer
from pymllm.oracle.judge import judge_steps


def token_slots() -> Adapter:
    return make_adapter("token-slots")


def test_every_step_is_done_judged_and_written_down() -> None:
    """The history is what `judge_steps` needs."""
    examiner = Examiner(token_slots(), seed=3, versions={"torch": "2"})
    examiner.do(Alloc(2))
    examiner.do(Free((Span(1, 0, 1),)), step=7)
    assert [step.number for step in examiner.history.steps] == [1, 7]
    assert examiner.next_step == 8
    assert (examiner.history.header.seed, examiner.history.header.versions) == (3, {"torch": "2"})
    again, found = judge_steps(examiner.history.header, examiner.history.steps)
    assert (again.exercised, found) == (examiner.judge.evidence.exercised, None)


@pytest.mark.parametrize(("audit", "walks"), [(True, 1), (False, 0)])
def test_the_walk_from_inside_is_counted(audit: bool, walks: int) -> None:
    """Evidence from outside and from inside are two things."""
    examiner = Examiner(token_slots(), audit=audit)
    examiner.do(Alloc(1))
    assert examiner.audited["A2"] == walks
    examiner.look_inside()
    assert examiner.audited["A2"] == walks + 1


def test_what_only_looks_is_not_walked_behind() -> None:
    """A step that only looks is not walked behind, and the next step is."""
    examiner = Examiner(make_adapter("swa-slots"))
    for operation in (Alloc(8), ReadHalves((Span(1, 0, 1),)), ReadHalves((Span(1, 0, 1),))):
        examiner.do(operation)
        assert examiner.audited["A2"] == 1
    examiner.do(Free((Span(1, 0, 8),)))
    assert examiner.audited["A2"] == 2


class Wrong:
    """Does what another adapter does, but for one answer."""

    def __init__(self, inner: Adapter, step: int) -> None:
        self.inner, self.step = inner, step
        self.name, self.kind = inner.name, inner.kind
        self.config, self.capabilities = inner.config, inner.capabilities

    def apply(self, step: int, operation: Operation) -> Outcome:
        outcome = self.inner.apply(step, operation)
        return self.spoil(outcome) if step == self.step else outcome

    def spoil(self, outcome: Outcome) -> Any:
        return Outcome(Slots((0,)), (), outcome.sizes)

    def audit(self) -> Sequence[str]:
        return self.inner.audit()

    def close(self) -> None:
        self.inner.close()


def test_a_violation_is_the_last_step_of_the_history() -> None:
    """A1: what was seen is kept with the step."""
    examiner = Examiner(Wrong(token_slots(), 2))
    examiner.do(Alloc(1))
    with pytest.raises(InvariantViolation) as caught:
        examiner.do(Alloc(1))
    assert caught.value.law == "A1"
    last = examiner.history.steps[-1]
    assert last.outcome is not None
    assert (last.number, last.outcome.result) == (2, Slots((0,)))


def test_a_program_that_does_the_same_again_is_evidence() -> None:
    """X3: and the second adapter is closed."""
    examiner = Examiner(token_slots())
    examiner.do(Alloc(2))
    examiner.check_replay(token_slots)
    assert examiner.judge.evidence.exercised["X3"] == 1


def test_a_program_that_does_something_else_again_is_refused() -> None:
    """X3: with the step and both outcomes."""
    examiner = Examiner(token_slots())
    examiner.do(Alloc(2))
    examiner.do(Alloc(1))
    with pytest.raises(
        InvariantViolation,
        match=r"again: expected result Slots\(slots=\(3,\).*, observed result Slots\(slots=\(0,\)",
    ) as caught:
        examiner.check_replay(lambda: Wrong(token_slots(), 2))
    assert caught.value.law == "X3"


class Addressed(Wrong):
    """Puts where the pool stands in memory into the message of an error, or calls the error otherwise."""

    error = "OwnershipError"

    def spoil(self, outcome: Outcome) -> Outcome:
        return Outcome(Failed(self.error, f"of the pool at {id(self.inner):#x}"), (), outcome.sizes)


def test_messages_of_errors_are_compared_nowhere() -> None:
    """X3, X1: they are for people; the error's name is compared."""
    examiner = Examiner(Addressed(token_slots(), 2))
    examiner.do(Alloc(2))
    examiner.do(Free((Span(0, 0, 1),)))
    examiner.check_replay(lambda: Addressed(token_slots(), 2))
    examiner.check_replay(token_slots)
    again = Addressed(token_slots(), 2)
    again.error = "LockError"
    with pytest.raises(InvariantViolation, match=r"observed result Failed\(error='LockError'") as caught:
        examiner.check_replay(lambda: again)
    assert caught.value.law == "X3"


def test_a_step_that_the_adapter_could_not_do_is_written_down_without_an_outcome() -> None:
    """A step that crashed is in the history without an outcome, so that the last operation is seen."""
    examiner = Examiner(token_slots())
    with pytest.raises(ProgramError, match="step 1 gave 0"):
        examiner.do(Free((Span(1, 0, 1),)))
    assert [(step.number, step.outcome) for step in examiner.history.steps] == [(1, None)]


class Speechless(Wrong):
    """Answers with what is no outcome."""

    def spoil(self, outcome: Outcome) -> Any:
        return 7


def test_what_is_no_answer_is_the_adapters_fault() -> None:
    """Also late in a program: no law is said to be broken, and the step stands without an outcome."""
    examiner = Examiner(Speechless(token_slots(), 2))
    examiner.do(Alloc(1))
    with pytest.raises(AdapterError, match=r"token-slots: step 2, Alloc\(tokens=1\): answered 7"):
        examiner.do(Alloc(1))
    assert examiner.history.steps[-1].outcome is None


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("kind", "rows", "kind"),
        ("config", {"page_size": 2}, "configuration"),
        ("capabilities", frozenset(), "claims"),
        ("limits", {"free": "it is hard"}, "limits"),
    ],
)
def test_what_an_adapter_is_it_says_once(name: str, value: Any, what: str) -> None:
    """X9: another kind, configuration, claim or limit than before is the adapter's fault, in each run."""
    adapter = Wrong(token_slots(), 0)
    examiner = Examiner(adapter)
    examiner.do(Alloc(1))
    setattr(adapter, name, value)
    with pytest.raises(AdapterError, match=f"step 2, Alloc.*: its {what} changed after it was made"):
        examiner.do(Alloc(1))
    with pytest.raises(AdapterError, match=f"made again, its {what} is another"):
        examiner.check_replay(lambda: adapter)


class Moody(Wrong):
    """Does not say what it is."""

    @property
    def limits(self) -> dict[str, str]:
        if self.step:
            raise RuntimeError("not today")
        return {}


def test_an_adapter_that_does_not_say_what_it_is_is_at_fault() -> None:
    """X9: whatever it raises."""
    adapter = Moody(token_slots(), 0)
    examiner = Examiner(adapter)
    adapter.step = 9
    with pytest.raises(AdapterError, match=r"asked for what it is, it raised RuntimeError.*not today"):
        examiner.do(Alloc(1))


class Leaving(Wrong):
    """Ends the process instead of an answer."""

    def spoil(self, outcome: Outcome) -> Any:
        raise SystemExit(0)


def test_an_adapter_cannot_end_the_run() -> None:
    """An adapter that tries to end the process is refused, so that others are still examined."""
    with pytest.raises(AdapterError, match=r"step 1, Alloc\(tokens=1\) tried to end the process"):
        Examiner(Leaving(token_slots(), 1)).do(Alloc(1))


def test_a_walk_that_finds_something_is_told_apart() -> None:
    """A broken law that no outcome shows is the walk's find."""
    examiner = Examiner(make_adapter("rows"))
    examiner.do(AllocRows(1))
    assert not examiner.is_found_inside

    def fail() -> list[str]:
        raise InvariantViolation("P2", "row 1 is not zero")

    examiner.adapter.audit = fail  # type: ignore[method-assign]
    with pytest.raises(InvariantViolation):
        examiner.do(AllocRows(1))
    assert examiner.is_found_inside


class Auditing(Wrong):
    """An adapter with an audit that gives laws, or breaks a law, as it was told."""

    def __init__(self, laws: tuple[str, ...], broken: str | None) -> None:
        super().__init__(token_slots(), 99)
        self.laws, self.broken = laws, broken

    def audit(self) -> Sequence[str]:
        if self.broken is not None:
            raise InvariantViolation(self.broken, "found inside")
        return self.laws


@pytest.mark.parametrize(
    ("laws", "broken", "named"), [(("A2", "ZZ99"), None, "ZZ99"), ((), "ZZ99", "ZZ99"), ((), "R6", "R6")]
)
def test_an_audit_of_what_is_no_law_is_the_adapters_fault(
    laws: tuple[str, ...], broken: str | None, named: str
) -> None:
    """An audit that names an unknown law is an error of the adapter, and counts as no violation."""
    examiner = Examiner(Auditing(laws, broken))
    with pytest.raises(AdapterError, match=f"its audit names '{named}', which is no law of kind slots"):
        examiner.do(Alloc(1))
    assert (examiner.is_found_inside, examiner.audited) == (False, {})


MATCH = Match(Key((1,)))


@pytest.mark.parametrize(
    ("operation", "outcome"),
    [
        (MATCH, Outcome(Matched((), 0))),
        (MATCH, Outcome(Failed("KeyError", "1"))),
        (MATCH, Outcome(Unsupported("match"))),
        (Alloc(1), Outcome(NoRoom())),
        (Alloc(1), Outcome(Slots((1,)), (Effect("free", (1,)),), {"available_size": 3})),
        (Malformed("free", "a list"), Outcome(Done())),
    ],
)
def test_an_answer_is_let_through(operation: Any, outcome: Outcome) -> None:
    """Wrong or right: that is for the judge to say."""
    assert find_wrong_answer(operation, outcome) is None


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (None, "answered None, which is not an Outcome"),
        (Outcome(7), "answered 7, which is not a result"),  # type: ignore[arg-type]
        (Outcome(Done()), "answered Done(); it must be Matched"),
        (Outcome(Matched([], 0)), "matched has a field of another type"),  # type: ignore[arg-type]
        (Outcome(Matched((), 0), []), "effects are []"),  # type: ignore[arg-type]
        (Outcome(Matched((), 0), (Effect("free", [1]),)), "effects are (Effect("),  # type: ignore[arg-type]
        (Outcome(Matched((), 0), (), {"total_size": None}), "sizes are {'total_size': None}"),  # type: ignore[dict-item]
        (
            Outcome(Matched((), 0), (), {"total_size": 0, "totl_size": 0}),
            "sizes have the unknown name 'totl_size'; known are available_size, ",
        ),
    ],
)
def test_what_is_no_answer_is_named(outcome: Any, says: str) -> None:
    """Another kind of result, a container or a size of another type: nothing that a law speaks of."""
    wrong = find_wrong_answer(MATCH, outcome)
    assert wrong is not None
    assert says in wrong
