"""The whole words of each refusal of prefix caches, keys and hashes; nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import LockError, OwnershipError, StaleNodeError, UsageError
from pymllm.mem_cache.base_prefix_cache import RadixKey, hash_to_int64, hash_token_ids
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
from pymllm.mem_cache.tree.lru_list import LRUList
from pymllm.mem_cache.tree.node import MambaTreeNode, TreeNode
from tests.unit.refusals import Refusal, all_refusals, check_refusal, refusal_by, refusal_of


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


TOKENS = (
    "token_ids is a {}: give a list, tuple, array.array, NumPy array or tensor of integers",
    "tokens are integers, or tuples of them of one length",
    "is outside 0 .. 2**32 - 1: fold larger ids into 32 bits first",
    "a key is one sequence: give one row of a batch (token_ids[0]), or all as one (token_ids.flatten()); "
    "tokens of several integers are a list of tuples (list(map(tuple, token_ids.tolist())))",
    "tokens are integers, give an integer dtype",
)
BATCH = "; of a batch of prompts give one, as token_ids[{}]"

no_hash = refusal_by(hash_token_ids)
no_number = refusal_by(hash_to_int64)
no_key = refusal_by(RadixKey)

KEYS = [
    no_hash(
        TypeError,
        "token_ids is a masked array, and under its mask there is no number: give .compressed(), which "
        "leaves that out, or .filled(number)",
        np.ma.array([1, 2], mask=[False, True]),
    ),
    *(
        no_hash(TypeError, TOKENS[0].format(type(tokens).__name__), tokens)
        for tokens in (
            *(None, 5, "12", b"abc", bytearray(b"abc"), memoryview(b"abc")),
            *({1, 2}, frozenset({1}), {1: 2}, {1: 2}.keys(), range(3), iter([1, 2])),
            *((token for token in [1, 2]), np.int64(5), np.float64(5.0)),
        )
    ),
    no_hash(TypeError, f"token_ids[1] has 2.0: {TOKENS[1]}", [1, 2.0]),
    no_hash(TypeError, f"token_ids[2] has 'x': {TOKENS[1]}", [0, 2**32 - 1, "x"]),
    no_hash(ValueError, f"token -1 {TOKENS[2]}", [0, 2**32 - 1, -1]),
    no_hash(TypeError, f"token_ids[2] has True: {TOKENS[1]}", [7, 9, True]),
    no_hash(TypeError, f"token_ids[1] has False: {TOKENS[1]}", [(7, 9), (3, False)]),
    no_hash(TypeError, f"token_ids[1] has None: {TOKENS[1]}", [(7, 9), (3, None)]),
    no_hash(TypeError, f"token_ids[1] has tensor(False): {TOKENS[1]}", [5, torch.tensor(False)]),
    no_hash(TypeError, f"token_ids[1] has (1, 2): {TOKENS[1]}", [1, (1, 2)]),
    *(
        no_hash(
            ValueError,
            f"token_ids[{at}] has {tokens[at]!r} where token_ids[0] has a tuple of {len(tokens[0])}: "
            "one key has one token width, give a key for each",
            tokens,
        )
        for at, tokens in (
            (1, [(1, 2), (1, 2, 3)]),
            (1, [(1, 2), (3,)]),
            (2, [(1, 2), (5, 6), 3]),
            (1, [(1, 2), [3, 4]]),
            (1, [(1, 2), ()]),
            (1, ((1, 2, 3), (1, 2))),
        )
    ),
    no_hash(ValueError, f"token -1 {TOKENS[2]}", [1, -1]),
    no_hash(ValueError, f"token {2**32} {TOKENS[2]}", [1, 2**32]),
    no_hash(ValueError, f"token {2**32} {TOKENS[2]}", [(1, 2), (3, 2**32)]),
    no_hash(ValueError, f"token -2 {TOKENS[2]}", np.array([3, -2])),
    no_hash(ValueError, f"token {2**32} {TOKENS[2]}", np.array([3, 2**32, -2], dtype=np.int64)[::1]),
    no_hash(ValueError, f"token -2 {TOKENS[2]}", ints(3, -2)),
    *(
        no_hash(ValueError, f"token {numbers[-2]} {TOKENS[2]}", np.array(numbers, dtype)[::-1])
        for numbers, dtype in (
            ([3, -2, 0], np.int8),
            ([3, -2, 0], np.int32),
            ([3, -2, 0], np.int64),
            ([3, 2**32, 0], np.int64),
            ([3, 2**32, 0], np.uint64),
        )
    ),
    *(
        no_hash(ValueError, f"token {number} {TOKENS[2]}", np.array([0, number, 2**33]))
        for number in (-2, 2**32)
    ),
    no_hash(TypeError, f"token_ids has dtype float64: {TOKENS[4]}", np.array([1.0])),
    no_hash(
        TypeError,
        f"token_ids has dtype bool: {TOKENS[4]}",
        np.array([], dtype=bool),
    ),
    no_hash(
        TypeError,
        f"token_ids has dtype torch.float32: {TOKENS[4]}",
        torch.ones(1),
    ),
    no_hash(
        TypeError,
        f"token_ids has dtype torch.bool: {TOKENS[4]}",
        torch.ones(0, dtype=torch.bool),
    ),
    no_hash(
        TypeError,
        "token_ids has layout torch.sparse_coo: give a dense tensor of integers",
        ints(1).to_sparse(),
    ),
    no_hash(
        TypeError,
        "token_ids is on the meta device, which holds no numbers: give the tokens themselves",
        ints(1).to("meta"),
    ),
    no_hash(TypeError, f"token_ids[0] has tensor([7]): {TOKENS[1]}{BATCH.format(0)}", [ints(7)]),
    no_hash(TypeError, f"token_ids[1] has array([7]): {TOKENS[1]}{BATCH.format(1)}", [5, np.array([7])]),
    no_hash(ValueError, f"token_ids has shape (1, 1, 1), {TOKENS[3]}", np.zeros((1, 1, 1), int)),
    no_hash(ValueError, f"token_ids has shape (1, 40), {TOKENS[3]}", torch.zeros((1, 40), dtype=torch.int64)),
    no_hash(ValueError, f"token_ids has shape (), {TOKENS[3]}", np.array(5)),
    no_hash(TypeError, f"token_ids[0] has [7, 8]: {TOKENS[1]}{BATCH.format(0)}", [[7, 8]]),
    *(
        no_hash(
            ValueError,
            f"token_ids[0] has {tokens[0]!r}: tuples have two integers or more, the width of a token; "
            "give plain integers for a width of 1",
            tokens,
        )
        for tokens in ([(7,), (8,)], ((7,),), [()])
    ),
    no_hash(TypeError, "prior_hash is 5: give the hex digest of the page before, or None", [1], 5),
    *(
        no_hash(
            ValueError,
            f"prior_hash is {prior!r}: give the hex digest of the page before, or None for a first page",
            [1],
            prior,
        )
        for prior in ("abc", "ab cd", " abcd", "not hex", "", "٣٣")
    ),
    no_number(TypeError, "hex_str is 5: give a hex digest", 5),
    *(
        no_number(ValueError, f"hex_str is {digits!r}: give at least 16 hexadecimal digits", digits)
        for digits in ("0" * 15, "0" * 14, "x" * 16)
    ),
    Refusal(
        lambda _: RadixKey([1, 2])[2],
        IndexError,
        "index 2 is outside a key of 2 tokens; negative numbers count from its end",
    ),
    Refusal(
        lambda _: RadixKey([1, 2])[-3],
        IndexError,
        "index -3 is outside a key of 2 tokens; negative numbers count from its end",
    ),
    Refusal(lambda _: RadixKey([1, 2])["1"], TypeError, "index must be an int, got str '1'"),
    no_key(TypeError, "extra_key is True: give None, a str or an int, or a tuple of these", [1], True),
    no_key(TypeError, "extra_key is b'a': give None, a str or an int, or a tuple of these", [1], b"a"),
    no_key(TypeError, "extra_key is 1.5: give None, a str or an int, or a tuple of these", [1], ("a", 1.5)),
    no_key(TypeError, "extra_key is ('a',): give None, a str or an int, or a tuple of these", [1], (("a",),)),
    no_key(
        TypeError, "extra_key is ['a', 'b']: give None, a str or an int, or a tuple of these", [1], ["a", "b"]
    ),
    no_key(
        ValueError,
        r"extra_key is 'a\ud800', whose character 1 is half of a surrogate pair: "
        "give text that UTF-8 can spell",
        [1],
        "a\ud800",
    ),
]


@all_refusals(KEYS)
def test_a_key_is_refused_with_what_is_wrong_in_it(refusal: Refusal) -> None:
    """X1, H1, K1: the token or its place, and what a token is."""
    check_refusal(None, refusal)


# -- what every cache refuses ----------------------------------------------------------------------------

Cache = RadixCache | MambaRadixCache


def fill(cache: Cache) -> Cache:
    """Cache two prefixes of four tokens that share two."""
    for tokens in ([1, 2, 3, 4], [1, 2, 5, 6]):
        slots = cache.pool.alloc(4)
        cache.pool.free(slots[: cache.insert(RadixKey(tokens), slots).prefix_len])
    return cache


def make_plain(page_size: int = 2, **changes: Any) -> RadixCache:
    """Return a cache of pages of two, with two pages of its pool unowned."""
    pool = TokenToKVPoolAllocator(16, "cpu", page_size)
    return fill(RadixCache(page_size, token_to_kv_pool_allocator=pool, **changes))


def make_window(page_size: int = 2, **changes: Any) -> RadixCache:
    pool = SWATokenToKVPoolAllocator(16, 16, "cpu", page_size)
    return fill(RadixCache(page_size, 3, pool, **changes))


def make_states(page_size: int = 2, **changes: Any) -> MambaRadixCache:
    """The same with a pool of states, of whose track slots 2 .. 4 only 2 and 3 are handed out."""
    states = GDNPool(1, 1, 1, 1, 1, 1, 1, "cpu", max_track_slots=3)
    assert (states.alloc_track_slot(), states.alloc_track_slot()) == (2, 3)
    pool = TokenToKVPoolAllocator(16, "cpu", page_size)
    return fill(MambaRadixCache(page_size, pool, states, **changes))


KINDS = [make_plain, make_window, make_states]

NO_POOL = "is 5, which has no method {}: give a pool, or None"
NO_CALLBACK = "on_node_evict is 5: give a function of a node id, or None"

no_window = refusal_by(RadixCache)

MADE = [
    refusal
    for kind in (RadixCache, MambaRadixCache)
    for refusal in (
        Refusal(lambda _, kind=kind: kind("2"), TypeError, "page_size must be an int, got str '2'"),
        Refusal(lambda _, kind=kind: kind(0), ValueError, "page_size must be at least 1, got 0"),
        Refusal(
            lambda _, kind=kind: kind(
                2, token_to_kv_pool_allocator=TokenToKVPoolAllocator(8, "cpu", page_size=4)
            ),
            ValueError,
            "page_size is 2, but the pool's is 4: give both the same",
        ),
        Refusal(
            lambda _, kind=kind: kind(token_to_kv_pool_allocator=5),
            TypeError,
            f"token_to_kv_pool_allocator {NO_POOL.format('free')}",
        ),
        Refusal(lambda _, kind=kind: kind(on_node_evict=5), TypeError, NO_CALLBACK),
    )
] + [
    no_window(TypeError, "sliding_window_size must be an int, got str '4'", sliding_window_size="4"),
    no_window(ValueError, "sliding_window_size must be at least 1, got 0", sliding_window_size=0),
    Refusal(
        lambda _: MambaRadixCache(mamba_pool=5), TypeError, f"mamba_pool {NO_POOL.format('free_track_slot')}"
    ),
]


@all_refusals(MADE)
def test_no_cache_is_made_of_malformed_arguments(refusal: Refusal) -> None:
    """X1: each argument by its name, and where two do not fit, both."""
    check_refusal(None, refusal)


def insert(cache: Cache, value: Any, tokens: Any = (1, 2, 3, 4), **options: Any) -> None:
    cache.insert(RadixKey(list(tokens)), value, **options)


SLOTS = ints(10, 11, 12, 13)
WRAP = "wrap the tokens in RadixKey(token_ids, extra_key)"

NODE_CALLS = ("inc_lock_ref", "dec_lock_ref", "compute_node_hash")
STALE = "is not in this cache: it was evicted, the cache was reset, or it is another's; match again"

no_match = refusal_of("match_prefix")
no_insert = refusal_of(insert)
no_evict = refusal_of("evict")

OF_ALL = [
    no_match(TypeError, f"key is a list: {WRAP}", [1]),
    Refusal(lambda cache: cache.insert((1, 2), ints(2, 3)), TypeError, f"key is a tuple: {WRAP}"),
    no_match(ValueError, f"token -3 {TOKENS[2]}", RadixKey([1, 2, -3])),
    no_match(ValueError, f"token -5 {TOKENS[2]}", RadixKey(np.array([1, 2, -5]))),
    no_insert(
        ValueError,
        "value is None: give one slot per token (token ids stand in only for plain tokens without a pool)",
        None,
    ),
    no_insert(TypeError, "value is a list: give a 1-D integer tensor of slots", [10, 11, 12, 13]),
    no_insert(TypeError, "value has dtype torch.float32: slots are integers", torch.ones(4)),
    no_insert(
        TypeError,
        "value has layout torch.sparse_coo: give a dense tensor of slots",
        SLOTS.to_sparse(),
    ),
    no_insert(
        TypeError,
        "value is on the meta device, which holds no numbers: give the slots themselves",
        SLOTS.to("meta"),
    ),
    no_insert(
        ValueError, "value has shape (3,) for a key of 4 tokens: give one slot per token", ints(10, 11, 12)
    ),
    no_insert(
        ValueError,
        f"value has slot {2**63}: slots are stored as int64, give numbers below 2**63",
        torch.tensor([10, 11, 2**63, 2**63 + 1], dtype=torch.uint64),
    ),
    *(
        no_insert(
            ValueError,
            f"page {page} of the key has slots {slots[2 * page : 2 * page + 2]}: give one page of the pool, "
            "in order, starting at a multiple of 2",
            ints(*slots),
        )
        for page, slots in (
            (1, [10, 11, 13, 14]),
            (1, [10, 11, 13, 12]),
            (1, [10, 11, 12, 12]),
            (0, [10, 12, 13, 14]),
        )
    ),
    no_insert(
        ValueError,
        "value has shape (2, 2) for a key of 4 tokens: give one slot per token",
        SLOTS.view(2, 2),
    ),
    no_evict(TypeError, "num_tokens must be an int, got str '1'", "1"),
    no_evict(TypeError, "swa_num_tokens must be an int, got str '1'", 0, "1"),
    *(
        Refusal(
            lambda cache, name=name: getattr(cache, name)(type(cache.root_node)()),
            StaleNodeError,
            f"node 1 {STALE}",
        )
        for name in NODE_CALLS
    ),
    Refusal(
        lambda cache: cache.dec_lock_ref(last_of(cache)),
        LockError,
        "node 2 has no hold of its own: release a hold at the node it was taken on, once",
    ),
]

no_node_hash = refusal_of("compute_node_hash")

PLAIN = [
    *(
        refusal_of(name)(TypeError, "node is a str: give a TreeNode of this cache", "root")
        for name in NODE_CALLS
    ),
    no_node_hash(TypeError, "node is None: give a TreeNode of this cache", None),
    *(
        no_insert(TypeError, f"{name} must be an int, got str '1'", SLOTS, **{name: "1"})
        for name in ("prev_prefix_len", "swa_evicted_seqlen")
    ),
    *(
        no_insert(
            ValueError,
            f"{name} is {length}: give 0 .. 4, the length of the key",
            SLOTS,
            **{name: length},
        )
        for name in ("prev_prefix_len", "swa_evicted_seqlen")
        for length in (-1, 5)
    ),
]

WINDOW = [
    no_insert(
        ValueError,
        "prev_prefix_len is 4: give no more whole pages of 2 than are cached (2 tokens)",
        SLOTS,
        (1, 2, 8, 9),
        prev_prefix_len=4,
    ),
    no_insert(
        ValueError,
        "swa_evicted_seqlen is 3: give whole pages of 2",
        SLOTS,
        swa_evicted_seqlen=3,
    ),
]

STATES = [
    *(
        refusal_of(name)(TypeError, "node is a TreeNode: give a MambaTreeNode of this cache", TreeNode())
        for name in NODE_CALLS
    ),
    no_node_hash(TypeError, "node is None: give a MambaTreeNode of this cache", None),
    *(
        no_insert(
            ValueError,
            f"mamba_value comes with a key of {len(tokens)} tokens: "
            "a state belongs to the end of a key of whole pages of 2, at least one",
            torch.arange(len(tokens)),
            tokens,
            mamba_value=ints(2),
        )
        for tokens in ((), (1,))
    ),
    *(
        no_insert(
            TypeError,
            f"mamba_value is {given}: give a 1-D integer tensor of one track slot, torch.tensor([slot])",
            SLOTS,
            mamba_value=value,
        )
        for value, given in ((2, "an int"), ([2], "a list"), (True, "a bool"))
    ),
    no_insert(
        TypeError,
        "mamba_value has dtype torch.float32: track slots are integers",
        SLOTS,
        mamba_value=torch.ones(1),
    ),
    *(
        no_insert(
            ValueError,
            f"mamba_value has shape {tuple(value.shape)}: give exactly one track slot, shape (1,)",
            SLOTS,
            mamba_value=value,
        )
        for value in (torch.tensor(2), ints(), ints(2, 3), ints(2)[None])
    ),
    no_insert(
        TypeError,
        "mamba_value is on the meta device: give a real track slot",
        SLOTS,
        mamba_value=ints(2).to("meta"),
    ),
    *(
        no_insert(
            OwnershipError,
            f"mamba_value is {slot}: track slots are in 1 .. 2**63 - 1",
            SLOTS,
            mamba_value=torch.tensor([slot], dtype=dtype),
        )
        for slot, dtype in ((0, torch.int64), (-1, torch.int32), (2**63, torch.uint64))
    ),
    *(
        no_insert(
            OwnershipError,
            f"mamba_value is {slot}, which mamba_pool has not handed out: "
            "give slots that its alloc_track_slot returned",
            SLOTS,
            mamba_value=ints(slot),
        )
        for slot in (1, 4, 5, 2**40)
    ),
]


def last_of(cache: Cache) -> Any:
    """Return the oldest node that has no children; nobody holds one."""
    return min((node for node in cache._tree.nodes() if not node.children), key=lambda node: node.id)


@all_refusals(OF_ALL)
@pytest.mark.parametrize("make", KINDS)
def test_a_refused_call_leaves_the_cache_alone(make: Callable[[], Cache], refusal: Refusal) -> None:
    """X1, R1, R6: in the same words with a window, with states and without."""
    check_refusal(make(), refusal)


@all_refusals(PLAIN)
@pytest.mark.parametrize("make", [make_plain, make_window])
def test_a_refused_call_leaves_a_cache_without_states_alone(
    make: Callable[[], Cache], refusal: Refusal
) -> None:
    """X1, R6: lengths are of the key, nodes of the cache's kind."""
    check_refusal(make(), refusal)


