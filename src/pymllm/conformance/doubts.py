"""Whether a violation may be the adapter's: said beside it where what was seen fits a mistake of either.

What only an adapter can have done is its fault, and told before anything is judged
(`pymllm.conformance.rehearsal`). What a bug of the cache explains as well is a violation, and here are the
words for the other half.
"""

from __future__ import annotations

from collections.abc import Callable

from pymllm.errors import InvariantViolation
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import History, Step
from pymllm.history.outcomes import Outcome

_METHODS = {ops.Evict: "evict", ops.Reset: "reset", ops.Insert: "insert"}

_OF_SLOTS = frozenset(["A2", "R4", "R5", "R9", "X7"])
"""Laws that are about what goes back to a pool, and who has it."""


def find_doubt(history: History, violation: InvariantViolation) -> str:
    """Say which mistake of the adapter would look the same; nothing where none is known, or it is ours.

    Parameters
    ----------
    history : History
        A program that breaks a law at its last step.
    violation : InvariantViolation
        The law, and what was looked at.
    """
    if ":" not in history.header.adapter or not history.steps:
        return ""
    last = history.steps[-1]
    if last.outcome is None:
        return ""
    return next((words for ask in _DOUBTS if (words := ask(history, last, last.outcome, violation))), "")


def _slots_told(outcome: Outcome) -> list[int]:
    return [slot for effect in outcome.effects if effect.call == "free" for slot in effect.slots]


def _rise_of(history: History, outcome: Outcome) -> int | None:
    """Return how many slots more are free after the last step, where sizes tell."""
    before = [step.outcome.sizes.get("available_size") for step in history.steps[:-1] if step.outcome]
    after = outcome.sizes.get("available_size")
    return None if not before or before[-1] is None or after is None else after - before[-1]


def _of_effects(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Compare what a call gave back with what was told of it."""
    method = _METHODS.get(type(last.operation)) if violation.law in _OF_SLOTS else None
    if method is None or "pool" not in history.header.capabilities or isinstance(outcome.result, out.Failed):
        return ""
    told = _slots_told(outcome)
    rise = _rise_of(history, outcome)
    count = outcome.result.full if isinstance(outcome.result, out.Evicted) else 0
    if method == "insert":
        return "insert frees slots that stay the caller's, who frees them" if told or (rise or 0) > 0 else ""
    if not told and (count > 0 or (rise or 0) > 0 or method == "reset"):
        return (
            f"tells of no slot that {method} gives back: call self.gave_back(slots) there, or let"
            ' self.calls.watch(pool, "free") see it'
        )
    if rise is not None and rise < len(told):
        return f"never frees the slots that it tells of in {method}: gave_back only tells"
    if rise is not None and rise > len(told):
        return f"makes the pool anew in {method}, or does not tell of all slots that it gives back"
    if method == "evict" and count != len(told):
        return f"counts otherwise than its effects: {count} and {len(told)}; return self.gave_back(slots)"
    return ""


def _of_padding(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Take a first slot 0 for what a class that counts from 0 hands out."""
    if violation.law != "A1":
        return ""
    return "must add a page to each slot of a class that counts from 0 (docs/verify.md#slot-0-and-page-0)"


def _of_size(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Take a size that is wrong from the first step on for one of other units, or of another pool."""
    if violation.law != "A2" or len(history.steps) > 1 or "available_size" not in outcome.sizes:
        return ""
    return (
        "counts otherwise in sizes: available_size is of slots, not pages, without padding (page 0), in a"
        " pool as large as the configuration says"
    )


def _of_no_room(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Take an allocation that raised, or gave nothing, for the class's way to say that there is no room."""
    if not isinstance(last.operation, ops.Alloc | ops.AllocBlocks):
        return ""
    result = outcome.result
    is_empty = isinstance(result, out.Slots) and not result.slots
    if not is_empty and not isinstance(result, out.Failed):
        return ""
    return "lets alloc raise, or return an empty list, where it must return None for too little room"


def _of_callbacks(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Take blocks that nobody was told of for an observer that was never set."""
    if history.header.kind != "blocks" or "callbacks" not in history.header.capabilities:
        return ""
    if any(step.outcome and step.outcome.effects for step in history.steps):
        return ""
    return "never tells of blocks that lose their hashes or become free: call self.lost(blocks, hashes)"


def _of_frees(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Take more than was freed for slots that a class of pages was given."""
    page, operation = history.header.config.get("page_size"), last.operation
    if violation.law != "A2" or not isinstance(operation, ops.Free) or not isinstance(page, int) or page < 2:
        return ""
    named = sum(span.stop - span.start for span in operation.slots)
    is_page_each = named >= page and _rise_of(history, outcome) == named * page
    return "passes slots on where the class takes pages: self.pages_of(slots)" if is_page_each else ""


def _of_pages(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Take more than was asked for, up to as many pages as tokens, for a class that is asked in pages."""
    page, operation, result = history.header.config.get("page_size"), last.operation, outcome.result
    if violation.law != "R5" or not isinstance(operation, ops.Evict) or not isinstance(result, out.Evicted):
        return ""
    if not isinstance(page, int) or not operation.tokens + page <= result.full <= operation.tokens * page:
        return ""
    return "asks the class for so many pages as it is asked for tokens: -(-tokens // self.page_size)"


def _of_count(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Take a size of the cache for one that the adapter counts by itself."""
    size = violation.message
    if size == "available_size" or size not in outcome.sizes:
        return ""
    return f"counts {size} otherwise than the class does; leave out of sizes what the class cannot tell"


def _of_containers(history: History, last: Step, outcome: Outcome, violation: InvariantViolation) -> str:
    """Take numbers that changed for what the adapter itself keeps, or does with what it is passed."""
    if violation.law != "X5" or not violation.message.startswith("numbers that"):
        return ""
    return "changes a list of its own that it returned, or the one that it was passed: let it use a copy"


_DOUBTS: tuple[Callable[[History, Step, Outcome, InvariantViolation], str], ...] = (
    _of_effects,
    _of_frees,
    _of_pages,
    _of_padding,
    _of_size,
    _of_no_room,
    _of_callbacks,
    _of_count,
    _of_containers,
)
