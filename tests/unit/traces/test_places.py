"""Where lines of a trace lie: in a JSON array, or in the files of a folder."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from pymllm.errors import PymllmError, TraceError
from pymllm.traces import lines as trace_lines
from pymllm.traces.lines import TraceLines
from pymllm.traces.records import ReadOptions
from pymllm.traces.registry import open_trace
from tests.unit.traces.trace_words import SMALL, read


def _value(draw: random.Random, depth: int) -> Any:
    kind = draw.randrange(7 if depth else 5)
    if kind < 2:
        return "".join(draw.choice('ab"\\[]{},\n é') for _ in range(draw.randrange(12)))
    if kind < 5:
        return draw.choice([None, True, 3, -2.5, ""])
    inside = [_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return inside if kind == 5 else {f"k{n}": each for n, each in enumerate(inside)}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("seed", range(20))
def test_elements_of_an_array_are_lines(
    tmp_path: Path, seed: int, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands in them, in one line or many, read in pieces of any size."""
    draw = random.Random(seed)
    monkeypatch.setattr(trace_lines, "_CHUNK", draw.choice([1, 2, 7, 1 << 16]))
    made = [{"a": _value(draw, 3)} for _ in range(draw.randint(1, 12))]
    path = tmp_path / "it.json"
    path.write_text(json.dumps(made, indent=indent, ensure_ascii=draw.random() < 0.5), encoding="utf-8")
    lines = TraceLines(path)
    lines.limit = draw.choice([3, 1 << 20]) if indent else 1 << 20
    lines.limit = max(lines.limit, 400)
    found = list(lines)
    assert [json.loads(text) for _, text in found] == made
    assert [number for number, _ in found] == list(range(1, len(made) + 1))


@pytest.mark.parametrize("name", ["mooncake", "bailian", "dynamo", "kvsim", "weka", "pymllm"])
def test_an_array_of_requests_is_read_as_lines_are(tmp_path: Path, name: str) -> None:
    """Packed or plain, with a byte order mark, told by its first element."""
    wanted = read(SMALL / f"{name}.jsonl")
    elements = [json.loads(line) for line in (SMALL / f"{name}.jsonl").read_bytes().splitlines()]
    text = b"\xef\xbb\xbf \n" * (name == "dynamo") + json.dumps(elements, indent=2).encode()
    text = text.replace(b" \n", b"", 1) if name == "dynamo" else text
    for content in (text, gzip.compress(text)):
        (tmp_path / "it.json").write_bytes(content)
        assert read(tmp_path / "it.json") == wanted


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "the file holds no request"),
        (b'[{"a": 1}', ":1: the array does not end: its ] is missing"),
        (b'[{"a": "', ":1: the array does not end: its ] is missing"),
        (b'[{"hash_ids": [1], "timestamp": 0}, 7]', ":1: not a request: Object missing required field"),
        (
            b'[{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}, 7]',
            ":2: not a req",
        ),
        (
            b'[{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}] 7',
            ":1: there is more behind the end of the array",
        ),
        (b"[1, 2]", ":1: not a JSON object (Expected `object`, got `int`); got '1'"),
    ],
)
def test_a_bad_array_is_refused_by_element(tmp_path: Path, content: bytes, words: str) -> None:
    """X1: the number is that of the element."""
    (tmp_path / "it.json").write_bytes(content)
    with pytest.raises(TraceError, match=re.escape(words)):
        read(tmp_path / "it.json")


def test_an_element_has_the_bound_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: an array may be of any size, an element not."""
    monkeypatch.setattr(trace_lines, "LINE_BYTES_MAX", 300)
    monkeypatch.setattr(trace_lines, "_CHUNK", 50)
    line = b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}'
    (tmp_path / "it.json").write_bytes(b"[" + b",".join([line] * 100) + b"]")
    assert len(read(tmp_path / "it.json")) == 100
    for long in (b'"' + b"x" * 2000 + b'"', b"[" + b"1," * 1000 + b"1]"):
        (tmp_path / "it.json").write_bytes(b"[" + line + b"," + long + b"]")
        with pytest.raises(TraceError, match="2: an element of the array is longer than 300 bytes"):
            read(tmp_path / "it.json")


def test_a_folder_of_lines_is_one_trace(tmp_path: Path) -> None:
    """In order of the names, packed or not, as one numbering; errors name the file and its line."""
    lines = (SMALL / "mooncake.jsonl").read_bytes().splitlines(keepends=True)
    wanted = read(SMALL / "mooncake.jsonl")
    (tmp_path / "a.000.jsonl").write_bytes(b"\n" + lines[0])
    (tmp_path / "a.001.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[1:])))
    (tmp_path / "notes.txt").write_text("no part of it", encoding="utf-8")
    opened = open_trace(tmp_path)
    assert opened.lines.size == sum(path.stat().st_size for path in tmp_path.glob("*.jsonl*"))
    assert not opened.lines.is_read_once
    assert list(opened) == wanted
    assert opened.lines.position == opened.lines.size
    (tmp_path / "a.002.jsonl").write_bytes(b"\n{}\n")
    with pytest.raises(TraceError, match=re.escape(f"{tmp_path / 'a.002.jsonl'}:2: not a request")):
        read(tmp_path)
    (tmp_path / "a.002.jsonl").write_bytes(b"PAR1\n")
    with pytest.raises(TraceError, match=re.escape(f"{tmp_path / 'a.002.jsonl'}:1: a table in a binary")):
        read(tmp_path)
    (tmp_path / "a.002.jsonl").unlink()
    (tmp_path / "a.002.jsonl").mkdir()
    with pytest.raises(TraceError, match=re.escape(f"{tmp_path / 'a.002.jsonl'}:1: cannot be read: Is a")):
        read(tmp_path)


def test_a_folder_of_lines_may_have_conversations(tmp_path: Path) -> None:
    """Weka's conversations come one a line, too."""
    line = (SMALL / "weka.jsonl").read_bytes().splitlines(keepends=True)
    for number, text in enumerate(line):
        (tmp_path / f"{number}.jsonl").write_bytes(text)
    assert read(tmp_path) == read(SMALL / "weka.jsonl")


@pytest.mark.parametrize("content", [b'{"a": 1}\n', (SMALL / "mooncake.jsonl").read_bytes()])
def test_a_refused_file_is_closed(tmp_path: Path, content: bytes) -> None:
    """At once, and not when its memory is collected: a file of no format, and one without deltas."""
    path = tmp_path / "it.jsonl"
    path.write_bytes(content)
    before = psutil.Process().open_files()
    with pytest.raises(PymllmError) as caught:
        open_trace(path, options=ReadOptions(turns="deltas"))
    assert psutil.Process().open_files() == before
    assert str(path) in str(caught.value)
