"""A model of kind `requests`, written from its pages alone, as `naive_blocks` is of blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from naive_blocks import NO_SLOT, REFUSALS, Model, Silent, demand, expect, is_refusal

from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.outcomes import (
    INJECTED,
    BlockState,
    ContextBlock,
    ContextView,
    Done,
    Failed,
    NoRoom,
    Ran,
    RequestRun,
    RequestView,
    Result,
    Unsupported,
)

Tokens = tuple[int, ...]
NO_BLOCKS = (Failed("CapacityError"), Failed(NO_SLOT))


@lru_cache(2000)
def kv(tokens: Tokens) -> list[int]:
    """Return the KV of each token in a cold run."""
    values = [0]
    for token in tokens:
        values.append((1000003 * values[-1] + token + 1) % (2**31 - 1))
    return values[1:]


@lru_cache(2000)
def state(tokens: Tokens, conv: int, ssm: int) -> Tokens:
    """Return the state behind some tokens in a cold run, of so many elements in each part."""
    if not tokens:
        return (0,) * (conv + ssm)
    early = (len(tokens) - 1) // 64 * 64
    values = list(state(tokens[:early], conv, ssm))
    for x in tokens[early:]:
        for at, y in enumerate(values):
            e, q = (at, 251) if at < conv else (at - conv, 16777213)
            a = 1 + (x + 1) * (e + 3) * 7919 % (q - 1)
            b = (x + 1) * (e + 5) * 104729 + e
            values[at] = (a * y + b) % q
    return tuple(values)


@lru_cache(2000)
def digest(tokens: Tokens, size: int, digits: int) -> bytes:
    """Return the chained digest of the last of some whole blocks, cut to so many digits if not to 0."""
    if not tokens:
        return b""
    page = b"".join(token.to_bytes(4, "little") for token in tokens[-size:])
    whole = hashlib.sha256(digest(tokens[:-size], size, digits) + page).hexdigest()
    return bytes.fromhex(whole[:digits].zfill(16) if digits else whole)


def up(tokens: int, size: int) -> int:
    """Return how many blocks some tokens need."""
    return -(-tokens // size)


@dataclass(eq=False)
class Request:
    """A request, from its admission to its release."""

    step: int
    prompt: int
    tokens: Tokens
    table: list[int]
    matched: int
    skipped: int
    end: int
    computed: int = 0
    region: str = "prefill"
    registers: bool = True
    is_lost: bool = False

    @property
    def start(self) -> int:
        """Return the first token that its next chunk really computes."""
        return self.computed + self.skipped

    @property
    def stop(self) -> int:
        """Return the end of what its next step computes."""
        return self.computed + 1 if self.region == "decode" else self.end


class NaiveRequests(Model):
    """Whole requests over blocks."""

    allowed = (*REFUSALS, "RuntimeError")

    def __init__(self, config: Config, claims: Collection[str]) -> None:
        super().__init__(config, claims)
        self.size, self.chunk = self.number("block_size"), self.number("chunk_size")
        self.dummy = self.number("num_blocks") - 1
        self.layers, self.slots = self.number("layers"), self.number("mamba_slots")
        self.conv, self.ssm = (self.layers * self.number(f"{part}_width") for part in ("conv", "ssm"))
        # C2 and C6 to C8 are claimed with `mamba`: what others tell of slots is held against nobody.
        self.keeps_states = self.layers > 0 and self.slots > 0
        self.added: set[int] = set()
        self.begun: set[int] = set()  # steps that began transfers
        self.start()

    def start(self) -> None:
        """Make everything new (C9)."""
        self.transfers: dict[int, list[int]] = {}  # the blocks of each that is under way
        self.requests: dict[int, Request] = {}
        self.hash_of: dict[int, int] = {}
        self.parent_of: dict[int, int | None] = {}
        self.path_of: dict[int, Tokens] = {}  # of a registered block: all tokens up to its end
        self.slot_of: dict[int, int] = {}
        self.let_go: dict[int, int] = {}  # the step at which a block lost its last reference

    # -- words ---------------------------------------------------------------------------------------------
    def those(self, region: str) -> list[Request]:
        """Return the requests in a region."""
        return [request for request in self.requests.values() if request.region == region]

    def references(self, block: int) -> int:
        """Count the requests that have a block."""
        holders = [*self.transfers.values(), *(request.table for request in self.requests.values())]
        return sum(block in table for table in holders)

    def idle(self) -> list[int]:
        """Return the blocks without references."""
        return [block for block in range(self.dummy) if not self.references(block)]

    def free(self) -> list[int]:
        """Return the blocks without references and hash."""
        return [block for block in self.idle() if block not in self.hash_of]

    def sizes(self) -> dict[str, int]:
        """Count everything again."""
        sizes = {"pool_avail": len(self.free()), "evictable_blocks": len(self.idle()) - len(self.free())}
        sizes |= {"request_count": len(self.requests), "paused_request_count": len(self.those("paused"))}
        sizes |= {f"{region}_req_count": len(self.those(region)) for region in ("decode", "prefill")}
        return sizes | ({"free_count": self.slots - len(self.slot_of)} if self.slots else {})

    def hash(self, path: Tokens) -> int:
        """Return the hash of the block that ends a path (C3)."""
        digits = self.number("hash_digits")
        return int.from_bytes(digest(path, self.size, digits)[:8], "big") % 2**63 or 1

    def state(self, tokens: Tokens) -> Tokens:
        """Return a cold run's state."""
        return state(tokens, self.conv, self.ssm) if self.layers else ()

    def sum(self, tokens: Tokens, block: int, stop: int) -> int:
        """Return the sum that is told of a block whose places before the token ``stop`` are looked at."""
        values = kv(tokens)[block * self.size : min((block + 1) * self.size, stop)]
        return sum(place * value for place, value in enumerate(values, 1))

    def rows_of(self, region: str) -> range:
        """Return the rows of a region (E2)."""
        regions = ("paused", "decode", "prefill", "waiting")
        first = sum(len(self.those(each)) for each in regions[: regions.index(region)])
        return range(first, first + len(self.those(region)))

    # -- blocks --------------------------------------------------------------------------------------------
    def match(self, prompt: Tokens) -> list[int]:
        """Return the longest chain of blocks with these very tokens, each below the one before (C3)."""
        found: list[int] = []
        for end in range(self.size, len(prompt) + 1, self.size):
            path, parent = prompt[:end], found[-1] if found else None
            known = [block for block, name in self.hash_of.items() if name == self.hash(path)]
            if not known or self.parent_of[known[0]] != parent:
                break
            if self.path_of[known[0]][-self.size :] != path[-self.size :]:
                break
            found += known
        return found

    def evicted(self, count: int, spared: Collection[int] = ()) -> list[int]:
        """Demand that exactly so many blocks went, each a leaf and the one let go of longest ago (C1)."""
        gone = self.told()
        expect(len(gone), count)
        left = {*gone}
        while left:
            cached = [block for block in self.hash_of if block in self.idle() and block not in spared]
            leaves = [block for block in cached if block not in self.parent_of.values()]
            oldest = min(leaves, key=lambda block: self.let_go[block], default=-1)
            demand(oldest in left, "evicted", left, "where", oldest, "goes first")
            self.forget(oldest)
            left -= {oldest}
        return gone

    def told(self) -> list[int]:
        """Return the blocks that callbacks told of, each once; all else that a call has is not compared."""
        calls, self.calls = self.calls, []
        demand(all(call.call == "callback" for call in calls), "no callback:", calls)
        gone = [block for call in calls for block in call.slots]
        expect(len(gone), len({*gone}))
        return gone

    def forget(self, block: int) -> None:
        """Deregister a block, and free its slot."""
        books: tuple[dict[int, Any], ...] = (self.hash_of, self.parent_of, self.path_of, self.slot_of)
        for book in books:
            book.pop(block, None)

    def finds_room(self, needed: int, room: int, none: Sequence[Result], result: Result) -> bool:
        """Demand the right answer where an allocation of blocks fails, and tell whether the call succeeds."""
        nth = self.armed("allocate_blocks") or self.armed("no_blocks")
        struck = [Failed(INJECTED)] if self.armed("allocate_blocks") else none
        if needed > room:
            expect(result, *none, *(struck if nth else ()))
        elif nth == 1 and needed:
            expect(result, *struck)
        return needed <= room and not (
            nth and needed and result in struck
        )  # only the first call is sure to come

    def new_blocks(self, told: Sequence[int], had: Sequence[int], needed: int) -> list[int]:
        """Demand the earlier blocks of a request, then ``needed`` free blocks, and return the free blocks."""
        new = list(told[len(had) :])
        expect(list(told[: len(had)]), list(had))
        demand(len(new) == needed == len({*new}) and {*new} <= {*self.free()}, new, "are no free blocks")
        return new

    # -- requests ------------------------------------------------------------------------------------------
    def on_add_request(self, operation: ops.AddRequest, result: Result) -> None:
        """Demand that a prompt is taken up if and only if there is room (C3, E4)."""
        prompt, limit = operation.tokens, operation.limit
        reserve = operation.reserve
        is_bad = (
            not prompt
            or (reserve is not None and reserve < 0)
            or up(len(prompt), self.size) > min(self.number("max_blocks"), self.dummy)
        )
        if is_bad or not all(0 <= token < 2**32 for token in prompt) or (limit is not None and limit < 1):
            expect(result, Failed("ValueError"))
            return
        if len(self.requests) >= self.number("max_requests"):
            expect(result, NoRoom())
            return
        found = self.match(prompt)
        usable = range(1, min(len(found), (len(prompt) - 1) // self.size) + 1)
        deepest = [at for at in usable if not self.layers or found[at - 1] in self.slot_of]
        skipped = max(deepest, default=0) * self.size
        end = len(prompt) if limit is None else min(len(prompt), skipped + limit)
        needed = max(0, up(end, self.size) - len(found))
        room = len({*self.idle()} - {*found})
        if reserve is not None and up(len(prompt), self.size) - len(found) + reserve > room:
            expect(result, NoRoom())
            return
        if skipped and self.layers and self.armed("restore_state") == 1:
            expect(result, Failed(INJECTED), *([NoRoom()] if needed > room else []))
            return
        if not self.finds_room(needed, room, [NoRoom()], result):
            return
        held = Request(self.step, len(prompt), prompt, found, len(found), skipped, end)
        self.grow(held, needed, result)

    def grow(self, request: Request, needed: int, result: Result) -> None:
        """Demand blocks for a chunk, and a view of the request that has them."""
        demand(isinstance(result, RequestView), "no view:", result)
        assert isinstance(result, RequestView)
        missing = max(0, needed - len({*self.free()} - {*request.table}))
        self.evicted(missing, spared=request.table)
        request.table = request.table + self.new_blocks(result.blocks, request.table, needed)
        request.region = "prefill"
        self.requests[request.step] = request
        self.added |= {request.step}
        self.check_view(request, result)

    def check_view(self, request: Request, view: RequestView) -> None:
        """Demand what is told of a request between two steps (E1, E2)."""
        expect((view.request, view.region, list(view.blocks)), (request.step, request.region, request.table))
        expect(view.finished, min(request.computed, request.prompt))
        demand(view.row in self.rows_of(request.region), "row", view.row)
        if request.is_lost:  # its place and its blocks alone are compared
            return
        expect(len(view.kv), len(request.table))
        for at, told in enumerate(view.kv):
            end = (at + 1) * self.size
            if at < request.matched or end <= request.computed:  # others may say anything
                expect(told, self.sum(request.tokens, at, end))
        self.check_state(request, view.state)

    def check_state(self, request: Request, told: Tokens) -> None:
        """Demand a live state where there are recurrent layers; elsewhere there is none to compare."""
        expect(told, self.state(request.tokens[: request.start]) if self.layers else told)

    def on_schedule_chunk(self, operation: ops.ScheduleChunk, result: Result) -> None:
        """Demand that a request gets its next chunk if and only if there is room (E4)."""
        request, limit = self.find(operation.request), operation.limit
        if request is None or request.region != "waiting" or (limit is not None and limit < 1):
            demand(is_refusal(result, ("UsageError", "ValueError")), "no refusal:", result)
            return
        end = request.prompt if limit is None else min(request.prompt, request.start + limit)
        needed = max(0, up(end, self.size) - len(request.table))
        if self.finds_room(needed, len(self.idle()), [NoRoom()], result):
            request.end = end
            self.grow(request, needed, result)

    def on_pause(self, operation: ops.Pause, result: Result) -> None:
        """Demand that paused requests keep no more than their share (C1)."""
        request = self.find(operation.request)
        if request is None or request.region == "paused":
            expect(result, Failed("UsageError"))
            return
        kept = {block for each in [request, *self.those("paused")] for block in each.table}
        if len(kept) > self.number("paused_limit"):
            expect(result, NoRoom())
            return
        expect(result, Done())
        request.region = "paused"

    def find(self, step: int) -> Request | None:
        """Return the request of a step, or none once the request is gone; a lost request gets no verdict."""
        if step not in self.added:
            raise Silent("a step that added no request")
        request = self.requests.get(step)
        if request is not None and request.is_lost:
            raise Silent("a request whose step failed is only released from then on")
        return request

    def on_resume(self, operation: ops.Resume, result: Result) -> None:
        """Let a paused request wait, or decode."""
        request = self.find(operation.request)
        if request is None or request.region != "paused":
            expect(result, Failed("UsageError"))
            return
        expect(result, Done())
        request.region = "decode" if request.computed >= request.prompt else "waiting"

    def on_truncate(self, operation: ops.Truncate, result: Result) -> None:
        """Demand that a request loses its end, and a cut block its hash with all below it (C1, C3, E2)."""
        request, kept = self.find(operation.request), operation.tokens
        if request is None or request.computed < request.prompt:
            is_bad_token = not 0 <= operation.next_token < 2**32
            errors = ("UsageError", "ValueError") if request and is_bad_token else ("UsageError",)
            demand(is_refusal(result, errors), "no refusal:", result)
            return
        wrong = set()
        if not request.prompt <= kept <= request.computed:
            wrong.add("ValueError")
        elif kept % self.size and self.references(request.table[kept // self.size]) > 1:
            wrong.add("UsageError")
        if not 0 <= operation.next_token < 2**32:
            wrong.add("ValueError")
        if wrong:
            demand(is_refusal(result, tuple(wrong)), "no refusal:", result)
            return
        demand(isinstance(result, RequestView), "no view:", result)
        assert isinstance(result, RequestView)
        whole, tail = kept // self.size, request.table[up(kept, self.size) :]
        request.table = request.table[: up(kept, self.size)]
        zero = [block for block in tail if not self.references(block)]
        self.let_go.update(dict.fromkeys(zero, self.step))
        gone = [block for block in zero if block not in self.hash_of or self.config["policy"] == "ref_zero"]
        cut = request.table[whole:]
        if cut and cut[0] in self.hash_of:
            for block in cut:
                cut += [child for child, parent in self.parent_of.items() if parent == block]
            gone += cut
        expect(sorted(self.told()), sorted({*gone}))
        for block in gone:
            self.forget(block)
        request.tokens = (*request.tokens[:kept], operation.next_token)
        request.computed = kept
        request.registers = not whole or request.table[whole - 1] in self.hash_of
        self.check_view(request, result)

    def on_release(self, operation: ops.Release, result: Result) -> None:
        """Demand that everything comes back (E3)."""
        if operation.request not in self.added:
            raise Silent("a step that added no request")
        if operation.request not in self.requests:
            expect(result, Failed("UsageError"))
            return
        expect(result, Done())
        self.let_go_of(self.requests.pop(operation.request).table)

    def on_transfer_request(self, operation: ops.TransferRequest, result: Result) -> None:
        """Let a transfer have the blocks of a request, too (C1)."""
        if operation.request not in self.added:
            raise Silent("a step that added no request")
        if operation.request not in self.requests:
            expect(result, Failed("UsageError"))
            return
        expect(result, Done())
        self.begun |= {self.step}
        self.transfers[self.step] = [*self.requests[operation.request].table]

    def on_end_transfer(self, operation: ops.EndTransfer, result: Result) -> None:
        """Demand that what the transfer alone has comes back (C1)."""
        if operation.transfer not in self.begun:
            raise Silent("a step that began no transfer")
        if operation.transfer not in self.transfers:
            expect(result, Failed("OwnershipError"))
            return
        expect(result, Done())
        self.let_go_of(self.transfers.pop(operation.transfer))

    def let_go_of(self, table: list[int]) -> None:
        """Demand what becomes of blocks that one holder less has."""
        zero = [block for block in table if not self.references(block)]
        self.let_go.update(dict.fromkeys(zero, self.step))
        gone = [block for block in zero if block not in self.hash_of or self.config["policy"] == "ref_zero"]
        expect(sorted(self.told()), sorted(gone))
        for block in gone:
            self.forget(block)

    # -- steps ---------------------------------------------------------------------------------------------
    def on_run_step(self, operation: ops.RunStep, result: Result) -> None:
        """Demand what a step computes, registers and keeps."""
        decode, prefill = self.those("decode"), self.those("prefill")
        for request in [*decode, *prefill]:
            self.find(request.step)
        needy = [request for request in decode if request.computed == self.size * len(request.table)]
        idle = len(self.idle())
        if any(len(request.table) >= self.number("max_blocks") for request in needy):
            expect(result, Failed("UsageError"))
            return
        if not self.finds_room(len(needy), idle, NO_BLOCKS, result):
            return
        demand(isinstance(result, Ran), "no step:", result)
        assert isinstance(result, Ran)
        had = {*self.slot_of}
        self.evicted(max(0, len(needy) - len(self.free())))
        batch = [self.requests.get(entry.request) for entry in result.requests]
        demand({*batch} == {*decode, *prefill} and len(batch) == len({*batch}), "another batch:", batch)
        rows = [*self.rows_of("decode"), *self.rows_of("prefill")]
        expect([entry.row for entry in result.requests], rows)
        error = INJECTED if 0 < self.armed("forward") <= len(batch) else ""
        ordered = [request for request in batch if request is not None]
        for request, entry in zip(ordered, result.requests, strict=True):
            demand(request.region == "decode" or entry.row in self.rows_of("prefill"), "row", entry)
            request.table = request.table + self.new_blocks(
                entry.blocks, request.table, int(request in needy)
            )
            self.check_run(request, entry, bool(result.error))
        if not self.keeps_states:
            result = msgspec.structs.replace(result, kept=(), dropped=())
        if error:
            expect((result.error, result.registered, result.kept), (error, (), ()))
            expect(sorted(result.dropped), sorted(had - {*self.slot_of}))
        else:
            self.commit(ordered, had, result)
        for request in ordered:
            request.is_lost = bool(result.error)
        if not result.error:
            self.advance(ordered, operation.next_tokens)

    def check_run(self, request: Request, entry: RequestRun, is_cut_short: bool) -> None:
        """Demand the inputs and the reads of the forward pass (C8, E1, E2, E5)."""
        start, stop = request.start, request.stop
        expect((entry.start, entry.count, entry.is_sampled), (start, stop - start, stop >= request.prompt))
        offsets = tuple(end - start for end in self.states_inside(request))
        expect(entry.offsets, offsets if self.keeps_states else entry.offsets)
        self.check_state(request, entry.state)
        sums = [self.sum(request.tokens, at, stop) for at in range(len(request.table))]
        expect(entry.kv, tuple(sums), *([()] if is_cut_short else []))
        reached = range(start // self.size, up(stop, self.size))
        expect(len(entry.writes), len(reached))
        for at, told in zip(reached, entry.writes, strict=True):
            first, last = max(start, at * self.size), min(stop, (at + 1) * self.size)
            targets = [request.table[at]] + ([self.dummy] if at < request.matched else [])
            expect(told, *[(block * self.size + first % self.size, last - first) for block in targets])

    def states_inside(self, request: Request) -> list[int]:
        """Return after which tokens a chunk leaves states (C8)."""
        if request.region == "decode" or not self.keeps_states:
            return []
        start, end, size = request.start, request.end, self.size
        candidates = {request.matched * size, request.prompt // size * size, (up(end, size) - 1) * size}
        return sorted(c for c in candidates if start < c < end and (c - start) % self.chunk == 0)

    def commit(self, batch: list[Request], had: set[int], result: Ran) -> None:
        """Demand the registered blocks, then the kept states (C3, C6, C7)."""
        before = (dict(self.hash_of), dict(self.parent_of), dict(self.path_of))
        for request in batch:
            self.register(request)
        registered = sorted({*self.hash_of} - {*before[0]})
        offered = self.offered(batch)
        wanted = [block for block in offered if block not in self.slot_of]
        free = self.slots - len(self.slot_of)
        losers = sorted((self.let_go[block], block) for block in self.slot_of if block in self.idle())
        given = wanted[: free + len(losers)]
        victims = [block for _, block in losers[: max(0, len(given) - free)]]
        evicted = had - {*self.slot_of}
        nth = self.armed("allocate_slots") or self.armed("store_states")
        must, may = nth == 1 and given, nth and offered  # states of blocks that have one may be copied again
        expect(result.error, *([] if must else [""]), *([INJECTED] if may else []))
        if result.error:
            expect(sorted(result.registered), registered, [])
            if not result.registered:
                self.hash_of, self.parent_of, self.path_of = before
            losers_too = {*victims, *offered} & {*self.slot_of}
            demand(evicted <= {*result.dropped} <= evicted | losers_too, "dropped", result.dropped)
            victims, given = [block for block in losers_too if block in result.dropped], []
        expect(sorted(result.registered), registered if not result.error else sorted(result.registered))
        expect(sorted(result.dropped), sorted(evicted | {*victims}))
        for block in victims:
            del self.slot_of[block]
        self.keep(result.kept, given)

    def register(self, request: Request) -> None:
        """Offer the whole blocks of a request; an equal hash ends it for good (C3)."""
        for at in range(request.stop // self.size):
            block, path = request.table[at], request.tokens[: (at + 1) * self.size]
            if block in self.hash_of or not request.registers or self.config.get("caching") is False:
                continue
            request.registers = self.hash(path) not in self.hash_of.values()
            if request.registers:
                self.hash_of[block], self.path_of[block] = self.hash(path), path
                self.parent_of[block] = request.table[at - 1] if at else None

    def offered(self, batch: list[Request]) -> list[int]:
        """Return the registered blocks whose states are left, the most wanted first (C7)."""
        left = []
        for row, request in enumerate(batch):
            ends = [(1, end) for end in self.states_inside(request)]
            is_end = request.region == "prefill" and request.end == request.prompt and self.keeps_states
            ends += [(0, request.end)] if is_end and request.end % self.size == 0 else []
            left += [(rank, -end, row, request.table[end // self.size - 1]) for rank, end in ends]
        blocks = dict.fromkeys(block for *_, block in sorted(left))
        return [block for block in blocks if block in self.hash_of]

    def keep(self, kept: Sequence[BlockState], given: list[int]) -> None:
        """Demand a slot that no other block has for each block whose state is kept."""
        expect(sorted(each.block for each in kept), sorted(given))
        for each in kept:
            is_free = 0 <= each.slot < self.slots and each.slot not in self.slot_of.values()
            demand(is_free, "slot", each.slot, "is not free")
            self.slot_of[each.block] = each.slot

    def advance(self, batch: list[Request], next_tokens: Sequence[int]) -> None:
        """Count what was computed, and sample in the order in which requests were added."""
        sampling = sorted(
            (request for request in batch if request.stop >= request.prompt), key=lambda each: each.step
        )
        for request in batch:
            request.computed, request.skipped = request.stop, 0
            request.region = "decode" if request in sampling else "waiting"
        for at, request in enumerate(sampling):
            request.tokens = (*request.tokens, next_tokens[at % len(next_tokens)])

    # -- all of it -----------------------------------------------------------------------------------------
    def on_reset(self, operation: ops.Reset, result: Result) -> None:
        """Make everything new (C9)."""
        expect(result, Done())
        self.start()

    def on_inspect(self, operation: ops.Inspect, result: Result) -> None:
        """Demand all requests by row, and all blocks that are not free by number."""
        if isinstance(result, Unsupported):
            return
        demand(isinstance(result, ContextView), "no view:", result)
        assert isinstance(result, ContextView)
        expect([view.row for view in result.requests], list(range(len(self.requests))))
        expect(sorted(view.request for view in result.requests), sorted(self.requests))
        for view in result.requests:
            self.check_view(self.requests[view.request], view)
        blocks = [block for block in range(self.dummy) if block not in self.free()]
        expect([view.block for view in result.blocks], blocks)
        for told in result.blocks:
            slot = self.slot_of.get(told.block, -1)
            path = self.path_of.get(told.block, ())
            content = self.state(path) if slot >= 0 else ()
            name = self.hash(path) if path else -1
            if not self.keeps_states:
                slot, content = told.slot, told.state
            expect(told, ContextBlock(told.block, self.references(told.block), name, slot, content))
