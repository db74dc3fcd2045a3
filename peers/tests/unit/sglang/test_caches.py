"""The adapters of sglang's prefix caches."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from peers.tests.unit.sglang.sglang_versions import needs_sglang_newer
from pymllm.adapters.base import BaseAdapter
from pymllm.adapters.registry import make_adapter
from pymllm.errors import AdapterError, InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.sglang.caches import (
    SglangRadix,
    SglangRust,
    SglangRustSWA,
    SglangSWA,
    SglangUnified,
    SglangUnifiedSWA,
    merge_ranges,
)
from pymllm_peers.sglang.package import OLDER, require_version
from pymllm_peers.sglang.pools import SglangPool

# -- What the adapters of sglang's prefix caches do in the place of sglang's own caller ----------------------


CONFIG = SglangRadix.CONFIGURATIONS[0]
FILL: list[ops.Operation] = [ops.Alloc(3), ops.Insert(ops.Key((1, 2, 3), "1"), (ops.Span(1, 0, 3),))]


def play(*operations: ops.Operation, **more: bool) -> list[out.Outcome]:
    adapter = make_adapter("sglang-radix", {**CONFIG, **more})
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


@needs_sglang_newer
def test_nodes_are_numbered_from_0_in_each_adapter() -> None:
    """X3: sglang counts those of all caches together."""
    views = [play(*FILL, ops.Match(ops.Key((1,), "1")), ops.Inspect())[-1].result for _ in range(2)]
    assert views[0] == views[1]
    assert isinstance(views[0], out.Inspected)
    assert [(node.id, node.parent, node.tokens, node.extra_key) for node in views[0].nodes] == [
        (1, None, (1,), "1"),
        (0, 1, (2, 3), "1"),
    ]
    assert all(isinstance(node, out.NodeView) and node.hit_count is None for node in views[0].nodes)


@needs_sglang_newer
def test_a_reset_frees_what_the_tree_held_unless_it_is_left_to_sglang() -> None:
    """X7: a server clears tree and pools together."""
    assert play(*FILL, ops.Reset())[-1].effects == (out.Effect("free", (1, 2, 3)),)
    whole, left = (play(*FILL, ops.Reset(), **more)[-1] for more in ({}, {"whole_reset": True}))
    assert (whole.sizes["available_size"], left.sizes["available_size"]) == (24, 21)
    assert whole.sizes["total_size"] == left.sizes["total_size"] == 0


@needs_sglang_newer
def test_holds_in_a_tree_that_was_reset_are_gone() -> None:
    """X7: a server resets when nothing runs."""
    outcomes = play(*FILL, ops.Lock(2), ops.Reset(), ops.Unlock(3), ops.Lock(2), ops.Unlock(6))
    assert [outcome.result for outcome in outcomes[4:]] == [out.Done(), out.Locked(), out.Done()]


@needs_sglang_newer
def test_what_it_cannot_do_is_not_supported() -> None:
    """Halves where there are none, a hold that is released elsewhere, token ids for slots."""
    asked: list[ops.Operation] = [
        ops.FreeSWA(()),
        ops.ReadHalves(()),
        ops.Unlock(3, at=2),
        ops.Insert(ops.Key((1,))),
    ]
    outcomes = play(*FILL, ops.Lock(2), *asked)
    assert all(isinstance(outcome.result, out.Unsupported) for outcome in outcomes[3:])
    with pytest.raises(ProgramError, match="step 1 gave no node"):
        play(ops.Alloc(1), ops.Lock(1))
    with pytest.raises(ProgramError, match="step 1 took no hold"):
        play(ops.Alloc(1), ops.Unlock(1))


@needs_sglang_newer
def test_what_the_cache_frees_is_an_effect() -> None:
    """And a match gives slots, prefix and dtype."""
    outcomes = play(*FILL, ops.Match(ops.Key((1, 2, 9), "1")), ops.Evict(1))
    assert outcomes[2].result == out.Matched((1, 2), 2, 2)
    assert outcomes[3].effects == (out.Effect("free", (3,)),)


# -- The adapter of sglang's ``RadixCache`` ------------------------------------------------------------------


CONFIG_SGLANG_RADIX = SglangRadix.CONFIGURATIONS[0]
is_missing = importlib.util.find_spec("sglang") is None


@pytest.mark.skipif(not is_missing, reason="sglang is installed")
class Allocator:
    """A little of sglang's: pages of four slots."""

    page_size = 4

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.freed: list[int] = []

    def alloc(self, need_size: int) -> torch.Tensor:
        self.asked.append(need_size)
        return torch.arange(4, 4 + need_size)

    def free(self, free_index: torch.Tensor) -> None:
        self.freed += free_index.tolist()


