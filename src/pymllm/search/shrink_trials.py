"""Trials of candidates for a smaller program, within a budget and each on a new adapter."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from pymllm.adapters.registry import find_adapter
from pymllm.errors import InvariantViolation, ProgramError, PymllmError
from pymllm.history.files import Config, Header, PlayedAct
from pymllm.history.operations import Free, FreeSWA, Insert, MoveSWA, Operation, Span
from pymllm.machines.acting import (
    ActingMachine,
    FoundViolation,
    Scenario,
    Unwanted,
    acts_of,
    make_machine,
)
from pymllm.machines.adapter_calls import (
    build_adapter,
    close_adapter,
    closing,
    describe_error,
    load_class,
)
from pymllm.machines.examiner import Examiner
from pymllm.oracle.judge import Judge
from pymllm.oracle.models.kind_model import KindModel
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import path_of_key
from pymllm.oracle.models.slot_ownership import Owner
from pymllm.search.program import end_program
from pymllm.search.reduction import Program, references, weigh, without
from pymllm.work.time_limit import HungError

_HANGS = 3
"""The number of hangs after which an adapter is no longer tried, since each hang costs a full time limit."""

_OWN_ROOMS = ("pymllm.machines.", "pymllm.search.", "pymllm.work.", "pymllm.oracle.")

_UNITS = ("page_size", "block_size")
"""Keys of a configuration that stay at the values declared by the adapter's class, such as its page sizes."""


class OutOfBudgetError(Exception):
    """Raised when the budget for programs is spent."""


