"""The whole of a verification, and what searches found, made small."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError

import pytest

from pymllm.adapters.registry import find_adapter
from pymllm.errors import InvariantViolation, UsageError
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import Clear
from pymllm.machines import registry
from pymllm.machines.acting import make_machine
from pymllm.machines.registry import CI, DEV, MACHINES, MachineEntry
from pymllm.machines.rows import RowMachine
from pymllm.oracle.laws import find_law
from pymllm.oracle.verdicts import Verdict
from pymllm.search.results import SearchedConfiguration, VerifyReport
from pymllm.search.runner import verify, versions
from pymllm.search.search import SearchPlan, SearchResult, search
from pymllm.search.shrinker import Finding
from pymllm.search.tasks import ShrinkTask, VerifyPlan, plan_shrinking, shrink_findings
from tests.unit.plugins import OF_PACKAGES


def plan_of(*adapters: str, laws: tuple[str, ...] = (), **changes: object) -> VerifyPlan:
    plan = VerifyPlan(
        tuple(find_adapter(name) for name in adapters),
        tuple(find_law(law) for law in laws),
        DEV,
        seed=3,
        examples=10,
        jobs=1,
    )
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


def facts_of(report: VerifyReport) -> VerifyReport:
    """A report without times and the number of jobs."""
    adapters = tuple(
        dataclasses.replace(
            adapter,
            machines=tuple(dataclasses.replace(machine, seconds=0.0) for machine in adapter.machines),
            findings=(),
        )
        for adapter in report.adapters
    )
    return dataclasses.replace(report, seconds=0.0, jobs=0, adapters=adapters)


def findings_of(report: VerifyReport) -> list[object]:
    return [
        (finding.law, finding.history, str(finding.violation))
        for adapter in report.adapters
        for finding in adapter.findings
    ]


def test_versions_are_those_of_what_takes_part(
    monkeypatch: pytest.MonkeyPatch, plug_in: Callable[[str, str], None]
) -> None:
    """Other projects' packages as pip calls them, each once, and none that is not there."""
    installed = {"hypothesis": "6", "numpy": "2", "their_cache": "0.5.23", "other-runtime": "1.6.1"}

    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr("pymllm.search.runner.version", version)
    plug_in("their_plugin", OF_PACKAGES)
    names = ("rows", "their-radix", "their-rows", "other-index", "gone-blocks", "nowhere:Rows")
    found = versions([find_adapter(name) for name in names])
    assert {name: number for name, number in found.items() if name not in ("pymllm", "python")} == installed
    assert "their_cache" not in versions()


def test_a_right_adapter_holds(tiny: str) -> None:
    """Every law that it claims was tested in some configuration."""
    report = verify(plan_of(f"{tiny}:TinyRows", examples=40))
    assert report.verdict is Verdict.HOLDS
    assert {row.verdict for row in report.laws} == {Verdict.HOLDS, Verdict.NOT_CLAIMED}
    (adapter,) = report.adapters
    assert (adapter.kind, adapter.problems, adapter.findings) == ("rows", (), ())
    (machine,) = adapter.machines
    assert machine.configurations == 2
    assert machine.programs >= 80
    assert report.versions.keys() >= {"pymllm", "python", "hypothesis"}


def test_the_number_of_jobs_changes_nothing_but_time(tiny: str) -> None:
    """X3: two processes find what one finds, in the same order."""
    names = [f"{tiny}:TinyRows", f"{tiny}:KeepsEntries"]
    alone = verify(plan_of(*names))
    shared = verify(plan_of(*names, jobs=2))
    assert facts_of(alone) == facts_of(shared)
    assert findings_of(alone) == findings_of(shared) != []


def test_an_adapter_that_is_not_there_is_refused(tiny: str) -> None:
    """X1: as a name is that the registry does not have, before anything is searched."""
    for name, words in (("no_such_module_here:Cache", "cannot import"), (f"{tiny}:Nobody", "has no class")):
        with pytest.raises(UsageError, match=f"adapter {name}: .*{words}"):
            verify(plan_of(f"{tiny}:TinyRows", name))


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_adapter_that_hangs_leaves_its_laws_unknown(tiny: str, jobs: int) -> None:
    """It says in which step, and has the program until there; another adapter is searched all the same."""
    report = verify(plan_of(f"{tiny}:Hangs", f"{tiny}:TinyRows", jobs=jobs, timeout=0.5, examples=40))
    wrong, right = report.adapters
    assert (wrong.verdict, right.verdict) == (Verdict.UNKNOWN, Verdict.HOLDS)
    for problem in wrong.problems:
        assert problem.history is not None
        (step,) = (step for step in problem.history.steps if step.outcome is None)
        assert problem.message.startswith(f"hung in step {step.number}, {step.operation}: no answer within")


