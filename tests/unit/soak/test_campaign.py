"""A whole campaign, and campaigns put together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from pymllm.adapters.registry import OWN, find_adapter
from pymllm.errors import UsageError
from pymllm.history.files import load_history
from pymllm.instrument.provenance import build_version
from pymllm.oracle.verdicts import Verdict
from pymllm.report.documents import read_ledger_file
from pymllm.search.program import rerun_history
from pymllm.soak import campaign, ledger, resuming
from pymllm.soak.campaign import SoakPlan, soak
from pymllm.soak.drift import DriftVerdict
from pymllm.soak.findings import PROGRAMS
from pymllm.soak.ledger import FILE, Ledger, Memory, RunRecord, Shares, read_ledger
from pymllm.soak.merged_campaigns import MergePlan, merge_campaigns
from pymllm.soak.merging import merge_ledgers
from pymllm.soak.resuming import load_campaign
from pymllm.work.workers import Lost

ROWS = (find_adapter("rows"), find_adapter("hashes"))
PLAN = SoakPlan(ROWS, seed=3, operations=1_200, longest=200)
HERE = replace(PLAN, jobs=0)  # in this process, where a test can see and change what happens


def runs_of(folder: Path) -> list[RunRecord]:
    """Those halves of the lines that follow from the seed, by number."""
    records = [record for record in read_ledger(folder / FILE) if isinstance(record, RunRecord)]
    bare = {"seconds": 0.0, "cpu": 0.0, "shares": Shares(), "memory": Memory()}
    return sorted((structs.replace(it, **bare) for it in records), key=lambda it: it.number)  # type: ignore[arg-type]


def test_a_short_campaign_over_every_own_adapter_finds_nothing(tmp_path: Path) -> None:
    """All laws: what comes of seconds on a change, and of nights on a release."""
    report = soak(SoakPlan(OWN, seed=1, operations=400 * len(OWN), longest=400), tmp_path)
    assert report.verdict() is Verdict.HOLDS
    assert report.totals.operations >= 400 * len(OWN)
    assert {name for name, it in report.totals.adapters.items() if it.operations} == {it.name for it in OWN}
    assert all(it.reached for name, it in report.totals.adapters.items() if name != "chunk")
    assert report.missing  # so few operations cannot reach everything,
    assert report.verdict(strict=True) is Verdict.VIOLATED  # and a strict campaign says so


@pytest.mark.usefixtures("cold_workers")  # with hash seeds of their own
def test_the_same_seed_gives_the_same_ledger_in_any_number_of_processes(tmp_path: Path) -> None:
    """X3: but for what is measured."""
    soak(PLAN, tmp_path / "one")
    soak(replace(PLAN, jobs=2), tmp_path / "two")
    assert runs_of(tmp_path / "one") == runs_of(tmp_path / "two")
    assert sum(it.operations for it in runs_of(tmp_path / "one")) >= 1_200


def test_a_campaign_that_played_nothing_knows_nothing(tmp_path: Path) -> None:
    """All laws: that none was broken is no news of an implementation that nobody asked."""
    report = soak(replace(PLAN, operations=None, seconds=0.0), tmp_path)
    assert report.totals.runs == 0
    assert report.verdict() is Verdict.UNKNOWN


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    """A campaign that was torn at any line goes on to the ledger that it would have had."""
    soak(PLAN, tmp_path / "whole")
    lines = (tmp_path / "whole" / FILE).read_text("utf-8").splitlines(keepends=True)
    for kept, torn in ((1, ""), (4, ""), (3, lines[3][:50])):
        folder = tmp_path / f"{kept}{len(torn)}"
        folder.mkdir()
        (folder / FILE).write_text("".join(lines[:kept]) + torn, encoding="utf-8")
        report = soak(PLAN, folder, load_campaign(folder))
        assert runs_of(folder) == runs_of(tmp_path / "whole")
        assert report.totals.runs == len(lines) - 1
        assert report.headers == (next(iter(read_ledger(folder / FILE))),)


def test_a_run_that_is_in_a_ledger_twice_counts_once_when_it_goes_on(tmp_path: Path) -> None:
    """As it does when ledgers are merged."""
    soak(PLAN, tmp_path)
    path = tmp_path / FILE
    path.write_text(2 * path.read_text("utf-8"), encoding="utf-8")
    header, merged = load_campaign(tmp_path)
    records = list(merged)
    assert sorted(it.number for it in records) == [*range(len(records))]
    report = soak(PLAN, tmp_path, (header, records))
    assert report.totals.runs == len(records)
    assert list(load_campaign(tmp_path)[1]) == records


def test_several_campaigns_in_one_ledger_do_not_go_on(tmp_path: Path) -> None:
    """The number of a run is that of its own campaign: those of the other would not be played."""
    for seed in (3, 4):
        soak(replace(PLAN, seed=seed, operations=100), tmp_path / str(seed))
    path = tmp_path / "3" / FILE
    path.write_text(path.read_text("utf-8") + (tmp_path / "4" / FILE).read_text("utf-8"), encoding="utf-8")
    with pytest.raises(UsageError, match="2 campaigns"):
        load_campaign(tmp_path / "3")


def test_a_campaign_whose_lines_disagree_does_not_go_on(tmp_path: Path) -> None:
    """X3: two lines of one run that say different things are told by a merge, not passed over."""
    soak(replace(PLAN, operations=100), tmp_path)
    with Ledger(tmp_path / FILE) as ledger:
        ledger.add(structs.replace(next(iter(load_campaign(tmp_path)[1])), digest="else"))
    with pytest.raises(UsageError, match=r"pymllm merge"):
        load_campaign(tmp_path)


def test_a_campaign_of_another_version_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: its other runs were other programs."""
    soak(replace(PLAN, operations=10), tmp_path)
    monkeypatch.setattr(resuming, "build_version", lambda: "9+other")
    with pytest.raises(UsageError, match=r"this is 9\+other"):
        load_campaign(tmp_path)


