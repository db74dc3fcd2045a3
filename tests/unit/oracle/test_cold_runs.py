"""What a cold run computes, against the definition and by hand."""

from __future__ import annotations

import hashlib

from pymllm.history.operations import CONV_PRIME, KV_FACTOR, KV_PRIME, SSM_PRIME
from pymllm.oracle.cold_runs import ColdRuns, Prefix

TOKENS = (5, 0, 7, 4_294_967_295, 5)


def prefixes_of(cold: ColdRuns, tokens: tuple[int, ...]) -> list[Prefix]:
    prefixes: list[Prefix] = []
    cold.extend(prefixes, tokens)
    return prefixes


def kv_of(tokens: tuple[int, ...]) -> list[int]:
    numbers = [0]
    for token in tokens:
        numbers.append((numbers[-1] * KV_FACTOR + token + 1) % KV_PRIME)
    return numbers[1:]


def element(e: int, prime: int, tokens: tuple[int, ...]) -> int:
    x = 0
    for token in tokens:
        a = 1 + (token + 1) * (e + 3) * 7919 % (prime - 1)
        x = (a * x + (token + 1) * (e + 5) * 104_729 + e) % prime
    return x


def test_kv_is_summed_up_block_by_block() -> None:
    """E1: each number times its place in the block, the last block as far as it goes."""
    cold = ColdRuns(2, 0, 0)
    prefixes = prefixes_of(cold, TOKENS)
    numbers = kv_of(TOKENS)
    assert cold.kv_until(prefixes, TOKENS, 5) == (
        numbers[0] + 2 * numbers[1],
        numbers[2] + 2 * numbers[3],
        numbers[4],
    )
    assert cold.kv_until(prefixes, TOKENS, 2) == (numbers[0] + 2 * numbers[1],)
    assert cold.kv_until(prefixes, TOKENS, 1) == (numbers[0],)


def test_a_state_is_the_same_however_it_is_asked_for() -> None:
    """E1: whole blocks first or not, further on or back."""
    cold = ColdRuns(2, 2, 1)
    prefixes = prefixes_of(cold, TOKENS)
    for stop in (0, 1, 3, 5, 4, 3, 2, 1, 0):
        wanted = (
            *(element(e, CONV_PRIME, TOKENS[:stop]) for e in (0, 1)),
            element(0, SSM_PRIME, TOKENS[:stop]),
        )
        assert cold.state_at(prefixes, TOKENS, stop) == wanted
    other = (5, 1)
    assert cold.state_at([], other, 1) == cold.state_at([], TOKENS, 1)
    assert cold.state_at(prefixes_of(cold, other), other, 2)[0] == element(0, CONV_PRIME, other)


def test_another_path_to_a_partial_block_is_computed_anew() -> None:
    """E1: what was asked for last is of use only where the tokens go on from it."""
    cold = ColdRuns(4, 1, 1)
    assert cold.state_at([], (1, 2, 3), 3)[0] == element(0, CONV_PRIME, (1, 2, 3))
    assert cold.state_at([], (1, 9, 3), 3)[0] == element(0, CONV_PRIME, (1, 9, 3))


def test_hashes_chain_and_may_be_weak() -> None:
    """C3, H1: SHA-256 of the prior digest and four bytes per token; -1 and 0 are no hashes."""
    first, second = prefixes_of(ColdRuns(2, 0, 0), TOKENS)
    wanted = hashlib.sha256((5).to_bytes(4, "little") + (0).to_bytes(4, "little")).digest()
    assert first.digest == wanted.hex()
    assert first.hash == int.from_bytes(wanted[:8], "big") & (2**63 - 1)
    tail = (7).to_bytes(4, "little") + (2**32 - 1).to_bytes(4, "little")
    assert second.digest == hashlib.sha256(wanted + tail).hexdigest()
    weak, _ = prefixes_of(ColdRuns(2, 0, 0, hash_digits=2), TOKENS)
    assert weak.digest == wanted.hex()[:2].rjust(16, "0")
    assert Prefix(None, 0, 0, 0, (), "0" * 16).hash == 1


def test_a_rival_has_the_same_weak_hash_below_the_same_prefix() -> None:
    """C3: it differs in its last token; of a whole hash nobody finds one."""
    weak = ColdRuns(2, 0, 0, hash_digits=1)
    first, second = prefixes_of(weak, (1, 2, 3, 4))
    for above, block, prefix in ((weak.nothing, (1, 2), first), (first, (3, 4), second)):
        rival = weak.find_rival(above, block)
        assert rival is not None
        assert (rival[0], rival != block) == (block[0], True)
        stem = (1, 2)[: above.length]
        assert prefixes_of(weak, (*stem, *rival))[-1].hash == prefix.hash
    assert weak.find_rival(weak.nothing, (1, 0), tries=1) is None
    assert ColdRuns(2, 0, 0).find_rival(first, (3, 4)) is None


def test_a_prefix_is_one_object() -> None:
    """C3: so that equal content is identity."""
    cold = ColdRuns(2, 0, 0)
    assert prefixes_of(cold, (1, 2, 3, 4))[0] is prefixes_of(cold, (1, 2, 9))[0]
    assert prefixes_of(cold, (1, 2, 3, 4))[1] is not prefixes_of(cold, (3, 4))[0]
