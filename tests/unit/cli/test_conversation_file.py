"""A file with the last lines of a conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.cli.conversation_file import save_conversation


def test_a_conversation_is_written_and_its_folder_made(tmp_path: Path) -> None:
    """Whatever was said is there; the path is what a message names."""
    path = tmp_path / "runs" / "a.txt"
    assert save_conversation("> h\u00e9llo\n", path) == str(path)
    assert path.read_text(encoding="utf-8") == "> h\u00e9llo\n"


def test_what_cannot_be_written_is_complained_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result matters more."""
    (tmp_path / "runs").touch()
    assert save_conversation("> hello\n", tmp_path / "runs" / "a.txt") is None
    assert capsys.readouterr().err.count("\n") == 1
