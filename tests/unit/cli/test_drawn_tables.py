"""The console on which tables are drawn."""

from __future__ import annotations

import pytest
from rich.text import Text

from pymllm.cli.drawn_tables import table_console


@pytest.mark.parametrize("styled", [False, True])
def test_only_a_styled_one_writes_a_terminal_s_codes(styled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is printed."""
    monkeypatch.setenv("TERM", "xterm")
    console = table_console(styled=styled)
    with console.capture() as captured:
        console.print(Text("bold", "bold"))
    assert captured.get() == ("\x1b[1mbold\x1b[0m\n" if styled else "bold\n")


def test_nothing_is_wrapped_or_read_into_what_is_told() -> None:
    """Without a width; brackets and colons of a message are its own."""
    words = "word " * 1000 + "[bold] :smile:"
    console = table_console()
    with console.capture() as captured:
        console.print(words)
    assert captured.get() == f"{words}\n"
    assert table_console(20).width == 20
