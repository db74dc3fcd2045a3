"""A prefix cache of dicts alone, and ours beside it."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from pymllm.adapters.base import BaseAdapter
from pymllm.errors import LockError, OwnershipError, ProgramError, StaleNodeError
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.operations import Key
from pymllm.history.outcomes import (
    Done,
    Effect,
    Evicted,
    Hashes,
    Inserted,
    Locked,
    Matched,
    NoRoom,
    Result,
    Slots,
)
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.prefix import PrefixMachine
from pymllm.oracle.laws import laws_of


@dataclass(eq=False)
class Block:
    """One page of KV and what hangs below it."""

    id: int
    above: Block | None
    name: object
    slots: list[int] = field(default_factory=list)
    alive: bool = True
    used: int = 0
    holds: int = 0
    window_holds: int = 0
    below: dict[object, Block] = field(default_factory=dict)
    gone: bool = False

    def path(self) -> list[Block]:
        """Return the blocks from the first one down to this; the root is none of them."""
        path: list[Block] = []
        block = self
        while block.above is not None:
            path.insert(0, block)
            block = block.above
        return path


class DictCache(BaseAdapter):
    """Evicts page by page, the least recent first."""

    KIND: ClassVar[str] = "prefix"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": size, "window": window, "pool": pool, "slots": 24 * scale, "swa_slots": 18 * scale}
        for size, scale in ((1, 1), (2, 2))
        for window in (None, 3)
        for pool in ("none", "token", "swa")
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.size, self.window = int(config["page_size"] or 0), config["window"]
        self.pool = config["pool"]
        self.free = [*range(1, int(config["slots"] or 0) // self.size + 1)]
        self.swa_free = [*range(1, int(config["swa_slots"] or 0) // self.size + 1)]
        self.halves: dict[int, int] = {}
        self.clock = self.ids = 0
        self.root = Block(0, None, None)
        self.given: dict[int, Block] = {}
        self.held: dict[int, tuple[Block, int | None]] = {}
        self.open: list[tuple[Block, int | None]] = []

    def claim(self) -> frozenset[str]:
        """Claim what a flat cache can know; there are no nodes to show."""
        claims = {*ops.DIMENSIONS, "bigrams", "hashes", "digests", "refusals", "callbacks", "node_ids"}
        claims |= self.order()
        claims |= {"pool"} if self.config["pool"] != "none" else set()
        windowed = {"swa", "exact_windows", "hold_tokens"}
        return frozenset(claims | (windowed if self.config["window"] is not None else set()))

    def order(self) -> set[str]:
        """Return what is claimed about the order of evictions."""
        return {"exact_lru"}

    def age(self, block: Block) -> tuple[int, int]:
        """Return what evictions go by, the smallest first."""
        return block.used, len(block.path())

    def sizes(self) -> dict[str, int]:
        """Count everything again."""
        blocks = self.blocks()
        locked = sum(self.size for block in blocks if block.holds)
        sizes = {"total_size": self.size * len(blocks), "protected_size": locked}
        sizes["evictable_size"] = sizes["total_size"] - locked
        windows = [block for block in blocks if block.alive and self.window is not None]
        sizes["swa_protected_size"] = sum(self.size for block in windows if block.window_holds)
        sizes["swa_evictable_size"] = self.size * len(windows) - sizes["swa_protected_size"]
        if self.pool == "token":
            sizes["available_size"] = self.size * len(self.free)
        elif self.pool == "swa":
            full, swa = self.size * len(self.free), self.size * len(self.swa_free)
            sizes |= {"available_size": min(full, swa), "full_available_size": full}
            sizes["swa_available_size"] = swa
        return sizes

    def blocks(self) -> list[Block]:
        """Return every block, parents first."""
        found = [self.root]
        for block in found:
            found += block.below.values()
        return found[1:]

    # -- pool ----------------------------------------------------------------------------------------------
    def do_alloc(self, step: int, operation: ops.Alloc) -> Result:
        """Hand out whole pages."""
        count = -(-operation.tokens // self.size)
        if count > len(self.free) or (self.pool == "swa" and count > len(self.swa_free)):
            return NoRoom()
        pages = [self.free.pop(0) for _ in range(count)]
        if self.pool == "swa":
            self.halves.update((page, self.swa_free.pop()) for page in pages)
        slots = [page * self.size + at for page in pages for at in range(self.size)][: operation.tokens]
        return Slots(tuple(slots), tuple(self.half(slot) for slot in slots if self.pool == "swa"))

    def half(self, slot: int) -> int:
        """Return the SWA slot behind a slot, 0 for none."""
        page = self.halves.get(slot // self.size)
        return 0 if page is None else page * self.size + slot % self.size

    def pages(self, slots: Sequence[int]) -> list[int]:
        """Return each page once."""
        return list(dict.fromkeys(slot // self.size for slot in slots))

    def do_free(self, step: int, operation: ops.Free) -> Result:
        """Take pages back from the caller."""
        self.take_back(self.numbers(operation.slots))
        return Done()

    def take_back(self, slots: Sequence[int]) -> None:
        self.take_halves(slots)
        self.free += self.pages(slots) if self.pool != "none" else []

    def do_free_swa(self, step: int, operation: ops.FreeSWA) -> Result:
        """Take halves back from the caller."""
        self.take_halves(self.numbers(operation.slots))
        return Done()

    def take_halves(self, slots: Sequence[int]) -> None:
        self.swa_free += [self.halves.pop(page) for page in self.pages(slots) if page in self.halves]

    def do_read_halves(self, step: int, operation: ops.ReadHalves) -> Result:
        """Translate slots."""
        return Slots((), tuple(self.half(slot) for slot in self.numbers(operation.slots)))

    # -- match and insert ----------------------------------------------------------------------------------
    def names(self, key: Key) -> list[object]:
        """Name each whole page within its parent; the first one also by its namespace."""
        tokens, size = key.tokens, self.size
        pages: list[object] = [tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size)]
        return [(repr(key.extra_key), pages[0]), *pages[1:]] if pages else []

    def find(self, key: Key) -> list[Block]:
        found, block = [], self.root
        for name in self.names(key):
            if name not in block.below:
                break
            block = block.below[name]
            found.append(block)
        return found

    def usable(self, alive: Sequence[bool]) -> bool:
        """Tell whether the last window is alive, or everything."""
        if not isinstance(self.window, int):
            return True
        needed = min(len(alive), -(-self.window // self.size))
        return all(alive[len(alive) - needed :])

    def use(self, blocks: Sequence[Block]) -> None:
        self.clock += 1
        for block in blocks:
            block.used = self.clock

    def do_match(self, step: int, operation: ops.Match) -> Result:
        """Find the longest usable prefix."""
        found = self.find(operation.key)
        while not self.usable([block.alive for block in found]):
            found.pop()
        self.use(found)
        self.given[step] = found[-1] if found else self.root
        slots = tuple(slot for block in found for slot in block.slots)
        return Matched(slots, len(slots), len(slots))

    def do_insert(self, step: int, operation: ops.Insert) -> Result:
        """Cache a key, page by page."""
        key, size = operation.key, self.size
        found, names, slots = self.find(key), self.names(key), self.read_slots(operation)
        first = max(operation.prev_prefix_len, operation.swa_evicted_seqlen) if self.window else 0
        dead_until = operation.swa_evicted_seqlen if self.window else 0
        self.check_bounds(operation, len(found) * size)
        pages = [slots[at * size : (at + 1) * size] for at in range(len(names))]
        revived = [
            (block, pages[at])
            for at, block in enumerate(found)
            if not block.alive and at * size >= first and block.slots != pages[at]
            if not block.holds or self.pool == "swa"
        ]
        raised = {block for block, _ in revived}
        life = [block.alive or block in raised for block in found]
        life += [at * size >= dead_until for at in range(len(found), len(names))]
        if not self.usable(life):
            return self.refuse(step, found)
        self.check_halves(revived, [*zip(pages, life, strict=True)][len(found) :])
        adopted = [at for at, block in enumerate(found) if block in raised and not block.holds]
        for block, page in revived:
            self.revive(block, page)
        self.given[step] = self.grow(found, names, pages, life)
        adopted += range(len(found), len(names))
        return Inserted(len(found) * size, ranges(adopted, size), len(names) * size)

    def read_slots(self, operation: ops.Insert) -> list[int]:
        if operation.slots is None:
            plain = [token for token in operation.key.tokens if isinstance(token, int)]
            if self.pool != "none" or len(plain) != len(operation.key.tokens):
                raise ValueError("no slots")
            return plain
        slots = self.numbers(operation.slots)
        whole = len(slots) // self.size * self.size
        starts = [slot - at % self.size for at, slot in enumerate(slots[:whole])]
        aligned = all(
            start % self.size == 0 and start == starts[at - at % self.size] for at, start in enumerate(starts)
        )
        if len(slots) != len(operation.key.tokens) or (self.pool != "none" and not aligned):
            raise ValueError("slots do not fit the key")
        return slots

    def check_bounds(self, operation: ops.Insert, cached: int) -> None:
        length, low, dead = len(operation.key.tokens), operation.prev_prefix_len, operation.swa_evicted_seqlen
        fits = 0 <= low <= length and 0 <= dead <= length
        if self.window:
            fits = fits and low - low % self.size <= cached and dead % self.size == 0
        if not fits:
            raise ValueError("a bound does not fit")

    def check_halves(
        self, revived: Sequence[tuple[Block, list[int]]], new: Sequence[tuple[list[int], bool]]
    ) -> None:
        wanted = [(page, True) for _, page in revived] + [*new]
        if (
            self.window
            and self.pool == "swa"
            and any(bool(self.half(page[0])) != life for page, life in wanted)
        ):
            raise OwnershipError("halves")

    def refuse(self, step: int, found: list[Block]) -> Result:
        usable = [*found]
        while not self.usable([block.alive for block in usable]):
            usable.pop()
        self.given[step] = usable[-1] if usable else self.root
        return Inserted(len(found) * self.size, (), len(usable) * self.size)

    def revive(self, block: Block, page: list[int]) -> None:
        block.alive = True
        if block.holds:
            self.effects.append(Effect("move_swa", tuple(page), tuple(block.slots)))
            self.halves[block.slots[0] // self.size] = self.halves.pop(page[0] // self.size)
            return
        if self.pool != "none":
            self.effects.append(Effect("free", tuple(block.slots)))
            self.take_back(block.slots)
        block.slots = page

    def grow(
        self, found: list[Block], names: list[object], pages: list[list[int]], life: list[bool]
    ) -> Block:
        path, block = [*found], found[-1] if found else self.root
        for at in range(len(found), len(names)):
            self.ids += 1
            block.below[names[at]] = Block(self.ids, block, names[at], pages[at], life[at])
            block = block.below[names[at]]
            path.append(block)
        if path:
            self.use(path)
        return block

    # -- evict and reset -----------------------------------------------------------------------------------
    def do_evict(self, step: int, operation: ops.Evict) -> Result:
        """Take the oldest page that may go, one after the other."""
        full, swa, gone = 0, 0, []
        while full < operation.tokens:
            leaves = [block for block in self.blocks() if not block.below and not block.holds]
            if not leaves:
                break
            taken = self.drop(min(leaves, key=self.age))
            full += len(taken) * self.size
            swa += sum(self.size for block in taken if block.alive)
            gone += taken
        while self.window and swa < operation.secondary:
            alive = [block for block in self.blocks() if block.alive and not block.window_holds]
            if not alive:
                break
            victim = min(alive, key=self.age)
            swa += self.size
            if victim.below:
                victim.alive = False
                self.give_halves(victim)
            else:
                taken = self.drop(victim)
                full += len(taken) * self.size
                gone += taken
        self.effects += [Effect("callback", node=block.id, sizes=self.sizes()) for block in gone]
        return Evicted(full, swa if self.window else 0)

    def give_halves(self, block: Block) -> None:
        if self.pool == "swa":
            self.effects.append(Effect("free_swa", tuple(block.slots)))
            self.take_halves(block.slots)

    def drop(self, block: Block) -> list[Block]:
        """Take a leaf out, and every block above that is then left as a dead leaf."""
        taken = [block]
        while block.above is not None:
            above = block.above
            del above.below[block.name]
            block.gone = True
            if above is self.root or above.alive or above.below or above.holds:
                break
            taken.append(above)
            block = above
        for each in taken:
            if self.pool != "none":
                self.effects.append(Effect("free", tuple(each.slots)))
                self.take_back(each.slots)
        return taken

    def do_reset(self, step: int, operation: ops.Reset) -> Result:
        """Drop everything."""
        for block in self.blocks():
            block.gone = True
            if self.pool != "none":
                self.effects.append(Effect("free", tuple(block.slots)))
                self.take_back(block.slots)
        self.root.below.clear()
        self.open.clear()
        return Done()

    # -- holds and hashes ----------------------------------------------------------------------------------
    def block_of(self, step: int) -> Block:
        """Return the block that a step returned or held."""
        found = self.given.get(step) or self.held.get(step, (None,))[0]
        if found is None:
            raise ProgramError(f"step {step} gave no block")
        if found.gone:
            raise StaleNodeError("it is gone")
        return found

    def window_of(self, path: Sequence[Block]) -> Sequence[Block]:
        pages = (self.window + self.size - 1) // self.size if isinstance(self.window, int) else 0
        return path[max(0, len(path) - pages) :] if pages else []

    def do_lock(self, step: int, operation: ops.Lock) -> Result:
        """Count a hold along the path, and along its window."""
        block = self.block_of(operation.of)
        path = block.path()
        if not self.usable([each.alive for each in path]):
            raise ValueError("a dead window")
        covered = self.window_of(path)
        token = covered[0].id if covered and covered[0] is not path[0] else None
        self.held[step] = block, token
        if path:
            self.open.append((block, token))
        self.count(path, covered, 1)
        return Locked(token)

    def count(self, path: Sequence[Block], covered: Sequence[Block], by: int) -> None:
        for block in path:
            block.holds += by
        for block in covered:
            block.window_holds += by

    def do_unlock(self, step: int, operation: ops.Unlock) -> Result:
        """Count a hold out."""
        block = self.block_of(operation.lock if operation.at is None else operation.at)
        token = self.held[operation.lock if operation.token is None else operation.token or operation.lock][1]
        token = None if operation.token == 0 or not self.window else token
        if block is self.root:
            return Done()
        if (block, token) not in self.open:
            raise LockError("no such hold")
        self.open.remove((block, token))
        self.count(block.path(), self.window_of(block.path()), -1)
        return Done()

    def do_hash(self, step: int, operation: ops.Hash) -> Result:
        """Chain the hashes of a path."""
        digests: list[str] = []
        prior = b""
        for block in self.block_of(operation.of).path():
            page = block.name
            assert isinstance(page, tuple)
            if not digests:
                prior, page = seed(page[0]), page[1]
            flat = [one for token in page for one in (token if isinstance(token, tuple) else (token,))]
            prior = hashlib.sha256(prior + b"".join(one.to_bytes(4, "little") for one in flat)).digest()
            digests.append(prior.hex())
        return Hashes(tuple(digests))


def seed(namespace: str) -> bytes:
    """Return what the first page of a namespace, given by its representation, chains from (H3)."""
    value = ast.literal_eval(namespace)
    if value is None:
        return b""
    named = name_of_values(value) if isinstance(value, tuple) else name_of_value(value)
    return hashlib.sha256(bytes(1) + hashlib.sha256(named).digest()).digest()


def name_of_value(value: str | int | None) -> bytes:
    """Spell one value of a namespace, or none."""
    return b"" if value is None else f"{'s' if isinstance(value, str) else 'i'}:{value}".encode()


def name_of_values(values: Sequence[str | int | None]) -> bytes:
    """Spell several, each as long as the other."""
    return b"t:" + b"".join(hashlib.sha256(name_of_value(value)).digest() for value in values)


def ranges(pages: Sequence[int], size: int) -> tuple[tuple[int, int], ...]:
    """Join pages that follow each other."""
    joined: list[tuple[int, int]] = []
    for page in pages:
        start = joined.pop()[0] if joined and joined[-1][1] == page * size else page * size
        joined.append((start, (page + 1) * size))
    return tuple(joined)


class AnyOrderCache(DictCache):
    """The same, evicting what was cached last first, and claiming no order."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        config
        for config in DictCache.CONFIGURATIONS
        if config["pool"] == "swa" or (config["pool"] == "token" and config["window"] is None)
    )

    def order(self) -> set[str]:
        """Claim nothing."""
        return set()

    def age(self, block: Block) -> tuple[int, int]:
        """Go by age, the youngest first."""
        return -block.id, 0


