"""The adapter of `RadixKey` and the hash functions: what was asked arrives, and what came back is told."""

from __future__ import annotations

import pytest

from pymllm.adapters.key_forms import CONTAINERS
from pymllm.adapters.own_pools import KeysAndHashes
from pymllm.history.operations import HashBytes, HashInt64, HashPage, Key, Operation, PickToken, SliceKey
from pymllm.history.outcomes import Failed, Hashes, Number, Result, Tokens, Unsupported

# sha256sum of 01 00 00 00 and of the letters "abc".
DIGEST_OF_1 = "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450"
FIRST_OF_ABC = 0xBA7816BF8F01CFEA


def result_of(operation: Operation) -> Result:
    return KeysAndHashes("x", {}).apply(1, operation).result


@pytest.mark.parametrize("form", CONTAINERS)
def test_keys_are_read_from_every_container(form: str) -> None:
    """K1: plain numbers come out, whatever they went in as."""
    key = Key((7, 8, 9), "a", form)
    assert result_of(SliceKey(key, 1, None)) == Tokens((8, 9), "a")
    assert result_of(PickToken(key, -1)) == Tokens((9,), "a")
    assert result_of(HashPage(Key((1,), None, form))) == Hashes((DIGEST_OF_1,))


def test_tuples_stay_tuples() -> None:
    """K1: bigrams."""
    assert result_of(SliceKey(Key(((1, 2), (3, 4)), 5), 1, 2)) == Tokens(((3, 4),), 5)


def test_numbers_are_told() -> None:
    """H1: digests and bytes as integers."""
    assert result_of(HashInt64("f" * 16)) == Number(-1)
    assert result_of(HashBytes(b"abc".hex())) == Number(FIRST_OF_ABC)


def test_a_prior_is_passed_on() -> None:
    """H1: and what is none is refused there."""
    assert result_of(HashPage(Key((1,)), DIGEST_OF_1)) != Hashes((DIGEST_OF_1,))
    refused = result_of(HashPage(Key((1,)), "no digest"))
    assert isinstance(refused, Failed)
    assert refused.error == "ValueError"


@pytest.mark.parametrize("form", ["int32", "tensor32", "array"])
def test_tokens_that_a_container_cannot_hold_never_reach_the_class(form: str) -> None:
    """The container's error is not booked as the class's."""
    assert isinstance(result_of(HashPage(Key((2**40,), None, form))), Unsupported)
