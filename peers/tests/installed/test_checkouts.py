"""Classes of checkouts, and LMCache's, under a short search: nothing but what has a page is broken.

They run where variables such as `PYMLLM_MLLM` name checkouts, and where LMCache is installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from peers.benchmarks.run import Options, play
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import find_adapter, load_adapter, make_adapter
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.registry import load_machine, machines_for
from pymllm.machines.smoke import smoke_test
from pymllm_peers import ADAPTERS
from pymllm_peers.checkouts import Checkout
from pymllm_peers.minisgl.package import load_minisgl
from pymllm_peers.projects import CHECKOUTS
from pymllm_peers.routers import indexes
from pymllm_peers.scalellm import library

ENTRIES = [entry for entry in ADAPTERS if entry.checkout or entry.package == "lmcache"]
KNOWN = {
    "mllm-radix": {"R3", "R7"},
    "mllm-radix-window": {"R2", "R3", "R7"},
    "mllm-mamba": {"R3", "R7"},
    "mllm-rows": {"P1"},
    "mllm-buffers": {"P3"},
    "minisgl-radix": {"X5"},
    "aibrix-index": {"I1", "I2", "I3"},
    "llmd-index": {"I1", "I6"},
}
"""Laws with a page in peers/findings that a search without anything special breaks."""
BEHIND = {"whole_keys", "matched_first", "padded", "untold"}
"""Keys of configurations with which a search goes on behind those."""
AVOIDED = ("single_blocks", "known_parents", "own_contexts")
"""The same of routers' indexes, where all that a configuration has must be true."""


@pytest.fixture(autouse=True)
def is_there(entry: AdapterEntry) -> None:
    """Skip, with the reason, an adapter whose checkout or package is missing."""
    missing = entry.find_missing()
    if missing is not None:
        pytest.skip(missing)


def search(entry: AdapterEntry, config: Config) -> tuple[set[str], dict[str, str]]:
    """Return the laws that were tested with a configuration, and the laws that were broken."""
    laws: set[str] = set()
    broken: dict[str, str] = {}
    with closing(make_adapter(entry.name, config)) as adapter:
        capabilities = adapter.capabilities
    for place in machines_for(load_adapter(entry).KIND, capabilities):
        machine = make_machine(load_machine(place), entry.name, config)
        for seed in range(4):
            try:
                laws.update(drive(machine, seed, 60).examiner.judge.evidence.exercised)
            except InvariantViolation as violation:
                broken.setdefault(violation.law, str(violation))
    return laws, broken


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_adapter_is_sane(entry: AdapterEntry) -> None:
    """Before its implementation is judged."""
    assert smoke_test(entry).kind == load_adapter(entry).KIND


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_nothing_is_broken_but_what_has_a_page(entry: AdapterEntry) -> None:
    """A search breaks only laws with a page, and no law with a configuration that goes on behind those."""
    laws: set[str] = set()
    for config in load_adapter(entry).CONFIGURATIONS:
        tested, broken = search(entry, dict(config))
        laws |= tested
        is_behind = bool(BEHIND & config.keys()) and (
            entry.name != "mllm-radix-window" or "matched_first" in config
        )
        avoided = [config[key] for key in AVOIDED if key in config]
        is_behind |= bool(avoided) and all(avoided)
        assert broken.keys() <= (set() if is_behind else KNOWN.get(entry.name, set())), (config, broken)
    assert len(laws) >= 2


@pytest.mark.parametrize("entry", [find_adapter("minisgl-radix")], ids=["minisgl-radix"])
def test_a_row_goes_on_naming_pages_that_are_free(entry: AdapterEntry) -> None:
    """The second of two requests with one prompt has a row that names freed pages, as peers/findings says."""
    adapter: Any = make_adapter(entry.name)
    manager = adapter.manager
    manager.page_table = torch.tensor([[0, 1, 0], [2, 3, 0]], dtype=torch.int32)
    manager.free_slots = manager.free_slots[4:]
    handle, request = (
        manager.prefix_cache.match_prefix(torch.tensor([])).cuda_handle,
        load_minisgl("core").Req,
    )
    for row in range(2):
        running = request(torch.tensor([5, 6], dtype=torch.int32), row, 0, 1, row, None, handle)
        running.complete_one()
        manager.cache_req(running, finished=False)
    assert running.cache_handle.get_matched_indices().tolist() == [0, 1]
    assert manager.page_table[1, :2].tolist() == [2, 3]
    assert {2, 3} <= {*manager.free_slots.tolist()}


@pytest.mark.parametrize("entry", [find_adapter("lmdeploy-trie")], ids=["lmdeploy-trie"])
def test_uses_of_one_second_are_equally_old(entry: AdapterEntry) -> None:
    """Uses in one second are equally old for lmdeploy, as peers/findings says, but not for the adapter."""
    config = dict(load_adapter(entry).CONFIGURATIONS[0])
    for more, differ in ({"bare_clock": True}, False), ({}, True):
        adapter: Any = make_adapter(entry.name, {**config, **more})
        allocator = adapter.manager.allocator
        blocks = allocator.allocate(3)
        for block in range(3):  # in three uses at least two are of one second
            allocator.update_access_time(blocks[block : block + 1])
        assert (len({*allocator.get_access_time(blocks).tolist()}) == 3) is differ


