"""Whether what an adapter answers is an answer: looked at after every step, before anything is judged.

What is no answer is the adapter's fault, however late it comes, and never booked as the implementation's.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pymllm.conformance.smoke_program import LEGAL_RESULTS
from pymllm.history.operations import Operation
from pymllm.history.outcomes import RESULTS, SIZE_NAMES, Effect, Failed, NoRoom, Outcome, Unsupported
from pymllm.history.records import fits, name_of
from pymllm.text_file import cut

__all__ = ["find_wrong_answer"]

_ALWAYS_LEGAL = (Failed, Unsupported, NoRoom)
_LEGAL = {operation: frozenset((*legal, *_ALWAYS_LEGAL)) for operation, legal in LEGAL_RESULTS.items()}
_FITS = {kind: fits(kind) if fields(kind) else None for kind in RESULTS}
"""What to look at in a result of each kind; nothing where it has no field."""
_fits_effects = fits(tuple[Effect, ...])


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
    kind = type(result)
    if kind not in _FITS:
        return f"answered {result!r}, which is no result"
    fit = _FITS[kind]
    if fit is not None and not fit(result):
        return f"answered {result!r}; {name_of(kind)} has a field of another type than documented"
    if kind not in _LEGAL.get(type(operation), _FITS):
        legal = LEGAL_RESULTS[type(operation)]
        return f"answered {result!r}; it must be {' or '.join(kind.__name__ for kind in legal)}"
    effects, sizes = outcome.effects, outcome.sizes
    if (type(effects) is not tuple or effects) and not _fits_effects(effects):
        return f"effects are {outcome.effects!r}; they must be a tuple of Effect with integers in tuples"
    if type(sizes) is not dict or not _are_counts(sizes):
        return f"sizes are {outcome.sizes!r}; they must be a dict of integers by name"
    if not SIZE_NAMES.issuperset(sizes):
        unknown = next(name for name in sizes if name not in SIZE_NAMES)
        return (
            f"sizes have {cut(repr(unknown))}, which nobody knows; a size is {', '.join(sorted(SIZE_NAMES))}"
        )
    return None


def _are_counts(sizes: dict[Any, Any]) -> bool:
    # A loop: for the few sizes that there are it takes half the time of sets of their types.
    for name, count in sizes.items():  # noqa: SIM110
        if type(name) is not str or type(count) is not int:
            return False
    return True
