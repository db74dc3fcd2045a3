"""Trace files: what is read, what is refused, and by which line."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pymllm.errors import TraceError
from pymllm.traces import lines
from pymllm.traces.trace_file import read_trace, write_trace
from pymllm.workloads.request import Request

GOOD = {"timestamp": 10, "input_length": 700, "output_length": 5, "hash_ids": [3, 4]}


def as_lines(*objects: object) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in objects)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def refusal(trace: Path, content: bytes, **options: int) -> TraceError:
    trace.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_trace(trace, **options)
    assert caught.value.source == str(trace)
    assert "\n" not in str(caught.value)
    return caught.value


def test_fields_become_the_request(trace: Path) -> None:
    """Milliseconds and lengths arrive as they stand; ids of requests and blocks count from 0."""
    trace.write_bytes(as_lines(GOOD, {**GOOD, "timestamp": 10.5, "input_length": 1024}))
    assert read_trace(trace) == [
        Request(0, 10.0, 700, 5, (0, 1), 512),
        Request(1, 10.5, 1024, 5, (0, 1), 512),
    ]


def test_first_requests_stop_the_reading(trace: Path) -> None:
    """Lines beyond the wanted number are not even looked at; a limit above the file's length is no error."""
    trace.write_bytes(as_lines(GOOD, GOOD) + b"not json\n")
    assert len(read_trace(trace, requests=2)) == 2
    trace.write_bytes(as_lines(GOOD, GOOD))
    assert len(read_trace(trace, requests=9)) == 2


@pytest.mark.parametrize("name", ["requests", "block_tokens"])
def test_limits_below_one_are_refused(trace: Path, name: str) -> None:
    """X1: nothing is opened for a limit that makes no sense."""
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        read_trace(trace, **{name: 0})


def test_a_block_larger_than_all_tokens_is_refused(trace: Path) -> None:
    """X1: with it no hash_ids would do, and the bound would be -1."""
    with pytest.raises(
        ValueError, match="block_tokens must be at least 1 and at most 2147483647, got 2147483648"
    ):
        read_trace(trace, block_tokens=1 << 31)
    trace.write_bytes(as_lines({**GOOD, "hash_ids": [0]}))
    assert read_trace(trace, block_tokens=(1 << 31) - 1)[0].prompt_length == 700


def test_more_blocks_than_an_engine_can_name_are_refused(trace: Path) -> None:
    """X1: two blocks would have the same tokens; the message says how much of the trace can be replayed."""
    trace.write_bytes(as_lines(*({**GOOD, "hash_ids": [number]} for number in (7, 7, 9))))
    words = r"request 3 brings more than 1 blocks of 2,147,483,647 tokens, .* the first 2 requests with"
    with pytest.raises(TraceError, match=words):
        read_trace(trace, block_tokens=(1 << 31) - 1)
    assert len(read_trace(trace, requests=2, block_tokens=(1 << 31) - 1)) == 2


def test_other_block_sizes_are_read(trace: Path) -> None:
    """Traces with blocks of 16 tokens exist; the size is the caller's word."""
    trace.write_bytes(as_lines({**GOOD, "input_length": 17}))
    assert read_trace(trace, block_tokens=16)[0].prompt().tolist() == [*range(16), 16]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_blank_lines_are_skipped_but_counted(trace: Path, newline: bytes) -> None:
    """The named line is the one an editor shows."""
    line = json.dumps(GOOD).encode()
    trace.write_bytes(newline.join([b"", line, b"  ", line, b""]))
    assert [request.request_id for request in read_trace(trace)] == [0, 1]
    assert refusal(trace, newline.join([b"", line, b"  ", b"{}"])).line == 4


@pytest.mark.parametrize(
    "content",
    [
        as_lines(GOOD).rstrip(),
        as_lines({**GOOD, "turn": 3, "type": "text"}),
        codecs.BOM_UTF8 + as_lines(GOOD),
        gzip.compress(as_lines(GOOD)),
    ],
    ids=["no newline at the end", "fields of others", "a byte order mark", "gzip, whatever its name"],
)
def test_what_publishers_and_editors_do_is_read(trace: Path, content: bytes) -> None:
    """One request is one request."""
    trace.write_bytes(content)
    assert len(read_trace(trace)) == 1


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    """``pymllm replay <(...)`` hands over a pipe, which cannot be rewound."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(as_lines(GOOD)),))
    writer.start()
    try:
        assert len(read_trace(pipe)) == 1
    finally:
        writer.join()


def run_with_input(code: str, **options: Any) -> str:
    """Run Python code in a process of its own, whose standard input is the test's to choose."""
    command = [sys.executable, "-c", "from pymllm.traces.trace_file import read_trace; " + code]
    return subprocess.run(command, capture_output=True, timeout=60, check=True, **options).stdout.decode()


def test_a_dash_is_standard_input() -> None:
    """It is read to its end, plain or gzip, and is left open."""
    code = "print(len(read_trace('-'))); print(len(__import__('sys').stdin.read()))"
    assert run_with_input(code, input=as_lines(GOOD, GOOD)) == "2\n0\n"
    assert run_with_input(code, input=gzip.compress(as_lines(GOOD))) == "1\n0\n"


def test_a_file_called_dash_needs_its_folder(tmp_path: Path) -> None:
    """``./-`` is a path like any other."""
    (tmp_path / "-").write_bytes(as_lines(GOOD))
    code = "print(len(read_trace('./-')))"
    assert run_with_input(code, input=b"", cwd=tmp_path) == "1\n"


