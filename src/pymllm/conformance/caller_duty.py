"""What a caller of a prefix cache owes: asked before an operation is carried out, not too late."""

from __future__ import annotations

from collections.abc import Iterable

from pymllm.errors import ProgramError
from pymllm.history.operations import Free, FreeSWA, Insert, MoveSWA, Operation, Span
from pymllm.oracle.judge import Judge
from pymllm.oracle.prefix_judge import PrefixJudge
from pymllm.oracle.prefix_model import path_of_key
from pymllm.oracle.slot_ledger import Owner

__all__ = ["makes_sense"]


def makes_sense(judge: Judge, operation: Operation) -> bool:
    """Tell whether the slots that an operation names are the caller's to name.

    Parameters
    ----------
    judge : Judge
        Has followed all that was done before.
    operation : Operation
        What is to be done next. Of judges and operations that are not about slots everything is let pass:
        the judge itself says afterwards what made no sense.
    """
    if not isinstance(judge, PrefixJudge) or judge.ledger.pool is None:
        return True
    try:
        if isinstance(operation, Free | FreeSWA):
            is_kept = isinstance(operation, Free)
            return _are_callers(judge, operation.slots, None if is_kept else True)
        if isinstance(operation, MoveSWA):
            return _are_callers(judge, operation.source, True) and _are_callers(
                judge, operation.target, False
            )
        return not isinstance(operation, Insert) or _may_stand(judge, operation)
    except ProgramError:
        return False


def _are_callers(judge: PrefixJudge, spans: Iterable[Span], has_half: bool | None) -> bool:
    ledger = judge.ledger
    slots = ledger.resolve(spans)
    return len(set(slots)) == len(slots) and all(
        ledger.owner(slot) is Owner.CALLER and has_half in (None, ledger.has_half(slot)) for slot in slots
    )


def _may_stand(judge: PrefixJudge, operation: Insert) -> bool:
    """Tell whether each page of an insert is the caller's, or the cache's own at this place."""
    if operation.slots is None:
        return True
    model, ledger = judge.model, judge.ledger
    whole = model.whole(path_of_key(operation.key))
    slots = ledger.resolve(operation.slots)
    firsts = slots[: len(whole.tokens) : model.page_size]
    return len(set(firsts)) == len(firsts) and all(
        ledger.owner(slot) is Owner.CALLER or ledger.place(slot) == end
        for end, slot in zip(model.page_ends(whole), firsts, strict=False)
    )
