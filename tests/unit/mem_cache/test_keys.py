"""Keys: the documented hashes, `RadixKey`, one encoding for every container, and what a node spells."""

from __future__ import annotations

import array
import enum
import hashlib
import struct
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.mem_cache import MambaRadixCache, MambaTreeNode, RadixCache, TreeNode
from pymllm.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    EvictResult,
    InsertResult,
    MatchResult,
    RadixKey,
    hash_bytes,
    hash_to_int64,
    hash_token_ids,
)
from pymllm.mem_cache.tree.token_encoding import BYTES_PER_ID, decode_tokens, encode_tokens

# -- hashes, keys and what every cache inherits --------------------------------------------------------------


CONTAINERS = [
    list,
    tuple,
    lambda tokens: array.array("I", tokens),
    lambda tokens: array.array("q", tokens),
    lambda tokens: np.array(tokens, dtype=np.int32),
    lambda tokens: np.array(tokens, dtype=np.uint64),
    lambda tokens: torch.tensor(tokens, dtype=torch.int32),
    lambda tokens: torch.tensor(tokens, dtype=torch.int64),
]
each_container = pytest.mark.parametrize("container", CONTAINERS)


def sha(*tokens: int, prior: bytes = b"") -> str:
    """Hash a page by hand: raw prior bytes, then 4 bytes per token, little-endian."""
    return hashlib.sha256(prior + struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()


class TestHashes:
    @pytest.mark.notices("B136", when="list")
    @each_container
    def test_page_hash_is_sha256_of_little_endian_tokens(self, container: Any) -> None:
        """H1: each token is four bytes, little-endian, whatever holds it."""
        assert hash_token_ids(container([1, 256, 70_000])) == sha(1, 256, 70_000)

    def test_prior_hash_goes_first_as_raw_bytes(self) -> None:
        """H1: the digest of the page before seeds the next one."""
        prior = sha(1, 2)
        assert hash_token_ids([3, 4], prior) == sha(3, 4, prior=bytes.fromhex(prior))
        assert hash_token_ids([3, 4], prior) != hash_token_ids([3, 4])

    def test_bigrams_hash_element_by_element(self) -> None:
        """H1: a tuple of tokens is its elements in order."""
        assert hash_token_ids([(1, 2), (3, 4)]) == sha(1, 2, 3, 4)

    @pytest.mark.parametrize("step", [1, 2])
    @pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.uint32, np.int64, np.uint64])
    def test_every_dtype_holds_tokens_up_to_its_bound(self, dtype: Any, step: int) -> None:
        """H1: from 0 to the largest number of the dtype, or of 32 bits; strides do not matter."""
        most = min(int(np.iinfo(dtype).max), 2**32 - 1)
        held = np.zeros(3 * step, dtype)
        held[::step] = [0, 7, most]
        assert hash_token_ids(held[::step]) == sha(0, 7, most)

    @pytest.mark.parametrize(
        ("digest", "expected"),
        [
            ("0000000000000001" + "f" * 48, 1),
            ("7fffffffffffffff", 2**63 - 1),
            ("8000000000000000", -(2**63)),
            ("ffffffffffffffff" + "0" * 48, -1),
        ],
    )
    def test_first_16_digits_read_as_signed(self, digest: str, expected: int) -> None:
        """H1: two's complement, big-endian, the rest of the digest ignored."""
        assert hash_to_int64(digest) == expected

    @pytest.mark.notices("B142")
    @pytest.mark.parametrize("data", [b"", b"image", bytearray(b"image"), memoryview(b"image")])
    def test_content_hash_is_the_first_8_bytes_unsigned(self, data: Any) -> None:
        """H1: big-endian, unsigned."""
        assert hash_bytes(data) == struct.unpack(">Q", hashlib.sha256(data).digest()[:8])[0]


class Adapter(enum.StrEnum):
    """A namespace as a configuration may name it."""

    LORA = "lora"


