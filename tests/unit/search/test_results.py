"""From searches to verdicts."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from pymllm.documents.searches import CoverageRow
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import Clear, Span, WriteRow
from pymllm.machines.registry import MACHINES, MachineEntry
from pymllm.machines.smoke import SmokeFailure, SmokeReport
from pymllm.oracle.answers import LEFT
from pymllm.oracle.coverage import expected_names
from pymllm.oracle.laws import find_law, laws_of
from pymllm.oracle.verdicts import Verdict
from pymllm.search.results import (
    AdapterResult,
    MachineResult,
    SearchedConfiguration,
    VerifyReport,
    find_missing,
    judge_adapter,
    leave_unknown,
    merge_goals,
    merge_laws,
)
from pymllm.search.search import Crash, SearchResult
from pymllm.search.shrinker import Finding

(ROW_MACHINE,) = MACHINES["rows"]
PREFIX_MACHINE, LIFECYCLE_MACHINE = MACHINES["prefix"]
CLAIMS = frozenset({"pool", "zeroed_rows"})
SMOKE = SmokeReport("tiny", "rows", (({"n": 1}, CLAIMS), ({"n": 2}, CLAIMS)))


def broken(law: str, steps: int) -> Finding:
    history = History(Header("tiny", "rows"), [Step(number, Clear()) for number in range(1, steps + 1)])
    return Finding(InvariantViolation(law, "looked"), history, True, True)


def searched(
    exercised: dict[str, int], *found: Finding, n: int = 1, crash: Crash | None = None
) -> SearchedConfiguration:
    result = SearchResult(
        2, 30, 1.5, Counter(exercised), Counter({"P1": 7}), Counter({"row 0 is freed": 1}), found, crash
    )
    return SearchedConfiguration("tiny", {"n": n}, CLAIMS, ROW_MACHINE, result)


def verdicts_of(result: AdapterResult) -> dict[str, Verdict]:
    return {row.id: row.verdict for row in result.laws}


def test_a_law_holds_where_one_configuration_tested_it() -> None:
    """Another that never met it does not outweigh that; a law that none tested is unknown."""
    result = judge_adapter(SMOKE, [searched({"P1": 3}), searched({"P1": 2, "P2": 1}, n=2)])
    verdicts = verdicts_of(result)
    assert (verdicts["P1"], verdicts["P2"], verdicts["P3"]) == (
        Verdict.HOLDS,
        Verdict.HOLDS,
        Verdict.UNKNOWN,
    )
    assert verdicts["X1"] is Verdict.NOT_CLAIMED  # needs refusals, which no configuration claims
    (row,) = (row for row in result.laws if row.id == "P1")
    assert (row.tests, row.walks) == (5, 14)
    assert result.verdict is Verdict.UNKNOWN


def undone(told: str, steps: int, done: dict[str, int], n: int = 1) -> SearchedConfiguration:
    """A search in which some steps were not done, the first of them at the end of a short program."""
    one = searched({"P1": 3, "P3": 1, "X7": 2, "X9": 4}, n=n)
    history = History(Header("tiny", "rows", {"n": n}), [Step(n, WriteRow(Span(1, 0, 1), 0, 1, (7,)))])
    result = dataclasses.replace(
        one.result, not_done=Counter({told: steps}), done=Counter(done), undone={told: history}
    )
    return dataclasses.replace(one, result=result)


def test_steps_under_a_limit_are_told_with_the_shortest_program() -> None:
    """X9: a law that tests the operation holds with a word; one that none of its steps tested is unknown."""
    told = "write_row: it is hard"
    result = judge_adapter(SMOKE, [undone(told, 2, {"write_row": 1}, n=2), undone(told, 3, {"write_row": 0})])
    (limit,) = result.limits
    assert (limit.operation, limit.reason, limit.not_done, limit.done) == ("write_row", "it is hard", 5, 1)
    assert (limit.step, limit.config) == (2, {"n": 2})
    assert "WriteRow" in (limit.program or "")
    rows = {row.id: row for row in result.laws}
    assert (rows["P3"].verdict, rows["P3"].limits) == (Verdict.HOLDS, ("write_row",))
    assert rows["P1"].limits == ()
    never = judge_adapter(SMOKE, [undone(told, 2, {"write_row": 0})])
    verdicts = verdicts_of(never)
    assert (verdicts["P3"], verdicts["P1"], verdicts["X9"]) == (Verdict.UNKNOWN, Verdict.HOLDS, Verdict.HOLDS)
    (merged,) = [row for row in merge_laws([result, never]) if row.id == "P3"]
    assert (merged.verdict, merged.limits) == (Verdict.UNKNOWN, ("write_row",))


def test_who_has_no_clear_has_nothing_to_tell() -> None:
    """X7, X9: who has one now and then is told of."""
    told = f"clear: {LEFT}"
    assert judge_adapter(SMOKE, [undone(told, 2, {})]).limits == ()
    (limit,) = judge_adapter(SMOKE, [undone(told, 2, {}), undone(told, 2, {"clear": 9}, n=2)]).limits
    assert (limit.operation, limit.not_done, limit.done) == ("clear", 4, 9)


def test_a_violation_outweighs_everything() -> None:
    """However often it was tested elsewhere; the smallest program of each law is kept, smallest first."""
    searches = [
        searched({"P1": 9, "P2": 9}, broken("P2", 8), broken("P1", 9)),
        searched({"P2": 9}, broken("P2", 5), n=2, crash=Crash("it died", None)),
    ]
    result = judge_adapter(SMOKE, searches)
    assert verdicts_of(result)["P2"] is Verdict.VIOLATED
    assert [(finding.law, finding.step) for finding in result.findings] == [("P2", 5), ("P1", 9)]
    assert result.verdict is Verdict.VIOLATED
    assert result.verdict.exit_status == 1


def test_what_a_violation_kept_from_being_searched_says_so() -> None:
    """Of the laws that the ended search could test; over several adapters, where it is so of one."""
    ended = judge_adapter(SMOKE, [searched({"P1": 9}), searched({"P1": 2}, broken("P2", 8), n=2)])
    unfinished = {row.id for row in ended.laws if row.unfinished}
    verdicts = verdicts_of(ended)
    assert {verdicts[law] for law in unfinished} == {Verdict.HOLDS, Verdict.UNKNOWN}
    assert "P1" in unfinished
    assert "P2" not in unfinished
    whole = judge_adapter(SMOKE, [searched({"P1": 9, "P2": 1})])
    assert not any(row.unfinished for row in whole.laws)
    assert {row.id for row in merge_laws([whole, ended]) if row.unfinished} == unfinished


def test_a_smaller_program_takes_the_place_of_the_one_that_was_found() -> None:
    """A smaller program of the same law replaces the found one; a program of another law is a new finding."""
    result = judge_adapter(SMOKE, [searched({}, broken("P2", 9))], (), [broken("P2", 4), broken("P1", 3)])
    assert [(finding.law, finding.step) for finding in result.findings] == [("P1", 3), ("P2", 4)]
    assert verdicts_of(result)["P1"] is Verdict.VIOLATED


def test_a_crash_leaves_unknown_what_was_not_broken() -> None:
    """A search that ended early might have found something."""
    crash = Crash("it died", None)
    result = judge_adapter(SMOKE, [searched({"P1": 3}), searched({"P1": 2}, n=2, crash=crash)])
    assert verdicts_of(result)["P1"] is Verdict.UNKNOWN
    assert result.problems == (crash,)
    assert result.verdict is Verdict.UNKNOWN


def test_only_the_laws_asked_for_have_rows_and_broken_ones() -> None:
    """Whoever asks for P1 hears of a broken P2, too."""
    wanted = [find_law("P1")]
    result = judge_adapter(SMOKE, [searched({"P1": 3, "P3": 3}, broken("P2", 2))], wanted)
    assert verdicts_of(result) == {"P1": Verdict.HOLDS, "P2": Verdict.VIOLATED}


def test_a_crash_of_one_machine_says_nothing_of_laws_that_only_another_tests() -> None:
    """E3 is tested by the engine alone; R6 by both."""
    claims = frozenset({"pool", "engine"})
    smoke = SmokeReport("cache", "prefix", (({}, claims),))
    fine = SearchResult(1, 1, 1.0, Counter(E3=1, R6=1), Counter(), Counter(), (), None)
    died = SearchResult(1, 1, 1.0, Counter(R6=1), Counter(), Counter(), (), Crash("it died", None))
    result = judge_adapter(
        smoke,
        [
            SearchedConfiguration("cache", {}, claims, PREFIX_MACHINE, died),
            SearchedConfiguration("cache", {}, claims, LIFECYCLE_MACHINE, fine),
        ],
    )
    verdicts = verdicts_of(result)
    assert (verdicts["E3"], verdicts["R6"]) == (Verdict.HOLDS, Verdict.UNKNOWN)


def test_a_machine_that_cannot_run_here_is_a_problem_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a law needs it that was asked for, and the reason is told; nothing that it would test holds."""
    monkeypatch.setattr("pymllm.machines.registry.why_no_torch", lambda: "needs what is not there")
    driven = frozenset({"pool", "engine"})
    smoke = SmokeReport("tiny", "prefix", (({"n": 1}, driven), ({"n": 2}, driven), ({"n": 3}, frozenset())))
    result = judge_adapter(smoke, [])
    assert [problem.message for problem in result.problems] == ["LifecycleMachine needs what is not there"]
    assert verdicts_of(result)["E4"] is Verdict.UNKNOWN
    assert result.verdict is Verdict.UNKNOWN
    assert find_missing(smoke, [find_law("R6")]) == ()
    assert find_missing(SMOKE) == ()


