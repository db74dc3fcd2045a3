"""Page hashes, from the path alone."""

from __future__ import annotations

import hashlib

import pytest

from pymllm.errors import ProgramError
from pymllm.oracle.page_hashes import hash_pages
from pymllm.oracle.prefix_pages import Path, Space


def test_pages_chain_from_the_one_before() -> None:
    """H2: the tail after the last whole page has none."""
    first = hashlib.sha256(b"\x01\0\0\0\x02\0\0\0")
    second = hashlib.sha256(first.digest() + b"\x03\0\0\0\x04\0\0\0")
    hashes = hash_pages(Path(Space(), (1, 2, 3, 4, 5)), 2)
    assert hashes == (first.hexdigest(), second.hexdigest())


def test_tuples_are_hashed_element_by_element() -> None:
    """H1: a pair is eight bytes."""
    assert hash_pages(Path(Space(None, 2), ((1, 2),)), 1) == hash_pages(Path(Space(), (1, 2)), 2)


def test_a_namespace_seeds_the_first_page() -> None:
    """H3: 33 bytes, so that no tokens can collide; the string and the number differ."""
    named = hashlib.sha256(b"\0" + hashlib.sha256(b"i:1").digest()).digest()
    expected = hashlib.sha256(named + b"\x07\0\0\0").hexdigest()
    assert hash_pages(Path(Space(1), (7,)), 1) == (expected,)
    assert len({hash_pages(Path(Space(space), (7,)), 1) for space in (None, 1, "1")}) == 3


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_cannot_be_hashed_makes_no_sense(token: int) -> None:
    """X1: a program that asks for its hash is refused, and nobody is blamed."""
    with pytest.raises(ProgramError, match="a token to be hashed is outside"):
        hash_pages(Path(Space(), (1, token)), 2)
