"""A bug that is hidden by an answer is told of: no adapter that cheats is said to hold without a word."""

from __future__ import annotations

import pytest
from cheating import BUGS, CHEATS, SEED, Cheat, make_family

from pymllm.adapters.registry import find_adapter
from pymllm.machines.acting import make_machine
from pymllm.machines.registry import load_machine, machines_for
from pymllm.machines.smoke import SmokeReport, try_adapter
from pymllm.oracle.verdicts import Verdict
from pymllm.search.results import AdapterResult, SearchedConfiguration, judge_adapter
from pymllm.search.search import SearchPlan, search


def examine(name: str) -> AdapterResult:
    """Search an adapter of this folder briefly, in this process."""
    smoke = try_adapter(find_adapter(f"cheating:{name}"))
    assert isinstance(smoke, SmokeReport), smoke
    searched = []
    for config, claims in smoke.configurations:
        machine = machines_for(smoke.kind, claims)[0]
        made = make_machine(load_machine(machine), smoke.name, config, seed=SEED)
        found = search(made, SearchPlan(seed=SEED, steps=40, examples=30, shrinks=0))
        searched.append(SearchedConfiguration(smoke.name, config, claims, machine, found))
    return judge_adapter(smoke, searched)


def test_who_does_not_cheat_holds_without_a_word() -> None:
    """X9: the cache below all of them is sound, so whatever is told of them is of their bugs."""
    known = examine("Pages")
    assert (known.verdict, known.limits) == (Verdict.HOLDS, ())


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_holds_without_a_word(name: str) -> None:
    """X9: a law is broken, the adapter is at fault, or the verdict says what was not done and where."""
    cheat = CHEATS[name]
    known = examine(name)
    assert cheat.TIMES_ON  # or else there was nothing to hide
    if known.verdict is not Verdict.HOLDS:
        return
    operation = BUGS[cheat.BUG]
    assert [it.operation for it in known.limits] == [operation]
    assert known.limits[0].program
    assert any(operation in law.limits for law in known.laws)


def test_the_family_follows_from_its_seed() -> None:
    """Twenty at least, each in a way of its own, and others from another seed."""

    def told(family: dict[str, type[Cheat]]) -> list[str | None]:
        return [it.__doc__ for it in family.values()]

    assert len(set(told(CHEATS))) >= 24
    assert told(make_family(SEED)) == told(CHEATS)
    assert told(make_family(SEED + 1)) != told(CHEATS)