@all_refusals(WINDOW)
def test_a_refused_insert_leaves_a_window_alone(refusal: Refusal) -> None:
    """X1: lengths are of whole pages that are cached."""
    check_refusal(make_window(), refusal)


@all_refusals(STATES)
def test_a_refused_insert_leaves_the_states_alone(refusal: Refusal) -> None:
    """X1, M1, M7: what a state is, and whose."""
    check_refusal(make_states(), refusal)


def test_a_window_half_that_should_be_gone_is_named() -> None:
    """X1, S2: the token, its slot and what to do with it."""
    cache = make_window()
    slots = torch.cat([cache.match_prefix(RadixKey([1, 2, 3, 4])).indices, cache.pool.alloc(6)])
    words = (
        f"token 4 is before swa_evicted_seqlen, but slot {slots[4]} still has its window half: "
        "free_swa it first"
    )
    tokens = (1, 2, 3, 4, 7, 7, 8, 8, 9, 9)
    check_refusal(cache, no_insert(OwnershipError, words, slots, tokens, swa_evicted_seqlen=6))


def test_a_window_half_that_should_be_there_is_named() -> None:
    """X1, S2: the token, its slot and the bound that would be right."""
    cache = make_window()
    slots = torch.cat([cache.match_prefix(RadixKey([1, 2, 3, 4])).indices, cache.pool.alloc(8)])
    cache.pool.free_swa(slots[4:8])
    words = (
        f"token 6 is to have window KV, but slot {slots[6]} has no window half: swa_evicted_seqlen is 6; "
        "give 8 or more, and free_swa all halves before it"
    )
    tokens = (1, 2, 3, 4, 7, 7, 8, 8, 9, 9, 9, 9)
    check_refusal(cache, no_insert(OwnershipError, words, slots, tokens, swa_evicted_seqlen=6))


