"""What a verification has to search."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from pymllm.conformance.finding import Finding
from pymllm.conformance.machines import CI, MACHINES, Profile
from pymllm.conformance.results import SearchedConfiguration
from pymllm.conformance.search import Crash, SearchResult
from pymllm.conformance.search_tasks import SearchTask, VerifyPlan, plan_bursts, plan_searches
from pymllm.conformance.smoke import SmokeReport
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History
from pymllm.oracle.laws import find_law, laws_of

PLAN = VerifyPlan((), (), CI, 3, None, 2)
POOL = frozenset({"pool", "zeroed_rows"})
ENGINE = frozenset({"pool", "engine"})
ROWS = SmokeReport("rows", "rows", (({"n": 1}, POOL), ({"n": 2}, POOL | {"refusals"})))
CACHE = SmokeReport("cache", "prefix", (({"n": 1}, frozenset()), ({"n": 2}, ENGINE)))


def names(tasks: list[SearchTask]) -> list[tuple[str, object, str]]:
    return [(task.adapter, task.config["n"], task.machine.name) for task in tasks]


def test_every_machine_searches_every_configuration_that_it_can() -> None:
    """In the order of the adapters; without an engine no life cycle."""
    assert names(plan_searches([ROWS, CACHE], PLAN)) == [
        ("rows", 1, "RowMachine"),
        ("rows", 2, "RowMachine"),
        ("cache", 1, "PrefixMachine"),
        ("cache", 2, "PrefixMachine"),
        ("cache", 2, "LifecycleMachine"),
    ]
    assert plan_searches([], PLAN) == []


def test_only_what_can_test_a_law_asked_for_is_searched() -> None:
    """X1 needs refusals; E3 needs the engine; P1 is about rows."""
    for law, expected in (
        ("X1", [("rows", 2, "RowMachine")]),
        ("E3", [("cache", 2, "LifecycleMachine")]),
        ("P1", [("rows", 1, "RowMachine"), ("rows", 2, "RowMachine")]),
        ("S4", []),
    ):
        assert (
            names(plan_searches([ROWS, CACHE], dataclasses.replace(PLAN, laws=(find_law(law),)))) == expected
        )


def profile(seconds: float, seconds_max: float) -> Profile:
    return dataclasses.replace(CI, seconds=seconds, seconds_max=seconds_max)


def spent(task: SearchTask) -> tuple[float, float]:
    """Seconds of a quiet core that the programs of Hypothesis take, and the driven ones."""
    return task.plan.examples / task.machine.pace, task.plan.driven / task.machine.driven_pace


def test_what_a_profile_promises_is_shared_out_by_weight() -> None:
    """Half of each share is for Hypothesis; nobody gets more than the most."""
    plan = dataclasses.replace(PLAN, profile=profile(10.0, 100.0))
    tasks = plan_searches([ROWS, CACHE], plan)
    unit = 10.0 / sum(task.machine.weight for task in tasks)
    for task in tasks:
        assert spent(task) == pytest.approx([unit * task.machine.weight / 2] * 2, rel=0.25)
    tasks = plan_searches([ROWS], dataclasses.replace(PLAN, profile=profile(10.0, 0.5)))
    assert [(task.plan.examples, task.plan.driven) for task in tasks] == [(16, 8)] * 2  # 0.25 s of 65 and 33


def test_the_number_of_jobs_and_the_clock_promise_nothing() -> None:
    """X3: what is played follows from the options alone, on any machine."""
    plans = [
        [task.plan for task in plan_searches([ROWS, CACHE], dataclasses.replace(PLAN, jobs=jobs))]
        for jobs in (0, 1, 64)
    ]
    assert plans[0] == plans[1] == plans[2]


def test_a_search_is_cut_short_when_it_takes_many_times_as_long() -> None:
    """However little it should take, it has ten seconds; a number of programs takes what it takes."""
    plan = dataclasses.replace(PLAN, profile=profile(1e6, 100.0))
    assert [task.plan.seconds for task in plan_searches([ROWS], plan)] == [800.0, 800.0]
    plan = dataclasses.replace(PLAN, profile=profile(0.1, 100.0))
    assert [task.plan.seconds for task in plan_searches([ROWS], plan)] == [10.0, 10.0]
    plan = dataclasses.replace(plan, examples=5)
    assert [(task.plan.seconds, task.plan.driven) for task in plan_searches([ROWS], plan)] == [(0.0, 0)] * 2


def test_many_configurations_share_what_twelve_would_take() -> None:
    """An adapter caps itself."""
    plan = dataclasses.replace(PLAN, profile=profile(1e6, 10.0))
    many = SmokeReport("rows", "rows", tuple(({"n": n}, POOL) for n in range(48)))
    (machine,) = MACHINES["rows"]
    taken = sum(sum(spent(task)) for task in plan_searches([many], plan))
    assert taken == pytest.approx(12 * 10.0 * machine.weight, rel=0.05)


def test_a_number_of_programs_and_the_seed_are_passed_on() -> None:
    """What is found is left as it is for now."""
    (task, _) = plan_searches([ROWS], dataclasses.replace(PLAN, examples=7))
    assert (task.plan.examples, task.plan.seed, task.plan.steps, task.plan.shrinks) == (7, 3, CI.steps, 0)


def searched(smoke: SmokeReport, *found: Finding, crash: Crash | None = None, **exercised: int):
    """Every search of an adapter with the same result."""
    return [
        SearchedConfiguration(
            task.adapter,
            task.config,
            task.capabilities,
            task.machine,
            SearchResult(1, 1, 1.0, Counter(exercised), Counter(), Counter(), found, crash),
        )
        for task in plan_searches([smoke], PLAN)
    ]


ALL = dict.fromkeys(("X1", "X3", "X4", "X7", "P1", "P2", "P3", "E5"), 1)


def test_what_nothing_has_tested_is_searched_again() -> None:
    """On the first and the last configuration that can, for these laws only."""
    assert plan_bursts([ROWS], searched(ROWS, **ALL), PLAN) == []
    bursts = plan_bursts([ROWS], searched(ROWS, **{**ALL, "P2": 0}), PLAN)
    assert [(task.config["n"], task.laws) for task in bursts] == [(1, ("P2",)), (2, ("P2",))]
    assert [(task.plan.steps, task.plan.examples, task.plan.seconds) for task in bursts] == [
        (400, 40, 60.0)
    ] * 2
    many = SmokeReport("rows", "rows", tuple(({"n": n}, POOL) for n in range(9)))
    bursts = plan_bursts([many], searched(many, **{**ALL, "P2": 0, "P3": 0}), PLAN)
    assert [(task.config["n"], task.laws) for task in bursts] == [(0, ("P2", "P3")), (8, ("P2", "P3"))]
    bursts = plan_bursts([ROWS], searched(ROWS, **{**ALL, "X1": 0}), PLAN)
    assert [(task.config["n"], task.laws) for task in bursts] == [(2, ("X1",))]
    counted = dataclasses.replace(PLAN, examples=1000)  # so many were asked for, and so many are played
    assert plan_bursts([ROWS], searched(ROWS, **{**ALL, "X1": 0}), counted) == []


def test_what_was_never_reached_is_searched_again_where_the_plan_is_strict() -> None:
    """On the first and the last configuration of the machine that has to reach it."""
    strict = dataclasses.replace(PLAN, is_strict=True)
    searches = searched(ROWS, **ALL)
    first, last = plan_bursts([ROWS], searches, strict)
    assert (first.laws, last.laws) == ((), ())
    assert set(first.situations) < set(last.situations) == searches[1].expected
    assert "row 0 is freed" in last.situations  # the second alone claims to refuse anything
    everything = [
        dataclasses.replace(one, result=dataclasses.replace(one.result, reached=Counter(one.expected)))
        for one in searches
    ]
    assert plan_bursts([ROWS], everything, strict) == []


def test_an_adapter_that_failed_is_not_searched_again() -> None:
    """It has told what there is to tell."""
    finding = Finding(InvariantViolation("P1", "looked"), History(Header("rows", "rows")), True, True)
    assert plan_bursts([ROWS], searched(ROWS, finding), PLAN) == []
    assert plan_bursts([ROWS], searched(ROWS, crash=Crash("it died", None)), PLAN) == []


def test_a_machine_that_cannot_run_here_does_not_end_the_search_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without torch there is no engine; what the other has not tested yet gets its burst all the same."""
    cache = SmokeReport("cache", "prefix", (({"n": 1}, ENGINE),))
    tested = dict.fromkeys((law.id for law in laws_of("prefix") if law.id not in ("R6", "E4")), 1)
    monkeypatch.setattr("pymllm.conformance.machines.why_no_torch", lambda: "needs what is not there")
    bursts = plan_bursts([cache], searched(cache, **tested), PLAN)
    assert [(task.machine.name, task.laws) for task in bursts] == [("PrefixMachine", ("R6",))]