class Layers(enum.IntEnum):
    """The same as a number."""

    TWO = 2


class Shouted(str):
    """A str subclass with a text of its own: capitals."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


class TestRadixKey:
    @each_container
    def test_key_reads_like_its_tokens(self, container: Any) -> None:
        """K1: length and iteration do not depend on the container; tokens come out as plain integers."""
        key = RadixKey(container([5, 6, 7]), "lora")
        assert len(key) == 3
        assert list(key) == [5, 6, 7]
        assert all(type(token) is int for token in key)

    @each_container
    @pytest.mark.parametrize(("index", "token"), [(0, 5), (2, 7), (-1, 7), (-3, 5)])
    def test_index_gives_a_key_of_one_token(self, container: Any, index: int, token: int) -> None:
        """K1: negative numbers count from the end."""
        part = RadixKey(container([5, 6, 7]), "lora")[index]
        assert isinstance(part, RadixKey)
        assert (list(part), part.extra_key) == ([token], "lora")

    def test_slice_of_an_array_copies_nothing(self) -> None:
        """K1: slicing a key of a million tokens costs what slicing an array does."""
        tokens = np.arange(10)
        assert np.shares_memory(RadixKey(tokens)[2:8].token_ids, tokens)

    def test_key_has_the_documented_slots_only(self) -> None:
        """K1: keys are small."""
        assert RadixKey.__slots__ == ("token_ids", "extra_key")
        assert not hasattr(RadixKey([1]), "__dict__")

    @pytest.mark.parametrize(
        ("given", "plain"), [(Adapter.LORA, "lora"), (Layers.TWO, 2), (Shouted("lora"), "lora")]
    )
    def test_a_namespace_counts_by_its_value(self, given: Any, plain: Any) -> None:
        """K1, H3: what is equal is one namespace, however it prints, compares and hashes itself."""
        key = RadixKey([1], given)
        assert (type(key.extra_key), key.extra_key) == (type(plain), plain)
        assert key[:1].extra_key == plain


class Nothing(BasePrefixCache):
    """The least a cache must define."""

    def reset(self) -> None:
        return super().reset()

    def match_prefix(self, key: RadixKey) -> MatchResult:
        return super().match_prefix(key)

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        return super().insert(key, value, **kwargs)

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        return super().evict(num_tokens, swa_num_tokens)

    def inc_lock_ref(self, node: Any) -> Any:
        return super().inc_lock_ref(node)

    def dec_lock_ref(self, node: Any, **kwargs: Any) -> None:
        return super().dec_lock_ref(node, **kwargs)


class TestBasePrefixCache:
    def test_interface_cannot_be_instantiated(self) -> None:
        """R: a cache without its six calls is no cache."""
        with pytest.raises(TypeError, match="abstract"):
            BasePrefixCache()

    def test_every_size_of_a_cache_without_sizes_is_zero(self) -> None:
        """R7: a cache that does not say otherwise holds nothing."""
        cache = Nothing()
        assert cache.evictable_size() == cache.protected_size() == cache.total_size() == 0
        assert cache.swa_evictable_size() == cache.swa_protected_size() == 0

    def test_total_is_evictable_and_protected(self) -> None:
        """R7: total_size is the sum of the two."""

        class Some(Nothing):
            def evictable_size(self) -> int:
                return 3

            def protected_size(self) -> int:
                return 4

        assert Some().total_size() == 7


# -- tokens as bytes -----------------------------------------------------------------------------------------


TOKENS = [1, 2, 300, 70_000, 2**31 - 1]
RAW = np.array(TOKENS, dtype="<u4").tobytes()


@pytest.mark.parametrize(
    "tokens",
    [
        TOKENS,
        tuple(TOKENS),
        array.array("i", TOKENS),
        array.array("L", TOKENS),
        np.array(TOKENS, dtype=np.int32),
        np.array(TOKENS, dtype=np.int64),
        np.array(TOKENS, dtype=np.uint32),
        np.array(TOKENS, dtype=np.uint64),
        np.array(TOKENS, dtype=">i4"),
        np.array(TOKENS, dtype=">i8"),
        np.repeat(np.array(TOKENS), 2)[::2],
        torch.tensor(TOKENS),
        torch.tensor(TOKENS, dtype=torch.int32),
        torch.tensor(TOKENS).repeat_interleave(2)[::2],
        [np.int64(token) for token in TOKENS],
    ],
)
def test_every_container_gives_the_same_bytes(tokens: Any) -> None:
    """K1: the same tokens are the same key, whatever holds them, contiguous or not."""
    assert encode_tokens(tokens) == (RAW, 1)


@pytest.mark.parametrize("empty", [[], (), array.array("I"), np.array([]), torch.tensor([])])
def test_empty_key_has_no_bytes(empty: Any) -> None:
    """R3: an empty key is a key, even where NumPy and torch make an empty list a float array."""
    assert encode_tokens(empty) == (b"", 1)


@pytest.mark.parametrize("width", [1, 3])
def test_decoding_returns_the_tokens(width: int) -> None:
    """K1: what was encoded comes back, in its shape, over the same bytes and read-only."""
    table = np.arange(12, dtype=np.uint32).reshape(-1, width)
    decoded = decode_tokens(*encode_tokens(list(map(tuple, table.tolist())) if width > 1 else table[:, 0]))
    assert decoded.tolist() == (table if width > 1 else table[:, 0]).tolist()
    assert not decoded.flags.writeable
    assert decoded.nbytes == 12 * BYTES_PER_ID


BUFFERS = {
    "int64": np.array,
    "big-endian": lambda tokens: np.array(tokens, dtype=">i8"),
    "strided": lambda tokens: np.repeat(np.array(tokens), 2)[::2],
    "array('q')": lambda tokens: array.array("q", tokens),
    "tensor": torch.tensor,
}


@pytest.mark.parametrize("length", [3, 4096, 4097, 16_383, 16_384, 20_000])
@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_wide_integers_are_read_alike_at_every_length(make: Any, length: int) -> None:
    """K1, R3: short, longer and long keys are cast in ways of their own; a part of a page is left out."""
    tokens = [*range(length - 2), 2**32 - 1, 2**31]
    raw = struct.pack(f"<{length}I", *tokens)
    assert encode_tokens(make(tokens)) == (raw, 1)
    whole = length - length % 16
    assert encode_tokens(make(tokens), 16) == (raw[: whole * BYTES_PER_ID], 1)


@pytest.mark.parametrize("length", [3, 4096, 4097, 20_000])
@pytest.mark.parametrize("wrong", [-1, 2**32, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_the_first_wide_integer_that_is_no_token_is_named(make: Any, wrong: int, length: int) -> None:
    """K1, X1: wherever it is, behind the last whole page too, and however long the key."""
    tokens = [7] * length
    tokens[-1] = 2**40
    tokens[-2] = wrong
    with pytest.raises(ValueError, match=f"token {wrong} is outside 0 .. "):
        encode_tokens(make(tokens), 4096)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, ">i4"])
def test_a_negative_narrow_integer_is_no_token(dtype: Any) -> None:
    """K1, X1: not even one whose bits would be a token."""
    with pytest.raises(ValueError, match="token -1 is outside"):
        encode_tokens(np.array([1, -1, -2], dtype))


class Numbered:
    """Knows a number and nothing else, as `__index__` alone allows."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


