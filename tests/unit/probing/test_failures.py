"""Servers that cannot be probed or fail on the way: one line each; what was judged before is kept."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pymllm.probing.clients import NotServed, make_http
from pymllm.probing.started import StartedServer
from tests.unit.cli.typed import refused, typed

ROOT = Path(__file__).parents[3]
Handle = Callable[[Any, int], None]
"""Answers one completion, of which so many came before."""


@contextmanager
def stub(complete: Handle, models: tuple[int, str] | None = None) -> Iterator[str]:
    """Serves ``models``, or a right list of them, and answers completions by ``complete``."""
    known = 200, json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]})

    class Handler(BaseHTTPRequestHandler):
        count = 0

        def do_GET(self) -> None:
            listed = models or known
            reply(self, *(listed if self.path == "/v1/models" else (404, "")))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path != "/v1/completions":
                reply(self, 404, "")
                return
            Handler.count += 1
            complete(self, Handler.count - 1)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def reply(handler: Any, status: int, text: str, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text.encode())


def good(handler: Any, count: int) -> None:
    """The same answer to everything, told with its token ids."""
    choice = {
        "text": "ab",
        "token_ids": [97, 98],
        "finish_reason": "length",
        "logprobs": {"tokens": ["a", "b"], "top_logprobs": [{"a": -0.1, "c": -3.0}, {"b": -0.1, "c": -3.0}]},
    }
    usage = {"prompt_tokens_details": {"cached_tokens": 0}}
    reply(handler, 200, json.dumps({"choices": [choice], "usage": usage}))


_BEFORE = 24
"""Answers of the measurement, at least nine of them cold."""


def after_the_measurement(then: Handle) -> Handle:
    return lambda handler, count: (good if count < _BEFORE else then)(handler, count)


def die(handler: Any, count: int) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "500")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def hang_up(handler: Any) -> None:
    """Close the connection so that the other side is told of an error, as when a process is killed."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.shutdown(socket.SHUT_RD)
    handler.close_connection = True
    handler.connection.close()


def drip(handler: Any) -> None:
    """Send a byte of an answer at a time, without end, each sooner than any timeout."""
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):  # the other side has had enough
        for _ in range(200):
            handler.wfile.write(b" ")
            time.sleep(0.05)


WRONG_COUNT = json.dumps(
    {
        "choices": [{"text": "a", "token_ids": [97]}],
        "usage": {"prompt_tokens_details": {"cached_tokens": -1}},
    }
)
FAILING: dict[str, tuple[Handle, str]] = {
    "dies": (die, "the connection ended in the middle of the answer"),
    "fails": (lambda it, _: reply(it, 500, "out of memory"), "answered 500: 'out of memory'"),
    "html": (lambda it, _: reply(it, 200, "<html>hello</html>"), "which is no JSON"),
    "nonsense": (lambda it, _: reply(it, 200, '{"choices": 7}'), "which is no answer of openai"),
    "hangs": (lambda it, _: time.sleep(2), "no answer in time (--timeout)"),
    "drips": (lambda it, _: drip(it), "no answer in time (--timeout)"),
    "resets": (lambda it, _: hang_up(it), "POST /v1/completions: "),
    "wants a key": (lambda it, _: reply(it, 401, "who are you"), "answered 401: the server wants a key"),
    "is busy": (
        lambda it, _: reply(it, 503, "<html>try later</html>"),
        "answered 503: '<html>try later</html>'",
    ),
    "error with 200": (
        lambda it, _: reply(it, 200, '{"error": {"message": "CUDA out of memory"}}'),
        '"CUDA out of memory"}}, which is no answer of openai',
    ),
    "empty": (lambda it, _: reply(it, 200, ""), "which is no JSON"),
    "nested": (lambda it, _: reply(it, 200, "[" * 100_000), "which is no JSON"),
    "wrong counts": (lambda it, _: reply(it, 200, WRONG_COUNT), "-1 is no count of tokens"),
}


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://127.0.0.1:0", "http://[::1", "ftp://127.0.0.1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """A port that there is not would be taken for another one."""
    refused("probe", url, words="is no address of a server; write http://HOST:PORT")


def test_a_password_is_not_taken_from_an_address() -> None:
    """It would stand in every result; the environment has a header that stands in none."""
    refused("probe", "http://user:secret@127.0.0.1:1", words="leave it out, and set PYMLLM_AUTHORIZATION")
    assert "secret" not in typed("probe", "http://user:secret@127.0.0.1:1").output


