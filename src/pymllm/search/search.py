"""The search by one machine on one configuration, which keeps the smallest program that breaks a law."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.stateful import get_state_machine_test

from pymllm.errors import AdapterError
from pymllm.history.files import History
from pymllm.machines.acting import ActingMachine, FoundViolation, drive
from pymllm.machines.adapter_calls import (
    EndedConversation,
    close_adapter,
    describe_error,
    ended_conversation,
)
from pymllm.machines.examiner import Examiner
from pymllm.search.shrinker import Finding, make_finding, plays_after, shrink
from pymllm.work.time_limit import HungError

_SLICE = 25  # Programs per run of Hypothesis: what it remembers of them grows with their number.
_SHARE = 0.5  # of the longest time is for Hypothesis, where there are driven programs, too
_LONGER = 4  # times as many acts has a program that it does not play
# Steps of such a program between two walks from inside, which took a quarter of the time. Of 12 faults that
# walks see, one was found later (docs/benchmarks.md).
_WALK_EVERY = 4


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The size of a search in numbers alone, so that the programs do not depend on how busy a computer is."""

    seed: int  # where the choices come from
    steps: int  # most acts of one program
    examples: int  # programs of Hypothesis, or of a targeted run
    # most seconds to look, by the clock, so that nothing goes on for ever; one program is played in any case.
    # 0 for no limit
    seconds: float = 0.0
    # most programs that Hypothesis plays to make the first one smaller that fails; `shrink` comes after it,
    # to its own end. Not a time: what is found must not depend on the machine. 0 keeps what is found as it is
    shrinks: int = 300
    first_slice: int = 0  # which run of Hypothesis is the first, and how many there are at most:
    # what a search found in one can be found again without those before it
    slices: int | None = None
    driven: int = 0  # long programs to drive behind those of Hypothesis, and as many more as that left out


