"""Hit rates at many capacities in one pass, exactly as serial replays of `RadixCache` count them.

A serial replay (`pymllm.replay.serial`) makes every page of a prompt the most recent, and evicts whole
leaves, the least recent first. So in a cache of any capacity a page is there if, and only if, it is more
recent than the last page that was evicted; of one prompt's pages the shallower counts as more recent.
Recency does not depend on the capacity. All caches therefore share one prefix forest, and of each there is
a mark: how far, in the order of recency, its evictions have come. That would be Mattson's stack algorithm,
but for three things that do depend on the capacity:

- An eviction takes whole nodes, so a mark stops only where a cache has the end of a node. A cache gets one
  where a match ends, and loses it when the pages before it are evicted. A segment of the forest says in one
  bit per cache whether its end is one. Of caches that read the same prompts a larger one has all ends that a
  smaller one has, and so all pages; but which pages, no stack distance tells.
- While a prompt is read it takes whole pages, and its last, partial page is given back at the end.
- A cache leaves out prompts above half its capacity. So the forest keeps of a segment, beside its last use,
  the last one among prompts that smaller caches read, too.

Cost of a request: its segments, and for each cache the segments that are evicted. Memory: what the largest
cache holds, and with ``unlimited`` every prompt.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pymllm.workloads.request import Request

_DEPTHS: Final = 1 << 32
"""A factor larger than any prompt's pages: the age of a page is its depth minus this times its last use."""

_NEVER: Final = -1
_SWEEP_EVERY: Final = 1024  # requests between two looks for what no cache has any more


