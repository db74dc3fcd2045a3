"""Facts that only a CUDA device can show: so many launches, none compiled late, no race and fixed places."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from pymllm.core.inference.contexts import DynamicInferenceContext, MambaSlotAllocator
from pymllm.mem_cache.memory_pool import GDNPool, KVPool

pytestmark = pytest.mark.gpu

WIDTHS = {"model": (8, 128, 8, 128), "unequal": (2, 192, 4, 64), "narrow": (3, 5, 1, 1)}


def launches_of(work: Callable[[], object], is_first: bool = False) -> int:
    """Count kernels, copies and fills; those of work that has not run before only where that is asked for."""
    if not is_first:
        work()  # what torch sets up once
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return sum(1 for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA)


def without_waiting(work: Callable[[], object]) -> None:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Record work that has never run: what compiles or loads only now cannot be captured."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def random_rows(count: int, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    shape = (count, heads, dim * dtype.itemsize)
    return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda").view(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def test_pools_are_fused_where_triton_is() -> None:
    """A GPU without it is served by torch; this one is to have it."""
    pytest.importorskip("triton")
    assert KVPool(8, 1, 1, 8, "cuda").is_fused
    assert GDNPool(2, 1, 1, 4, 4, 4, 4, "cuda").is_fused


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_keys_and_values_are_what_torch_writes(
    width: tuple[int, int, int, int], dtype: torch.dtype, index_dtype: torch.dtype
) -> None:
    """P3: bit for bit, for every batch, width and index, and in no other row."""
    pools = [KVPool(5000, 2, *width[:2], "cuda", dtype, *width[2:], fused=fused) for fused in (None, False)]
    for count in (0, 1, 3, 256, 4097):
        slots = (torch.randperm(5000, device="cuda")[:count] + 1).to(index_dtype)
        k, v = random_rows(count, *width[:2], dtype), random_rows(count, *width[2:], dtype)
        for pool in pools:
            pool.set_kv_buffer(1, slots, k, v)
        for ours, other in zip(*((*pool.k_buffer, *pool.v_buffer) for pool in pools), strict=True):
            assert torch.equal(bits(ours), bits(other))


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_one_launch_writes_keys_and_values(index_dtype: torch.dtype) -> None:
    """K, V and the index as it is."""
    pytest.importorskip("triton")
    pool = KVPool(512, 2, 8, 128, "cuda", torch.bfloat16)
    slots = torch.arange(1, 257, device="cuda").to(index_dtype)
    k, v = (random_rows(256, 8, 128, torch.bfloat16) for _ in range(2))
    assert launches_of(lambda: pool.set_kv_buffer(0, slots, k, v)) == 1
    without_waiting(lambda: pool.set_kv_buffer(1, slots, k, v))


def test_the_first_write_can_be_captured() -> None:
    """Kernels are compiled and loaded when the pool is built."""
    pool = KVPool(64, 2, 3, 40, "cuda", torch.float16)
    slots = torch.tensor([5, 0, 9, 0], device="cuda", dtype=torch.int32)
    k, v = (random_rows(4, 3, 40, torch.float16) for _ in range(2))
    graph = captured(lambda: pool.set_kv_buffer(1, slots, k, v))
    slots.copy_(torch.tensor([64, 0, 1, 0]))
    k.copy_(random_rows(4, 3, 40, torch.float16))
    graph.replay()
    named = slots[[0, 2]].long()
    assert torch.equal(bits(pool.k_buffer[1][named]), bits(k[[0, 2]]))
    assert torch.equal(bits(pool.v_buffer[1][named]), bits(v[[0, 2]]))
    for row in (5, 9):
        assert not pool.k_buffer[1][row].any()


def test_slots_beyond_2_to_31_elements_are_reached() -> None:
    """P3: addresses are of 64 bits."""
    rows, width = 2**20 + 16, 2**11
    if torch.cuda.mem_get_info()[0] < 1.5 * rows * width:
        pytest.skip("the device has no room for 2^31 elements")
    pool = KVPool(rows - 1, 1, 1, width, "cuda", torch.int8, 1, 16)
    slots = torch.tensor([rows - 1, 7, 2**20 + 1], device="cuda", dtype=torch.int32)
    k, v = random_rows(3, 1, width, torch.int8), random_rows(3, 1, 16, torch.int8)
    pool.set_kv_buffer(0, slots, k, v)
    assert torch.equal(pool.k_buffer[0][slots.long()], k)
    assert torch.equal(pool.v_buffer[0][slots.long()], v)
    assert int(pool.k_buffer[0].count_nonzero()) == int(k.count_nonzero())


@pytest.fixture
def gdn() -> GDNPool:
    pool = GDNPool(299, 4, 4, 32, 32, 192, 4, "cuda", max_track_slots=300)
    pool.recurrent_state.view(torch.int32).random_()
    pool.conv_state.view(torch.int16).random_()
    return pool


@pytest.mark.parametrize("count", [1, 2, 8, 9, 64, 65, 512, 513, 600])
def test_rows_change_places_without_a_race(gdn: GDNPool, count: int) -> None:
    """P5: a cycle through all named rows, again and again; any row that is written too early would spread."""
    expected = [bits(state).clone() for state in (gdn.recurrent_state, gdn.conv_state)]
    for number in range(20):
        order = torch.randperm(600, device="cuda")[:count]
        read, write = order.int(), order.roll(1)
        gdn.copy_states(*((read, write) if number % 2 else (read.long(), write.int())))
        for state in expected:
            state[:, write] = state[:, read.long()]
    for state, wanted in zip((gdn.recurrent_state, gdn.conv_state), expected, strict=True):
        assert torch.equal(bits(state), wanted)


def test_states_are_moved_and_cleared_in_one_launch(gdn: GDNPool) -> None:
    """For every number of rows and layers; ints need nothing on the device."""
    pytest.importorskip("triton")
    rows = torch.randperm(600, device="cuda")[:64]
    others = rows.flip(0).int()
    for work in (
        lambda: gdn.copy_states(rows, others),
        lambda: gdn.copy_states(3, 300),
        lambda: gdn.reset_states(others),
        lambda: gdn.reset_states(7),
    ):
        assert launches_of(work) == 1
        without_waiting(work)


def test_the_first_copy_of_states_can_be_captured(gdn: GDNPool) -> None:
    """P5: for every number of rows that a kernel is prepared for, and one that torch takes."""
    order = torch.randperm(600, device="cuda")
    for count in (1, 8, 64, 512, 600):
        read, write = order[:count].clone(), order[:count].roll(1)
        graph = captured(lambda read=read, write=write: gdn.copy_states(read, write))
        before = bits(gdn.recurrent_state).clone()
        read.copy_(read.flip(0))
        graph.replay()
        before[:, write] = before[:, read]
        assert torch.equal(bits(gdn.recurrent_state), before)


def test_captured_state_moves_follow_their_static_inputs() -> None:
    """P5: snapshots and resets can be part of a graph."""
    gdn = GDNPool(4, 3, 2, 4, 4, 6, 4, "cuda", max_track_slots=4)
    src, dst = (torch.tensor(rows, device="cuda") for rows in ([1, 0], [5, 0]))

    def work() -> None:
        gdn.copy_states(src, dst)
        gdn.reset_states(src)

    work()
    graph = captured(work)
    gdn.recurrent_state.copy_(torch.arange(gdn.pool_size, device="cuda")[None, :, None, None, None])
    src.copy_(torch.tensor([2, 3]))
    dst.copy_(torch.tensor([8, 7]))
    graph.replay()
    assert gdn.recurrent_state[0, :, 0, 0, 0].tolist() == [0, 1, 0, 0, 4, 5, 6, 3, 2]


def make_context(requests: int, blocks: int = 4) -> tuple[DynamicInferenceContext, MambaSlotAllocator]:
    """An empty context for so many requests of at most so many blocks, and its slots."""
    context = DynamicInferenceContext(
        max_requests=requests,
        num_blocks=blocks * requests + 1,
        max_blocks_per_request=blocks,
        block_size_tokens=4,
        mamba_chunk_size=2,
        mamba_slots=2 * requests,
        num_mamba_layers=3,
        conv_states_shape=(6, 3),
        ssm_states_shape=(2, 4, 4),
        conv_states_dtype=torch.bfloat16,
        device="cuda",
    )
    assert context.mamba_slot_allocator is not None
    return context, context.mamba_slot_allocator


def add(context: DynamicInferenceContext, count: int, stem: int = 0, length: int = 13) -> None:
    """Add requests whose prompts differ from the first token on."""
    for number in range(count):
        prompt = [stem + number, *range(1, length)]
        req = SimpleNamespace(prompt_tokens=prompt, finished_chunk_token_count=0)
        assert context.add_request(req)


def make_slots(requests: int) -> tuple[DynamicInferenceContext, MambaSlotAllocator]:
    """A context whose requests compute, with numbers in the live states."""
    context, slots = make_context(requests)
    add(context, requests, length=8)
    context.begin_step()
    for states in (context.mamba_conv_states, context.mamba_ssm_states):
        assert states is not None
        states.normal_()
    return context, slots


@pytest.mark.parametrize("count", [1, 2, 128])
def test_store_and_restore_can_be_captured(count: int) -> None:
    """C7: a replay copies what is there then, between the rows that were named at the capture."""
    context, slots = make_slots(128)
    blocks = [int(block) for block in context.request_to_kv_block_ids[:count, 0]]
    taken = slots.allocate_slots_batch(blocks)
    requests = list(range(count))[::-1]
    rows = [int(context.mamba_metadata.request_to_mamba_state_idx[request]) for request in requests]

    def work() -> None:
        slots.store_from_live_batch(taken, requests)
        assert slots.restore_to_live(0, blocks[0])

    graph = captured(work)
    for _ in range(2):
        scratch = [
            torch.randint(0, 99, (4096,)).pin_memory() for _ in range(8)
        ]  # somebody else's pinned memory
        live = (context.mamba_conv_states, context.mamba_ssm_states)
        for states in live:
            states.normal_()
        expected = [bits(states).clone() for states in live]
        graph.replay()
        torch.cuda.synchronize()
        for cached, states in zip((slots.conv_states, slots.ssm_states), expected, strict=True):
            assert torch.equal(bits(cached)[:, taken], states[:, rows])
        for states, cached, wanted in zip(live, (slots.conv_states, slots.ssm_states), expected, strict=True):
            wanted[:, context.mamba_metadata.request_to_mamba_state_idx[0]] = bits(cached)[:, taken[0]]
            assert torch.equal(bits(states), wanted)
        del scratch


def test_a_store_is_one_launch_and_two_uploads() -> None:
    """A restore, whose two rows the host knows, is one launch alone."""
    pytest.importorskip("triton")
    context, slots = make_slots(64)
    block = int(context.request_to_kv_block_ids[0, 0])
    slots.allocate_slots_batch([block])
    assert launches_of(lambda: slots.store_from_live_batch(range(64), range(64))) == 3
    assert launches_of(lambda: slots.restore_to_live(5, block)) == 1
    without_waiting(lambda: slots.store_from_live_batch(range(64), range(64)))
    without_waiting(lambda: slots.restore_to_live(5, block))


@pytest.mark.parametrize(
    "act", ["store_from_live_batch", "_copy_intermediate_to_cache", "commit", "restore", "offsets"]
)
def test_launches_do_not_depend_on_the_batch(act: str) -> None:
    """C7: counted by the profiler, for two requests and for all of them; one can need fewer."""
    counts = []
    for count in (1, 2, 64):
        context, slots = make_context(64, blocks=8)
        add(context, count)
        numbers = list(range(count))
        if act in ("commit", "restore", "offsets"):
            batch = context.begin_step()
            context.kv_block_allocator.register_kv_block_hashes(
                [step.blocks[2] for step in batch.requests], [n + 1 for n in numbers], [0] * count
            )
        if act == "restore":
            slots.commit_intermediate_states()
        work: dict[str, Callable[[], object]] = {
            "store_from_live_batch": lambda s=slots, n=numbers: s.store_from_live_batch(n, n),
            "_copy_intermediate_to_cache": lambda s=slots, n=numbers: s._copy_intermediate_to_cache(n, n),
            "commit": slots.commit_intermediate_states,
            "restore": lambda s=slots, c=context: s.restore_to_live(0, int(c.request_to_kv_block_ids[0, 2])),
            "offsets": slots.get_intermediate_gpu_data,
        }
        counts.append(launches_of(work[act], is_first=True))
    assert counts[1] == counts[2] >= counts[0] > 0


def test_offsets_stay_where_a_graph_has_seen_them() -> None:
    """Addresses are those of the first step, through commits, resets and batches of any size."""
    context, slots = make_context(64, blocks=8)
    seen = set()
    for stem, count in enumerate((1, 5, 64, 2)):
        add(context, count, 100 * stem)
        context.begin_step()
        offsets, counts = slots.get_intermediate_gpu_data()
        assert offsets is not None
        assert counts is not None
        assert (offsets.shape, counts.shape) == ((count, 3), (count,))
        seen.add((offsets.data_ptr(), counts.data_ptr()))
        context.commit_step([7] * count)
        context.reset()
    assert len(seen) == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second CUDA device")
def test_a_pool_is_written_on_its_own_device() -> None:
    """P3: whichever device is the current one."""
    pool = KVPool(8, 1, 2, 8, "cuda:1", torch.float32)
    k = torch.randn(2, 2, 8, device="cuda:1")
    pool.set_kv_buffer(0, torch.tensor([3, 5], device="cuda:1"), k, -k)
    assert torch.equal(pool.k_buffer[0][[3, 5]], k)
    assert torch.equal(pool.v_buffer[0][[3, 5]], -k)
