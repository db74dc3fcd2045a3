"""``pymllm verify --check-protocol``: a conversation as a table, what is wrong in it, and what to do."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from pymllm.adapters.process.command_name import PREFIX
from pymllm.cli.choice import file_name_of
from pymllm.cli.program import escaped, say
from pymllm.cli.store import save_text
from pymllm.cli.tables import draw, make_table, say_document
from pymllm.conformance.documents import ProgramRow, ProtocolDocument
from pymllm.conformance.protocol_check import check_protocol
from pymllm.conformance.time_limit import time_limit
from pymllm.oracle.verdicts import Verdict

_SHOWN = 20


def check_protocols(names: tuple[str, ...], timeout: float, folder: Path, as_json: bool = False) -> int:
    """Have a short conversation with each of some programs, and tell what came of it.

    The folder takes the conversations in which something is wrong, and the status is then that of what is
    unknown. `AdapterError` where a program cannot be started.
    """
    rows = []
    for name in names:
        with time_limit(timeout):
            report = check_protocol(name)
        path = None
        if report.problems:
            path = save_text(report.conversation, folder / f"{file_name_of(name)}-protocol.txt")
        rows.append(report.row(path))
        if not as_json:
            say(make_text(rows[-1]))
    verdict = Verdict.UNKNOWN if any(row.problems for row in rows) else Verdict.HOLDS
    if as_json:
        status = verdict.exit_status
        say_document(ProtocolDocument(verdict=verdict, exit_status=status, programs=tuple(rows)))
    return verdict.exit_status


def make_text(row: ProgramRow) -> str:
    """Lay a conversation out as text."""
    table = make_table("line", "said", "answered", "", right=("line",))
    for it in row.exchanges:
        table.add_row(str(it.line), it.said, it.answered, "ok" if it.problem is None else "WRONG")
    lines = []
    for it in [exchange for exchange in row.exchanges if exchange.problem is not None][:_SHOWN]:
        lines += [
            "",
            f"line {it.line}, the answer to {it.said}",
            f"    wrong  {escaped(it.problem or '')}",
            f"    do     {it.advice}",
        ]
    return draw(escaped(_heading(row)), table, *lines, "", *_last_lines(row)).removesuffix("\n")


def _heading(row: ProgramRow) -> str:
    it = row.program
    if it is None:
        return f"{row.name}: no hello"
    return f"{it.name} {it.version} in {it.language}: {it.kind}, protocol {it.protocol}"


def _last_lines(row: ProgramRow) -> list[str]:
    command = quote(row.name.removeprefix(PREFIX))
    if not row.problems:
        return [f"{row.answers} answers, all as they must be", f"next: pymllm verify --command {command}"]
    left_out = row.problems - _SHOWN
    lines = [f"and {left_out} more"] if left_out > 0 else []
    if row.conversation is not None:
        lines.append(f"the last lines of the conversation are in {row.conversation}")
    return [
        *lines,
        f"{row.problems} wrong in {row.answers} answers",
        f"next: mend the first one, then pymllm verify --command {command} --check-protocol",
    ]