no_inc_lock_ref = refusal_of("inc_lock_ref")


def test_a_hold_where_the_window_is_dead_is_refused() -> None:
    """X1, S5: which node, and whose window."""
    cache = make_window()
    node = last_of(cache).parent
    cache.evict(0, 4)
    assert node.swa_tombstone
    words = (
        f"node {node.id} ends in a window with freed KV (sliding_window_size=3): "
        "hold the last_node of a match or insert"
    )
    check_refusal(cache, no_inc_lock_ref(ValueError, words, node))


@pytest.mark.parametrize("token", [99, None, "1", True])
def test_a_release_with_the_token_of_another_hold_is_refused(token: Any) -> None:
    """X1, S5: both tokens are named, and True is no 1."""
    pool = SWATokenToKVPoolAllocator(16, 16, "cpu", 2)
    cache = RadixCache(2, 3, pool)
    node = cache.insert(RadixKey(list(range(8))), pool.alloc(8)).last_node
    assert cache.inc_lock_ref(node) == 1
    words = (
        f"swa_boundary_id is {token!r}, but the hold at node {node.id} was given 1: "
        "pass the value that inc_lock_ref returned"
    )
    check_refusal(cache, Refusal(lambda it: it.dec_lock_ref(node, token), LockError, words))


@pytest.mark.parametrize("make", KINDS)
def test_a_reset_takes_its_nodes_apart(make: Callable[[], Cache]) -> None:
    """X7, R6: a node that somebody kept holds on to nothing, and is known as stale."""
    cache = make()
    nodes = list(cache._tree.nodes())
    cache.reset()
    for node in nodes:
        assert (node.children, node.parent, node.value) == ({}, None, None)
        words = f"node {node.id} {STALE}"
        check_refusal(cache, no_inc_lock_ref(StaleNodeError, words, node))


