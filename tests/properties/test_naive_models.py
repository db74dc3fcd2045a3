"""The oracle beside models of blocks and requests that know nothing of it: both must find the same wrong.

`NAIVE_OPERATIONS=1000000 pytest -s tests/properties/test_naive_models.py` plays that many, and counts them.
"""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from naive_blocks import Model, NaiveBlocks, Silent, Wrong
from naive_requests import NaiveRequests

from pymllm.adapters.own_blocks import Blocks
from pymllm.adapters.own_requests import Requests
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Header, Step
from pymllm.history.operations import Fault, Inspect, ReadLive, ReadStates
from pymllm.history.outcomes import Done, Effect, Failed, NoRoom, Outcome
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.blocks import BlockMachine
from pymllm.machines.examiner import find_wrong_answer
from pymllm.machines.requests import RequestMachine
from pymllm.oracle.judge import Judge, make_judge

LONG = int(os.environ.get("NAIVE_OPERATIONS", "0"))
WORDS = ("", "none", "RuntimeError", "InjectedFault", "OwnershipError", "UsageError", "CapacityError")
FAULTS = {
    "blocks": ("callback", "reenter"),
    "requests": (
        *("allocate_blocks", "no_blocks", "restore_state"),
        *("forward", "allocate_slots", "store_states"),
    ),
}
PLAYED = {
    "blocks": (Blocks, BlockMachine, NaiveBlocks),
    "requests": (Requests, RequestMachine, NaiveRequests),
}
SHARES = {"blocks": 0.7, "requests": 0.3}  # of a long run: requests take longer
FOLLOWED = 12  # steps that are judged behind a spoiled one which both take

Path = tuple[str | int, ...]


# -- spoiling ----------------------------------------------------------------------------------------------
def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """List everything inside of an outcome with its place."""
    yield path, value
    if isinstance(value, msgspec.Struct):
        inside: Any = [(name, getattr(value, name)) for name in value.__struct_fields__]
    else:
        inside = value.items() if isinstance(value, dict) else ()
        inside = enumerate(value) if isinstance(value, tuple) else inside
    for name, each in inside:
        yield from places(each, (*path, name))


def put(value: Any, path: Path, new: Any) -> Any:
    """Return the same with something else at one place."""
    if not path:
        return new
    name, rest = path[0], path[1:]
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **{str(name): put(getattr(value, str(name)), rest, new)})
    if isinstance(value, dict):
        return {**value, name: put(value[name], rest, new)}
    return tuple(put(each, rest, new) if at == name else each for at, each in enumerate(value))


