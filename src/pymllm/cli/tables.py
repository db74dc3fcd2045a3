"""The display of results: documents, tables, progress, and words about a broken law."""

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
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pymllm.cli.output import complain, escaped, say
from pymllm.instrument.documents import Document
from pymllm.report import blocks
from pymllm.report.blocks import BAD, ENDING, GOOD, UNKNOWN, Fact
from pymllm.report.quantities import show_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    Drawn: TypeAlias = RenderableType | blocks.Table | tuple[str, str]

# rich is loaded by what is drawn, and not by --help.

_D = TypeVar("_D", bound=Document)
_T = TypeVar("_T")
_STYLES: dict[str | None, str] = {
    BAD: "bold red",
    UNKNOWN: "bold yellow",
    GOOD: "green",
    ENDING: "bold",
}
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
    """Print a document as text or JSON; return its exit status, or raise the interruption again."""
    if as_json:
        say_document(document)
    else:
        show(make_text(document))
    if interruption is not None:
        raise interruption
    return int(getattr(document, "exit_status", 0))


def show(text: str) -> None:
    """Print a text, perhaps from `draw`, as wide as the terminal."""
    width = terminal_width()
    say(wrap(text, width), styled=width is not None)


# -- tables ------------------------------------------------------------------------------------------------


def terminal_width() -> int | None:
    """Return the number of columns of the output terminal; ``None`` without a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def make_table(
    *columns: str, right: Sequence[str] = (), gap: int = 3, rows: Iterable[Sequence[str]] = ()
) -> Table:
    """Return a table without lines, whose columns in ``right`` are aligned right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", header_style="")
    for row in rows:
        table.add_row(*row)
    return table


def make_legend(words: Mapping[str, str]) -> Table:
    """Return a table that explains the words of another table."""
    table = make_table("", "", gap=2, rows=words.items())
    table.show_header = False
    return table


