"""The documented hashes, `RadixKey`, the result records and what every prefix cache inherits."""

from __future__ import annotations

import array
import enum
import hashlib
import struct
from typing import Any

import numpy as np
import pytest
import torch

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

    def test_largest_token_is_hashed(self) -> None:
        """H1: tokens reach up to 2**32 - 1."""
        assert hash_token_ids([0, 2**32 - 1]) == sha(0, 2**32 - 1)

    @pytest.mark.parametrize("step", [1, 2])
    @pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.uint32, np.int64, np.uint64])
    def test_every_dtype_holds_tokens_up_to_its_bound(self, dtype: Any, step: int) -> None:
        """H1: from 0 to the largest number of the dtype, or of 32 bits; strides do not matter."""
        most = min(int(np.iinfo(dtype).max), 2**32 - 1)
        held = np.zeros(3 * step, dtype)
        held[::step] = [0, 7, most]
        assert hash_token_ids(held[::step]) == sha(0, 7, most)

    @pytest.mark.parametrize("token", [-1, 2**32, 2**40])
    @pytest.mark.parametrize("container", [list, np.array, torch.tensor])
    def test_token_outside_32_bits_is_refused(self, token: int, container: Any) -> None:
        """H1: a token that does not fit is an error that names it, never a wrapped number."""
        with pytest.raises(ValueError, match=str(token)):
            hash_token_ids(container([1, token]))

    @pytest.mark.parametrize("prior", ["not hex", "abc", "ab cd", " abcd", "", "٣٣"])
    def test_malformed_prior_hash_is_refused(self, prior: str) -> None:
        """H1, X1: a prior that is no digest is named in the error; blanks and nothing at all are none."""
        with pytest.raises(ValueError, match=f"prior_hash is '{prior}': give the hex digest"):
            hash_token_ids([1], prior)

    @pytest.mark.parametrize("prior", [5, b"abcd", ["ab"]])
    def test_a_prior_hash_is_a_string(self, prior: Any) -> None:
        """H1, X1: the error names the value and what to give."""
        with pytest.raises(TypeError, match=r"prior_hash is .*: give the hex digest"):
            hash_token_ids([1], prior)

    def test_arrays_among_the_tokens_are_refused(self) -> None:
        """K1, X1: a page of pages is no page."""
        with pytest.raises(TypeError, match=r"token_ids\[0\] has array"):
            hash_token_ids([np.array([1, 2])])

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

    @pytest.mark.parametrize("digest", ["", "0" * 15, "x" * 16])
    def test_too_little_hex_is_refused(self, digest: str) -> None:
        """X1: fewer than 16 hexadecimal digits are no digest."""
        with pytest.raises(ValueError, match="16 hexadecimal digits"):
            hash_to_int64(digest)

    @pytest.mark.parametrize("data", [b"", b"image", bytearray(b"image"), memoryview(b"image")])
    def test_content_hash_is_the_first_8_bytes_unsigned(self, data: Any) -> None:
        """H1: big-endian, unsigned."""
        assert hash_bytes(data) == struct.unpack(">Q", hashlib.sha256(data).digest()[:8])[0]

    def test_content_hash_may_exceed_the_signed_range(self) -> None:
        """H1: of a few inputs, some have the highest bit set and none is negative."""
        values = [hash_bytes(bytes([number])) for number in range(16)]
        assert max(values) >= 2**63
        assert min(values) >= 0


class Adapter(enum.StrEnum):
    """A namespace as a configuration may name it."""

    LORA = "lora"


class Layers(enum.IntEnum):
    """The same as a number."""

    TWO = 2


