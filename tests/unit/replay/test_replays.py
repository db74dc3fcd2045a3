"""Replays of a plan: what is refused, what runs, and several sizes in parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from pymllm.documents.replays import ReplayViolation
from pymllm.errors import UsageError
from pymllm.replay import replays
from pymllm.replay.grid import ReplayGrid, find_ceiling, run_grid
from pymllm.replay.plan import NAMED_WORKLOADS, ReplayPlan, pick_name
from pymllm.replay.replays import run_plan, settle
from pymllm.replay.serial import SerialReport
from pymllm.traces.trace_file import write_trace
from pymllm.work.workers import INTERRUPTED, Lost, Workers
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import WORKLOADS, make_requests

# -- plans -------------------------------------------------------------------------------------------------
BASE = ReplayPlan(
    workload="chat",
    mode="engine",
    caches=("radix",),
    requests=None,
    seed=0,
    block_tokens=512,
    page_size=16,
    window=None,
    capacity=None,
    swa_capacity=None,
    track_slots=None,
    max_running=4,
    chunk=512,
    iteration_ms=50.0,
    content_check=None,
    check_every=0,
)
OPEN = replace(BASE, chunk=64)


def test_the_named_workloads_are_those_that_exist() -> None:
    """The list is written twice, because the other one loads NumPy."""
    assert tuple(WORKLOADS) == NAMED_WORKLOADS


def test_a_file_called_like_a_workload_needs_its_path(tmp_path: Path) -> None:
    """Names win; a path with a separator is always a file."""
    (tmp_path / "chat").touch()
    assert OPEN.is_named
    other = replace(OPEN, workload=str(tmp_path / "chat"))
    assert not other.is_named
    other.check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workload": "chatt"}, r"'chatt' is no file and no workload \(did you mean chat\?\); give a trace"),
        ({"workload": "zzz"}, "'zzz' is no file and no workload; give a trace file or one of chat, agent"),
        ({"swa_capacity": 64}, "swa_capacity is the window half's; give window too"),
        ({"track_slots": 8}, "--track-slots is for states; give --cache mamba or blocks too"),
        ({"caches": ("chunk", "mamba"), "mode": "serial"}, "--cache mamba caches the states of an engine"),
        ({"caches": ("mamba",), "window": 64}, "--cache mamba has no window"),
        ({"caches": ("radix", "blocks"), "mode": "serial"}, "--cache blocks caches the states of an engine"),
        ({"caches": ("blocks",), "window": 64}, "--cache blocks has no window"),
        ({"mamba_chunk_size": 64}, "mamba_chunk_size is for blocks; give blocks among caches too"),
        (
            {"caches": ("mamba",), "eviction_policies": ("ref-zero",)},
            "--eviction-policy ref-zero is for blocks; give --cache blocks too",
        ),
        (
            {"caches": ("chunk",), "eviction_policies": ("lru",)},
            "--eviction-policy lru is for radix and mamba and blocks; give --cache radix or mamba or blocks",
        ),
        (
            {"eviction_policies": ("lru", "LFU")},
            r"no eviction policy 'LFU' \(did you mean lfu\?\); give one of fifo, filo, lfu, log-lfu, "
            "lru, mru, priority, slru, or your own as module:Name",
        ),
        (
            {"caches": ("blocks",), "eviction_policies": ("lr",)},
            r"there is no eviction policy 'lr' \(did you mean lru\?\); give one of lru, ref-zero\.",
        ),
        ({"caches": ("chunk",), "eviction_policies": ("lr",)}, "give one of fifo, .*, ref-zero, slru"),
        ({"capacity": 15}, "--capacity 15 holds no page of 16 tokens; give at least 16"),
        ({"capacity": 64, "swa_capacity": 15, "window": 4}, "--window N,capacity 15 holds no page"),
        (
            {"workload": "adversarial", "capacity": 10_000_001},
            "--capacity 10000001 is too much for adversarial",
        ),
        ({"capacity": 2**31 - 16}, "--capacity 2147483632 and one page of 16 are more than 2147483647 slots"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, int | str], words: str) -> None:
    """X1: the message names the options, the values and what would do."""
    with pytest.raises(UsageError, match=words):
        replace(OPEN, **change).check()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"capacity": 16},
        {"swa_capacity": 16, "window": 1, "capacity": 16},
        {"workload": "adversarial", "capacity": 10_000_000},
        {"workload": "-", "capacity": 2**31 - 17},
    ],
)
def test_what_fits_passes(change: dict[str, Any]) -> None:
    """One page is enough; standard input is no file that could be missing."""
    replace(OPEN, **change).check()


def test_a_known_name_is_picked_and_another_refused() -> None:
    """X1: the nearest name is offered where one is near."""
    assert pick_name("radix", {"radix": 1, "chunk": 2}, "cache") == "radix"
    with pytest.raises(
        UsageError, match=r"no cache 'radx' \(did you mean radix\?\); give one of chunk, radix"
    ):
        pick_name("radx", ("radix", "chunk"), "cache")
    with pytest.raises(UsageError, match="no cache 'q'; give one of"):
        pick_name("q", ("radix", "chunk"), "cache")


# -- runs --------------------------------------------------------------------------------------------------
PLAYED = replace(
    BASE, requests=6, seed=3, block_tokens=16, capacity=5000, chunk=64, iteration_ms=20.0, content_check=False
)


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    write_trace(tmp_path / "recorded.jsonl", make_requests("chat", 8))
    return str(tmp_path / "recorded.jsonl")


def test_open_defaults_depend_on_the_workload(recorded: str) -> None:
    """A named workload is checked and has a pool of its own; a recorded is measured at a million slots."""
    open_plan = replace(PLAYED, requests=None, capacity=None, content_check=None)
    named = settle(open_plan)
    assert (named.capacity, named.requests, named.content_check) == (8192, 200, True)
    recorded = settle(replace(open_plan, workload=recorded))
    assert (recorded.capacity, recorded.requests, recorded.content_check) == (1_000_000, None, False)


def test_what_was_given_stays(recorded: str) -> None:
    """Defaults replace nothing that was asked for."""
    assert asdict(settle(PLAYED)) == asdict(PLAYED)
    assert settle(replace(PLAYED, workload=recorded)).requests == 6


def test_a_plan_is_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A settled plan is played without another check of its options."""
    settled = settle(PLAYED)
    monkeypatch.setattr(ReplayPlan, "check", lambda plan: pytest.fail("checked again"))
    assert run_plan(settled).plan is settled


