"""``pymllm verify --check-protocol``: a conversation as a table, what is wrong in it, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote

from rich.table import Table

from pymllm.adapters.process.command_name import PREFIX
from pymllm.cli.conversation_file import save_conversation
from pymllm.cli.drawn_tables import table_console
from pymllm.cli.file_names import file_name_of
from pymllm.cli.program import escaped, say
from pymllm.cli.protocol_document import make_document
from pymllm.conformance.protocol_check import ProtocolReport, check_protocol
from pymllm.conformance.time_limit import time_limit
from pymllm.oracle.verdicts import Verdict

__all__ = ["check_protocols", "make_text"]

_SHOWN = 20


def check_protocols(names: tuple[str, ...], timeout: float, folder: Path, as_json: bool = False) -> int:
    """Have a short conversation with each of some programs, and tell what came of it.

    Parameters
    ----------
    names : tuple of str
        ``command:PROGRAM ARGS`` each.
    timeout : float
        As of ``--timeout``.
    folder : Path
        Takes the conversations in which something is wrong.
    as_json : bool
        Whether to print one document in place of the tables.

    Returns
    -------
    int
        The status to end with: that of what is unknown where something is wrong.

    Raises
    ------
    AdapterError
        A program cannot be started.
    """
    checked = []
    for name in names:
        with time_limit(timeout):
            report = check_protocol(name)
        path = None
        if report.problems:
            path = save_conversation(report.conversation, folder / f"{file_name_of(name)}-protocol.txt")
        checked.append((report, path))
        if not as_json:
            say(make_text(report, path))
    if as_json:
        say(json.dumps(make_document(checked), indent=2))
    is_wrong = any(report.problems for report, _ in checked)
    return (Verdict.UNKNOWN if is_wrong else Verdict.HOLDS).exit_status


def make_text(report: ProtocolReport, path: str | None) -> str:
    """Lay a conversation out as text.

    Parameters
    ----------
    report : ProtocolReport
        What came of it.
    path : str or None
        Where its last lines are.
    """
    console = table_console()
    with console.capture() as captured:
        console.print(escaped(_heading(report)))
        console.print(_table(report))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    for exchange in report.problems[:_SHOWN]:
        lines += [
            "",
            f"line {exchange.line}, the answer to {exchange.said}",
            f"    wrong  {escaped(exchange.problem or '')}",
            f"    do     {exchange.advice}",
        ]
    return "\n".join([*lines, "", *_last_lines(report, path)])


def _heading(report: ProtocolReport) -> str:
    program = report.program
    if program is None:
        return f"{report.name}: no hello"
    return (
        f"{program.name} {program.version} in {program.language}: {program.kind}, protocol {program.protocol}"
    )


def _table(report: ProtocolReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("line", justify="right", header_style="")
    for column in ("said", "answered", ""):
        table.add_column(column, header_style="")
    for exchange in report.exchanges:
        word = "ok" if exchange.problem is None else "WRONG"
        table.add_row(str(exchange.line), exchange.said, exchange.answered, word)
    return table


def _last_lines(report: ProtocolReport, path: str | None) -> list[str]:
    count = report.answers
    command = quote(report.name.removeprefix(PREFIX))
    if not report.problems:
        return [f"{count} answers, all as they must be", f"next: pymllm verify --command {command}"]
    left_out = len(report.problems) - _SHOWN
    lines = [f"and {left_out} more"] if left_out > 0 else []
    if path is not None:
        lines.append(f"the last lines of the conversation are in {path}")
    return [
        *lines,
        f"{len(report.problems)} wrong in {count} answers",
        f"next: mend the first one, then pymllm verify --command {command} --check-protocol",
    ]
