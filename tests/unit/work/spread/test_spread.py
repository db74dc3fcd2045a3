"""Shards on their way: what is lost is tried again, what ends is kept, and a loss is no verdict."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from pymllm.work.spread import spread as module
from pymllm.work.spread.engines import Engine
from pymllm.work.spread.shard_task import PlayedShard
from pymllm.work.spread.spread import Progress, Spread
from tests.unit.work.spread.fake_executor import FakeExecutor, engine_of, played, task


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK", 0.001)


class Kept(list[int]):
    """Keeps the numbers of shards; refuses what did not end with 0 or 1."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, it: PlayedShard) -> str | None:
        if it.status not in (0, 1):
            return f"status {it.status}"
        self._progress.failures += it.status
        self.append(it.number)
        return None


def spread_over(engine: Engine, count: int = 4, **options: Any) -> tuple[Spread, Kept]:
    progress = Progress(count)
    kept = Kept(progress)
    spread = Spread(engine, kept, progress, **{"pause": 0.0, **options})
    spread.play(task(number, count) for number in range(1, count + 1))
    return spread, kept


def test_every_shard_is_played_once_and_told_of() -> None:
    """No more are given away than are played at once: what is not, can still be called off."""
    fake, lines = FakeExecutor(), list[tuple[int, int, int, int | None]]()

    def show(it: Progress) -> None:
        lines.append((it.done, it.running, it.waiting, it.workers))

    spread, kept = spread_over(engine_of(fake, workers=2), show=show)
    assert (fake.given, sorted(kept), spread.progress.lost) == ([1, 2, 3, 4], [1, 2, 3, 4], {})
    assert lines[0] == (0, 2, 2, 2)
    assert lines[-1] == (4, 0, 0, 2)
    assert all(done + running + waiting == 4 and running <= 2 for done, running, waiting, _ in lines)


def test_an_engine_with_a_queue_gets_all_at_once() -> None:
    """So does one that does not tell how many it plays."""
    for is_queue in (True, False):
        fake = FakeExecutor({1: [None]})
        engine = engine_of(fake, workers=1 if is_queue else None)
        engine.queues = is_queue

        def show(it: Progress, fake: FakeExecutor = fake) -> None:
            if it.done == 3 and fake.open:
                fake.answer(1, played(1))

        _, kept = spread_over(engine, show=show)
        assert (fake.given, list(kept)) == ([1, 2, 3, 4], [2, 3, 4, 1])


def test_the_order_of_answers_is_no_matter() -> None:
    """The last given may come first."""
    fake = FakeExecutor({number: [None] for number in (1, 2, 3, 4)})

    def show(it: Progress) -> None:
        if fake.open:
            number = max(fake.open)
            fake.answer(number, played(number))

    _, kept = spread_over(engine_of(fake), show=show)
    assert list(kept) == [4, 3, 2, 1]


