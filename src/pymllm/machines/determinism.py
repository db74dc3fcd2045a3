"""Checks that run parts of a program again on a new adapter, without steps that must change nothing.

A refused step (X1), one without room (X4), a look (X8), and all before a clear (X7) are left out: the rest
must do the same (X3).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

from pymllm.adapters.base import Adapter
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.claims import ANY_REFUSAL, are_met
from pymllm.history.files import Step
from pymllm.history.operations import Clear, Fault, Operation, Reset
from pymllm.history.outcomes import INJECTED, Done, Failed, NoRoom, Outcome
from pymllm.machines.adapter_calls import apply_step, closing
from pymllm.machines.examiner import Examiner
from pymllm.oracle.laws import find_law

_DETERMINISTIC = ("slots", "rows", "buffers", "states", "hashes", "blocks", "requests", "index")
"""Kinds whose refused, failed and read-only steps must not affect any later outcome."""


def check_determinism(examiner: Examiner, make: Callable[[], Adapter]) -> None:
    """Make both checks of this module, if the kind is deterministic; arguments and errors are the same."""
    if examiner.adapter.kind in _DETERMINISTIC:
        check_idle_steps(examiner, make)
        # What stands in rows that are nobody's shows, and is anybody's guess where it is not zeroed.
        if examiner.adapter.kind != "rows" or "zeroed_rows" in examiner.adapter.capabilities:
            check_clears(examiner, make)


def check_idle_steps(examiner: Examiner, make: Callable[[], Adapter]) -> None:
    """Run the program again without steps that must change nothing; all others must have the same outcomes.

    These are the refused ones (X1), those that found no room (X4), and looks (X8). If the rest does
    something else, the looks are put back first, to tell whose doing it is: the broken law is that of the
    last step left out before the difference (a failed allocation changed, for instance, the order of what is
    handed out next), and X3 if there is none. A fault that was to happen in a step which is left out is left
    out with it.
    """
    failed, looks = _laws_of_nothing(examiner), _find_looks(examiner)
    laws = {**failed, **looks}
    if not laws:
        return
    different = _first_difference(examiner, laws, make)
    if different is not None:
        for some in filter(None, (failed, looks)):
            alone = _first_difference(examiner, some, make)
            if alone is not None:
                laws, different = some, alone
                break
        # Where nothing was left out before it, the same program did something else.
        before = [number for number in laws if number < different[0].number]
        law = laws[max(before)] if before else "X3"
        _refuse(law, different, f"without {_NOTHINGS[law]}" if before else "")
    examiner.judge.evidence.count(*set(laws.values()))


_NOTHINGS = {
    "X1": "the refused steps before it",
    "X4": "the steps before it that found no room",
    "X8": "the looks before it",
}


def check_clears(examiner: Examiner, make: Callable[[], Adapter]) -> None:
    """Run the steps after the last clear on a new adapter, and demand the same outcomes (X7).

    Refused steps are left out: they may name what the clear took back.
    """
    steps = examiner.history.steps
    cleared = max(
        (at for at, step in enumerate(steps) if isinstance(step.operation, Clear | Reset) and _is_done(step)),
        default=None,
    )
    if cleared is None:
        return
    laws = _laws_of_nothing(examiner)
    try:
        different = _first_difference(examiner, laws, make, cleared + 1)
    except ProgramError:  # a step names what was given before the clear, which a new one never gave
        return
    if different is not None:
        _refuse("X7", different, "on a new one, without the steps before the clear")
    examiner.judge.evidence.count("X7")


def _is_done(step: Step) -> bool:
    return step.outcome is not None and isinstance(step.outcome.result, Done)


def _laws_of_nothing(examiner: Examiner) -> dict[int, str]:
    """Return each step that must have changed nothing, with the law that demands this."""
    steps = examiner.history.steps
    return _with_faults(
        {step.number: law for step in steps if (law := _law_of_nothing(step, examiner))}, steps
    )


def _law_of_nothing(step: Step, examiner: Examiner) -> str:
    """Return the claimed law by which a step must have changed nothing, or an empty text."""
    result = step.outcome.result if step.outcome is not None else None
    capabilities = examiner.adapter.capabilities
    if isinstance(result, Failed) and result.error != INJECTED and are_met((ANY_REFUSAL,), capabilities):
        return "X1"
    # Which slots come next only who claims merges promises: others may merge when they fail.
    is_kept = "merges" in capabilities or examiner.adapter.kind != "slots"
    return "X4" if isinstance(result, NoRoom) and "pool" in capabilities and is_kept else ""


def _find_looks(examiner: Examiner) -> dict[int, str]:
    """Return the steps that only inspect the implementation, each with its law."""
    looks, steps = _looks_of(examiner.adapter.kind), examiner.history.steps
    return _with_faults({step.number: "X8" for step in steps if type(step.operation) in looks}, steps)


def _with_faults(laws: dict[int, str], steps: Sequence[Step]) -> dict[int, str]:
    """Add the faults that were armed for the steps in a table, under the same law."""
    for before, step in pairwise(steps):
        if isinstance(before.operation, Fault) and step.number in laws:
            laws[before.number] = laws[step.number]
    return laws


@functools.cache
def _looks_of(kind: str) -> frozenset[type[Operation]]:
    return frozenset(operation for operation, _, of_kind, _ in find_law("X8").checks if of_kind == kind)


def _first_difference(
    examiner: Examiner, left_out: Collection[int], make: Callable[[], Adapter], start: int = 0
) -> tuple[Step, Outcome] | None:
    """Return the first step whose outcome differs on a new adapter, with the new outcome."""
    twin = make()
    with closing(twin):
        for step in examiner.history.steps[start:]:
            if step.number in left_out:
                continue
            again = apply_step(twin, step.number, step.operation)
            if again != step.outcome:
                return step, again
    return None


def _refuse(law: str, different: tuple[Step, Outcome], how: str) -> None:
    step, again = different
    what = f"step {step.number}, run again {how}"
    raise InvariantViolation(law, what, expected=repr(step.outcome), observed=repr(again))
