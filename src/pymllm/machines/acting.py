"""Acts: methods with small integers as arguments, played by Hypothesis or by a seeded generator.

Draw small, derive big: an act takes a few bounded integers and derives keys, slots and operations from
them, which keeps Hypothesis fast and its shrinking meaningful, and lets `drive` run the same acts many
times faster from a seed. To Hypothesis, too, an act is plain numbers: one that says which, and its arguments.
"""

from __future__ import annotations

import functools
import inspect
import random
import sys
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from hypothesis.stateful import Rule, RuleBasedStateMachine, RuleStrategy, rule

from pymllm.adapters.base import Adapter
from pymllm.errors import InvariantViolation
from pymllm.history.claims import REFUSALS, all_claims
from pymllm.history.codec import name_of
from pymllm.history.files import Config, Deviation, History, PlayedAct, PlayedActs
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Failed, Outcome, Unsupported
from pymllm.machines.adapter_calls import build_adapter, close_adapter
from pymllm.machines.examiner import Examiner

if TYPE_CHECKING:
    from hypothesis.internal.conjecture.data import ConjectureData


@dataclass(frozen=True, slots=True)
class Scenario:
    """The acts of one run, from which a machine can repeat the run's operations."""

    machine: type[ActingMachine]  # who played; without adapter and configuration, which are the history's
    audit: bool  # whether it walked the implementation from inside
    acts: tuple[PlayedAct, ...]


def with_scenario(history: History, scenario: Scenario | None) -> History:
    """Return a history with the acts of a scenario, or none, in its header; the steps stay the same."""
    acts = None if scenario is None else PlayedActs(scenario.machine.__name__, scenario.audit, scenario.acts)
    return History(replace(history.header, scenario=acts), history.steps)


T = TypeVar("T")

_LEFT_AWAY = Outcome(Unsupported("misuse that is not claimed to be refused"))


def act(
    needs: str | None = None, weight: int = 1, **ranges: tuple[int, int]
) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that makes a method an act, with integer arguments in the given closed ranges.

    It makes sense where the machine's attribute ``needs`` is true. `drive` chooses it by its ``weight``; in a
    program of Hypothesis all acts that are on weigh the same.
    """

    def mark(method: Callable[..., None]) -> Any:
        noted = _noted(method)
        decorate: Any = rule()
        made = decorate(noted)
        made.act_needs, made.act_ranges, made.act_weight = needs, ranges, weight
        made.act_itself = noted
        return made

    return mark


def _noted(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap an act so that the machine notes each call, except a call by another act."""
    name, *names = method.__name__, *list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def noted(machine: ActingMachine, *values: int, **arguments: int) -> None:
        if values:
            arguments |= zip(names, values, strict=False)
        if machine.is_acting:
            method(machine, **arguments)
            return
        if machine.passed_over is not None:
            return
        machine._noted.append((name, arguments))
        machine.is_acting = True
        try:
            method(machine, **arguments)
        except InvariantViolation:
            # What has come to its end must not call the next act, which would do nothing.
            if machine.passed_over is None or machine.is_ending:
                raise
        except BaseException:
            machine.has_crashed = True
            raise
        finally:
            machine.is_acting = False

    return noted


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The violations that a search does not report: known deviations, and those of unwanted laws.

    Each ends its program, or lets what was seen count as right.
    """

    deviations: tuple[Deviation, ...] = ()  # what is known
    but_for: tuple[str, ...] = ()  # laws whose violations are wanted, if not all are


@dataclass(frozen=True, slots=True)
class FoundViolation:
    """A program that breaks a law, with the violation."""

    history: History  # the program with its outcomes
    violation: InvariantViolation  # the law, and what was seen
    is_unfinished: bool = False  # whether the search for a smaller one was cut short
    # the acts that led to it, where a machine played them: what an engine of theirs does wrong, its calls
    # alone do not show
    scenario: Scenario | None = None
    # what this package did wrong itself while a smaller program was looked for, a line each
    mistakes: tuple[str, ...] = ()


_SWARMS = 2**16  # sets of acts that a program of Hypothesis may be limited to, the whole one included
_OFF_MOST = 0.75  # An act is left out of one with a chance up to this, drawn for each set.
_TRIES = 3  # draws of an act that makes no sense yet, until all that do are looked for


class _DrawnAct(NamedTuple):
    """An act as Hypothesis draws it: the rule to play, what it needs, and its arguments' ranges."""

    rule: Rule
    needs: str | None
    ranges: tuple[tuple[str, int, int], ...]

    def makes_sense(self, machine: ActingMachine) -> bool:
        """Tell whether the attribute that the act needs is true of a machine now."""
        return self.needs is None or bool(getattr(machine, self.needs))


