"""A search that several machines share, and one that goes on: together what one run has found."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pymllm.adapters.registry import find_adapter
from pymllm.documents.searches import VerifyDocument
from pymllm.documents.shards import BrokenLaw, ShardDocument
from pymllm.errors import UsageError
from pymllm.machines.registry import DEV, MACHINES
from pymllm.search.kept_searches import keep_searches
from pymllm.search.results import VerifyReport
from pymllm.search.runner import verify
from pymllm.search.search import SearchPlan, SearchResult
from pymllm.search.tasks import SearchTask, VerifyPlan, run_search
from pymllm.search.verify_shard import deal, play_shard
from pymllm.work.kept import KeptResults
from pymllm.work.shards import Shard
from pymllm.work.workers import Lost
from tests.kept_results import results_in

COUNT = 3


def plan_of(*adapters: str, **changes: Any) -> VerifyPlan:
    plan = VerifyPlan(tuple(map(find_adapter, adapters)), (), DEV, seed=3, examples=8, jobs=0)
    return dataclasses.replace(plan, **changes)


def kept_in(path: Path, plan: VerifyPlan) -> KeptResults[Any, Any]:
    return keep_searches(path, plan)


def play(plan: VerifyPlan, number: int, path: Path, count: int = COUNT) -> ShardDocument:
    document, interruption = play_shard(plan, Shard(number, count), kept_in(path, plan), "verify")
    assert interruption is None
    return document


def facts_of(report: VerifyReport) -> bytes:
    """The document, without times and what is of this run."""
    plain = report.document().plain()
    plain |= {"seconds": 0.0, "kept": 0, "jobs": 0}
    for adapter in plain["adapters"]:
        for machine in adapter["machines"]:
            machine |= {"seconds": 0.0, "steps_per_second": 0.0}
    return msgspec.json.encode(msgspec.convert(plain, VerifyDocument))


# -- hands -------------------------------------------------------------------------------------------------


def tasks_of(*examples: int) -> list[SearchTask]:
    plans = [SearchPlan(seed=1, steps=10, examples=each) for each in examples]
    return [
        SearchTask("rows", {"n": at}, frozenset(), MACHINES["rows"][0], it) for at, it in enumerate(plans)
    ]


def test_hands_take_about_as_long_and_have_each_search_once() -> None:
    """The dearest are dealt first, whatever comes first in the plan; small ones are told apart."""
    tasks = tasks_of(1, 1, 1, 1, 2, 2, 90, 1, 90, 1, 45, 45)
    hands = [deal(tasks, Shard(number, COUNT)) for number in (1, 2, 3)]
    assert sorted(task.config["n"] for hand in hands for task in hand) == list(range(len(tasks)))
    loads = [sum(task.plan.examples for task in hand) for hand in hands]
    assert max(loads) - min(loads) <= 2
    assert hands == [deal(tasks, Shard(number, COUNT)) for number in (1, 2, 3)]


# -- one search, shared ------------------------------------------------------------------------------------


def names_of(tiny: str) -> tuple[str, ...]:
    return tuple(f"{tiny}:{name}" for name in ("TinyRows", "KeepsEntries", "GivesUp", "WrongInside"))


@pytest.mark.parametrize("profile", [None, dataclasses.replace(DEV, steps=1, seconds=0.01)])
def test_shards_come_to_what_one_run_finds(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Any
) -> None:
    """X3: in any order, twice, with a torn line at the end; a number of programs or a profile's."""
    names = names_of(tiny) if profile is None else (f"{tiny}:TinyRows", "rows")
    plan = plan_of(*names)
    if profile is not None:
        plan = dataclasses.replace(plan, examples=None, profile=profile)
    labels: list[tuple[str, int]] = []

    @contextmanager
    def show(label: str, total: int) -> Iterator[Callable[[int], None] | None]:
        labels.append((label, total))
        yield None

    alone = verify(plan, show)
    parts = [tmp_path / f"{number}" for number in (1, 2, 3)]
    documents = [play(plan, number, path) for number, path in enumerate(parts, 1)]
    total = dict(labels)["searches"]
    assert [it.total for it in documents] == [total] * COUNT
    assert sum(it.tasks for it in documents) == sum(it.done for it in documents) == total
    lines = [line for part in parts for line in part.read_text("utf-8").splitlines(keepends=True)]
    assert sum(len(results_in(part)) for part in parts) == total
    everything = tmp_path / "all"
    shuffled = random.Random(1).sample(lines * 2, 2 * len(lines))
    everything.write_text("".join(shuffled) + lines[0][:99], encoding="utf-8")

    with monkeypatch.context() as patch:
        firsts: list[SearchTask] = []

        def search_again(task: SearchTask) -> SearchResult:
            if not task.laws:
                firsts.append(task)
            return run_search(task)

        patch.setattr("pymllm.search.runner.run_search", search_again)
        merged = verify(plan, kept=kept_in(everything, plan))
    assert firsts == []
    assert facts_of(merged) == facts_of(alone)
    assert (alone.kept, merged.kept) == (0, total)
    assert merged.verdict is alone.verdict
    expected = {"second searches"} if profile is not None else {"smaller programs"}
    assert expected == {label for label, _ in labels} - {"smoke tests", "searches"}

    def nobody(task: object) -> None:
        raise AssertionError(task)

    monkeypatch.setattr("pymllm.search.runner.run_search", nobody)
    monkeypatch.setattr("pymllm.search.runner.shrink_findings", nobody)
    again = verify(plan, kept=kept_in(everything, plan))
    assert facts_of(again) == facts_of(alone)
    assert again.kept == sum(count for label, count in labels if label != "smoke tests")


