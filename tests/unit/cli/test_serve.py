"""``pymllm serve`` listens, answers, and ends when it is asked to; bad input is one line."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
from click.testing import CliRunner

from pymllm.cli import main
from pymllm.cli.servers import serve
from tests.unit.cli.typed import typed

NEEDS = pytest.mark.skipif(serve.why_no_servers() is not None, reason="pymllm[servers] is not installed")


@NEEDS
def test_it_serves_until_it_is_terminated() -> None:
    """On a free port, which its one line tells, with a fault if one is named; SIGTERM ends it."""
    command = [sys.executable, "-m", "pymllm", "serve", "window", "--port", "0", "--check"]
    command += ["--fault", "server-counts-pages"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            assert line.startswith("serving window at http://127.0.0.1:")
            address = line.split()[3]
            asked = json.dumps({"prompt": "a prompt " * 5, "max_tokens": 2}).encode()
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            for cached in (0, 48):  # of 45, two pages of which are cached the second time
                with opener.open(f"{address}/v1/completions", asked, timeout=30) as answer:
                    usage = json.load(answer)["usage"]
                assert usage["completion_tokens"] == 2
                assert usage["prompt_tokens_details"]["cached_tokens"] == cached
        finally:
            program.send_signal(signal.SIGTERM)
            rest, errors = program.communicate(timeout=30)
    assert (program.returncode, rest, errors) == (143, "", "pymllm: terminated\n")


@NEEDS
def test_its_events_are_watched() -> None:
    """`pymllm watch` at the address that it tells: every law holds, whenever one joins."""
    pytest.importorskip("zmq", reason="pyzmq of the extra servers is not installed")
    command = [sys.executable, "-m", "pymllm", "serve", "--port", "0", "--capacity", "256"]
    command += ["--events", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            url, address = re.findall(r"(?:http|tcp)://127\.0\.0\.1:\d+", program.stdout.readline())
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            is_heard = threading.Event()

            def ask() -> None:
                for turn in itertools.count():
                    conversation, more = divmod(turn, 2)  # the second goes on with a told block (W3)
                    prompt = [*[7] * 16, *[conversation % 128, conversation // 128] * (12 + 8 * more)]
                    asked = json.dumps({"prompt": prompt, "max_tokens": 2}).encode()
                    opener.open(f"{url}/v1/completions", asked, timeout=30).close()
                    if is_heard.is_set():
                        return

            asker = threading.Thread(target=ask)
            asker.start()
            try:
                watched = typed("watch", address, "--for", 60, "--messages", 60, "--blocks", 16, "--json")
            finally:
                is_heard.set()
                asker.join()
        finally:
            program.send_signal(signal.SIGTERM)
            program.communicate(timeout=30)
    document = json.loads(watched.stdout)
    verdicts = {law["id"]: law["verdict"] for law in document["laws"]}
    assert verdicts.pop("W8") == "not claimed"  # nobody tells of requests
    assert {*verdicts.values()} == {"holds"}, document
    assert document["messages"] == 60


@NEEDS
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--capacity", "8"], "capacity is 8; it must hold at least one page of 16"),
        (["--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1:0"),
        (["--device", "nothing"], "device 'nothing' is not one that torch knows"),
        (["--fault", "B01"], "no fault 'B01'"),
        (["--replay", "tcp://127.0.0.1:*"], "--replay: without --events there are no messages; give both"),
        (["--events", "nowhere"], "cannot publish at nowhere: Invalid argument; give an address such as tcp"),
        (
            ["--events", "tcp://127.0.0.1:*", "--capacity", "8"],
            "capacity is 8; it must hold at least one page of 16",
        ),
        (["sparse"], "'sparse' is not one of 'dense', 'window', 'hybrid'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str) -> None:
    """Before anything listens."""
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.splitlines()) == 1


@NEEDS
def test_a_port_that_is_taken_is_refused() -> None:
    """With the address."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["serve", "--port", str(port)])
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in result.output


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings it stands in the line."""
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["serve"])
    assert result.exit_code == 2
    assert (
        "starlette and uvicorn are not installed; pip install 'pymllm[servers]' brings them" in result.output
    )


@NEEDS
def test_a_missing_pyzmq_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where events are to be published, and then alone."""
    monkeypatch.setattr(serve, "why_no_servers", lambda: None)
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["serve", "--events", "tcp://127.0.0.1:*"])
    assert result.exit_code == 2
    assert "pyzmq is not installed; pip install 'pymllm[servers]' brings it" in result.output