def test_a_default_capacity_must_hold_a_page_too() -> None:
    """X1: the check is made again once the capacity is known."""
    with pytest.raises(UsageError, match="--capacity 8192 holds no page of 10000"):
        settle(replace(PLAYED, capacity=None, page_size=10_000))


def test_an_unknown_cache_is_refused() -> None:
    """X1: before any request is made."""
    with pytest.raises(UsageError, match="there is no cache 'radox'"):
        run_plan(replace(PLAYED, caches=("radix", "radox")))


def test_engine_and_serial_get_the_options() -> None:
    """Engine and serial replays run with the options of the plan, and their reports repeat them."""
    plan = replace(PLAYED, window=32, swa_capacity=3000, content_check=True, check_every=3)
    [run] = run_plan(plan).document.runs
    config = run.config
    assert (config.page_size, config.sliding_window_size) == (16, 32)
    assert (config.capacity, config.swa_capacity) == (4992, 2992)
    assert (config.max_running, config.chunk_tokens, config.iteration_ms) == (4, 64, 20.0)
    assert (config.content_check, config.check_every, config.seed) == (True, 3, 3)
    assert run.finished == 6
    assert run.invariant_checks > 0
    assert run.content_tokens > 0
    [run] = run_plan(replace(PLAYED, mode="serial")).document.runs
    assert (run.config.capacity, run.config.check_ownership, run.invariant_checks) == (4992, False, 0)
    [run] = run_plan(replace(PLAYED, mode="serial", check_every=2)).document.runs
    assert run.config.check_ownership
    assert run.invariant_checks > 0


