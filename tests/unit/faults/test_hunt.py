"""Faults: put in place, looked for and taken out again, by searchers and as the commands look."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.documents.faults import SEARCHERS
from pymllm.faults.detection import (
    Detection,
    FaultResult,
    HuntPlan,
    HuntTask,
    Searcher,
    hunt,
    make_searchers,
)
from pymllm.faults.fault import Fault
from pymllm.faults.hunt import hunt_by_soak, hunt_by_verify, keep_results, look_for_faults
from pymllm.faults.plant import Edit, planted
from pymllm.faults.table import PLANTED, find_faults, load_cabinet
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.driven_cache import DrivenCache
from pymllm.machines.lifecycle import LifecycleMachine
from pymllm.machines.registry import DEV
from pymllm.search.tasks import VerifyPlan
from pymllm.soak.campaign import SoakPlan
from tests.unit import tiny_cabinet

QUICK = HuntPlan(operations=3_000)


def detection(seed: int, law: str, operations: int, program: int | None = None) -> Detection:
    return Detection(seed, law, "row 1", "machine", "rows", {}, operations, operations / 10, program)


def test_a_planted_fault_is_caught_and_taken_out_again(tiny: str) -> None:
    """P2: by a law of its list; without it nothing is found."""
    result = hunt(HuntTask(tiny_cabinet.DIRTY, QUICK))
    assert result.is_caught
    assert (result.laws, result.searchers, result.problems) == (("P2",), ("machine",), ())
    (found,) = result.detections
    assert (found.adapter, found.seed, found.program) == ("tiny_adapters:TinyRows", 0, None)
    assert found.operations == result.operations > 0
    sound = hunt(HuntTask(tiny_cabinet.SOUND, QUICK))
    assert not sound.is_caught
    assert sound.detections == ()
    assert sound.problems[0].startswith("seed 0: not caught; operations: machine 3,")


def test_a_law_that_nobody_wrote_down_does_not_count(tiny: str) -> None:
    """P2: it is caught, but not as was said beforehand."""
    result = hunt(HuntTask(tiny_cabinet.KEEPING, QUICK))
    assert not result.is_caught
    assert (result.laws, result.unlisted) == (("P2",), ("P2",))


def test_a_fault_that_cannot_be_planted_or_examined_says_so(tiny: str) -> None:
    """A hunt reports an edit that does not fit, a failed adapter, and a fault without a searcher."""
    (stale,) = hunt(HuntTask(tiny_cabinet.STALE, QUICK)).problems
    assert stale.startswith(
        "cannot be planted: tiny_adapters:TinyRows.do_free_row has 'no such text' 0 times"
    )
    (broken,) = hunt(HuntTask(tiny_cabinet.BROKEN, QUICK)).problems
    assert broken.startswith("cannot be examined: ")
    alone = Fault("x", "x", ("P2",), ("rows",), searchers=("life-cycle machine",))
    assert hunt(HuntTask(alone, QUICK)).problems == (
        "seed 0: not caught; operations: no searcher can look for it",
    )


def test_a_fault_that_never_ends_is_given_up(tiny: str) -> None:
    """From each seed after so many seconds."""
    plan = HuntPlan((0, 1), operations=3_000, seconds=0.3)
    result = hunt(HuntTask(tiny_cabinet.ENDLESS, plan))
    words = [rf"seed {seed}: still running after 0\.3 s; operations: machine [\d,]+, .*" for seed in (0, 1)]
    assert [re.fullmatch(*it) is not None for it in zip(words, result.problems, strict=True)] == [True, True]
    assert result.row().missed == result.missed > 0


@pytest.mark.parametrize(
    ("plan", "ended"),
    [
        (HuntPlan(operations=100), "not caught"),
        (HuntPlan(operations=10**9, seconds=3.0), r"still running after 3 s"),
    ],
)
def test_an_error_of_the_engine_is_told_however_the_search_ends(
    plan: HuntPlan, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that ran out says nothing of why; the first error does, and how much was played."""
    monkeypatch.setattr("pymllm.faults.detection._MOST_CRASHES", 10**9)
    misspelt = Edit("pymllm.workloads.engine:Engine._decode", "batch = self.decoding", "batch = self.decoded")
    fault = Fault("x", "x", ("P2",), ("radix",), (misspelt,), searchers=("life-cycle machine",))
    result = hunt(HuntTask(fault, plan))
    (said,) = result.problems
    error = "AttributeError: 'Engine' object has no attribute 'decoded'"
    played = rf"operations: life-cycle machine {result.missed:,}"
    assert re.fullmatch(
        rf"seed 0: {ended}; life-cycle machine met {error}(, and \d+ more errors)?; {played}", said
    )
    assert result.missed > 0