def test_the_pool_under_a_tree_knows_whole_pages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A3, A5: an allocation that ends inside a page takes all of it, and any slot of it gives all back."""
    monkeypatch.setattr(SglangRadix, "__init__", BaseAdapter.__init__)
    tree, allocator = SglangRadix("tree", {"page_size": 4}), Allocator()
    tree.pool = SglangPool(allocator, lambda effect: None)
    assert tree.alloc(6) == (4, 5, 6, 7, 8, 9)
    tree.free([7, 8])
    assert (allocator.asked, allocator.freed) == ([8], [4, 5, 6, 7, 8, 9, 10, 11])


def test_without_sglang_it_cannot_be_built_and_says_why() -> None:
    """The one line that ``pymllm verify --adapter sglang-radix`` prints then."""
    with pytest.raises(AdapterError, match="ImportError: sglang is not installed; tox -e peers installs it"):
        make_adapter("sglang-radix")


@needs_sglang_newer
def test_a_node_shows_what_it_holds() -> None:
    """Tokens, slots, holds, and no more memory than its slots take (X5)."""
    adapter = make_adapter("sglang-radix", CONFIG_SGLANG_RADIX)
    adapter.apply(1, ops.Alloc(2))
    adapter.apply(2, ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),)))
    adapter.apply(3, ops.Lock(2))
    shown = adapter.apply(4, ops.Inspect()).result
    assert isinstance(shown, out.Inspected)
    (node,) = shown.nodes
    assert (node.tokens, node.slots, node.lock_ref, node.kept_bytes) == ((1, 2), (1, 2), 1, 16)
    assert adapter.capabilities == {"pool", "extra_key", "inspect", "node_ids", "engine"}


@needs_sglang_newer
@pytest.mark.parametrize(("policy", "freed"), [("inserts", (3,)), ("priority", (1, 2))])
def test_a_policy_orders_leaves(policy: str, freed: tuple[int, ...]) -> None:
    """R11: by inserts, the older leaf has come twice; by priority, the other one was given one."""
    config = next(config for config in SglangRadix.CONFIGURATIONS if config.get("policy") == policy)
    adapter = make_adapter("sglang-radix", {**config, "page_size": 1})
    assert "ranked_policy" in adapter.capabilities
    adapter.apply(1, ops.Alloc(5))
    for step, (first, last, priority) in enumerate(((0, 2, 0), (3, 5, 0), (2, 3, 1)), 2):
        key = ops.Key((9,)) if priority else ops.Key((1, 2))
        adapter.apply(step, ops.Insert(key, (ops.Span(1, first, last),), priority=priority))
    assert adapter.apply(5, ops.Evict(1)).effects == (out.Effect("free", freed),)


# -- The adapters of sglang's unified tree: in Python and in Rust, alone and beside a window -----------------


NAMES = {
    "sglang-unified": SglangUnified,
    "sglang-rust": SglangRust,
    "sglang-unified-swa": SglangUnifiedSWA,
    "sglang-rust-swa": SglangRustSWA,
}


def test_the_trees_are_told_apart() -> None:
    """By sglang's own names, and each kind of memory by its."""
    assert [it.BACKEND for it in NAMES.values()] == ["python", "rust", "python", "rust"]
    assert [it.PARTS for it in NAMES.values()] == [("FULL",)] * 2 + [("FULL", "SWA")] * 2
    windows = [(it["window"], it.get("sliding_window")) for it in SglangRustSWA.CONFIGURATIONS]
    assert set(windows) == {(4, None), (6, None), (None, 4)}


