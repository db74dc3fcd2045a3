"""Texts about findings: broken laws, steps that were not done, and known deviations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    GOOD,
    QUIET,
    UNKNOWN,
    Cell,
    Column,
    Fact,
    Table,
    Text,
    make_table,
    number,
)
from pymllm.report.quantities import count_of, show_count

if TYPE_CHECKING:
    from pymllm.documents.campaigns import FailureRow
    from pymllm.documents.searches import DeviationRow, LimitRow
    from pymllm.history.files import Config

SIGNS = {Verdict.VIOLATED: "✗", Verdict.UNKNOWN: "?", Verdict.HOLDS: "✓", Verdict.NOT_CLAIMED: "-"}
TONES = {Verdict.VIOLATED: BAD, Verdict.UNKNOWN: UNKNOWN, Verdict.HOLDS: GOOD, Verdict.NOT_CLAIMED: QUIET}


def verdict_cell(verdict: Verdict, words: str = "") -> Cell:
    """Return a cell for a verdict with its sign, in given words or the verdict's own."""
    return Cell(f"{SIGNS[verdict]} {words or verdict.value}", TONES[verdict])


def violation_facts(
    message: str, expected: str | None, observed: str | None, config: Config, step: int, steps: int
) -> list[Fact]:
    """Return the facts of a violation: its message, expected and observed value, and step."""
    where = f"step {step}, in a program of {count_of(steps, 'step')} ({config_words(config)})"
    return [*seen_facts(message, expected, observed), Fact("at", where)]


def seen_facts(message: str, expected: str | None, observed: str | None) -> Iterator[Fact]:
    """Yield the message of an observation, with the expected and the observed value if known."""
    for name, value in (("looked at", message), ("expected", expected), ("observed", observed)):
        if value is not None:
            yield Fact(name, value)


def config_words(config: Config) -> str:
    """Return a configuration as words."""
    return ", ".join(f"{key} {value}" for key, value in config.items()) or "no configuration"


def mistake_facts(mistakes: Iterable[str]) -> Iterator[Fact]:
    """Return facts about errors of this package that occurred while a program was shrunk."""
    return (Fact("mistake", f"an error of pymllm itself: {mistake}") for mistake in mistakes)


def run_facts(
    adapter: str, row: FailureRow, audit: int | None, *, is_rerun: bool = True, has_deviations: bool = False
) -> Iterator[Fact]:
    """Yield the campaign run with a failure, and the commands that reproduce the failure.

    Where nobody knows how often the implementation was walked, the run cannot be repeated. What an engine
    does wrong, its operations do not show, run again: the acts in the file do, which `pymllm shrink` plays.
    """
    config = json.dumps(row.config)
    yield Fact("found", f"{row.source}, {config}, seed {row.seed}, step {row.failure.step}")
    if audit is not None:
        deviations = " --deviations FILE" if has_deviations else ""
        where = f"{row.seed} --adapter {quote(adapter)} --config {quote(config)}"
        rest = f"--operations {row.limit} --machine {quote(row.machine)} --audit {audit_rate(audit)}"
        yield Fact("the run", f"pymllm repeat {where} {rest}{deviations}", is_code=True)
    for word, file in (("again", row.short), ("as played", row.file)):
        if file is not None:
            command = "rerun" if is_rerun else "shrink"
            yield Fact(word, f"pymllm {command} {quote(file)} --adapter {quote(adapter)}", is_code=True)


def audit_rate(audit: int) -> str:
    """Return the rate of audits in the form that ``--audit`` takes."""
    return {0: "off", 1: "every"}.get(audit, f"1/{audit}")


def limit_words(it: LimitRow) -> str:
    """Return words for an operation's undone steps: their number, the reason, and the first one's place."""
    where = "" if it.program is None else f" of a program on {config_words(it.config)}, which --json has"
    return f"{it.operation}: {undone_steps(it.not_done, it.done)} ({it.reason}); step {it.step}{where}"


def undone_steps(not_done: int, done: int | None) -> str:
    """Return words for the number of undone steps, and of all steps if counted."""
    steps = f"{count_of(not_done, 'step')} not done"
    if done is None:
        return steps
    return f"{steps} of {not_done + done:,}" if done else f"{steps}, and none was done"


def known_texts(rows: Sequence[DeviationRow]) -> Iterator[Text]:
    """Yield texts for known deviations that occurred in a search, and for others that no longer do."""
    shown = [f"{it.name} ({it.law}, {count_of(it.programs, 'program')})" for it in rows if it.programs]
    if shown:
        yield Text(f"known     {', '.join(shown)}")
    gone = [it.name for it in rows if it.status == "gone"]
    if gone:
        yield Text(f"gone      no program met {', '.join(gone)}: fixed, or not searched for", UNKNOWN)


def deviation_table(rows: Iterable[DeviationRow]) -> Table:
    """Return a table with the status of each known deviation that was searched for."""
    columns = [
        Column("deviation", lambda it: it.name),
        Column("law", lambda it: it.law),
        Column("kind", lambda it: it.kind),
        number("programs", lambda it: show_count(it.programs)),
        Column("status", lambda it: Cell(it.status, None if it.programs else UNKNOWN)),
        Column("because", lambda it: it.reason),
    ]
    shown = [row for row in rows if row.status != "not searched"]
    return make_table("Known deviations", shown, columns)
