"""What the parts of the judge of whole requests share."""

from __future__ import annotations

import pytest
from recorded_requests import CONFIG

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import Fault
from pymllm.history.outcomes import INJECTED, Done, Effect, Failed, Outcome
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.request_books import RequestBooks

STRUCK = Outcome(Failed(INJECTED))


def books(*claims: str) -> RequestBooks:
    return RequestBooks(Header("x", "requests", CONFIG, ("mamba", *claims)), Evidence())


def test_states_are_claimed_where_they_are_kept_and_nowhere_else() -> None:
    """C2: otherwise laws would be judged that nobody claims."""
    with pytest.raises(ProgramError, match="claims mamba"):
        RequestBooks(Header("x", "requests", CONFIG, ()), Evidence())
    with pytest.raises(ProgramError, match="claims mamba"):
        RequestBooks(Header("x", "requests", {**CONFIG, "mamba_slots": 0}, ("mamba",)), Evidence())


def test_only_a_call_that_was_told_to_fail_is_an_excuse() -> None:
    """X2: another error, another call, or no fault at all is none."""
    made = books()
    assert not made.is_struck(STRUCK, "forward")
    made.fault = Fault("forward")
    assert made.is_struck(STRUCK, "no_blocks", "forward")
    assert not made.is_struck(STRUCK, "no_blocks")
    assert not made.is_struck(Outcome(Failed("TypeError")), "forward")
    assert not made.is_struck(Outcome(Done()), "forward")


@pytest.mark.parametrize(("claims", "count"), [(("faults",), 1), ((), 0)])
def test_a_failure_counts_where_failures_are_claimed(claims: tuple[str, ...], count: int) -> None:
    """X2: and is a situation in any case."""
    made = books(*claims)
    assert made.survive("a commit fails") == "X2"
    assert (made.evidence.exercised["X2"], made.evidence.reached["a commit fails"]) == (count, 1)


def test_blocks_are_given_up_once_in_any_order() -> None:
    """C1: by one callback or by several."""
    made = books()
    made.check_effects(
        "C1", "it", (2, 1), Outcome(Done(), (Effect("callback", (1,)), Effect("callback", (2,))))
    )
    made.check_effects("C1", "it", (), Outcome(Done()))
    assert made.evidence.exercised["C1"] == 1
    with pytest.raises(InvariantViolation, match="C1"):
        made.check_effects("C1", "it", (1,), Outcome(Done(), (Effect("callback", (1, 1)),)))


def test_a_request_is_found_as_long_as_it_is_there() -> None:
    """X1: nobody's step is the program's fault."""
    made = books()
    request = made.model.meet(3, (1, 2), None)
    made.model.served[3] = request
    assert made.find(3, "leave") is request
    request.is_spoiled = True
    assert made.find(3, "leave") is request
    with pytest.raises(ProgramError, match="can only be released"):
        made.find(3, "pause")
    made.model.release(request)
    assert made.find(3, "leave") is None
    with pytest.raises(ProgramError, match="step 4 added no request"):
        made.find(4, "leave")
