"""The display of results: documents, tables, progress, and the words on a broken law."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pymllm.cli.output import complain, escaped, say
from pymllm.documents.searches import (
    AdapterRow,
    DeviationRow,
)
from pymllm.instrument.documents import Document
from pymllm.report import blocks
from pymllm.report.blocks import BAD, ENDING, UNKNOWN, Fact
from pymllm.report.quantities import count_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    Drawn: TypeAlias = RenderableType | blocks.Table | tuple[str, str]

# rich is loaded by what is drawn, and not by --help.

_D = TypeVar("_D", bound=Document)
_T = TypeVar("_T")
_STYLES: dict[str | None, str] = {BAD: "bold red", UNKNOWN: "bold yellow", ENDING: "bold"}
_ENOUGH = 10_000  # A table is only as wide as its contents, so this is no width at all.


def say_document(document: Document) -> None:
    """Print a document as JSON."""
    say(json.dumps(document.plain(), indent=2))


def tell(
    document: _D,
    make_text: Callable[[_D], str],
    as_json: bool,
    interruption: KeyboardInterrupt | None = None,
) -> int:
    """Print a document as text or as JSON; return its exit status, or raise the interruption again."""
    if as_json:
        say_document(document)
    else:
        show(make_text(document))
    if interruption is not None:
        raise interruption
    return int(getattr(document, "exit_status", 0))


def show(text: str) -> None:
    """Print a text that `draw` may have had a part in, as wide as the terminal."""
    width = terminal_width()
    say(wrap(text, width), styled=width is not None)


# -- tables ------------------------------------------------------------------------------------------------


def terminal_width() -> int | None:
    """Return the columns of the terminal that is written to; ``None`` where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def make_table(
    *columns: str, right: Sequence[str] = (), gap: int = 3, rows: Iterable[Sequence[str]] = ()
) -> Table:
    """Return a table without lines; a column of ``right`` has its cells at its right end."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", header_style="")
    for row in rows:
        table.add_row(*row)
    return table


def make_legend(words: Mapping[str, str]) -> Table:
    """Return a table that explains the words of another one."""
    table = make_table("", "", gap=2, rows=words.items())
    table.show_header = False
    return table


def draw(*parts: Drawn, fits_terminal: bool = False) -> str:
    """Return tables and texts as lines, the last one ended; a text may come with a style, such as bold.

    On a terminal that it is to fit, tables and texts are as wide as that, and bold is bold. Blanks at the end
    of a line are left out. What may be a stranger's, such as names, leaves its line or cell by no character.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = terminal_width() if fits_terminal else None
    styled = width is not None
    console: Console = Console(
        file=io.StringIO(),
        width=width or _ENOUGH,
        force_terminal=styled,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        for part in parts:
            if isinstance(part, str | tuple):
                text, style = (part, "") if isinstance(part, str) else part
                text = "\n".join(map(escaped, text.split("\n")))
                console.print(Text(wrap(text, width), style=style if styled else ""), soft_wrap=True)
            else:
                part = table_of(part) if isinstance(part, blocks.Table) else part
                if isinstance(part, Table):
                    _escape_cells(part)
                    if width is not None:
                        narrow(part, width)
                console.print(part, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def draw_document(document: Document, *notes: str) -> str:
    """Return the report's view of a document, as wide as the terminal; notes stand at its end."""
    ended = [(escaped(note), "bold") for note in notes]
    return draw(*_spaced([document_parts(document), ended]), fits_terminal=True)


def document_parts(document: Document) -> list[Drawn]:
    """Return the tables and texts that a report has of a document: what is bad, and a sum, come last."""
    from pymllm.report.sections import parts_of  # with texts and all that a page has; --help does without

    parts, words = parts_of(document)
    is_captioned = sum(isinstance(it, blocks.Table) for it in parts) > 1
    groups: list[list[Drawn]] = [[]]
    ended: list[Drawn] = []
    for it in parts:
        if isinstance(it, blocks.Table):
            groups += [[*([it.caption] if is_captioned else []), it], []]
        elif isinstance(it, blocks.Text) and it.tone in _STYLES:
            ended.append((escaped(it.text), _STYLES[it.tone]))
        elif isinstance(it, blocks.Text):
            groups[-1].append(escaped(it.text))
    widest = max(map(len, words), default=0)
    legend = [wrap(f"{word:{widest}}  {meaning}", terminal_width() or 80) for word, meaning in words.items()]
    return [*_spaced([*groups, legend, ended])]


def _spaced(groups: Iterable[Sequence[Drawn]]) -> Iterator[Drawn]:
    """Yield the members of groups, with an empty line between two groups."""
    for place, group in enumerate(filter(None, groups)):
        yield from ([""] if place else [])
        yield from group


def table_of(it: blocks.Table) -> Table:
    """Return a table as a terminal has it."""
    if it.is_turned:
        return _turned(it)
    from rich.text import Text

    right = [column.name for column in it.columns if column.is_number]
    table = make_table(*(column.name for column in it.columns), right=right, gap=2)
    for row in it.rows:
        table.add_row(*(Text(escaped(cell.text), style=_STYLES.get(cell.tone, "")) for cell in row))
    return table


def _turned(it: blocks.Table) -> Table:
    """Return a table with its rows side by side, a heading above each group of its columns."""
    table = make_table(it.columns[0].name)
    for row in it.rows:
        table.add_column(row[0].text, justify="right", header_style="", overflow="fold")
    group = ""
    for column, *cells in zip(it.columns[1:], *(row[1:] for row in it.rows), strict=True):
        if column.group != group:
            table.add_row(column.group, style="bold")
            group = column.group
        table.add_row(f"  {column.name}", *(cell.text for cell in cells))
    return table


def _escape_cells(table: Table) -> None:
    for column in table.columns:
        column._cells = [escaped(cell) if isinstance(cell, str) else cell for cell in column.cells]


def narrow(table: Table, width: int) -> None:
    """Narrow the widest columns of a table until it fits, as far as no word is broken."""
    texts = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    widths = [max(map(len, column)) for column in texts]
    least = [max((len(word) for text in column for word in text.split()), default=0) for column in texts]
    over = sum(widths) + (len(widths) - 1) * table.padding[1] - width
    while over > 0 and widths != least:
        widest = max(range(len(widths)), key=lambda at: (widths[at] > least[at], widths[at]))
        widths[widest] -= 1
        over -= 1
    for column, own in zip(table.columns, widths, strict=True):
        column.width = own


_COPIED = re.compile(r" {8}|.*(^|  |: )pymllm [a-z]+ ")
_LABEL = re.compile(r" *\S.{0,30}?  +(?=\S)")


def is_copied(line: str) -> bool:
    """Tell if a line is of a program, or has a command: people copy it, so only the terminal breaks it."""
    return _COPIED.match(line) is not None


def wrap(text: str, width: int | None) -> str:
    """Break the lines of a text between words; further lines begin below the first word behind the label."""
    if width is None:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= width or is_copied(line) or "\x1b" in line:
            lines.append(line)
            continue
        label = _LABEL.match(line)
        hang = len(label[0]) if label else len(line) - len(line.lstrip()) + 4
        first = line[:hang] if label else ""
        lines += textwrap.wrap(
            line[len(first) :],
            width,
            initial_indent=first,
            subsequent_indent=" " * hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


# -- progress ----------------------------------------------------------------------------------------------

BETWEEN_DRAWS, BETWEEN_LINES = 0.1, 10.0
"""Seconds between two drawings of a bar, and between two lines where there is no terminal."""


def shows_progress(mode: str) -> bool:
    """Tell whether there is a standard error on which ``--progress`` is to be seen."""
    # There is no standard error at all where it was closed, and rich would draw on the other one.
    return mode != "off" and sys.stderr is not None


@contextmanager
def progress_bar(
    mode: str,
    label: str,
    total: int | None,
    unit: str = "requests",
    *,
    clock: Callable[[], float] = monotonic,
) -> Iterator[Callable[[int], None] | None]:
    """Show the progress of a run, without a thread, which would take processor time from the timed code.

    ``total`` is how many of the unit there are, ``None`` where nobody knows.
    What it yields takes the number done, and is called every second, too, where that does not change: the
    time in the bar moves. Where standard error is no terminal there are lines; ``on`` begins with one.
    """
    if not shows_progress(mode):
        yield None
        return
    begun = clock()
    if not sys.stderr.isatty():
        of = unit if total is None else f"of {total:,} {unit}".rstrip()

        def say_how_far(done: int) -> None:
            complain(f"{label}: {done:,} {of}, {time_of(clock() - begun)}")

        if mode == "on":
            say_how_far(0)
        yield paced(say_how_far, BETWEEN_LINES, clock)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, get_time=clock, auto_refresh=False, transient=True) as progress:
        task = progress.add_task(escaped(label), total=total)
        progress.refresh()

        def draw_now(done: int) -> None:
            progress.update(task, completed=done)
            progress.refresh()

        look = paced(draw_now, BETWEEN_DRAWS, clock)
        yield lambda done: draw_now(done) if done == total else look(done)


def paced(tell: Callable[[_T], None], seconds: float, clock: Callable[[], float]) -> Callable[[_T], None]:
    """Return a function that passes a word on only if ``seconds`` have gone by since the last one."""
    last = clock()

    def pass_on(word: _T) -> None:
        nonlocal last
        if clock() - last >= seconds:
            tell(word)
            last = clock()

    return pass_on


def time_of(seconds: float) -> str:
    """Write a time as hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


# -- laws that are broken ----------------------------------------------------------------------------------


def cards_of(document: Document) -> list[blocks.Card]:
    """Return the report's card for each violation in a document."""
    from pymllm.report.sections import parts_of

    return [part for part in parts_of(document)[0] if isinstance(part, blocks.Card)]


def card_lines(card: blocks.Card) -> list[str]:
    """Return the lines of a card, the program at its end."""
    lines = ["", escaped(card.title), *fact_lines(card.facts)]
    if not card.program:
        return lines
    return [*lines, f"    program    {card.note}".rstrip(), *program_lines(card.program)]


def fact_lines(facts: Sequence[Fact]) -> list[str]:
    """Return a line for each fact, its name where it is another one than above."""
    names = [fact.name for fact in facts]
    shown = [name if not place or names[place - 1] != name else "" for place, name in enumerate(names)]
    return [f"    {name:11}{escaped(it.value)}" for name, it in zip(shown, facts, strict=True)]


def deviation_lines(rows: Iterable[DeviationRow]) -> Iterator[tuple[str, str]]:
    """Say which known deviations were met, and which no longer show, each with a style."""
    shown = [f"{it.name} ({it.law}, {count_of(it.programs, 'program')})" for it in rows if it.programs]
    if shown:
        yield f"known     {escaped(', '.join(shown))}", ""
    gone = [it.name for it in rows if it.status == "gone"]
    if gone:
        yield f"gone      no program met {escaped(', '.join(gone))}: mended, or not searched for", "yellow"


def program_lines(program: str) -> list[str]:
    """Return the lines of a program, set in."""
    return [f"        {line}".rstrip() for line in program.splitlines()]


def problem_lines(adapters: Iterable[AdapterRow]) -> Iterator[str]:
    """Yield lines that say why an adapter was not examined to the end, and which files have more of it."""
    for adapter in adapters:
        for problem in adapter.problems:
            yield from ("", f"{adapter.name}  could not be examined to the end")
            if problem.ended is not None:
                yield f"    verdict    {problem.ended}"
            yield f"    because    {escaped(problem.message)}"
            if problem.file is not None:
                yield f"    program    {problem.file}"
            if problem.conversation is not None:
                yield f"    last said  {problem.conversation}"
