"""How results are shown: documents, tables, progress, and what is said of a broken law."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from pymllm.cli.program import escaped, say
from pymllm.conformance.documents import AdapterRow, VerifyDocument, ViolationRow
from pymllm.history.files import Config
from pymllm.instrument.documents import Document
from pymllm.oracle.laws import find_law

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# rich is loaded by what is drawn, and not by --help.

_D = TypeVar("_D", bound=Document)
_ENOUGH = 10_000  # A table is only as wide as its contents, so this is no width at all.
_SECONDS_BETWEEN_DRAWS = 0.1


def say_document(document: Document) -> None:
    """Print a document as JSON."""
    say(json.dumps(document.plain(), indent=2))


def tell(
    document: _D,
    make_text: Callable[[_D], str],
    as_json: bool,
    interruption: KeyboardInterrupt | None = None,
) -> int:
    """Print a document as text or as JSON, and return its exit status; what cut it short goes on."""
    if as_json:
        say_document(document)
    else:
        say(make_text(document))
    if interruption is not None:
        raise interruption
    return int(getattr(document, "exit_status", 0))


# -- tables ------------------------------------------------------------------------------------------------


def terminal_width() -> int | None:
    """Return the columns of the terminal that is written to; ``None`` where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def make_table(*columns: str, right: Sequence[str] = (), gap: int = 3) -> Table:
    """Return an empty table without lines; a column of ``right`` has its cells at its right end."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", header_style="")
    return table


def draw(*parts: RenderableType | tuple[str, str], fits_terminal: bool = False) -> str:
    """Return tables and texts as lines, the last one ended; a text may come with a style, such as bold.

    On a terminal that it is to fit, tables are as wide as that, and bold is bold. Texts are never wrapped,
    and blanks at the end of a line are left out.
    """
    from rich.console import Console
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
                console.print(Text(text, style=style if styled else ""), soft_wrap=True)
            else:
                console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


# -- progress ----------------------------------------------------------------------------------------------


def shows_progress(mode: str) -> bool:
    """Tell whether ``--progress`` asks for anything on the standard error that there is."""
    # There is no standard error at all where it was closed, and rich would draw on the other one.
    return mode != "off" and sys.stderr is not None and (mode == "on" or sys.stderr.isatty())


@contextmanager
def progress_bar(
    mode: str, label: str, total: int, unit: str = "requests"
) -> Iterator[Callable[[int], None] | None]:
    """Show how far a run is, without a thread, which would take the processor from what is being timed."""
    if not shows_progress(mode):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr, force_terminal=True if mode == "on" else None)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task(escaped(label), total=total)
        progress.refresh()
        drawn = monotonic()

        def show(done: int) -> None:
            nonlocal drawn
            now = monotonic()
            if now - drawn >= _SECONDS_BETWEEN_DRAWS or done == total:
                progress.update(task, completed=done)
                progress.refresh()
                drawn = now

        yield show


# -- laws that are broken ----------------------------------------------------------------------------------


def explain(
    message: str, expected: str | None, observed: str | None, config: Config, step: int, steps: int
) -> list[str]:
    """Return lines that say what was looked at, what the law demands, what there was, and where."""
    lines = [f"    looked at  {escaped(message)}"]
    if expected is not None:
        lines.append(f"    expected   {escaped(expected)}")
    if observed is not None:
        lines.append(f"    observed   {escaped(observed)}")
    where = escaped(", ".join(f"{key} {value}" for key, value in config.items())) or "no configuration"
    count = f"{steps} step" if steps == 1 else f"{steps} steps"
    return [*lines, f"    at         step {step}, in a program of {count} ({where})"]


def violation_lines(document: VerifyDocument) -> Iterator[tuple[ViolationRow, str]]:
    """Yield each violation that a search found, with lines on it and the commands that show it again."""
    for adapter in document.adapters:
        for it in adapter.violations:
            lines = [
                f"\n{it.law}  VIOLATED by {adapter.name}: {find_law(it.law).sentence}",
                *explain(it.message, it.expected, it.observed, it.config, it.step, it.steps),
                f"    file       {it.file or 'could not be written'}",
                *_again_lines(it, adapter.name, document.seed),
            ]
            yield it, "\n".join(lines)


def _again_lines(it: ViolationRow, adapter: str, seed: int) -> list[str]:
    """Return lines with the commands that show a violation again, those only that do."""
    commands = []
    if it.file is not None and it.rerun_shows_it:
        commands.append(f"pymllm rerun {quote(it.file)} --adapter {quote(adapter)}")
    if it.file is not None and it.judge_shows_it:
        commands.append(f"pymllm judge {quote(it.file)}")
    if not it.rerun_shows_it:
        search = f"pymllm verify --adapter {quote(adapter)} --law {it.law} --seed {seed}"
        commands.append(f"{search}  (its operations alone, run again, do not break the law)")
        if it.file is not None and it.played_again:
            commands.append(f"pymllm shrink {quote(it.file)} --adapter {quote(adapter)}  (plays its acts)")
    again = [f"    {'again' if not place else '':11}{command}" for place, command in enumerate(commands)]
    return mistake_lines(it.mistakes) + again


def mistake_lines(mistakes: Sequence[str]) -> list[str]:
    """Return lines that say what this package did wrong itself while a smaller program was looked for."""
    return [f"    mistake    of pymllm: {escaped(mistake)}" for mistake in mistakes]


def program_lines(program: str) -> list[str]:
    """Return the lines of a program, set in."""
    return [f"        {line}".rstrip() for line in program.splitlines()]


def problem_lines(adapters: Iterable[AdapterRow]) -> Iterator[str]:
    """Yield lines that say what searches came to grief with, and which files have more of it."""
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
