"""One machine on one configuration, and which of them a verification plans."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from pathlib import Path

import pytest

from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History
from pymllm.history.operations import AllocRows, FreeRow, ReadRows, Span
from pymllm.machines.acting import ActingMachine, act, make_machine
from pymllm.machines.registry import CI, MACHINES, Profile
from pymllm.machines.rows import RowMachine
from pymllm.machines.smoke import SmokeReport
from pymllm.oracle.laws import find_law, laws_of
from pymllm.search.results import SearchedConfiguration
from pymllm.search.search import Crash, SearchPlan, SearchResult, search, targeted_run
from pymllm.search.shrinker import Finding
from pymllm.search.tasks import SearchTask, VerifyPlan, plan_searches, plan_targeted_runs

CONFIG = {"max_reqs": 3, "max_context_len": 4}
PLAN = SearchPlan(seed=1, steps=20, examples=30, seconds=0.0)


def machine_of(adapter: str) -> type[ActingMachine]:
    return make_machine(RowMachine, adapter, dict(CONFIG))


def facts_of(result: SearchResult) -> SearchResult:
    return dataclasses.replace(result, seconds=0.0)


def test_a_right_adapter_has_its_laws_tested(tiny: str) -> None:
    """Nothing is found, and what was tested is counted over all programs."""
    result = search(machine_of(f"{tiny}:TinyRows"), PLAN)
    assert (result.found, result.crash) == ((), None)
    assert result.programs >= 30
    assert result.steps > 100
    assert result.seconds > 0
    assert {"P1", "P2", "P3", "X3"} <= set(+result.exercised)
    assert result.audited == {}
    assert result.reached["a batch finds too few rows"] > 0


def test_equal_plans_give_equal_results(tiny: str) -> None:
    """X3: whatever runs between, and other seeds look elsewhere."""
    first, second = (facts_of(search(machine_of(f"{tiny}:TinyRows"), PLAN)) for _ in "ab")
    assert first == second
    other = search(machine_of(f"{tiny}:TinyRows"), dataclasses.replace(PLAN, seed=2))
    assert facts_of(other) != first


def test_a_broken_law_is_found_with_the_smallest_program(tiny: str) -> None:
    """P2: take a row, write an entry that is not 0, free the row, look."""
    result = search(machine_of(f"{tiny}:KeepsEntries"), PLAN)
    assert result.crash is None
    finding = result.found[0]
    assert finding.law == "P2"
    assert len(finding.history) == 4
    assert isinstance(finding.history.steps[-1].operation, ReadRows)
    assert any(isinstance(step.operation, FreeRow) for step in finding.history.steps)
    assert (finding.is_rerun, finding.is_judged) == (True, True)


def test_a_search_that_takes_too_long_says_what_is_missing(tiny: str) -> None:
    """One program at least is played, however little time there is; nothing is taken for a crash."""
    plan = SearchPlan(seed=1, steps=10, examples=30, seconds=1e-9, driven=7)
    result = search(machine_of(f"{tiny}:TinyRows"), plan)
    assert (result.programs, result.missing, result.crash) == (1, 36, None)
    assert targeted_run(machine_of(f"{tiny}:TinyRows"), plan, ["R6"]).missing == 0


def test_what_is_played_does_not_follow_from_time(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs a thousand times as fast, as it seems to on a busy machine, changes nothing."""
    plan = SearchPlan(seed=1, steps=10, examples=30, seconds=1e5, driven=7)
    quiet = search(machine_of(f"{tiny}:TinyRows"), plan)
    clock = time.monotonic
    monkeypatch.setattr("pymllm.search.search.time.monotonic", lambda: 1000 * clock())
    busy = search(machine_of(f"{tiny}:TinyRows"), plan)
    assert facts_of(busy) == facts_of(quiet)
    assert (quiet.programs, quiet.missing) == (37, 0)
    assert busy.seconds > quiet.seconds


def test_a_violation_leaves_nothing_missing(tiny: str) -> None:
    """A search that found a violation has no missing programs."""
    result = search(machine_of(f"{tiny}:KeepsEntries"), dataclasses.replace(PLAN, examples=500, driven=9))
    assert result.found
    assert (result.programs < 509, result.missing) == (True, 0)


