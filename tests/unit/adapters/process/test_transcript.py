"""What is kept of a conversation."""

from __future__ import annotations

from pymllm.adapters.process.transcript import KEPT_LINES, Transcript


def test_lines_stand_in_order_with_who_said_them() -> None:
    """Standard error comes last."""
    transcript = Transcript()
    transcript.sent(b'{"say":"hello"}\n')
    transcript.received(b"what?")
    transcript.heard(b"first\nsecond\n")
    assert transcript.text().splitlines() == [
        '> {"say":"hello"}',
        "< what?",
        "# its standard error, at the end",
        "! first",
        "! second",
    ]


def test_only_the_last_lines_are_kept_and_it_says_so() -> None:
    """A search says millions."""
    transcript = Transcript()
    for number in range(KEPT_LINES + 7):
        transcript.sent(b"%d\n" % number)
    lines = transcript.text().splitlines()
    assert lines[0] == "# 7 lines before these are left out"
    assert lines[1:] == [f"> {number}" for number in range(7, KEPT_LINES + 7)]


def test_only_the_end_of_a_flood_is_kept() -> None:
    """Of standard error."""
    transcript = Transcript()
    for number in range(100_000):
        transcript.heard(b"water %d\n" % number)
    lines = transcript.text().splitlines()
    assert lines[-1] == "! water 99999"
    assert len(lines) == KEPT_LINES + 1


def test_what_is_no_text_is_escaped_and_what_is_long_is_cut() -> None:
    """A file of it can be read, whatever a program wrote."""
    transcript = Transcript()
    transcript.received(b"\xff\x1b\t")
    transcript.received(b"x" * 5000)
    escaped, cut = transcript.text().splitlines()
    assert escaped == r"< \xff\x1b\t"
    assert cut.endswith("x ... (5,000 characters)")
    assert len(cut) < 2100
