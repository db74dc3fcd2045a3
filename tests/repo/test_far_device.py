"""The device far from the host counts what CUDA waits for, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.far_device import DEVICE, far_device

Act = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]

WAITING: dict[str, Act] = {
    "reading a number": lambda numbers, index, mask: int(numbers[0]),
    "reading them all": lambda numbers, index, mask: numbers.tolist(),
    "copying to the host": lambda numbers, index, mask: numbers.cpu(),
    "copying from the host": lambda numbers, index, mask: numbers.copy_(torch.arange(6)),
    "making a tensor of a list": lambda numbers, index, mask: torch.tensor([1, 2], device=DEVICE),
    "asking whether any": lambda numbers, index, mask: bool(mask.any()),
    "comparing": lambda numbers, index, mask: torch.equal(numbers, numbers),
    "choosing by a mask": lambda numbers, index, mask: numbers[mask],
    "writing by a mask": lambda numbers, index, mask: numbers.__setitem__(mask, index[:1]),
    "looking for what is not zero": lambda numbers, index, mask: numbers.nonzero(),
    "telling apart": lambda numbers, index, mask: numbers.unique(),
    "writing a number by an index": lambda numbers, index, mask: numbers.__setitem__(index, 7),
    "writing one number": lambda numbers, index, mask: numbers.__setitem__(0, 7),
    "choosing by an index on the host": lambda numbers, index, mask: numbers[torch.tensor([1, 2])],
    "repeating": lambda numbers, index, mask: index.repeat_interleave(index),
}
GOING_ON: dict[str, Act] = {
    "choosing by an index": lambda numbers, index, mask: numbers[index],
    "writing by an index": lambda numbers, index, mask: numbers.__setitem__(index, index),
    "filling by an index": lambda numbers, index, mask: numbers.index_fill_(0, index, 7),
    "filling by a mask": lambda numbers, index, mask: numbers.__setitem__(mask, 7),
    "filling a part": lambda numbers, index, mask: numbers[1:3].zero_(),
    "looking for so many": lambda numbers, index, mask: torch.nonzero_static(mask, size=2),
    "sorting": lambda numbers, index, mask: numbers.sort(),
    "calculating": lambda numbers, index, mask: (numbers * 2 + index.sum()) % 5,
    "sending without waiting": lambda numbers, index, mask: numbers.copy_(
        torch.arange(6).pin_memory(), non_blocking=True
    ),
    "repeating so often": lambda numbers, index, mask: index.repeat_interleave(index, output_size=6),
}


@pytest.mark.parametrize(
    ("act", "waits"),
    [
        *(pytest.param(act, True, id=name) for name, act in WAITING.items()),
        *(pytest.param(act, False, id=name) for name, act in GOING_ON.items()),
    ],
)
def test_each_wait_is_counted_and_nothing_else(act: Act, waits: bool) -> None:
    """By the sources of torch 2.11; a test on the CPU sees none of it."""
    with far_device() as counted:
        numbers = torch.arange(6, device=DEVICE)
        index = torch.tensor([1, 2, 3], device=DEVICE)
        mask = numbers > 3
        counted.clear()
        act(numbers, index, mask)
        assert bool(counted) is waits, counted


def test_tensors_of_both_places_are_not_mixed() -> None:
    """As on a GPU; a single number of the host may be."""
    with far_device():
        numbers = torch.arange(3, device=DEVICE)
        assert (numbers + torch.tensor(1)).tolist() == [1, 2, 3]
        with pytest.raises(RuntimeError, match="tensors are on"):
            numbers + torch.arange(3)