def test_a_searcher_that_meets_nothing_but_errors_gives_up() -> None:
    """After fifty programs in a row, and not after a minute."""
    misspelt = Edit("pymllm.workloads.engine_loop:EngineLoop.step", "_arrivals.next", "_arrival.next")
    fault = Fault("x", "x", ("P2",), ("radix",), (misspelt,), searchers=("life-cycle machine",))
    (said,) = hunt(HuntTask(fault, HuntPlan(operations=10**9))).problems
    error = "AttributeError: 'Engine' object has no attribute '_arrival'"
    assert said.startswith(
        f"seed 0: not caught; life-cycle machine met {error}, and 49 more errors: gave up after 50 in a row; "
    )


def test_an_act_that_ends_in_an_error_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is asked of what broke down, or its end could wait for ever and hide the error."""
    monkeypatch.setattr(LifecycleMachine, "end", lambda self: pytest.fail("the engine was asked to go on"))
    configs = load_adapter(find_adapter("radix")).CONFIGURATIONS
    config = next(it for it in configs if it.get("pool", "none") != "none")
    machine = make_machine(LifecycleMachine, "radix", config)
    monkeypatch.setattr(DrivenCache, "reset", lambda self: {}["missing"])
    with pytest.raises(KeyError, match="missing"):
        drive(machine, seed=1, steps=200)
    assert machine.runs == 1


def test_programs_are_made_smaller_where_that_is_asked_for() -> None:
    """P2: a row is taken, written, given back and read."""
    (fault,) = find_faults(["B107"], PLANTED)
    plan = HuntPlan((0, 1), operations=5_000, shrinks=100)
    result = hunt(HuntTask(fault, plan))
    assert result.is_caught
    assert [found.seed for found in result.detections] == [0, 1]
    assert result.program is not None
    assert result.program <= 4
    assert sorted(found.program is None for found in result.detections) == [False, True]  # the shortest


def test_numbers_are_medians_and_the_smallest_program() -> None:
    """Over the seeds from which it was caught."""
    fault = Fault("x", "x", ("P2", "P1"), ("rows",))
    found = (detection(0, "P2", 10, 7), detection(1, "P1", 30, 4), detection(2, "P2", 20))
    result = FaultResult(fault, found, (), 1.0)
    assert (result.operations, result.seconds_to_detection, result.program) == (20, 2.0, 4)
    assert (result.laws, result.is_caught) == (("P2", "P1"), True)
    nothing = FaultResult(fault, (), ("seed 0: not caught",), 1.0)
    assert (nothing.operations, nothing.seconds_to_detection, nothing.program) == (0, 0.0, None)
    assert not nothing.is_caught


@pytest.mark.parametrize(
    ("id", "named"), [("B55", "invariants"), ("B49", "machine"), ("B64", "life-cycle machine")]
)
def test_whoever_sees_it_from_outside_is_named(id: str, named: str) -> None:
    """The walk from inside is named only where the walk saw it."""
    (fault,) = find_faults([id], PLANTED)
    alone = Fault(fault.id, fault.title, fault.laws, fault.adapters, fault.edits, searchers=("invariants",))
    (found,) = hunt(HuntTask(alone, QUICK)).detections
    assert found.searcher == named


ROWS = Fault("rows", "rows are dirty", ("P2",), ("faulty-dirty-rows",))


def searcher_of(fault: Fault, name: str, seed: int = 0) -> Searcher:
    (found,) = (searcher for searcher in make_searchers(fault, seed) if searcher.name == name)
    return found


def test_those_who_can_look_are_made_in_the_order_of_the_fault() -> None:
    """An adapter that no engine can drive is left to the others."""
    assert [it.name for it in make_searchers(ROWS, 0)] == ["machine", "invariants", "sweep"]
    pooled = Fault("x", "x", ("R1",), ("radix",), settings={"pool": "token"})
    assert tuple(it.name for it in make_searchers(pooled, 0)) == SEARCHERS
    plain = Fault("x", "x", ("R1",), ("radix",), settings={"pool": "none"}, searchers=("sweep", "machine"))
    assert [it.name for it in make_searchers(plain, 0)] == ["sweep", "machine"]


def test_a_machine_catches_by_outcomes_and_says_after_how_much() -> None:
    """P2: the program that broke it is there, and the same seed finds the same one."""
    programs = []
    for _ in range(2):
        searcher = searcher_of(ROWS, "machine")
        caught = searcher.go_on(5_000)
        assert caught is not None
        assert not caught.is_inside
        assert (caught.found.violation.law, caught.adapter) == ("P2", "faulty-dirty-rows")
        assert 0 < len(caught.found.history) <= searcher.operations
        programs.append([step.operation for step in caught.found.history.steps])
    assert programs[0] == programs[1]


def test_every_program_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alike they would all leave out the same acts: on each configuration, in each turn, from each seed."""
    seeds: list[int] = []

    def note(machine: type[ActingMachine], seed: int, acts: int) -> None:
        seeds.append(seed)

    monkeypatch.setattr("pymllm.faults.detection.drive", note)
    for seed in range(3):
        searcher_of(Fault("x", "x", ("P1",), ("radix",)), "machine", seed).go_on(30)
    assert len(seeds) == len({*seeds}) == 90


