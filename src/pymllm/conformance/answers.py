"""Whether what an adapter answers is an answer: looked at after every step, before anything is judged.

What is no answer is the adapter's fault, however late it comes, and never booked as the implementation's.
"""

from __future__ import annotations

from pymllm.conformance.smoke_program import LEGAL_RESULTS
from pymllm.oracle.operations import Operation
from pymllm.oracle.outcomes import RESULTS, Effect, Failed, NoRoom, Outcome, Unsupported
from pymllm.oracle.records import fits, name_of

__all__ = ["find_wrong_answer"]

_ALWAYS_LEGAL = (Failed, Unsupported, NoRoom)
_LEGAL = {operation: frozenset((*legal, *_ALWAYS_LEGAL)) for operation, legal in LEGAL_RESULTS.items()}
_FITS = {kind: fits(kind) for kind in RESULTS}
_fits_effects = fits(tuple[Effect, ...])
_NAMES, _COUNTS = {str}, {int}


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
    result = outcome.result
    fit = _FITS.get(type(result))
    if fit is None:
        return f"answered {result!r}, which is no result"
    if not fit(result):
        return f"answered {result!r}; {name_of(type(result))} has a field of another type than documented"
    if type(result) not in _LEGAL.get(type(operation), _FITS):
        legal = LEGAL_RESULTS[type(operation)]
        return f"answered {result!r}; it must be {' or '.join(kind.__name__ for kind in legal)}"
    effects, sizes = outcome.effects, outcome.sizes
    if (type(effects) is not tuple or effects) and not _fits_effects(effects):
        return f"effects are {outcome.effects!r}; they must be a tuple of Effect with integers in tuples"
    are_sizes = type(sizes) is dict and {*map(type, sizes)} <= _NAMES
    if not are_sizes or not {*map(type, sizes.values())} <= _COUNTS:
        return f"sizes are {outcome.sizes!r}; they must be a dict of integers by name"
    return None
