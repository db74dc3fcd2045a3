"""The cache events of a probed server, received between its requests."""

from __future__ import annotations

import time
from typing import Any

from pymllm.watching.listening import Listener, Silence
from pymllm.watching.recordings import plain_message

QUIET_SECONDS = 0.05
"""Seconds without a message after which no more events are expected."""
LONGEST_SECONDS = 5.0
"""The longest wait in seconds for the stream to fall silent; once exceeded, later waits are short."""


class Heard:
    """A listener to a publisher of events while its server is probed.

    ``address``: where the publisher waits, such as ``"tcp://127.0.0.1:5557"``; one that begins with
    ``tcp://*`` is where this waits for a publisher that connects. `UsageError` where ZeroMQ refuses it.
    ``is_quiet``: the last messages taken were all that had been told.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._listener = Listener(address, bind=address.startswith("tcp://*"))
        self.has_heard = False
        self.is_quiet = True

    def take(self) -> tuple[Any, ...]:
        """Return the messages since the last call, in recorded form, once the stream is silent.

        A stream that does not become quiet is waited for `LONGEST_SECONDS` once, then for `QUIET_SECONDS`.
        """
        heard: list[Any] = []
        end = time.monotonic() + (LONGEST_SECONDS if self.is_quiet else QUIET_SECONDS)
        while True:
            until = min(end, time.monotonic() + QUIET_SECONDS)
            now = [it for it in self._listener.messages(until) if not isinstance(it, Silence)]
            heard += now
            self.is_quiet = not now
            if self.is_quiet or time.monotonic() >= end:
                break
        self.has_heard |= bool(heard)
        return tuple(map(plain_message, heard))

    def close(self) -> None:
        """Close the connection to the publisher."""
        self._listener.close()