def test_whatever_has_a_number_is_a_token() -> None:
    """K1: elements are read by ``__index__``; one that is too large is named as any other."""
    assert encode_tokens([1, Numbered(2)]) == encode_tokens([1, 2])
    with pytest.raises(ValueError, match="token 1099511627776 "):
        encode_tokens([1, Numbered(2**40)])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_is_no_key() -> None:
    """K1, X1: it has no shape that a message could show."""
    batch = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])])
    with pytest.raises(TypeError, match=r"a nested tensor: give one of its rows, token_ids\[0\]"):
        encode_tokens(batch)


def test_an_error_of_the_copy_to_the_host_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: a device that fails is no fault of the tokens."""

    def fail(tokens: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    monkeypatch.setattr(torch.Tensor, "cpu", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        encode_tokens(torch.arange(3))


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["array", "tensor"])
@pytest.mark.parametrize("kind", ["int64", "int32", "uint32", "uint8"])
@pytest.mark.parametrize("shape", [(), (1, 5), (5, 1), (4, 2), (2, 2, 2), (3, 0), (1, 0), (0, 2)])
def test_only_one_dimension_is_a_sequence(make: Any, kind: str, shape: tuple[int, ...]) -> None:
    """K1, X1: a tokenizer's batch of shape (1, n) must not become one token of width n."""
    tokens = make(shape, dtype=getattr(torch if make is torch.zeros else np, kind))
    with pytest.raises(ValueError, match=r"token_ids has shape \(") as caught:
        encode_tokens(tokens)
    says = str(caught.value)
    assert str(shape) in says
    assert all(
        way in says for way in ("(token_ids[0])", "(token_ids.flatten())", "tuple, token_ids.tolist()")
    )
    assert encode_tokens(tokens.flatten())[1] == 1
    if len(shape) == 2 and shape[1] > 1:
        assert encode_tokens(list(map(tuple, tokens.tolist())))[1] == (shape[1] if shape[0] else 1)


