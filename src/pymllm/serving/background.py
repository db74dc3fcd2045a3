"""The embedded server on a thread of this process."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from pymllm.serving.app import make_app
from pymllm.serving.service import Service

_ENDING_SECONDS = 10


def answer_at_once(listener: socket.socket) -> None:
    """Set TCP_NODELAY for the connections of a listening socket.

    asyncio does that itself only where the socket names its protocol, which `socket.create_server` does not.
    Without it, an answer of two packets takes 40 ms: the second waits until the first is acknowledged.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextmanager
def serving(service: Service) -> Iterator[str]:
    """Serve on a free port of 127.0.0.1, yield the address, and end the server afterwards.

    Meanwhile asyncio does not warn of clients that leave in the middle of an answer: probes do on purpose.
    """
    logger = logging.getLogger("asyncio")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer_at_once(listener)
        settings = uvicorn.Config(
            make_app(service), log_level="critical", timeout_graceful_shutdown=1, lifespan="on"
        )
        server = uvicorn.Server(settings)
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="embedded server", daemon=True
        )
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_ENDING_SECONDS)
            logger.setLevel(level)