def test_what_was_found_is_found_again_without_what_was_played_before(tiny: str) -> None:
    """X3: the run of Hypothesis that found it is enough, and may shrink this time."""
    plan = dataclasses.replace(PLAN, seed=2, examples=500, shrinks=0)
    machine = make_machine(RowMachine, f"{tiny}:FailsLate", dict(CONFIG))
    first = search(machine, plan)
    assert first.again is not None
    assert first.again.first_slice > 0
    again = first.again
    machine = make_machine(RowMachine, f"{tiny}:FailsLate", dict(CONFIG))
    second = search(machine, again)
    assert [it.history for it in second.found] == [it.history for it in first.found]
    assert second.programs < first.programs
    machine = make_machine(RowMachine, f"{tiny}:FailsLate", dict(CONFIG))
    small = search(machine, dataclasses.replace(again, shrinks=300))
    assert len(small.found[0].history) < len(first.found[0].history)
    assert search(machine_of(f"{tiny}:TinyRows"), PLAN).again is None


def test_shrinking_ends(tiny: str) -> None:
    """A violation that is found before shrinking ends is kept."""
    result = search(machine_of(f"{tiny}:KeepsEntries"), dataclasses.replace(PLAN, shrinks=0))
    assert result.found[0].law == "P2"
    assert len(result.found[0].history) > 4
    assert result.crash is None


def test_what_happens_by_chance_is_a_finding_too(tiny: str) -> None:
    """X3: Hypothesis cannot play it the same way again, and that is the point."""
    machine = make_machine(RowMachine, f"{tiny}:Moody", {"max_reqs": 30, "max_context_len": 1})
    result = search(machine, dataclasses.replace(PLAN, examples=60))
    assert "X3" in [finding.law for finding in result.found]
    assert result.crash is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GivesUp", "lost the connection"),
        ("Breaks", "raised ZeroDivisionError: integer division or modulo by zero (line "),
    ],
)
def test_an_error_that_is_no_violation_is_a_crash(tiny: str, name: str, words: str) -> None:
    """Nothing is said of any law; the program that met it is kept, as small as the others."""
    result = search(machine_of(f"{tiny}:{name}"), PLAN)
    assert result.found == ()
    assert result.crash is not None
    assert words in result.crash.message
    assert result.crash.history is not None
    assert 0 < len(result.crash.history) <= 12


def test_an_adapter_that_cannot_be_made_is_a_crash_without_a_program(tiny: str) -> None:
    """Nothing was played."""
    result = search(make_machine(RowMachine, f"{tiny}:TinyRows", {}), PLAN)
    assert (result.programs, result.found) == (0, ())
    assert result.crash is not None
    assert result.crash.message == (
        "cannot be built with {}: there is no 'max_context_len' in it; one of its own is "
        "{'max_reqs': 3, 'max_context_len': 4}"
    )
    assert result.crash.history is None


class BeginsWithARow(RowMachine):
    """A machine that takes a row before its first act."""

    def begin(self) -> None:
        super().begin()
        self.do(AllocRows(1))


def test_a_law_that_is_broken_before_the_first_act_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a violation as any other, and no crash."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    result = search(make_machine(BeginsWithARow, "first_adapters:RowsWithPadding", dict(CONFIG)), PLAN)
    assert result.crash is None
    assert [(it.law, len(it.history)) for it in result.found] == [("P1", 1)]


class Stumbling(RowMachine):
    """A machine with a bug of its own, at the end as well."""

    @act()
    def stumble(self) -> None:
        self.do(FreeRow(Span(1, 7, 8)))

    def end(self) -> None:
        raise KeyError("later")


def test_the_first_error_is_the_one_that_is_told(tiny: str) -> None:
    """An error while a program is cleaned up does not hide the first error."""
    result = search(make_machine(Stumbling, f"{tiny}:TinyRows", dict(CONFIG)), PLAN)
    assert result.crash is not None
    assert result.crash.message.startswith(("ProgramError: step 1 gave 0", "KeyError: 'later'"))