class Shouted(str):
    """A str that does not say what it is."""

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

    @pytest.mark.parametrize("bigrams", [[(1, 2), (3, 4)], ((1, 2), (3, 4))])
    def test_wide_tokens_come_out_as_tuples(self, bigrams: Any) -> None:
        """K1: a token of several integers is one token."""
        key = RadixKey(bigrams)
        assert len(key) == 2
        assert list(key) == [(1, 2), (3, 4)]
        assert list(key[1]) == [(3, 4)]

    @each_container
    def test_slice_keeps_the_namespace(self, container: Any) -> None:
        """K1: a part of a key is a key of the same namespace."""
        part = RadixKey(container([5, 6, 7, 8]), 12)[1:3]
        assert list(part) == [6, 7]
        assert part.extra_key == 12

    @each_container
    @pytest.mark.parametrize(("index", "token"), [(0, 5), (2, 7), (-1, 7), (-3, 5)])
    def test_index_gives_a_key_of_one_token(self, container: Any, index: int, token: int) -> None:
        """K1: negative numbers count from the end."""
        part = RadixKey(container([5, 6, 7]), "lora")[index]
        assert isinstance(part, RadixKey)
        assert (list(part), part.extra_key) == ([token], "lora")

    @each_container
    @pytest.mark.parametrize("index", [3, -4])
    def test_index_outside_is_an_error(self, container: Any, index: int) -> None:
        """X1: there is no token there, and the error says how many there are."""
        with pytest.raises(IndexError, match=f"index {index} is outside a key of 3 tokens"):
            RadixKey(container([5, 6, 7]))[index]

    @pytest.mark.parametrize("index", [1.0, "1", None, True])
    def test_an_index_is_an_integer_or_a_slice(self, index: Any) -> None:
        """X1: the error is about keys, not about how they count."""
        with pytest.raises(TypeError, match="index must be an int"):
            RadixKey([5, 6, 7])[index]

    def test_slice_of_an_array_copies_nothing(self) -> None:
        """K1: slicing a key of a million tokens costs what slicing an array does."""
        tokens = np.arange(10)
        assert np.shares_memory(RadixKey(tokens)[2:8].token_ids, tokens)

    def test_repr_shows_tokens_and_namespace(self) -> None:
        """K1: a key in an error message is recognisable and short."""
        assert repr(RadixKey([1, 2], "lora")) == "RadixKey(1, 2; extra_key='lora')"
        assert repr(RadixKey(range(20))).endswith("7, ... 12 more; extra_key=None)")

    def test_key_has_the_documented_slots_only(self) -> None:
        """K1: keys are small."""
        assert RadixKey.__slots__ == ("token_ids", "extra_key")
        assert not hasattr(RadixKey([1]), "__dict__")

    @pytest.mark.parametrize("extra_key", [1.5, b"lora", ("a",), True])
    def test_namespace_of_another_type_is_refused(self, extra_key: Any) -> None:
        """K1: extra_key is None, str or int; a bool would be mistaken for 1."""
        with pytest.raises(TypeError, match="extra_key"):
            RadixKey([1], extra_key)

    @pytest.mark.parametrize(
        ("given", "plain"), [(Adapter.LORA, "lora"), (Layers.TWO, 2), (Shouted("lora"), "lora")]
    )
    def test_a_namespace_counts_by_its_value(self, given: Any, plain: Any) -> None:
        """K1, H3: what is equal is one namespace, however it prints, compares and hashes itself."""
        key = RadixKey([1], given)
        assert (type(key.extra_key), key.extra_key) == (type(plain), plain)
        assert key[:1].extra_key == plain

    @pytest.mark.parametrize("extra_key", ["\ud800", "lora \udfff"])
    def test_a_namespace_that_utf_8_cannot_spell_is_refused(self, extra_key: str) -> None:
        """H3, X1: no hash could ever be told of its nodes; beyond ASCII everything else will do."""
        with pytest.raises(ValueError, match="half of a surrogate pair"):
            RadixKey([1], extra_key)
        assert RadixKey([1], "é \U0001f600").extra_key == "é \U0001f600"


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


class TestResults:
    def test_defaults_are_the_documented_ones(self) -> None:
        """R2, R3, R5: a result that says nothing says that nothing was found, adopted or evicted."""
        match = MatchResult(torch.empty(0))
        assert (match.last_node, match.prefix_len, match.mamba_branching_seqlen) == (None, 0, None)
        insert = InsertResult()
        assert (insert.prefix_len, insert.last_node, insert.mamba_exist, insert.adopted) == (
            0,
            None,
            False,
            (),
        )
        assert EvictResult() == EvictResult(0, 0, 0)


def test_a_digest_is_a_string() -> None:
    """H1, X1: what is no string is named, not indexed."""
    with pytest.raises(TypeError, match="hex_str is 5"):
        hash_to_int64(5)  # type: ignore[arg-type]