def test_a_faulty_adapter_is_caught_and_the_campaign_goes_on(tmp_path: Path) -> None:
    """P2: the program is kept as it was played and made small, once for each law; both break it again."""
    name = "faulty-dirty-rows"
    report = soak(replace(PLAN, adapters=(find_adapter(name), *ROWS), operations=3_000), tmp_path)
    assert report.verdict() is Verdict.VIOLATED
    faulty = report.totals.adapters[name]
    assert list(faulty.failures) == ["P2"]
    assert faulty.failures["P2"].runs > 2
    assert report.totals.adapters["rows"].runs > 3
    assert len(report.findings or {}) == 1
    record = faulty.failures["P2"].first
    assert record.failure is not None
    assert len(list((tmp_path / PROGRAMS).glob("*-short.jsonl"))) == 1
    for file in (record.file, record.short):
        history = load_history(tmp_path / str(file))
        again = rerun_history(history, name)
        assert again.violation is not None
        assert again.violation.law == "P2"
        assert history.header.note.startswith("P2")
    # The coordinates are enough.
    alone = SoakPlan(
        (find_adapter(name),),
        (record.config,),
        machine=record.machine,
        run=record.seed,
        operations=record.limit,
    )
    (again,) = runs_of(soak(alone, tmp_path / "alone").folder or tmp_path)
    assert (again.failure, again.digest) == (record.failure, record.digest)


def test_a_campaign_may_stop_at_its_first_failure(tmp_path: Path) -> None:
    """Then somebody looks at it."""
    plan = replace(PLAN, adapters=(find_adapter("faulty-dirty-rows"),), stops_on_failure=True)
    report = soak(plan, tmp_path)
    assert len(report.totals.adapters["faulty-dirty-rows"].failures) == 1
    assert report.totals.operations < 1_200
    assert runs_of(tmp_path)[-1].failure is not None


@pytest.mark.usefixtures("cold_workers")
def test_a_leak_of_an_adapter_shows_and_fails_where_that_is_asked_for(tiny: str, tmp_path: Path) -> None:
    """A leaking implementation grows with the operations, and ours is flat.

    In processes as users get them: one that is forked from another still has its caches to fill. Ours plays
    longer, since those that fill in any case count less then.
    """
    leaking, sound = (
        soak(SoakPlan((find_adapter(name),), seed=2, operations=count, longest=200), tmp_path / name[-4:])
        for name, count in ((f"{tiny}:Leaks", 6_000), ("rows", 12_000))
    )
    (blocks,) = (it for it in leaking.drifts if it.measure == "blocks")
    assert blocks.verdict is DriftVerdict.GROWS
    assert blocks.slope is not None
    assert blocks.slope > 1_000_000
    assert blocks in leaking.growing
    assert leaking.verdict() is Verdict.HOLDS
    assert leaking.verdict(strict=True) is Verdict.VIOLATED
    (blocks,) = (it for it in sound.drifts if it.measure == "blocks")
    assert blocks.verdict is DriftVerdict.FLAT


def test_adapters_that_cannot_be_played_are_told(tiny: str, tmp_path: Path) -> None:
    """The others are played all the same; unknown is not sound."""
    plan = replace(PLAN, adapters=(find_adapter(f"{tiny}:NoConfigurations"), ROWS[0]), operations=200)
    report = soak(plan, tmp_path / "a")
    assert [it.name for it in report.refused] == [f"{tiny}:NoConfigurations"]
    assert report.totals.runs
    assert report.verdict() is Verdict.UNKNOWN
    alone = soak(replace(plan, adapters=plan.adapters[:1]), tmp_path / "b")
    assert (alone.totals.runs, alone.verdict()) == (0, Verdict.UNKNOWN)


