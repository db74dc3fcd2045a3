"""Files that are never half."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pymllm.text_file import write_text_file


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


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """It is not replaced by a file that nobody reads."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_text_file, args=(pipe, "it"))
    writer.start()
    assert pipe.read_text(encoding="utf-8") == "it"
    writer.join()
    assert pipe.is_fifo()
