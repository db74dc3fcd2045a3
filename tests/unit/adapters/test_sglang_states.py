"""sglang's allocator of states, as its caches and their caller use it."""

from __future__ import annotations

import torch

from pymllm.adapters.sglang.pools import SglangStates, settings_of_states
from pymllm.history.outcomes import Effect
from tests.unit.adapters.sglang_versions import needs_sglang


def test_settings_bound_nothing_and_name_the_chunk() -> None:
    """A server's own are about its kernels and its memory."""
    arguments, published = settings_of_states(4)
    assert arguments._mamba_cache_chunk_size == 4
    assert published["exec"].mamba.mamba_max_states_per_path < 0


@needs_sglang
def test_only_what_a_cache_gives_back_is_written_down() -> None:
    """M7: the caller's own calls are no effects."""
    seen: list[Effect] = []
    states = SglangStates(2, seen.append)
    assert (states.alloc(), states.alloc(), states.alloc()) == (1, 2, None)
    states.free(1)
    assert (seen, states.size()) == ([], 1)
    states.request_pool.mamba_allocator.free(torch.tensor([2]))
    states.request_pool.mamba_allocator.free(torch.tensor([], dtype=torch.int64))
    assert (seen, states.size()) == ([Effect("free_state", (2,))], 2)