def test_each_machine_gets_its_turn_with_a_law_that_none_has_tested() -> None:
    """Only one of them may be able to: the engine writes what is cut to whole pages, and never reads it."""
    cache = SmokeReport("cache", "prefix", tuple(({"n": n}, ENGINE) for n in range(4)))
    tested = dict.fromkeys((law.id for law in laws_of("prefix") if law.id != "R1"), 1)
    untold = searched(cache, **tested)
    turns = [names(plan_bursts([cache], untold, PLAN, turn=turn)) for turn in range(3)]
    assert turns == [
        [("cache", 0, "PrefixMachine"), ("cache", 3, "PrefixMachine")],
        [("cache", 0, "LifecycleMachine"), ("cache", 3, "LifecycleMachine")],
        [],
    ]


def test_no_machine_looks_for_what_another_has_just_met() -> None:
    """Its turn comes only for what those before it left."""
    cache = SmokeReport("cache", "prefix", (({"n": 1}, ENGINE),))
    tested = dict.fromkeys((law.id for law in laws_of("prefix") if law.id not in ("R1", "R10")), 1)
    untold = searched(cache, **tested)
    met = searched(cache, R10=1)
    (burst,) = plan_bursts([cache], untold, PLAN, met, 1)
    assert (burst.machine.name, burst.laws) == ("LifecycleMachine", ("R1",))
    assert burst.plan.steps < plan_bursts([cache], untold, PLAN)[0].plan.steps  # its acts are long ones
    assert plan_bursts([cache], untold, PLAN, searched(cache, R1=1, R10=1), 1) == []