def test_what_a_lost_shard_left_out_is_played_there(tiny: str, tmp_path: Path) -> None:
    """X3: the same comes of it."""
    plan = plan_of(*names_of(tiny))
    play(plan, 2, tmp_path / "kept")
    merged = verify(plan, kept=kept_in(tmp_path / "kept", plan))
    assert facts_of(merged) == facts_of(verify(plan))
    assert 0 < merged.kept < len(merged.adapters) * 2


def test_a_shard_says_what_it_saw(tiny: str, tmp_path: Path) -> None:
    """A shard tells each broken law once, and each problem, and a restart tells the same."""
    plan = plan_of(f"{tiny}:KeepsEntries", f"{tiny}:GivesUp", f"{tiny}:Refuses")
    document = play(plan, 1, tmp_path / "kept", count=1)
    assert [(it.name, it.law) for it in document.broken] == [(f"{tiny}:KeepsEntries", "P2")]
    refused, crashed = document.problems
    assert refused.startswith(f"{tiny}:Refuses could not be examined: ")
    assert crashed.startswith(f"{tiny}:GivesUp could not be examined to the end: lost the connection")
    assert (document.tasks, document.done, document.kept, document.exit_status) == (4, 4, 0, 1)
    again = play(plan, 1, tmp_path / "kept", count=1)
    assert (again.done, again.kept) == (4, 4)
    assert again == msgspec.structs.replace(document, kept=4, seconds=again.seconds)
    sound = play(plan_of(f"{tiny}:TinyRows"), 1, tmp_path / "sound", count=1)
    assert (sound.broken, sound.problems, sound.exit_status) == ((), (), 0)
    gone = play(plan_of(f"{tiny}:Refuses"), 2, tmp_path / "gone", count=9)
    assert (gone.tasks, gone.total, gone.exit_status, len(gone.problems)) == (0, 0, 3, 1)


def test_the_smallest_program_speaks_for_a_law(tiny: str, tmp_path: Path) -> None:
    """Of two configurations that break it."""
    plan = plan_of(f"{tiny}:KeepsEntries")
    document = play(plan, 1, tmp_path / "kept", count=1)
    kept = [line["result"]["found"][0] for line in results_in(tmp_path / "kept")]
    shortest = min(kept, key=lambda it: len(it["history"]["steps"]))
    assert document.broken == (BrokenLaw(f"{tiny}:KeepsEntries", "P2", shortest["violation"][1]),)