def test_a_search_goes_on_where_it_stopped() -> None:
    """A search for a sound fault plays until its operations are spent, and goes on with more."""
    searcher = searcher_of(Fault("sound", "sound", ("P1",), ("rows",)), "machine")
    assert searcher.go_on(100) is None
    first = searcher.operations
    assert first >= 100
    assert searcher.go_on(100) is None
    assert searcher.operations == first
    assert searcher.go_on(first + 50) is None
    assert searcher.operations > first


@pytest.mark.parametrize(
    ("id", "searcher", "law"),
    [
        ("B55", "invariants", "R8"),  # the clock stands still, which the trackers show first
        ("B104", "life-cycle machine", "E3"),  # an engine gives everything back twice: no caller may do that
        ("B124", "sweep", "X2 X6"),  # callbacks see trackers that are not updated yet, where a call fails
    ],
)
def test_each_searcher_catches_what_it_is_for(id: str, searcher: str, law: str) -> None:
    """R8, E3, X2, X6: only what is seen from inside is told to be."""
    (fault,) = find_faults([id], PLANTED)
    with planted(fault.edits):
        caught = searcher_of(fault, searcher).go_on(5_000)
    assert caught is not None
    assert caught.is_inside == (searcher == "invariants")
    assert issubclass(caught.machine, LifecycleMachine) == (searcher == "life-cycle machine")
    assert caught.found.violation.law in law.split()


@pytest.mark.parametrize("name", ["machine", "sweep"])
def test_an_error_that_is_no_violation_is_remembered_and_ends(name: str) -> None:
    """A machine that breaks down says nothing of any law, and its search comes to an end all the same."""
    edit = Edit("pymllm.adapters.own_pools:Rows.sizes", "return", "raise SystemError('broken')\nreturn")
    searcher = searcher_of(Fault("sound", "sound", ("P1",), ("rows",)), name)
    with planted([edit]):
        assert searcher.go_on(5) is None
    assert searcher.crash is not None
    assert "raised SystemError: broken" in searcher.crash


