"""``pymllm watch`` on recordings: verdicts, refusals, and what is left of spoiled files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.typed import refused, typed
from tests.unit.watching.producer import Producer

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the stream of a producer to a file."""

    def write(fault: str = "", messages: int = 200, tail: str = "") -> Path:
        path = tmp_path / "events.jsonl"
        lines = (json.dumps(it) + "\n" for it in Producer(0, fault=fault).messages(messages))
        path.write_text("".join(lines) + tail, encoding="utf-8")
        return path

    return write


def test_a_sound_stream_holds(write: Write) -> None:
    """With all laws where the number of blocks is given, and with six otherwise."""
    path = write()
    result = typed("watch", path, "--blocks", 40)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0].startswith(f"{path}: 200 messages, ")
    assert "holds     all 7 laws that apply" in result.stdout
    assert "holds     all 6 laws that apply" in typed("watch", path).stdout


def test_a_broken_law_is_told_with_its_first_event(write: Write) -> None:
    """And the command that shows it again; as JSON the same."""
    path = write("second copy")
    result = typed("watch", path)
    assert result.exit_code == 1
    assert "VIOLATED  1 of 6 laws that apply: W5" in result.stdout
    assert "    observed   removed while 2 copies were there" in result.stdout
    assert f"    again      pymllm watch {path}" in result.stdout
    document = json.loads(typed("watch", path, "--json").stdout)
    assert (document["schema"], document["verdict"], document["exit_status"]) == (
        "pymllm.watch",
        "violated",
        1,
    )
    (finding,) = document["findings"]
    assert (finding["law"], finding["place"]) == ("W5", "group 0, GPU")


@pytest.mark.parametrize("options", [("--removal", "one"), ("--without", "W5")])
def test_a_claim_can_be_withdrawn(write: Write, options: tuple[str, str]) -> None:
    """Then the law is not claimed, and nothing else is wrong with a producer that tells each copy."""
    result = typed("watch", write("second copy"), *options)
    assert result.exit_code == 0, result.output
    assert "holds     all 5 laws that apply" in result.stdout


def test_messages_bound_what_is_judged(write: Write) -> None:
    """The first ones."""
    assert json.loads(typed("watch", write(), "--messages", 7, "--json").stdout)["messages"] == 7


def test_a_spoiled_line_ends_the_stream_and_what_came_before_is_judged(write: Write) -> None:
    """Unknown, unless a law was broken before; half a line at the end is nobody's fault."""
    result = typed("watch", write(tail='{"seq": \n{"seq": 200}\n'))
    assert result.exit_code == 3
    assert "UNKNOWN   the stream ended early; none of 6 laws that apply was broken before" in result.stdout
    assert "ended early: line 201 of " in result.stdout
    assert typed("watch", write("gap", tail="hello\n")).exit_code == 1
    other = typed("watch", write(tail='{"hello": 1}\n'))
    assert "ended early: message 201: a message of an unknown layout: {'hello': 1}" in other.stdout
    torn = typed("watch", write(tail='{"topic": "kv", "seq'))
    assert (torn.exit_code, torn.stderr.count("line 201 has no end, and is left out")) == (0, 1)


def test_an_empty_recording_proves_nothing(write: Write) -> None:
    """All is unknown."""
    assert typed("watch", write(messages=0)).exit_code == 3


def test_what_makes_no_sense_is_refused(write: Write, tmp_path: Path) -> None:
    """In one line."""
    path = write()
    refused("watch", path, "--record", "x.jsonl", words="is a file, not an address; leave it out")
    refused("watch", path, "--for", "3", words="--for: ")
    refused("watch", "http://127.0.0.1:1", words="an address begins with tcp:// or ipc://")
    for arguments in ((), ("--for", "3")):
        words = "127.0.0.1:15557: there is no such file; as an address write tcp://127.0.0.1:15557"
        refused("watch", "127.0.0.1:15557", *arguments, words=words)
    refused("watch", tmp_path / "none.jsonl", words="none.jsonl")
    refused("watch", path, "--without", "W9", words="W9")


def test_without_pyzmq_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line that installs it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("watch", "tcp://127.0.0.1:1", words="pip install 'pymllm[servers]'")


def test_a_result_is_kept_and_read_by_a_report(write: Write, tmp_path: Path) -> None:
    """The summary names the broken law."""
    typed("watch", write("gap"), "--store", tmp_path / "store")
    summary = typed("report", tmp_path / "store", "--format", "summary").stdout
    assert summary.startswith("## ❌ pymllm: 1 law of a stream violated")
    assert "| W1 | <code>" in summary


@pytest.mark.parametrize(("arguments", "adapter"), [((), "index-events"), (("--plain",), "index-dict")])
def test_a_recording_becomes_a_program(
    write: Write, tmp_path: Path, arguments: tuple[str, ...], adapter: str
) -> None:
    """A line says so, and `pymllm rerun` plays it."""
    program = tmp_path / "program.jsonl"
    result = typed("watch", write("second copy"), "--program", program, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"pymllm: program written to {program}: ")
    assert result.stderr.endswith(" steps\n")
    again = typed("rerun", program)
    assert again.exit_code == 0
    assert f" steps of {adapter}: " in again.stdout.splitlines()[0]
    refused("watch", write(), "--program", program, words="it has a run or a program in it")


def test_what_makes_no_program_is_refused(write: Write, tmp_path: Path) -> None:
    """An address, the recording itself, and half of the options; events that are left out are counted."""
    path = write()
    refused(
        "watch", "tcp://127.0.0.1:1", "--program", tmp_path / "p", words="a program is made of a recording"
    )
    refused("watch", path, "--program", path, words="which the command reads")
    refused("watch", path, "--plain", words="--plain is about a program; name its file with --program")
    result = typed("watch", write("twice"), "--program", tmp_path / "p.jsonl", "--plain")
    assert " events left out\n" in result.stderr
