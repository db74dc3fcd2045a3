"""One run of a campaign: a machine plays from a seed until it has carried out enough operations."""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import json
import math
import os
import platform
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import psutil  # type: ignore[import-untyped]
from msgspec import structs

from pymllm.documents.campaigns import Failure
from pymllm.errors import AdapterError, InvariantViolation
from pymllm.history.files import History, Step
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome
from pymllm.machines.acting import (
    ActingMachine,
    FoundViolation,
    Unwanted,
    acts_of,
    make_machine,
    with_scenario,
)
from pymllm.machines.adapter_calls import close_adapter, describe_error
from pymllm.machines.examiner import Examiner
from pymllm.machines.registry import MACHINES, load_machine
from pymllm.search.shrinker import Finding, make_finding, shrink
from pymllm.soak.ledger import Memory, Place, RunRecord, Shares
from pymllm.soak.schedule import RunTask, reach_of
from pymllm.soak.swarm import Swarm
from pymllm.torch_extra import without_collector

EVERY = 61
"""The interval of timed operations, since reading a clock of processor time is a slow system call. A prime,
so as not to come always right behind a walk from inside."""


class _Timed:
    """A wrapper of an adapter or a judge that measures the time of one operation."""

    def __init__(self, inner: Any, call: str) -> None:
        self._inner = inner
        self.seconds = 0.0
        setattr(self, call, self._make(getattr(inner, call)))

    def _make(self, function: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.process_time() - start

        return timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Clocks:
    """A counter of a run's processor seconds; ``walks`` and ``again``, as of `Shares`, are fully measured."""

    def __init__(self) -> None:
        self._start, self._wall = time.process_time(), time.perf_counter()
        self._until_sample = 0
        self._operations = self._samples = 0
        self._adapter = self._judge = 0.0
        self.walks = self.again = 0.0

    @contextmanager
    def operation(self, examiner: Examiner) -> Iterator[None]:
        """Time the calls to the adapter and to the judge in a ``with`` block."""
        adapter = _Timed(examiner.adapter, "apply")
        judge: Any = _Timed(examiner.judge, "judge")
        examiner.adapter, examiner.judge = adapter, judge
        try:
            yield
        finally:
            examiner.adapter, examiner.judge = adapter._inner, judge._inner
            self._samples += 1
            self._adapter += adapter.seconds
            self._judge += judge.seconds

    def is_sample(self) -> bool:
        """Count an operation, and return whether to time it."""
        self._operations += 1
        self._until_sample -= 1
        if self._until_sample > 0:
            return False
        self._until_sample = EVERY
        return True

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a ``with`` block as ``walks`` or ``again``."""
        start, known = time.process_time(), self._adapter + self._judge
        try:
            yield
        finally:
            # The operations of an end are timed like all others; they must not be counted twice.
            spent = time.process_time() - start - (self._adapter + self._judge - known) * EVERY
            setattr(self, name, getattr(self, name) + max(0.0, spent))

    def stop(self) -> tuple[float, float, Shares]:
        """Return the wall-clock and processor seconds since the start, the latter also by activity."""
        cpu, wall = time.process_time() - self._start, time.perf_counter() - self._wall
        factor = self._operations / max(self._samples, 1)
        adapter, judge = self._adapter * factor, self._judge * factor
        known = adapter + judge + self.walks + self.again
        if adapter + judge and known > cpu:  # a sample is only a sample
            adapter, judge = (
                it * max(cpu - self.walks - self.again, 0) / (adapter + judge) for it in (adapter, judge)
            )
        driver = max(0.0, cpu - adapter - judge - self.walks - self.again)
        return wall, cpu, Shares(*(round(it, 6) for it in (adapter, judge, self.walks, self.again, driver)))


_PROCESS = psutil.Process()
_NAME = f"{platform.node()}/{os.getpid()}/{_PROCESS.create_time():.2f}"
_C = ctypes.CDLL(None)


_COUNTS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _MallInfo(ctypes.Structure):
    """The memory counts of glibc (2.33 and later), in the layout of its header file."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _COUNTS)


@functools.cache
def _set_modules_aside() -> None:
    """Exclude all present objects, such as half a million of torch's, from garbage collection.

    Looking through them took 0.2 s after each run, as long as 2,000 operations.
    """
    gc.collect()
    gc.freeze()


def look_at_memory(operations: int, *, is_first: bool = False) -> Memory:
    """Measure memory after so many operations of this process, once unused memory is released.

    The C library keeps what was freed for later, so that a process looks as large as the largest run it ever
    played; what can go is given back first (`malloc_trim`), where the library can do so. Python gives back an
    arena of a megabyte only when its last object is gone: after a run that needed 500 MiB, 11,000 objects
    more than before, about one megabyte, were seen to keep 240 MiB. So what is in use is counted, too:
    objects (``blocks``), and what the library handed out to everything else (``malloc``). Cost: a full
    garbage collection, and the kernel's look at every mapping, a few milliseconds each.
    """
    _set_modules_aside()
    gc.collect()
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
    used = _PROCESS.memory_full_info()
    uss: int = getattr(used, "uss", used.rss)
    return Memory(_NAME, operations, used.rss, uss, sys.getallocatedblocks(), is_first, _handed_out())


def _handed_out() -> int:
    """Return the bytes that the C library has handed out, or 0 if it does not report them."""
    if not hasattr(_C, "mallinfo2"):
        return 0
    _C.mallinfo2.restype = _MallInfo
    info = _C.mallinfo2()
    return int(info.uordblks + info.hblkhd)


_SECONDS = 60.0
"""Seconds for shrinking a failure in a campaign; `pymllm shrink` can continue from the best result."""


_IDLE_MOST = 8  # acts for each operation: a machine whose acts do nothing must come to an end
_SAMPLE = 64  # one step in so many is part of the digest
_LOOKS = (1, 4, 16, 64)  # acts between two looks at all nodes of a cache, drawn for each run
_REPLAYS = 8  # one run in so many is played a second time (X3, X1, X4, X7)


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """The result of a run."""

    record: RunRecord  # its line for the ledger
    history: History | None = None  # the program, where it failed
    # the program made small, where it broke a law that was not known to be broken
    finding: Finding | None = None


_CLASSES: dict[str, type[ActingMachine]] = {}
"""Machine classes by place. Hypothesis keeps each that it has seen: one for every run would be a leak."""

_Do = Callable[[ActingMachine, Operation], Outcome]

_SPENT = 0
"""The number of operations that this process has carried out in runs."""


class _Run:
    """A run in progress."""

    def __init__(self, task: RunTask, clocks: Clocks) -> None:
        self.task = task
        self.acts = 0
        self.off: tuple[str, ...] = ()
        self.source = random.Random(task.seed)
        self.examiners: list[Examiner] = []  # of its programs: one, but where deviations end them
        self.machine_class = _class_of(task.place)
        self._clocks = clocks
        space: dict[str, Any] = {
            "SEED": task.seed,
            "AUDIT": task.audit == 1,
            "INSPECT_EVERY": self.source.choice(_LOOKS),
            "is_replayed": not self.source.randrange(_REPLAYS),
            "UNWANTED": Unwanted(task.deviations),
            "clocks": clocks,
            "found": None,
        }
        for name, value in space.items():
            setattr(self.machine_class, name, value)

    @property
    def operations(self) -> int:
        """The number of operations carried out so far in the run."""
        return sum(len(it.history) for it in self.examiners)

    @property
    def examiner(self) -> Examiner | None:
        """The examiner of the current program, or ``None`` before the first."""
        return self.examiners[-1] if self.examiners else None

    def play(self) -> None:
        """Play the run to its end; raise any error that ends it early.

        A program that meets what is known ends there, and another begins.
        """
        self._play_program()
        while self._is_short:
            self.acts += 1  # so that programs that end at once come to an end
            self._play_program()

    @property
    def _is_short(self) -> bool:
        return self.operations < self.task.limit and self.acts < _IDLE_MOST * self.task.limit

    def _play_program(self) -> None:
        machine = self.machine_class()
        self.examiners.append(machine.examiner)
        try:
            with machine.passing_over():
                self._act(machine)
        except (InvariantViolation, AdapterError):
            machine.teardown()
            raise
        except BaseException:  # interrupted, or a bug: nothing more is asked
            with suppress(AdapterError):
                close_adapter(machine.examiner.adapter)
            raise
        with self._clocks.part("again"):
            machine.teardown()

    def _act(self, machine: ActingMachine) -> None:
        task, place = self.task, self.task.place
        steps = machine.examiner.history.steps
        if machine.passed_over is not None:
            return  # it met what is known as it began
        swarm = Swarm(machine, place.machine, self.source, reach_of(place.kind, place.config))
        off = acts_of(type(machine)).keys() - set(swarm.acts)
        self.off = tuple(sorted(off.intersection(self.off) if self.examiners[1:] else off))
        next_walk = task.audit if task.audit > 1 else math.inf
        limit, idle = task.limit - self.operations + len(steps), _IDLE_MOST * task.limit
        while len(steps) < limit and self.acts < idle and machine.passed_over is None:
            self.acts += 1
            swarm.play(len(steps))
            if len(steps) >= next_walk:
                next_walk = len(steps) + task.audit
                with self._clocks.part("walks"):
                    machine.look_inside()


def play_run(task: RunTask) -> PlayedRun:
    """Play a run and return its result, whether the run ends normally or not.

    Between two calls nothing of a run is kept. The collector of cyclic garbage only runs between runs: what a
    run writes down stays until its end, and looking through all of it again and again finds nothing. It is on
    again when the run is gone, not before: it looked through all of it once, 2 % of a run's time.
    """
    global _SPENT
    is_first = _key_of(task.place) not in _CLASSES
    with without_collector():
        played, found = _play(task)
    _SPENT += played.record.operations
    if found is not None and found.violation.law not in task.known:
        played = replace(played, finding=make_finding(shrink(found, seconds=_SECONDS)))
    memory = look_at_memory(_SPENT, is_first=is_first)
    return replace(played, record=structs.replace(played.record, memory=memory))


def _play(task: RunTask) -> tuple[PlayedRun, FoundViolation | None]:
    clocks = Clocks()
    run = _Run(task, clocks)
    failure = None
    try:
        run.play()
    except InvariantViolation as violation:
        failure = _failure_of(violation, run)
    except Exception as error:
        found = run.machine_class.found  # closing what broke a law may meet an error, too
        failure = (
            _failure_of(found.violation, run) if found else Failure(None, _describe(error), step=_last(run))
        )
    seconds, cpu, shares = clocks.stop()
    examiner = run.examiner
    evidence = [it.judge.evidence for it in run.examiners]
    steps = [step for it in run.examiners for step in it.history.steps]
    exercised, reached = _sum(it.exercised for it in evidence), _sum(it.reached for it in evidence)
    known = _sum(Counter(it.known.keys()) for it in evidence)
    record = RunRecord(
        *task.head,
        run.acts,
        run.operations,
        run.off,
        exercised,
        reached,
        _sizes_of(steps),
        _digest([run.acts, run.operations, run.off, exercised, reached, run.source.random()], steps),
        failure,
        known,
        _sum(it.not_done for it in evidence),
        _sum(it.done for it in evidence),
        _sum(it.audited for it in run.examiners),
        round(seconds, 6),
        round(cpu, 6),
        shares,
    )
    found, run.machine_class.found = run.machine_class.found, None  # it holds the whole program
    history = examiner.history if examiner is not None and failure is not None else None
    if history is not None and found is not None:
        history = with_scenario(history, found.scenario)
    return PlayedRun(record, history), found


def _sum(counts: Iterable[Counter[str]]) -> dict[str, int]:
    total = Counter[str]()
    for it in counts:
        total.update(it)
    return dict(sorted(total.items()))


def _key_of(place: Place) -> str:
    return json.dumps([place.adapter, place.machine, place.config])


def _class_of(place: Place) -> type[ActingMachine]:
    key = _key_of(place)
    if key not in _CLASSES:
        entry = next(it for it in MACHINES[place.kind] if it.name == place.machine)
        made = make_machine(load_machine(entry), place.adapter, place.config)
        setattr(made, "do", _clocked(made.do))  # noqa: B010  # of a class made here
        _CLASSES[key] = made
    return _CLASSES[key]


def _clocked(do: _Do) -> _Do:
    def timed(machine: ActingMachine, operation: Operation) -> Outcome:
        clocks: Clocks = machine.clocks  # type: ignore[attr-defined]  # set for each run
        if not clocks.is_sample():
            return do(machine, operation)
        with clocks.operation(machine.examiner):
            return do(machine, operation)

    return timed


def _failure_of(violation: InvariantViolation, run: _Run) -> Failure:
    return Failure(violation.law, violation.message, violation.expected, violation.observed, _last(run))


def _last(run: _Run) -> int:
    """Return the number of a history's last step."""
    return run.examiner.next_step - 1 if run.examiner is not None else 0


def _describe(error: Exception) -> str:
    return error.message if isinstance(error, AdapterError) else describe_error(error)


def _sizes_of(steps: list[Step]) -> dict[str, int]:
    outcome = steps[-1].outcome if steps else None
    return dict(outcome.sizes) if outcome is not None else {}


def _digest(counts: list[Any], steps: list[Step]) -> str:
    """Return a digest of the counts, and of a sample of the steps with the last one."""
    sample = 0
    for step in [*steps[::_SAMPLE], *steps[-1:]]:
        sample = zlib.crc32(repr(step).encode(), sample)
    return hashlib.sha256(json.dumps([*counts, sample]).encode()).hexdigest()[:16]