def test_machines_are_summed_over_configurations() -> None:
    """Programs, steps, seconds and coverage goals; a targeted run on the same configuration adds to it."""
    result = judge_adapter(SMOKE, [searched({}), searched({}), searched({}, n=2)])
    (machine,) = result.machines
    assert (machine.name, machine.configurations) == ("RowMachine", 2)
    assert (machine.programs, machine.steps, machine.seconds) == (6, 90, 4.5)
    assert machine.steps_per_second == 20.0
    assert machine.reached == {"row 0 is freed": 3}


def test_what_a_machine_had_to_reach_is_that_of_its_configurations() -> None:
    """Without refusals, no misuse; what was met and not expected is no excuse."""
    (machine,) = judge_adapter(SMOKE, [searched({}), searched({}, n=2)]).machines
    assert machine.expected == expected_names("rows", {}, CLAIMS)
    assert "row 0 is freed" not in machine.expected
    assert machine.unmet == tuple(sorted(machine.expected))


def test_a_machine_with_an_engine_has_to_reach_what_an_engine_does() -> None:
    """The other machine of the same adapter has not; of one that is not listed nothing is known."""
    claims = frozenset({"pool", "engine"})
    result = searched({}).result
    by_caller, by_engine, by_stranger = (
        SearchedConfiguration("cache", {}, claims, machine, result).expected
        for machine in (PREFIX_MACHINE, LIFECYCLE_MACHINE, MachineEntry("my.machines:Mine", 1.0))
    )
    assert "the engine comes to rest" in by_engine - by_caller
    assert "an eviction spares what is held" in by_caller - by_engine
    assert by_stranger == frozenset()


