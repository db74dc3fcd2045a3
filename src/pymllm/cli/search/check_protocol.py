"""The command ``pymllm check-protocol``: a short conversation with an adapter program, as text."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from pymllm.adapters.process.command_name import PREFIX
from pymllm.cli import options
from pymllm.cli.output import escaped
from pymllm.cli.store import save_text
from pymllm.cli.tables import draw, make_table, say_document, show
from pymllm.documents.programs import ProgramRow, ProtocolDocument
from pymllm.oracle.verdicts import Verdict
from pymllm.report.quantities import count_of

_MISTAKES_SHOWN = 20


@click.command("check-protocol", short_help="Check how a program answers a short conversation.")
@click.argument("commands", metavar="'PROGRAM ARGS'...", nargs=-1, required=True)
@options.timeout
@click.option(
    "--output",
    type=options.OUTPUT_FOLDER,
    metavar="FOLDER",
    default="runs",
    callback=options.demand_writable,
    help="Folder for conversations with a mistake.",
)
@options.json
def check_protocol_command(commands: tuple[str, ...], timeout: float, output: Path, as_json: bool) -> int:
    """Have a short conversation with each program, and check its answers.

    'PROGRAM ARGS' is one argument: a program that speaks the protocol of docs/protocol.md, as --command of
    other verbs takes it. No law is judged.

    Exit status: 0 if all answers are right, 2 for bad input, 3 if one is not.
    """
    names = tuple(dict.fromkeys(options.names_of((), commands)))
    options.find_adapters_or_own(names)
    from pymllm.search.protocol_check import check_protocol
    from pymllm.work.time_limit import time_limit

    rows = []
    for name in names:
        with time_limit(timeout):
            report = check_protocol(name)
        path = None
        if report.problems:
            path = save_text(report.conversation, output / f"{options.file_name_of(name)}-protocol.txt")
        rows.append(report.row(path))
        if not as_json:
            show(make_protocol_text(rows[-1]))
    verdict = Verdict.UNKNOWN if any(row.problems for row in rows) else Verdict.HOLDS
    status = verdict.exit_status
    if as_json:
        say_document(ProtocolDocument(verdict=verdict, exit_status=status, programs=tuple(rows)))
    return status


def make_protocol_text(row: ProgramRow) -> str:
    """Return a conversation as text."""
    exchanges = (
        (str(it.line), it.said, it.answered, "ok" if it.problem is None else "wrong") for it in row.exchanges
    )
    table = make_table("line", "said", "answered", "", right=("line",), rows=exchanges)
    lines = []
    for it in [exchange for exchange in row.exchanges if exchange.problem is not None][:_MISTAKES_SHOWN]:
        lines += [
            "",
            f"line {it.line}, the answer to {it.said}",
            f"    wrong  {escaped(it.problem or '')}",
            f"    do     {it.advice}",
        ]
    limits = [f"limit  {escaped(line)}" for line in _limits(row)]
    return draw(escaped(_program(row)), *limits, table, *lines, "", *_next_lines(row)).removesuffix("\n")


def _program(row: ProgramRow) -> str:
    it = row.program
    if it is None:
        return f"{row.name}: no hello"
    return f"{it.name} {it.version} in {it.language}: {it.kind}, protocol {it.protocol}"


def _limits(row: ProgramRow) -> list[str]:
    declared = {} if row.program is None else row.program.limits
    return [f"{operation} may be unsupported: {reason}" for operation, reason in declared.items()]


def _next_lines(row: ProgramRow) -> list[str]:
    command = quote(row.name.removeprefix(PREFIX))
    if not row.problems:
        return [f"all {row.answers} answers are right", f"next: pymllm verify --command {command}"]
    left_out = row.problems - _MISTAKES_SHOWN
    lines = [f"and {left_out} more"] if left_out > 0 else []
    if row.conversation is not None:
        lines.append(f"the last lines of the conversation are in {row.conversation}")
    return [
        *lines,
        f"{count_of(row.problems, 'mistake')} in {count_of(row.answers, 'answer')}",
        f"next: correct the first one, then pymllm check-protocol {command}",
    ]