def test_a_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: its number may have become another file's, which nobody meant."""
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(TraceError, match=r"^standard input: cannot be read: it is closed$"):
        read_trace("-")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"timestamp": -1}, "timestamp is -1.0, must be in 0..10000000000000 (milliseconds)"),
        ({"timestamp": 1e300}, "timestamp is 1e+300, must be in 0..10000000000000"),
        ({"timestamp": 9}, "timestamp 9 lies before 10 of the request above it; sort"),
        ({"timestamp": "10"}, "Expected `float`, got `str` - at `$.timestamp`"),
        ({"timestamp": True}, "Expected `float`, got `bool`"),
        ({"input_length": 0}, "input_length is 0, must be in 1..2147483647 (tokens)"),
        ({"input_length": 1 << 31}, "input_length is 2147483648, must be in 1..2147483647"),
        ({"input_length": 700.5}, "Expected `int`, got `float`"),
        (
            {"input_length": 512},
            "input_length 512 does not fit 2 hash_ids of 512 tokens (possible lengths: 513..1024)",
        ),
        ({"input_length": 1025}, "(possible lengths: 513..1024)"),
        ({"output_length": 0}, "output_length is 0, must be in 1..2147483647"),
        ({"output_length": 10**18}, "output_length is 1000000000000000000, must be in"),
        ({"output_length": 10**30}, "output_length is 1000000000000000000000000000000, must be in"),
        ({"output_length": None}, "got `null`"),
        ({"hash_ids": []}, "input_length 700 does not fit 0 hash_ids of 512 tokens (possible lengths: none)"),
        ({"hash_ids": [3, -4]}, "hash_ids has -4, must be at least 0"),
        ({"hash_ids": ["a"]}, "Expected `int`, got `str` - at `$.hash_ids[0]`"),
        ({"hash_ids": 3}, "Expected `array`, got `int`"),
    ],
)
def test_bad_value_is_named_with_its_line_and_bound(
    trace: Path, change: dict[str, object], words: str
) -> None:
    """X1: each refusal says which line, which value and what would do."""
    error = refusal(trace, as_lines(GOOD, {**GOOD, **change}, GOOD))
    assert error.line == 2
    assert words in error.message


@pytest.mark.parametrize("field", sorted(GOOD))
def test_missing_field_is_named(trace: Path, field: str) -> None:
    """X1: a line without one of the four fields is refused."""
    error = refusal(trace, as_lines({key: value for key, value in GOOD.items() if key != field}))
    assert error.line == 1
    wanted = f"{field} is missing" if field == "input_length" else f"missing required field `{field}`"
    assert wanted in error.message


@pytest.mark.parametrize(
    "content",
    [
        b"[1, 2]\n",
        b"hello\n",
        b'{"timestamp": 1,\n',
        b'"\xff\xfe\xfa"\n',
        b'{"more": ' + b"[" * 100_000 + b"\n",
        b'{"timestamp": 1e999}\n',
    ],
    ids=["array", "text", "cut", "not-utf8", "deep", "overflow"],
)
def test_lines_that_are_no_request_are_refused(trace: Path, content: bytes) -> None:
    """X1: whatever stands on a line, the answer is one sentence."""
    error = refusal(trace, as_lines(GOOD) + content)
    assert error.line == 2
    assert error.message.startswith("not a request: ")
    assert len(error.message) < 300


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_named(trace: Path, encoding: str) -> None:
    """X1: UTF-16 and binary files are told apart from bad JSON."""
    error = refusal(trace, as_lines(GOOD).decode().encode(encoding))
    assert error.line == 1
    assert "not UTF-8" in error.message


@pytest.mark.parametrize("content", [b"", b"\n \n"], ids=["empty", "blank"])
def test_file_without_a_request_is_refused(trace: Path, content: bytes) -> None:
    """X1: an empty replay would report zeros as if they meant something."""
    error = refusal(trace, content)
    assert error.line is None
    assert "holds no request" in error.message


def test_endless_line_is_refused_before_memory_is(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: /dev/zero and the like end in one sentence."""
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 200)
    error = refusal(trace, as_lines(GOOD) + b" " * 201)
    assert error.line == 2
    assert "longer than 200 bytes" in error.message


@pytest.mark.parametrize("cut", [12, 60])
def test_broken_gzip_is_refused(trace: Path, cut: int) -> None:
    """X1: a download that broke off is no trace, nor are bytes that decompress to something else."""
    packed = gzip.compress(as_lines(*({**GOOD, "timestamp": 10 + n} for n in range(50))))
    assert "broken gzip data" in refusal(trace, packed[:cut]).message
    for place in (10, -8):  # data, checksum
        damaged = bytearray(packed)
        damaged[place] ^= 0xFF
        assert "broken gzip data" in refusal(trace, bytes(damaged)).message


def test_directory_and_missing_file_are_refused(tmp_path: Path) -> None:
    """X1: the system's own words, with the path."""
    with pytest.raises(TraceError, match=r"nowhere\.jsonl: cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.jsonl")
    with pytest.raises(TraceError, match=r"the folder has no file \*\.jsonl"):
        read_trace(tmp_path)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_what_is_written_reads_back(tmp_path: Path, name: str) -> None:
    """Reading inverts writing, compressed or not."""
    requests = [Request(0, 0.0, 513, 1, (0, 1)), Request(1, 2.25, 512, 9, (2,))]
    assert write_trace(tmp_path / name, requests) == 2
    assert read_trace(tmp_path / name) == requests


def test_a_namespace_cannot_be_written(trace: Path) -> None:
    """X1: the format has no field for it, so nothing is written rather than something else."""
    with pytest.raises(ValueError, match="namespace 'a'"):
        write_trace(trace, [Request(0, 0.0, 1, 1, (0,)), Request(1, 0.0, 1, 1, (0,), namespace="a")])
    assert not trace.exists()
