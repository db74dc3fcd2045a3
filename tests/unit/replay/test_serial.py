"""Serial replay against a small cache written again from the laws, and its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.base_prefix_cache import EvictResult
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.replay import serial
from pymllm.replay.serial import SerialConfig, SerialReport, replay_serially
from pymllm.workloads.engine_report import CacheTime
from pymllm.workloads.request import Request
from pymllm.workloads.synthetic import make_requests

Page = tuple[int, ...]


class Edge:
    """A node of the small cache: pages, children, and when it was last used."""

    def __init__(self, parent: Edge | None, pages: list[Page], used: int) -> None:
        self.parent, self.pages, self.used = parent, pages, used
        self.children: dict[Page, Edge] = {}

    def path(self) -> list[Edge]:
        return [*self.parent.path(), self] if self.parent else []

    def depth(self) -> int:
        return sum(len(edge.pages) for edge in self.path())

    def below(self) -> Iterator[Edge]:
        for child in self.children.values():
            yield child
            yield from child.below()


class SmallCache:
    """Laws R2, R3, R5 and R8 in plain Python, with no pool: slots are only counted."""

    def __init__(self, page_size: int, capacity: int) -> None:
        self.page_size, self.capacity, self.stored = page_size, capacity // page_size, 0
        self.roots: dict[object, Edge] = {}
        self.clock = self.hit_tokens = self.evict_calls = self.evicted_tokens = self.peak = 0

    def replay(self, request: Request) -> None:
        tokens = request.prompt().tolist()
        size = self.page_size
        pages = [tuple(tokens[at : at + size]) for at in range(0, len(tokens) // size * size, size)]
        root = self.roots.setdefault(request.namespace, Edge(None, [], 0))
        held, found = self.walk(root, pages)
        self.hit_tokens += found * size
        needed = -(-(len(tokens) - found * size) // size)
        if needed > self.capacity - self.stored:
            self.evict(needed - (self.capacity - self.stored), held.path())
        self.peak = max(self.peak, self.stored + needed)
        end, _ = self.walk(root, pages)
        if found < len(pages):
            end.children[pages[found]] = Edge(end, pages[found:], self.clock)
            self.stored += len(pages) - found

    def walk(self, root: Edge, pages: list[Page]) -> tuple[Edge, int]:
        self.clock += 1
        edge, at = root, 0
        while at < len(pages) and pages[at] in edge.children:
            edge = edge.children[pages[at]]
            same = 0
            while same < min(len(edge.pages), len(pages) - at) and edge.pages[same] == pages[at + same]:
                same += 1
            at += same
            if same < len(edge.pages):
                edge = self.split(edge, same)
                break
        for used in edge.path():
            used.used = self.clock
        return edge, at

    def split(self, lower: Edge, at: int) -> Edge:
        assert lower.parent is not None
        upper = Edge(lower.parent, lower.pages[:at], lower.used)
        lower.parent.children[upper.pages[0]] = upper
        lower.parent, lower.pages = upper, lower.pages[at:]
        upper.children[lower.pages[0]] = lower
        return upper

    def evict(self, pages: int, held: list[Edge]) -> None:
        self.evict_calls += 1
        while pages > 0:
            leaves = [
                edge
                for root in self.roots.values()
                for edge in root.below()
                if not edge.children and edge not in held
            ]
            victim = min(leaves, key=lambda edge: (edge.used, edge.depth()))
            assert victim.parent is not None
            del victim.parent.children[victim.pages[0]]
            pages -= len(victim.pages)
            self.stored -= len(victim.pages)
            self.evicted_tokens += len(victim.pages) * self.page_size


def small_replay(requests: list[Request], config: SerialConfig) -> tuple[SmallCache, int]:
    cache = SmallCache(config.page_size, config.capacity)
    capacity = cache.capacity * config.page_size
    taken = [request for request in requests if request.prompt_length <= capacity // 2]
    for request in taken:
        cache.replay(request)
    return cache, len(taken)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(
    ("name", "capacity"), [("chat", 8192), ("agent", 32_000), ("shared-prompt", 8000), ("adversarial", 1024)]
)
def test_every_count_equals_the_small_caches(name: str, capacity: int, page_size: int) -> None:
    """R2, R5, R8: hits and evictions are determined by the laws, to the token."""
    requests = make_requests(name, 120, seed=3, capacity=capacity)
    config = SerialConfig(page_size=page_size, capacity=capacity, check_ownership=True, check_every=7)
    report = replay_serially(requests, config)
    expected, taken = small_replay(requests, config)
    assert (report.requests, report.skipped) == (taken, len(requests) - taken)
    assert report.hit_tokens == expected.hit_tokens > 0
    assert report.evict_calls == expected.evict_calls > 0
    assert report.evicted_tokens == expected.evicted_tokens
    assert report.peak_tokens_stored == expected.peak * page_size
    assert report.hit_tokens <= report.ceiling_tokens <= report.prompt_tokens
    assert report.invariant_checks == report.cache_operations // 7


def counts(report: SerialReport) -> tuple[int, ...]:
    return (report.prompt_tokens, report.hit_tokens, report.evict_calls, report.evicted_tokens)


@pytest.mark.parametrize(
    ("page_size", "recorded"), [(1, (450589, 237420, 137, 205712)), (64, (450589, 240000, 135, 192704))]
)
def test_recorded_result_is_reproduced(page_size: int, recorded: tuple[int, ...]) -> None:
    """X3: the counts of a seed are the same on every machine, in every release, and in the small cache."""
    requests = make_requests("chat", 300, seed=41)
    config = SerialConfig(page_size=page_size, capacity=8192)
    assert counts(replay_serially(requests, config)) == recorded
    expected, _ = small_replay(requests, config)
    assert (expected.hit_tokens, expected.evict_calls, expected.evicted_tokens) == recorded[1:]


def test_chunk_cache_hits_nothing_and_gives_everything_back() -> None:
    """Nothing is adopted, so nothing is ever evicted."""
    requests = make_requests("chat", 20)
    report = replay_serially(requests, SerialConfig("chunk", 16, 4096, check_ownership=True, check_every=1))
    assert (report.requests, report.hit_tokens, report.evict_calls) == (20, 0, 0)
    assert report.ceiling_hit_rate > 0


def test_prompts_beyond_half_the_capacity_are_skipped() -> None:
    """Half is the limit, and the prompt that just reaches it is replayed; those skipped are progress, too."""
    seen: list[int] = []
    requests = [Request(n, 0.0, length, 1, (n,), 64) for n, length in enumerate((50, 51, 1))]
    report = replay_serially(requests, SerialConfig(page_size=10, capacity=109), progress=seen.append)
    assert report.config.capacity == 100
    assert (report.requests, report.skipped, report.prompt_tokens, seen) == (2, 1, 51, [1, 2, 3])
    none = replay_serially(requests[1:2], SerialConfig(capacity=10))
    assert (none.token_hit_rate, none.ceiling_hit_rate, none.total_mean_us) == (0.0, 0.0, 0.0)
    assert none.match == CacheTime(0.0, 0.0)


def test_times_are_counted_for_every_kind_of_work() -> None:
    """Each kind of work costs something, and the total is at least its largest part."""
    report = replay_serially(make_requests("chat", 60), SerialConfig(capacity=5000))
    parts = (report.match, report.insert, report.evict, report.lock, report.allocator)
    assert all(part.p99_us > 0 for part in parts)
    assert report.total.p99_us >= max(part.median_us for part in parts)
    assert report.total_mean_us > 0
    assert report.wall_seconds > report.total_mean_us * report.requests / 1e6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cache": "radish"}, "cache is 'radish'; choose one of chunk, mamba, radix"),
        ({"page_size": 0}, "page_size is 0"),
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": 15, "page_size": 16}, "capacity is 15; it must hold at least one page of 16"),
        ({"cache": "mamba"}, "cache 'mamba' with keeping None: a cache of states needs to know"),
        ({"check_every": -1}, "check_every is -1"),
    ],
)
def test_bad_sizes_are_refused_by_name(change: dict[str, int | str], words: str) -> None:
    """X1: nothing is replayed with sizes that make no sense."""
    with pytest.raises(ValueError, match=words):
        replay_serially([], replace(SerialConfig(), **change))


def test_a_slot_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: a replay that forgets to give the tail back does not end well."""
    monkeypatch.setattr(serial, "_left_out", lambda end, start, adopted: [])
    with pytest.raises(InvariantViolation, match="E3: 80 slots are free and 0 cached"):
        replay_serially([Request(0, 0.0, 9, 1, (0,), 64)], SerialConfig(page_size=20, capacity=100))


