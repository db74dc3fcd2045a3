"""Tables and progress."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pymllm.cli import tables
from pymllm.cli.tables import card_lines, draw, draw_document, make_table, progress_bar
from pymllm.documents.curves import CurveDocument
from pymllm.documents.replays import WorkloadRow
from pymllm.history.files import Header, History, Step, write_history
from pymllm.history.operations import AllocRows, FreeRow, ReadRows, Span, WriteRow
from pymllm.report import sections
from pymllm.report.blocks import BAD, PAGE, QUIET, TERMINAL, Card, Cell, Column, Fact, Text, number
from pymllm.report.blocks import make_table as make_block
from pymllm.search.program import rerun_history
from tests.unit.cli.typed import Terminal, typed


def unstyled(text: str) -> list[str]:
    return re.sub("\x1b\\[[0-9;]*m", "", text).splitlines()


@pytest.mark.parametrize("styled", [False, True])
def test_only_a_styled_one_writes_a_terminal_s_codes(styled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bold text has terminal codes only where styles are on."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(tables, "terminal_width", lambda: 20)
    assert draw(("bold", "bold"), fits_terminal=styled) == ("\x1b[1mbold\x1b[0m\n" if styled else "bold\n")


def test_brackets_and_colons_of_a_message_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets and colons of a message are printed as they are; without a width no text is wrapped."""
    words = "word " * 1000 + "[bold] :smile:"
    assert draw(words, fits_terminal=True) == f"{words}\n"
    monkeypatch.setattr(tables, "terminal_width", lambda: 20)
    assert draw("[bold] :smile:", fits_terminal=True) == "[bold] :smile:\n"


def test_a_line_breaks_between_words_below_its_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label stands alone; what people copy, a command or a program, is never broken."""
    monkeypatch.setattr(tables, "terminal_width", lambda: 30)
    copied = [
        "    again      pymllm rerun runs/a-long-name.jsonl --adapter rows",
        "next: pymllm verify --command ./a-program",
        "        run_program('rows', {'max_reqs': 3}, [])",
    ]
    labelled = "    because    it is somewhat-long and said in words"
    plain = "rows: two coverage goals not reached"
    assert draw(*copied, labelled, plain, fits_terminal=True).splitlines() == [
        *copied,
        "    because    it is",
        "               somewhat-long",
        "               and said in",
        "               words",
        "rows: two coverage goals not",
        "    reached",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_breaks_no_word(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The widest columns give way first, each as far as its longest word."""
    monkeypatch.setattr(tables, "terminal_width", lambda: width)
    table = make_table("law", "a-heading-of-some-length", "count", right=("count",), gap=2)
    long = "a-word-that-is-long", "1,234,567"
    table.add_row("R2", f"some words and {long[0]} " * 3, long[1])
    lines = unstyled(draw(table, fits_terminal=True))
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    assert words == {"law", "a-heading-of-some-length", "count", "R2", "some", "words", "and", *long}


# -- every verb --------------------------------------------------------------------------------------------

_SMALL = ("--examples", "12", "--profile", "dev", "--jobs", "1")
_PROGRAM = "dirty.jsonl"
_VERBS = {
    "adapters": "adapters rows kv-buffers -v",
    "compare": f"compare rows faulty-dirty-rows kv-buffers {' '.join(_SMALL)}",
    "diff": "diff judged.json judged.json",
    "doctor": "doctor",
    "faults": "faults hunt B116",
    "judge": f"judge {_PROGRAM}",
    "replay": "replay chat --requests 4",
    "replay, a curve": "replay chat --requests 4 --capacity 2k --capacity 4k --jobs 1",
    "rerun": f"rerun {_PROGRAM} --timing",
    "shrink": f"shrink {_PROGRAM} -o short.jsonl",
    "goals": "goals --kind rows",
    "soak": "soak --adapter faulty-dirty-rows --operations 400 --longest 200 --seed 7 -v --output new",
    "verify": f"verify --adapter rows --adapter faulty-dirty-rows {' '.join(_SMALL)} -v",
}


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, int | None], list[str]]:
    """Run a command on a terminal of so many columns, or on none; its lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    steps = AllocRows(1), WriteRow(Span(1, 0, 1), 0, 1, (1,)), FreeRow(Span(1, 0, 1)), ReadRows()
    header = Header("faulty-dirty-rows", "rows", {"max_reqs": 1, "max_context_len": 2})
    history = History(header, [Step(*step) for step in enumerate(steps, 1)])
    write_history(rerun_history(history, "faulty-dirty-rows").history, Path(_PROGRAM))
    Path("judged.json").write_text(typed("judge", _PROGRAM, "--json").stdout, encoding="utf-8")

    def show(command: str, width: int | None) -> list[str]:
        monkeypatch.setattr(tables, "terminal_width", lambda: width)
        result = typed(*shlex.split(command))
        assert result.exit_code in (0, 1), result.output
        shutil.rmtree("new", ignore_errors=True)
        return unstyled(result.stdout)

    return show


@pytest.mark.usefixtures("work_here")
@pytest.mark.parametrize("verb", _VERBS)
def test_no_verb_breaks_a_word(verb: str, widths: Callable[[str, int | None], list[str]]) -> None:
    """On a terminal each line fits, but for copied text, and no word is new.

    Numbers are left out: the two runs take different times.
    """
    plain, fitted = widths(_VERBS[verb], None), widths(_VERBS[verb], 80)
    too_long = [line for line in fitted if len(line) > 80 and not tables.is_copied(line)]
    assert [line for line in too_long if len(line.split()) > 2] == []
    words, told = ({word for line in lines for word in line.split()} for lines in (plain, fitted))
    assert {word for word in told - words if not re.search("[0-9]", word)} == set()


# -- progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["on", "auto", "off"])
def test_no_bar_without_a_standard_error_or_a_wish(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it was closed there is nothing to draw on, standard output least of all."""
    if mode != "off":
        monkeypatch.setattr(sys, "stderr", None)
    with progress_bar(mode, "chat", 3) as show:
        assert show is None
    assert capsys.readouterr().out == ""


