"""docs/specification/keys-and-hashes.md: its script prints what stands below it, and our classes agree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pymllm.history.operations import Key
from pymllm.mem_cache.base_prefix_cache import RadixKey, hash_bytes, hash_to_int64, hash_token_ids
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.oracle.models.cold_runs import hash_pages
from pymllm.oracle.models.prefix_model import path_of_key

PAGE = Path(__file__).parents[2] / "docs" / "specification" / "keys-and-hashes.md"
((SCRIPT, PRINTED),) = re.findall(
    r"^```python\n(# Known answers.*?)^```\n\n```text\n(.*?)^```$",
    PAGE.read_text(encoding="utf-8"),
    flags=re.DOTALL | re.MULTILINE,
)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """Run the script, and return the names that it defines."""
    names: dict[str, Any] = {}
    exec(SCRIPT, names)
    return names


def test_the_script_prints_what_stands_below_it() -> None:
    """Alone, with nothing but the standard library."""
    command = [sys.executable, "-I", "-S", "-c", SCRIPT]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == PRINTED


def test_the_page_has_ten_keys_and_a_digest_for_each_of_their_pages(script: dict[str, Any]) -> None:
    """Every namespace that there is, bigrams, a tail, and the largest token are among them."""
    keys = script["KEYS"]
    assert len(keys) >= 10
    assert {type(namespace) for _, _, namespace in keys} == {type(None), str, int, tuple}
    assert any(isinstance(token, tuple) for tokens, _, _ in keys for token in tokens)
    assert any(len(tokens) % page_size for tokens, page_size, _ in keys)
    digests = re.findall(r"^    ([0-9a-f]{64})$", PRINTED, flags=re.MULTILINE)
    assert len(digests) == sum(len(tokens) // page_size for tokens, page_size, _ in keys)


def test_caches_have_the_same_page_hashes(script: dict[str, Any]) -> None:
    """`RadixCache.compute_node_hash`, and the oracle that judges those of others."""
    for tokens, page_size, namespace in script["KEYS"]:
        expected = script["page_hashes"](tokens, page_size, namespace)
        cache = RadixCache(page_size)
        node = cache.insert(RadixKey(tokens, namespace), torch.arange(len(tokens))).last_node
        assert node is cache.root_node if not expected else cache.compute_node_hash(node) == expected
        assert [*hash_pages(path_of_key(Key(tuple(tokens), namespace)), page_size)] == expected


def test_functions_have_the_same_page_hashes(script: dict[str, Any]) -> None:
    """`hash_token_ids`, chained from the namespace's prior by hand."""
    for tokens, page_size, namespace in script["KEYS"]:
        prior = script["first_prior"](namespace).hex() or None
        for start in range(0, len(tokens) // page_size * page_size, page_size):
            prior = hash_token_ids(tokens[start : start + page_size], prior)
        digests = script["page_hashes"](tokens, page_size, namespace)
        assert prior == (digests[-1] if digests else script["first_prior"](namespace).hex() or None)


def test_functions_have_the_same_numbers() -> None:
    """`hash_to_int64` and `hash_bytes`, as the page prints them."""
    int64s = re.findall(r"^hash_int64 of (\w+): (-?\d+)$", PRINTED, flags=re.MULTILINE)
    assert int64s == [(digest, str(hash_to_int64(digest))) for digest, _ in int64s]
    assert {number.startswith("-") for _, number in int64s} == {True, False}
    numbers = re.findall(r"^hash_bytes of (\w+): (\d+)$", PRINTED, flags=re.MULTILINE)
    data = [bytes.fromhex(text) if text != "nothing" else b"" for text, _ in numbers]
    assert len(numbers) >= 3
    assert [int(number) for _, number in numbers] == [hash_bytes(each) for each in data]