def test_a_context_gets_its_options() -> None:
    """The options of blocks reach the engine of blocks, and no other cache."""
    plan = replace(
        PLAYED,
        caches=("blocks", "radix"),
        mamba_chunk_size=16,
        eviction_policies=("ref-zero",),
        track_slots=3,
        content_check=True,
        check_every=50,
    )
    blocks, radix = run_plan(plan).document.runs
    config = blocks.config
    assert (config.cache, config.page_size, config.capacity, config.track_slots) == ("blocks", 16, 4992, 3)
    assert (config.mamba_chunk_size, config.eviction_policy) == (16, "ref_zero")
    assert (blocks.finished, blocks.evict_calls) == (6, 0)
    assert blocks.content_tokens > blocks.prompt_tokens
    assert blocks.invariant_checks == blocks.cache_operations // 50 > 0
    assert radix.config.mamba_chunk_size is radix.config.eviction_policy is None
    plan = replace(plan, caches=("blocks",), eviction_policies=(), check_every=0)
    [plain] = run_plan(plan).document.runs
    assert plain.config.eviction_policy == "lru"


def test_each_cache_is_replayed_with_the_policies_that_it_knows() -> None:
    """A cache that knows none of them is replayed as it is; a stranger's policy is a class."""
    policies = ("lru", "fifo", "ref-zero", f"{__name__}:Newest")
    plan = replace(PLAYED, caches=("radix", "chunk", "blocks"), eviction_policies=policies)
    document = run_plan(plan).document
    columns = [run.config.column for run in document.runs]
    trees = ["radix lru", "radix fifo", f"radix {__name__}:Newest"]
    assert columns == [*trees, "chunk", "blocks", "blocks ref-zero"]
    serial = replace(PLAYED, mode="serial", caches=("radix",), capacity=600, eviction_policies=policies[1:2])
    [run] = run_plan(serial).document.runs
    assert run.config.eviction_policy == "fifo"


class Newest:
    """A stranger's policy."""

    def rank(self, node: Any) -> float:
        return -node.creation_time


AN_OBJECT = Newest()


def make_newest() -> Newest:
    return Newest()


def make_nothing() -> Newest:
    raise SystemExit(3)


@pytest.mark.parametrize("named", ["Newest", "AN_OBJECT", "make_newest"])
def test_a_stranger_s_policy_is_an_object_or_makes_one(named: str) -> None:
    """R11: whichever it is, it decides what goes."""
    serial = replace(PLAYED, mode="serial", requests=40, capacity=3000)
    filo, own = (
        run_plan(replace(serial, eviction_policies=(policy,))).document.runs[0]
        for policy in ("filo", f"{__name__}:{named}")
    )
    assert (filo.hit_tokens, filo.evicted_tokens) == (own.hit_tokens, own.evicted_tokens)
    assert own.evicted_tokens


