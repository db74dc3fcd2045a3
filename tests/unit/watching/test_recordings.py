"""Recordings: written as messages come, and read up to half a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.errors import UsageError
from pymllm.watching.recordings import Recorder, read_recording


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Bytes come back as hexadecimal text."""
    path = tmp_path / "a.jsonl"
    recorder = Recorder(path)
    recorder.write({"seq": 1, "batch": [0.5, [["BlockRemoved", [b"\x01"]]]]})
    assert path.read_text(encoding="utf-8").endswith("\n")  # before it is closed
    recorder.close()
    assert list(read_recording(path)) == [(1, {"seq": 1, "batch": [0.5, [["BlockRemoved", ["01"]]]]})]


def test_no_recording_is_written_over(tmp_path: Path) -> None:
    """An error names the file; so does a folder that is not there, and a value that no message has."""
    path = tmp_path / "a.jsonl"
    Recorder(path).close()
    with pytest.raises(UsageError, match=r"a\.jsonl exists; name a new file"):
        Recorder(path)
    with pytest.raises(UsageError, match="No such file or directory"):
        Recorder(tmp_path / "none" / "a.jsonl")
    recorder = Recorder(tmp_path / "b.jsonl")
    with pytest.raises(TypeError, match="object is no value of a message"):
        recorder.write({"seq": object()})
    recorder.close()


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    """Whoever wrote it was killed; a last line without its end is whole where it is JSON."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"seq": 1}\n\n{"seq": 2}\n{"seq": 3', encoding="utf-8")
    assert [*read_recording(path)] == [(1, {"seq": 1}), (3, {"seq": 2}), (4, None)]
    path.write_text('{"seq": 1}\n{"seq": 2}', encoding="utf-8")
    assert [plain for _, plain in read_recording(path)] == [{"seq": 1}, {"seq": 2}]


def test_a_line_that_is_no_json_is_refused_by_its_number(tmp_path: Path) -> None:
    """The lines before it were yielded."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"seq": 1}\n{"seq": NaN}\n', encoding="utf-8")
    lines = read_recording(path)
    assert next(lines) == (1, {"seq": 1})
    with pytest.raises(UsageError, match=r"line 2 of .*a\.jsonl"):
        next(lines)


def test_why_a_stream_ended_early_is_written_and_read_again(tmp_path: Path) -> None:
    """As the error that ended it, behind the messages."""
    path = tmp_path / "a.jsonl"
    recorder = Recorder(path)
    recorder.write({"seq": 1})
    recorder.write_end("a message of 2 parts")
    recorder.close()
    lines = read_recording(path)
    assert next(lines) == (1, {"seq": 1})
    with pytest.raises(UsageError, match=r"^a message of 2 parts$"):
        next(lines)