@dataclass(frozen=True, slots=True)
class Crash:
    """The reason why a search has no result: an error that is no violation, and its program if known.

    Where a program in another process ended a conversation, there is what is left of that, too.
    """

    message: str
    history: History | None
    conversation: EndedConversation | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The findings and counts of a search."""

    programs: int  # programs, steps: played, those included that shrinking took
    steps: int
    seconds: float
    exercised: Counter[str]  # exercised, audited, reached: as of `Evidence` and `Examiner`, over all programs
    audited: Counter[str]
    reached: Counter[str]
    found: tuple[Finding, ...]  # the smallest program seen for each broken law, the smallest of all first
    crash: Crash | None  # what ended the search early; ``None`` where a violation did
    # finds the same with nothing before it; ``None`` where no run of Hypothesis has found anything
    again: SearchPlan | None = None
    missing: int = 0  # programs of the plan that were not played because time was up
    broken: Counter[str] = field(default_factory=Counter)  # tests that broke a law; each ended its program
    # known, passed_over: programs that met a deviation, by its name, or broke a law that nobody looked for
    known: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)
    left_out: frozenset[str] = frozenset()  # laws of which something was not told, or not done
    # not_done, done: as of `Evidence`, over all programs; undone: the shortest beginning that shows each
    not_done: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    undone: dict[str, History] = field(default_factory=dict)


@contextmanager
def _plain_draws() -> Iterator[None]:
    """Keep Hypothesis from preferring numbers that occur in loaded modules.

    Which those are depends on what else a process has done, and equal seeds must give equal programs
    in every process. There is no setting for it.
    """
    name = "_maybe_draw_constant"
    before = getattr(HypothesisProvider, name)
    setattr(HypothesisProvider, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        setattr(HypothesisProvider, name, before)


class _TimeIsUp(BaseException):
    """Raised to stop Hypothesis between two programs; Hypothesis would shrink an `Exception` as a failure."""


class _Watch:
    """The counts of all programs of a machine class, and its smallest failing programs."""

    def __init__(self, machine: type[ActingMachine], plan: SearchPlan) -> None:
        self._machine = machine
        self._plan = plan
        self._programs = 0
        self._failed_at: int | None = None
        self._steps = 0
        self._left_out: set[str] = set()
        self._not_done: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._undone: dict[str, History] = {}
        self._counts: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), Counter()
        self._smallest: dict[str, FoundViolation] = {}
        self._broken: Counter[str] = Counter()
        self._known: Counter[str] = Counter()
        self._passed_over: Counter[str] = Counter()
        self.share = 1.0  # of the plan's seconds: how much may be spent so far,
        self.most = plan.examples  # and how many programs may have been played
        self._is_stopped = False
        self._is_out_of_time = False
        self._is_hung = False
        self._crash: Crash | None = None
        machine.on_end = self._note
        # What loading torch takes is not the search's time.
        self.watch(lambda: close_adapter(machine.make_adapter()))
        self._start = time.monotonic()

    @property
    def exercised(self) -> Counter[str]:
        """The number of tests of each law so far."""
        return self._counts[0]

    @property
    def reached(self) -> Counter[str]:
        """The number of times that each coverage goal was reached so far."""
        return self._counts[2]

    @property
    def is_over(self) -> bool:
        """Whether a violation or a crash has ended the search."""
        return bool(self._smallest or self._crash)

    @property
    def is_late(self) -> bool:
        """Whether the search must stop: its shrinking budget is spent, or its programs, or its time."""
        if self._failed_at is not None:
            return self._programs - self._failed_at >= self._plan.shrinks
        if self._programs >= self.most:  # Hypothesis may play one more than it was asked for
            return True
        spent = time.monotonic() - self._start
        self._is_out_of_time = (
            0 < self.share * self._plan.seconds < spent + spent / max(self._programs, 1)
            and self._programs > 0
        )
        return self._is_out_of_time

    def begin(self) -> ActingMachine:
        """Return the machine for the next program; raise `_TimeIsUp` if the search must stop."""
        if self._is_hung or self.is_late:
            self._is_stopped = True
            raise _TimeIsUp
        return self._machine()

    def watch(self, play: Callable[[], object]) -> None:
        """Call a function that plays programs, and record an error instead of raising it."""
        try:
            play()
        except _TimeIsUp:
            pass
        except Exception as error:
            # Whatever else goes wrong once a program has failed, such as one that does not fail each time it
            # is played, is a consequence. So is Hypothesis's complaint of a program that never began.
            if self._failed_at is None and not self._is_stopped:
                self._crash = _crash_of(error, None)

    def result(self) -> SearchResult:
        """Return the result of the search."""
        spent = time.monotonic() - self._start
        plays = plays_after(self._plan.shrinks)
        short = [shrink(found, plays=plays) for found in self._smallest.values()]
        short.sort(key=lambda found: len(found.history))
        found = tuple(make_finding(found) for found in short)
        crash = None if found else self._crash
        missing = 0 if self.is_over or not self._is_out_of_time else self.most - self._programs
        return SearchResult(
            self._programs,
            self._steps,
            spent,
            *self._counts,
            found,
            crash,
            missing=missing,
            broken=self._broken,
            known=self._known,
            passed_over=self._passed_over,
            left_out=frozenset(self._left_out),
            not_done=self._not_done,
            done=self._done,
            undone=self._undone,
        )

    def _note(self, examiner: Examiner) -> None:
        self._programs += 1
        self._steps += len(examiner.history)
        self._left_out |= examiner.judge.evidence.left_out
        self._note_undone(examiner)
        seen = examiner.judge.evidence.exercised, examiner.audited, examiner.judge.evidence.reached
        for count, new in zip(self._counts, seen, strict=True):
            count.update(new)
        self._known.update(examiner.judge.evidence.known.keys())
        self._passed_over.update(examiner.judge.evidence.passed_over.keys())
        # A program ends in a finally clause, in which an error on its way out can be seen.
        error, found = sys.exc_info()[1], self._machine.found
        if found is not None and found.history is examiner.history:
            self._keep(found)
        elif isinstance(error, Exception) and not _is_hypothesis(error):
            self._is_hung = isinstance(error, HungError)
            self._keep_crash(_crash_of(error, examiner.history))

    def _note_undone(self, examiner: Examiner) -> None:
        """Count the steps that were not done, and keep the shortest program with each kind."""
        evidence, history = examiner.judge.evidence, examiner.history
        self._done.update(evidence.done)
        self._not_done.update(evidence.not_done)
        for told, step in evidence.first_not_done.items():
            kept = self._undone.get(told)
            if kept is None or step < kept.steps[-1].number:
                steps = [it for it in history.steps if it.number <= step]
                self._undone[told] = History(history.header, steps)

    def _keep(self, found: FoundViolation) -> None:
        self._fail()
        self._broken[found.violation.law] += 1
        before = self._smallest.get(found.violation.law)
        if before is None or len(found.history) <= len(before.history):
            self._smallest[found.violation.law] = found

    def _keep_crash(self, crash: Crash) -> None:
        self._fail()
        before = self._crash.history if self._crash is not None else None
        if before is None or crash.history is None or len(crash.history) <= len(before):
            self._crash = crash

    def _fail(self) -> None:
        if self._failed_at is None:
            self._failed_at = self._programs


def search(machine: type[ActingMachine], plan: SearchPlan) -> SearchResult:
    """Play a machine by Hypothesis, and shrink the first program that breaks a law; then drive long ones.

    The class is a new one of `make_machine`. Hypothesis knows how to vary and to shrink; in the same time
    `drive` plays several times as many acts, by the weights that the machine gives. Shrinking may slip from
    one law to another that a smaller program breaks: all that were seen are in the result. Equal plans give
    equal results, times aside, as long as their time does not run out.
    """
    watch = _Watch(machine, plan)
    watch.share = _SHARE if plan.driven else 1.0
    # The first program of Hypothesis is the simplest that there is, and tells little when it is run again.
    machine.REPLAY_AT = 0 if plan.examples + plan.driven == 1 else 1
    number = plan.first_slice
    # An adapter that cannot even be made ends the search before it begins.
    for number, programs in () if watch.is_over else _slices(plan):
        # A factory will do, says its documentation. What has no source text, and a key that no database asks
        # for, spare a tokenizer over this file and theirs, in each run: 4 ms, a hundredth of `pymllm verify`.
        factory: Any = functools.partial(watch.begin)
        run: Any = get_state_machine_test(factory, settings=_settings(plan.steps, programs))
        run._hypothesis_internal_database_key = b""
        with _plain_draws():
            # With the class's name, each configuration gets programs of its own.
            watch.watch(seed(f"{plan.seed}/{machine.__name__}/{number}")(run))
        if watch.is_late or watch.is_over:
            break
    if watch.is_over:
        result = watch.result()
        again = dataclasses.replace(plan, seconds=0.0, first_slice=number, slices=1, driven=0)
        return dataclasses.replace(result, again=again) if result.found else result
    if plan.driven:
        watch.share, watch.most = 1.0, plan.examples + plan.driven
        _drive_on(watch, machine, plan.seed, _LONGER * plan.steps, lambda: False)
    return watch.result()


def targeted_run(
    machine: type[ActingMachine], plan: SearchPlan, laws: Collection[str], goals: Collection[str] = ()
) -> SearchResult:
    """Drive a machine from successive seeds until some laws are tested and some goals reached.

    Every program has ``plan.steps`` acts. Of one that breaks a law, steps are dropped; nothing else is made
    smaller.
    """
    watch = _Watch(machine, plan)

    def is_done() -> bool:
        return all(watch.exercised[law] for law in laws) and all(watch.reached[name] for name in goals)

    _drive_on(watch, machine, plan.seed, plan.steps, is_done)
    return dataclasses.replace(watch.result(), missing=0)  # what it has not met is told by its name


def _drive_on(
    watch: _Watch,
    machine: type[ActingMachine],
    seed: int,
    acts: int,
    is_done: Callable[[], bool],
) -> None:
    """Drive a machine from successive seeds, until the search is over, late or done."""
    machine.AUDIT_EVERY = _WALK_EVERY
    for number in itertools.count():
        if watch.is_over or watch.is_late or is_done():
            return
        watch.watch(functools.partial(drive, machine, seed + number, acts))


def _slices(plan: SearchPlan) -> Iterator[tuple[int, int]]:
    """Yield the runs of Hypothesis, each with its number and its count of programs."""
    slices = itertools.count() if plan.slices is None else range(plan.slices)
    for number in (plan.first_slice + place for place in slices):
        if number * _SLICE >= plan.examples:
            return
        yield number, min(_SLICE, plan.examples - number * _SLICE)


def _settings(steps: int, programs: int) -> settings:
    return settings(
        max_examples=programs,
        stateful_step_count=steps,
        phases=(Phase.generate, Phase.shrink),
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
    )


def _crash_of(error: BaseException, history: History | None) -> Crash:
    """Return the crash for the first error of a chain, or for the first `AdapterError` in the chain."""
    errors = [error]
    while errors[-1].__context__ is not None and not _is_hypothesis(errors[-1].__context__):
        errors.append(errors[-1].__context__)
    of_adapters = [error for error in errors if isinstance(error, AdapterError)]
    if of_adapters:
        return Crash(of_adapters[-1].message, history, ended_conversation(of_adapters[-1]))
    return Crash(describe_error(errors[-1]), history)


def _is_hypothesis(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "hypothesis"
