"""Grids of replays that a file keeps, and their shards: put together they are what one run is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from pymllm.documents.replays import ReplayDocument, ReplayViolation
from pymllm.documents.shards import BrokenLaw
from pymllm.errors import UsageError
from pymllm.replay import replays
from pymllm.replay.cells import Cell, Replayed, digest_content, keep_replays
from pymllm.replay.grid import ReplayGrid, find_ceiling, replay, run_grid, run_shard
from pymllm.replay.plan import ReplayPlan
from pymllm.replay.replays import cells_of, load_requests, run_plan, settle
from pymllm.traces.trace_file import write_trace
from pymllm.work import workers
from pymllm.work.shards import Shard
from pymllm.work.workers import INTERRUPTED, Lost, Workers
from pymllm.workloads.synthetic import make_requests
from tests.kept_results import results_in
from tests.unit.replay.test_replays import PLAYED, SERIAL, points

GRID = [replace(one, requests=12, eviction_policies=("lru", "lfu")) for one in points((1, 2000), (16, 3000))]
TIMES = {"match", "insert", "evict", "lock", "allocator", "total", "total_mean_us"} | {
    "wall_seconds",
    "peak_rss_bytes",
}


def untimed(document: ReplayDocument) -> Any:
    plain = document.plain()
    return {**plain, "runs": [{k: v for k, v in run.items() if k not in TIMES} for run in plain["runs"]]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.jsonl"


@pytest.fixture
def nobody_works(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once it is called, nothing is replayed any more: neither here nor in a process."""

    def fail(*arguments: object) -> None:
        raise AssertionError(arguments)

    def forbid() -> None:
        monkeypatch.setattr(workers, "WorkerProcess", fail)
        monkeypatch.setattr(replays, "_run_cache", fail)

    return forbid


def end_early(self: Workers, play: object, cells: list[Cell], *rest: object) -> list[Lost]:
    """Stands in for `Workers.map`: an interrupt comes before anything is done."""
    self.interruption = KeyboardInterrupt()
    return [INTERRUPTED] * len(cells)


def shard_files(plans: list[ReplayPlan], count: int, folder: Path) -> list[str]:
    """The files of all shards."""
    texts = []
    for number in range(1, count + 1):
        file = folder / f"{number}.jsonl"
        document, _ = run_shard(plans, Shard(number, count), 2, keep_replays(file))
        assert (document.done, document.kept, document.exit_status) == (document.tasks, 0, 0)
        texts.append(file.read_text(encoding="utf-8"))
    return texts


# -- shards ------------------------------------------------------------------------------------------------