class _Numbers(RuleStrategy):
    """A Hypothesis strategy that draws an act as plain numbers: its index and its arguments.

    Hypothesis's own choice of a rule asks a strategy for each argument and draws whether each rule is on: ten
    draws for an act, and three times as long. Here one number of a program says which acts are on in it.
    """

    def __init__(self, machine: ActingMachine) -> None:
        super().__init__(machine)
        self._machine = machine
        self._all = _acts_in_order(type(machine))
        self._on: tuple[_DrawnAct, ...] | None = None

    def do_draw(self, data: ConjectureData) -> tuple[Rule, dict[str, int]]:
        """Draw an act that can be played now, with its arguments."""
        if self._on is None:
            self._on = _swarm(self._all, data.draw_integer(0, _SWARMS - 1))
        drawn = self._choose(self._on, data)
        return drawn.rule, {name: data.draw_integer(low, high) for name, low, high in drawn.ranges}

    def _choose(self, on: tuple[_DrawnAct, ...], data: ConjectureData) -> _DrawnAct:
        # A number stands for the same act at any time, so that a program from which others were dropped still
        # does what it did. Where that makes no sense it is drawn again, and marked as what can be dropped.
        machine = self._machine
        for _ in range(_TRIES):
            data.start_span(self.label)
            drawn = on[data.draw_integer(0, len(on) - 1)]
            makes_sense = drawn.makes_sense(machine)
            data.stop_span(discard=not makes_sense)
            if makes_sense:
                return drawn
        ready = [it for it in on if it.makes_sense(machine)]
        ready = ready or [it for it in self._all if it.makes_sense(machine)]
        return ready[data.draw_integer(0, len(ready) - 1)]


@functools.lru_cache
def _acts_in_order(machine: type[ActingMachine]) -> tuple[_DrawnAct, ...]:
    """Return a machine's acts, those with fewer arguments first, since these are simpler."""
    rules = {it.function.__name__: it for it in machine.setup_state().rules}
    acts = [
        _DrawnAct(rules[name], method.act_needs, tuple((it, *ends) for it, ends in method.act_ranges.items()))
        for name, method in acts_of(machine).items()
    ]
    return tuple(sorted(acts, key=lambda it: len(it.ranges)))


def _swarm(acts: tuple[_DrawnAct, ...], number: int) -> tuple[_DrawnAct, ...]:
    """Return the acts that a program may use: all for number 0, to which Hypothesis shrinks, or some."""
    if not number:
        return acts
    source = random.Random(number)
    off = source.random() * _OFF_MOST
    return tuple(it for it in acts if source.random() >= off) or acts


