"""Hit rates of hybrid models at many capacities: a prefix is reused only up to a kept recurrent state.

The cache is a `MambaRadixCache` whose pages are as long as the checkpoints are apart, as of engines that
align both. States are never short: they go with their KV, and `StatePoint.peak_states` says how many there
were. What is computed again behind the state that was found takes room of its own until the prompt is
cached, so each cache evicts before the prompt's pages become the most recent (laws R8, M2, M5).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from pymllm.replay.curve import _DEPTHS, LruCurve, _Cache, _Segment
from pymllm.replay.keeping import Keeping


@dataclass(frozen=True, slots=True)
class StatePoint:
    """The counts of a serial replay of a hybrid model at one capacity, in tokens and states."""

    capacity: int
    requests: int
    skipped: int
    prompt_tokens: int
    hit_tokens: int
    evict_calls: int
    evicted_tokens: int
    peak_states: int


class StateCurve(LruCurve):
    """The hits of caches of several capacities that keep recurrent states at some page ends.

    ``page_size`` is the distance of two checkpoints in tokens. ``keeping`` says where a prompt leaves one.
    """

    def __init__(
        self, capacities: Iterable[int], page_size: int, block_tokens: int, *, keeping: Keeping
    ) -> None:
        super().__init__(capacities, page_size, block_tokens, unlimited=False)
        self._keeping = keeping
        self._kept = [0] * len(self._caches)
        self._most_kept = [0] * len(self._caches)

    def state_points(self) -> list[StatePoint]:
        """Return the counts at each capacity, in order."""
        return [
            StatePoint(
                point.capacity,
                point.requests,
                point.skipped,
                point.prompt_tokens,
                point.hit_tokens,
                point.evict_calls or 0,
                point.evicted_tokens or 0,
                most,
            )
            for point, most in zip(self.points(), self._most_kept, strict=True)
        ]

    def read(
        self,
        raw: bytes,
        tokens: int,
        full_length: int,
        namespace: str | int | None = None,
        label: str | None = None,
    ) -> None:
        """Have every cache read a prompt (`LruCurve.read`), and record each one's number of states."""
        super().read(raw, tokens, full_length, namespace, label)
        if self._keeping == "every":
            self._kept = [
                rooms - cache.room + self._filled
                for rooms, cache in zip(self._rooms, self._caches, strict=True)
            ]
        self._most_kept = list(map(max, self._most_kept, self._kept))

    def _hit_of_all(self, path: list[_Segment]) -> int | None:
        """Return the number of pages that all caches hit, with a state at the end; ``None`` if it differs."""
        hit = super()._hit_of_all(path)
        if not path or self._keeping == "every" or path[-1].states == self._everyone:
            return hit
        return None

    def _fill_each(
        self, path: list[_Segment], whole: int, taken: int, left_out: int, counted: list[int]
    ) -> list[tuple[_Cache, int]]:
        """Fill the caches that read a prompt, evicting pages before the prompt's become the most recent."""
        if self._keeping == "every":
            return self._fill_pages(path, whole, taken, left_out, counted)
        ends = [0, *(it.end for it in path)]
        for cache in self._caches[left_out:]:
            bit, number = cache.bit, cache.number
            ages = [it.end - it.used_by(number) * _DEPTHS for it in path]
            there = bisect_left(ages, cache.oldest)
            found = there
            while found and not path[found - 1].states & bit:
                found -= 1
            hit = ends[found]
            counted[number] += hit
            short = taken - hit - (cache.room - self._filled)
            left = there
            if short > 0:
                self._evict_around(cache, short, set(path[:found]))
                left = max(found, bisect_left(ages, cache.oldest))
            cache.room -= whole - ends[left]
            for segment in path[left:]:
                segment.ends &= ~bit
            if left:
                path[left - 1].ends |= bit
            if there and self._keeping == "branch":
                path[there - 1].ends |= bit
                self._keep(path[there - 1], bit)
        return []

    def _fill_pages(
        self, path: list[_Segment], whole: int, taken: int, left_out: int, counted: list[int]
    ) -> list[tuple[_Cache, int]]:
        """Fill caches that keep a state after each page: an eviction may cut a segment in two."""
        short = []
        for cache in self._caches[left_out:]:
            hit = 0
            for segment in path:
                gone_from = cache.oldest + segment.used_by(cache.number) * _DEPTHS - 1
                hit = max(hit, min(segment.end, gone_from))
                if gone_from < segment.end:
                    break
            counted[cache.number] += hit
            missing = taken - hit - (cache.room - self._filled)
            if missing > 0:
                short.append((cache, missing))
            cache.room -= whole - hit
        return short

    def _use(self, path: list[_Segment], root: _Segment, raw: bytes, whole: int, left_out: int) -> None:
        """Make a prompt's pages the most recent, and keep a state after its last whole page."""
        super()._use(path, root, raw, whole, left_out)
        if whole and self._keeping != "every":
            self._keep(self._last[-1], self._everyone >> left_out << left_out)

    def _keep(self, segment: _Segment, caches: int) -> None:
        """Keep a state at the end of a segment in some caches."""
        new = caches & ~segment.states
        segment.states |= caches
        while new:
            self._kept[(new & -new).bit_length() - 1] += 1
            new &= new - 1

    def _evict(self, cache: _Cache, short: int) -> None:
        self._evict_around(cache, short, frozenset())

    def _evict_around(self, cache: _Cache, short: int, held: set[_Segment] | frozenset[_Segment]) -> None:
        """Evict the least recent unheld pages of a cache, until enough pages are free."""
        at, segment, bit = cache.at, cache.segment, cache.bit
        gone = 0
        while True:
            while segment.used_by(cache.number) != at or segment in held:
                at += 1
                segment = self._last[at - self._first]
            above = segment.parent
            start = segment.start
            if self._keeping == "every":
                end = min(segment.end, max(start, cache.oldest + at * _DEPTHS - 1))
                gone += end - start
                if gone >= short:
                    start += gone - short
                    gone = short
                    if start > segment.start:
                        above = segment
                    break
            else:
                gone += segment.end - start
                if segment.states & bit:
                    segment.states &= ~bit
                    self._kept[cache.number] -= 1
                if gone >= short and self._may_stay(above, cache, at, held):
                    break
            segment = above
        cache.oldest = start + 1 - at * _DEPTHS
        self._youngest_gone = min(self._youngest_gone, cache.oldest)
        cache.at, cache.segment = at, above
        cache.room += gone
        cache.evicted += gone
        cache.calls += 1

    def _may_stay(
        self, above: _Segment, cache: _Cache, at: int, held: set[_Segment] | frozenset[_Segment]
    ) -> bool:
        """Tell whether eviction may stop below a segment: at a node's end that is no bare leaf (M5)."""
        if not above.ends & cache.bit:
            return False
        is_root = above.parent is above
        return is_root or above in held or bool(above.states & cache.bit) or above.used_by(cache.number) != at