def test_a_targeted_run_ends_once_the_laws_were_tested(tiny: str) -> None:
    """Long programs, one seed after another, until nothing is missing or the number is up."""
    plan = dataclasses.replace(PLAN, steps=400, examples=5, seconds=math.inf)
    assert targeted_run(machine_of(f"{tiny}:TinyRows"), plan, ["P1"]).programs == 1
    result = targeted_run(machine_of(f"{tiny}:TinyRows"), plan, ["P1", "R6"])
    assert (result.programs, result.found, result.crash) == (5, (), None)
    assert result.steps > 5 * 400
    late = dataclasses.replace(plan, examples=10_000, seconds=0.05)
    assert 1 <= targeted_run(machine_of(f"{tiny}:TinyRows"), late, ["R6"]).programs < 100


def test_a_targeted_run_goes_on_until_goals_are_reached(tiny: str) -> None:
    """One that this adapter never reaches takes all the programs."""
    plan = dataclasses.replace(PLAN, steps=400, examples=5, seconds=math.inf)
    met = targeted_run(machine_of(f"{tiny}:TinyRows"), plan, [], ["a batch finds too few rows"])
    assert met.programs == 1
    assert met.reached["a batch finds too few rows"] > 0
    assert targeted_run(machine_of(f"{tiny}:TinyRows"), plan, ["P1"], ["row 0 is freed"]).programs == 5


def test_a_targeted_run_keeps_what_it_finds(tiny: str) -> None:
    """Without the steps that do not matter."""
    result = targeted_run(machine_of(f"{tiny}:KeepsEntries"), dataclasses.replace(PLAN, examples=5), ["R6"])
    assert result.programs == 1
    assert result.found[0].law == "P2"
    assert len(result.found[0].history) == 4


def test_behind_the_programs_of_hypothesis_come_long_ones(tiny: str) -> None:
    """They go where the short ones of Hypothesis end; what they find loses the steps that do not matter."""
    plan = SearchPlan(seed=1, steps=5, examples=20, shrinks=500, driven=200)
    result = search(machine_of(f"{tiny}:WearsOut"), plan)
    assert result.again is None
    assert result.found[0].law == "P2"
    assert plan.steps < len(result.found[0].history) < 20
    assert not result.found[0].is_unfinished
    again = dataclasses.replace(plan, slices=1, driven=0)
    assert search(machine_of(f"{tiny}:WearsOut"), again).found == ()


VERIFY = VerifyPlan((), (), CI, 3, None, 2)
POOL = frozenset({"pool", "zeroed_rows"})
ENGINE = frozenset({"pool", "engine"})
ROWS = SmokeReport("rows", "rows", (({"n": 1}, POOL), ({"n": 2}, POOL | {"refusals"})))
CACHE = SmokeReport("cache", "prefix", (({"n": 1}, frozenset()), ({"n": 2}, ENGINE)))


def names(tasks: list[SearchTask]) -> list[tuple[str, object, str]]:
    return [(task.adapter, task.config["n"], task.machine.name) for task in tasks]


def test_every_machine_searches_every_configuration_that_it_can() -> None:
    """In the order of the adapters; without an engine no life cycle."""
    assert names(plan_searches([ROWS, CACHE], VERIFY)) == [
        ("rows", 1, "RowMachine"),
        ("rows", 2, "RowMachine"),
        ("cache", 1, "PrefixMachine"),
        ("cache", 2, "PrefixMachine"),
        ("cache", 2, "LifecycleMachine"),
    ]
    assert plan_searches([], VERIFY) == []


def test_only_what_can_test_a_law_asked_for_is_searched() -> None:
    """X1 needs refusals; E3 needs the engine; P1 is about rows."""
    for law, expected in (
        ("X1", [("rows", 2, "RowMachine")]),
        ("E3", [("cache", 2, "LifecycleMachine")]),
        ("P1", [("rows", 1, "RowMachine"), ("rows", 2, "RowMachine")]),
        ("S4", []),
    ):
        plan = dataclasses.replace(VERIFY, laws=(find_law(law),))
        assert names(plan_searches([ROWS, CACHE], plan)) == expected