class ActingMachine(RuleBasedStateMachine):
    """A machine that plays acts on one configuration of an adapter; `make_machine` makes its subclasses."""

    ADAPTER: ClassVar[str]  # registry name or ``module:Class``
    CONFIG: ClassVar[Config]
    SEED: ClassVar[int | None] = None
    AUDIT: ClassVar[bool] = True  # whether to walk the implementation from inside,
    AUDIT_EVERY: ClassVar[int] = 1  # after so many steps; and at the end, where it is more than one
    REPLAY_EVERY: ClassVar[int] = 8  # One program of so many is run a second time:
    REPLAY_AT: ClassVar[int] = 0  # the first, or the one behind so many.
    LEFT_OUT: ClassVar[frozenset[str]] = frozenset()  # capabilities that no use is made of
    UNWANTED: ClassVar[Unwanted] = Unwanted()  # what ends a program and is no finding
    judge: Any  # the one of the adapter's kind
    # The last violation that any run met; after Hypothesis has shrunk, the smallest.
    found: ClassVar[FoundViolation | None] = None
    steps_run: ClassVar[int] = 0  # operations and programs so far
    runs: ClassVar[int] = 0
    # Called with each ended examiner, and before each operation.
    on_end: ClassVar[Callable[[Examiner], None] | None] = None
    before_step: ClassVar[Callable[[], None] | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._rules_strategy = _Numbers(self)
        self._noted: list[tuple[str, dict[str, int]]] = []
        self.is_acting = self.is_ending = False
        self.has_crashed = False  # An act ended in an error that is no violation: nothing more is asked.
        # The law or the deviation that has ended the program and is no finding.
        self.passed_over: str | None = None
        audit = self.AUDIT_EVERY if self.AUDIT else 0
        self.examiner = Examiner(
            self.make_adapter(), seed=self.SEED, audit=audit, deviations=self.UNWANTED.deviations
        )
        self.judge = self.examiner.judge
        claims = self.judge.model.claims
        self.capabilities = claims - all_claims(self.LEFT_OUT)
        self.can_refuse = not self.capabilities.isdisjoint(REFUSALS)  # some misuse, so that it can be tried
        self._refuses_all = self.capabilities.issuperset(REFUSALS)
        self.can_fail = "faults" in self.capabilities  # calls can be let fail
        with self.passing_over():
            try:
                self.begin()
            except InvariantViolation:
                if self.passed_over is None:  # nobody tears down what could not be made
                    self.teardown()
                raise

    @classmethod
    def make_adapter(cls) -> Adapter:
        """Build the adapter that the class names."""
        return build_adapter(cls.ADAPTER, dict(cls.CONFIG))

    @property
    def acts_played(self) -> list[PlayedAct]:
        """The acts played so far."""
        return [PlayedAct(name, tuple(arguments.items())) for name, arguments in self._noted]

    @contextmanager
    def passing_over(self) -> Iterator[None]:
        """Suppress a violation that only ends the program, inside a ``with`` block."""
        try:
            yield
        except InvariantViolation:
            if self.passed_over is None:
                raise

    def begin(self) -> None:
        """Set up the attributes of a subclass, before the first act."""

    def end(self) -> None:
        """Give all held memory back, before the program is judged as a whole."""

    def do(self, operation: Operation) -> Outcome:
        """Carry out and judge an operation; skip misuse that the adapter does not claim to refuse."""
        if self.can_refuse and not self._refuses_all and not self._may_ask(operation):
            return _LEFT_AWAY
        before_step = type(self).before_step
        if before_step is not None:
            before_step()
        try:
            return self.examiner.do(operation)
        except InvariantViolation as violation:
            self._remember(violation)
            raise

    def _may_ask(self, operation: Operation) -> bool:
        """Tell whether the adapter claims to refuse every mistake in an operation."""
        read = getattr(self.judge.model, f"read_{name_of(type(operation))}", None)
        wrong = read(operation, Outcome(Failed("", ""))).wrong if read is not None else ()
        return all(misuse.needs in self.capabilities for misuse in wrong)

    def look_inside(self) -> None:
        """Audit the implementation's internal state now, even without `AUDIT`."""
        self._watched(self.examiner.look_inside)

    def _watched(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except InvariantViolation as violation:
            self._remember(violation)
            raise

    def _remember(self, violation: InvariantViolation) -> None:
        evidence = self.judge.evidence
        known = self.examiner.find_known(violation)
        if known is not None:
            evidence.known[known.name] += 1
            self.passed_over = known.name
            return
        wanted = self.UNWANTED.but_for
        if wanted and violation.law not in wanted:
            evidence.passed_over[violation.law] += 1
            self.passed_over = violation.law
            return
        scenario = Scenario(_bare(type(self)), self.AUDIT, tuple(self.acts_played))
        type(self).found = FoundViolation(self.examiner.history, violation, scenario=scenario)

    def teardown(self) -> None:
        """Give all memory back, judge the end, and in some runs run the whole program a second time (X3)."""
        cls, found = type(self), self.found
        is_broken = found is not None and found.history is self.examiner.history
        try:
            is_over = is_broken or self.has_crashed or self.examiner.is_cut_short
            if not is_over and self.passed_over is None:
                self.is_ending = True
                with self.passing_over():
                    self.end()
                    if self.AUDIT and self.AUDIT_EVERY > 1:
                        self.look_inside()
                    if self.is_replayed:
                        self._watched(lambda: self.examiner.check_replay(self.make_adapter))
        finally:
            cls.runs += 1
            # Not step by step: each attribute set on a class lets Python forget where its others are.
            cls.steps_run += len(self.examiner.history)
            try:
                close_adapter(self.examiner.adapter, self.examiner.history)
            finally:
                if cls.on_end is not None:
                    cls.on_end(self.examiner)

    @property
    def is_replayed(self) -> bool:
        """Whether this program is run a second time.

        Every one is once a violation was found: a shrinker must meet it in each run, not in some.
        """
        return self.runs % self.REPLAY_EVERY == self.REPLAY_AT or self.found is not None


def _bare(machine: type[ActingMachine]) -> type[ActingMachine]:
    """Return the written class of a generated machine: its first base that a module defines by name."""
    bases = [base for base in machine.__mro__ if issubclass(base, ActingMachine)]
    return next(base for base in bases if vars(sys.modules[base.__module__]).get(base.__name__) == base)


def make_machine(
    base: type[ActingMachine],
    adapter: str,
    config: Config,
    *,
    seed: int | None = None,
    audit: bool = True,
    unwanted: Unwanted | None = None,
) -> type[ActingMachine]:
    """Return a new machine class for one adapter and configuration.

    Hypothesis files failing examples under a class's name, so two must not share one.
    """
    parts = [adapter, *(f"{key}_{value}" for key, value in config.items())]
    name = "".join(
        character if character.isalnum() else "_" for character in "__".join([base.__name__, *parts])
    )
    space = {
        "ADAPTER": adapter,
        "CONFIG": config,
        "SEED": seed,
        "AUDIT": audit,
        "UNWANTED": unwanted or Unwanted(),
    }
    return type(name, (base,), space)


def acts_of(machine_class: type[ActingMachine]) -> dict[str, Any]:
    """Return the acts of a machine by name, in alphabetical order."""
    methods = {name: getattr(machine_class, name) for name in sorted(dir(machine_class))}
    return {name: method for name, method in methods.items() if hasattr(method, "act_ranges")}


class ActPlayer:
    """A player that draws a machine's acts from a seeded generator; the same seed gives the same program."""

    def __init__(self, machine: ActingMachine, source: random.Random) -> None:
        self._machine, self._source = machine, source
        self._acts = list(acts_of(type(machine)).values())
        self._needs = list(dict.fromkeys(method.act_needs for method in self._acts if method.act_needs))
        self._ready: dict[tuple[bool, ...], tuple[list[Any], list[int]]] = {}

    def play(self) -> None:
        """Choose by weight an act that can be played now, draw its arguments, and play it."""
        answers = tuple([bool(getattr(self._machine, need)) for need in self._needs])
        if answers not in self._ready:
            self._ready[answers] = self._ready_where(dict(zip(self._needs, answers, strict=True)))
        acts, cumulative = self._ready[answers]
        source = self._source
        chosen = acts[bisect(cumulative, source.random() * cumulative[-1], 0, len(acts) - 1)]
        drawn = {name: source.randint(low, high) for name, (low, high) in chosen.act_ranges.items()}
        chosen.act_itself(self._machine, **drawn)

    def _ready_where(self, met: dict[str, bool]) -> tuple[list[Any], list[int]]:
        """Return the acts that can be played if these needs are met, with their cumulative weights."""
        ready = list(compress(self._acts, (met.get(method.act_needs, True) for method in self._acts)))
        return ready, list(accumulate(method.act_weight for method in ready))


def drive(machine_class: type[ActingMachine], seed: int, steps: int) -> ActingMachine:
    """Play a number of acts from a seed, and return the ended machine; equal seeds give equal runs."""
    machine = machine_class()
    player = ActPlayer(machine, random.Random(seed))
    try:
        for _ in range(steps):
            if machine.passed_over is not None:
                break
            player.play()
    finally:
        machine.teardown()
    return machine
