"""The clients, by what real servers have answered them."""

from __future__ import annotations

import socket
from threading import Thread

from pymllm.probing.clients import make_http, request_json

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}"


def test_a_connection_that_the_server_gives_up_is_not_used_again() -> None:
    """A server that hangs up at the second request of a connection, as at one that it found idle too long."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    while not connection.recv(1 << 16).endswith(b"}"):
                        continue
                    connection.sendall(ANSWER)
                    connection.recv(1 << 16)  # until the client leaves, or asks for more

        thread = Thread(target=serve, daemon=True)
        thread.start()
        with make_http(f"http://127.0.0.1:{listening.getsockname()[1]}", 10) as http:
            assert [request_json(http, "POST", "/", {"at": at}) for at in range(2)] == [{}, {}]
        thread.join(10)
