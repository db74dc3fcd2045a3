"""Fewer operations: the end alone, without whole families, then without runs of steps, ever shorter ones."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from pymllm.conformance.reduction import Reduction
from pymllm.conformance.step_references import only, references, without
from pymllm.history.operations import Operation

__all__ = ["drop_families", "drop_kinds", "drop_pairs", "drop_runs", "keep_end"]

_FIRST_END = 4
_LONGER_ENDS = 3
"""Ends are tried from short to long: a short one costs nearly nothing."""
_MOST_IN_PAIRS = 24


def keep_end(reduction: Reduction) -> None:
    """Try the last few operations with what they need, ever more of them, until some break the law."""
    operations = reduction.operations
    kept = _FIRST_END
    while kept < len(operations):
        end = only(operations, range(len(operations) - kept + 1, len(operations) + 1))
        if reduction.attempt(end):
            return
        kept *= _LONGER_ENDS


def drop_families(reduction: Reduction) -> None:
    """Leave out all operations on the keys that begin alike, one family after the other."""
    for family in sorted({_family(operation) for operation in reduction.operations} - {""}):
        numbers = [at for at, operation in enumerate(reduction.operations, 1) if _family(operation) == family]
        reduction.attempt(without(reduction.operations, set(numbers)))


def _family(operation: Operation) -> str:
    """Return how an operation's key begins, its namespace included; nothing where it has none."""
    key = getattr(operation, "key", None)
    return "" if key is None else repr((key.extra_key, key.tokens[:1]))


def drop_kinds(reduction: Reduction) -> None:
    """Leave out all operations of one kind, those first that nobody refers to; else all but the last."""
    operations = reduction.operations
    named = Counter(type(operations[number - 1]) for it in operations for number in references(it))
    kinds = {type(operation): None for operation in operations}
    for kind in sorted(kinds, key=lambda kind: (named[kind], kind.__name__)):
        numbers = [at for at, operation in enumerate(reduction.operations, 1) if type(operation) is kind]
        if numbers and not reduction.attempt(without(reduction.operations, set(numbers))):
            reduction.attempt(without(reduction.operations, set(numbers[:-1])))


def drop_runs(reduction: Reduction) -> None:
    """Leave out so many operations in a row, the last first, then half as many, down to single ones."""
    length = len(reduction.operations) // 2
    while length:
        if not _drop_runs_of(reduction, length) or length > 1:
            length //= 2


def _drop_runs_of(reduction: Reduction, length: int) -> bool:
    """Go once through the program; what nobody refers to goes before what gave it."""
    has_dropped = False
    stop = len(reduction.operations)
    while stop > 0:
        start = max(stop - length, 0)
        dropped = range(start + 1, stop + 1)
        has_dropped |= reduction.attempt(without(reduction.operations, dropped))
        stop = min(start, len(reduction.operations))
    return has_dropped


def drop_pairs(reduction: Reduction) -> None:
    """Leave out any two operations of a short program that do not go one by one."""
    numbers = range(len(reduction.operations), 0, -1)
    for pair in combinations(numbers if len(numbers) <= _MOST_IN_PAIRS else (), 2):
        if reduction.attempt(without(reduction.operations, pair)):
            return drop_pairs(reduction)
    return None
