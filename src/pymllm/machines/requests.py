"""The machine that drives contexts of requests: shared prefixes, odd chunks, pauses, failures and misuse."""

from __future__ import annotations

import functools
import math

from pymllm.history import operations as ops
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Failed, Outcome
from pymllm.machines.acting import act
from pymllm.machines.pools import PoolMachine, malformed_calls
from pymllm.oracle.models.cold_runs import Prefix
from pymllm.oracle.models.request_model import DECODE, PAUSED, WAITING, RequestModel, ServedRequest

_PIECES = (0, 6)
_TAIL = (0, 6)
_BRANCH = (0, 2)
_LIMIT = (0, 6)
_SLACK = (0, 5)
_TOKEN = (0, 2)
_BEYOND = (1, 2)
_PICK = (0, 7)
_BACK = (0, 5)
_ALPHABETS = ((1, 2, 3, 4), (0, 1, 2, 3), (1, 0, 1 + 2**16, 1 + 2**31))
"""Alphabets for the tokens 1 to 4, to find implementations that cut tokens to fewer bits or ignore 0."""
_FAULTS = ("allocate_blocks", "no_blocks", "restore_state", "allocate_slots", "store_states", "forward")


@functools.lru_cache(maxsize=64)
def _text(piece: int, branch: int | None, count: int) -> tuple[int, ...]:
    """Return the tokens of a branch or of the trunk; cached, since building them took 45 us an operation."""
    if branch is None:
        return tuple(1 + (at * at // 3 + at // piece) % 3 for at in range(count))
    return tuple(1 + (at * at // 3 + branch + at // piece * (branch + 2)) % 4 for at in range(count))


class RequestMachine(PoolMachine):
    """The machine that drives a context as a scheduler does, with some misuse (C1 to C9, E1 to E5).

    Prompts are made of pieces, the shortest text after which a chunk can leave a state: a trunk that all
    prompts share, which each leaves at some piece for one of a few branches, and a tail that ends anywhere.
    """

    MALFORMED = malformed_calls(
        add_request=(
            *("no tokens", "a float token", "a negative token", "pairs of tokens", "a batch of one"),
            *("a prompt begun elsewhere", "a limit of nothing", "a float limit"),
        ),
        **dict.fromkeys(("schedule_chunk", "pause", "resume", "truncate", "release"), ("a stranger",)),
        **dict.fromkeys(("commit_step", "abort_step"), ("no step",)),
    )

    def begin(self) -> None:
        """Work out the length of a prompt's pieces, and of the longest prompt."""
        self._alphabet = _ALPHABETS[0]
        self.model: RequestModel = self.judge.model.context
        self._size = self.model.block_size
        self._piece = math.lcm(self._size, self.model.chunk_size) if self.model.layers else self._size
        self._longest = min(self.model.max_blocks, self.model.blocks.usable) * self._size

    @property
    def has_requests(self) -> bool:
        """Whether the context has any request."""
        return bool(self.model.served)

    @property
    def has_rivals(self) -> bool:
        """Whether other contents can have the hash of a cached block."""
        return self.examiner.history.header.config.get("hash_digits") is not None and self.has_requests

    @property
    def keeps_reserves(self) -> bool:
        """Whether a request can state how many blocks to leave to other requests."""
        return "reserve" in self.capabilities

    @property
    def can_cut(self) -> bool:
        """Whether any request can be truncated."""
        return "truncate" in self.capabilities and self.has_requests

    @property
    def can_draft(self) -> bool:
        """Whether a request may be added that can be truncated later."""
        return "truncate" in self.capabilities

    @property
    def can_cut_badly(self) -> bool:
        """Whether the adapter refuses an incorrect truncation."""
        return self.can_cut and self.can_refuse

    def observe(self) -> None:
        """Inspect the context, where the adapter claims that."""
        if "inspect" in self.capabilities:
            self.do(ops.Inspect())
        if "events" in self.capabilities:
            self.do(ops.TakeEvents())

    # -- requests in ---------------------------------------------------------------------------------------
    @act(which=(0, len(_ALPHABETS) - 1))
    def use_tokens(self, which: int) -> None:
        """Use another alphabet of tokens, or the usual one, for later requests."""
        self._alphabet = _ALPHABETS[which]

    @act(weight=4, pieces=_PIECES, tail=_TAIL, turn=_PIECES, branch=_BRANCH, limit=_LIMIT)
    def add(self, pieces: int, tail: int, turn: int, branch: int, limit: int) -> None:
        """Add a request whose prompt shares its beginning with others."""
        self.ask(ops.AddRequest(self._prompt(pieces, tail, turn, branch), self._limit(limit)))

    @act(weight=2, pieces=_PIECES, turn=_PIECES, branch=_BRANCH, tail=_TAIL, apart=(0, 1))
    def add_two(self, pieces: int, turn: int, branch: int, tail: int, apart: int) -> None:
        """Add two requests that compute the same blocks, or different ones, at once."""
        for each in (0, 1):
            self.do(ops.AddRequest(self._prompt(pieces, tail + each, turn, branch + each * apart)))
        self._step((1,), 1)

    @act(weight=2, turn=_PIECES, branch=_BRANCH, short=(0, 2))
    def add_longest(self, turn: int, branch: int, short: int) -> None:
        """Add a request that fills its row, or almost fills it."""
        self.ask(ops.AddRequest(self._tokens(max(0, self._longest - short), turn, branch)))

    @act(
        weight=2, needs="keeps_reserves", pieces=_PIECES, tail=_TAIL, turn=_PIECES, limit=_LIMIT, slack=_SLACK
    )
    def add_beside_reserve(self, pieces: int, tail: int, turn: int, limit: int, slack: int) -> None:
        """Add a request with a reserve of about as many blocks as will be left, or of none.

        Or as many as there would be if what the prompt shares could be evicted for it, or fewer than none.
        """
        tokens, most = self._prompt(pieces, tail, turn, 0), self._limit(limit)
        arrival = self.model.meet(0, tokens, most)
        left = self.model.room(arrival.blocks) - self.model.blocks_for(len(tokens)) + len(arrival.blocks)
        shared = self.model.room() - self.model.room(arrival.blocks)
        reserves = (left, left + 1, left - 1, left + shared, 0)
        self.ask(ops.AddRequest(tokens, most, -1 if slack == len(reserves) else max(0, reserves[slack])))

    @act(weight=3, needs="has_rivals", pick=_PICK, place=_PIECES, tail=_TAIL)
    def add_rival(self, pick: int, place: int, tail: int) -> None:
        """Add a request with a block whose weak hash equals another block's, below the same prefix (C3)."""
        tokens, size = self._picked(pick).tokens, self._size
        whole = len(tokens) // size
        if whole:
            start = place % whole * size
            above: list[Prefix] = []
            self.model.cold.extend(above, tokens[:start])
            nothing, block = self.model.cold.nothing, tuple(tokens[start : start + size])
            rival = self.model.cold.find_rival((above or [nothing])[-1], block)
            if rival is not None:
                self.ask(ops.AddRequest((*tokens[:start], *rival, *[1] * tail)[: self._longest]))

    def _prompt(self, pieces: int, tail: int, turn: int, branch: int) -> tuple[int, ...]:
        whole = pieces % (self._longest // self._piece + 1) * self._piece
        ends = (0, 0, 1, -1, self._size, self._size // 2, self._size + 1)
        return self._tokens(min(max(1, whole + ends[tail % len(ends)]), self._longest), turn, branch)

    def _tokens(self, count: int, turn: int, branch: int) -> tuple[int, ...]:
        """Return a prompt that leaves the trunk after some pieces."""
        stem = min(count, turn % 4 * self._piece)
        longest = self._longest + _BEYOND[1]
        text = _text(self._piece, None, longest)[:stem] + _text(self._piece, branch, longest)[stem:count]
        return text if self._alphabet is _ALPHABETS[0] else tuple(self._alphabet[it - 1] for it in text)

    def _limit(self, limit: int) -> int | None:
        limits = (None, None, 1, self._size, self.model.chunk_size, 2 * self._size + 1, self._piece)
        return limits[limit]

    # -- steps ---------------------------------------------------------------------------------------------
    @act(weight=7, limit=_LIMIT, token=_TOKEN, times=(1, 4))
    def serve(self, limit: int, token: int, times: int) -> None:
        """Schedule a chunk for each waiting request, and run a step, some times over."""
        for _ in range(times):
            self._schedule(limit)
            self._step((self._alphabet[token], self._alphabet[(token + 1) % 3]), 1)

    @act(weight=2, needs="has_requests", pick=_PICK, limit=_LIMIT)
    def schedule_one(self, pick: int, limit: int) -> None:
        """Schedule a chunk for one waiting request."""
        waiting = self.model.of(WAITING)
        if waiting:
            self.ask(ops.ScheduleChunk(waiting[pick % len(waiting)].step, self._limit(limit)))

    @act(weight=2, needs="has_requests", token=_TOKEN, follow=(0, 1))
    def decode(self, token: int, follow: int) -> None:
        """Run enough steps to fill a small block, or let two requests decode separately in turn."""
        if follow:
            self._follow(token)
        else:
            self._step((self._alphabet[token],), 5)

    def _follow(self, token: int) -> None:
        """Let two requests decode alone in turn, with equally many blocks, the first of them shared."""
        count = min(self._piece + self._size, self._longest - 2)
        for request in [each for each in self.model.served.values() if each.region != PAUSED]:
            self._set_aside(request)
        for branch in (token, (token + 1) % 3):
            self._clear_room(self.model.blocks_for(count + 2))
            number = self._drafted(count, 2, branch, 1)
            if number in self.model.served:
                self._set_aside(self.model.served[number])
        self.observe()

    def _set_aside(self, request: ServedRequest) -> None:
        """Pause a request, or release it if paused requests would keep too many blocks."""
        if self.model.paused_with(request) > self.model.paused_limit or request.is_spoiled:
            self.do(ops.Release(request.step))
        else:
            self.do(ops.Pause(request.step))

    def _schedule(self, limit: int) -> None:
        for request in self.model.of(WAITING):
            self.do(ops.ScheduleChunk(request.step, self._limit(limit)))

    def _step(self, next_tokens: tuple[int, ...], times: int) -> None:
        for _ in range(times):
            self._spare_refusals()
            self._make_way(self.do(ops.RunStep(next_tokens)))
        self.observe()

    def _spare_refusals(self) -> None:
        """Release requests that have reached their full length, where a step with them is not refused."""
        for request in () if self.can_refuse else self._full():
            self.do(ops.Release(request.step))

    def _full(self) -> list[ServedRequest]:
        decoding = [each for each in self.model.of(DECODE) if len(each.blocks) == self.model.max_blocks]
        return [each for each in decoding if self.model.missing(each)]

    def _make_way(self, outcome: Outcome) -> None:
        """Release requests that a step has spoiled or could not include."""
        spoiled = [request for request in self.model.served.values() if request.is_spoiled]
        if spoiled:
            self.observe()
        if isinstance(outcome.result, Failed):
            spoiled = self._full() or [*self.model.served.values()][:1]
        for request in spoiled:
            self.do(ops.Release(request.step))

    # -- set aside, and out --------------------------------------------------------------------------------
    @act(weight=2, needs="has_requests", pick=_PICK)
    def pause(self, pick: int) -> None:
        """Pause one of the requests."""
        awake = [each for each in self.model.served.values() if each.region != PAUSED]
        if awake:
            self.ask(ops.Pause(awake[pick % len(awake)].step))

    @act(needs="has_requests", but=(0, 1))
    def pause_all(self, but: int) -> None:
        """Pause all requests or all but the oldest, youngest first, until they would keep too many blocks."""
        for request in [each for each in self.model.served.values() if each.region != PAUSED][but:][::-1]:
            self.do(ops.Pause(request.step))
        self.observe()

    @act(weight=2, needs="has_requests", pick=_PICK)
    def resume(self, pick: int) -> None:
        """Resume a paused request."""
        paused = self.model.of(PAUSED)
        if paused:
            self.ask(ops.Resume(paused[pick % len(paused)].step))

    # -- tails ---------------------------------------------------------------------------------------------
    @act(weight=3, needs="can_cut", pick=_PICK, back=_BACK, token=_TOKEN)
    def cut(self, pick: int, back: int, token: int) -> None:
        """Cut a few tokens, or as many as possible, from a request whose prompt is computed."""
        ready = [each for each in self.model.served.values() if each.computed >= each.prompt]
        if ready:
            request = ready[pick % len(ready)]
            ends = request.computed // self._size * self._size
            backs = (0, 1, 2, request.computed - ends, request.computed - ends + 1, request.computed)
            self._cut(request, request.computed - backs[back], token)
            self.observe()

    @act(
        weight=3,
        needs="can_draft",
        pieces=_PIECES,
        short=(0, 2),
        drafts=(1, 5),
        kept=(0, 3),
        token=_TOKEN,
        other=(0, 4),
    )
    def reject_drafts(self, pieces: int, short: int, drafts: int, kept: int, token: int, other: int) -> None:
        """Let a request compute drafts over a block's end, reject some, and add requests for those tokens.

        Another may ask for them before: it builds on the block that is cut and leaves, perhaps with a state
        there, or stays and has the blocks behind the cut, too.
        """
        is_shared, short = other > 2, max(short, min(other, 1))
        count = max(1, (1 + pieces % 2 * (self._longest >= 3 * self._piece)) * self._piece - short)
        drafts += self._size if is_shared and self._size <= 16 else 0  # a block behind the cut is whole, too
        self._clear_room(self.model.blocks_for(count + drafts) + 3)
        number = self._drafted(count, 1 + drafts, token, pieces)
        request = self.model.served.get(number)
        if request is None or request.region != DECODE:
            return
        rejected = tuple(request.tokens[: request.computed])
        if other:
            self._ask_for(rejected, longer=other % 2, is_staying=is_shared)
        if number in self.model.served and request.region == DECODE:
            is_whole = kept > 0 if is_shared else kept == 3  # cut at the block's end
            self._cut(request, request.prompt + (short if is_whole else kept % max(short, 1)), token + 1)
            self._step((self._alphabet[(token + 1) % 3],), 2)
            self.ask(ops.AddRequest(rejected))

    def _clear_room(self, blocks: int) -> None:
        """Release requests until so many blocks and two rows are free, or no request is left."""
        while self.model.served and (
            self.model.room() < blocks or len(self.model.served) > self.model.max_requests - 2
        ):
            self.do(ops.Release(next(iter(self.model.served))))

    def _drafted(self, count: int, steps: int, token: int, turn: int) -> int:
        """Add a request with a rare prompt, let it compute, and return its number."""
        number = self.examiner.next_step
        self.do(ops.AddRequest(self._tokens(count, turn, token)))
        for at in range(steps):
            self._step((self._alphabet[(token + at * turn) % 4],), 1)
        return number

    def _ask_for(self, tokens: tuple[int, ...], longer: int, is_staying: bool) -> None:
        """Let a request compute the whole blocks of some tokens, and perhaps a second one a longer prompt."""
        whole = tokens[: len(tokens) // self._size * self._size] + self._tokens(longer * self._size, 0, 1)
        if whole and len(whole) <= self._longest:
            number = self.examiner.next_step
            self.do(ops.AddRequest(whole))
            self._step((self._alphabet[0],), 1)
            if number in self.model.served and not is_staying:
                self.do(ops.Release(number))

    def _cut(self, request: ServedRequest, tokens: int, token: int) -> None:
        """Cut a request, unless others share the block at the cut and the cut is not refused."""
        tokens = min(max(tokens, request.prompt), request.computed)
        block = self.model.cut_block(request, tokens)
        if self.can_refuse or block is None or self.model.blocks.refs[block] == 1:
            self.do(ops.Truncate(request.step, tokens, self._alphabet[token % 3]))

    @act(needs="can_cut_badly", pick=_PICK, what=(0, 3))
    def cut_badly(self, pick: int, what: int) -> None:
        """Cut a request too far or not at all, or with an invalid token; or cut a released request."""
        request = self._picked(pick)
        step, tokens, token = (
            (request.step, request.prompt - 1, 1),
            (request.step, request.computed + 1, 1),
            (request.step, request.computed, -1),
            (min(self.model.gone, default=request.step), 1, 1),
        )[what]
        if not request.is_spoiled:
            self.ask(ops.Truncate(step, tokens, token))

    @act(weight=3, needs="has_requests", pick=_PICK)
    def release(self, pick: int) -> None:
        """Release a request from any region."""
        self.ask(ops.Release(self._picked(pick).step))

    # -- transfers -----------------------------------------------------------------------------------------
    @property
    def can_transfer(self) -> bool:
        """Whether a transfer can begin."""
        return "transfers" in self.capabilities and self.has_requests

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self.model.transfers)

    @property
    def has_ended(self) -> bool:
        """Whether any transfer has ended, and the adapter refuses a second end."""
        return self.can_refuse and bool(self.model.ended)

    @act(weight=2, needs="can_transfer", pick=_PICK, leaves=(0, 2))
    def transfer(self, pick: int, leaves: int) -> None:
        """Begin a transfer of a request's blocks; the request may be released at once."""
        request = self._picked(pick)
        self.ask(ops.TransferRequest(request.step))
        if not leaves:
            self.ask(ops.Release(request.step))

    @act(weight=2, needs="has_transfers", pick=_PICK)
    def end_transfer(self, pick: int) -> None:
        """End a transfer, whether or not its request has been released."""
        transfers = [*self.model.transfers]
        self.ask(ops.EndTransfer(transfers[pick % len(transfers)]))

    @act(needs="has_ended", pick=_PICK)
    def end_again(self, pick: int) -> None:
        """End a transfer that has already ended."""
        ended = [*self.model.ended]
        self.ask(ops.EndTransfer(ended[pick % len(ended)]))

    @act(rare=(0, 3))
    def reset(self, rare: int) -> None:
        """Reset the context, in some draws."""
        if not rare:
            self.ask(ops.Reset())

    def _picked(self, pick: int) -> ServedRequest:
        served = [*self.model.served.values()]
        return served[pick % len(served)]

    # -- what fails ----------------------------------------------------------------------------------------
    @act(weight=2, needs="can_fail", call=(0, 1), pieces=_PIECES, tail=_TAIL, branch=_BRANCH)
    def add_and_fail(self, call: int, pieces: int, tail: int, branch: int) -> None:
        """Add a request while the allocation of its blocks, or the copy of its state, fails (X2)."""
        self._fail(
            _FAULTS[call * 2 + branch % 2 * (1 - call)],
            1,
            ops.AddRequest(self._prompt(pieces, tail, 3, branch)),
        )

    @act(weight=4, needs="can_fail", call=(0, 1), pick=_PICK)
    def schedule_and_fail(self, call: int, pick: int) -> None:
        """Schedule a chunk while the allocation of its blocks fails (X2)."""
        if not self._lacking():
            self._add_aligned(pick, 1)
        waiting = self._lacking() or self.model.of(WAITING)
        if waiting:
            self._fail(_FAULTS[call], 1, ops.ScheduleChunk(waiting[pick % len(waiting)].step))

    def _lacking(self) -> list[ServedRequest]:
        """Return the waiting requests that need blocks for the rest of their prompts."""
        waiting = self.model.of(WAITING)
        return [each for each in waiting if self.model.blocks_for(each.prompt) > len(each.blocks)]

    @act(weight=3, needs="can_fail", call=(0, 5), nth=(1, 3), pieces=_PIECES)
    def step_and_fail(self, call: int, nth: int, pieces: int) -> None:
        """Run a step that fails at its beginning, in the forward pass, or in the commit (X2, C7)."""
        if call < 2:
            self._add_aligned(pieces, None)  # its first decode needs a block
        elif call < 5:
            self.do(ops.AddRequest(self._prompt(pieces, 0, 3, nth)))  # its prompt's end leaves a state
        self._schedule(0)
        self._spare_refusals()
        self._fail(_FAULTS[call], nth if call == 5 else 1, ops.RunStep())

    def _add_aligned(self, pieces: int, limit: int | None) -> None:
        """Add a request whose prompt ends with a block, and run one step."""
        self.do(ops.AddRequest(self._prompt(pieces % 3, 4, 3, 2), limit))
        self._step((1,), 1)

    def _fail(self, call: str, nth: int, operation: Operation) -> None:
        self.do(ops.Fault(call, nth))
        outcome = self.do(operation)
        self.observe()
        if isinstance(operation, ops.RunStep):
            self._make_way(outcome)

    # -- misuse --------------------------------------------------------------------------------------------
    @act(needs="can_refuse", beyond=_BEYOND, branch=_BRANCH)
    def add_too_long(self, beyond: int, branch: int) -> None:
        """Add a request that can never fit."""
        self.ask(ops.AddRequest(self._tokens(self._longest + beyond, 0, branch)))

    @act(needs="can_refuse", pick=_PICK, what=(0, 3))
    def misuse(self, pick: int, what: int) -> None:
        """Call an operation that the state of a request forbids, or release a released request."""
        served = self.model.served.values()
        kind, steps = (
            (ops.Release, sorted(self.model.gone)),
            (ops.ScheduleChunk, [each.step for each in served if each.region != WAITING]),
            (ops.Pause, [each.step for each in self.model.of(PAUSED)]),
            (ops.Resume, [each.step for each in served if each.region != PAUSED]),
        )[what]
        if steps:
            self.do(kind(steps[pick % len(steps)]))
        self.observe()

    # -- the end -------------------------------------------------------------------------------------------
    def end(self) -> None:
        """Release every request, after which the pool must be whole; in some runs check determinism."""
        for step in [*self.model.served]:
            self.do(ops.Release(step))
        for transfer in [*self.model.transfers]:
            self.do(ops.EndTransfer(transfer))
        self.observe()
        super().end()
