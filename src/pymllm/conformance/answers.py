"""Whether what an adapter answers is an answer: looked at after every step, before anything is judged.

What is no answer is the adapter's fault, however late it comes, and never booked as the implementation's.
"""

from __future__ import annotations

from pymllm.conformance.smoke_program import LEGAL_RESULTS
from pymllm.history.codec import fits, name_of
from pymllm.history.operations import Operation
from pymllm.history.outcomes import RESULTS, SIZE_NAMES, Done, Failed, NoRoom, Outcome, Unsupported
from pymllm.text_file import cut

__all__ = ["find_wrong_answer"]

_ALWAYS_LEGAL = (Failed, Unsupported, NoRoom)
_LEGAL = {operation: frozenset((*legal, *_ALWAYS_LEGAL)) for operation, legal in LEGAL_RESULTS.items()}
_RESULTS = frozenset(RESULTS)


def find_wrong_answer(operation: Operation, outcome: Outcome) -> str | None:
    """Say what is wrong with the form of an outcome.

    Parameters
    ----------
    operation : Operation
        What was asked.
    outcome : Outcome
        What came back, which may be anything.

    Returns
    -------
    str or None
        ``None`` where it can be judged. Its content is not looked at.
    """
    if type(outcome) is not Outcome:
        return f"answered {outcome!r}, which is no Outcome"
    result, sizes = outcome.result, outcome.sizes
    kind = type(result)
    if not fits(outcome) or type(sizes) is not dict:
        return _find_wrong_field(outcome)
    if kind not in _LEGAL.get(type(operation), _RESULTS):
        legal = LEGAL_RESULTS[type(operation)]
        return f"answered {result!r}; it must be {' or '.join(kind.__name__ for kind in legal)}"
    if not SIZE_NAMES.issuperset(sizes):
        unknown = next(name for name in sizes if name not in SIZE_NAMES)
        return (
            f"sizes have {cut(repr(unknown))}, which nobody knows; a size is {', '.join(sorted(SIZE_NAMES))}"
        )
    return None


def _find_wrong_field(outcome: Outcome) -> str:
    result = outcome.result
    if type(result) not in _RESULTS:
        return f"answered {result!r}, which is no result"
    if not fits(result):
        return f"answered {result!r}; {name_of(type(result))} has a field of another type than documented"
    if not fits(Outcome(Done(), outcome.effects)):
        return f"effects are {outcome.effects!r}; they must be a tuple of Effect with integers in tuples"
    return f"sizes are {outcome.sizes!r}; they must be a dict of integers by name"
