"""T5: slots given back and taken in a large pool in use; T7: slots for states of blocks, and their copies."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from peers.benchmarks.contender import SlotPeer, StateCopyPeer, StateSlotPeer
from peers.benchmarks.scenario import Clock, Contest, Limit, Scenario

SIZE = 1 << 20
OF_A_STACK = "a stack hands out what came last, and needs neither the age of a page nor to go around an end"
AN_OBJECT = "vLLM hands out a Python object that it has, and ours a tensor, which has to be made"
BLOCK_IDS = "ours and sglang's write down every slot of a page, vLLM and Megatron the page's number"
SEED = 5


class FreeAndAlloc(Contest):
    """T5: a quarter of the pool is held, the rest was freed in random order; one piece goes, one comes."""

    def __init__(self, peer: type[SlotPeer], clock: Clock, scale: float, piece: int, page_size: int) -> None:
        super().__init__(clock)
        entry = page_size if peer.HANDS_OUT == "blocks" else 1
        size, piece = int(SIZE * scale) // entry, piece // entry
        self.draw = random.Random(SEED)
        self.piece = piece
        self.pool = pool = peer(size, page_size)
        pieces = pool.split(pool.alloc(size), piece, self.draw.sample(range(size // piece), size // piece))
        held = len(pieces) // 4
        self.held = pieces[:held]
        # Many to a call, or building takes peers minutes: the order on the free list is the same.
        step = max(1, 4096 // (piece * entry))
        for at in range(held, len(pieces), step):
            part = pieces[at : at + step]
            pool.free(joined(part))
        self.size = size

    def sample(self) -> float:
        place = self.draw.randrange(len(self.held))
        pool, piece = self.pool, self.held[place]
        begun = self.now()
        pool.free(piece)
        taken_piece = pool.alloc(self.piece)
        taken = self.now() - begun
        self.held[place] = taken_piece
        return taken / 1e3

    def holds(self) -> bool:
        numbers = np.sort(np.concatenate([self.pool.numbers(piece) for piece in self.held]))
        apart = bool((np.diff(numbers) > 0).all())
        return apart and self.pool.available() == self.size - numbers.size


def joined(pieces: list[Any]) -> Any:
    """Join pieces, which are tensors or lists."""
    if isinstance(pieces[0], torch.Tensor):
        return torch.cat(pieces)
    return [block for piece in pieces for block in piece]


def two_copies(clock: Clock, scale: float, piece: int) -> Contest:
    """Write a piece to a stack, and read another."""
    stack, numbers = np.zeros(SIZE, dtype=np.int64), np.arange(piece)

    def work() -> object:
        stack[1000 : 1000 + piece] = numbers
        return stack[1000 : 1000 + piece].copy()

    return Limit(clock, work)


BLOCKS, SLOTS = 16_384, 4_096


class StateSlots(Contest):
    """T7: a batch of blocks gets slots, or loses them; ``act`` says which is timed."""

    def __init__(self, peer: type[StateSlotPeer], clock: Clock, scale: float, batch: int, act: str) -> None:
        super().__init__(clock)
        self.draw = random.Random(7)
        self.numbers = np.random.default_rng(7)
        self.batch, self.act = batch, act
        self.pool = peer(BLOCKS, SLOTS, self.draw.sample(range(BLOCKS), BLOCKS))
        if act == "evict":
            self.pool.allocate(self.draw.sample(range(BLOCKS), SLOTS))

    def sample(self) -> float:
        pool = self.pool
        if self.act == "evict":
            # With NumPy, so that choosing leaves the processor's caches as a server would.
            chosen = self.numbers.choice(pool.without_slot(), self.batch, replace=False, shuffle=False)
            blocks = chosen.tolist()
        else:
            blocks = self.draw.sample(range(BLOCKS), self.batch)
        if self.act == "invalidate":
            pool.allocate(blocks)
        call = pool.invalidate if self.act == "invalidate" else pool.allocate
        begun = self.now()
        call(blocks)
        taken = self.now() - begun
        if self.act == "allocate":
            assert pool.free_count() == SLOTS - self.batch
            pool.invalidate(blocks)
        assert pool.free_count() == (0 if self.act == "evict" else SLOTS)
        return taken / 1e3


def two_scatters(clock: Clock, scale: float, batch: int) -> Contest:
    """Write a batch of numbers into two tables of blocks."""
    tables = np.zeros(BLOCKS, dtype=np.int32), np.zeros(SLOTS, dtype=np.int32)
    blocks = random.Random(7).sample(range(BLOCKS), batch)

    def work() -> None:
        numbers = np.array(blocks)
        tables[0][numbers] = 1
        tables[1][numbers % SLOTS] = numbers

    return Limit(clock, work)


ROWS = 1_024


class StateCopies(Contest):
    """T7: states go into slots, from the output of a step (commit) or from live requests (store)."""

    def __init__(self, peer: type[StateCopyPeer], clock: Clock, scale: float, batch: int, act: str) -> None:
        super().__init__(clock)
        self.draw = random.Random(7)
        self.batch, self.act = batch, act
        self.pool = peer(ROWS)
        self.last: tuple[list[int], list[int]] = [], []

    def sample(self) -> float:
        self.last = rows, slots = [self.draw.sample(range(ROWS), self.batch) for _ in range(2)]
        pool = self.pool.slots
        begun = self.now()
        if self.act == "commit":
            pool._copy_intermediate_to_cache(rows, slots)
        else:
            pool.store_from_live_batch(slots, rows)
        return (self.now() - begun) / 1e3

    def holds(self) -> bool:
        rows, slots = self.last
        sources = self.pool.output
        if self.act == "store":
            sources, rows = self.pool.live, [ROWS - 1 - row for row in rows]
        pairs = zip(self.pool.cached, sources, strict=True)
        return all(torch.equal(cached[:, slots], source[:, rows]) for cached, source in pairs)


def four_calls(clock: Clock, scale: float, batch: int) -> Contest:
    """Gather and write the rows of both buffers by torch, with indices that are tensors already."""
    made = StateCopyPeer
    buffers = [
        (
            torch.zeros(made.LAYERS, ROWS, *shape, dtype=dtype),
            torch.zeros(made.LAYERS, ROWS, *shape, dtype=dtype),
        )
        for shape, dtype in ((made.CONV, torch.bfloat16), (made.SSM, torch.float32))
    ]
    draw = random.Random(7)
    read, write = (torch.tensor(draw.sample(range(ROWS), batch)) for _ in range(2))

    def work() -> None:
        for source, target in buffers:
            target.index_copy_(1, write, source.index_select(1, read))

    return Limit(clock, work)


def scenarios() -> Iterator[Scenario]:
    for piece, page_size, target, accepted, because in (
        (1, 1, 8.0, 2.4, AN_OBJECT),
        (128, 1, 10.0, 1.2, OF_A_STACK),
        (4096, 1, 40.0, 1.2, OF_A_STACK),
        (16, 16, 8.0, 3.2, BLOCK_IDS),
        (4096, 16, 60.0, 5.0, BLOCK_IDS),
        (64, 64, 10.0, 4.2, BLOCK_IDS),
        (4096, 64, 60.0, 5.2, BLOCK_IDS),
    ):
        paged = page_size > 1
        blocks = f" in pages of {page_size} (vLLM, Megatron: {piece // page_size:,} block ids)"
        yield Scenario(
            id=f"T5-{piece}{f'-p{page_size}' * paged}",
            title=f"free and alloc of {piece:,} slots{blocks * paged}, 1,048,576 in use",
            unit="us",
            statistic="mean",
            target=target,
            limit_of="one copy in, one copy out",
            kind="slots",
            contest=functools.partial(FreeAndAlloc, piece=piece, page_size=page_size),
            limit=functools.partial(two_copies, piece=piece),
            accepted=accepted,
            because=because,
            rounds=5000,
            burst=50,
            seconds=3.0,
        )
    tables = ("states", StateSlots, two_scatters, "two writes of the batch into tables")
    copies = ("state-copies", StateCopies, four_calls, "torch's four calls, indices being there")
    for act, title, targets, (kind, contest, limit, limit_of) in (
        ("allocate", "a slot for each of {:,} blocks", (10.0, 30.0, 250.0), tables),
        ("invalidate", "the slots of {:,} blocks back", (10.0, 20.0, 60.0), tables),
        ("evict", "a slot for each of {:,} blocks, none being free", (40.0, 80.0, 300.0), tables),
        ("commit", "states of the output into {:,} slots", (15.0, 400.0, 25_000.0), copies),
        ("store", "live states of requests into {:,} slots", (30.0, 400.0, 25_000.0), copies),
    ):
        for batch, target in zip((1, 64, 1024), targets, strict=True):
            yield Scenario(
                id=f"T7-{act}-{batch}",
                title=title.format(batch),
                unit="us",
                statistic="median",
                target=target,
                limit_of=limit_of,
                kind=kind,
                contest=functools.partial(contest, batch=batch, act=act),
                limit=functools.partial(limit, batch=batch),
                rounds=300,
                burst=10,
                seconds=2.0,
            )
