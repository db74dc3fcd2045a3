"""The embedded server on a thread: its connections, and what it leaves as it was."""

from __future__ import annotations

import logging
import socket

from pymllm.serving.background import answer_at_once, serving
from pymllm.serving.service import ServerConfig, Service


def test_a_connection_does_not_wait_for_acknowledgements() -> None:
    """What a listener accepts has no delay, which asyncio would not see to."""
    for is_set in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            if is_set:
                answer_at_once(listener)
            with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
                assert bool(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is is_set


def test_warnings_of_asyncio_come_back() -> None:
    """They are off only while the server runs."""
    logger = logging.getLogger("asyncio")
    before = logger.level
    with serving(Service(ServerConfig())) as url:
        assert url.startswith("http://127.0.0.1:")
        assert logger.level == logging.ERROR
    assert logger.level == before
