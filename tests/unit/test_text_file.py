"""Files that are never half, and never too much."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from pymllm import text_file
from pymllm.errors import TraceError
from pymllm.text_file import read_json, read_lines, read_text_file, write_text_file
from pymllm.work.time_limit import deadline


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    """With nothing left beside it, and with the permissions that it had."""
    path = tmp_path / "it.txt"
    write_text_file(path, "one ä\n")
    path.chmod(0o640)
    write_text_file(path, "two ä\n")
    assert path.read_bytes() == "two ä\n".encode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["it.txt"]


def test_a_write_that_breaks_off_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """Half a page is worse than yesterday's."""
    path = tmp_path / "it.txt"
    path.write_text("yesterday", encoding="utf-8")
    with pytest.raises(UnicodeEncodeError):
        write_text_file(path, "a" * 1_000_000 + "\udc80")
    assert path.read_text(encoding="utf-8") == "yesterday"
    assert os.listdir(tmp_path) == ["it.txt"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As any file would be."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_text_file(tmp_path / "nowhere" / "it.txt", "it")


def test_a_link_stays_one(tmp_path: Path) -> None:
    """The file that it leads to is replaced."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "real" / "it.txt")
    write_text_file(link, "it")
    assert link.is_symlink()
    assert (tmp_path / "real" / "it.txt").read_text(encoding="utf-8") == "it"


def test_nothing_is_written_through_a_link_that_lay_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's folder may have links by any name; the one that would be written through is refused."""
    precious = tmp_path / "precious"
    precious.write_text("mine", encoding="utf-8")
    folder = tmp_path / "strange"
    folder.mkdir()
    for name in (f".it.txt.{os.getpid()}", ".it.txt.00"):
        (folder / name).symlink_to(precious)
    write_text_file(folder / "it.txt", "theirs")
    monkeypatch.setattr("pymllm.text_file.secrets.token_hex", lambda _: "00")
    with pytest.raises(FileExistsError):
        write_text_file(folder / "it.txt", "again")
    assert precious.read_text(encoding="utf-8") == "mine"
    assert sorted(os.listdir(folder)) == sorted([f".it.txt.{os.getpid()}", ".it.txt.00", "it.txt"])


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """A pipe is written to, and not replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_text_file, args=(pipe, "it"))
    writer.start()
    assert pipe.read_text(encoding="utf-8") == "it"
    writer.join()
    assert pipe.is_fifo()


def test_lines_are_read_with_their_numbers_and_ends(tmp_path: Path) -> None:
    """The last one, which has none, may be unfinished."""
    path = tmp_path / "it.jsonl"
    path.write_bytes("one ä\n\n{".encode())
    assert [*read_lines(path)] == [(1, "one ä\n"), (2, "\n"), (3, "{")]
    assert read_text_file(path) == "one ä\n\n{"
    path.write_bytes(b"good\nb\xffd\n")
    assert [line for _, line in read_lines(path, errors="replace")] == ["good\n", "b\ufffdd\n"]
    with pytest.raises(TraceError, match="not UTF-8 text: invalid start byte at byte 6"):
        [*read_lines(path)]
    with pytest.raises(TraceError, match="not UTF-8 text: invalid start byte at byte 6"):
        read_text_file(path)


def test_what_has_no_end_is_refused(tmp_path: Path) -> None:
    """X1: with the bound, and before more of it is read."""
    with pytest.raises(TraceError, match=r"/dev/zero:1: longer than 16,777,216 bytes"):
        [*read_lines(Path("/dev/zero"))]
    with pytest.raises(TraceError, match="/dev/zero: not UTF-8 text: it has zero bytes"):
        read_text_file(Path("/dev/zero"))
    path = tmp_path / "it.txt"
    path.write_text("abc\ndef\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"it\.txt:2: the file is longer than 7 bytes"):
        [*read_lines(path, limit=7)]
    with pytest.raises(TraceError, match=r"it\.txt: longer than 7 bytes"):
        read_text_file(path, limit=7)
    assert (read_text_file(path, limit=8), len([*read_lines(path, limit=8)])) == ("abc\ndef\n", 2)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """An error of opening or of reading names the file."""
    for read in (read_lines, read_text_file):
        with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
            [*read(Path("/proc/self/mem"))]
        with pytest.raises(FileNotFoundError, match="nowhere"):
            [*read(tmp_path / "nowhere")]


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """As a file is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_text_file, args=(pipe, "one\ntwo\n"))
    writer.start()
    assert [*read_lines(pipe)] == [(1, "one\n"), (2, "two\n")]
    writer.join()


@pytest.mark.parametrize("is_begun", [False, True], ids=["nobody writes", "somebody stops"])
def test_a_silent_pipe_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool) -> None:
    """X1: no command waits for ever for a writer that never comes, or that falls silent."""
    monkeypatch.setattr(text_file, "SILENCE", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    silent = os.open(pipe, os.O_RDWR) if is_begun else None
    if silent is not None:
        os.write(silent, b"one\n")
    with pytest.raises(
        TimeoutError, match=r"nothing came from this pipe for 0\.05 s; write it into a file"
    ) as raised:
        read_text_file(pipe)
    assert raised.value.filename == str(pipe)
    if silent is not None:
        os.close(silent)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, {"b": -2.5e3}], "c": null}',
        '{"time": "12:30"}',
        f'"{"9" * 64}"',
        f"[{2**127 - 1}]",
        '"\\u00e4"',
    ],
)
def test_json_is_read(text: str) -> None:
    """Also where it looks at first as if something were wrong."""
    assert read_json(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON: Expecting value at column 1"),
        ('{"a": 1', "not JSON: Expecting ',' delimiter at column 8"),
        ('{"a": 1, "a": 1}', "an object names 'a' twice"),
        ('{"b": {"a" :1, "a" :2}}', "an object names 'a' twice"),
        (f'{{"{"x" * 99}": 1, "{"x" * 99}": 2}}', r"names 'x{56}\.\.\. twice"),
        ("NaN", "NaN is no number that JSON has"),
        ("[-Infinity]", "-Infinity is no number that JSON has"),
        ("[1e999]", "a number is larger than every float"),
        ('{"a": -1e999}', "a number is larger than every float"),
        (str(2**127), "170141183460469231731687303715884105728 does not fit into 128 bits"),
        ("9" * 10_000, r"9{57}\.\.\. does not fit into 128 bits"),
        ('{"a": "\\uD800"}', "half of a surrogate pair"),
        ("[" * 65 + "]" * 65, "more than 64 lists and objects stand inside each other"),
        ("[" * 100_000, "more than 64 lists and objects stand inside each other"),
    ],
)
def test_json_of_a_broken_hand_is_refused(text: str, words: str) -> None:
    """X1: in our own words."""
    with pytest.raises(ValueError, match=words):
        read_json(text)
    assert read_json("[" * 64 + "]" * 64)


def test_an_object_of_many_fields_is_refused_at_once() -> None:
    """The time to find the name that stands twice grows with the object, not with its square."""
    fields = ", ".join(f'"{number}": 0' for number in range(100_000))
    with deadline(20), pytest.raises(ValueError, match="an object names '99999' twice"):
        read_json(f'{{{fields}, "99999": 1}}')