def test_an_adapter_whose_process_dies_before_it_plays_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that does not pass its smoke test."""
    monkeypatch.setattr(campaign, "find_places_of", lambda asked: Lost("killed"))
    report = soak(replace(HERE, adapters=ROWS[:1]), tmp_path)
    assert [(it.name, it.message) for it in report.refused] == [("rows", "killed")]
    assert report.verdict() is Verdict.UNKNOWN


def test_an_adapter_that_dies_or_hangs_takes_nothing_along(tiny: str, tmp_path: Path) -> None:
    """Its runs are problems, with the program where that is known; the others have theirs."""
    names = (f"{tiny}:DiesLate", f"{tiny}:Hangs")
    adapters = (*map(find_adapter, names), ROWS[0])
    plan = replace(PLAN, adapters=adapters, operations=450, longest=150, jobs=2, timeout=2.0)
    report = soak(plan, tmp_path)
    assert report.totals.adapters["rows"].operations > 100
    died, hung = (report.totals.adapters[name].failures[""].first for name in names)
    assert died.failure is not None
    assert hung.failure is not None
    assert "the process that ran it ended with status" in died.failure.message
    assert hung.failure.message.startswith("hung in step")
    assert hung.file is not None
    assert report.verdict() is Verdict.UNKNOWN


def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    """And so is more than one place for one run, and a machine that drives nothing there."""
    with pytest.raises(UsageError, match="nowhere"):
        soak(replace(PLAN, adapters=(find_adapter("nowhere:Rows"),)), tmp_path)
    with pytest.raises(UsageError, match="these adapters have HashMachine, RowMachine"):
        soak(replace(PLAN, machine="SlotMachine"), tmp_path)
    with pytest.raises(UsageError, match=r"the run may be of [0-9]+ places"):
        soak(replace(PLAN, run=4), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_programs_that_cannot_be_written_are_left_out(tmp_path: Path) -> None:
    """The line of the ledger matters more."""
    (tmp_path / PROGRAMS).write_text("in the way", encoding="utf-8")
    plan = replace(PLAN, adapters=(find_adapter("faulty-dirty-rows"),), stops_on_failure=True)
    soak(plan, tmp_path)
    last = runs_of(tmp_path)[-1]
    assert last.failure is not None
    assert (last.file, last.short) == (None, None)


def test_onlookers_see_the_totals(tmp_path: Path) -> None:
    """After each run."""
    seen: list[int] = []
    soak(replace(HERE, operations=900), tmp_path, show=lambda totals: seen.append(totals.runs))
    runs = [*dict.fromkeys(seen)]  # told again every second while none ends
    assert [it for it in runs if it] == list(range(1, runs[-1] + 1))
    assert runs[-1] > 1


@pytest.mark.parametrize("moment", ["smoke", "first run", "ledger"])
def test_an_interrupt_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """An interrupt before any run is passed on, and a later one leaves a report of the runs so far."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    if moment == "smoke":
        monkeypatch.setattr(campaign, "find_places_of", interrupt)
    elif moment == "first run":
        monkeypatch.setattr(campaign, "play_run", interrupt)
    else:
        report = soak(HERE, tmp_path, show=lambda totals: interrupt() if totals.runs == 3 else None)
        assert report.interruption is not None
        assert report.totals.runs == len(runs_of(tmp_path)) == 3
        return
    with pytest.raises(KeyboardInterrupt):
        soak(HERE, tmp_path)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_a_folder_that_can_go_on(tmp_path: Path, jobs: int) -> None:
    """The program itself, interrupted from outside while it plays."""
    options = ["--adapter", "rows", "--seed", "3", "--operations", "60000", "--longest", "400"]
    command = [sys.executable, "-m", "pymllm", "soak", *options, "--jobs", str(jobs), "--output", "c"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background may have them ignore it, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    path = tmp_path / "c" / FILE
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b"\n") < 4):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "pymllm resume c" in err
    assert "operations in" in out
    before = runs_of(tmp_path / "c")
    plan = replace(PLAN, adapters=ROWS[:1], operations=None, seconds=0.0)
    report = soak(plan, tmp_path / "c", load_campaign(tmp_path / "c"))
    assert report.totals.runs == len(before) >= 3
    assert os.listdir(tmp_path / "c") == [ledger.FILE]