HUNT = HuntPlan(operations=2_000)
FAULTS = find_faults(["B116", "B107"], PLANTED)


def test_faults_come_back_in_their_order_and_alike_from_processes() -> None:
    """X3: what is found does not depend on the number of jobs."""
    alone, beside = (look_for_faults(FAULTS, HUNT, jobs) for jobs in (1, 2))
    assert [result.fault.id for result in beside.results] == ["B116", "B107"]
    found = [
        [(it.law, it.operations, it.searcher) for result in report.results for it in result.detections]
        for report in (alone, beside)
    ]
    assert found[0] == found[1]
    assert (alone.exit_status, alone.missed, beside.jobs) == (0, (), 2)


def test_progress_is_told_and_what_is_missed_ends_with_1() -> None:
    """Progress is told by the number of faults done, and a missed fault gives status 1."""
    seen: list[object] = []

    @contextmanager
    def show(label: str, total: int) -> Iterator[Callable[[int], None]]:
        seen.append((label, total))
        yield seen.append

    sound = Fault("sound", "nothing is wrong", ("P1",), ("hashes",), searchers=("machine",))
    report = look_for_faults([FAULTS[0], sound], HuntPlan(operations=200), 1, show)
    assert [*dict.fromkeys(it for it in seen if it)] == [("faults", 2), 1, 2]  # again while nothing ends
    assert report.exit_status == 1
    assert [result.fault.id for result in report.missed] == ["sound"]


@contextmanager
def interrupting(after: int) -> Iterator[Callable[[int], None]]:
    def count(done: int) -> None:
        if done == after:
            raise KeyboardInterrupt

    yield count


def test_an_interrupt_leaves_what_is_known() -> None:
    """An interrupted hunt reports the faults that were examined, and counts the others as missed."""
    report = look_for_faults(FAULTS, HUNT, 1, lambda label, total: interrupting(1))
    assert isinstance(report.interruption, KeyboardInterrupt)
    assert [result.is_caught for result in report.results] == [True, False]
    assert report.missed[0].problems == ("interrupted before its end",)


@pytest.mark.usefixtures("work_here")
def test_an_interrupt_before_anything_is_known_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty table would tell nothing."""

    def interrupt(task: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pymllm.faults.hunt.hunt", interrupt)
    with pytest.raises(KeyboardInterrupt):
        look_for_faults(FAULTS, HUNT, 1)


def test_what_is_kept_is_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ended early goes on with what is missing, and comes to the same."""
    kept = tmp_path / "results.jsonl"
    first = look_for_faults(FAULTS[:1], HUNT, 1, kept=keep_results(kept))
    whole = look_for_faults(FAULTS, HUNT, 1, kept=keep_results(kept))
    assert (first.kept, whole.kept) == (0, 1)
    assert whole.results[0] == first.results[0]

    def nobody(task: object) -> None:
        raise AssertionError(task)

    monkeypatch.setattr("pymllm.faults.hunt.hunt", nobody)
    again = look_for_faults(FAULTS, HUNT, 1, kept=keep_results(kept))
    assert (again.kept, again.results) == (2, whole.results)