@needs_sglang_newer
@pytest.mark.parametrize("name", NAMES)
def test_it_matches_and_evicts_over_its_own_pool(name: str) -> None:
    """R2, R5: slots with halves go as one, whichever of the two goes first."""
    adapter = make_adapter(name, dict(NAMES[name].CONFIGURATIONS[0]))
    adapter.apply(1, ops.Alloc(3))
    adapter.apply(2, ops.Insert(ops.Key((1, 2, 3)), (ops.Span(1, 0, 3),)))
    assert adapter.apply(3, ops.Match(ops.Key((1, 2)))).result == out.Matched((1, 2), 2, 2)
    evicted = adapter.apply(4, ops.Evict(99))
    assert evicted.result == out.Evicted(3)
    assert sorted(slot for effect in evicted.effects for slot in effect.slots) == [1, 2, 3]
    assert all(isinstance(effect, out.Effect) and effect.call == "free" for effect in evicted.effects)
    assert evicted.sizes["available_size"] == min(24, evicted.sizes.get("swa_available_size", 24))


@needs_sglang_newer
def test_only_the_tree_in_python_shows_nodes() -> None:
    """And only where no leaf is split for its window."""
    shown = {name: make_adapter(name).apply(1, ops.Inspect()).result for name in NAMES}
    assert shown.pop("sglang-unified") == out.Inspected(())
    assert all(isinstance(result, out.Unsupported) for result in shown.values())


@needs_sglang_newer
def test_halves_are_not_given_back_early_where_nobody_knows_of_the_window() -> None:
    """There would be tombstones, of which nothing is claimed."""
    assert isinstance(make_adapter("sglang-rust-swa").apply(1, ops.FreeSWA(())).result, out.Unsupported)


