"""Fingerprints tell any two token prefixes, namespaces, layers and parts apart (law E1)."""

from __future__ import annotations

import numpy as np
import pytest

from pymllm.workloads.fingerprint import KVPart, kv_fingerprints, prefix_fingerprints, token_fingerprints

TOKENS = np.array([5, 6, 5, 7, 0, 0, 4_294_967_295], dtype=np.uint32)


def test_longer_sequence_begins_with_the_same_fingerprints() -> None:
    """E1: a value depends on nothing behind its token."""
    assert np.array_equal(prefix_fingerprints(TOKENS)[:4], prefix_fingerprints(TOKENS[:4]))
    assert prefix_fingerprints(TOKENS[:0]).shape == (0,)


@pytest.mark.parametrize("changed", [0, 2, 4])
def test_changed_token_changes_every_fingerprint_from_there_on(changed: int) -> None:
    """E1: a value depends on the whole prefix, its own token included."""
    other = TOKENS.copy()
    other[changed] += 1
    same = prefix_fingerprints(TOKENS) == prefix_fingerprints(other)
    assert same.tolist() == [at < changed for at in range(len(TOKENS))]


def test_swapped_tokens_differ_behind_the_swap() -> None:
    """E1: order counts, so a prefix is not a bag of tokens."""
    swapped = TOKENS[[0, 2, 1, 3, 4, 5, 6]]
    assert not (prefix_fingerprints(TOKENS)[1:] == prefix_fingerprints(swapped)[1:]).any()


def test_namespaces_share_no_fingerprint() -> None:
    """E1: equal tokens of other namespaces are other content, even for 1 and "1"."""
    first = [int(prefix_fingerprints(TOKENS, namespace)[0]) for namespace in (None, "None", 1, "1", "a")]
    assert len(set(first)) == 5


def test_layers_and_parts_hold_different_values() -> None:
    """E1: reading K for V, a wrong layer or the other half is noticed."""
    prefixes = prefix_fingerprints(TOKENS)
    places = tuple((layer, part) for layer in range(3) for part in KVPart)
    values = kv_fingerprints(prefixes, places)
    assert (values.dtype, values.shape) == (np.int64, (len(places), len(TOKENS)))
    assert len(np.unique(values)) == values.size
    for place, row in zip(places, values, strict=True):
        assert np.array_equal(kv_fingerprints(prefixes[2:], (place,)), [row[2:]])


def test_token_has_one_fingerprint_wherever_it_stands() -> None:
    """E1: it depends on token and namespace alone."""
    values = token_fingerprints(TOKENS, "a")
    equal = TOKENS[:, None] == TOKENS
    assert np.array_equal(values[:, None] == values, equal)
    assert not (values == token_fingerprints(TOKENS, "b")).any()
    assert not (token_fingerprints(TOKENS, 1) == token_fingerprints(TOKENS, "1")).any()
