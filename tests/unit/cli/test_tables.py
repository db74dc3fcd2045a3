"""Tables and progress."""

from __future__ import annotations

import sys
import threading

import pytest

from pymllm.cli import tables
from pymllm.cli.tables import draw, make_table, progress_bar


@pytest.mark.parametrize("styled", [False, True])
def test_only_a_styled_one_writes_a_terminal_s_codes(styled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is bold is bold there, and nowhere else."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(tables, "terminal_width", lambda: 20)
    assert draw(("bold", "bold"), fits_terminal=styled) == ("\x1b[1mbold\x1b[0m\n" if styled else "bold\n")


def test_nothing_is_wrapped_or_read_into_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets and colons of a message are its own; a table folds where there is a width, and only there."""
    monkeypatch.setattr(tables, "terminal_width", lambda: 20)
    words = "word " * 1000 + "[bold] :smile:"
    assert draw(words, fits_terminal=True) == f"{words}\n"
    table = make_table("one", "two", right=("two",))
    table.add_row("word " * 9, "2")
    assert (draw(table).count("\n"), draw(table, fits_terminal=True).count("\n")) == (2, 4)


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_no_bar_where_nobody_looks(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Off is off, and auto is off where standard error is no terminal."""
    with progress_bar(mode, "chat", 3) as show:
        assert show is None
    assert capsys.readouterr() == ("", "")


def test_auto_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person waits there."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar("auto", "chat", 3) as show:
        assert show is not None


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_no_bar_without_a_standard_error(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it was closed there is nothing to draw on, standard output least of all."""
    monkeypatch.setattr(sys, "stderr", None)
    with progress_bar(mode, "chat", 3) as show:
        assert show is None
    assert capsys.readouterr().out == ""


def test_a_label_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """Files may be called anything."""
    with progress_bar("on", "[red]chat[/b]", 1) as show:
        assert show is not None
        show(1)
    assert "[red]chat[/b]" in capsys.readouterr().err


def test_the_bar_is_on_standard_error_and_says_how_far(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is for results; the last request is always drawn."""
    with progress_bar("on", "chat radix", 3) as show:
        assert show is not None
        for done in (1, 2, 3):
            show(done)
    out, err = capsys.readouterr()
    assert out == ""
    assert "chat radix" in err
    assert "3/3" in err
    assert "2/3" not in err


def test_the_bar_is_drawn_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A long run shows what is between the first request and the last."""
    monkeypatch.setattr(tables, "_SECONDS_BETWEEN_DRAWS", 0.0)
    with progress_bar("on", "chat", 3) as show:
        assert show is not None
        show(2)
    assert "2/3" in capsys.readouterr().err


def test_no_thread_redraws_the_bar() -> None:
    """What is timed keeps the processor to itself."""
    before = threading.active_count()
    with progress_bar("on", "chat", 3):
        assert threading.active_count() == before
