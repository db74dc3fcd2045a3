"""Files and lines that were written before records were structs: they are read, and written the same."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from pymllm.adapters.process.messages import Request, Told, read_answer
from pymllm.adapters.process.wire import make_line, write_operation
from pymllm.errors import TraceError
from pymllm.history import files, operations, outcomes
from pymllm.history.files import dump_history, load_history, read_history
from pymllm.history.operations import KINDS

FOLDER = Path(__file__).parent / "written_by_1"
AS_WRITTEN = sorted(
    path.name
    for path in FOLDER.glob("*.jsonl")
    if path.name not in ("by-hand.jsonl", "cut-off.jsonl") and not path.name.startswith("said-")
)


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_a_history_is_read_and_written_byte_for_byte(name: str) -> None:
    """Digests, ledgers and merged campaigns compare bytes."""
    history = load_history(FOLDER / name)
    lines = "".join(f"{line}\n" for line in dump_history(history))
    assert lines.encode() == (FOLDER / name).read_bytes()


def test_there_is_one_of_each_kind() -> None:
    """The corpus leaves no kind out."""
    assert {load_history(FOLDER / name).header.kind for name in AS_WRITTEN} == {*KINDS}


def test_a_history_that_was_typed_is_read_as_before() -> None:
    """Fields in any order, spaces anywhere, defaults spelled out."""
    read = repr(load_history(FOLDER / "by-hand.jsonl"))
    assert read == (FOLDER / "by-hand.txt").read_text(encoding="utf-8").rstrip("\n")


def test_a_line_that_was_cut_off_is_named() -> None:
    """What stands before it is whole."""
    lines = (FOLDER / "cut-off.jsonl").read_text(encoding="utf-8").splitlines()
    with pytest.raises(TraceError, match="x:3: not JSON"):
        read_history(lines, "x")
    assert len(read_history(lines[:-1], "x")) == 1


def test_a_program_is_told_the_same_bytes() -> None:
    """Requests, and operations with the numbers that their spans stand for."""
    lines = (FOLDER / "said-to-a-program.jsonl").read_bytes().splitlines(keepends=True)
    requests = [line for line in lines if b'"say":"op"' not in line]
    for line in requests:
        assert make_line(msgspec.json.decode(line, type=Request)) == line
    said = []
    for name in ("everything", "blocks", "hashes", "rows", "swa-slots"):
        for step in load_history(FOLDER / f"{name}.jsonl").steps[:14]:
            operation = write_operation(step.operation, lambda spans: [span.start for span in spans])
            said.append(make_line({"say": "op", "step": step.number, "op": operation}))
    assert said == lines[len(requests) :]


def test_what_a_program_said_is_read_as_before() -> None:
    """Every kind of answer."""
    lines = (FOLDER / "said-by-a-program.jsonl").read_bytes().splitlines(keepends=True)
    answers = [read_answer(line) for line in lines]
    expected = (FOLDER / "said-by-a-program.txt").read_text(encoding="utf-8").splitlines()
    assert [repr(answer) for answer in answers] == expected
    told = [answer for answer in answers if isinstance(answer, Told)]
    names = {**vars(files), **vars(operations), **vars(outcomes), "Told": Told}
    assert [eval(repr(answer), names) for answer in told] == told
    assert len(told) > 50
    assert all(json.loads(line) for line in lines)