class _Segment:
    """Consecutive pages that were never split: from ``start`` to ``end``, counted from the root.

    ``edge``: ids of the blocks that these pages lie in. ``used``: number of the last prompt with them;
    ``left_out``: how many of the caches, the smallest ones, did not read that one; ``earlier``: the same two
    of prompts before it that more caches read, the last one first. ``fewest``: the least of all so far.
    ``ends``: a bit for each cache in which a node ends where this segment does, if the cache has it.
    ``states``: a bit for each cache that keeps a recurrent state there (`pymllm.replay.state_curve`).
    """

    __slots__ = (
        "children",
        "earlier",
        "edge",
        "end",
        "ends",
        "fewest",
        "filed_under",
        "left_out",
        "parent",
        "start",
        "states",
        "used",
    )

    def __init__(
        self, parent: _Segment | None, filed_under: bytes, edge: bytes, start: int, end: int
    ) -> None:
        self.parent = self if parent is None else parent
        self.filed_under = filed_under
        self.edge = edge
        self.start = start
        self.end = end
        self.children: dict[bytes, _Segment] | None = None
        self.used = _NEVER
        self.left_out = 0
        self.fewest = 0
        self.earlier: tuple[tuple[int, int], ...] = ()
        self.ends = 0
        self.states = 0

    def used_by(self, cache: int) -> int:
        """Return the number of the last prompt with these pages among those that a cache read."""
        if self.left_out <= cache:
            return self.used
        return next((used for used, left_out in self.earlier if left_out <= cache), _NEVER)

    def use(self, number: int, left_out: int) -> None:
        """Record the latest prompt with these pages, and how many caches did not read it."""
        if left_out:
            before = ((self.used, self.left_out), *self.earlier)
            self.earlier = tuple(it for it in before if it[1] < left_out and it[0] != _NEVER)
        elif self.earlier:
            self.earlier = ()
        self.used, self.left_out = number, left_out
        if left_out < self.fewest:
            self.fewest = left_out


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The counts of a serial replay at one capacity, with the fields of `SerialReport`.

    ``ceiling_tokens`` is ``None`` where nobody asked for it; evictions are ``None`` of requests with a label:
    an eviction is for one request, and of another's tokens.
    """

    capacity: int
    requests: int
    skipped: int
    prompt_tokens: int
    hit_tokens: int
    ceiling_tokens: int | None
    evict_calls: int | None
    evicted_tokens: int | None

    @property
    def token_hit_rate(self) -> float:
        """Hit tokens per prompt token; 0 if no prompt was read."""
        return self.hit_tokens / max(1, self.prompt_tokens)


@dataclass(slots=True)
class _Counts:
    """The counts of requests with one label: tokens for prompts, and pages otherwise.

    ``requests``, ``tokens``: by how many caches left the request out. ``shared``: hit by every cache;
    ``hits``: what each one hit beside that. ``ceiling``, ``ceilings``: the same of caches without a limit.
    """

    requests: list[int]
    tokens: list[int]
    hits: list[int]
    ceilings: list[int]
    shared: int = 0
    ceiling: int = 0


class _Cache:
    """The progress of evictions in one cache, and the number of pages evicted.

    ``room``: pages that are free, if what all caches filled alike (`LruCurve._filled`) is left aside.
    ``oldest``: age of the youngest page that was evicted; what is younger is there. ``at``, ``segment``: the
    prompt whose segments go next, and which one of them.
    """

    __slots__ = ("at", "bit", "calls", "evicted", "number", "oldest", "room", "segment")

    def __init__(self, number: int, pages: int, segment: _Segment) -> None:
        self.number = number
        self.bit = 1 << number
        self.room = pages
        self.oldest = -_NEVER * _DEPTHS
        self.at = _NEVER
        self.segment = segment
        self.evicted = 0
        self.calls = 0


class LruCurve:
    """The hits of caches of several capacities, counted request by request.

    ``capacities`` are in tokens, and rounded down to whole pages; equal ones count once. All prompts are in
    blocks of ``block_tokens``. Without ``unlimited`` there is no ceiling, and what no cache has any more is
    forgotten. ``id_bytes``: how long the id of a block is where prompts come as bytes (`read`). ``rate``:
    which share of the blocks is read, of a sample; each cache has that share of its pages, and at least one.
    """

    def __init__(
        self,
        capacities: Iterable[int],
        page_size: int = 1,
        block_tokens: int = 512,
        *,
        unlimited: bool = True,
        id_bytes: int = 4,
        rate: float = 1.0,
    ) -> None:
        if page_size < 1 or block_tokens < 1:
            raise ValueError(
                f"page_size and block_tokens must be at least 1, got {page_size} and {block_tokens}"
            )
        pages = sorted({capacity // page_size for capacity in capacities})
        if not pages or pages[0] < 1:
            raise ValueError(f"give at least one capacity, and each of at least a page of {page_size} tokens")
        self._page_size = page_size
        self._block_tokens = block_tokens
        self._id_bytes = id_bytes
        self._unlimited = unlimited
        self._is_sample = rate < 1
        self._pages = pages
        self._halves = [count * page_size // 2 for count in pages]
        self._roots: dict[str | int | None, _Segment] = {}
        self._nothing = _Segment(None, b"", b"", 0, 0)
        self._nothing.used = _NEVER - 1  # not even where a cache begins
        self._rooms = [max(1, int(count * rate)) for count in pages]
        self._caches = [_Cache(number, count, self._nothing) for number, count in enumerate(self._rooms)]
        self._everyone = (1 << len(pages)) - 1
        self._filled = 0
        self._youngest_gone = -_NEVER * _DEPTHS
        self._most_left_out = 0
        self._last: list[_Segment] = []  # what each prompt from `_first` on ends with
        self._further: list[int] = []  # how far behind it the next one is that may be the least recent
        self._first = 0
        self._number = 0
        self._labels: dict[str | None, _Counts] = {}

    @property
    def labels(self) -> list[str]:
        """The labels of requests so far, in order."""
        return sorted(label for label in self._labels if label is not None)

    @property
    def capacities(self) -> list[int]:
        """The capacities in tokens, in order."""
        return [count * self._page_size for count in self._pages]

    def points(self, label: str | None = None) -> list[CurvePoint]:
        """Return the counts at each capacity, in order, for all requests or those with a label."""
        counted = [it for its, it in self._labels.items() if label is None or its == label]
        found = []
        for cache in self._caches:
            at = cache.number
            ceiling = sum(it.ceiling + it.ceilings[at] for it in counted) * self._page_size
            found.append(
                CurvePoint(
                    capacity=self._pages[at] * self._page_size,
                    requests=sum(sum(it.requests[: at + 1]) for it in counted),
                    skipped=sum(sum(it.requests[at + 1 :]) for it in counted),
                    prompt_tokens=sum(sum(it.tokens[: at + 1]) for it in counted),
                    hit_tokens=sum(it.shared + it.hits[at] for it in counted) * self._page_size,
                    ceiling_tokens=ceiling if self._unlimited else None,
                    evict_calls=cache.calls if label is None else None,
                    evicted_tokens=cache.evicted * self._page_size if label is None else None,
                )
            )
        return found

    def add(self, request: Request, label: str | None = None) -> None:
        """Have every cache read a request, and count it also under its label if it has one."""
        if request.block_tokens != self._block_tokens:
            raise ValueError(
                f"request {request.request_id} is in blocks of {request.block_tokens} tokens; "
                f"this curve is of blocks of {self._block_tokens}"
            )
        length = request.prompt_length
        self.read(array("I", request.block_ids).tobytes(), length, length, request.namespace, label)

    def read(
        self,
        raw: bytes,
        tokens: int,
        full_length: int,
        namespace: str | int | None = None,
        label: str | None = None,
    ) -> None:
        """Have every cache read a prompt of ``tokens`` tokens, with its blocks as bytes.

        ``full_length`` decides who leaves it out; of a sample's prompt it is longer than what is read of it.
        """
        whole = tokens // self._page_size
        taken = -(-tokens // self._page_size)
        left_out = bisect_left(self._halves, full_length)
        if self._is_sample:  # by chance a sample may have more of a prompt than a cache has room for
            left_out = max(left_out, bisect_left(self._rooms, taken))
        counts = self._labels.get(label)
        if counts is None:
            counts = self._labels[label] = self._no_counts()
        counts.requests[left_out] += 1
        counts.tokens[left_out] += tokens
        if left_out == len(self._pages):
            return
        if left_out > self._most_left_out:
            self._most_left_out = left_out
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = _Segment(None, b"", b"", 0, 0)
            root.ends = -1
        path = self._walk(root, raw, whole)
        if self._unlimited:
            self._count_ceiling(path, left_out, counts)
        hit = None if left_out else self._hit_of_all(path)
        if hit is not None:
            counts.shared += hit
            if path:
                path[-1].ends = self._everyone
            self._use(path, root, raw, whole, 0)
            level = self._filled + taken - hit
            for cache in self._caches:
                if cache.room < level:
                    self._evict(cache, level - cache.room)
            self._filled += whole - hit
        else:
            short = self._fill_each(path, whole, taken, left_out, counts.hits)
            self._use(path, root, raw, whole, left_out)
            for cache, pages in short:
                self._evict(cache, pages)
        if not self._number % _SWEEP_EVERY:
            self._sweep()

    # -- the forest ------------------------------------------------------------------------------------------

    def _walk(self, root: _Segment, raw: bytes, whole: int) -> list[_Segment]:
        """Return the segments of a prompt's known pages; the last one ends where the prompt leaves them."""
        page_size, block_tokens, width = self._page_size, self._block_tokens, self._id_bytes
        path: list[_Segment] = []
        at, depth = root, 0
        while depth < whole and at.children is not None:
            first = depth * page_size // block_tokens * width
            after = -(-(depth + 1) * page_size // block_tokens) * width
            found = at.children.get(raw[first:after])
            if found is None:
                break
            depth = found.end
            if depth > whole or not raw.startswith(found.edge, first):
                shared = self._shared_blocks(raw, found.edge, first) * block_tokens // page_size
                depth = min(depth, whole, shared)
                if depth < found.end:
                    path.append(self._split(found, depth))
                    break
            path.append(found)
            at = found
        return path

    def _shared_blocks(self, raw: bytes, edge: bytes, first: int) -> int:
        """Return the number of blocks that a prompt shares with an edge, at least one."""
        width = self._id_bytes
        same, differs = 1, min(len(edge), len(raw) - first) // width + 1
        while differs - same > 1:
            middle = (same + differs) // 2
            if raw.startswith(edge[: middle * width], first):
                same = middle
            else:
                differs = middle
        return first // width + same

    def _split(self, lower: _Segment, depth: int) -> _Segment:
        """Split a segment in two, and return the upper half, where no cache has a node end yet."""
        page_size, block_tokens, width = self._page_size, self._block_tokens, self._id_bytes
        parent, start = lower.parent, lower.start
        assert parent.children is not None
        origin = start * page_size // block_tokens
        upper_blocks = -(-depth * page_size // block_tokens) - origin
        lower_blocks = depth * page_size // block_tokens - origin
        upper = _Segment(parent, lower.filed_under, lower.edge[: upper_blocks * width], start, depth)
        upper.used, upper.left_out, upper.earlier = lower.used, lower.left_out, lower.earlier
        upper.fewest = lower.fewest
        parent.children[upper.filed_under] = upper
        lower.edge = lower.edge[lower_blocks * width :]
        first_page = -(-(depth + 1) * page_size // block_tokens) - depth * page_size // block_tokens
        lower.filed_under = lower.edge[: first_page * width]
        lower.parent, lower.start = upper, depth
        upper.children = {lower.filed_under: lower}
        return upper

    def _use(self, path: list[_Segment], root: _Segment, raw: bytes, whole: int, left_out: int) -> None:
        """Make a prompt's pages the most recent, and add new pages."""
        number = self._number
        self._number = number + 1
        for segment in path:
            if left_out or segment.left_out:
                segment.use(number, left_out)
            else:
                segment.used = number
        last = path[-1] if path else root
        if last.end < whole:
            page_size, block_tokens, width = self._page_size, self._block_tokens, self._id_bytes
            first = last.end * page_size // block_tokens * width
            after = -(-(last.end + 1) * page_size // block_tokens) * width
            edge = raw[first : -(-whole * page_size // block_tokens) * width]
            new = _Segment(last, raw[first:after], edge, last.end, whole)
            new.used, new.left_out, new.fewest = number, left_out, left_out
            if last.children is None:
                last.children = {}
            last.children[new.filed_under] = new
            last = new
        if whole:
            last.ends |= self._everyone >> left_out << left_out
        self._last.append(last if whole else self._nothing)
        self._further.append(1)

    def _sweep(self) -> None:
        """Remove the segments that no cache holds any more."""
        passed = min(cache.at for cache in self._caches) - self._first
        if passed <= 0:
            return
        if not self._unlimited:
            for number, segment in enumerate(self._last[:passed], self._first):
                while segment.used == number:
                    parent = segment.parent
                    assert parent.children is not None
                    del parent.children[segment.filed_under]
                    segment = parent
        del self._last[:passed], self._further[:passed]
        self._first += passed

    # -- the caches ------------------------------------------------------------------------------------------

    def _no_counts(self) -> _Counts:
        caches = len(self._pages)
        return _Counts([0] * (caches + 1), [0] * (caches + 1), [0] * caches, [0] * caches)

    def _count_ceiling(self, path: list[_Segment], left_out: int, counts: _Counts) -> None:
        """Count the hits of an unlimited cache on the prompts that each capacity admits."""
        if not left_out and not any(it.fewest for it in path):
            counts.ceiling += path[-1].end if path else 0
            return
        for cache in range(left_out, len(self._pages)):
            counts.ceilings[cache] += max((it.end for it in path if it.fewest <= cache), default=0)

    def _hit_of_all(self, path: list[_Segment]) -> int | None:
        """Return the number of a prompt's pages that all caches hit; ``None`` if the numbers differ."""
        if not path:
            return 0
        last = path[-1]
        if last.end - last.used * _DEPTHS >= self._youngest_gone:
            return None
        if self._most_left_out and any(it.left_out for it in path):
            return None
        return last.end

    def _fill_each(
        self, path: list[_Segment], whole: int, taken: int, left_out: int, counted: list[int]
    ) -> list[tuple[_Cache, int]]:
        """Fill the caches that read a prompt; return those short of pages, with the number of missing pages.

        Also note where they have ends of nodes now.
        """
        ends = [0, *(it.end for it in path)]
        ages = [it.end - it.used * _DEPTHS for it in path]
        is_shared = not any(it.left_out for it in path)
        stopped = [0] * len(ends)  # which caches hit so many segments
        short = []
        level = self._filled + taken
        for cache in self._caches[left_out:]:
            if not is_shared:
                number = cache.number
                ages = [it.end - it.used_by(number) * _DEPTHS for it in path]
            found = bisect_left(ages, cache.oldest)
            stopped[found] |= cache.bit
            hit = ends[found]
            counted[cache.number] += hit
            room = cache.room
            if room < level - hit:
                short.append((cache, level - hit - room))
            cache.room = room - whole + hit
        others = (1 << left_out) - 1
        hitting = 0
        for segment, ending in zip(reversed(path), reversed(stopped), strict=False):
            hitting |= ending
            segment.ends = segment.ends & (hitting | others) | ending
        return short

    def _evict(self, cache: _Cache, short: int) -> None:
        """Evict whole nodes of a cache, the least recent first, until enough pages are free."""
        at, segment, bit = cache.at, cache.segment, cache.bit
        reads_all = cache.number >= self._most_left_out
        gone = 0
        while True:
            if reads_all:
                if segment.used != at:
                    place = at + 1 - self._first
                    segment = self._last[place]
                    at = segment.used
                    if at != place + self._first:
                        at, segment = self._next_used(place)
            else:
                while segment.used_by(cache.number) != at:
                    at += 1
                    segment = self._last[at - self._first]
            gone += segment.end - segment.start
            above = segment.parent
            if gone >= short and above.ends & bit:
                break
            segment = above
        cache.oldest = oldest = segment.start + 1 - at * _DEPTHS
        if oldest < self._youngest_gone:
            self._youngest_gone = oldest
        cache.at, cache.segment = at, above
        cache.room += gone
        cache.evicted += gone
        cache.calls += 1

    def _next_used(self, begin: int) -> tuple[int, _Segment]:
        """Return the next prompt whose end was not used since, and its last segment.

        ``begin``: where it is looked for, counted from `_first`. What was found is kept for the other caches:
        an end that was used again has its place in the order of recency elsewhere, and never here again.
        """
        first, last, further = self._first, self._last, self._further
        place = begin + further[begin]
        segment = last[place]
        while segment.used != place + first:
            place += further[place]
            segment = last[place]
        further[begin] = place - begin
        return place + first, segment