def test_a_cache_that_does_not_evict_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E4: what is not held must make room."""
    monkeypatch.setattr(RadixCache, "evict", lambda self, tokens, swa_tokens=0: EvictResult())
    requests = [Request(n, 0.0, 40, 1, (n,), 64) for n in range(3)]
    with pytest.raises(InvariantViolation, match=r"E4: 40 slots are needed .* evict\(20\) only 20 of 100"):
        replay_serially(requests, SerialConfig(capacity=100))


def test_a_hold_that_is_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: at the end nothing is locked."""
    monkeypatch.setattr(RadixCache, "dec_lock_ref", lambda self, node, **token: None)
    requests = [Request(n, 0.0, 40, 1, (0,), 64) for n in range(2)]
    with pytest.raises(InvariantViolation, match="40 of them locked"):
        replay_serially(requests, SerialConfig(capacity=100))


def test_slots_of_a_duplicate_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: what is already cached when the insert comes is still the caller's."""
    match_prefix = RadixCache.match_prefix
    blind = RadixCache(1)

    def match_nothing(self: RadixCache, key: object) -> object:
        return match_prefix(blind, key)  # type: ignore[arg-type]

    monkeypatch.setattr(RadixCache, "match_prefix", match_nothing)
    monkeypatch.setattr(RadixCache, "inc_lock_ref", lambda self, node: None)
    monkeypatch.setattr(RadixCache, "dec_lock_ref", lambda self, node, **token: None)
    requests = [Request(n, 0.0, length, 1, (0,), 64) for n, length in enumerate((40, 30, 50))]
    report = replay_serially(requests, SerialConfig(capacity=200, check_ownership=True))
    assert (report.hit_tokens, report.peak_tokens_stored) == (0, 40 + 50)