@needs_sglang_newer
def test_a_tree_is_asked_to_check_itself_when_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: as a server does when idle; a plain radix tree cannot."""
    assert make_adapter("sglang-radix").audit() == ()
    adapter = make_adapter("sglang-unified")
    adapter.apply(1, ops.Alloc(2))
    adapter.apply(2, ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),)))
    assert adapter.audit() == ("R9",)

    def fail() -> None:
        raise AssertionError("node 1234 is dead")

    monkeypatch.setattr(adapter.cache, "sanity_check", fail)
    with pytest.raises(InvariantViolation, match=r"^R9: the tree's own check says: node # is dead$"):
        adapter.audit()
    adapter.apply(3, ops.Lock(2))
    assert adapter.audit() == ()


WINDOWED = pytest.mark.parametrize("name", ["sglang-unified-swa", "sglang-rust-swa"])
FOLLOWED = SglangUnifiedSWA.CONFIGURATIONS[2]


@needs_sglang_newer
@WINDOWED
def test_a_window_is_known(name: str) -> None:
    """S3, S5: halves go early, an insert says which, and window sizes are told; a token by claim only."""
    told = []
    for also in ("", "hold_tokens"):
        adapter = make_adapter(name, {**FOLLOWED, "also": also})
        assert adapter.capabilities == {"pool", "extra_key", "node_ids", "swa", *also.split()}
        adapter.apply(1, ops.Alloc(5))
        assert adapter.apply(2, ops.FreeSWA((ops.Span(1, 0, 1),))).result == out.Done()
        key = ops.Key((1, 2, 3, 4, 5))
        inserted = adapter.apply(3, ops.Insert(key, (ops.Span(1, 0, 5),), swa_evicted_seqlen=1))
        assert (inserted.sizes["swa_evictable_size"], inserted.sizes["evictable_size"]) == (4, 5)
        held = adapter.apply(4, ops.Lock(3))
        assert isinstance(held.result, out.Locked)
        told.append(held.result.token)
        assert held.sizes["swa_protected_size"] == 4
        assert adapter.apply(5, ops.Unlock(4)).sizes["swa_protected_size"] == 0
        assert adapter.apply(6, ops.Reset()).effects == (out.Effect("free", (1, 2, 3, 4, 5)),)
    assert told[0] is None
    assert isinstance(told[1], int)


@needs_sglang_newer
@WINDOWED
@pytest.mark.parametrize("is_held", [True, False])
def test_a_tombstone_takes_what_comes(name: str, is_held: bool) -> None:
    """S2, R4: under a hold the halves alone, and the slots that brought them go back."""
    adapter = make_adapter(name, dict(FOLLOWED))
    adapter.apply(1, ops.Alloc(2))
    adapter.apply(2, ops.FreeSWA((ops.Span(1, 0, 2),)))
    adapter.apply(3, ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),), swa_evicted_seqlen=2))
    adapter.apply(4, ops.Alloc(4))
    if is_held:
        adapter.apply(5, ops.Insert(ops.Key((1, 2, 7, 7, 7, 7)), (ops.Span(1, 0, 2), ops.Span(4, 0, 4)), 2))
        adapter.apply(6, ops.Lock(5))
    adapter.apply(7, ops.Alloc(2))
    inserted = adapter.apply(8, ops.Insert(ops.Key((1, 2)), (ops.Span(7, 0, 2),)))
    assert inserted.result == out.Inserted(2, () if is_held else ((0, 2),), 2)
    moved = (out.Effect("move_swa", (7, 8), (1, 2)), out.Effect("free", (7, 8)))
    assert inserted.effects == (moved if is_held else (out.Effect("free", (1, 2)),))
    halves = adapter.apply(9, ops.ReadHalves((ops.Span(1, 0, 2), ops.Span(7, 0, 2)))).result
    assert isinstance(halves, out.Slots)
    assert [half > 0 for half in halves.swa_slots] == [is_held] * 2 + [not is_held] * 2


# -- The adapter of sglang's ``SWARadixCache``, which only older versions have -------------------------------


CONFIG_SGLANG_SWA = SglangSWA.CONFIGURATIONS[0]


def why_missing() -> str:
    """Say why there is no such cache here; nothing where there is one."""
    try:
        require_version(OLDER)
    except ImportError as error:
        return str(error)
    return ""


needs_sglang_older = pytest.mark.skipif(bool(why_missing()), reason=why_missing() or "it is there")


def test_windows_are_known_and_not_with_pages_of_either_size() -> None:
    """As of the unified tree."""
    sizes = {(it["page_size"], it["window"]) for it in SglangSWA.CONFIGURATIONS}
    assert sizes == {(page_size, window) for page_size in (1, 4) for window in (None, 4, 6)}


OLDER_FOLLOWED = [it for it in SglangSWA.CONFIGURATIONS if it["window"] == 4]


@needs_sglang_older
@pytest.mark.parametrize("config", OLDER_FOLLOWED, ids=lambda config: f"pages of {config['page_size']}")
def test_an_older_window_is_followed(config: Config) -> None:
    """S2, S3: halves go early, and window sizes tell what is left; a dead leaf goes with the one below."""
    size = int(config["page_size"] or 0)
    adapter, length = make_adapter("sglang-swa", dict(config)), 4 * size
    assert adapter.capabilities == {"pool", "extra_key", "node_ids", "swa"}
    adapter.apply(1, ops.Alloc(length))
    assert adapter.apply(2, ops.FreeSWA((ops.Span(1, 0, size),))).result == out.Done()
    key, slots = ops.Key((1,) * length), (ops.Span(1, 0, length),)
    inserted = adapter.apply(3, ops.Insert(key, slots, swa_evicted_seqlen=size))
    assert inserted.result == out.Inserted(0, ((0, length),), length)
    assert (inserted.sizes["swa_evictable_size"], inserted.sizes["evictable_size"]) == (3 * size, length)
    evicted = adapter.apply(4, ops.Evict(0, 99))
    assert evicted.result == out.Evicted(length, 3 * size)
    assert sum(len(effect.slots) for effect in evicted.effects if isinstance(effect, out.Effect)) == length


@needs_sglang_older
def test_an_older_insert_takes_no_key_of_which_nothing_lives() -> None:
    """Its caller never has one: it would free all of it."""
    adapter = make_adapter("sglang-swa", dict(OLDER_FOLLOWED[0]))
    adapter.apply(1, ops.Alloc(2))
    adapter.apply(2, ops.FreeSWA((ops.Span(1, 0, 2),)))
    dead = adapter.apply(3, ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),), swa_evicted_seqlen=2))
    assert isinstance(dead.result, out.Unsupported)


@needs_sglang_older
@pytest.mark.parametrize("is_held", [True, False])
def test_an_older_tombstone_takes_what_comes(is_held: bool) -> None:
    """S2, R4: under a hold the halves alone, and the slots that brought them go back."""
    adapter = make_adapter("sglang-swa", dict(OLDER_FOLLOWED[0]))
    adapter.apply(1, ops.Alloc(6))
    adapter.apply(2, ops.FreeSWA((ops.Span(1, 0, 2),)))
    key = ops.Key((1, 2, 7, 7, 7, 7))
    adapter.apply(3, ops.Insert(key, (ops.Span(1, 0, 6),), swa_evicted_seqlen=2))
    if is_held:
        adapter.apply(4, ops.Lock(3))
    adapter.apply(5, ops.Alloc(2))
    inserted = adapter.apply(6, ops.Insert(ops.Key((1, 2)), (ops.Span(5, 0, 2),)))
    assert inserted.result == out.Inserted(2, () if is_held else ((0, 2),), 2)
    moved = (out.Effect("move_swa", (7, 8), (1, 2)), out.Effect("free", (7, 8)))
    assert inserted.effects == (moved if is_held else (out.Effect("free", (1, 2)),))


@needs_sglang_older
def test_tombstones_that_go_along_are_counted_unless_it_is_left_to_sglang() -> None:
    """R5: a window's eviction takes them with the leaf, and tells nothing of them."""
    told = []
    for more in ({}, {"told_counts": True}):
        adapter = make_adapter("sglang-swa", {**OLDER_FOLLOWED[0], **more})
        adapter.apply(1, ops.Alloc(2))
        adapter.apply(2, ops.FreeSWA((ops.Span(1, 0, 1),)))
        adapter.apply(3, ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),), swa_evicted_seqlen=1))
        told.append(adapter.apply(4, ops.Evict(0, 1)).result)
    assert told == [out.Evicted(2, 1), out.Evicted(1, 1)]


