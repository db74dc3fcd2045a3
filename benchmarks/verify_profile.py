"""Where does the time of ``pymllm verify`` go? Shares of processor time by part, for each adapter.

``python -m benchmarks.verify_profile`` samples the stack while each adapter is verified in this process, and
prints a table in Markdown. A sample belongs to the innermost function of a part that is on the stack, so that
what torch or the standard library take is whoever's that called them. Three parts are everything that happens
under one function: walks from inside, second runs of a program (X3), and making programs smaller.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import hypothesis

import pymllm
from pymllm.adapters.registry import OWN, find_adapter
from pymllm.errors import UsageError
from pymllm.machines.registry import CI
from pymllm.search.runner import verify
from pymllm.search.tasks import VerifyPlan

EVERY = 0.005  # Seconds of processor time between two samples.

UNDER = {
    "shrink": "smaller",
    "shrink_findings": "smaller",
    "check_replay": "again",
    "look_inside": "walks",
    "try_adapter": "smoke",
}
"""Functions of `pymllm.machines`, `search` and `work` under which everything belongs to one part."""

ROOMS = {
    "mem_cache": "cache",
    "core": "cache",
    "workloads": "engine",
    "adapters": "adapter",
    "oracle": "judge",
    "invariants": "walks",
    **dict.fromkeys(("machines", "search", "work"), "machine"),
}
"""Parts by room."""

PARTS = (
    "Hypothesis", "machine", "engine", "adapter", "cache", "judge", "walks", "again", "garbage", "smoke",
    "smaller", "rest",
)  # fmt: skip
"""Columns of the table: `machine` is the machines, the examiner and what counts for them."""

_HYPOTHESIS = str(Path(hypothesis.__file__).parent)
_OWN = str(Path(pymllm.__file__).parent)


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a verification: seconds of processor time, operations, and samples by part."""

    adapter: str
    seconds: float
    steps: int
    samples: Counter[str]


class Sampler:
    """Looks where the process is, every so much processor time.

    Attributes
    ----------
    samples : Counter of str
        By part.
    """

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self._parts: dict[str, str | None] = {}
        self._collecting_since = 0.0
        self._collected = 0.0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample while the block lasts."""
        before = signal.signal(signal.SIGPROF, self._take)
        gc.callbacks.append(self._note_collection)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            gc.callbacks.remove(self._note_collection)
            signal.signal(signal.SIGPROF, before)
            self.samples["garbage"] += round(self._collected / EVERY)

    def _note_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":  # no handler is called before its end
            self._collecting_since = time.process_time()
        else:
            self._collected += time.process_time() - self._collecting_since

    def _take(self, _: int, frame: FrameType | None) -> None:
        inner = None
        while frame is not None:
            code = frame.f_code
            part = self._part_of(code.co_filename)
            if part is not None:
                inner = inner or part
                if part == "machine" and code.co_name in UNDER:
                    inner = UNDER[code.co_name]
            frame = frame.f_back
        self.samples[inner or "rest"] += 1

    def _part_of(self, file: str) -> str | None:
        if file not in self._parts:
            self._parts[file] = _part_of(file)
        return self._parts[file]


def _part_of(file: str) -> str | None:
    if file.startswith(_HYPOTHESIS):
        return "Hypothesis"
    if file.startswith(_OWN):
        return ROOMS.get(Path(file).relative_to(_OWN).parts[0])
    return None


def profile(adapter: str, examples: int, seed: int = 0) -> Profile:
    """Verify an adapter in this process, with so many programs for each machine and configuration."""
    sampler = Sampler()
    plan = VerifyPlan((find_adapter(adapter),), (), CI, seed, examples, jobs=0)  # in this process
    start = time.process_time()
    with sampler.sampling():
        report = verify(plan)
    seconds = time.process_time() - start
    steps = sum(machine.steps for machine in report.adapters[0].machines)
    return Profile(adapter, seconds, steps, sampler.samples)


def make_markdown(profiles: Sequence[Profile]) -> str:
    """Make the table: a row for each adapter, operations a second, and the share of each part in percent."""
    parts = [part for part in PARTS if any(one.samples[part] for one in profiles)]
    rows = [("adapter", "operations", "per second", *parts), ("---", *["---:"] * (len(parts) + 2))]
    for one in profiles:
        shares = [f"{100 * one.samples[part] / one.samples.total():.0f}" for part in parts]
        rows.append((one.adapter, f"{one.steps:,}", f"{one.steps / one.seconds:,.0f}", *shares))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, and print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.verify_profile", description=__doc__)
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME",
        help="such as radix; may be repeated (default: all of our own)",
    )
    parser.add_argument("--examples", type=int, default=10, metavar="N", help="programs (default: 10)")
    options = parser.parse_args(arguments)
    if options.examples < 1:
        parser.error(f"--examples must be 1 or more, got {options.examples}")
    try:
        for name in options.adapter:
            find_adapter(name)
    except UsageError as error:
        parser.error(str(error))
    names = options.adapter or [entry.name for entry in OWN]
    profile(names[0], 1)  # what is loaded and compiled once is nobody's share
    print(make_markdown([profile(name, options.examples) for name in names]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