# -- calls from inside -----------------------------------------------------------------------------------

ENTRIES: dict[str, Callable[[Cache], object]] = {
    "reset": lambda cache: cache.reset(),
    "match_prefix": lambda cache: cache.match_prefix(RadixKey([1, 2])),
    "insert": lambda cache: cache.insert(RadixKey([1, 2]), ints(2, 3)),
    "evict": lambda cache: cache.evict(1),
    "inc_lock_ref": lambda cache: cache.inc_lock_ref(None),
    "dec_lock_ref": lambda cache: cache.dec_lock_ref(None),
}


def words_from(cache: Cache, entry: str) -> str:
    """Return the words in which a cache refuses a call."""
    with pytest.raises(RuntimeError) as raised:
        ENTRIES[entry](cache)
    assert type(raised.value) is RuntimeError
    return str(raised.value)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("make", KINDS)
def test_a_callback_may_not_call_the_cache(make: Callable[..., Cache], entry: str) -> None:
    """X1: the call is named, where it came from, what may be called there and when this may."""
    heard: list[str] = []
    cache = make()
    kept = cache.insert(RadixKey([7, 7]), cache.pool.alloc(2)).last_node
    before = kept.last_access_time, kept.lock_ref
    cache.on_node_evict = lambda node_id: heard.append(words_from(cache, entry))
    cache.evict(2)
    assert heard == [
        f"{entry} was called from on_node_evict: only sizes, hashes and pretty_print may be, "
        "do it after the cache has returned"
    ]
    assert (kept.last_access_time, kept.lock_ref) == before
    ENTRIES[entry](cache)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("outer", ["evict", "reset"])
