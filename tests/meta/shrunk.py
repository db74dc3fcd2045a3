"""How small the first failures of the cabinet's faults become: ``python tests/meta/shrunk.py [ID]...``.

Each fault is put in place and looked for from one seed, without Hypothesis, as `pymllm faults hunt` does. The
first program that breaks a law is made smaller, for a minute at most.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pymllm.faults.detection import make_searchers
from pymllm.faults.fault import Fault
from pymllm.faults.plant import planted
from pymllm.faults.table import find_faults, own_cabinet
from pymllm.search.shrinker import Shrinker

SHORT = 12
TURNS = (2_000, 8_000, 32_000, 100_000)

LONG_BY_NATURE = {
    "B29": "a request that cannot grow shows only once others have come, held memory and gone",
    "B52": "two requests and an eviction that frees less than was asked for",
    "B67": "the request must be queued, matched and aborted while another one holds",
    "B68": "the row must have been given back and be named by a request that still lives",
    "B89": "a second request must hit what the first one has cached",
    "B101": "a second request must hit what the first one has cached",
    "B104": "a request must be retracted and come again",
    "B109": "memory must run short with two requests alive",
    "B121": "memory must run short with two requests alive",
    "B157": "a second request must hit what the first one has cached",
}
"""Faults whose shortest known programs are longer, each with the reason: nearly all are an engine's, and a
request alone takes seven operations."""


@dataclass(frozen=True, slots=True)
class Result:
    """The shrunk first failure of a fault: its law, operations before and after, the seconds."""

    fault: str
    law: str
    before: int
    after: int
    seconds: float
    is_finished: bool

    @property
    def is_short(self) -> bool:
        """Whether it became as short as is asked for."""
        return 0 < self.after <= SHORT


def measure(fault: Fault, seed: int, seconds: float, plays: int | None = None) -> Result:
    """Look for a fault, and make its first failure small."""
    with planted(fault.edits):
        searchers = make_searchers(fault, seed)
        turns = (it.go_on(operations) for operations in TURNS for it in searchers)
        caught = next((it for it in turns if it is not None), None)
        if caught is None:
            return Result(fault.id, "", 0, 0, 0.0, True)
        start = time.monotonic()
        shrinker = Shrinker(caught.found, seconds=seconds, plays=plays, laws=fault.laws)
        shrinker.run()
        spent = time.monotonic() - start
        best = shrinker.best
    length = len(caught.found.history)
    return Result(fault.id, best.violation.law, length, len(best.history), spent, not best.is_unfinished)


def tell(results: Sequence[Result]) -> str:
    """Sum up: the share of short ones, and the others with their reasons."""
    short = sum(it.is_short for it in results)
    lines = [
        f"{it.fault}: {it.law} {it.before} -> {it.after} in {it.seconds:.1f} s"
        f"{'' if it.is_finished else ', unfinished'}; {LONG_BY_NATURE.get(it.fault, '')}"
        for it in results
        if not it.is_short
    ]
    share = f"{short} of {len(results)} ({short / len(results):.1%})"
    slowest = max(it.seconds for it in results)
    return "\n".join([*lines, f"{share} have at most {SHORT} operations; {slowest:.1f} s at most for one"])


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    faults = find_faults(options.ids, own_cabinet())
    print(tell([measure(fault, options.seed, options.seconds) for fault in faults]))


if __name__ == "__main__":
    main()
