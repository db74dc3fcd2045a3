"""``python -m benchmarks.soak_profile``: where the processor's time of ``pymllm soak`` goes.

A short campaign over each of our own adapters is played in this process. Each call across a border of two
rooms is timed, and what it calls across another one is taken off, so that the shares add up. The clocks take
their share, too: some 5 us of each operation.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

# Before torch is loaded: the tensors are small, and other threads would be timed, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import OWN
from pymllm.machines import examiner
from pymllm.oracle.judge import Judge
from pymllm.soak.ledger import CampaignHeader
from pymllm.soak.player import play_run
from pymllm.soak.schedule import find_places, plan_runs
from pymllm.workloads.engine_loop import EngineLoop

__all__ = ["PARTS", "Shares", "main", "measure_soak"]

PARTS = ("driver", "engine", "adapter", "judge", "walks")
"""What chooses and writes down; the simulated engine with its own checks; what is
examined, behind its adapter; the oracle; walks from inside."""
SEED, WALK_EVERY, LONGEST = 6, 64, 4_000


@dataclass(frozen=True, slots=True)
class Shares:
    """The number of played operations, and the processor seconds of each part."""

    operations: int
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())


class Stopwatch:
    """Counts the time of the innermost part that is under way."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter(dict.fromkeys(PARTS, 0.0))
        self._under_way = ["driver"]
        self._since = time.process_time()

    def stop(self) -> dict[str, float]:
        """Return the seconds of each part."""
        self._count()
        return dict(self.seconds)

    def _count(self) -> None:
        now = time.process_time()
        self.seconds[self._under_way[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same as a part of its own."""

        def as_part(*arguments: Any, **named: Any) -> Any:
            self._count()
            self._under_way.append(part)
            try:
                return call(*arguments, **named)
            finally:
                self._count()
                self._under_way.pop()

        return as_part


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time the borders between rooms."""
    watch, make_judge = Stopwatch(), examiner.make_judge

    def make_timed_judge(*arguments: Any, **named: Any) -> Judge:
        judge: Any = make_judge(*arguments, **named)
        judge.judge = watch.timed("judge", judge.judge)
        return judge

    with ExitStack() as stack:
        for part, place, name in (
            ("adapter", examiner, "apply_step"),
            ("walks", examiner.Examiner, "look_inside"),
            ("engine", EngineLoop, "step"),
        ):
            # As a plain function, so that a method stays one.
            stack.enter_context(patch.object(place, name, watch.timed(part, getattr(place, name))))
        stack.enter_context(patch.object(examiner, "make_judge", make_timed_judge))
        yield watch


def measure_soak(entry: AdapterEntry, operations: int) -> Shares:
    """Play a campaign on an adapter, whose places take turns as far as the operations reach."""
    places = find_places(entry)
    assert isinstance(places, tuple), places
    header = CampaignHeader("benchmark", {}, SEED, operations, LONGEST, WALK_EVERY, places)
    played = 0
    with stopwatch() as watch:
        for task in plan_runs(header):
            record = play_run(task).record
            assert record.failure is None, record.failure
            played += record.operations
        return Shares(played, watch.stop())


def make_table(rows: Iterable[tuple[str, Shares]]) -> str:
    """Lay out what was measured, for a page."""
    head = ["adapter", "ops/CPU s", *PARTS]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    for name, measured in rows:
        parts = (f"{measured.seconds[part] / measured.total:.0%}" for part in PARTS)
        lines.append(f"| {' | '.join([name, f'{measured.operations / measured.total:,.0f}', *parts])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for, and print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.soak_profile")
    parser.add_argument(
        "--adapter",
        action="append",
        choices=[entry.name for entry in OWN],
        default=[],
        metavar="NAME",
        help="one of our own, such as radix; may be repeated (default: all of them)",
    )
    parser.add_argument("--operations", type=int, default=10_000, metavar="N", help="of each campaign")
    options = parser.parse_args(arguments)
    if options.operations < 1:
        parser.error(f"--operations must be 1 or more, got {options.operations}")
    rows = []
    for entry in OWN:
        if not options.adapter or entry.name in options.adapter:
            print(entry.name, file=sys.stderr)
            rows.append((entry.name, measure_soak(entry, options.operations)))
    print(make_table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
