"""The machinery that plants: it changes exactly what it says, and everything is as before afterwards."""

from __future__ import annotations

import traceback

import pytest
import torch

from pymllm.adapters.cabinet.planting import Edit, StaleEditError, planted
from pymllm.mem_cache import RadixKey, hash_bytes
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.host_store import HostSlotStore
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.oracle.request_judge import RequestJudge

KEYS = "pymllm.mem_cache.base_prefix_cache"
BIG = Edit(f"{KEYS}:hash_bytes", '"big"', '"little"')


def test_a_fault_reaches_every_importer_and_goes_with_its_block() -> None:
    """A name imported before runs the fault, and the old code after."""
    digest = hash_bytes(b"x").to_bytes(8, "big")
    with planted([BIG]):
        assert hash_bytes(b"x") == int.from_bytes(digest, "little")
    assert hash_bytes(b"x") == int.from_bytes(digest, "big")


def test_a_fault_goes_also_when_its_block_fails() -> None:
    """A noticing test raises, and the next one finds sound code."""
    sound = hash_bytes(b"x")
    with pytest.raises(ZeroDivisionError), planted([BIG]):
        _ = 1 / 0
    assert hash_bytes(b"x") == sound


def test_several_edits_of_one_function_add_up() -> None:
    """The second edit sees what the first one made."""
    with planted([BIG, Edit(BIG.target, "[:8]", "[:1]")]):
        assert hash_bytes(b"x") < 256


def test_properties_static_methods_and_classes_with_super_can_be_edited() -> None:
    """The function behind each is found, and super() in it still works."""
    edits = [
        Edit("pymllm.mem_cache.edge_slots:EdgeSlots.evicted", "_value is None", "_value is not None"),
        Edit("pymllm.oracle.request_judge:RequestJudge._is_limit", "limit >= 1", "limit >= 2"),
        Edit(
            "pymllm.mem_cache.host_pages:HostPages.__init__",
            "torch.arange(page_size",
            "torch.arange(page_size - 1",
        ),
    ]
    node = TreeNode()
    assert node.evicted
    assert RequestJudge._is_limit(1)
    with planted(edits):
        assert not node.evicted
        store = HostSlotStore(8, 4, torch.device("cpu"), True, True)
        assert store._offsets.tolist() == [0, 1, 2]
        assert store.pages == 2
        assert not RequestJudge._is_limit(1)


def test_several_lines_are_found_and_written_with_their_indentation() -> None:
    """An edit says how its lines stand to each other, not how deep they are."""
    edit = Edit(
        "pymllm.mem_cache.eviction:LeafPlan.take_leaves",
        "leaf = self._tree.victims.oldest_leaf()\nif leaf is None:\n    return",
        "leaf = self._tree.victims.oldest_leaf()\nif leaf is None or leaf:\n    return",
    )
    cache = RadixCache()
    cache.insert(RadixKey([1, 2]))
    with planted([edit]):
        assert cache.evict(2).full_evicted == 0
    assert cache.evict(2).full_evicted == 2


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(Edit(f"{KEYS}:hash_bytes", "no such text", ""), id="text is gone"),
        pytest.param(Edit(f"{KEYS}:hash_bytes", "data", ""), id="text is there twice"),
        pytest.param(Edit(f"{KEYS}:hash_nothing", "data", ""), id="function is gone"),
        pytest.param(
            Edit("pymllm.mem_cache.chunk_cache:ChunkCache.evictable_size", "0", "1"), id="inherited"
        ),
        pytest.param(Edit(f"{KEYS}:RadixKey", "extra_key", ""), id="a class"),
        pytest.param(Edit(f"{KEYS}:hash_bytes", "return", "return ("), id="no Python"),
    ],
)
def test_an_edit_that_no_longer_fits_is_an_error(edit: Edit) -> None:
    """A plant goes stale loudly, and none of its other edits is made."""
    sound = hash_bytes(b"x")
    with pytest.raises(StaleEditError), planted([BIG, edit]):
        pytest.fail("the block ran")
    assert hash_bytes(b"x") == sound


def test_a_traceback_shows_the_fault() -> None:
    """Who looks at a failure reads the edited line, and is told that it is one."""
    edit = Edit("pymllm.mem_cache.chunk_cache:ChunkCache.evict", "return EvictResult()", "return 1 // 0")
    with planted([edit]), pytest.raises(ZeroDivisionError) as caught:
        ChunkCache().evict(1)
    shown = "".join(traceback.format_tb(caught.value.__traceback__))
    assert "fault in pymllm.mem_cache.chunk_cache:ChunkCache.evict" in shown
    assert "return 1 // 0" in shown
