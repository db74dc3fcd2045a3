"""Integers of any container as one array."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.host_numbers import host_array, host_integers


def test_host_memory_is_seen_not_copied() -> None:
    """What a context changes is seen at the next look."""
    tensor = torch.arange(3, dtype=torch.int32)
    view = host_array(tensor)
    tensor[0] = 7
    assert view.tolist() == [7, 1, 2]
    assert host_array([1, 2]).tolist() == [1, 2]


def test_numbers_elsewhere_come_to_the_host() -> None:
    """Specification, blocks: a context may keep its tables where it likes."""

    class Far(torch.Tensor):
        is_cpu = False

        def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
            return torch.tensor([4, 2], dtype=torch.int32)

    found = host_array(torch.zeros(2, dtype=torch.int32).as_subclass(Far))
    assert (found.dtype, found.tolist()) == (np.int32, [4, 2])


@pytest.mark.gpu
def test_a_tensor_of_a_gpu_is_read() -> None:
    """Specification, blocks: a context may keep its tables on its device."""
    tensor = torch.arange(3, dtype=torch.int32, device="cuda")
    assert host_array(tensor).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "values",
    [
        [0, 3],
        (0, 3),
        range(0, 6, 3),
        array("q", [0, 3]),
        np.array([0, 3], np.uint8),
        np.array([[0], [3]]),
        torch.tensor([[0, 3]], dtype=torch.int16),
    ],
)
def test_integers_come_as_one_dimension_of_int64(values: Any) -> None:
    """Any container of integers will do."""
    numbers = host_integers("ids", values, 4)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [0, 3]


def test_nothing_is_no_integer_too_many() -> None:
    """An empty list is an empty array, whatever NumPy takes its dtype to be."""
    assert host_integers("ids", [], 1).tolist() == []
    assert host_integers("ids", torch.empty(0), 1).tolist() == []


@pytest.mark.parametrize(
    "values", ["12", b"12", 3, None, {1}, [1.0], [True], torch.tensor([0.5]), [2**80, 0.5]]
)
def test_what_is_no_run_of_integers_is_refused(values: Any) -> None:
    """X1: a TypeError that names the argument."""
    with pytest.raises(TypeError, match="ids must be"):
        host_integers("ids", values)


@pytest.mark.parametrize("stop", [None, 4])
@pytest.mark.parametrize(
    ("values", "beyond"),
    [
        ([2**63], 2**63),
        ([-(2**63), 2**63 - 1, 2**70], 2**70),
        ((-(2**70),), -(2**70)),
        ([-1, 2**63], 2**63),
        (np.array([2**64 - 1], np.uint64), 2**64 - 1),
    ],
)
def test_a_number_beyond_int64_is_refused_and_not_wrapped(values: Any, beyond: int, stop: int | None) -> None:
    """X1: it would become a negative number, which stands for no hash."""
    with pytest.raises(ValueError, match=rf"ids has {beyond}, which int64 does not have"):
        host_integers("ids", values, stop)


@pytest.mark.parametrize(("values", "shown"), [([1, 4], 4), ([-1], -1), ([9, -2], 9)])
def test_what_is_out_of_range_is_named(values: list[int], shown: int) -> None:
    """X1: negative numbers do not count from the end."""
    with pytest.raises(IndexError, match=rf"ids has {shown}, outside 0\.\.3"):
        host_integers("ids", values, 4)
