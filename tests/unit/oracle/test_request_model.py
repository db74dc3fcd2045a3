"""The model of whole requests: what a configuration must have, offsets, and what is skipped."""

from __future__ import annotations

import pytest
from recorded_requests import CONFIG, SEVEN

from pymllm.errors import ProgramError
from pymllm.history.files import Config
from pymllm.oracle.request_model import DECODE, PAUSED, WAITING, RequestModel, ServedRequest


def served(
    model: RequestModel, step: int, tokens: tuple[int, ...], limit: int | None = None
) -> ServedRequest:
    """Take a request up, with the lowest free blocks."""
    request = model.meet(step, tokens, limit)
    missing = model.missing(request)
    model.blocks.retain(request.blocks)
    model.served[step] = request
    model.evict(missing)
    model.extend(request, [block for block in range(model.dummy) if model.blocks.is_free(block)][:missing])
    return request


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_requests", 0),
        ("num_blocks", 1),
        ("block_size", None),
        ("paused_limit", -1),
        ("mamba_slots", "2"),
        ("hash_digits", 0),
        ("hash_digits", "2"),
        ("policy", "fifo"),
    ],
)
def test_a_configuration_that_makes_no_context_is_refused(key: str, value: int | str | None) -> None:
    """X1: by its key."""
    with pytest.raises(ProgramError, match=f"configuration's {key}"):
        RequestModel({**CONFIG, key: value})


@pytest.mark.parametrize(
    ("prompt", "limit", "chunk", "offsets"),
    [
        (7, None, 2, (6,)),  # the last block of the prompt, and of the chunk
        (8, None, 2, (6,)),  # the end of the prompt itself is not strictly inside
        (8, 5, 2, (4,)),  # the last block of the chunk
        (7, None, 4, ()),  # 6 is no multiple of 4
        (3, None, 2, (2,)),
        (1, None, 2, ()),
    ],
)
def test_offsets_of_a_first_chunk(
    prompt: int, limit: int | None, chunk: int, offsets: tuple[int, ...]
) -> None:
    """C8: relative to the first token computed, strictly inside, multiples of the kernel's chunk."""
    model = RequestModel({**CONFIG, "chunk_size": chunk})
    assert model.offsets(served(model, 1, tuple(range(prompt)), limit)) == offsets


def test_offsets_of_a_later_chunk_begin_where_it_does() -> None:
    """C8: what is finished counts, and the boundary of what was matched."""
    model = RequestModel(CONFIG)
    request = served(model, 1, SEVEN, 2)
    model.finish_step(request, 9)
    assert (request.region, request.start) == (WAITING, 2)
    request.chunk = request.plan_chunk(None)
    assert model.offsets(request) == (4,)


def test_a_hit_is_skipped_up_to_its_last_state() -> None:
    """E4: and never to the end of the prompt."""
    model = RequestModel(CONFIG)
    first = served(model, 1, SEVEN)
    assert model.register(first, 7) == [0, 1, 2]
    assert model.register(first, 7) == []
    assert model.meet(2, SEVEN, None).start == 0
    model.slots.of_block.update({1: 0, 2: 1})
    assert [model.meet(2, SEVEN[:count], None).start for count in (7, 6, 5, 4, 3)] == [6, 4, 4, 0, 0]
    assert model.meet(2, SEVEN, 1).stop == 7
    attention = RequestModel({**CONFIG, "layers": 0, "mamba_slots": 0})
    alone = served(attention, 1, SEVEN)
    attention.register(alone, 7)
    assert [attention.meet(2, SEVEN[:count], None).start for count in (7, 6, 2, 1)] == [6, 4, 0, 0]


def test_the_first_to_register_a_hash_keeps_it() -> None:
    """C3: what follows a block that came too late stays unregistered, even with a hash of its own."""
    model = RequestModel({**CONFIG, "num_blocks": 12})
    one, two = served(model, 1, SEVEN), served(model, 2, (*SEVEN[:4], 9, 9, 9))
    assert model.register(one, 7) == [0, 1, 2]
    assert model.register(two, 7) == []
    assert not two.is_known


def test_paused_requests_count_shared_blocks_once() -> None:
    """C1: with the one that is about to be paused."""
    model = RequestModel({**CONFIG, "num_blocks": 12})
    one = served(model, 1, SEVEN)
    model.register(one, 7)
    two = served(model, 2, SEVEN)
    one.region = PAUSED
    assert model.paused_with(two) == 5
    assert [request.step for request in model.of(PAUSED)] == [1]


def test_sizes_follow_requests_and_a_reset() -> None:
    """C1, C9: everything is free again, and requests are gone."""
    model = RequestModel(CONFIG)
    fresh = model.sizes()
    request = served(model, 1, SEVEN)
    model.finish_step(request, 5)
    assert (request.region, request.tokens[-1]) == (DECODE, 5)
    assert model.sizes() == fresh | {"pool_avail": 3, "request_count": 1, "decode_req_count": 1}
    model.clear()
    assert (model.sizes(), model.gone) == (fresh, {1})
    config: Config = {**CONFIG, "layers": 0}
    assert "free_count" not in RequestModel(config).sizes()


def test_nothing_is_kept_where_caching_is_off() -> None:
    """C3, E3: what a request computed is offered to nobody, and goes with it."""
    model = RequestModel({**CONFIG, "caching": False})
    request = served(model, 1, SEVEN)
    assert model.register(request, 7) == []
    assert not model.meet(2, SEVEN, None).blocks
    assert model.release(request) == request.blocks
    assert model.blocks.free == model.blocks.usable