def profile(seconds: float, seconds_max: float) -> Profile:
    return dataclasses.replace(CI, seconds=seconds, seconds_max=seconds_max)


def spent(task: SearchTask) -> tuple[float, float]:
    """Seconds of a quiet core that the programs of Hypothesis take, and the driven ones."""
    return task.plan.examples / task.machine.pace, task.plan.driven / task.machine.driven_pace


def test_what_a_profile_promises_is_shared_out_by_weight() -> None:
    """Half of each share is for Hypothesis; nobody gets more than the most."""
    plan = dataclasses.replace(VERIFY, profile=profile(10.0, 100.0))
    tasks = plan_searches([ROWS, CACHE], plan)
    unit = 10.0 / sum(task.machine.weight for task in tasks)
    for task in tasks:
        assert spent(task) == pytest.approx([unit * task.machine.weight / 2] * 2, rel=0.25)
    tasks = plan_searches([ROWS], dataclasses.replace(VERIFY, profile=profile(10.0, 0.5)))
    assert [(task.plan.examples, task.plan.driven) for task in tasks] == [(16, 8)] * 2  # 0.25 s of 65 and 33


def test_the_number_of_jobs_and_the_clock_promise_nothing() -> None:
    """X3: what is played follows from the options alone, on any machine."""
    plans = [
        [task.plan for task in plan_searches([ROWS, CACHE], dataclasses.replace(VERIFY, jobs=jobs))]
        for jobs in (0, 1, 64)
    ]
    assert plans[0] == plans[1] == plans[2]


def test_a_search_is_cut_short_when_it_takes_many_times_as_long() -> None:
    """A search has ten seconds at least, and a given number of programs has no time limit."""
    plan = dataclasses.replace(VERIFY, profile=profile(1e6, 100.0))
    assert [task.plan.seconds for task in plan_searches([ROWS], plan)] == [800.0, 800.0]
    plan = dataclasses.replace(VERIFY, profile=profile(0.1, 100.0))
    assert [task.plan.seconds for task in plan_searches([ROWS], plan)] == [10.0, 10.0]
    plan = dataclasses.replace(plan, examples=5)
    assert [(task.plan.seconds, task.plan.driven) for task in plan_searches([ROWS], plan)] == [(0.0, 0)] * 2


def test_many_configurations_share_what_twelve_would_take() -> None:
    """An adapter caps itself."""
    plan = dataclasses.replace(VERIFY, profile=profile(1e6, 10.0))
    many = SmokeReport("rows", "rows", tuple(({"n": n}, POOL) for n in range(48)))
    (machine,) = MACHINES["rows"]
    taken = sum(sum(spent(task)) for task in plan_searches([many], plan))
    assert taken == pytest.approx(12 * 10.0 * machine.weight, rel=0.05)


def test_a_number_of_programs_and_the_seed_are_passed_on() -> None:
    """The number of programs and the seed are passed on, and nothing is shrunk yet."""
    (task, _) = plan_searches([ROWS], dataclasses.replace(VERIFY, examples=7))
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
        for task in plan_searches([smoke], VERIFY)
    ]


ALL = dict.fromkeys(("X1", "X3", "X4", "X7", "X8", "X9", "P1", "P2", "P3", "E5"), 1)


def test_what_nothing_has_tested_is_searched_again() -> None:
    """On the first and the last configuration that can, for these laws only."""
    assert plan_targeted_runs([ROWS], searched(ROWS, **ALL), VERIFY) == []
    runs = plan_targeted_runs([ROWS], searched(ROWS, **{**ALL, "P2": 0}), VERIFY)
    assert [(task.config["n"], task.laws) for task in runs] == [(1, ("P2",)), (2, ("P2",))]
    assert [(task.plan.steps, task.plan.examples, task.plan.seconds) for task in runs] == [
        (400, 40, 60.0)
    ] * 2
    many = SmokeReport("rows", "rows", tuple(({"n": n}, POOL) for n in range(9)))
    runs = plan_targeted_runs([many], searched(many, **{**ALL, "P2": 0, "P3": 0}), VERIFY)
    assert [(task.config["n"], task.laws) for task in runs] == [(0, ("P2", "P3")), (8, ("P2", "P3"))]
    runs = plan_targeted_runs([ROWS], searched(ROWS, **{**ALL, "X1": 0}), VERIFY)
    assert [(task.config["n"], task.laws) for task in runs] == [(2, ("X1",))]
    counted = dataclasses.replace(VERIFY, examples=1000)  # so many were asked for, and so many are played
    assert plan_targeted_runs([ROWS], searched(ROWS, **{**ALL, "X1": 0}), counted) == []