def test_a_number_that_python_will_not_write_is_named_by_its_size() -> None:
    """X1: the message is ours, and short."""
    with pytest.raises(ValueError, match="token of 20001 bits is outside"):
        encode_tokens([1, 2**20_000])


# -- keys of nodes -------------------------------------------------------------------------------------------


Node = TreeNode | MambaTreeNode


@pytest.fixture(params=[RadixCache, MambaRadixCache], ids=["plain", "mamba"])
def cache(request: pytest.FixtureRequest) -> RadixCache | MambaRadixCache:
    kind: type[RadixCache | MambaRadixCache] = request.param
    return kind()


def put(cache: RadixCache | MambaRadixCache, key: RadixKey) -> Node:
    node: Node = cache.insert(key, torch.arange(len(key))).last_node
    return node


@pytest.mark.parametrize("kind", [TreeNode, MambaTreeNode])
def test_node_without_an_edge_has_no_key(kind: type[Node]) -> None:
    """R9: a node that is in no tree spells nothing."""
    assert kind().key is None


def test_key_is_made_once(cache: RadixCache | MambaRadixCache) -> None:
    """X5: who asks twice gets the same key, whose tokens cannot be written."""
    node = put(cache, RadixKey([1, 2, 3]))
    key = node.key
    assert node.key is key
    assert key is not None
    with pytest.raises(ValueError, match="read-only"):
        key.token_ids[0] = 9


def test_key_of_wide_tokens_finds_its_node(cache: RadixCache | MambaRadixCache) -> None:
    """K1: what a node spells is a key of the same width, and cannot be written either."""
    node = put(cache, RadixKey([(1, 2), (3, 4)], "lora"))
    key = node.key
    assert key is not None
    assert key.token_ids == ((1, 2), (3, 4))
    assert cache.insert(key, torch.arange(2)).last_node is node
    assert cache.insert(key, torch.arange(2)).adopted == ()


def test_key_follows_a_split(cache: RadixCache | MambaRadixCache) -> None:
    """R10: both halves spell their own part, also where the whole was asked for before."""
    lower = put(cache, RadixKey(np.arange(4), 7))
    assert list(lower.key or ()) == [0, 1, 2, 3]
    put(cache, RadixKey([0, 1, 9], 7))
    upper = lower.parent
    assert upper is not None
    for node, tokens in ((upper, [0, 1]), (lower, [2, 3])):
        assert node.key is not None
        assert (list(node.key), node.key.extra_key) == (tokens, 7)