@pytest.mark.parametrize(
    ("entry", "scenario", "contender"),
    [
        (find_adapter("mllm-radix"), "T2-p16", "mllm"),
        (find_adapter("mllm-slots"), "T5-64-p64", "mllm"),
        (find_adapter("mllm-mamba"), "T6a-leaf", "mllm"),
        (find_adapter("megatron-blocks"), "T5-64-p64", "megatron-lm"),
        (find_adapter("megatron-blocks"), "T7-evict-64", "megatron-lm"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_checkout_is_timed_beside_ours(entry: AdapterEntry, scenario: str, contender: str) -> None:
    """A contest with a checkout asserts the results that it times, and that nothing is lost."""
    row = play(scenario, Options(clock="cpu", scale=0.125, share=0.01, only=(contender,)))
    assert {one.contender.split()[0] for one in row.standings} == {"pymllm", contender}


Method = Callable[..., Any]


def split_unheld(split: Method) -> Method:
    """Let the upper half of a node begin without the holds of the whole."""

    def planted(node: Any, position: int) -> Any:
        upper = split(node, position)
        upper.ref_count = 0
        return upper

    return planted


def hand_out_again(take: Method) -> Method:
    """Let what is handed out stay where it was found."""

    def planted(owner: Any, *count: int) -> Any:
        names = [name for name in ("free_slots", "_free_slots") if hasattr(owner, name)]
        before = {name: getattr(owner, name)[:] for name in names}
        taken = take(owner, *count)
        vars(owner).update(before)
        return taken

    return planted


def queue_in_front(release: Method) -> Method:
    """Let what was let go of last be evicted first."""

    def planted(manager: Any, block: int) -> None:
        release(manager, block)
        manager.free_block_ids.rotate()

    return planted


def free_more(free: Method) -> Method:
    """Let a chunk behind a freed one go with it."""
    return lambda addresses, address, size: free(addresses, address, size + 8)


def lose(free: Method) -> Method:
    """Let nothing come back of a batch that could not be met."""
    return lambda allocator, chunks, update_stats=True: update_stats and free(allocator, chunks)


def keep_nothing(commit: Method) -> Method:
    """Let the trie name blocks that it has no reference to."""
    return lambda owner, node, ref_blocks, free_blocks: commit(owner, node, [], free_blocks)


def take_none_back(free: Method) -> Method:
    """Let what is freed stay handed out."""
    return lambda allocator, blocks: blocks


@pytest.mark.parametrize(
    ("entry", "path", "method", "fault"),
    [
        (find_adapter("minisgl-radix"), "cache.root_node", "split_at", split_unheld),
        (find_adapter("minisgl-slots"), "manager", "_allocate", hand_out_again),
        (find_adapter("minisgl-rows"), "table", "allocate", hand_out_again),
        (find_adapter("nano-blocks"), "manager", "_deallocate_block", queue_in_front),
        (find_adapter("lmdeploy-trie"), "trie._kv_lifecycle", "commit_path_extension", keep_nothing),
        (find_adapter("lmdeploy-blocks"), "manager.allocator", "free", take_none_back),
        (find_adapter("lmcache-chunks"), "allocator.address_manager", "free", free_more),
        (find_adapter("lmcache-pages"), "allocator", "batched_free", lose),
    ],
    ids=lambda value: (
        getattr(value, "name", value) if isinstance(value, AdapterEntry | str) else value.__name__
    ),
)
def test_a_planted_fault_is_found(
    entry: AdapterEntry,
    path: str,
    method: str,
    fault: Callable[[Method], Method],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A judge that finds nothing in them could be blind."""
    config = dict(load_adapter(entry).CONFIGURATIONS[-1])
    sound = make_adapter(entry.name, config)
    kind = type(attrgetter(path)(sound))
    monkeypatch.setattr(kind, method, fault(getattr(kind, method)))
    assert search(entry, config)[1]


_TREE = "src/memory/prefix_cache.cpp"
_FREE = "src/memory/block_allocator.cpp"
_TABLE = "pkg/utils/syncprefixcacheindexer/sync_hash.go"
_SCORER = "pkg/kvcache/kvblock_scorer.go"


@pytest.mark.parametrize(
    ("entry", "path", "text", "fault"),
    [
        (find_adapter("scale-prefix"), _TREE, "if (!blocks[non_shared_start].is_shared()) {", "if (true) {"),
        (find_adapter("scale-prefix"), _TREE, "num_blocks_ -= total_evicted;", ""),
        (find_adapter("scale-slots"), _FREE, "free_blocks_[num_free_blocks_++] = block_id;", ""),
        (find_adapter("aibrix-index"), _TABLE, "delete(pods, podName)\n\t\tif", "if"),
        (find_adapter("llmd-index"), _SCORER, "delete(activePods, pod)", ""),
    ],
    ids=lambda value: value.name if isinstance(value, AdapterEntry) else "",
)
def test_a_fault_planted_in_compiled_sources_is_found(
    entry: AdapterEntry, path: str, text: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are compiled as read, so another text is another program."""
    read, loads = Checkout.read, (library._load, indexes._compile)
    assert text.encode() in find_checkout(entry).read()[path]

    def planted(checkout: Checkout) -> dict[str, bytes]:
        files = read(checkout)
        return files | {path: files[path].replace(text.encode(), fault.encode())}

    monkeypatch.setattr(Checkout, "read", planted)
    # What Go has compiled of its own is found again; what is planted is not left behind.
    monkeypatch.setenv("GOCACHE", os.environ.get("GOCACHE") or f"{Path.home()}/.cache/go-build")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        for load in loads:
            load.cache_clear()
        assert search(entry, dict(load_adapter(entry).CONFIGURATIONS[-1]))[1]
    finally:
        for load in loads:
            load.cache_clear()


def find_checkout(entry: AdapterEntry) -> Checkout:
    (found,) = (checkout for checkout in CHECKOUTS if checkout is entry.checkout)
    return found