class OwnWindows(DictCache):
    """Goes by rules of its own for windows, and claims none of ours.

    A hold protects its whole path, an eviction takes whole branches and leaves dead leaves behind, and an
    insert frees duplicates, refuses nothing and lets go of what lies before its window.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        config for config in DictCache.CONFIGURATIONS if config["pool"] == "swa" and config["window"]
    )

    def claim(self) -> frozenset[str]:
        """Claim what is left."""
        return super().claim() - {"exact_lru", "exact_windows", "hold_tokens"}

    def window_of(self, path: Sequence[Block]) -> Sequence[Block]:
        """Protect all of it."""
        return path

    def do_insert(self, step: int, operation: ops.Insert) -> Result:
        """Insert the missing pages, revive dead pages that come with halves, and free the remaining slots."""
        found, names, slots = self.find(operation.key), self.names(operation.key), self.read_slots(operation)
        pages = [slots[at * self.size : (at + 1) * self.size] for at in range(len(names))]
        adopted = [*range(len(found), len(names))]
        for at, block in enumerate(found):
            if at * self.size < operation.prev_prefix_len:
                continue
            is_dead, is_held = not block.alive, block.holds > 0
            if is_dead and self.half(pages[at][0]):
                self.revive(block, pages[at])
                adopted += [] if is_held else [at]
            if block.slots != pages[at]:
                self.effects.append(Effect("free", tuple(pages[at])))
                self.take_back(pages[at])
        life = [bool(self.half(page[0])) for page in pages]
        last = self.given[step] = self.grow(found, names, pages, life)
        before = last.path()[: -len(super().window_of(last.path())) or None]
        self.kill([block for block in before if last is not self.root])
        return Inserted(len(found) * self.size, ranges(sorted(adopted), self.size), len(names) * self.size)

    def kill(self, blocks: Sequence[Block]) -> int:
        """Let go of windows without a hold, and count their tokens."""
        alive = [block for block in blocks if block.alive and not block.window_holds]
        for block in alive:
            block.alive = False
            self.give_halves(block)
        return len(alive) * self.size

    def do_evict(self, step: int, operation: ops.Evict) -> Result:
        """Take leaves, and then the windows of whole branches."""
        evicted = super().do_evict(step, ops.Evict(operation.tokens))
        assert isinstance(evicted, Evicted)
        swa = evicted.swa
        for block in reversed(self.blocks()):
            if swa < operation.secondary:
                swa += self.kill(block.path())
        return Evicted(evicted.full, swa)

    def drop(self, block: Block) -> list[Block]:
        """Take a leaf out, and nothing else."""
        above = block.above
        assert above is not None
        del above.below[block.name]
        block.gone = True
        self.effects.append(Effect("free", tuple(block.slots)))
        self.take_back(block.slots)
        return [block]


PAGE_BY_PAGE = {
    "a tombstone is revived under a hold",
    "a tombstone goes with its last child",
    "an insert is refused whole",
    "a locked page is tombstoned",
    "an eviction takes a parent after its last child",
    "two holds share an edge",
    "a wrong token is refused",
}
FOLLOWED = {
    "a match passes a tombstone",
    "a dead window leaves no match",
    "a tombstone is revived under a hold",
    "an unlocked tombstone is revived",
    "new pages are born dead",
    "every window is held and an eviction of windows is asked for",
    "a reset with tombstones",
}
RULES = {"S4", "S6", "S7"}


@pytest.mark.parametrize(
    ("cache", "goals", "rules"),
    [(DictCache, PAGE_BY_PAGE, RULES), (AnyOrderCache, PAGE_BY_PAGE, RULES), (OwnWindows, FOLLOWED, set())],
    ids=["in order", "in any order", "with windows of its own"],
)
def test_a_flat_cache_is_accepted(cache: type[DictCache], goals: set[str], rules: set[str]) -> None:
    """All of R and S: long random programs accuse no correct cache, however the cache is made."""
    met: Counter[str] = Counter()
    tested: Counter[str] = Counter()
    for config in cache.CONFIGURATIONS:
        machine = make_machine(PrefixMachine, f"test_dict_cache:{cache.__name__}", dict(config))
        for seed in range(3, 7):
            examiner = drive(machine, seed=seed, steps=400).examiner
            claimed = {
                law.id for law in laws_of("prefix") if law.is_claimed_by(examiner.adapter.capabilities)
            }
            assert set(examiner.judge.evidence.exercised) <= claimed
            met += examiner.judge.evidence.reached
            tested += examiner.judge.evidence.exercised
            if set(met) >= goals:
                break
    assert set(met) >= goals
    assert {"R2", "R3", "R4", "R5", "R6", "R7", "S1", "S2", "S3", "S5", "E1", *rules} <= set(tested)