class Moody:
    """A policy whose ranks are given by a test."""

    ranks: ClassVar[list[Any]] = []

    def rank(self, node: Any) -> Any:
        rank = self.ranks[0] if len(self.ranks) == 1 else self.ranks.pop()
        if isinstance(rank, BaseException):
            raise rank
        return rank


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([SystemExit(3)], "SystemExit: 3"),
        ([KeyError("mine")], "KeyError: 'mine'"),
        ([None], "TypeError: Moody ranks a leaf None: give a number, or several in a tuple"),
        ([1, "one", 2], "TypeError: '<' not supported between instances of .*"),
    ],
)
def test_a_policy_that_fails_is_one_line(
    monkeypatch: pytest.MonkeyPatch, ranks: list[Any], words: str
) -> None:
    """X1: a stranger's mistake is no bug of ours, and ends nothing without a word."""
    monkeypatch.setattr(Moody, "ranks", list(ranks))
    plan = replace(
        PLAYED, requests=40, capacity=3000, mode="serial", eviction_policies=(f"{__name__}:Moody",)
    )
    with pytest.raises(UsageError, match=f"^eviction policy '{__name__}:Moody' cannot rank a leaf: {words}$"):
        run_plan(plan)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("nowhere:Policy", "no eviction policy 'nowhere:Policy': ModuleNotFoundError"),
        (f"{__name__}:Nothing", "AttributeError"),
        (f"{__name__}:make_nothing", "SystemExit: 3"),
        (f"{__name__}:PLAYED", "is no eviction policy: give an object"),
        (
            "builtins:object",
            r"'builtins:object' is no eviction policy: give an object with a method rank\(node\), or a class",
        ),
    ],
)
def test_what_is_no_policy_is_refused(policy: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_plan(replace(PLAYED, eviction_policies=(policy,)))


def test_a_rejected_request_makes_no_row_longer(tmp_path: Path) -> None:
    """The row table is as wide as the longest request that can ever have a row."""
    requests = [
        Request(0, 0.0, 40, 8, (0, 1, 2), 16),
        Request(1, 0.0, 4992 + 1, 4, tuple(range(313)), 16),
        Request(2, 0.0, 8, 2**31 - 1, (0,), 16),
    ]
    write_trace(tmp_path / "recorded.jsonl", requests)
    plan = replace(PLAYED, workload=str(tmp_path / "recorded.jsonl"), requests=None)
    for capacity, columns, rejected in ((5000, 48, 2), (16, 1, 3), (1_000_000, 4997, 1)):
        [run] = run_plan(replace(plan, capacity=capacity)).document.runs
        assert (run.config.max_context, run.rejected) == (columns, rejected)


def test_several_caches_run_over_the_same_requests(recorded: str) -> None:
    """Columns of one table are comparable."""
    result = run_plan(replace(PLAYED, workload=recorded, caches=("radix", "chunk")))
    radix, chunk = result.document.runs
    assert result.document.workload.requests == radix.requests == chunk.requests == 6
    assert radix.prompt_tokens == chunk.prompt_tokens
    assert radix.hit_tokens > chunk.hit_tokens == 0


@pytest.mark.parametrize("mode", ["engine", "serial"])
def test_a_run_that_contradicts_itself_breaks_a_law(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """E6: it is left out, as a run that broke any other law, and ends the replay."""
    real = replays._run_cache

    def miscount(*arguments: Any) -> Any:
        report = real(*arguments)
        return replace(report, hit_tokens=report.ceiling_tokens + 1)

    monkeypatch.setattr(replays, "_run_cache", miscount)
    found = run_plan(replace(PLAYED, caches=("radix", "chunk"), requests=8, mode=mode)).document
    assert found.violation is not None
    assert (found.runs, found.violation.cache, found.violation.law) == ((), "radix", "E6")
    assert found.violation.message.startswith("the run contradicts itself, hit_tokens: expected 0 to ")


def test_a_document_is_judged_by_its_whole_runs() -> None:
    """E6: not by one that was cut short; a law that was broken before is told, too."""
    sound = run_plan(replace(PLAYED, requests=8)).document
    assert sound.judged() is sound
    short = msgspec.structs.replace(sound.runs[0], finished=5, hit_tokens=10**9)
    part = msgspec.structs.replace(sound, runs=(short,), interrupted=True)
    assert part.judged() is part
    broken = ReplayViolation("chunk", "E3", "one page is missing")
    several = msgspec.structs.replace(sound, runs=(short, *sound.runs), violation=broken).judged()
    assert several.runs == sound.runs
    assert several.violation is not None
    assert (several.violation.cache, several.violation.law) == ("radix", "E6")
    assert several.violation.message == (
        "the run contradicts itself, finished, rejected and aborted requests: expected 8, observed 5; "
        "and chunk breaks E3: one page is missing"
    )


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """X1: the message names the two sizes that decide."""
    monkeypatch.setattr(replays, "replay_serially", _raiser(error))
    with pytest.raises(UsageError, match="--capacity 5000 and --max-running 4; give less"):
        run_plan(replace(PLAYED, mode="serial"))


def test_other_errors_of_a_run_are_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug keeps its own error."""
    monkeypatch.setattr(replays, "replay_serially", _raiser(RuntimeError("ours")))
    with pytest.raises(RuntimeError, match="ours"):
        run_plan(replace(PLAYED, mode="serial"))


def _raiser(error: Exception) -> Callable[..., SerialReport]:
    def run(*arguments: object, **options: object) -> SerialReport:
        raise error

    return run


def test_versions_are_those_of_what_ran() -> None:
    """A number without its versions cannot be compared."""
    document = run_plan(replace(PLAYED, requests=1)).document
    assert list(document.versions) == ["pymllm", "python", "torch", "numpy"]


# -- several sizes -----------------------------------------------------------------------------------------
SERIAL = replace(
    BASE, mode="serial", caches=("radix", "chunk"), requests=30, page_size=1, max_running=8, chunk=64
)


def points(*sizes: tuple[int, int]) -> list[ReplayPlan]:
    return [replace(SERIAL, page_size=page_size, capacity=capacity) for page_size, capacity in sizes]


def hits(grid: ReplayGrid) -> list[tuple[str, int, int, int]]:
    """Return cache, page size, capacity and hits of each run, without times."""
    found = []
    for result in grid.results:
        [run] = result.document.runs
        found.append((run.config.cache, run.config.page_size, run.config.capacity, run.hit_tokens))
    return found


def test_processes_change_no_count() -> None:
    """X3: in the order of the plans, and of the caches of each."""
    plans = points((1, 3000), (16, 8000))
    here, there = run_grid(plans, 1), run_grid(plans, 2)
    assert hits(here) == hits(there)
    assert [one[:3] for one in hits(here)] == [
        ("radix", 1, 3000), ("chunk", 1, 3000), ("radix", 16, 8000), ("chunk", 16, 8000)
    ]  # fmt: skip
    assert here.ceilings == there.ceilings
    assert here.document.violation is None


def test_no_cache_hits_more_than_the_ceilings() -> None:
    """R2: over the same requests, those that are not longer than half the capacity."""
    grid = run_grid(points((4, 2000), (4, 6000), (4, 50_000)), 1)
    for ceiling, result in zip(grid.ceilings, grid.results[::2], strict=True):
        [run] = result.document.runs
        assert run.prompt_tokens == ceiling.prompt_tokens
        assert ceiling.belady_hit_rate is not None
        assert run.token_hit_rate <= ceiling.belady_hit_rate <= ceiling.unlimited_hit_rate
    assert grid.ceilings[-1].belady_hit_rate == grid.ceilings[-1].unlimited_hit_rate > 0


def test_an_engine_has_no_bound_by_order() -> None:
    """It admits, retracts and finishes as memory allows."""
    (plan,) = points((1, 5000))
    ceiling = find_ceiling(settle(replace(plan, mode="engine")), None)
    assert (ceiling.page_size, ceiling.capacity, ceiling.belady_hit_rate) == (1, 5000, None)
    assert ceiling.unlimited_hit_rate > 0


def test_an_engine_s_ceiling_leaves_out_what_it_rejects() -> None:
    """R2: or a cache hits more than one that never forgets."""
    plans = [replace(one, mode="engine") for one in points((1, 600), (1, 5000))]
    grid = run_grid(plans, 1)
    for number, result in enumerate(grid.results):
        [run] = result.document.runs
        ceiling = grid.ceilings[number // len(SERIAL.caches)]
        assert (ceiling.prompt_tokens, ceiling.unlimited_hit_rate) == (
            run.prompt_tokens,
            run.ceiling_hit_rate,
        )
        assert bool(run.rejected) is (ceiling.capacity == 600)
        assert run.finished


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_one_run_ends_all(jobs: int) -> None:
    """Nothing half is printed."""
    (plan,) = points((1, 3000))
    with pytest.raises(ValueError, match="max_running"):
        run_grid([replace(plan, mode="engine", max_running=0)], jobs)


def test_an_interrupt_waits_for_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: the run that goes on would take minutes."""

    def interrupt(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    @contextmanager
    def bar(*arguments: object) -> Iterator[Callable[[int], None]]:
        yield interrupt

    short = replace(SERIAL, caches=("radix",), capacity=3000)
    grid = run_grid([short, replace(short, requests=300_000)], 2, bar)
    assert isinstance(grid.interruption, KeyboardInterrupt)
    assert [result.document.workload.requests for result in grid.results] == [30]
    long = replace(short, mode="serial", requests=300_000)

    def end_early(self: Workers, play: object, cells: list[object], *rest: object) -> list[Lost]:
        self.interruption = KeyboardInterrupt()
        return [INTERRUPTED] * len(cells)

    monkeypatch.setattr(Workers, "map", end_early)
    with pytest.raises(KeyboardInterrupt):
        run_grid([long], 1)


def test_a_process_that_is_lost_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system ends a process that takes too much memory; nobody's bug, and no result."""
    lost = Lost("killed by SIGKILL")
    monkeypatch.setattr(Workers, "map", lambda self, play, cells, *rest: [lost] * len(cells))
    with pytest.raises(UsageError, match=r"^a run has no result: killed by SIGKILL$"):
        run_grid(points((1, 3000)), 2)
