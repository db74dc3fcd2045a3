"""Smaller scenarios: what an engine does wrong shows in what it is asked for, and not in its calls alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection
from dataclasses import replace

from pymllm.conformance.acting import (
    ActingMachine,
    FoundViolation,
    Scenario,
    acts_of,
    make_machine,
)
from pymllm.conformance.adapter_calls import close_adapter
from pymllm.conformance.shrink_trials import OutOfBudgetError, ShrinkBudget
from pymllm.conformance.time_limit import HungError
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config, Header, PlayedAct

Acts = tuple[PlayedAct, ...]


_OTHERS = 150
_ACTS_OF_OTHERS = 3


class ScenarioReduction:
    """Plays scenarios and keeps the smallest that breaks one of some laws."""

    def __init__(self, found: FoundViolation, laws: Collection[str], budget: ShrinkBudget) -> None:
        assert found.scenario is not None  # or there is nothing to play
        self.found = found
        self._scenario: Scenario = found.scenario
        self._config: Config = dict(found.history.header.config)
        self._laws = frozenset(laws)
        self._budget = budget
        self._tried: set[int] = set()

    def begin(self) -> bool:
        """Play the scenario as it is; whether it breaks a law again."""
        again = self._play(self._config, self._scenario.acts)
        if again is None:
            return False
        self.found = again
        return True

    def run(self) -> None:
        """Try smaller scenarios until there are none; raises `OutOfBudgetError`."""
        before = None
        while before != (self._config, self._acts):
            before = self._config, self._acts
            self.run_once()
            self._try_others()

    def run_once(self) -> None:
        """Try once each way to make the scenario smaller."""
        self._drop_acts()
        self._lower_arguments()
        self._shrink_pools()

    @property
    def _acts(self) -> Acts:
        assert self.found.scenario is not None  # a machine has played it
        return self.found.scenario.acts

    # -- what is tried -------------------------------------------------------------------------------------
    def _drop_acts(self) -> None:
        length = max(len(self._acts) // 2, 1)
        while length:
            has_dropped = False
            stop = len(self._acts)
            while stop > 0:
                start = max(stop - length, 0)
                has_dropped |= self._attempt(self._config, self._acts[:start] + self._acts[stop:])
                stop = min(start, len(self._acts))
            if not has_dropped or length > 1:
                length //= 2

    def _lower_arguments(self) -> None:
        ranges = {name: act.act_ranges for name, act in acts_of(self._scenario.machine).items()}
        at = 0
        while at < len(self._acts):
            for name, least in ((name, bounds[0]) for name, bounds in ranges[self._acts[at].name].items()):
                while at < len(self._acts) and self._lower(at, name, least):
                    pass
            at += 1

    def _lower(self, at: int, name: str, least: int) -> bool:
        """Try smaller values of one argument; whether there was one."""
        act = self._acts[at]
        value = dict(act.arguments).get(name, least)
        for lower in dict.fromkeys((least, (least + value) // 2, value - 1)):
            if least <= lower < value:
                changed = {**dict(act.arguments), name: lower}
                lowered = replace(act, arguments=tuple(changed.items()))
                if self._attempt(self._config, (*self._acts[:at], lowered, *self._acts[at + 1 :])):
                    return True
        return False

    def _shrink_pools(self) -> None:
        for key, value in list(self._config.items()):
            if type(value) is int:
                self._shrink_pool(key)

    def _shrink_pool(self, key: str) -> None:
        is_shrinking = True
        while is_shrinking:
            value = self._config[key]
            assert isinstance(value, int)  # as it was
            smaller = [size for size in dict.fromkeys((1, value // 2, value - 1)) if 0 < size < value]
            is_shrinking = any(self._attempt({**self._config, key: size}, self._acts) for size in smaller)

    def _try_others(self) -> None:
        """Draw short scenarios in small pools: what took many requests may take few of another shape."""
        source = random.Random(len(self._tried))
        known = acts_of(self._scenario.machine)
        names, weights = list(known), [act.act_weight for act in known.values()]
        for _ in range(_OTHERS):
            chosen = source.choices(names, weights, k=source.randint(1, _ACTS_OF_OTHERS))
            acts = tuple(_draw_act(source, name, known[name].act_ranges) for name in chosen)
            self._attempt({key: _draw_size(source, value) for key, value in self._config.items()}, acts)

    # -- how -----------------------------------------------------------------------------------------------
    def _attempt(self, config: Config, acts: Acts) -> bool:
        key = hash((tuple(config.items()), acts))
        if key in self._tried:
            return False
        self._tried.add(key)
        found = self._play(config, acts)
        if found is None or _weigh(found) >= _weigh(self.found):
            return False
        self.found, self._config = found, config
        return True

    def _play(self, config: Config, acts: Acts) -> FoundViolation | None:
        self._budget.spend()
        machine_class = self._machine_of(config)
        try:
            _play(machine_class, acts)
        except InvariantViolation:
            found = machine_class.found
            return found if found is not None and found.violation.law in self._laws else None
        except OutOfBudgetError:
            raise
        except HungError:
            self._budget.hangs += 1
        except Exception as error:  # an engine in a pool that is too small may meet anything
            self._budget.note_failure(error)
        return None

    def _machine_of(self, config: Config) -> type[ActingMachine]:
        """Make the machine class of a configuration; it asks before each operation whether it is late."""
        header, scenario = self.found.history.header, self._scenario
        made = make_machine(scenario.machine, header.adapter, config, seed=header.seed, audit=scenario.audit)
        made.before_step = self._budget.check_time
        made.runs = 1
        made.REPLAY_EVERY = 1 if "X3" in self._laws else sys.maxsize  # only that takes a second run to see
        return made


def play_scenario(scenario: Scenario, header: Header) -> FoundViolation | None:
    """Play acts on the adapter and configuration of a header; ``None`` where no law is broken.

    The end is judged as closely as possible. `AdapterError`: the adapter cannot be built or asked.
    """
    made = make_machine(
        scenario.machine, header.adapter, dict(header.config), seed=header.seed, audit=scenario.audit
    )
    made.REPLAY_EVERY = 1
    try:
        _play(made, scenario.acts)
    except InvariantViolation:
        return made.found
    return None


def _draw_act(source: random.Random, name: str, ranges: dict[str, tuple[int, int]]) -> PlayedAct:
    return PlayedAct(name, tuple((key, _draw(source, *bounds)) for key, bounds in ranges.items()))


def _draw(source: random.Random, low: int, high: int) -> int:
    """Draw a number of a range, rather a small one."""
    return source.randint(low, source.randint(low, high))


def _draw_size(source: random.Random, value: int | str | bool | None) -> int | str | bool | None:
    """Draw a size as it is or smaller; what is no number stays."""
    return _draw(source, 1, value) if type(value) is int and value and source.random() < 0.5 else value


def _play(machine_class: type[ActingMachine], acts: Acts) -> None:
    """Play those acts that make sense, and tear down what they leave."""
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


def _weigh(found: FoundViolation) -> tuple[int, ...]:
    """Return what is to become small: operations, acts, the numbers of the configuration and of the acts."""
    assert found.scenario is not None  # a machine has played it
    acts = found.scenario.acts
    pools = sum(value for value in found.history.header.config.values() if type(value) is int)
    drawn = sum(value for act in acts for _, value in act.arguments)
    return len(found.history), len(acts), pools, drawn
