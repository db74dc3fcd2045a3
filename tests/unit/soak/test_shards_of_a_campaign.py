"""One campaign, played in parts by several machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from pymllm.adapters.registry import find_adapter
from pymllm.errors import UsageError
from pymllm.oracle.verdicts import Verdict
from pymllm.soak import campaign
from pymllm.soak.campaign import SoakPlan, soak
from pymllm.soak.findings import PROGRAMS
from pymllm.soak.ledger import FILE, Ledger, RunRecord, read_ledger
from pymllm.soak.player import PlayedRun, play_run
from pymllm.soak.resuming import load_campaign
from pymllm.soak.schedule import RunTask, count_runs, plan_runs, runs_of_shard
from pymllm.work.shards import Shard
from pymllm.work.workers import Lost

PLAN = SoakPlan(
    (find_adapter("token-slots"), find_adapter("rows")), seed=3, operations=4_000, longest=300, jobs=0
)
COUNT = 3


def of(number: int, plan: SoakPlan = PLAN, count: int = COUNT) -> SoakPlan:
    return replace(plan, shard=Shard(number, count))


def numbers_of(folder: Path) -> list[int]:
    return [it.number for it in read_ledger(folder / FILE) if isinstance(it, RunRecord)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The whole campaign, and its shards."""
    made = [tmp_path_factory.mktemp("part") for _ in range(1 + COUNT)]
    soak(PLAN, made[0])
    for number in range(1, 1 + COUNT):
        soak(of(number), made[number])
    return made


def test_shards_have_each_run_of_the_campaign_once_and_equally_much(folders: list[Path]) -> None:
    """X3: the same runs as of the campaign that one machine plays; the header says which part it is."""
    whole, *parts = folders
    header = next(iter(read_ledger(whole / FILE)))
    tasks = list(plan_runs(header))
    assert sorted(number for part in parts for number in numbers_of(part)) == numbers_of(whole)
    assert header.runs == len(tasks) == len(numbers_of(whole)) == count_runs(header)
    loads = []
    for number, part in enumerate(parts, 1):
        of_part = next(iter(read_ledger(part / FILE)))
        assert of_part.shard == (number, COUNT)
        assert of_part.campaign == header
        assert [it.number for it in runs_of_shard(of_part)] == numbers_of(part)
        loads.append(sum(it.limit for it in runs_of_shard(of_part)))
    assert max(loads) - min(loads) <= max(it.limit for it in tasks)


def test_a_shard_that_is_started_again_goes_on(folders: list[Path], tmp_path: Path) -> None:
    """A shard that is started again goes on, by the same words or by resuming, from any torn ledger."""
    lines = (folders[2] / FILE).read_text("utf-8").splitlines(keepends=True)
    for kept, torn in ((0, ""), (0, lines[0][:30]), (1, ""), (3, lines[3][:50])):
        folder = tmp_path / f"{kept}{len(torn)}"
        folder.mkdir()
        (folder / FILE).write_text("".join(lines[:kept]) + torn, encoding="utf-8")
        resumed = load_campaign(folder) if kept == 3 else None
        report = soak(of(2), folder, resumed)
        assert numbers_of(folder) == numbers_of(folders[2])
        assert report.totals.runs == len(lines) - 1
    again = soak(of(2), folder)
    assert again.totals.runs == len(lines) - 1
    assert (folder / FILE).read_text("utf-8").count("\n") == len(lines)


def test_a_shard_goes_on_with_other_packages_but_not_with_another_campaign(
    folders: list[Path], tmp_path: Path
) -> None:
    """A shard goes on with other packages, and leaves a folder of another campaign as it is."""
    header, records = load_campaign(folders[1])
    with Ledger(tmp_path / FILE) as ledger:
        ledger.add(structs.replace(header, versions={"python": "3"}))
    assert soak(of(1), tmp_path).headers[0].versions == {"python": "3"}
    assert numbers_of(tmp_path) == [it.number for it in records]
    before = (tmp_path / FILE).read_bytes()
    for plan in (of(2), of(1, count=4), of(1, replace(PLAN, seed=4)), of(1, replace(PLAN, operations=5_000))):
        with pytest.raises(UsageError, match="there is another campaign, or another shard"):
            soak(plan, tmp_path)
    with pytest.raises(UsageError, match="there is a campaign already"):
        soak(PLAN, tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_more_shards_than_runs_are_refused(tmp_path: Path) -> None:
    """By each of them, before anything is written: one without runs would know nothing."""
    for number in (1, 99):
        with pytest.raises(
            UsageError, match=rf"--shard {number}/99: the campaign has \d+ runs; take at most"
        ):
            soak(of(number, count=99), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_shards_of_a_campaign_that_time_ends_share_its_runs(tmp_path: Path) -> None:
    """None is played twice; how many there are nobody knows."""
    plan = replace(PLAN, operations=None, seconds=60.0, stops_on_failure=True)
    plan = replace(plan, adapters=(find_adapter("faulty-dirty-rows"),))
    played = [numbers_of(soak(of(it, plan), tmp_path / f"{it}").folder or tmp_path) for it in (1, 2, 3)]
    assert all(played)
    assert not {*played[0]} & {*played[1]}
    header = load_campaign(tmp_path / "1")[0]
    assert (header.runs, header.operations) == (None, None)


def test_a_shard_leaves_what_it_found_as_it_was_played(tmp_path: Path) -> None:
    """P2: many shards find the same; whoever merges them makes it small, once."""
    plan = replace(PLAN, adapters=(find_adapter("faulty-dirty-rows"),), operations=2_000)
    report = soak(of(1, plan, 2), tmp_path)
    assert report.verdict() is Verdict.VIOLATED
    assert report.findings == {}
    assert report.totals.adapters["faulty-dirty-rows"].failures["P2"].first.short is None
    assert list((tmp_path / PROGRAMS).iterdir())


KILLED = Lost("the process that ran it was killed by SIGKILL", is_killed=True)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_run_whose_process_somebody_killed_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A machine without memory is no news of an adapter; one that is killed each time is a problem."""
    plays = Counter[int]()

    def play(task: RunTask) -> PlayedRun | Lost:
        plays[task.number] += 1
        return KILLED if task.number == 2 and plays[2] <= times else play_run(task)

    monkeypatch.setattr(campaign, "play_run", play)
    report = soak(PLAN, tmp_path / "c")
    assert plays.pop(2) == min(times + 1, 3)
    assert {*plays.values()} == {1}
    assert sorted(numbers_of(tmp_path / "c")) == list(range(report.headers[0].runs or 0))
    assert report.verdict() is (Verdict.UNKNOWN if times == 3 else Verdict.HOLDS)


def test_a_run_that_was_lost_is_played_when_its_campaign_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its line stays in the ledger, and counts no more."""
    with monkeypatch.context() as patch:
        patch.setattr(campaign, "play_run", lambda task: KILLED if task.number == 2 else play_run(task))
        assert soak(PLAN, tmp_path).verdict() is Verdict.UNKNOWN
    report = soak(PLAN, tmp_path, load_campaign(tmp_path))
    assert report.verdict() is Verdict.HOLDS
    assert Counter(numbers_of(tmp_path))[2] == 2
    assert all(it.failure is None for it in load_campaign(tmp_path)[1])
    assert soak(PLAN, tmp_path, load_campaign(tmp_path)).totals.runs == report.totals.runs
