"""The model of a context's requests, blocks and states, by sections 8 and 9 of the specification."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pymllm.errors import ProgramError
from pymllm.history.config_limits import read_number
from pymllm.history.files import Config
from pymllm.oracle.models import read_policy
from pymllm.oracle.models.block_model import BlockModel, BlockSlotModel, Registration
from pymllm.oracle.models.cold_runs import ColdRuns, Prefix


@dataclass(frozen=True, slots=True, order=True)
class Leaving:
    """A state that a computed chunk leaves to be cached; instances sort in the order of C7."""

    is_inside: bool  # extracted inside a chunk; a state at the end of a prompt goes before
    negative_depth: int  # tokens before it, negated: the deepest goes first
    row: int
    block: int  # the one that ends there


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of a commit of states: the blocks that get a state, lose one, and get none."""

    new: tuple[int, ...]
    victims: tuple[int, ...]
    left_out: tuple[int, ...]


def priority(leaving: Sequence[Leaving]) -> list[int]:
    """Return the blocks of states in the order in which a commit keeps them, without repeats (C7)."""
    return list(dict.fromkeys(each.block for each in sorted(leaving)))


PAUSED, DECODE, PREFILL, WAITING = "paused", "decode", "prefill", "waiting"


@dataclass(slots=True, eq=False)
class ServedRequest:
    """A request that a context has admitted."""

    step: int  # that added it
    prompt: int
    tokens: list[int]  # the prompt, and what was sampled since
    prefixes: list[Prefix]  # of ``tokens``
    blocks: list[int]
    matched: int  # how many of its blocks it found in the cache
    skip: int  # tokens that a restored state stands for, until its first chunk is done
    chunk: int  # tokens of the scheduled chunk, with what is skipped
    region: str = PREFILL
    computed: int = 0  # tokens whose KV and state are there
    registered: int = field(init=False)  # whole blocks that were offered under their hash
    is_known: bool = True  # all of these are registered, these very blocks; never where nothing is kept
    rewritten: int = -1  # the block that lost its hash to a cut, until it gets another
    is_spoiled: bool = False
    """Whether a step with this request failed midway, so that it can only be released."""

    def __post_init__(self) -> None:
        self.registered = self.matched

    @property
    def start(self) -> int:
        """The first token that the next step computes."""
        return self.computed + self.skip

    @property
    def stop(self) -> int:
        """The end of the tokens that the next step computes: of a chunk, or a single token."""
        return self.computed + (self.chunk or 1)

    @property
    def resting_region(self) -> str:
        """The region of the batch in which the request stands between chunks."""
        return DECODE if self.computed >= self.prompt else WAITING

    @property
    def is_at_its_end(self) -> bool:
        """Whether the request samples a token after its next step."""
        return self.stop >= self.prompt

    def plan_chunk(self, limit: int | None) -> int:
        """Return the length of a chunk that computes at most ``limit`` tokens, plus the skipped tokens."""
        left = self.prompt - self.start
        return self.skip + (left if limit is None else min(limit, left))


@dataclass(frozen=True, slots=True)
class Offer:
    """The whole computed blocks that a request offers for registration (C3)."""

    request: ServedRequest
    made: list[Registration]
    prefixes: list[Prefix]  # of these blocks
    is_known: bool  # as of `ServedRequest`, from then on