STRANGER = """
from pymllm.adapters.own_pools import Rows


class MyRows(Rows):
    pass
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SoakPlan:
    """A campaign on a class that is not of this package."""
    name = f"my_rows_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(STRANGER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return SoakPlan((find_adapter(f"{name}:MyRows"),), seed=3, operations=600, longest=200)


def test_a_campaign_on_a_changed_stranger_does_not_go_on(tmp_path: Path, stranger: SoakPlan) -> None:
    """X3: its other runs would be those of another implementation."""
    soak(stranger, tmp_path / "one")
    soak(stranger, tmp_path / "one", load_campaign(tmp_path / "one"))
    source = tmp_path / f"my_rows_{tmp_path.name}.py"
    source.write_text(f"{STRANGER}# mended\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"the source of my_rows_.*:MyRows changed since"):
        soak(stranger, tmp_path / "one", load_campaign(tmp_path / "one"))


def test_runs_of_a_changed_stranger_are_other_runs(tmp_path: Path, stranger: SoakPlan) -> None:
    """X3: who was mended between two campaigns of one seed is not accused of doing two things."""
    soak(stranger, tmp_path / "one")
    source = tmp_path / f"my_rows_{tmp_path.name}.py"
    source.write_text(f"{STRANGER}# mended\n", encoding="utf-8")
    soak(stranger, tmp_path / "two")
    keys = [{run.key for run in runs_of(tmp_path / name)} for name in ("one", "two")]
    assert keys[0]
    assert not keys[0] & keys[1]
    assert all(run.version.startswith(f"{build_version()}.") for run in runs_of(tmp_path / "two"))


def test_a_machine_that_cannot_play_here_leaves_a_campaign_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch there is no engine; whoever asked for another machine has lost nothing."""
    monkeypatch.setattr("pymllm.machines.registry.why_no_torch", lambda: "needs what is not there")
    plan = SoakPlan((find_adapter("radix"),), seed=3, operations=200, longest=100)
    report = soak(plan, tmp_path / "all")
    assert [it.message for it in report.refused] == ["LifecycleMachine needs what is not there"]
    assert report.verdict() is Verdict.UNKNOWN
    assert report.totals.operations >= 200
    report = soak(replace(plan, machine="PrefixMachine"), tmp_path / "one")
    assert (report.refused, report.verdict()) == ((), Verdict.HOLDS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two campaigns of different seeds, and the first one again."""
    plan = SoakPlan((find_adapter("rows"),), seed=3, operations=900, longest=300)
    made = tuple(tmp_path_factory.mktemp("campaign") for _ in range(3))
    for folder, seed in zip(made, (3, 4, 3), strict=True):
        soak(replace(plan, seed=seed), folder)
    return made[0], made[1], made[2]


def test_duplicates_collapse_and_everything_else_adds_up(folders: tuple[Path, Path, Path]) -> None:
    """The same campaign on two machines is one."""
    one, other, again = (merge_campaigns([folder]).totals for folder in folders)
    merged = merge_campaigns(folders)
    assert merged.totals.runs == one.runs + other.runs
    assert merged.totals.operations == one.operations + other.operations
    assert again.operations == one.operations
    assert len(merged.headers) == 2
    assert (merged.conflicts, merged.verdict()) == ((), Verdict.HOLDS)
    assert merged.totals.adapters["rows"].places == one.adapters["rows"].places


def test_a_merged_ledger_is_a_ledger(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """With each run once; an existing one is left alone."""
    merge_campaigns(folders, MergePlan(tmp_path))
    merged, parts = merge_ledgers([tmp_path / FILE]), merge_ledgers([folder / FILE for folder in folders])
    assert (list(merged), merged.headers) == (list(parts), parts.headers)
    assert merge_campaigns([tmp_path / FILE]).totals.runs == merge_campaigns(folders).totals.runs
    with pytest.raises(FileExistsError):
        merge_campaigns(folders, MergePlan(tmp_path))


def test_a_run_that_did_something_else_elsewhere_breaks_x3(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Both are named."""
    with Ledger(tmp_path / FILE) as ledger:
        for record in read_ledger(folders[0] / FILE):
            ledger.add(structs.replace(record, digest="else") if isinstance(record, RunRecord) else record)
    report = merge_campaigns([folders[0], tmp_path])
    assert len(report.conflicts) == report.differing == report.totals.runs
    assert report.verdict() is Verdict.VIOLATED
    for name, it in report.totals.adapters.items():
        assert {law: failure.runs for law, failure in it.failures.items()} == {"X3": it.runs}, name
    row = report.document().adapters[0].failures[0]
    assert (row.failure.law, row.file, row.failure.observed) == ("X3", None, "digest else")
    assert read_ledger_file(folders[0] / FILE, tmp_path / FILE).document.adapters[0].failures[0] == row