class ShrinkBudget:
    """A budget of at most ``plays`` programs and ``seconds``, with the amount spent."""

    def __init__(
        self,
        plays: int | None = None,
        seconds: float | None = None,
        on_play: Callable[[], None] | None = None,
    ) -> None:
        self.plays = 0
        self.hangs = 0
        # Candidates that could not be run, by the class of the error that stopped them: an engine in a pool
        # that is too small, a call that no adapter can carry out. Mistakes are this package's own, by what
        # and where: a law may be broken by a smaller program that nobody could look at.
        self.misfits: Counter[str] = Counter()
        self.mistakes: Counter[str] = Counter()
        self._plays_max = plays
        self._since = time.monotonic()
        self._seconds = seconds
        self._on_play = on_play

    @property
    def seconds(self) -> float:
        """Seconds since the budget began."""
        return time.monotonic() - self._since

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Stop the code of a ``with`` block once a ``share`` of the remaining budget is spent."""
        before = self._plays_max, self._seconds
        if self._plays_max is not None:
            self._plays_max = self.plays + int((self._plays_max - self.plays) * share)
        if self._seconds is not None:
            self._seconds = self.seconds + (self._seconds - self.seconds) * share
        try:
            yield
        except OutOfBudgetError:
            pass
        finally:
            self._plays_max, self._seconds = before

    def spend(self) -> None:
        """Count a program about to be played; raise `OutOfBudgetError` if the budget is spent."""
        self.check_time()
        if self.hangs >= _HANGS or (self._plays_max is not None and self.plays >= self._plays_max):
            raise OutOfBudgetError
        if self._on_play is not None:
            self._on_play()
        self.plays += 1

    def check_time(self) -> None:
        """Raise `OutOfBudgetError` if the time is over."""
        if self._seconds is not None and self.seconds >= self._seconds:
            raise OutOfBudgetError

    def note_failure(self, error: Exception) -> None:
        """Count a candidate that could not be run as a hang, a misfit or a mistake.

        Raises `OutOfBudgetError` where that is what stopped it.
        """
        if isinstance(error, OutOfBudgetError):
            raise error
        if isinstance(error, HungError):
            self.hangs += 1
        elif _is_mistake(error):
            self.mistakes[describe_error(error)] += 1
        else:
            self.misfits[type(error).__name__] += 1

    def tell_mistakes(self) -> tuple[str, ...]:
        """Return a line for each mistake of this package, the most frequent first."""
        return tuple(
            f"{count} candidate{'s' * (count > 1)} could not be run: {mistake}"
            for mistake, count in self.mistakes.most_common()
        )


def _is_mistake(error: Exception) -> bool:
    """Tell whether an error shows a bug in a driver or a judge."""
    if isinstance(error, PymllmError):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).startswith(_OWN_ROOMS)


def makes_sense(judge: Judge[KindModel], operation: Operation) -> bool:
    """Tell whether an operation names only slots that the caller may use.

    Of judges and operations that are not about slots everything is let pass: the judge itself says afterwards
    what made no sense.
    """
    model = judge.model
    if not isinstance(model, CacheModel) or model.ownership.pool is None:
        return True
    try:
        if isinstance(operation, Free | FreeSWA):
            is_kept = isinstance(operation, Free)
            return _are_callers(model, operation.slots, None if is_kept else True)
        if isinstance(operation, MoveSWA):
            return _are_callers(model, operation.source, True) and _are_callers(
                model, operation.target, False
            )
        return not isinstance(operation, Insert) or _may_stand(model, operation)
    except ProgramError:
        return False


def _are_callers(model: CacheModel, spans: Iterable[Span], has_half: bool | None) -> bool:
    ownership = model.ownership
    slots = ownership.resolve(spans)
    return len(set(slots)) == len(slots) and all(
        ownership.owner(slot) is Owner.CALLER and has_half in (None, ownership.has_half(slot))
        for slot in slots
    )


def _may_stand(model: CacheModel, operation: Insert) -> bool:
    """Tell whether each page of an insert is the caller's, or the cache's own at that place."""
    if operation.slots is None:
        return True
    cache, ownership = model.cache, model.ownership
    whole = cache.whole(path_of_key(operation.key))
    slots = ownership.resolve(operation.slots)
    firsts = slots[: len(whole.tokens) : model.page_size]
    return len(set(firsts)) == len(firsts) and all(
        ownership.owner(slot) is Owner.CALLER or ownership.place(slot) == end
        for end, slot in zip(cache.page_ends(whole), firsts, strict=False)
    )


_REPAIRS = 4
"""The greatest number of operations played for one candidate, as a multiple of its length."""
_LEAST_REPAIRS = 400


class Look(Enum):
    """The thoroughness of a check: the cheapest way that shows the law broken."""

    OUTCOMES = "each outcome is judged"
    TO_THE_END = "and the end, with parts of the program run again"
    INSIDE = "and the implementation is walked from inside after every step"


class _Player:
    """The tried programs, in a search for smaller programs that break a law of ``laws``."""

    def __init__(self, header: Header, laws: Collection[str], budget: ShrinkBudget) -> None:
        self._header = header
        self._laws = frozenset(laws)
        self._budget = budget
        self._units = _find_units(header)
        self.tried: set[int] = set()

    def is_new(self, program: Program) -> bool:
        """Tell whether a program has not been tried yet and may be played, and record it as tried."""
        key = program.key
        if key in self.tried or any(program.config.get(unit) not in self._units[unit] for unit in _UNITS):
            return False
        self.tried.add(key)
        return True


def _find_units(header: Header) -> dict[str, set[object]]:
    """Return page sizes and other units in a header's configuration, and in those of the adapter's class."""
    try:
        declared = load_class(find_adapter(header.adapter)).CONFIGURATIONS
    except PymllmError:  # nothing can be played then
        declared = ()
    return {unit: {config.get(unit) for config in (header.config, *declared)} for unit in _UNITS}


class Trials(_Player):
    """A player that runs operations, each program on a new adapter, to see a law broken."""

    look = Look.OUTCOMES

    def is_worth(self, program: Program, best: Program) -> bool:
        """Tell whether a program is smaller than the best and has not been tried."""
        return weigh(program) < weigh(best) and self.is_new(program)

    def forget(self) -> None:
        """Forget the tried programs, so that each can be tried again with another check."""
        self.tried.clear()

    def play(self, program: Program) -> tuple[Program, FoundViolation] | None:
        """Run a program without operations that make no sense; return ``None`` if no law breaks.

        What was left of it comes back, up to the step that broke one. Raises `OutOfBudgetError` where it must
        not be played any more, or was not at its end in time.
        """
        left = max(_LEAST_REPAIRS, _REPAIRS * len(program.items))
        while left > 0:
            run = self._run(program)
            left -= max(run.steps, 1)
            if run.skipped:
                # Steps have other numbers without them, and who knows what else: once more, as it will stand.
                done = program.items[: run.steps] if run.found else program.items
                program = Program(program.config, without(done, run.skipped))
                if not self.is_new(program):
                    return None
            elif run.found is None:
                return None
            else:
                return Program(program.config, program.items[: run.steps]), run.found
        return None

    def _run(self, program: Program) -> _Run:
        """Run a program once."""
        examiner = self._examiner_of(program)
        if examiner is None:
            return _Run(0)
        skipped: set[int] = set()
        number = 0
        try:
            with closing(examiner.adapter):
                for number, operation in enumerate(program.items, 1):
                    self._budget.check_time()
                    if not _carry_out(examiner, number, operation, skipped):
                        skipped.add(number)
                if not skipped and self.look is not Look.OUTCOMES:
                    end_program(examiner)
        except InvariantViolation as violation:
            if violation.law in self._laws and examiner.find_known(violation) is None:
                return _Run(number, skipped, FoundViolation(examiner.history, violation))
        except ProgramError:
            return _Run(number, {*skipped, number})
        except Exception as error:  # whatever a program without some of its steps meets, it is not shorter
            self._budget.note_failure(error)
        else:
            # What is judged at the end was left out above.
            return _Run(number, skipped if self.look is not Look.OUTCOMES else set())
        return _Run(number)

    def _examiner_of(self, program: Program) -> Examiner | None:
        self._budget.spend()
        try:
            adapter = build_adapter(self._header.adapter, dict(program.config))
        except PymllmError as error:  # no adapter can be built so
            self._budget.note_failure(error)
            return None
        try:
            is_inside = self.look is Look.INSIDE
            header = self._header
            return Examiner(
                adapter, seed=header.seed, audit=is_inside, coverage=False, deviations=header.deviations
            )
        except ProgramError:  # nor judged
            close_adapter(adapter)
            return None


@dataclass(frozen=True, slots=True)
class _Run:
    """The result of one run: the number of steps begun, the skipped steps, and the violation."""

    steps: int
    skipped: Collection[int] = ()
    found: FoundViolation | None = None


def _carry_out(examiner: Examiner, number: int, operation: Operation, skipped: Collection[int]) -> bool:
    """Carry out an operation if it makes sense, and return whether it did."""
    is_left_over = any(step in skipped for step in references(operation))
    if is_left_over or not makes_sense(examiner.judge, operation):
        return False
    try:
        examiner.do(operation, number)
    except ProgramError:
        if examiner.is_cut_short:  # the adapter itself saw it, before it did anything
            examiner.history.steps.pop()
            return False
        raise
    return True


class ActTrials(_Player):
    """A player of acts, for violations that depend on the requests given to an engine."""

    def __init__(
        self, scenario: Scenario, header: Header, laws: Collection[str], budget: ShrinkBudget
    ) -> None:
        super().__init__(header, laws, budget)
        self._scenario = scenario
        self._least: tuple[int, ...] = (sys.maxsize,)

    def is_worth(self, program: Program, best: Program) -> bool:
        """Tell whether acts have not been tried; the number of their operations is known only afterwards."""
        return self.is_new(program)

    def play(self, program: Program) -> tuple[Program, FoundViolation] | None:
        """Play acts; return ``None`` unless they break a law in fewer operations than before.

        Of as many operations the fewer acts count, then the numbers of the configuration and of the acts.
        """
        self._budget.spend()
        made = _machine_of(self._scenario, self._header, program.config)
        made.before_step = self._budget.check_time  # it asks before each operation whether it is late
        made.runs = 1
        made.REPLAY_EVERY = 1 if "X3" in self._laws else sys.maxsize  # only that takes a second run to see
        found = None
        try:
            _play(made, program.items)
        except InvariantViolation:
            found = made.found
        except Exception as error:  # an engine in a pool that is too small may meet anything
            self._budget.note_failure(error)
        if found is None or found.scenario is None or found.violation.law not in self._laws:
            return None
        acts = found.scenario.acts
        drawn = sum(value for act in acts for _, value in act.arguments)
        weight = len(found.history), len(acts), program.pools, drawn
        if weight >= self._least:
            return None
        self._least = weight
        return Program(program.config, acts), found


def play_scenario(scenario: Scenario, header: Header) -> FoundViolation | None:
    """Play acts on the adapter and configuration of a header; return ``None`` if no law breaks.

    The end is judged as closely as possible. `AdapterError`: the adapter cannot be built or asked.
    """
    made = _machine_of(scenario, header, header.config)
    made.REPLAY_EVERY = 1
    try:
        _play(made, scenario.acts)
    except InvariantViolation:
        return made.found
    return None


def _machine_of(scenario: Scenario, header: Header, config: Config) -> type[ActingMachine]:
    return make_machine(
        scenario.machine,
        header.adapter,
        dict(config),
        seed=header.seed,
        audit=scenario.audit,
        unwanted=Unwanted(header.deviations),
    )


def _play(machine_class: type[ActingMachine], acts: Iterable[PlayedAct]) -> None:
    """Play the acts that can be played, and end the machine."""
    machine = machine_class()
    known = acts_of(machine_class)
    try:
        for act in acts:
            method = known[act.name]
            if not method.act_needs or getattr(machine, method.act_needs):
                method(machine, **dict(act.arguments))
    except OutOfBudgetError:
        close_adapter(machine.examiner.adapter)
        raise
    except BaseException:
        machine.teardown()
        raise
    machine.teardown()