def test_shards_put_together_are_one_run(
    tmp_path: Path, path: Path, nobody_works: Callable[[], None]
) -> None:
    """X3: in any order, twice, and with half of a line that somebody died in; nothing is replayed again."""
    whole = run_grid(GRID, 2)
    texts = shard_files(GRID, 3, tmp_path)
    lines = [line for text in texts for line in text.splitlines(keepends=True) if line.startswith('{"key"')]
    assert len(lines) == len(set(lines)) == 2 * (2 + 1) + 2  # radix twice and chunk once, and the ceilings
    nobody_works()
    merged: list[ReplayGrid] = []
    for seed in range(3):
        shuffled = random.Random(seed).sample(lines * 2, 2 * len(lines))
        path.write_text("".join(shuffled) + lines[seed][: len(lines[seed]) // 2], encoding="utf-8")
        merged.append(run_grid(GRID, 2, kept=keep_replays(path)))
    assert [one.kept for one in merged] == [len(lines)] * 3
    assert [untimed(one.document) for one in merged] == [untimed(whole.document)] * 3
    assert merged[0].document == merged[1].document == merged[2].document  # times are those kept
    assert merged[0].ceilings == whole.ceilings


def test_a_lost_shard_is_done_where_all_come_together(tmp_path: Path, path: Path) -> None:
    """A merge plays the missing results of a lost shard, and no more."""
    first, _, third = shard_files(GRID, 3, tmp_path)
    path.write_text(first + third, encoding="utf-8")
    there = len(results_in(path))
    grid = run_grid(GRID, 2, kept=keep_replays(path))
    assert (grid.kept, len(results_in(path))) == (there, 8)
    assert untimed(grid.document) == untimed(run_grid(GRID, 2).document)
    document, _ = run_shard(GRID, Shard(2, 3), 1, keep_replays(path))
    assert (document.tasks, document.done, document.kept) == (8 - there, 8 - there, 8 - there)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_tasks_are_dealt_evenly(count: int, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Each task once, and no shard has more than its part of the runs, of the heavy ones, or of ceilings."""
    hands: list[list[Cell]] = []

    def look(self: Workers, play: object, cells: list[Cell], *rest: object) -> list[Any]:
        hands.append(cells)
        return end_early(self, play, cells)

    monkeypatch.setattr(Workers, "map", look)
    plans = [
        replace(PLAYED, caches=("radix", "blocks", "mamba"), capacity=capacity, page_size=page_size)
        for page_size in (8, 16)
        for capacity in (2000, 3000, 4000)
    ]
    for number in range(1, count + 1):
        run_shard(plans, Shard(number, count), 1, keep_replays(path))
    titles = [cell.title for hand in hands for cell in hand]
    assert len(titles) == len(set(titles)) == 6 * 3 + 6
    for named in ("blocks ", "ceiling "):
        parts = [sum(cell.title.startswith(named) for cell in hand) for hand in hands]
        assert sum(parts) == 6
        assert max(parts) - min(parts) <= 1 or named == "ceiling "
    loads = [sum(cell.weight for cell in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(cell.weight for hand in hands for cell in hand)


def test_a_shard_says_what_is_broken(path: Path) -> None:
    """X1: its status is 1, and the merge has the violation where it stands."""
    plans = [settle(one) for one in GRID]
    kept = keep_replays(path)
    result = run_plan(replace(plans[0], caches=("chunk",), eviction_policies=()))
    found = ReplayViolation("chunk", "E3", "one slot is lost")
    broken = replace(result, document=structs.replace(result.document, runs=(), violation=found))
    (cell,) = cells_of(result.plan, None, digest_content(plans[0], ()), {})
    kept.keep(cell, broken)
    document, interruption = run_shard(plans, Shard(1, 1), 2, keep_replays(path))
    name = "chunk (page size 1, capacity 2000)"
    assert document.broken == (BrokenLaw(name, "E3", "one slot is lost"),)
    assert (document.exit_status, document.done, document.total, document.kept) == (1, 8, 8, 1)
    assert interruption is None
    assert run_grid(plans, 2, kept=keep_replays(path)).document.violation == found


# -- one file ----------------------------------------------------------------------------------------------

KINDS = {
    "serial": replace(SERIAL, caches=("radix",), capacity=2000, eviction_policies=("lfu",)),
    "window": replace(PLAYED, window=32, swa_capacity=3000, content_check=True, check_every=3),
    "mamba": replace(PLAYED, caches=("mamba",)),
    "blocks": replace(PLAYED, caches=("blocks",), mamba_chunk_size=16, eviction_policies=("ref-zero",)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_kept_to_the_last_digit(kind: str, path: Path) -> None:
    """A kept run is read back equal, in every time and rate."""
    plan = settle(KINDS[kind])
    (cell,) = cells_of(plan, None, "", {})
    result = run_plan(plan)
    keep_replays(path).keep(cell, result)
    assert keep_replays(path).find(cell) == result
    ceiling = Cell(replace(plan, caches=(), eviction_policies=()))
    row = find_ceiling(plan, None)
    keep_replays(path).keep(ceiling, row)
    assert keep_replays(path).find(ceiling) == row


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    write_trace(tmp_path / "recorded.jsonl", make_requests("chat", 8))
    return str(tmp_path / "recorded.jsonl")


def kept_of(plans: list[ReplayPlan], path: Path) -> int:
    """How many results of a file count for a grid, which is not replayed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workers, "map", end_early)
        document, _ = run_shard(plans, Shard(1, 1), 1, keep_replays(path))
    assert document.kept == document.done
    return document.kept


def test_a_trace_is_known_by_its_requests(recorded: str, path: Path, tmp_path: Path) -> None:
    """A file may be moved; one of the same name with one other token is another."""
    plans = [replace(one, workload=recorded, requests=None, block_tokens=16) for one in GRID]
    whole = run_grid(plans, 2, kept=keep_replays(path)).document
    moved = tmp_path / "moved.jsonl"
    Path(recorded).rename(moved)
    there = [replace(one, workload=str(moved)) for one in plans]
    document = run_grid(there, 2, kept=keep_replays(path)).document
    assert document == structs.replace(whole, workload=structs.replace(whole.workload, name=str(moved)))
    assert kept_of([replace(one, requests=7) for one in there], path) == 0
    assert kept_of([replace(one, requests=100, format="mooncake") for one in there], path) == 8
    requests = load_requests(settle(there[0]))
    changed = replace(requests[3], output_length=requests[3].output_length + 1)
    write_trace(tmp_path / "recorded.jsonl", [*requests[:3], changed, *requests[4:]])
    assert kept_of(plans, path) == 0


OTHERS: list[tuple[dict[str, Any], int]] = [
    ({}, 3),
    ({"requests": 13}, 0),
    ({"seed": 1}, 0),
    ({"workload": "agent"}, 0),
    ({"page_size": 2}, 0),
    ({"mode": "serial"}, 0),
    ({"chunk": 32}, 1),  # the ceiling does not depend on it
    ({"window": 32}, 1),
    ({"max_running": 3}, 1),
    ({"iteration_ms": 1.0}, 1),
    ({"content_check": True}, 1),
    ({"check_every": 5}, 1),
    ({"eviction_policies": ("lru",)}, 2),  # chunk has no policy
    ({"caches": ("chunk", "mamba")}, 2),
]


def test_a_result_counts_only_for_its_options(path: Path) -> None:
    """A kept result counts for equal options only, and a grid may get more caches, sizes and policies."""
    small = replace(PLAYED, caches=("radix", "chunk"), requests=12)
    other = replace(small, capacity=6000)
    document, _ = run_shard([small, other], Shard(1, 1), 2, keep_replays(path))
    assert document.total == 6
    found = [
        (change, kept_of([replace(small, **change), replace(small, **change, capacity=7000)], path))
        for change, _ in OTHERS
    ]
    assert found == OTHERS


POLICY = "class Newest:\n    def rank(self, node):\n        return -node.creation_time\n"


def test_a_stranger_s_policy_counts_until_its_source_changes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the source of a foreign policy ends its results, and other policies' results stay."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kept_policy.py").write_text(POLICY, encoding="utf-8")
    plans = [replace(one, caches=("radix",), eviction_policies=("lru", "kept_policy:Newest")) for one in GRID]
    run_grid(plans, 1, kept=keep_replays(path))
    assert kept_of(plans, path) == 6
    (tmp_path / "kept_policy.py").write_text(POLICY.replace("-", ""), encoding="utf-8")
    assert kept_of(plans, path) == 4


def test_a_result_that_somebody_changed_is_replayed_again(path: Path) -> None:
    """A file may be anybody's; a document of no run, or of several, is none of a cell."""
    run_grid(GRID, 2, kept=keep_replays(path))
    text = path.read_text(encoding="utf-8")
    for mark, other in (('"runs": [', '"runs": [], "asde": ['), ('"violation": null', '"violation": 3')):
        path.write_text(text.replace(mark, other), encoding="utf-8")
        assert kept_of(GRID, path) == 2  # the ceilings
    path.write_text(text, encoding="utf-8")
    lines = results_in(path)
    for line in (it["result"] for it in lines if "runs" in it["result"]):
        line["runs"] *= 2
    path.write_bytes(b"".join(b'{"key": ' + msgspec.json.encode(it)[7:] + b"\n" for it in lines))
    assert kept_of(GRID, path) == 2


# -- what ends early ---------------------------------------------------------------------------------------


@contextmanager
def enough(*arguments: object) -> Iterator[Callable[[int], None]]:
    """Show a progress bar that raises an interrupt after three units of work."""

    def show(done: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    yield show


def test_an_interrupt_loses_nothing_that_is_known(path: Path) -> None:
    """X1: and the next run goes on there, of a shard as of a grid."""
    document, interruption = run_shard(GRID, Shard(1, 1), 1, keep_replays(path), enough)
    assert isinstance(interruption, KeyboardInterrupt)
    assert (document.interrupted, document.done, document.exit_status) == (True, 3, 0)
    grid = run_grid(GRID, 1, enough, keep_replays(path))
    assert isinstance(grid.interruption, KeyboardInterrupt)  # the bar begins with what is there
    assert (grid.kept, len(grid.results)) == (3, 3)
    assert run_grid(GRID, 1, kept=keep_replays(path)).kept == 3


def test_a_process_that_is_lost_loses_no_other(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """The system ends the process that takes most memory; what else was known is not replayed again."""
    play_all = Workers.map

    def lose(self: Workers, play: Any, cells: list[Cell], *rest: Any) -> list[Any]:
        return [Lost("killed by SIGKILL"), *play_all(self, play, cells[1:], *rest)]

    monkeypatch.setattr(Workers, "map", lose)
    words = f"^a run has no result: killed by SIGKILL; what the others came to is in {path}$"
    with pytest.raises(UsageError, match=words):
        run_grid(GRID, 2, kept=keep_replays(path))
    assert kept_of(GRID, path) == 7


# -- a single point ----------------------------------------------------------------------------------------

ALONE = replace(SERIAL, requests=12, capacity=2000)


def test_caches_at_one_point_are_kept_one_by_one(
    path: Path, tmp_path: Path, nobody_works: Callable[[], None]
) -> None:
    """The document is that of any other replay: no ceilings, and shards of it are of a cache each."""
    whole = run_plan(ALONE)
    texts = shard_files([ALONE], 2, tmp_path)
    assert [text.count('\n{"key": ') for text in texts] == [1, 1]
    played = replay([ALONE], 1, kept=keep_replays(path))
    nobody_works()
    again = replay([ALONE], 1, kept=keep_replays(path))
    assert isinstance(again, Replayed)
    assert (played.kept, again.kept, again.document, again.plan) == (0, 2, played.document, whole.plan)
    path.write_text("".join(texts), encoding="utf-8")
    merged = replay([ALONE], 1, kept=keep_replays(path))
    assert merged.kept == 2
    assert untimed(merged.document) == untimed(whole.document)


def test_nothing_follows_a_broken_law_at_one_point(path: Path) -> None:
    """As without a file: other shards may have replayed what comes after it."""
    cells = cells_of(settle(ALONE), None, digest_content(settle(ALONE), ()), {})
    kept = keep_replays(path)
    for cell in cells:
        kept.keep(cell, run_plan(cell.plan))
    result = run_plan(cells[0].plan)
    found = ReplayViolation("radix", "E3", "one slot is lost")
    kept.keep(cells[0], replace(result, document=structs.replace(result.document, runs=(), violation=found)))
    document = replay([ALONE], 1, kept=keep_replays(path)).document
    assert (document.violation, document.runs) == (found, ())


def test_half_of_a_run_is_not_kept(path: Path) -> None:
    """It is told of, and played again from its beginning."""
    result = run_plan(ALONE, enough, kept=keep_replays(path))
    assert result.document.interrupted
    assert path.read_text(encoding="utf-8") == ""
