"""The pages of a pool that transfers read or write, none of which is handed out until these end."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


class PageHolds:
    """The transfers of each page in a store, and the pages that were given back during transfers.

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
    """The waiting pages in the form of the store."""
    parked: NDArray[np.int64]
    """The waiting pages on the host."""


def on_host(pages: Any) -> NDArray[np.int64]:
    """Return pages of any store in new host memory, after waiting for the device if needed."""
    numbers = pages.cpu().numpy() if isinstance(pages, torch.Tensor) else pages
    copied: NDArray[np.int64] = numbers.astype(np.int64)
    return copied
