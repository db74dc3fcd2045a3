"""Tests of one run: its clocks, its program made small, and the memory that the process holds after it."""

from __future__ import annotations

import ctypes
import gc
import time
from dataclasses import replace

import pytest
from msgspec import structs

from pymllm.adapters.registry import find_adapter, load_adapter, make_adapter
from pymllm.history.files import Config
from pymllm.history.operations import AllocRows, ReadRows
from pymllm.machines.examiner import Examiner
from pymllm.search.program import rerun_history
from pymllm.soak import player
from pymllm.soak.ledger import Place, RunRecord
from pymllm.soak.player import EVERY, Clocks, PlayedRun, look_at_memory, play_run
from pymllm.soak.schedule import RunTask


def test_one_operation_in_some_is_timed() -> None:
    """The first is, so that a short run has its share, too."""
    clocks = Clocks()
    samples = [clocks.is_sample() for _ in range(2 * EVERY + 1)]
    assert [at for at, it in enumerate(samples) if it] == [0, EVERY, 2 * EVERY]


def test_parts_are_told_apart_and_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that each look moves on by a second, and adapter and judge looked at once each."""
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "process_time", lambda: float(next(ticks)))
    clocks = Clocks()
    examiner = Examiner(make_adapter("rows"))
    adapter, judge = examiner.adapter, examiner.judge
    assert clocks.is_sample()
    with clocks.operation(examiner):
        examiner.do(AllocRows(1))
    assert (examiner.adapter, examiner.judge) == (adapter, judge)
    with clocks.part("walks"):
        pass
    with clocks.part("again"):
        pass
    _, cpu, shares = clocks.stop()
    assert (shares.adapter, shares.judge, shares.walks, shares.again) == (1.0, 1.0, 1.0, 1.0)
    assert cpu == shares.adapter + shares.judge + shares.walks + shares.again + shares.driver


def test_operations_of_the_end_are_not_counted_twice() -> None:
    """The time of an end beside its operations is at least zero, and shares add up to at most the whole."""
    clocks = Clocks()
    examiner = Examiner(make_adapter("rows"))
    with clocks.part("again"):
        for _ in range(40):
            if clocks.is_sample():
                with clocks.operation(examiner):
                    examiner.do(ReadRows())
    _, cpu, shares = clocks.stop()
    assert shares.again >= 0
    parts = (shares.adapter, shares.judge, shares.walks, shares.again, shares.driver)
    assert sum(parts) == pytest.approx(cpu, abs=1e-4)
    assert shares.adapter > 0


def task(adapter: str = "rows", kind: str = "rows", machine: str = "RowMachine", **more: object) -> RunTask:
    config: Config = dict(load_adapter(find_adapter(adapter)).CONFIGURATIONS[0])
    made = RunTask(0, "v", Place(adapter, kind, config, machine), 5, 300, 64)
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


def played(run: PlayedRun) -> RunRecord:
    """The half of a record that follows from its key."""
    record = run.record
    bare = RunRecord(*(getattr(record, name) for name in RunRecord.__struct_fields__[:16]))
    return structs.replace(bare, failure=record.failure)


@pytest.mark.parametrize(
    ("adapter", "kind", "machine"),
    [
        ("swa-slots", "slots", "SlotMachine"),
        ("mamba", "prefix", "PrefixMachine"),
        ("radix", "prefix", "LifecycleMachine"),
        ("blocks", "blocks", "BlockMachine"),
    ],
)
def test_a_run_is_the_same_whenever_it_is_played(adapter: str, kind: str, machine: str) -> None:
    """X3: whatever was played before, however often it is walked from inside, and timed or not."""
    asked = task(adapter, kind, machine)
    if machine == "LifecycleMachine":
        asked = replace(
            asked, place=structs.replace(asked.place, config={**asked.place.config, "pool": "token"})
        )
    once = play_run(asked)
    again = play_run(replace(asked, audit=1))
    assert once.record.failure is None
    assert played(once) == played(again)
    assert sum(again.record.audited.values()) > sum(once.record.audited.values())
    assert once.record.operations >= 300
    assert (once.history, once.finding) == (None, None)


def test_another_seed_is_another_run() -> None:
    """And so is none of it, but for the place."""
    digests = {play_run(task(seed=seed)).record.digest for seed in range(6)}
    assert len(digests) == 6


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    """A run that fails at a step fails there with any length."""
    asked = task("faulty-dirty-rows", seed=2, limit=2000, known=frozenset({"P2"}))
    failed = play_run(asked).record
    assert failed.failure is not None
    longer = play_run(replace(asked, limit=4000)).record
    assert longer.failure == failed.failure


def test_walks_are_as_frequent_as_asked_for() -> None:
    """Whatever the size of the pool; none where none is wanted."""
    counts = [
        play_run(task("token-slots", "slots", "SlotMachine", audit=audit)).record for audit in (0, 64, 8)
    ]
    off, seldom, often = (record.audited.get("A2", 0) for record in counts)
    assert off == 0
    assert seldom == pytest.approx(300 / 64, abs=1.5)
    assert often == pytest.approx(300 / 9, rel=0.2)


def test_a_failure_is_a_step_a_program_and_a_small_one() -> None:
    """P2: the program fails at the same step again, and a few of its operations do."""
    run = play_run(task("faulty-dirty-rows", seed=2, limit=2000))
    record = run.record
    assert record.failure is not None
    assert run.history is not None
    assert run.finding is not None
    assert record.failure.law == run.finding.law == "P2"
    assert record.failure.step == run.history.steps[-1].number
    again = rerun_history(run.history, "faulty-dirty-rows")
    assert again.violation is not None
    assert len(again.history) == len(run.history)
    assert len(run.finding.history) <= 6
    assert play_run(task("faulty-dirty-rows", seed=2, limit=2000, known=frozenset({"P2"}))).finding is None


@pytest.mark.parametrize("name", ["Breaks", "GivesUp", "CannotCloseLate"])
def test_an_adapter_that_cannot_be_asked_is_a_problem(tiny: str, name: str) -> None:
    """It breaks no law; what was asked is kept."""
    run = play_run(task(f"{tiny}:{name}", limit=3000))
    assert run.record.failure is not None
    assert run.record.failure.law is None
    assert run.record.failure.message
    assert run.finding is None
    assert run.history is not None
    assert run.record.failure.step == run.history.steps[-1].number


def test_an_adapter_that_cannot_be_built_is_a_problem(tiny: str) -> None:
    """The run has no operations then."""
    asked = task(f"{tiny}:LacksSetting")
    run = play_run(replace(asked, place=structs.replace(asked.place, config={})))
    assert run.record.failure is not None
    assert (run.record.failure.law, run.record.operations, run.history) == (None, 0, None)


def test_an_interrupt_passes_and_leaves_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the adapter is let go."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(player.Swarm, "play", interrupt)
    with pytest.raises(KeyboardInterrupt):
        play_run(task())
    assert gc.isenabled()


def test_the_collector_stays_off_where_it_is() -> None:
    """A collector that was off before a run is off after it."""
    gc.disable()
    try:
        play_run(task(limit=20))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_memory_is_looked_at_after_a_run() -> None:
    """With the operations of this process so far; the first run at a place is marked."""
    place = structs.replace(task().place, config={"max_reqs": 2, "max_context_len": 9})
    first, second = (play_run(task(place=place)).record for _ in range(2))
    assert (first.memory.is_first, second.memory.is_first) == (True, False)
    assert second.memory.operations - first.memory.operations == second.operations
    assert second.memory.uss > 0
    assert first.shares.adapter > 0
    assert first.cpu > 0


def test_what_is_held_shows_and_what_went_does_not() -> None:
    """A list of a million new numbers is so many blocks of Python."""
    before = look_at_memory(0)
    held = [[number] for number in range(100_000)]
    during = look_at_memory(5, is_first=True)
    del held
    after = look_at_memory(6)
    assert during.blocks - before.blocks > 100_000 > after.blocks - before.blocks
    assert during.rss >= during.uss > 0
    assert (during.operations, during.is_first, after.is_first) == (5, True, False)
    assert before.process == during.process != ""


def test_what_the_library_handed_out_shows() -> None:
    """Objects without blocks of Python: tensors, arrays, long lists."""
    before = look_at_memory(0)
    assert before.malloc > 0
    held = [bytearray(200_000) for _ in range(50)]
    during = look_at_memory(1)
    assert sum(map(len, held)) <= during.malloc - before.malloc < 2 * sum(map(len, held))
    del held
    assert look_at_memory(2).malloc - before.malloc < 1_000_000


def test_a_library_without_trimming_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is only that of one system."""
    monkeypatch.setattr(player, "_C", ctypes.CDLL(None)._handle)
    assert not hasattr(player._C, "malloc_trim")
    assert look_at_memory(1).blocks > 0
    assert look_at_memory(1).malloc == 0
    assert gc.isenabled()