def test_what_was_never_reached_is_searched_again_where_the_plan_is_strict() -> None:
    """On the first and the last configuration of the machine that has to reach it."""
    strict = dataclasses.replace(VERIFY, is_strict=True)
    searches = searched(ROWS, **ALL)
    first, last = plan_targeted_runs([ROWS], searches, strict)
    assert (first.laws, last.laws) == ((), ())
    assert set(first.goals) < set(last.goals) == searches[1].expected
    assert "row 0 is freed" in last.goals  # the second alone claims to refuse anything
    everything = [
        dataclasses.replace(one, result=dataclasses.replace(one.result, reached=Counter(one.expected)))
        for one in searches
    ]
    assert plan_targeted_runs([ROWS], everything, strict) == []


def test_an_adapter_that_failed_is_not_searched_again() -> None:
    """An adapter that failed or crashed is not searched again."""
    finding = Finding(InvariantViolation("P1", "looked"), History(Header("rows", "rows")), True, True)
    assert plan_targeted_runs([ROWS], searched(ROWS, finding), VERIFY) == []
    assert plan_targeted_runs([ROWS], searched(ROWS, crash=Crash("it died", None)), VERIFY) == []


def test_a_machine_that_cannot_run_here_does_not_end_the_search_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without torch there is no engine; the other gets its targeted run all the same."""
    cache = SmokeReport("cache", "prefix", (({"n": 1}, ENGINE),))
    tested = dict.fromkeys((law.id for law in laws_of("prefix") if law.id not in ("R6", "E4")), 1)
    monkeypatch.setattr("pymllm.machines.registry.why_no_torch", lambda: "needs what is not there")
    runs = plan_targeted_runs([cache], searched(cache, **tested), VERIFY)
    assert [(task.machine.name, task.laws) for task in runs] == [("PrefixMachine", ("R6",))]


def test_each_machine_gets_its_turn_with_a_law_that_none_has_tested() -> None:
    """Only one of them may be able to: the engine writes what is cut to whole pages, and never reads it."""
    cache = SmokeReport("cache", "prefix", tuple(({"n": n}, ENGINE) for n in range(4)))
    tested = dict.fromkeys((law.id for law in laws_of("prefix") if law.id != "R1"), 1)
    untold = searched(cache, **tested)
    turns = [names(plan_targeted_runs([cache], untold, VERIFY, turn=turn)) for turn in range(3)]
    assert turns == [
        [("cache", 0, "PrefixMachine"), ("cache", 3, "PrefixMachine")],
        [("cache", 0, "LifecycleMachine"), ("cache", 3, "LifecycleMachine")],
        [],
    ]


def test_no_machine_looks_for_what_another_has_just_met() -> None:
    """A machine is only asked for laws that earlier machines left untested."""
    cache = SmokeReport("cache", "prefix", (({"n": 1}, ENGINE),))
    tested = dict.fromkeys((law.id for law in laws_of("prefix") if law.id not in ("R1", "R10")), 1)
    untold = searched(cache, **tested)
    met = searched(cache, R10=1)
    (targeted_run,) = plan_targeted_runs([cache], untold, VERIFY, met, 1)
    assert (targeted_run.machine.name, targeted_run.laws) == ("LifecycleMachine", ("R1",))
    assert (
        targeted_run.plan.steps < plan_targeted_runs([cache], untold, VERIFY)[0].plan.steps
    )  # its acts are long ones
    assert plan_targeted_runs([cache], untold, VERIFY, searched(cache, R1=1, R10=1), 1) == []