def reaching(name: str, reached: dict[str, int], *expected: str) -> AdapterResult:
    machine = MachineResult("RowMachine", 1, 1, 1, 1.0, reached, frozenset(expected))
    return AdapterResult(name, "rows", (), (), (machine,), ())


def test_a_goal_that_one_adapter_never_reached_is_named() -> None:
    """However often another did; in the order of the registry."""
    rows = merge_goals(
        [
            reaching("one", {"row 0 is freed": 2}, "row 0 is freed", "a row is freed twice"),
            reaching("two", {"a row is freed twice": 3}, "row 0 is freed"),
        ]
    )
    assert rows == (
        CoverageRow("row 0 is freed", "RowMachine", 2, ("two",)),
        CoverageRow("a row is freed twice", "RowMachine", 0, ("one",)),
    )


@pytest.mark.parametrize(("is_strict", "status"), [(False, 0), (True, 1)])
def test_a_search_that_was_cut_short_fails_where_it_is_strict(is_strict: bool, status: int) -> None:
    """A search that was cut short holds, its missing programs are summed up, and a strict run fails."""
    one = searched({"P1": 3})
    cut = dataclasses.replace(one, config={"n": 2}, result=dataclasses.replace(one.result, missing=5))
    adapter = judge_adapter(SMOKE, [one, cut], [find_law("P1")])
    (machine,) = adapter.machines
    assert (machine.programs, machine.promised) == (4, 9)
    met = dataclasses.replace(adapter, machines=(dataclasses.replace(machine, expected=frozenset()),))
    report = VerifyReport("ci", 0, None, 1, 40, {}, (met,), 1.0, is_strict=is_strict)
    assert (report.verdict, report.programs, report.promised) == (Verdict.HOLDS, 4, 9)
    assert (report.is_cut_short, report.exit_status) == (True, status)
    whole = dataclasses.replace(met, machines=(dataclasses.replace(met.machines[0], missing=0),))
    report = dataclasses.replace(report, adapters=(whole,))
    assert (report.is_cut_short, report.exit_status) == (False, 0)


def test_nothing_is_known_of_an_adapter_that_cannot_be_examined() -> None:
    """Its laws are unknown where its kind is known, none of them violated."""
    result = leave_unknown(SmokeFailure("tiny", "rows", "no way"))
    assert set(verdicts_of(result).values()) == {Verdict.UNKNOWN}
    assert [row.id for row in result.laws] == [law.id for law in laws_of("rows")]
    assert result.problems == (Crash("no way", None),)
    assert verdicts_of(leave_unknown(SmokeFailure("tiny", "rows", "no way"), [find_law("P1")])) == {
        "P1": Verdict.UNKNOWN
    }
    result = leave_unknown(SmokeFailure("tiny", None, "no way"))
    assert (result.laws, result.verdict.exit_status) == ((), 3)


@pytest.mark.parametrize(
    ("searches", "verdict"),
    [
        ([{"P1": 1}, {"P1": 2}], Verdict.HOLDS),
        ([{"P1": 1}, {}], Verdict.UNKNOWN),
    ],
)
def test_over_adapters_the_heavier_verdict_prevails(searches: list[dict[str, int]], verdict: Verdict) -> None:
    """A law that one adapter was never tested for is not said to hold."""
    results = tuple(judge_adapter(SMOKE, [searched(exercised)], [find_law("P1")]) for exercised in searches)
    (row,) = merge_laws(results)
    assert (row.id, row.verdict) == ("P1", verdict)
    assert row.tests == sum(exercised.get("P1", 0) for exercised in searches)
    report = VerifyReport("ci", 0, None, 1, 40, {}, results, 1.0)
    assert report.laws == (row,)
    assert report.verdict is verdict
