"""A pool that does not fit is refused by torch, and nothing of it stays behind."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.overrides import TorchFunctionMode

from pymllm.core.inference.contexts import DynamicInferenceContext
from pymllm.mem_cache.memory_pool import (
    GDNPool,
    KVPool,
    ReqToTokenPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)
from tests.stress.card import Card

MAKERS = (torch.zeros, torch.empty, torch.full, torch.arange, torch.ones)


class Shortage(TorchFunctionMode):
    """A mode in which the n-th new tensor fails for want of memory, and which remembers all made tensors."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self._fail_at = fail_at
        self._made: list[weakref.ref[torch.Tensor]] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function not in MAKERS:
            return function(*args, **(kwargs or {}))
        if len(self._made) == self._fail_at:
            raise torch.OutOfMemoryError("no memory is left, for the test's sake")
        tensor = function(*args, **(kwargs or {}))
        self._made.append(weakref.ref(tensor))
        return tensor

    @property
    def made(self) -> int:
        """How many tensors there were."""
        return len(self._made)

    def left(self) -> int:
        """Return how many of the made tensors are still referenced."""
        if any(it() is not None for it in self._made):
            gc.collect()
        return sum(it() is not None for it in self._made)


def make_context(device: torch.device, scale: int) -> DynamicInferenceContext:
    return DynamicInferenceContext(
        max_requests=4,
        num_blocks=33,
        max_blocks_per_request=8,
        block_size_tokens=4,
        mamba_chunk_size=2,
        mamba_slots=4 * scale,
        num_mamba_layers=2,
        conv_states_shape=(6, 3),
        ssm_states_shape=(2, 4, 4),
        conv_states_dtype=torch.bfloat16,
        paused_limit=8,
        device=device,
    )


# What it is, made with that many times its smallest size.
POOLS: dict[str, Callable[[torch.device, int], object]] = {
    "keys and values": lambda device, scale: KVPool(64 * scale, 8, 2, 4, device, torch.float16),
    "states": lambda device, scale: GDNPool(4 * scale, 3, 2, 4, 4, 6, 4, device, max_track_slots=4),
    "table": lambda device, scale: ReqToTokenPool(4 * scale, 64, device),
    "slots": lambda device, scale: TokenToKVPoolAllocator(
        256 * scale, device, check_ownership=True, store="device"
    ),
    "both halves": lambda device, scale: SWATokenToKVPoolAllocator(
        256 * scale, 128 * scale, device, 4, store="device"
    ),
    "context": make_context,
}
of_each_pool = pytest.mark.parametrize("name", POOLS)


def fails(make: Callable[[], object]) -> bool:
    """Whether memory does not suffice; the error is forgotten, with all that its frames hold."""
    try:
        make()
    except torch.OutOfMemoryError:
        return True
    return False


@of_each_pool
def test_whichever_tensor_fails_the_others_are_gone(card: Card, name: str) -> None:
    """X1: in the order of construction, each once; after it the same pool can be built."""
    make = functools.partial(POOLS[name], card.device, 1)
    with Shortage() as whole:
        pool = make()
    assert whole.left() > 0  # the count can tell
    for place in range(whole.made):
        with Shortage(place) as shortage:
            assert fails(make), place
        assert (shortage.made, shortage.left()) == (place, 0)
    with Shortage(whole.made):
        assert make() is not pool


@pytest.fixture
def _small_share(card: Card) -> Iterator[None]:
    """Let torch have little more of the device than it has: real failures come soon, and for no one else."""
    card.settle()
    total = torch.cuda.get_device_properties(card.device).total_memory
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved(card.device) + (256 << 20)) / total, card.device
    )
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, card.device)


@pytest.mark.gpu
@pytest.mark.parametrize("kv_device", ["cuda"], indirect=True)
@of_each_pool
@pytest.mark.usefixtures("_small_share")
def test_a_device_that_is_full_keeps_nothing(card: Card, name: str) -> None:
    """X1: by torch's allocator, with a pool of which some tensors fit and one does not."""
    make = functools.partial(POOLS[name], card.device)
    small = make(1)
    before = torch.cuda.memory_allocated(card.device)
    scale = 2
    while not fails(functools.partial(make, scale)):
        scale *= 2
    card.settle()
    assert torch.cuda.memory_allocated(card.device) == before
    assert make(1) is not small
