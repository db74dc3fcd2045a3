"""The adapters of vLLM's earlier managers, over managers of our own that are called alike.

What releases do is seen where they are installed; here the translation is: a sound manager breaks no law, and
one with a bug that a release had breaks one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from peers.time_machine import earlier_vllm, vllm_allocator
from peers.time_machine.earlier_vllm import EarlierFull
from peers.time_machine.vllm_allocator import BlockManager
from pymllm.errors import InvariantViolation
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.prefix import PrefixMachine


@dataclass(eq=False)
class Block:
    """A block, as managers have it."""

    block_id: int
    ref_cnt: int = 0
    block_hash: Any = None


class Queue:
    """The free blocks, in the order in which they go."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = list(blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self.blocks)

    def get_all_free_blocks(self) -> list[Block]:
        return list(self.blocks)


def digests(request: Any, page_size: int) -> list[Any]:
    """Return a hash for each page: all that it ends, and what tells the prompt apart."""
    lora = None if request.lora_request is None else request.lora_request.lora_int_id
    apart = (tuple(request.mm_hashes), lora, request.cache_salt)
    ends = range(page_size, len(request.all_token_ids) + 1, page_size)
    return [(apart, *request.all_token_ids[:end]) for end in ends]


class Manager:
    """A manager of blocks of its own, as before 0.7."""

    TOUCHES_FIRST: ClassVar[bool] = False
    BLANK_LAST: ClassVar[bool] = False

    def __init__(
        self, block_size: int, num_gpu_blocks: int, max_model_len: int, enable_caching: bool
    ) -> None:
        assert max_model_len
        assert enable_caching
        self.block_size = block_size
        self.block_pool: Any = [Block(number) for number in range(num_gpu_blocks)]
        self.free_block_queue = Queue(self.block_pool)
        self.req_to_blocks: dict[str, list[Block]] = {}

    def find(self, request: Any) -> list[Block]:
        found = []
        for digest in digests(request, self.block_size):
            known = [block for block in self.all_blocks() if block.block_hash == digest]
            if not known:
                break
            found.append(known[0])
        return found

    def all_blocks(self) -> list[Block]:
        return list(self.block_pool)

    def get_computed_blocks(self, request: Any) -> Any:
        found = self.find(request)
        return found, len(found) * self.block_size

    def allocate_slots(self, request: Any, num_tokens: int, computed_blocks: Any) -> Any:
        return self.allocate(request, num_tokens, computed_blocks)

    def allocate(self, request: Any, num_tokens: int, found: list[Block]) -> list[Block] | None:
        if not num_tokens:
            raise ValueError("num_tokens must be greater than 0")
        count = -(-num_tokens // self.block_size)
        idle = sum(not block.ref_cnt for block in found)
        if self.TOUCHES_FIRST:
            self._touch(found)
        if count > self.free_block_queue.num_free_blocks - (0 if self.TOUCHES_FIRST else idle):
            return None
        if not self.TOUCHES_FIRST:
            self._touch(found)
        blocks = self._get_new_blocks(count)
        self.req_to_blocks[request.request_id] = table = found + blocks
        for block, digest in zip(table, digests(request, self.block_size), strict=False):
            block.block_hash = digest
        return blocks

    def _touch(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if not block.ref_cnt:
                self.free_block_queue.blocks.remove(block)
            block.ref_cnt += 1

    def _get_new_blocks(self, num_blocks: int) -> list[Block]:
        queue = self.free_block_queue.blocks
        taken, queue[:] = queue[:num_blocks], queue[num_blocks:]
        for block in taken:
            block.block_hash, block.ref_cnt = None, 1
        return taken

    def give(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            if not block.ref_cnt:
                is_blank = block.block_hash is None and not self.BLANK_LAST
                queue = self.free_block_queue.blocks
                queue.insert(0 if is_blank else len(queue), block)

    def free(self, request: Any) -> None:
        self.give(reversed(self.req_to_blocks.pop(request.request_id, [])))


class TouchesFirst(Manager):
    """The manager of 0.6.6, which takes the found blocks before it knows whether the rest can be had."""

    TOUCHES_FIRST: ClassVar[bool] = True


class GroupManager(Manager):
    """A manager of groups over a pool, as from 0.9.1 on."""

    def __init__(
        self, kv_cache_config: Any, max_model_len: int, enable_kv_cache_events: bool = False
    ) -> None:
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        super().__init__(spec.block_size, kv_cache_config.num_blocks, max_model_len, True)
        self.events = enable_kv_cache_events
        self.all = list(self.block_pool)
        self.free_block_queue.blocks.pop(0)
        self.prefix_cache_stats = SimpleNamespace()
        self.block_pool = SimpleNamespace(
            blocks=self.all,
            null_block=self.all[0],
            free_block_queue=self.free_block_queue,
            get_num_free_blocks=lambda: self.free_block_queue.num_free_blocks,
            get_new_blocks=self._get_new_blocks,
            free_blocks=self.give,
            touch=self.touch,
        )
        self.coordinator = SimpleNamespace(save_new_computed_blocks=self.save)

    def all_blocks(self) -> list[Block]:
        return self.all

    def touch(self, blocks: tuple[Sequence[Block], ...]) -> None:
        (group,) = blocks
        self._touch(group)

    def save(self, request_id: str, groups: Sequence[list[Block]]) -> None:
        self.req_to_blocks[request_id] = groups[0]

    def get_computed_blocks(self, request: Any) -> Any:
        found = self.find(request)
        return SimpleNamespace(blocks=(found,)), len(found) * self.block_size

    def allocate_slots(  # type: ignore[override]
        self, request: Any, num_new_tokens: int, num_new_computed_tokens: int, new_computed_blocks: Any
    ) -> Any:
        (found,) = new_computed_blocks.blocks
        assert num_new_computed_tokens == len(found) * self.block_size
        if self.events and request.lora_request is not None:
            assert request.lora_request.lora_int_id
        return self.allocate(request, num_new_tokens, found)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return ([block.block_id for block in self.req_to_blocks[request_id]],)

    def reset_prefix_cache(self) -> bool:
        for block in self.all:
            block.block_hash = None
        return len(self.free_block_queue.blocks) == len(self.all) - 1


class RecentManager(GroupManager):
    """A manager as from 0.23 on, where a pool takes blocks of any group, and a hit is one call."""

    def __init__(self, kv_cache_config: Any, max_model_len: int) -> None:
        super().__init__(kv_cache_config, max_model_len)
        self.block_pool.touch = self.touch_all
        self.coordinator = SimpleNamespace(allocate_new_computed_blocks=self.hit)

    def touch_all(self, blocks: Sequence[Block]) -> None:
        self._touch(blocks)

    def hit(self, request_id: str, groups: Sequence[list[Block]], length: int, external: int) -> None:
        assert (length, external) == (len(groups[0]) * self.block_size, 0)
        self._touch(groups[0])
        self.save(request_id, groups)


class BlankLast(RecentManager):
    """A manager of releases until 0.23, in which a block that cannot be found goes when its turn comes."""

    BLANK_LAST: ClassVar[bool] = True


def images_only(request: Any) -> Any:
    """Stand in for the code that distinguishes prompts as before 0.7.3."""
    return request.mm_hashes


def all_three(request: Any) -> Any:
    """Stand for the same as from 0.9 on."""
    return request.mm_hashes, request.lora_request, request.cache_salt


def _record(**parts: Any) -> SimpleNamespace:
    return SimpleNamespace(**parts)


class FullAttentionSpec(SimpleNamespace):
    """The stand-in for the memory of a group."""

    def __init__(self, block_size: int, num_kv_heads: int, head_size: int, dtype: Any) -> None:
        super().__init__(block_size=block_size, sizes=(num_kv_heads, head_size, dtype))


class KVCacheConfig(SimpleNamespace):
    """The stand-in for the values of which a manager is built."""

    def __init__(self, num_blocks: int, kv_cache_tensors: list[Any], kv_cache_groups: list[Any]) -> None:
        super().__init__(num_blocks=num_blocks, tensors=kv_cache_tensors, kv_cache_groups=kv_cache_groups)


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the adapter find a manager of ours, which distinguishes prompts as in its time."""

    def install(manager: type[Manager], apart: Any) -> None:
        found = {
            "v1.core.kv_cache_manager": SimpleNamespace(KVCacheManager=manager),
            "v1.core.kv_cache_utils": SimpleNamespace(
                **{"generate_block_hash_extra_keys": apart} if apart else {}
            ),
            "v1.kv_cache_interface": SimpleNamespace(
                FullAttentionSpec=FullAttentionSpec,
                KVCacheConfig=KVCacheConfig,
                KVCacheGroupSpec=lambda layers, spec: SimpleNamespace(layers=layers, kv_cache_spec=spec),
            ),
            "lora.request": SimpleNamespace(LoRARequest=_record),
        }
        monkeypatch.setattr(earlier_vllm, "load", found.__getitem__)
        monkeypatch.setattr(earlier_vllm, "require_version", lambda: None)

    return install


def machine_of(adapter: type[Any], number: int) -> Any:
    """Return the machine of a configuration."""
    name = f"{adapter.__module__}:{adapter.__name__}"
    return make_machine(PrefixMachine, name, dict(adapter.CONFIGURATIONS[number]))


MANAGERS = pytest.mark.parametrize(
    ("manager", "apart"),
    [(Manager, None), (Manager, images_only), (GroupManager, all_three), (RecentManager, all_three)],
)


@MANAGERS
def test_a_sound_manager_breaks_no_law(manager: type[Manager], apart: Any, release: Any) -> None:
    """A sound manager of its own blocks or of groups breaks no law, for each way to tell prompts apart."""
    release(manager, apart)
    for number in range(len(EarlierFull.CONFIGURATIONS)):
        assert drive(machine_of(EarlierFull, number), number, 80).passed_over is None
        assert drive(machine_of(earlier_vllm.Tails, number), number, 80).passed_over is None


def test_blank_blocks_go_when_their_turn_comes(release: Any) -> None:
    """The bug of releases until 0.23 is found where requests have a block that is never full."""
    release(BlankLast, all_three)
    machine = machine_of(earlier_vllm.Tails, 0)
    with pytest.raises(InvariantViolation) as found:
        [drive(machine, seed, 100) for seed in range(20)]
    assert found.value.law in {"R3", "R5", "R7", "R9"}


def test_a_tail_needs_pages_of_two(release: Any) -> None:
    """Pages of one token are refused with a tail."""
    release(Manager, None)
    with pytest.raises(ValueError, match=r"^page_size is 1; it must be at least 2 with a tail$"):
        earlier_vllm.Tails("it", {**earlier_vllm.Tails.CONFIGURATIONS[0], "page_size": 1})


def test_what_is_touched_stays_touched(release: Any) -> None:
    """The bug of 0.6.6 is found."""
    release(TouchesFirst, images_only)
    machine = machine_of(EarlierFull, 0)
    with pytest.raises(InvariantViolation) as found:
        [drive(machine, seed, 100) for seed in range(20)]
    assert found.value.law in {"R3", "R6", "R7"}


@pytest.mark.parametrize(
    ("apart", "wanted", "by"),
    [
        (images_only, "salt", "image"),
        (all_three, "salt", "salt"),
        (all_three, "adapter", "adapter"),
        (all_three, "image", "image"),
    ],
)
def test_prompts_are_told_apart(apart: Any, wanted: str, by: str, release: Any) -> None:
    """A prompt is told apart by the wanted part, or by images where no other part existed."""
    release(GroupManager, apart)
    adapter = EarlierFull("it", {**EarlierFull.CONFIGURATIONS[0], "apart": wanted})
    request = adapter._request(1, ops.Key((1, 2), "a"))
    told = {"image": request.mm_hashes, "adapter": request.lora_request, "salt": request.cache_salt}
    assert [kind for kind, value in told.items() if value] == [by]
    assert "extra_key" in adapter.capabilities
    plain = adapter._request(2, ops.Key((1, 2)))
    assert (plain.mm_hashes, plain.lora_request, plain.cache_salt) == ([], None, None)


def test_nothing_is_told_apart_before(release: Any) -> None:
    """Of a release without such hashes no namespaces are claimed."""
    release(Manager, None)
    assert "extra_key" not in EarlierFull("it", EarlierFull.CONFIGURATIONS[0]).capabilities


def test_an_image_is_found_by_key_and_by_name() -> None:
    """As releases before and after 0.8.3 look at it."""
    request = earlier_vllm.Request("it", (1, 2))
    request.tell_apart("image", "a", 1)
    (place,) = request.mm_positions
    assert (place["offset"], place.offset, place.length) == (0, 0, 1)
    with pytest.raises(AttributeError, match="shape"):
        _ = place.shape


class Evictor:
    """Blocks without an owner, by the time when they were let go of and their depth."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[float, int]] = {}

    @property
    def num_blocks(self) -> int:
        return len(self.entries)

    def __contains__(self, block: int) -> bool:
        return block in self.entries


class Allocator:
    """Blocks with content, as the first engine's allocator has them."""

    def __init__(self, blocks: int) -> None:
        self._cached_blocks: dict[Any, int] = {}
        self._counts = dict.fromkeys(range(blocks), 0)
        self._refcounter = SimpleNamespace(get=self._counts.__getitem__)
        self.blank = list(range(blocks))
        self.evictor = Evictor()
        self.computed: set[int] = set()

    def get_num_free_blocks(self) -> int:
        return len(self.blank) + self.evictor.num_blocks

    def block_is_computed(self, block: int) -> bool:
        return block in self.computed

    def allocate_mutable_block(self, prev_block: None) -> int:
        assert prev_block is None
        if self.blank:
            block = self.blank.pop(0)
        else:
            entries = self.evictor.entries
            block = min(entries, key=lambda it: (entries[it][0], -entries[it][1]))
            del entries[block]
            self._cached_blocks = {key: it for key, it in self._cached_blocks.items() if it != block}
        self.computed.discard(block)
        self._counts[block] = 1
        return block

    def free(self, block: int) -> None:
        self._counts[block] = 0
        self.blank.append(block)


class Tables:
    """A block manager over it."""

    KNOWS_ADAPTERS: ClassVar[bool] = True
    FORGETS_AGE: ClassVar[bool] = False

    def __init__(
        self, page_size: int, blocks: int, others: int, watermark: float, enable_caching: bool
    ) -> None:
        assert (others, watermark, enable_caching) == (0, 0, True)
        self.page_size = page_size
        self.gpu = Allocator(blocks)
        self.block_allocator = SimpleNamespace(_allocators={"gpu": self.gpu})
        self.tables: dict[int, list[int]] = {}
        self.times: dict[int, float] = {}

    def allocate(self, request: Any) -> None:
        gpu, table, above = self.gpu, [], None
        for start in range(0, len(request.tokens), self.page_size):
            page = request.tokens[start : start + self.page_size]
            if len(page) < self.page_size:
                table.append(gpu.allocate_mutable_block(None))
                continue
            more = (request.extra_hash(),) if self.KNOWS_ADAPTERS else ()
            above = hash_page(not start, above, page, *more)
            block = gpu._cached_blocks.get(above)
            if block is None:
                block = gpu._cached_blocks[above] = gpu.allocate_mutable_block(None)
            else:
                gpu.evictor.entries.pop(block, None)
                gpu._counts[block] += 1
            table.append(block)
        self.tables[request.seq_id] = table

    def get_block_table(self, request: Any) -> list[int]:
        return self.tables[request.seq_id]

    def get_common_computed_block_ids(self, requests: Sequence[Any]) -> list[int]:
        (request,) = requests
        found = []
        for block in self.tables[request.seq_id][:-1]:
            if block not in self.gpu.computed:
                break
            found.append(block)
        return found

    def access_all_blocks_in_seq(self, request: Any, now: float) -> None:
        self.times[request.seq_id] = now

    def mark_blocks_as_computed(self, request: Any, chunk: int) -> None:
        pages = len(request.tokens) // self.page_size
        assert chunk
        self.gpu.computed.update(self.tables[request.seq_id][:pages])

    def free(self, request: Any) -> None:
        gpu, now = self.gpu, self.times.pop(request.seq_id)
        for depth, block in enumerate(self.tables.pop(request.seq_id)):
            gpu._counts[block] -= 1
            if gpu._counts[block]:
                continue
            if block in gpu._cached_blocks.values():
                gpu.evictor.entries[block] = (-1.0 if self.FORGETS_AGE else now, depth)
            else:
                gpu.blank.append(block)


class ForgetfulTables(Tables):
    """The tables that a release had in part, which make a block that is let go of as old as can be."""

    FORGETS_AGE: ClassVar[bool] = True


class PlainTables(Tables):
    """The tables of releases before 0.6.5, which do not look at adapters."""

    KNOWS_ADAPTERS: ClassVar[bool] = False


def hash_page(is_first: bool, above: Any, page: Sequence[int], extra_hash: int | None = None) -> Any:
    """Return all that a page ends, which is its own hash."""
    assert (above is None) == is_first
    return (above, tuple(page), extra_hash)


def hash_tokens(is_first: bool, above: Any, page: Sequence[int]) -> Any:
    """Return the same where adapters are unknown."""
    return hash_page(is_first, above, page)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the adapter find a block manager of ours."""

    def install(manager: type[Tables], name: str = "core.block_manager") -> None:
        hasher = hash_page if manager.KNOWS_ADAPTERS else hash_tokens
        found = {
            "core.block.cpu_gpu_block_allocator": SimpleNamespace(current_platform=None),
            "core.block.prefix_caching_block": SimpleNamespace(
                PrefixCachingBlock=SimpleNamespace(hash_block_tokens=hasher)
            ),
            "utils": SimpleNamespace(Device=SimpleNamespace(GPU="gpu")),
            name: SimpleNamespace(
                **{"BlockSpaceManagerV2" if name.endswith("v2") else "SelfAttnBlockSpaceManager": manager}
            ),
        }

        def load(module: str) -> Any:
            if module not in found:
                raise ImportError(module)
            return found[module]

        monkeypatch.setattr(vllm_allocator, "load", load)
        monkeypatch.setattr(vllm_allocator, "require_version", lambda: None)

    return install


@pytest.mark.parametrize("adapter", [BlockManager, vllm_allocator.Tails])
@pytest.mark.parametrize(
    ("manager", "name"), [(PlainTables, "core.block_manager_v2"), (Tables, "core.block_manager")]
)
def test_a_sound_block_manager_breaks_no_law(
    adapter: type[BlockManager], manager: type[Tables], name: str, engine: Any
) -> None:
    """With a tail behind each key and without, of both names."""
    engine(manager, name)
    for number in range(len(adapter.CONFIGURATIONS)):
        assert drive(machine_of(adapter, number), number, 80).passed_over is None
    claims = adapter("it", adapter.CONFIGURATIONS[0]).capabilities
    assert ("extra_key" in claims) == manager.KNOWS_ADAPTERS


def test_what_loses_its_age_goes_first(engine: Any) -> None:
    """An order that forgets is found."""
    engine(ForgetfulTables)
    machine = machine_of(BlockManager, 0)
    with pytest.raises(InvariantViolation) as found:
        [drive(machine, seed, 100) for seed in range(20)]
    assert found.value.law in {"R3", "R5", "R9", "R11"}


def test_adapters_are_held_apart_whatever_the_hash_knows(engine: Any) -> None:
    """The bug of releases before 0.6.5 is found by a caller that asks for it, in three operations."""
    engine(PlainTables)
    adapter = vllm_allocator.Adapters("it", vllm_allocator.Adapters.CONFIGURATIONS[0])
    adapter.apply(1, ops.Insert(ops.Key((1, 2), "a")))
    assert adapter.apply(2, ops.Match(ops.Key((1, 2)))).result == out.Matched((1, 2), 2, 2)
    machine = machine_of(vllm_allocator.Adapters, 0)
    with pytest.raises(InvariantViolation) as found:
        [drive(machine, seed, 100) for seed in range(20)]
    assert found.value.law == "K1"


def test_a_tail_needs_pages_that_it_does_not_fill(engine: Any) -> None:
    """Pages of one token are refused with a tail."""
    engine(Tables)
    with pytest.raises(ValueError, match=r"page_size is 1; it must be at least 2 with a tail"):
        vllm_allocator.Tails("it", {**vllm_allocator.Tails.CONFIGURATIONS[0], "page_size": 1})