@pytest.mark.parametrize("outcome", [OSError("node is gone"), played(2, -9), played(2, 143, "terminated")])
def test_what_is_lost_is_tried_again_behind_the_others(outcome: PlayedShard | Exception) -> None:
    """Whether the engine says so, or the shard's own process did not end by itself."""
    fake = FakeExecutor({2: [outcome, outcome]})
    spread, kept = spread_over(engine_of(fake, workers=1))
    assert sorted(kept) == [1, 2, 3, 4]
    assert (spread.progress.retried, spread.progress.lost) == (2, {})
    assert fake.given == [1, 2, 3, 4, 2, 2]
    assert spread.progress.trouble.startswith("shard 2-of-4: ")


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("garbage", "the executor gave str instead of a shard's answer"),
        (played(3), "the executor gave the answer of shard 3"),
        (SystemExit("left"), "SystemExit: left"),
    ],
)
def test_what_is_no_answer_costs_an_attempt(outcome: Any, reason: str) -> None:
    """Whatever an executor gives: it is tried again, then given up."""
    spread, kept = spread_over(engine_of(FakeExecutor({2: [outcome]})))
    assert (sorted(kept), spread.progress.retried, spread.progress.lost) == ([1, 2, 3, 4], 1, {})
    assert spread.progress.trouble == f"shard 2-of-4: {reason}"
    spread, kept = spread_over(engine_of(FakeExecutor({2: [outcome] * 9})), retries=2)
    assert sorted(kept) == [1, 3, 4]
    assert spread.progress.lost == {2: f"given up after 3 attempts; the last one: {reason}"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("no future", "TypeError: the executor gave str instead of a future"),
        (OSError("queue is full"), "OSError: queue is full"),
        (SystemExit("left"), "SystemExit: left"),
    ],
)
def test_a_submission_that_fails_costs_an_attempt(given: Any, reason: str) -> None:
    """Also where something else than a future comes of it, and where letting go fails, too."""

    class Odd(FakeExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.given.append(args[0].number)
            if isinstance(given, BaseException):
                raise given
            return given

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            raise SystemExit("no shutdown")

    odd = Odd()
    engine = engine_of(odd)
    spread, kept = spread_over(engine, 2, retries=1)
    why = f"given up after 2 attempts; the last one: {reason}"
    assert (list(kept), spread.progress.lost, odd.given) == ([], {1: why, 2: why}, [1, 2, 1, 2])
    engine.close()


def test_attempts_are_bounded_and_the_reason_is_told() -> None:
    """A shard that is given up takes no other with it."""
    fake = FakeExecutor({2: [OSError("no\nroom")] * 9, 3: [played(3, 2, host="left")] * 9})
    spread, kept = spread_over(engine_of(fake, workers=4), retries=2)
    assert sorted(kept) == [1, 4]
    assert spread.progress.lost == {
        2: "given up after 3 attempts; the last one: OSError: no room",
        3: "given up after 3 attempts; the last one: left: status 2",
    }
    assert (fake.given.count(2), fake.given.count(3), spread.progress.retried) == (3, 3, 4)
    fake = FakeExecutor({1: [OSError()]})
    spread, _ = spread_over(engine_of(fake), count=1, retries=0)
    assert spread.progress.lost == {1: "given up after 1 attempt; the last one: OSError: no reason given"}


def test_a_lost_shard_waits_twice_as_long_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own: an engine needs time to notice what is gone."""
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    fake, begun = FakeExecutor({1: [OSError("gone")] * 3}), list[float]()

    def show(it: Progress) -> None:
        nonlocal now
        begun.extend([now] * (len(fake.given) - len(begun)))
        now += 0.5

    spread, _ = spread_over(engine_of(fake), count=1, pause=2.0, show=show)
    gaps = [after - before for before, after in itertools.pairwise(begun)]
    assert len(gaps) == 3
    assert all(gap >= wanted for gap, wanted in zip(gaps, (2.0, 4.0, 8.0), strict=True))
    assert spread.progress.done == 1


def test_an_engine_that_breaks_as_a_whole_is_opened_again() -> None:
    """All that it had is tried again, the last time each alone: only who breaks it is given up."""
    pools = [FakeExecutor(dict.fromkeys(range(1, 5), [None] * 9)) for _ in range(9)]
    together = []

    def show(it: Progress) -> None:
        for pool in pools:
            breaks = 2 in pool.open
            together.extend([sorted(pool.open)] if pool.open else [])
            for number in list(pool.open):
                pool.answer(number, BrokenProcessPool("a child died") if breaks else played(number))

    engine = engine_of(*pools, workers=2)
    spread, kept = spread_over(engine, retries=1, show=show)
    assert sorted(kept) == [1, 3, 4]
    assert spread.progress.lost == {
        2: "given up after 2 attempts; the last one: BrokenProcessPool: a child died"
    }
    assert [it for it in together if 1 in it or 2 in it] == [[1, 2], [1], [2]]
    assert engine.executor is pools[2]


def test_a_real_pool_that_loses_a_process_plays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own: every call that it had fails, and none is accepted any more."""
    monkeypatch.setattr(module, "play_shard", exit_once)
    context = multiprocessing.get_context("spawn")
    engine = Engine(lambda: ProcessPoolExecutor(1, mp_context=context), lambda executor: 1)
    try:
        spread, kept = spread_over(engine, count=3, retries=1)
    finally:
        engine.close(at_once=True)
    assert sorted(kept) == [1, 3]
    assert "BrokenProcessPool" in spread.progress.lost[2]


def exit_once(asked: Any) -> PlayedShard:
    """Stands in for a shard; the second one takes its worker with it."""
    if asked.number == 2:
        os._exit(9)
    return played(asked.number)


def test_an_engine_that_takes_nothing_is_given_up() -> None:
    """Each shard with its reason, and no loop without an end."""
    fake = FakeExecutor()
    fake.is_broken = True
    engine = Engine(lambda: fake)
    spread, kept = spread_over(engine, retries=1)
    assert (list(kept), sorted(spread.progress.lost)) == ([], [1, 2, 3, 4])
    assert {"given up after 2 attempts; the last one: BrokenExecutor: broken before"} == {
        *spread.progress.lost.values()
    }


def test_a_shard_that_the_engine_cancels_is_tried_again() -> None:
    """As Dask does when its scheduler begins anew."""
    fake = FakeExecutor({1: [None]})

    def show(it: Progress) -> None:
        if 1 in fake.open and it.retried == 0:
            future = fake.open.pop(1)
            future.cancel()

    spread, kept = spread_over(engine_of(fake), count=1, show=show)
    assert (list(kept), spread.progress.retried) == ([1], 1)
    assert spread.progress.trouble == "shard 1-of-1: RuntimeError: the engine cancelled it"


@pytest.mark.parametrize("stops", [True, False])
def test_a_failure_stops_what_has_not_begun_if_asked(stops: bool) -> None:
    """After a failure the shards that run are waited for, and the shards that still queue are cancelled."""
    fake = FakeExecutor({1: [None], 2: [None], 3: [None]})

    def show(it: Progress) -> None:
        if it.done == 0:
            fake.open[2].set_running_or_notify_cancel()
            fake.answer(1, played(1, 1))
        elif it.done == 1 and 2 in fake.open:
            fake.open.pop(2).set_result(played(2))
            fake.answer(3, played(3))

    spread, kept = spread_over(engine_of(fake, workers=3), 6, stops_on_failure=stops, show=show)
    assert sorted(kept) == ([1, 2] if stops else [1, 2, 3, 4, 5, 6])
    assert (spread.progress.lost, spread.progress.retried) == ({}, 0)


def test_a_lost_shard_is_not_tried_again_after_a_failure_that_stops() -> None:
    """It had begun, and nothing begins any more."""
    fake = FakeExecutor({1: [None], 2: [played(2, 1)]})

    def show(it: Progress) -> None:
        if 1 in fake.open:
            if it.done:
                fake.open.pop(1).set_exception(OSError("gone"))
            else:
                fake.open[1].set_running_or_notify_cancel()

    spread, kept = spread_over(engine_of(fake), 2, stops_on_failure=True, show=show)
    assert (list(kept), spread.progress.retried, spread.progress.lost) == ([2], 0, {})
    assert spread.progress.trouble == "shard 1-of-2: OSError: gone"


def test_an_interrupt_keeps_what_has_come() -> None:
    """Also what arrived and was not looked at."""
    fake = FakeExecutor({2: [None], 3: [OSError("gone")], 4: [None], 5: ["garbage"]})

    def show(it: Progress) -> None:
        fake.open.pop(4).cancel()
        raise KeyboardInterrupt

    spread, kept = spread_over(engine_of(fake), 5, show=show)
    assert isinstance(spread.interruption, KeyboardInterrupt)
    assert (list(kept), spread.progress.done, spread.progress.lost) == ([1], 1, {})