def test_a_key_of_the_environment_is_sent_and_printed_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the header of that name."""
    seen = []

    def answer(handler: Any, count: int) -> None:
        seen.append(handler.headers["Authorization"])
        good(handler, count)

    monkeypatch.setenv("PYMLLM_AUTHORIZATION", "Bearer secret")
    with stub(answer) as url:
        result = typed("probe", url, "--requests", 1, "--max-tokens", 2)
    assert set(seen) == {"Bearer secret"}
    assert "secret" not in result.output


def test_a_list_of_models_without_an_owner_is_of_openai() -> None:
    """Where no other API answers."""
    listed = 200, json.dumps({"data": [{"id": "m"}]})
    with stub(good, listed) as url, stub(good, listed) as other:
        result = typed("probe", url, "--against", other, "--requests", 1, "--max-tokens", 2)
    assert result.stdout.startswith(f"openai m at {url}: ")


def test_the_server_that_is_probed_is_no_other_one() -> None:
    """It would be as warm."""
    refused("probe", "http://127.0.0.1:1", "--against", "http://127.0.0.1:1/", words="name another one")


@pytest.mark.parametrize(("handle", "words"), FAILING.values(), ids=FAILING)
def test_what_was_judged_before_a_failure_is_kept(handle: Handle, words: str) -> None:
    """Status 3, the failure in a line, and the tests of laws until then."""
    with stub(after_the_measurement(handle)) as url:
        result = typed("probe", url, "--timeout", "1", "--json", "--max-tokens", 2)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["verdict"]) == (3, "unknown")
    assert words in document["failure"]
    assert "\n" not in document["failure"]
    assert {law["id"]: law["tests"] for law in document["laws"]}["V3"] >= 9


def test_a_failure_is_told_in_a_line_of_the_text() -> None:
    """Below the verdict."""
    with stub(after_the_measurement(FAILING["fails"][0])) as url:
        result = typed("probe", url)
    assert result.exit_code == 3
    assert ": ended early: POST /v1/completions answered 500: 'out of memory'" in result.stdout


KILLED = """\
import http.server, json, os, sys
sys.path.insert(0, sys.argv[2])
from tests.unit.probing.test_failures import good, reply

class Handler(http.server.BaseHTTPRequestHandler):
    count = 0

    def do_GET(self):
        listed = json.dumps({"data": [{"id": "m", "owned_by": "vllm"}]})
        reply(self, *((200, listed) if self.path == "/v1/models" else (404, "")))

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != "/v1/completions":
            reply(self, 404, "")
        elif Handler.count < 24:
            Handler.count += 1
            good(self, Handler.count)
        else:
            os.kill(os.getpid(), 9)

    def log_message(self, *words):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_started_server_that_is_killed_ends_the_probe(tmp_path: Path) -> None:
    """As the kernel does where memory runs out: a line, what was judged, and no process is left."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "killed.py").write_text(KILLED, encoding="utf-8")
    command = shlex.join([sys.executable, str(tmp_path / "killed.py"), str(port), str(ROOT)])
    result = typed("probe", f"http://127.0.0.1:{port}", "--start", command, "--json", "--timeout", "10")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["verdict"]) == (3, "unknown")
    assert document["failure"].startswith("POST /v1/completions: ")
    assert "\n" not in document["failure"]
    assert {law["id"]: law["tests"] for law in document["laws"]}["V4"] >= 9
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_a_started_server_that_never_answers_ends_the_wait() -> None:
    """The line names the bound and the way out."""
    start = StartedServer("sleep 30", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        make_http(f"http://127.0.0.1:{port}", 1) as http,
        pytest.raises(NotServed, match=r"within 0\.3 s, .* start the server before, and leave --start out"),
    ):
        start.start(http, "auto")


def test_what_was_judged_before_an_interrupt_is_told() -> None:
    """Ctrl-C: status 130, and the document says so."""

    def interrupt(handler: Any, count: int) -> None:
        good(handler, count)
        if count == _BEFORE:
            signal.raise_signal(signal.SIGINT)

    with stub(interrupt) as url:
        result = typed("probe", url, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["failure"]) == (130, "it was interrupted")
    assert {law["id"]: law["tests"] for law in document["laws"]}["V4"] >= 9


def test_a_port_without_a_server_is_refused() -> None:
    """A connection to a reserved port without a listener is refused with the reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        refused("probe", f"http://127.0.0.1:{port}", words="no answer from this address")


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ((401, "who are you"), "answered 401: the server wants a key; set PYMLLM_AUTHORIZATION"),
        ((200, "<html></html>"), "which is no list of models"),
        ((503, "loading"), "answered 503: 'loading'"),
        (
            (404, ""),
            "neither /v1/models names a model, nor is /props or /get_model_info there; name the --api",
        ),
    ],
)
def test_what_is_no_server_to_probe_is_refused(models: tuple[int, str], words: str) -> None:
    """Before anything is asked of it."""
    with stub(good, models) as url:
        refused("probe", url, words=words)


def test_a_redirect_is_not_followed() -> None:
    """Traffic goes to the named address alone."""

    def redirect(handler: Any, count: int) -> None:
        reply(handler, 307, "", Location="http://elsewhere.example/")

    with stub(redirect) as url:
        refused("probe", url, words="answered 307, to 'http://elsewhere.example/'; name that address")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name the URL of one server, or --demo"),
        (("ftp://here",), "is no address of a server; write http://HOST:PORT"),
        (("http://127.0.0.1:1", "--demo"), "name the URL of one server, or --demo"),
        (("--demo", "dense", "--start", "x"), "--start: --demo has its own server"),
        (("http://127.0.0.1:1", "--judge", "x"), "--judge asks no server"),
        (("http://127.0.0.1:1", "--without", "V9"), "'V9' is not one of V1"),
        (("http://127.0.0.1:1", "--start", "'"), "No closing quotation"),
        (("http://127.0.0.1:1", "--start", "no-such-program"), "--start cannot run 'no-such-program'"),
    ],
)
def test_bad_input_is_refused(words: tuple[str, ...], told: str) -> None:
    """One line, status 2."""
    refused("probe", *words, words=told)
