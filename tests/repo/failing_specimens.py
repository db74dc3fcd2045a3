"""Small functions of every form, for the sweep of failing points to be tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

ROW = np.arange(6)
TENSOR = torch.arange(6)


def write(index: Any, value: Any) -> None:
    """Write into an array."""
    ROW.copy()[index] = value


PLACES: list[tuple[Callable[[], Any], list[str]]] = [
    (lambda: np.empty(3), ["empty()"]),
    (lambda: torch.zeros(3), ["zeros()"]),
    (lambda: np.add.at(ROW.copy(), [1], 0), ["ndarray.copy()", "ufunc.at()"]),
    (lambda: ROW.tolist(), ["ndarray.tolist()"]),
    (lambda: TENSOR.clone(), ["Tensor.clone()"]),
    (lambda: TENSOR[0].item(), ["[...]", "Tensor.item()"]),
    (lambda: ROW + 1, ["add"]),
    (lambda: 1 == TENSOR, ["eq"]),  # noqa: SIM300
    (lambda: -ROW, ["neg"]),
    (lambda: ~TENSOR, ["invert"]),
    (lambda: ROW[[1, 2]], ["[...]"]),
    (lambda: [it for it in TENSOR], ["iteration"]),  # noqa: C416
    (lambda: list(ROW), ["list()"]),
    (lambda: bytes(bytearray(3)), ["bytearray()", "bytes()"]),
    (lambda: b"abc"[1:], ["[...]"]),
    (lambda: b"".join([b"a", b"b"]), ["bytes.join()"]),
    (lambda: write([1, 2], 0), ["ndarray.copy()", "[...] ="]),
    (lambda: write(ROW > 2, 0), ["gt", "ndarray.copy()", "[...] ="]),
    (lambda: write(slice(2), [1, 2]), ["ndarray.copy()", "[...] ="]),
    (lambda: write(ROW, np.zeros(6, np.int8)), ["zeros()", "ndarray.copy()", "[...] ="]),
    (lambda: TENSOR[1:3], ["[...]"]),
    (lambda: (3 in ROW, 9 not in ROW), ["within", "without"]),
    (lambda: Store().doubled, ["arange()", "mul"]),
    # Without memory that grows with the call, or without arrays.
    (lambda: (ROW[2], ROW.item(1), b"abc"[1], b"a" == b"b", len(ROW), TENSOR.numel()), []),
    (lambda: [[1, 2][0], {1: 2}[1], 3 + 4, list(range(3))], []),
    (lambda: write(2, 7), ["ndarray.copy()"]),
    (lambda: write(slice(None), 7), ["ndarray.copy()"]),
    (lambda: write(slice(2), ROW[:2]), ["ndarray.copy()"]),
    (lambda: write(slice(2), np.zeros(2, np.int8)), ["zeros()", "ndarray.copy()"]),
    (lambda: write(ROW, 7), ["ndarray.copy()"]),
]
"""What is done, and the points that it has, in order."""


def append_one(pool: list[int]) -> None:
    """Call a method of something that is no array."""
    pool.append(1)


class Store:
    """Slots of which one is handed out at a time."""

    def __init__(self) -> None:
        self.free, self.taken = np.arange(4), 0

    def take_carelessly(self) -> int:
        """Count a slot before it is there: what this file's reader is to find."""
        self.taken += 1
        return int(self.free[[0]].tolist()[0])

    def take(self) -> int:
        """Count it when it is there."""
        first = int(self.free[[0]].tolist()[0])
        self.taken += 1
        return first

    def take_quietly(self) -> int:
        """Say nothing of a failure."""
        try:
            return self.take()
        except MemoryError:
            return -1

    @property
    def doubled(self) -> Any:
        """Work behind a property."""
        return self.free * 2

    @staticmethod
    def ask(friend: Callable[[], int]) -> int:
        """Call a function from outside."""
        return friend()
