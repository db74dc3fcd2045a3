"""``python -m benchmarks.file_changes``: how often control changes from file to file in one judged eviction.

A reader follows the code from file to file, there and back for each getter that is elsewhere. A profiler's
hook sees each call and each return of a Python function; a change is an event whose file is another than that
of the event before.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType

from pymllm.adapters.registry import make_adapter
from pymllm.history.operations import Alloc, Evict, Insert, Key, Match, Operation, Span
from pymllm.machines.examiner import Examiner

__all__ = ["CONFIG", "count_changes", "count_eviction", "main", "make_table"]

CONFIG = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
PROMPTS = ((1, 2, 3, 4), (1, 2, 5, 6), (7, 8, 9, 10))
"""Inserted one after the other: two that share a prefix, and one that stands alone."""

Pair = tuple[str, str]


def count_changes(work: Callable[[], object]) -> Counter[Pair]:
    """Count the changes from one file to another while something is done."""
    pairs: Counter[Pair] = Counter()
    before = ""

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal before
        if event in ("call", "return"):
            now = frame.f_code.co_filename
            if before and now != before:
                pairs[before, now] += 1
            before = now

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    ours = count_changes.__code__.co_filename  # the call of `setprofile` that ends it is seen, too
    return Counter({pair: count for pair, count in pairs.items() if ours not in pair})


def count_eviction(tokens: int, *, has_walk: bool = False) -> Counter[Pair]:
    """Count the changes of one eviction on `RadixCache`, asked, answered, judged and followed.

    The tree has three prompts of four tokens, of which two share two, and the first was matched again. One
    token was evicted before, so that what is looked up once is known. ``has_walk``: whether a walk of the
    tree from inside, as after each step of a search, counts, too.
    """
    examiner = Examiner(make_adapter("radix", CONFIG), audit=int(has_walk))
    for step, operation in enumerate(_program(), 1):
        examiner.do(operation, step)
    return count_changes(lambda: examiner.do(Evict(tokens)))


def _program() -> list[Operation]:
    program: list[Operation] = []
    for tokens in PROMPTS:
        program.append(Alloc(len(tokens)))
        program.append(Insert(Key(tokens), (Span(len(program), 0, len(tokens)),)))
    return [*program, Match(Key(PROMPTS[0])), Evict(1)]


def make_table(pairs: Counter[Pair]) -> str:
    """Lay out the changes between each two files, there and back together."""
    both: Counter[Pair] = Counter()
    for (before, now), count in pairs.items():
        both[min(before, now), max(before, now)] += count
    lines = ["| file | file | changes |", "| --- | --- | ---: |"]
    for pair, count in sorted(both.items(), key=lambda it: (-it[1], it[0])):
        one, other = map(_shown, pair)
        lines.append(f"| {one} | {other} | {count} |")
    return "\n".join([*lines, f"| all | | {both.total()} |"])


def _shown(name: str) -> str:
    """Return what tells a file from others: its place in the package, or its name elsewhere."""
    _, found, rest = name.rpartition(f"{os.sep}pymllm{os.sep}")
    return rest if found else os.path.basename(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.file_changes")
    parser.add_argument("--tokens", type=int, default=8, metavar="N", help="to evict (default: 8)")
    parser.add_argument("--walk", action="store_true", help="count the walk from inside, too")
    options = parser.parse_args(arguments)
    if options.tokens < 0:
        parser.error(f"--tokens must be 0 or more, got {options.tokens}")
    print(make_table(count_eviction(options.tokens, has_walk=options.walk)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
