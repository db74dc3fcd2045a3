"""The numbers that adapters and judges compute with."""

from __future__ import annotations

import json

import pytest

from pymllm.history.operations import (
    CONV_PRIME,
    KV_FACTOR,
    KV_PRIME,
    OPERATIONS_OF,
    SSM_PRIME,
    AddRequest,
    RunStep,
    operation_from_plain,
    operation_to_plain,
)


@pytest.mark.parametrize(("prime", "bits"), [(CONV_PRIME, 8), (SSM_PRIME, 24), (KV_PRIME, 31)])
def test_each_prime_is_one_and_the_largest_that_fits(prime: int, bits: int) -> None:
    """E1: residues are exact in bfloat16, float32 and 32 bits."""
    small = list(range(2, int(2 ** (bits / 2)) + 1))
    sieve = [number for number in small if all(number % other for other in small[: int(number**0.5) - 1])]
    primes = [each for each in range(prime, 2**bits + 1) if all(each % other for other in sieve)]
    assert primes == [prime]
    assert KV_FACTOR % KV_PRIME > 1


def test_operations_of_requests_are_written_and_read() -> None:
    """X1: a program is plain data, and what is no prompt is refused by its place."""
    for operation in (AddRequest((1, 2), 3), RunStep((4, 5))):
        assert type(operation) in OPERATIONS_OF["requests"]
        assert operation_from_plain(json.loads(json.dumps(operation_to_plain(operation)))) == operation
    with pytest.raises(ValueError, match=r"op\.add_request\.tokens"):
        operation_from_plain({"op": "add_request", "tokens": [1.5]})