class Clock:
    """Shows what it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_off_a_terminal_there_is_a_line_every_ten_seconds(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while nothing ends; ``on`` has one at the beginning, too. A label is one line whatever it is."""
    clock = Clock()
    with progress_bar(mode, "a trace\n[red]", 30, "requests", clock=clock) as show:
        assert show is not None
        for clock.now in range(1, 32):
            show(int(clock.now) // 15)
    out, err = capsys.readouterr()
    told = [
        f"pymllm: a trace\\n[red]: {n} of 30 requests, 0:00:{at}" for n, at in ((0, 10), (1, 20), (2, 30))
    ]
    begun = ["pymllm: a trace\\n[red]: 0 of 30 requests, 0:00:00"] if mode == "on" else []
    assert (out, err.splitlines()) == ("", begun + told)


def test_a_bar_moves_each_time_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal has a bar at once; the time in it moves with each call, also where nothing has ended."""
    clock = Clock()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    before = threading.active_count()
    with progress_bar("auto", "[red]chat[/b]", 3, clock=clock) as show:
        assert show is not None
        assert "[red]chat[/b]" in terminal.getvalue()
        assert "0/3" in terminal.getvalue()
        clock.now = 1.0
        show(0)
        assert "0:00:01" in terminal.getvalue()
        clock.now = 1.01
        show(1)  # so soon is not drawn
        show(3)  # but for the last
        assert threading.active_count() == before  # what is timed keeps the processor to itself
    assert "1/3" not in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


EMPTY = CurveDocument(
    versions={},
    workload=WorkloadRow(name="chat", kind="named", requests=0, seed=0),
    page_size=1,
    method="exact",
    trace_seconds=0.0,
    longest_prompt=0,
    rows=(),
    seconds=0.0,
    cpu_seconds=0.0,
)

# -- blocks ------------------------------------------------------------------------------------------------


def test_a_terminal_draws_blocks_and_leaves_out_what_is_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captions of several tables, meanings of the columns that are left, and what is bad at the end."""
    columns = [
        Column("what", str),
        number("count", lambda it: Cell(str(it), BAD)),
        number("nothing known", lambda _: Cell("no model", QUIET)),
        number("hidden", str, only=PAGE),
    ]
    parts = [
        Text("heading", only=TERMINAL),
        Text("hidden", only=PAGE),
        make_block("first", [1, 20], columns),
        Text("it broke", BAD),
        make_block("second", [3], [columns[0], replace(columns[1], name="tokens")]),
    ]
    words = {"count": "how many", "nothing known": "of a model"}
    monkeypatch.setattr(sections, "_TERMINAL", {CurveDocument: ("capacity", lambda _: parts)})
    monkeypatch.setattr(sections, "TEXTS", {"words": {}, "capacity": {"words": words}})
    assert draw_document(EMPTY, "a note").splitlines() == [
        "heading",
        "",
        "first",
        "what  count",
        "1         1",
        "20       20",
        "",
        "second",
        "what  tokens",
        "3          3",
        "",
        "count  how many",
        "",
        "it broke",
        "",
        "a note",
    ]


def test_rows_of_a_turned_table_stand_side_by_side() -> None:
    """With a heading for each group of columns."""
    columns = [
        Column("", lambda it: it[0]),
        Column("hits", lambda it: it[1], group="one"),
        Column("evicted", lambda it: it[2], group="two"),
    ]
    block = make_block("", [("radix", "1", "20"), ("chunk", "0", "0")], columns)
    lines = draw(replace(block, is_turned=True)).splitlines()
    assert [line.split() for line in lines] == [
        ["radix", "chunk"],
        ["one"],
        ["hits", "1", "0"],
        ["two"],
        ["evicted", "20", "0"],
    ]


def test_a_table_without_room_is_cut_between_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part begins with the words of its rows, and no number is broken."""
    monkeypatch.setattr(tables, "terminal_width", lambda: 40)
    names = [str(name) for name in range(1, 7)]
    columns = [Column("law", lambda law: law), *(number(name, lambda _: "✓ 1,234") for name in names)]
    lines = unstyled(draw(make_block("laws", ["P1"], columns), fits_terminal=True))
    assert [line.split() for line in lines] == [
        ["law", *names[:3]],
        ["P1", *["✓", "1,234"] * 3],
        [],
        ["law", *names[3:]],
        ["P1", *["✓", "1,234"] * 3],
    ]


def test_a_card_is_facts_and_a_program() -> None:
    """A name stands once; what comes from elsewhere stays in its line."""
    facts = [Fact("again", "one"), Fact("again", "two"), Fact("or", "a\nb")]
    card = Card("id", "a title", BAD, facts, "first\nsecond", note="too long")
    assert card_lines(card) == [
        "a title",
        "    again      one",
        "               two",
        "    or         a\\nb",
        "    program    too long",
        "        first",
        "        second",
    ]
    assert card_lines(replace(card, program=""))[-1] == "    or         a\\nb"