def draw(*parts: Drawn, fits_terminal: bool = False) -> str:
    """Return tables and texts as lines with final newlines; a text may have a style, such as bold.

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
                continue
            for place, piece in enumerate(_cut_to(part, width) if isinstance(part, blocks.Table) else [part]):
                if place:
                    console.print()
                if isinstance(piece, Table):
                    _escape_cells(piece)
                    if width is not None:
                        narrow(piece, width)
                console.print(piece, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def draw_document(
    document: Document,
    *notes: str,
    cards: Mapping[str, blocks.Card] = MappingProxyType({}),
    verbose: bool = False,
    fits_terminal: bool = True,
) -> str:
    """Return the report's view of a document, by default as wide as the terminal, with notes at its end.

    ``cards`` stand for those of the same id, where more is known than the document says.
    """
    from pymllm.report.sections import parts_of  # with texts and all that a page has; --help does without

    parts, words = parts_of(document, verbose=verbose)
    parts = [cards.get(it.id, it) if isinstance(it, blocks.Card) else it for it in parts]
    return draw(*_arranged(parts, words, notes), fits_terminal=fits_terminal)


def _arranged(
    parts: Sequence[blocks.Part], words: Mapping[str, str], notes: Sequence[str]
) -> Iterator[Drawn]:
    """Yield tables and texts in the order for a terminal, with bad news and summaries last."""
    is_captioned = sum(isinstance(it, blocks.Table) for it in parts) > 1
    groups: list[list[Drawn]] = [[]]
    bad: list[Drawn] = []
    ended: list[Drawn] = []
    has_table = False
    for it in parts:
        if isinstance(it, blocks.Table):
            groups += [[*([it.caption] if is_captioned else []), it], []]
            has_table = True
        elif isinstance(it, blocks.Card):
            groups += [card_lines(it), []]
        elif isinstance(it, blocks.Text):
            if not it.text:
                groups.append([])
            is_late = has_table and it.tone in (BAD, UNKNOWN)
            group = ended if it.tone == ENDING else bad if is_late else groups[-1]
            group += [(escaped(it.text), _STYLES.get(it.tone, ""))] if it.text else []
    widest = max(map(len, words), default=0)
    legend = [wrap(f"{word:{widest}}  {meaning}", terminal_width() or 80) for word, meaning in words.items()]
    yield from _spaced([*groups, legend, bad, [(escaped(note), "bold") for note in notes], ended])


def _spaced(groups: Iterable[Sequence[Drawn]]) -> Iterator[Drawn]:
    """Yield the members of groups, with an empty line between groups."""
    for place, group in enumerate(filter(None, groups)):
        yield from ([""] if place else [])
        yield from group


_LEAST_TEXT = 24  # columns of a sentence in a table that has no room


def _cut_to(it: blocks.Table, width: int | None) -> list[Table]:
    """Return a table in terminal form, divided between columns of numbers if it is too wide."""
    lead = next((at for at, column in enumerate(it.columns) if at and column.is_number), len(it.columns))
    if width is None or it.is_turned or lead == len(it.columns):
        return [table_of(it)]
    texts = [[column.name, *(row[at].text for row in it.rows)] for at, column in enumerate(it.columns)]
    whole = [text if at >= lead else " ".join(text).split() for at, text in enumerate(texts)]
    least = [2 + max(map(len, words), default=0) for words in whole]
    if sum(least) - 2 <= width:
        return [table_of(it)]
    before = zip(least[:lead], texts, strict=False)
    room = width - sum(max(own, min(max(map(len, text)), _LEAST_TEXT)) for own, text in before)
    pieces: list[list[int]] = [[]]
    for at in range(lead, len(texts)):
        if pieces[-1] and sum(least[other] for other in [*pieces[-1], at]) > room:
            pieces.append([])
        pieces[-1].append(at)
    return [table_of(it.with_columns([*range(lead), *piece])) for piece in pieces]


def table_of(it: blocks.Table) -> Table:
    """Return a table in terminal form."""
    if it.is_turned:
        return _turned(it)
    from rich.text import Text

    right = [column.name for column in it.columns if column.is_number]
    table = make_table(*(column.name for column in it.columns), right=right, gap=2)
    for row in it.rows:
        table.add_row(*(Text(escaped(cell.text), style=_STYLES.get(cell.tone, "")) for cell in row))
    return table


def _turned(it: blocks.Table) -> Table:
    """Return a table transposed, with a heading above each group of its columns."""
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
    """Narrow the widest columns of a table until it fits, without breaking words."""
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
    """Tell whether a line is to be copied, as programs and commands are, so that it is not wrapped."""
    return _COPIED.match(line) is not None


def wrap(text: str, width: int | None) -> str:
    """Wrap the lines of a text between words; continuation lines are indented behind the label."""
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
"""Seconds between two updates of a progress bar, and between two lines without a terminal."""


def shows_progress(mode: str) -> bool:
    """Tell whether there is a standard error on which ``--progress`` can be shown."""
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
    """Show the progress of a run without a thread, which would disturb the timed code.

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
            complain(f"{label}: {done:,} {of}, {show_duration(clock() - begun)}")

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
    """Return a function that passes on a word only if ``seconds`` have passed since the last."""
    last = clock()

    def pass_on(word: _T) -> None:
        nonlocal last
        if clock() - last >= seconds:
            tell(word)
            last = clock()

    return pass_on


# -- cards ------------------------------------------------------------------------------------------------


def card_lines(card: blocks.Card) -> list[Drawn]:
    """Return the lines of a card, with the program last."""
    lines: list[Drawn] = [escaped(card.title), *fact_lines(card.facts)]
    if not card.program:
        return lines
    return [*lines, f"    program    {card.note}".rstrip(), *program_lines(card.program)]


def fact_lines(facts: Sequence[Fact]) -> list[str]:
    """Return a line for each fact, without a name equal to the one above."""
    names = [fact.name for fact in facts]
    shown = [name if not place or names[place - 1] != name else "" for place, name in enumerate(names)]
    return [f"    {name:11}{escaped(it.value)}" for name, it in zip(shown, facts, strict=True)]


def program_lines(program: str) -> list[str]:
    """Return the lines of a program, indented."""
    return [f"        {line}".rstrip() for line in program.splitlines()]