@pytest.mark.parametrize("name", ["CannotClose", "CannotCloseLate"])
def test_an_adapter_that_cannot_be_closed_leaves_its_laws_unknown(tiny: str, name: str) -> None:
    """An adapter that cannot be closed leaves its laws unknown; a later failure comes with the program."""
    (adapter,) = verify(plan_of(f"{tiny}:{name}")).adapters
    assert adapter.verdict is Verdict.UNKNOWN
    assert adapter.problems[0].message.startswith("close raised ValueError: stuck (line ")
    assert (adapter.problems[0].history is not None) == (name == "CannotCloseLate")


def test_an_interrupt_keeps_what_is_known(tiny: str) -> None:
    """One search is done: its violation is in the report, and the rest is unknown."""
    told: dict[tuple[str, int], None] = {}

    @contextmanager
    def show(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
        def count(done: int) -> None:
            told[label, done] = None  # again and again while nothing ends
            if label == "searches" and done:
                raise KeyboardInterrupt

        yield count

    report = verify(plan_of(f"{tiny}:KeepsEntries", f"{tiny}:TinyRows"), show)
    assert isinstance(report.interruption, KeyboardInterrupt)
    assert [each for each in told if each[1]] == [("smoke tests", 1), ("smoke tests", 2), ("searches", 1)]
    wrong, right = report.adapters
    assert [finding.law for finding in wrong.findings] == ["P2"]
    assert wrong.findings[0].is_unfinished
    assert right.verdict is Verdict.UNKNOWN
    assert right.problems[0].message == "interrupted before its end"


def test_an_interrupt_before_anything_is_known_is_one(tiny: str) -> None:
    """There is nothing to report."""

    @contextmanager
    def show(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
        def count(done: int) -> None:
            raise KeyboardInterrupt

        yield count

    with pytest.raises(KeyboardInterrupt):
        verify(plan_of(f"{tiny}:TinyRows"), show)


@pytest.mark.parametrize(("name", "kind"), [("Dies", None), ("DiesLate", "rows")])
def test_a_process_that_dies_is_said_to_have_died(tiny: str, name: str, kind: str | None) -> None:
    """The others' results are not made up, whether it died in its smoke test or in a search."""
    report = verify(plan_of(f"{tiny}:{name}", jobs=2))
    (adapter,) = report.adapters
    assert adapter.kind == kind
    assert adapter.verdict is Verdict.UNKNOWN
    assert adapter.problems[0].message.startswith("the process that ran it ended with status 7")


def test_only_what_can_test_a_law_runs(tiny: str) -> None:
    """P1 is about rows; the laws of others are not asked for."""
    report = verify(plan_of(f"{tiny}:TinyRows", "hashes", laws=("P1",)))
    rows, hashes = report.adapters
    assert [row.id for row in rows.laws] == ["P1"]
    assert (hashes.laws, hashes.machines) == ((), ())
    assert report.verdict is Verdict.HOLDS


def test_a_law_that_nobody_can_test_is_refused(tiny: str) -> None:
    """X1: an empty table would look like a success."""
    with pytest.raises(UsageError, match="none of the adapters can test R6, X1"):
        verify(plan_of(f"{tiny}:TinyRows", laws=("R6", "X1")))


def test_a_profile_promises_programs_and_not_time(tiny: str) -> None:
    """X3: as many in one process as in two, and again; each of them is played."""
    names = (f"{tiny}:TinyRows", "hashes")
    reports = [verify(plan_of(*names, examples=None, jobs=jobs)) for jobs in (1, 2)]
    assert facts_of(reports[0]) == facts_of(reports[1])
    assert reports[0].programs == reports[0].promised > 50
    assert not reports[0].is_cut_short


@pytest.mark.parametrize(("is_strict", "status"), [(False, 0), (True, 1)])
def test_a_search_that_is_cut_short_is_told(
    tiny: str, monkeypatch: pytest.MonkeyPatch, is_strict: bool, status: int
) -> None:
    """A search that is cut short holds as far as it was tested, and only a strict run fails."""
    for name in ("_PATIENCE", "_PATIENCE_LEAST"):
        monkeypatch.setattr(f"pymllm.search.tasks.{name}", 1e-9)
    law = ("P1",)
    report = verify(plan_of(f"{tiny}:TinyRows", examples=None, laws=law, jobs=0, is_strict=is_strict))
    assert report.verdict is Verdict.HOLDS
    assert report.is_cut_short
    assert report.programs < report.promised
    assert report.exit_status == status


def test_a_law_that_no_program_tested_gets_another_search(tiny: str) -> None:
    """One short program does not fill the table; long ones do, and are played only then."""
    profile = dataclasses.replace(DEV, steps=1)
    labels: list[tuple[str, int]] = []

    @contextmanager
    def show(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
        labels.append((label, total))
        yield None

    profile = dataclasses.replace(profile, seconds=0.01)
    report = verify(plan_of(f"{tiny}:TinyRows", examples=None, profile=profile), show)
    assert labels == [("smoke tests", 1), ("searches", 2), ("second searches", 2)]
    assert report.verdict is Verdict.HOLDS
    (machine,) = report.adapters[0].machines
    assert machine.configurations == 2
    assert machine.programs > 2


@pytest.mark.parametrize("examples", [1, 2, 30, 51])
def test_a_number_of_programs_is_that_number(tiny: str, examples: int) -> None:
    """For each configuration, and no long ones on top."""
    report = verify(plan_of(f"{tiny}:TinyRows", examples=examples))
    assert report.adapters[0].machines[0].programs == 2 * examples


def test_a_law_that_stays_untested_is_unknown(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that no step tested is unknown."""
    monkeypatch.setitem(registry.MACHINES, "rows", (MachineEntry(f"{tiny}:IdleMachine", 1.0),))
    for examples in (2, None):
        report = verify(plan_of(f"{tiny}:TinyRows", examples=examples))
        assert report.verdict is Verdict.UNKNOWN
        assert report.verdict.exit_status == 3


PLAN = VerifyPlan((), (), CI, 3, None, 2)
CONFIG = {"max_reqs": 3, "max_context_len": 4}
(MACHINE,) = MACHINES["rows"]


def finding(law: str, steps: int) -> Finding:
    history = History(Header("x", "rows"), [Step(1 + at, Clear()) for at in range(steps)])
    return Finding(InvariantViolation(law, "looked"), history, True, True)


def done(adapter: str, n: int, *found: Finding, failed_slice: int | None = None) -> SearchedConfiguration:
    again = None if failed_slice is None else SearchPlan(3, 40, 60, 0.0, 0, failed_slice, 1)
    result = SearchResult(1, 1, 1.0, Counter(), Counter(), Counter(), found, None, again)
    return SearchedConfiguration(adapter, {"n": n}, frozenset(), MACHINE, result)


def test_the_smallest_of_each_law_and_adapter_is_made_smaller() -> None:
    """Hypothesis shrinks the smallest of all, from the run that found it; of the others steps are dropped."""
    p2, p1, other = finding("P2", 4), finding("P1", 6), finding("P2", 9)
    tasks = plan_shrinking(
        [
            done("a", 1, finding("P2", 7), failed_slice=1),
            done("a", 2, p2, p1, failed_slice=5),
            done("b", 1, other, failed_slice=0),
            done("c", 1),
        ],
        PLAN,
    )
    assert [(task.adapter, task.config["n"], task.finding) for task in tasks] == [
        ("a", 2, p2),
        ("a", 2, p1),
        ("b", 1, other),
    ]
    assert [task.plan and (task.plan.first_slice, task.plan.slices) for task in tasks] == [
        (5, 1),
        None,
        (0, 1),
    ]
    assert tasks[0].plan == SearchPlan(3, 40, 60, 0.0, CI.shrinks, 5, 1)
    assert {task.shrinks for task in tasks} == {CI.shrinks}


def test_what_a_targeted_run_found_loses_steps_only() -> None:
    """Hypothesis had no part in it."""
    (task,) = plan_shrinking([done("a", 1, finding("P2", 400))], PLAN)
    assert task.plan is None


def test_a_finding_becomes_small(tiny: str) -> None:
    """P2: with its search it is the smallest that there is, without it loses what it does not need."""
    adapter = f"{tiny}:KeepsEntries"
    raw = SearchPlan(seed=1, steps=20, examples=30, seconds=0.0, shrinks=0)
    result = search(make_machine(RowMachine, adapter, dict(CONFIG)), raw)
    (found, *_) = result.found
    assert result.again == dataclasses.replace(raw, first_slice=0, slices=1)
    again = dataclasses.replace(result.again, shrinks=300)
    task = ShrinkTask(adapter, dict(CONFIG), MACHINE, found, 300, None)
    (dropped,) = shrink_findings(task)
    shrunk = shrink_findings(dataclasses.replace(task, plan=again))
    assert len(found.history) > len(dropped.history) == len(shrunk[0].history) == 4
    assert {it.law for it in (found, dropped, shrunk[0])} == {"P2"}
    assert (shrunk[0].is_rerun, shrunk[0].is_judged) == (True, True)


def test_what_is_found_again_otherwise_is_kept_beside(tiny: str) -> None:
    """X3: a search that finds nothing this time changes nothing."""
    task = ShrinkTask(f"{tiny}:TinyRows", dict(CONFIG), MACHINE, finding("E3", 3), 10, None)
    assert [it.law for it in shrink_findings(task)] == ["E3"]
    again = SearchPlan(seed=1, steps=5, examples=5, seconds=0.0, shrinks=10)
    (same,) = shrink_findings(dataclasses.replace(task, plan=again))
    assert (same.law, len(same.history), same.is_rerun) == ("E3", 3, False)
