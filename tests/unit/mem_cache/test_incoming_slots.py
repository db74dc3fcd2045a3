"""What an insert may bring, and what is refused (R1, X1)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.mem_cache import GDNPool, RadixKey, TokenToKVPoolAllocator
from pymllm.mem_cache.incoming_slots import copy_for_keeps, read_incoming_slots, read_track_slot
from pymllm.mem_cache.radix_tree import PagedKey

_POOL = TokenToKVPoolAllocator(16, "cpu", page_size=4)


def _read(value: Any, tokens: Any = (7, 8, 9, 7), page_size: int = 4, pool: Any = _POOL) -> torch.Tensor:
    tokens = list(tokens)
    return read_incoming_slots(value, len(tokens), PagedKey.of(RadixKey(tokens), page_size), page_size, pool)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.uint64])
def test_any_integer_dtype_passes_as_it_is(dtype: torch.dtype) -> None:
    """X: every consumer takes any integer dtype; nothing is copied here."""
    value = torch.tensor([4, 5, 6, 7], dtype=dtype)
    assert _read(value) is value


def test_token_ids_stand_in_without_a_pool() -> None:
    """R1: without a pool and a value the token ids are the slots."""
    assert _read(None, pool=None).tolist() == [7, 8, 9, 7]
    assert _read(None, pool=None).dtype == torch.int64


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (None, ValueError, "value is None"),
        ([4, 5, 6, 7], TypeError, "value is a list"),
        (torch.ones(4), TypeError, "float32"),
        (torch.ones(4, dtype=torch.bool), TypeError, "bool"),
        (torch.empty(4, dtype=torch.int64, device="meta"), TypeError, "meta device"),
        (torch.tensor([4, 5, 2**63 + 1, 2**63 + 2], dtype=torch.uint64), ValueError, f"slot {2**63 + 1}: "),
        (torch.tensor([4, 5, 6]), ValueError, r"\(3,\) for a key of 4"),
        (torch.tensor([[4, 5], [6, 7]]), ValueError, r"\(2, 2\)"),
        (torch.tensor([5, 6, 7, 8]), ValueError, "multiple of 4"),
        (torch.tensor([4, 5, 7, 6]), ValueError, "page 0 of the key"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, error: type[Exception], words: str) -> None:
    """R1, X1: the message names the value and the bound."""
    with pytest.raises(error, match=words):
        _read(value)


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (2**63 - 4, 2**63 - 3, 2**63 - 2, 2**63 - 1)])
def test_unsigned_slots_reach_from_zero_to_the_end_of_int64(numbers: tuple[int, ...]) -> None:
    """R1: without a pool slots are plain numbers."""
    value = torch.tensor(numbers, dtype=torch.uint64)
    assert _read(value, pool=None) is value
    kept = copy_for_keeps(value, 0, 4, torch.device("cpu"))
    assert (kept.dtype, kept.tolist()) == (torch.int64, [*numbers])


def test_tuples_of_tokens_need_slots() -> None:
    """R1: a bigram is no slot."""
    with pytest.raises(ValueError, match="plain tokens"):
        _read(None, tokens=[(1, 2)], page_size=1, pool=None)


def test_pages_are_not_looked_at_without_ownership_checks() -> None:
    """R1: the caller's duty where the pool does not check ownership."""
    unchecked = TokenToKVPoolAllocator(16, "cpu", page_size=4, check_ownership=False)
    value = torch.tensor([5, 6, 7, 8])
    assert _read(value, pool=unchecked) is value


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize(("start", "stop"), [(0, 4), (0, 2), (1, 4), (2, 2)])
def test_copy_shares_no_memory_with_the_callers(dtype: torch.dtype, start: int, stop: int) -> None:
    """X5: int64 in memory of its own and no more of it, the whole or a part, whatever dtype came."""
    value = torch.tensor([4, 5, 6, 7], dtype=dtype)
    kept = copy_for_keeps(value, start, stop, torch.device("cpu"))
    value.zero_()
    assert (kept.dtype, kept.tolist()) == (torch.int64, [4, 5, 6, 7][start:stop])
    assert kept.untyped_storage().nbytes() == kept.nbytes


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_copy_of_a_strided_view_is_dense(dtype: torch.dtype) -> None:
    """X5: a column of a table and a single slot repeated keep nothing of where they came from."""
    table = torch.arange(12, dtype=dtype).reshape(4, 3)
    for value, slots in ((table[:, 1], [1, 4, 7, 10]), (table[0, :1].expand(4), [0] * 4)):
        kept = copy_for_keeps(value, 0, 4, torch.device("cpu"))
        assert kept.tolist() == slots
        assert kept.untyped_storage().nbytes() == kept.nbytes


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("start", [0, 1])
def test_copy_goes_to_the_device_of_the_tree(start: int, dtype: torch.dtype) -> None:
    """R1: slots may come from anywhere; a device without memory stands in for another one."""
    kept = copy_for_keeps(torch.tensor([4, 5, 6], dtype=dtype), start, 3, torch.device("meta"))
    assert (kept.device.type, kept.dtype, kept.shape) == ("meta", torch.int64, (3 - start,))


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "target"), [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:0")])
def test_copy_crosses_devices(source: str, target: str) -> None:
    """R1, X5: the values arrive, and no write to the caller's tensor reaches the copy."""
    value = torch.tensor([4, 5, 6], device=source)
    kept = copy_for_keeps(value, 0, 3, torch.device(target))
    value.zero_()
    assert (str(kept.device), kept.tolist()) == (target, [4, 5, 6])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.uint64])
def test_a_track_slot_is_one_integer_of_any_dtype(dtype: torch.dtype) -> None:
    """M1: without a pool it is a plain number; with one, a slot that it handed out."""
    assert read_track_slot(torch.tensor([200], dtype=dtype), None) == 200
    states = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=2)
    slot = states.alloc_track_slot()
    assert read_track_slot(torch.tensor([slot], dtype=dtype), states) == slot


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (3, TypeError, r"mamba_value is an int: .*torch\.tensor"),
        ([3], TypeError, "mamba_value is a list"),
        (torch.tensor([3.0]), TypeError, "float32"),
        (torch.tensor(3), ValueError, r"shape \(\)"),
        (torch.tensor([3, 4]), ValueError, r"shape \(2,\)"),
        (torch.empty(1, dtype=torch.int64, device="meta"), TypeError, "meta device"),
        (torch.tensor([0]), OwnershipError, "mamba_value is 0"),
        (torch.tensor([2**63], dtype=torch.uint64), OwnershipError, f"mamba_value is {2**63}"),
        (torch.tensor([3]), OwnershipError, "has not handed out"),
    ],
)
def test_what_is_no_track_slot_of_the_callers_is_named(
    value: Any, error: type[Exception], words: str
) -> None:
    """M7, X1: the message names the value and what to give."""
    with pytest.raises(error, match=words):
        read_track_slot(value, GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=2))