class RequestModel:
    """The model of a context: live requests, their blocks and states, and cold runs.

    Of the configuration it reads ``max_requests``, ``num_blocks`` (the dummy included), ``max_blocks`` (of a
    request), ``block_size``, ``chunk_size``, ``mamba_slots``, ``layers``, ``conv_width`` and ``ssm_width``
    (elements of one layer), ``policy``, ``paused_limit``, ``hash_digits`` (how many hexadecimal digits a weak
    hash keeps; ``None`` for all), ``caching`` (``False`` where nothing is kept for later requests).

    Whoever has a block has every block before it, so none without references has a referenced one below.
    """

    def __init__(self, config: Config) -> None:
        self.max_requests = read_number(config, "max_requests")
        self.max_blocks = read_number(config, "max_blocks")
        self.block_size = read_number(config, "block_size")
        self.chunk_size = read_number(config, "chunk_size")
        self.paused_limit = read_number(config, "paused_limit", 0)
        self.layers = read_number(config, "layers", 0)
        widths = [
            self.layers * read_number(config, key) if self.layers else 0
            for key in ("conv_width", "ssm_width")
        ]
        digits = config.get("hash_digits")
        if digits is not None and (type(digits) is not int or not 1 <= digits <= 16):
            raise ProgramError(f"the configuration's hash_digits is {digits!r}; it must be 1 to 16, or none")
        self.cold = ColdRuns(self.block_size, widths[0], widths[1], digits)
        is_caching = config.get("caching") is not False
        self.blocks = BlockModel(read_number(config, "num_blocks", 2) - 1, read_policy(config), is_caching)
        self.slots = BlockSlotModel(read_number(config, "mamba_slots", 0) if self.layers else 0, self.blocks)
        self.prefix_of: dict[int, Prefix] = {}  # what each registered block holds
        self.gone: set[int] = set()  # steps whose requests were released
        self.served: dict[int, ServedRequest] = {}
        self.transfers: dict[int, list[int]] = {}  # blocks of those under way, by the step that began each
        self.ended: dict[int, None] = {}  # the steps that began the others
        # blocks of the last request that decoded alone, unless several did since
        self.lone: Sequence[int] = ()
        self.clear()

    def clear(self) -> None:
        """Forget everything except which requests have existed."""
        self.gone.update(self.served)
        self.ended |= dict.fromkeys(self.transfers)
        self.transfers = {}
        self.served.clear()
        self.blocks.reset()
        self.slots.reset()

    @property
    def dummy(self) -> int:
        """The block that receives writes which need not be kept."""
        return self.blocks.usable

    @property
    def has_states(self) -> bool:
        """Whether the context can cache states with blocks."""
        return self.slots.total > 0

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for so many tokens."""
        return -(-tokens // self.block_size)

    def of(self, region: str) -> list[ServedRequest]:
        """Return the requests in a region, oldest first."""
        return [request for request in self.served.values() if request.region == region]

    def rows(self) -> dict[str, range]:
        """Return the range of rows of each region's requests."""
        rows, first = {}, 0
        regions = [request.region for request in self.served.values()]
        for region in (PAUSED, DECODE, PREFILL, WAITING):
            rows[region] = range(first, first + regions.count(region))
            first = rows[region].stop
        return rows

    def sizes(self) -> dict[str, int]:
        """Return every count of blocks, slots and requests."""
        regions = [request.region for request in self.served.values()]
        sizes = {
            "pool_avail": len(self.blocks.free),
            "evictable_blocks": sum([not self.blocks.refs[block] for block in self.blocks.hash_of]),
            "request_count": len(self.served),
            "paused_request_count": regions.count(PAUSED),
            "decode_req_count": regions.count(DECODE),
            "prefill_req_count": regions.count(PREFILL),
        }
        return sizes | ({"free_count": self.slots.free_count} if self.slots.total else {})

    # -- requests in and out -------------------------------------------------------------------------------

    def meet(self, step: int, tokens: Sequence[int], limit: int | None) -> ServedRequest:
        """Return a request as the context would admit it now, without new blocks; the model is unchanged."""
        prefixes: list[Prefix] = []
        self.cold.extend(prefixes, tokens)
        hit = self._find(prefixes)
        skip = self._skip(hit, len(tokens))
        request = ServedRequest(step, len(tokens), [*tokens], prefixes, hit, len(hit), skip, 0)
        request.chunk, request.is_known = request.plan_chunk(limit), self.blocks.is_caching
        return request

    def _find(self, prefixes: Sequence[Prefix]) -> list[int]:
        """Return the longest registered chain of blocks that holds exactly these prefixes (C3)."""
        found: list[int] = []
        for prefix in prefixes:
            block = self.blocks.block_of.get(prefix.hash)
            if block is None or self.prefix_of[block] is not prefix:  # whose parent is the one found before
                break
            found.append(block)
        return found

    def _skip(self, hit: Sequence[int], prompt: int) -> int:
        """Return how many tokens of a hit need not be computed: up to a state, and never the last (E4)."""
        most = min(len(hit), (prompt - 1) // self.block_size)
        usable = (n for n in range(most, 0, -1) if not self.layers or hit[n - 1] in self.slots.slot_of)
        return next(usable, 0) * self.block_size

    def missing(self, request: ServedRequest) -> int:
        """Return the number of blocks that a request lacks for its next step."""
        return max(0, self.blocks_for(request.stop) - len(request.blocks))

    def evict(self, victims: Sequence[int]) -> None:
        """Remove evicted blocks, with their states."""
        self.blocks.drop(victims)
        self.slots.drop(victims)

    def room(self, keep: Collection[int] = ()) -> int:
        """Return the number of blocks that are free or may be evicted, while some are kept."""
        held = {block for block, count in self.blocks.refs.items() if count}
        return self.blocks.usable - len(held.union(keep))

    def extend(self, request: ServedRequest, blocks: Sequence[int]) -> None:
        """Give a request new blocks."""
        self.blocks.take(blocks)
        request.blocks.extend(blocks)

    def release(self, request: ServedRequest) -> None:
        """Remove a request and release its blocks."""
        del self.served[request.step]
        self.gone.add(request.step)
        self.blocks.clock += 1
        self.blocks.stamp(request.blocks)
        self.slots.drop(self.blocks.release(request.blocks))

    def cut_block(self, request: ServedRequest, tokens: int) -> int | None:
        """Return the block that a cut would leave partly filled and that is then rewritten."""
        return request.blocks[tokens // self.block_size] if tokens % self.block_size else None

    def lost_with_tail(self, request: ServedRequest, tokens: int) -> list[int]:
        """Return the blocks that are deregistered or become free when a request is cut (C1, C3)."""
        lost = self.blocks.lost_with(request.blocks[self.blocks_for(tokens) :])
        block = self.cut_block(request, tokens)
        if block in self.blocks.hash_of:
            lost += self.blocks.subtree(block)
        return [*dict.fromkeys(lost)]

    def cut(self, request: ServedRequest, tokens: int, next_token: int, lost: Sequence[int]) -> None:
        """Cut a request to so many tokens, and append another token."""
        block, whole = self.cut_block(request, tokens), tokens // self.block_size
        tail = request.blocks[self.blocks_for(tokens) :]
        del request.tokens[tokens:], request.prefixes[whole:], request.blocks[self.blocks_for(tokens) :]
        request.tokens.append(next_token)
        self.cold.extend(request.prefixes, request.tokens)
        request.computed, request.registered = tokens, min(request.registered, whole)
        request.rewritten = block if block is not None and block in lost else -1
        self.blocks.clock += 1
        self.blocks.stamp(tail)
        self.blocks.release(tail)
        self.evict([each for each in lost if each in self.blocks.hash_of])
        self.slots.drop(lost)
        known = self.blocks.is_caching and (not whole or request.blocks[whole - 1] in self.blocks.hash_of)
        request.is_known = known

    def begin_transfer(self, step: int, blocks: Sequence[int]) -> None:
        """Add a reference of the transfer to the request's blocks."""
        self.transfers[step] = [*blocks]
        self.blocks.transfers.update(blocks)
        self.blocks.retain(blocks)

    def end_transfer(self, step: int) -> None:
        """Remove the references of a transfer."""
        blocks = self.transfers.pop(step)
        self.ended[step] = None
        self.blocks.transfers.subtract(blocks)
        self.slots.drop(self.blocks.release(blocks))

    def paused_with(self, request: ServedRequest) -> int:
        """Return the number of blocks that paused requests would keep if this request were paused, too."""
        return len({block for each in (*self.of(PAUSED), request) for block in each.blocks})

    # -- steps ---------------------------------------------------------------------------------------------

    def offsets(self, request: ServedRequest) -> tuple[int, ...]:
        """Return the offsets in its chunk at which the states of a request are extracted (C8)."""
        size, start, stop = self.block_size, request.start, request.stop
        ends = {request.matched, request.prompt // size, self.blocks_for(stop) - 1}
        inside = (end * size for end in ends if start < end * size < stop)
        return tuple(sorted(end - start for end in inside if (end - start) % self.chunk_size == 0))

    def plan_registration(
        self, rows: Iterable[tuple[ServedRequest, Sequence[int]]], evicted: Iterable[int] = ()
    ) -> list[Offer]:
        """Work out which blocks are registered by requests that have computed their next tokens (C3).

        Blocks that are evicted meanwhile have lost their hashes before.
        """
        offers: list[Offer] = []
        gone = {self.blocks.hash_of[block] for block in evicted}
        taken: set[int] = set()
        for request, row in rows:
            made, is_known = [], request.is_known
            stop = request.stop // self.block_size
            prefixes = request.prefixes[request.registered : stop]
            for place, prefix in enumerate(prefixes, request.registered):
                is_free = prefix.hash not in self.blocks.block_of or prefix.hash in gone
                is_known = is_known and is_free and prefix.hash not in taken
                if not is_known:
                    break
                taken.add(prefix.hash)
                made.append(Registration(row[place], prefix.hash, row[place - 1] if place else None, ""))
            offers.append(Offer(request, made, prefixes[: len(made)], is_known))
        return offers

    def register(self, offers: Iterable[Offer]) -> None:
        """Register blocks; a block whose hash is taken stays unregistered, like all blocks behind it."""
        for offer in offers:
            request = offer.request
            # Less than it shares, while it computes that again.
            request.registered = max(request.registered, request.stop // self.block_size)
            request.is_known = offer.is_known
            self.blocks.register(offer.made)
            self.prefix_of.update(zip([one.block for one in offer.made], offer.prefixes, strict=True))

    def leaving(self, request: ServedRequest, row: int, blocks: Sequence[int]) -> list[Leaving]:
        """Return the states that a request's next step leaves to be cached (C8)."""
        if not request.chunk:
            return []
        size = self.block_size
        depths = [request.start + offset for offset in self.offsets(request)]
        leaving = [Leaving(True, -depth, row, blocks[depth // size - 1]) for depth in depths]
        if request.is_at_its_end and not request.prompt % size:
            leaving.append(Leaving(False, -request.prompt, row, blocks[request.prompt // size - 1]))
        return leaving

    def plan_commit(self, wanted: Sequence[int], evicted: Collection[int] = ()) -> Kept:
        """Work out which referenced blocks get a state, by priority, and which blocks lose one (C6).

        Blocks that are evicted meanwhile have lost theirs before.
        """
        missing = self.slots.newcomers(wanted)
        free = self.slots.free_count + sum([block in self.slots.slot_of for block in evicted])
        evictable = self.slots.victims(evicted) if len(missing) > free else []
        new = missing[: free + len(evictable)]
        victims = evictable[: max(0, len(new) - free)]
        return Kept(tuple(new), tuple(victims), tuple(missing[len(new) :]))

    def finish_step(self, request: ServedRequest, token: int) -> None:
        """Advance a request past the computed tokens; ``token`` is appended if the request samples."""
        is_sampled = request.is_at_its_end
        request.computed, request.skip, request.chunk = request.stop, 0, 0
        if is_sampled:
            request.tokens.append(token)
            self.cold.extend(request.prefixes, request.tokens)
        request.region = request.resting_region