def changed(value: Any, source: random.Random) -> Any:
    """Change a value a little: a number, a word, what a list has, or the whole result."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return source.choice([value + 1, value - 1, -1, 0, source.randint(0, 9)])
    if isinstance(value, str):
        return source.choice(WORDS)
    if isinstance(value, dict):
        left_out = source.choice([*value, None])
        return {name: each for name, each in value.items() if name != left_out}
    if isinstance(value, tuple):
        one, other = (source.randrange(len(value)) for _ in "12") if value else (0, 0)
        listed = list(value)
        if listed:
            listed[one], listed[other] = listed[other], listed[one]
        fewer, more = [*value[:one], *value[one + 1 :]], [*value[: one + 1], *value[one:]]
        longer = [*value, source.randint(-1, 9)]
        return tuple(source.choice([listed, fewer, more, longer]))
    return source.choice([Done(), NoRoom(), Failed(source.choice(WORDS))])


def spoiled(kind: str, steps: list[Step], at: int, source: random.Random) -> tuple[str, Step] | None:
    """Change a step and name the change: its outcome, or its operation if the operation only looks."""
    step, way = steps[at], source.random()
    outcome: Any = step.outcome
    if isinstance(step.operation, Inspect | ReadStates | ReadLive) and at and way < 0.3:
        if way < 0.15:
            fault = Fault(source.choice(FAULTS[kind]), source.choice((1, 1, 2)))
            return "a fault", Step(step.number, fault, Outcome(Done(), (), outcome.sizes))
        again = source.choice(steps[max(0, at - 8) : at])
        return "once more", msgspec.structs.replace(again, number=step.number)
    if way < 0.1 and step is not steps[-1]:
        return "left out", step
    listed = list(places(outcome))
    path, value = source.choice(listed)
    if way > 0.9:
        one, other, path = source.randint(0, 9), source.randint(0, 9), ("exchanged",)
        names = {one: other, other: one}
        for place, number in listed:
            if type(number) is int and "sizes" not in place:
                outcome = put(outcome, place, names.get(number, number))
    elif path == ("effects",) and source.random() < 0.5:
        outcome = put(outcome, path, (*value, Effect("callback", slots=(source.randint(0, 9),))))
    else:
        outcome = put(outcome, path, changed(value, source))
    if outcome == step.outcome or find_wrong_answer(step.operation, outcome) is not None:
        return None
    what = " ".join(part for part in path if isinstance(part, str))
    return what, Step(step.number, step.operation, outcome)


# -- two judges --------------------------------------------------------------------------------------------
class Pair:
    """The oracle and a model beside each other."""

    def __init__(self, header: Header, model: type[Model]) -> None:
        self.judge: Judge = make_judge(header)
        self.model = model(header.config, header.capabilities)

    def take(self, step: Step) -> tuple[str, str]:
        """Have a step judged by both; each says nothing, `wrong: ...` or `no verdict: ...`."""
        oracle, model = "", ""
        assert step.outcome is not None
        try:
            self.judge.judge(step.number, step.operation, step.outcome)
        except InvariantViolation as violation:
            oracle = f"wrong: {violation}"
        except ProgramError as error:
            oracle = f"no verdict: {error}"
        try:
            self.model.take(step.number, step.operation, step.outcome)
        except Wrong as wrong:
            model = f"wrong: {wrong}"
        except Silent as silent:
            model = f"no verdict: {silent}"
        return oracle, model

    def follow(self, steps: list[Step]) -> tuple[Step, str, str]:
        """Take steps until the oracle or the model objects; return the last step with the words of both."""
        for step in steps:
            said = self.take(step)
            if any(said):
                break
        return step, *said


def compare(kind: str, number: int, seed: int, acts: int, every: int) -> tuple[Counter[str], list[str]]:
    """Play a program; both must take each step, and say the same of a spoiled one and of what follows."""
    adapter, machine, model = PLAYED[kind]
    config, source = dict(adapter.CONFIGURATIONS[number]), random.Random(seed)
    player = make_machine(machine, kind, config, seed=0, audit=False)
    player.runs = 1  # it is not played again
    history = drive(player, seed=seed, steps=acts).examiner.history
    steps, pair = history.steps, Pair(history.header, model)
    counts: Counter[str] = Counter()
    differences: list[str] = []
    for at, step in enumerate(steps):
        found = spoiled(kind, steps, at, source) if source.randrange(every) == 0 else None
        if found is not None:
            what, changed_step = found
            followed = [changed_step] if what != "left out" else []
            twin = copy.deepcopy(pair)
            last, *words = twin.follow([*followed, *steps[at + 1 : at + 1 + FOLLOWED]])
            said = [each.partition(":")[0] or "right" for each in words]
            counts[f"{kind}, spoiled: {' and '.join(said)}"] += 1
            if "no verdict" not in said and said[0] != said[1]:
                place = f"{kind} {number}, seed {seed}, step {step.number}, {what}"
                differences.append("\n  ".join([f"{place}: {changed_step}", f"at {last}", *words]))
        said = list(pair.take(step))
        counts[f"{kind}: {type(step.operation).__name__}"] += 1
        if any(said):
            return counts, [*differences, f"{kind} {number}, seed {seed}, {step}: {said}"]
    return counts, differences


@pytest.mark.parametrize("kind", PLAYED)
def test_a_naive_model_agrees(kind: str) -> None:
    """C1 to C9, E1 to E5: two readers of the same pages judge good and spoiled outcomes alike."""
    configurations = range(len(PLAYED[kind][0].CONFIGURATIONS))
    total, wanted, seed = Counter[str](), LONG * SHARES[kind], 0
    differences: list[str] = []
    while not seed or played(total) < wanted:
        for number in configurations:
            counts, found = compare(kind, number, seed, 60 if LONG else 12, 25 if LONG else 3)
            total, differences = total + counts, differences + found
            if LONG:
                print(*found, sep="\n", flush=True)
        seed += 1
        if LONG and seed % 20 == 0:
            print(kind, seed, played(total), len(differences), flush=True)
    if LONG:
        print(*sorted(total.items()), sep="\n")
    assert total[f"{kind}, spoiled: wrong and wrong"] > total[f"{kind}, spoiled: right and right"] > 0
    assert not differences, "\n".join(differences[:5])


def played(counts: Counter[str]) -> int:
    """Count the operations of good programs."""
    return sum(count for name, count in counts.items() if "spoiled" not in name)
