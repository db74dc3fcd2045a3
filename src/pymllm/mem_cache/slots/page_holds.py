"""The pages of one pool that transfers read or write: none is handed out before these have ended."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class PageHolds:
    """The transfers that read or write each page of a store, and the pages given back meanwhile.

    ``transfers`` counts them. ``is_parked`` marks the pages that a caller gave back before their last
    transfer ended: neither free nor handed out. Both are on the host, and have page 0.
    """

    def __init__(self, pages: int) -> None:
        self.transfers: NDArray[np.int32] = np.zeros(pages + 1, np.int32)
        self.is_parked: NDArray[np.bool_] = np.zeros(pages + 1, np.bool_)


class Split(NamedTuple):
    """Pages that a caller gives back: those that become free, and those that wait for a transfer."""

    free: Any
    waiting: Any
    """As the store keeps pages."""
    parked: NDArray[np.int64]
    """The same on the host."""


def on_host(pages: Any) -> NDArray[np.int64]:
    """Return pages of either store in memory of their own on the host; a device is waited for."""
    numbers = pages.cpu().numpy() if isinstance(pages, torch.Tensor) else pages
    copied: NDArray[np.int64] = numbers.astype(np.int64)
    return copied