@pytest.mark.parametrize("make", KINDS)
def test_a_pool_may_not_call_its_cache(
    make: Callable[..., Cache], outer: str, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: neither while an eviction gives slots back nor while a reset does."""
    heard: list[str] = []
    cache = make()
    monkeypatch.setattr(cache.pool, "free", lambda slots: heard.append(words_from(cache, entry)))
    ENTRIES[outer](cache)
    assert heard == [
        f"{entry} was called from a pool that the cache was calling: only sizes, hashes and pretty_print "
        "may be, do it after the cache has returned"
    ]
    ENTRIES["match_prefix"](cache)


# -- lists of nodes --------------------------------------------------------------------------------------


def make_list(_: None = None, mamba: bool = False) -> LRUList:
    nodes = LRUList(mamba)
    nodes.insert_mru(numbered(5))
    return nodes


def numbered(number: int, parent: MambaTreeNode | None = None) -> MambaTreeNode:
    node = MambaTreeNode()
    node.id, node.parent = number, parent
    return node


NO_NODE = "node is a str: give a MambaTreeNode"

no_touch_node_and_parents_mru = refusal_of("touch_node_and_parents_mru")

LISTS = [
    *(refusal_of(name)(TypeError, NO_NODE, "5") for name in ("insert_mru", "remove", "touch_mru")),
    no_touch_node_and_parents_mru(TypeError, NO_NODE, "5", numbered(1)),
    no_touch_node_and_parents_mru(TypeError, NO_NODE, numbered(1), "5"),
    *(
        refusal_of(name)(UsageError, "node 6 is not in the list: insert_mru it first", numbered(6))
        for name in ("remove", "touch_mru")
    ),
    *(
        Refusal(
            lambda nodes, name=name, end=end: getattr(nodes, name)(getattr(nodes, end)),
            UsageError,
            "node 1 is not in the list: insert_mru it first",
        )
        for name in ("remove", "touch_mru")
        for end in ("head", "tail")
    ),
    Refusal(
        lambda nodes: nodes.remove(next(iter(make_list(mamba=nodes.mamba)))),
        UsageError,
        "node 5 is not in the list: insert_mru it first",
    ),
    no_touch_node_and_parents_mru(
        UsageError, "node 6 is not in the list: insert_mru it first", numbered(6, root := numbered(9)), root
    ),
    Refusal(
        lambda nodes: nodes.insert_mru(next(iter(nodes))),
        UsageError,
        "node 5 is in the list already: touch_mru moves a member",
    ),
    *(
        Refusal(
            lambda nodes, end=end: nodes.insert_mru(getattr(nodes, end)),
            UsageError,
            "node 1 is in another list of this mode, or the sentinel of one: remove it there, "
            "or insert a node of your own",
        )
        for end in ("head", "tail")
    ),
    Refusal(
        lambda nodes: nodes.insert_mru(next(iter(make_list(mamba=nodes.mamba)))),
        UsageError,
        "node 5 is in another list of this mode, or the sentinel of one: remove it there, "
        "or insert a node of your own",
    ),
    Refusal(
        lambda nodes: nodes.touch_node_and_parents_mru(next(iter(nodes)), numbered(9)),
        UsageError,
        "node 9 is no ancestor of node 5: give the root above it",
    ),
]


@all_refusals(LISTS)
@pytest.mark.parametrize("mamba", [False, True])
def test_a_refused_node_leaves_the_list_alone(mamba: bool, refusal: Refusal) -> None:
    """X1: members, strangers and the ends of the list are told apart."""
    check_refusal(make_list(mamba=mamba), refusal)


def test_the_order_of_a_list_is_on_or_off() -> None:
    """X1: a number is neither."""
    words = "mamba must be True or False, got int 1"
    check_refusal(None, Refusal(lambda _: LRUList(1), TypeError, words))  # type: ignore[arg-type]
