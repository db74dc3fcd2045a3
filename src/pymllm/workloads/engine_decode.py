"""The requests that decode, as arrays: what one iteration does to all of them at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pymllm.workloads.live_request import LiveRequest

__all__ = ["DecodeBatch"]


class DecodeBatch:
    """Requests in decode, oldest joined first, with their numbers in columns.

    While a request is in the batch, the batch's columns are true and not the fields of its `LiveRequest`;
    `remove` writes them back.

    Parameters
    ----------
    page_size : int
        Tokens per page.

    Attributes
    ----------
    requests : list of LiveRequest
        In the order of the columns.
    rows, lengths, last_slots, released, remaining : numpy.ndarray
        Each of shape ``(n,)``, int64: row in the table; tokens with KV; slot of the last of them;
        `LiveRequest.released_length`; decode steps still to come.
    """

    def __init__(self, page_size: int) -> None:
        self.requests: list[LiveRequest] = []
        self._page_size = page_size
        self._set_columns(np.empty((5, 0), dtype=np.int64))

    def _set_columns(self, columns: np.ndarray) -> None:
        self._columns = columns
        self.rows: np.ndarray
        self.lengths: np.ndarray
        self.last_slots: np.ndarray
        self.released: np.ndarray
        self.remaining: np.ndarray
        self.rows, self.lengths, self.last_slots, self.released, self.remaining = columns

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, live: LiveRequest) -> None:
        """Let a request whose prompt is computed join; at least one step remains."""
        remaining = live.final_length - live.length
        column = [[live.row], [live.length], [live.last_slot], [live.released_length], [remaining]]
        self._set_columns(np.concatenate([self._columns, np.array(column, dtype=np.int64)], axis=1))
        self.requests.append(live)

    def remove(self, leaving: Iterable[LiveRequest]) -> None:
        """Take requests out, their numbers written back to them."""
        self.write_back()
        gone = set(map(id, leaving))
        stays = [at for at, live in enumerate(self.requests) if id(live) not in gone]
        self.requests = [self.requests[at] for at in stays]
        self._set_columns(self._columns[:, stays])

    def write_back(self) -> None:
        """Make the fields of every `LiveRequest` in the batch true."""
        for live, column in zip(self.requests, self._columns.T.tolist(), strict=True):
            _, live.length, live.last_slot, live.released_length, _ = column

    def crossing(self) -> np.ndarray:
        """List the places in the batch of those whose next token begins a new page, ascending."""
        places: np.ndarray = (self.lengths % self._page_size == 0).nonzero()[0]
        return places

    def step(self, new_slots: np.ndarray) -> np.ndarray:
        """Give every request one more token.

        Parameters
        ----------
        new_slots : numpy.ndarray
            First slot of a fresh page for each request that is `crossing`, in order.

        Returns
        -------
        numpy.ndarray
            The slot of each request's new token, shape ``(n,)``, int64: slots within a page follow on (A3).
        """
        self.last_slots += 1
        self.last_slots[self.crossing()] = new_slots
        self.lengths += 1
        self.remaining -= 1
        return self.last_slots

    def headroom(self, steps: int) -> int:
        """Count the tokens, in whole new pages, that the next ``steps`` steps of all will allocate."""
        wanted = np.minimum(self.remaining, steps)
        beyond = np.maximum(wanted - -self.lengths % self._page_size, 0)
        return int(-(-beyond // self._page_size).sum()) * self._page_size
