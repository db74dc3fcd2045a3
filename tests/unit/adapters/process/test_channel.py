"""A program beside this process: lines in both directions, and every way in which none comes."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pymllm.adapters.process.channel import (
    KEPT_LINES,
    VERDICTS,
    Channel,
    ChannelError,
    Transcript,
    open_channel,
)
from pymllm.errors import AdapterError
from tests.child_processes import is_running, left_of

HELLO = b'{"say":"hello"}\n'


@contextmanager
def running(command: str, line_limit: int = 2**20) -> Iterator[Channel]:
    channel = open_channel("mine", shlex.split(command), line_limit)
    try:
        yield channel
    finally:
        channel.end()


def test_lines_go_in_both_directions(tiny_program: Callable[..., str]) -> None:
    """Each answer is one line, without its end."""
    with running(tiny_program()) as channel:
        channel.send([HELLO, b'{"say":"start"}\n'])
        assert channel.receive(10).startswith(b'{"say": "hello"')
        assert channel.receive(None) == b'{"say": "started"}'
        assert channel.transcript.text().count("\n") == 4


def test_more_than_two_pipes_hold_goes_through() -> None:
    """Both sides write at the same time, and nobody waits for the other for ever."""
    count, line = 3000, b"x" * 199 + b"\n"
    with running("cat") as channel:
        channel.send([line] * count)
        assert [channel.receive(10) for _ in range(count)] == [line[:-1]] * count


@pytest.mark.parametrize(
    ("behaviour", "verdict", "words"),
    [
        ("kill", "crashed", "was ended by SIGKILL before it answered"),
        ("status-3", "crashed", "ended with status 3 before it answered"),
        ("status-0", "ended", "ended with status 0 before it answered"),
        ("half-line-and-end", "ended", "ended with status 0 in the middle of a line before it answered"),
        ("hang", "hung", "gave no answer within 1 s"),
        ("half-line", "hung", "gave no answer within 1 s after half a line"),
        ("huge", "too-long", "wrote a line of more than 1,048,576 bytes"),
    ],
)
def test_where_no_line_comes_it_says_why(
    tiny_program: Callable[..., str], behaviour: str, verdict: str, words: str
) -> None:
    """In time, with the last of what was written."""
    with running(tiny_program("start", behaviour)) as channel:
        channel.send([HELLO])
        channel.receive(20)
        channel.send([b'{"say":"start"}\n'])
        with pytest.raises(ChannelError) as caught:
            channel.receive(1.0 if verdict == "hung" else 20)
        assert (caught.value.verdict, caught.value.message[: len(words)]) == (verdict, words)
    if behaviour == "kill":
        assert "! so long" in channel.transcript.text()
    if behaviour.startswith("half-line"):
        assert '< {"say": ' in channel.transcript.text()


@pytest.mark.parametrize(("behaviour", "stream"), [("close-output", "output"), ("close-input", "input")])
def test_a_closed_pipe_is_told_from_an_end(
    tiny_program: Callable[..., str], behaviour: str, stream: str
) -> None:
    """It goes on running, and is not waited for until the limit."""
    with running(tiny_program("hello", behaviour)) as channel:
        channel.send([HELLO])
        if stream == "input":
            deadline = time.monotonic() + 20
            while not channel._is_deaf and time.monotonic() < deadline:  # what is said before that is lost
                channel.send([HELLO])
                time.sleep(0.02)
        channel.send([HELLO])
        with pytest.raises(ChannelError) as caught:
            channel.receive(20)
        assert caught.value.verdict == "closed"
        assert caught.value.message == f"closed its standard {stream}, but went on running"


def test_a_flood_of_standard_error_stops_nobody(tiny_program: Callable[..., str]) -> None:
    """More than a pipe holds is taken in while the answer is awaited."""
    with running(tiny_program("hello", "flood")) as channel:
        channel.send([HELLO])
        assert channel.receive(20).startswith(b'{"say": "hello"')
        assert "! water" in channel.transcript.text()


def test_a_flood_without_an_answer_ends_at_the_limit() -> None:
    """A flood of text on standard error does not prolong the wait for an answer."""
    program = "import os\nwhile True: os.write(2, b'water' * 1000)"
    with running(shlex.join([sys.executable, "-S", "-c", program])) as channel:
        channel.send([HELLO])
        with pytest.raises(ChannelError, match="hung"):
            channel.receive(0.5)


def test_the_end_takes_along_what_a_program_has_started(tiny_program: Callable[..., str]) -> None:
    """A process group of its own; and it is reaped."""
    with running(tiny_program("hello", "leave-a-child")) as channel:
        channel.send([HELLO])
        assert channel.receive(20) == b"so what?"
        found = re.search(r"! child (\d+)", channel.transcript.text())
        assert found is not None
        child = int(found[1])
        assert is_running(child)
    assert left_of([child], 5) == []
    assert channel.is_closed
    channel.end()  # a second time does nothing


def test_a_farewell_waits_for_the_end(
    tiny_program: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And tells the status."""
    monkeypatch.setattr("pymllm.adapters.process.channel._FAREWELL", 20)
    with running(tiny_program()) as channel:
        assert channel.finish(b'{"say":"bye"}\n') == 0
    with running(tiny_program("bye", "status-3")) as channel:
        assert channel.finish(b'{"say":"bye"}\n') == 3
    monkeypatch.setattr("pymllm.adapters.process.channel._FAREWELL", 0.2)
    with running(tiny_program("bye", "hang")) as channel:
        assert channel.finish(b'{"say":"bye"}\n') is None