FAULT = Fault("x", "is wrong", ("R1",), ("radix",))
TASK = HuntTask(FAULT, HuntPlan())
KEPT = Detection(0, "R1", "page 3", "machine", "radix", {"page_size": 1, "window": None}, 12, 0.5, 4)
KEPT_RESULT = FaultResult(FAULT, (KEPT,), ("seed 1: not caught",), 1.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


def test_a_result_is_known_to_the_next_run(path: Path) -> None:
    """All of it; the run that found it has no need of it."""
    keep_results(path).keep(TASK, KEPT_RESULT)
    assert keep_results(path).find(TASK) == KEPT_RESULT


def test_a_result_counts_only_for_what_it_is_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault, looked for in the same way, in the same package."""
    keep_results(path).keep(TASK, KEPT_RESULT)
    kept = keep_results(path)
    assert kept.find(HuntTask(replace(FAULT, laws=("R2",)), TASK.plan)) is None
    assert kept.find(HuntTask(FAULT, HuntPlan((1,)))) is None
    monkeypatch.setattr("pymllm.faults.hunt.versions", lambda: {"hypothesis": "0"})
    assert keep_results(path).find(TASK) is None


def test_a_result_of_a_strangers_cache_counts_until_its_source_changes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a cache that a fault no longer breaks would count as one that was caught."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kept_cache.py").write_text("SIZE = 1\n", encoding="utf-8")
    (tmp_path / "kept_adapter.py").write_text("import kept_cache\n", encoding="utf-8")
    task = HuntTask(replace(FAULT, adapters=("kept_adapter:Cache",)), TASK.plan)
    keep_results(path).keep(task, KEPT_RESULT)
    assert keep_results(path).find(task) is not None
    (tmp_path / "kept_cache.py").write_text("SIZE = 2\n", encoding="utf-8")
    assert keep_results(path).find(task) is None


VERIFY = VerifyPlan((find_adapter("rows"),), (), DEV, seed=3, examples=15, jobs=1)
SOAK = SoakPlan((find_adapter("rows"),), seed=3, operations=600, longest=200)


def table(name: str) -> dict[str, Fault]:
    return {fault.id: fault for fault in load_cabinet(f"tiny_cabinet:{name}")}


def test_a_fault_is_caught_by_the_law_of_its_list_with_a_small_program(tiny: str) -> None:
    """P2: by either, whomever the plan names."""
    fault = table("TABLE")["dirty"]
    for name, result in (
        ("verification", hunt_by_verify(VERIFY, HuntTask(fault, HuntPlan()))),
        ("campaign", hunt_by_soak(SOAK, HuntTask(fault, HuntPlan()))),
    ):
        (seen,) = result.detections
        assert result.is_caught
        assert (seen.law, seen.searcher, seen.adapter) == ("P2", name, "tiny_adapters:TinyRows")
        assert seen.program == 4
        assert seen.operations > 4


def test_a_miss_says_how_much_was_played(tiny: str) -> None:
    """Nothing is wrong here, so nobody may find anything."""
    sound = replace(table("TABLE")["dirty"], edits=())
    missed = hunt_by_verify(VERIFY, HuntTask(sound, HuntPlan()))
    assert not missed.is_caught
    assert missed.problems[0].startswith("seed 3: not caught; played 30 of 30 programs, ")
    missed = hunt_by_soak(SOAK, HuntTask(sound, HuntPlan()))
    assert missed.problems[0].startswith("seed 3: not caught; played 6")


def test_what_cannot_be_planted_or_examined_is_a_problem(tiny: str) -> None:
    """A law that was not tested has caught nothing."""
    stale, broken = (table("TROUBLE")[name] for name in ("stale", "broken"))
    for plan, look in ((VERIFY, hunt_by_verify), (SOAK, hunt_by_soak)):
        (problem,) = look(plan, HuntTask(stale, HuntPlan())).problems  # type: ignore[arg-type]
        assert problem.startswith("cannot be planted: tiny_adapters:TinyRows.do_free_row has 'no such text'")
        (problem,) = look(plan, HuntTask(broken, HuntPlan())).problems  # type: ignore[arg-type]
        assert "; played 0 " in problem
        assert "cannot be built" in problem


def test_the_next_fault_finds_sound_code_in_the_same_process(tiny: str) -> None:
    """The next fault finds sound code after any other fault, even after a replaced method."""
    whole, broken = table("BY_ANY")["whole"], table("TROUBLE")["broken"]
    failing = replace(whole, id="failing", adapters=broken.adapters)
    sound = replace(whole, id="sound", edits=())
    report = look_for_faults(
        [whole, failing, sound], HuntPlan((3,)), 1, hunter=partial(hunt_by_verify, VERIFY)
    )
    caught, failed, missed = report.results
    assert caught.is_caught
    assert "cannot be built" in failed.problems[0]
    assert "not caught; played 30 of 30 programs" in missed.problems[0]