def test_what_was_lost_or_cut_short_is_not_kept(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is played where the shards are put together, or by the shard that is started again."""
    plan = plan_of(f"{tiny}:TinyRows", f"{tiny}:KeepsEntries")

    def search(task: SearchTask) -> SearchResult | Lost:
        if task.adapter.endswith("KeepsEntries"):
            return Lost("the process that ran it was killed by SIGKILL")
        return dataclasses.replace(run_search(task), programs=3, missing=5)

    with monkeypatch.context() as patch:
        patch.setattr("pymllm.search.runner.run_search", search)
        document = play(plan, 1, tmp_path / "kept", count=1)
    assert document.problems == (
        f"{tiny}:TinyRows: time was up after 3 of 8 programs of a search, which is not kept",
        f"{tiny}:KeepsEntries: a search was lost, and is not kept: "
        "the process that ran it was killed by SIGKILL",
    )
    assert (document.tasks, document.done, document.exit_status) == (4, 0, 3)
    assert (tmp_path / "kept").read_text("utf-8") == ""
    again = play(plan, 1, tmp_path / "kept", count=1)
    assert (again.done, again.kept, again.problems) == (4, 0, ())


def test_more_shards_than_searches_are_refused(tiny: str, tmp_path: Path) -> None:
    """By each of them, as of a campaign: one without searches would know nothing."""
    plan = plan_of(f"{tiny}:TinyRows")
    for number in (1, 9):
        with pytest.raises(UsageError, match=f"--shard {number}/9: the plan has 2 searches; take at most"):
            play(plan, number, tmp_path / "kept", count=9)
    with pytest.raises(UsageError, match="none of the adapters can test R6"):
        play(plan_of("rows", laws=find_laws("R6")), 1, tmp_path / "kept")


def find_laws(*ids: str) -> Any:
    from pymllm.oracle.laws import find_law

    return tuple(map(find_law, ids))


# -- interrupts --------------------------------------------------------------------------------------------


def interrupt_at(label: str, number: int) -> Any:
    @contextmanager
    def show(shown: str, total: int) -> Iterator[Callable[[int], None] | None]:
        def count(done: int) -> None:
            if (shown, done) == (label, number):
                raise KeyboardInterrupt

        yield count

    return show


def test_a_shard_that_was_interrupted_goes_on(tiny: str, tmp_path: Path) -> None:
    """Two searches are done and kept; what was not done is no problem of an adapter."""
    plan = plan_of(*names_of(tiny))
    path = tmp_path / "kept"
    shard = Shard(1, 1)
    show = interrupt_at("searches", 2)
    document, interruption = play_shard(plan, shard, kept_in(path, plan), "verify", show)
    assert isinstance(interruption, KeyboardInterrupt)
    assert (document.done, document.tasks, document.interrupted) == (2, 8, True)
    assert not any("interrupted" in problem for problem in document.problems)
    assert len(results_in(path)) == 2
    show = interrupt_at("searches", 4)  # of which two were known
    document, _ = play_shard(plan, shard, kept_in(path, plan), "verify", show)
    assert (document.done, document.kept) == (4, 2)
    assert play(plan, 1, path, count=1).kept == 4


def test_a_shard_that_knows_nothing_has_nothing_to_tell(tiny: str, tmp_path: Path) -> None:
    """As a whole run."""
    plan = plan_of(f"{tiny}:TinyRows")
    with pytest.raises(KeyboardInterrupt):
        play_shard(
            plan,
            Shard(1, 1),
            kept_in(tmp_path / "kept", plan),
            "verify",
            interrupt_at("smoke tests", 1),
        )


def test_an_interrupt_leaves_what_was_known(tiny: str, tmp_path: Path) -> None:
    """An interrupted run keeps its results, and a whole run goes on from them."""
    plan = plan_of(*names_of(tiny))
    path = tmp_path / "kept"
    first = verify(plan, interrupt_at("searches", 3), kept_in(path, plan))
    assert first.interruption is not None
    assert len(results_in(path)) == 3
    whole = verify(plan, kept=kept_in(path, plan))
    assert whole.kept == 3
    assert facts_of(whole) == facts_of(verify(plan))