def test_a_farewell_to_who_does_not_listen_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A farewell that does not fit into the pipe is dropped, and the program is ended."""
    monkeypatch.setattr("pymllm.adapters.process.channel._FAREWELL", 0.1)
    with running("sleep 60") as channel:
        channel.send([b"x" * 2**18 + b"\n"])
        assert channel.finish(b'{"say":"bye"}\n') is None


@pytest.mark.parametrize("program", ["no-such-program-anywhere", os.devnull, "a\0b"])
def test_what_cannot_be_started_is_no_conversation(program: str) -> None:
    """X1: the reason is named."""
    with pytest.raises(AdapterError, match="cannot be started") as caught:
        open_channel("mine", [program], 100)
    assert type(caught.value) is AdapterError


def test_lines_stand_in_order_with_who_said_them() -> None:
    """Standard error comes last."""
    transcript = Transcript()
    transcript.sent(b'{"say":"hello"}\n')
    transcript.received(b"what?")
    transcript.heard(b"first\nsecond\n")
    assert transcript.text().splitlines() == [
        '> {"say":"hello"}',
        "< what?",
        "# its standard error, at the end",
        "! first",
        "! second",
    ]


def test_only_the_last_lines_are_kept_and_it_says_so() -> None:
    """A search says millions."""
    transcript = Transcript()
    for number in range(KEPT_LINES + 7):
        transcript.sent(b"%d\n" % number)
    lines = transcript.text().splitlines()
    assert lines[0] == "# 7 lines before these are left out"
    assert lines[1:] == [f"> {number}" for number in range(7, KEPT_LINES + 7)]


def test_only_the_end_of_a_flood_is_kept() -> None:
    """Of standard error."""
    transcript = Transcript()
    for number in range(100_000):
        transcript.heard(b"water %d\n" % number)
    lines = transcript.text().splitlines()
    assert lines[-1] == "! water 99999"
    assert len(lines) == KEPT_LINES + 1


def test_what_is_no_text_is_escaped_and_what_is_long_is_cut() -> None:
    """A file of it can be read, whatever a program wrote."""
    transcript = Transcript()
    transcript.received(b"\xff\x1b\t")
    transcript.received(b"x" * 5000)
    escaped, cut = transcript.text().splitlines()
    assert escaped == r"< \xff\x1b\t"
    assert cut.endswith("x ... (5,000 characters)")
    assert len(cut) < 2100


PAGE = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_the_page_has_every_verdict_and_no_other() -> None:
    """In the order in which they are listed, with the same words."""
    table = PAGE.split("| verdict | the program |")[1].split("\n\n")[0]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", table, flags=re.MULTILINE)) == VERDICTS