def test_ranges_that_touch_are_one() -> None:
    """R3: in order, as an insert tells them."""
    assert merge_ranges([(0, 4), (4, 8), (12, 16)]) == ((0, 8), (12, 16))
    assert merge_ranges([]) == ()


def test_it_runs_where_its_version_is_and_says_so_elsewhere() -> None:
    """R2, R5, X7: a small life; or an error of a line where no such version is installed."""
    missing = why_missing()
    if missing:
        with pytest.raises(AdapterError, match=missing.partition(";")[0]):
            make_adapter("sglang-swa")
        return
    adapter = make_adapter("sglang-swa", dict(CONFIG_SGLANG_SWA))
    adapter.apply(1, ops.Alloc(3))
    assert adapter.apply(2, ops.Insert(ops.Key((1, 2, 3)), (ops.Span(1, 0, 3),))).result == out.Inserted(
        0, ((0, 3),), 3
    )
    assert adapter.apply(3, ops.Match(ops.Key((1, 2)))).result == out.Matched((1, 2), 2, 2)
    evicted = adapter.apply(4, ops.Evict(1))
    assert (evicted.result, evicted.effects) == (out.Evicted(1), (out.Effect("free", (3,)),))
    for step, operation in enumerate((ops.FreeSWA(()), ops.Inspect()), 5):
        assert isinstance(adapter.apply(step, operation).result, out.Unsupported)
    assert adapter.apply(7, ops.Reset()).result == out.Done()
    assert adapter.apply(8, ops.Reset()).sizes["available_size"] == 18
