"""The command ``pymllm judge``: the recorded outcomes in a file, judged without implementation or torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from pymllm.cli import options
from pymllm.cli.output import complain, escaped
from pymllm.cli.servers.probe import judge_file
from pymllm.cli.tables import draw, fact_lines, make_legend, make_table, tell
from pymllm.documents.programs import JudgedViolation, JudgementDocument
from pymllm.documents.searches import LimitRow
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History
from pymllm.history.outcomes import SIZE_NAMES
from pymllm.oracle.answers import OWED, limits_of
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.laws import find_law
from pymllm.oracle.laws.every_class import ANSWERED
from pymllm.oracle.verdicts import Verdict
from pymllm.probing.records import is_probe
from pymllm.report.findings import limit_words, violation_facts
from pymllm.report.quantities import count_of
from pymllm.text_file import cut


@click.command("judge", short_help="Judge the recorded outcomes of a program.")
@click.argument("file", type=click.Path())
@options.json
def judge_command(file: str, as_json: bool) -> int:
    """Judge the outcomes that FILE has recorded, without running anything.

    FILE has a program as JSON lines, as `pymllm verify` writes it: a header, and operations with their
    outcomes. Neither the implementation nor its adapter is needed. If the last operation has no outcome,
    because the recorded run was cut short, the operations before it are judged. If FILE has several
    programs, FILE#NAME is the one of that name. A file of `pymllm probe` is judged by its answers.

    Exit status: 0 if no law is broken, 1 if one is, 2 for bad input, 3 if the program tests no law.
    """
    if is_probe(Path(file)):
        return judge_file(Path(file), "json" if as_json else "text")
    history = _without_unfinished(file, options.read_program(file))
    judgement = _judge(file, history)
    _name_unknown_sizes(file, history)
    return tell(judgement, make_text, as_json)


def _without_unfinished(file: str, history: History) -> History:
    """Return a history without an unfinished last step, and report that."""
    if len(history) < 2 or history.steps[-1].outcome is not None or history.steps[-2].outcome is None:
        return history
    complain(
        f"{file}: the recorded run ended in step {history.steps[-1].number}; the steps before it are judged"
    )
    return History(history.header, history.steps[:-1])


def _name_unknown_sizes(file: str, history: History) -> None:
    """Report sizes in a file about which there is no law, such as misspelt ones."""
    told = {name for step in history.steps if step.outcome is not None for name in step.outcome.sizes}
    unknown = sorted(told - SIZE_NAMES)
    if unknown:
        shown = ", ".join(cut(repr(name)) for name in unknown[:10])
        complain(f"{file}: sizes with unknown names were not judged: {shown}")


def _judge(file: str, history: History) -> JudgementDocument:
    with options.refusing(file):
        evidence, broken = judge_steps(history.header, history.steps, coverage=False)
    header, violation = history.header, None
    if broken is not None:
        step, violation = broken
        history = History(header, [kept for kept in history.steps if kept.number <= step.number])
    tests, limits = evidence.exercised, tell_limits(evidence, header)
    return make_judgement("judge", file, header.adapter, history, tests, violation=violation, limits=limits)


def tell_limits(evidence: Evidence, header: Header) -> tuple[LimitRow, ...]:
    """Return a row for each limit: steps of a program that were not done."""
    return tuple(
        LimitRow(it.operation, it.reason, it.steps, it.done, evidence.first_not_done[it.told], header.config)
        for it in limits_of(evidence.not_done, evidence.done)
    )


def make_judgement(
    command: Literal["judge", "rerun"],
    file: str,
    adapter: str,
    history: History,
    tests: Mapping[str, int],
    walks: Mapping[str, int] | None = None,
    *,
    violation: InvariantViolation | None = None,
    misfit: str | None = None,
    limits: Sequence[LimitRow] = (),
    **more: Any,
) -> JudgementDocument:
    """Return the judgement of a program up to its end; it is unknown if no law was tested.

    So is one of which steps were not done that its adapter owed, in a file that is older than X9.
    """
    is_tested = len(history) > 0 and any(count for law, count in tests.items() if law != ANSWERED)
    is_whole = misfit is None and all(it.reason != OWED for it in limits)
    verdict = Verdict.HOLDS if is_whole and is_tested else Verdict.UNKNOWN
    found = None
    if violation is not None:
        verdict, last = Verdict.VIOLATED, history.steps[-1].number if history.steps else 0
        said = violation.expected, violation.observed
        found = JudgedViolation(violation.law, violation.message, *said, last)
    return JudgementDocument(
        command=command,
        file=file,
        adapter=adapter,
        kind=history.header.kind,
        config=history.header.config,
        steps=len(history),
        verdict=verdict,
        exit_status=verdict.exit_status,
        tests=dict(sorted(tests.items())),
        walks=dict(sorted((walks or {}).items())),
        violation=found,
        misfit=misfit,
        limits=tuple(limits),
        **{"differences": (), **more},
    )


def make_text(judgement: JudgementDocument) -> str:
    """Return lines of text, the first of which is the verdict."""
    parts = ([_verdict_line(judgement)], _details(judgement), _differences(judgement), _times(judgement))
    return "\n".join(line for lines in parts for line in lines)


def _verdict_line(judgement: JudgementDocument) -> str:
    adapter = escaped(judgement.adapter)  # a file may name it as it likes, a line of a verdict included
    if judgement.violation is not None:
        law = judgement.violation.law
        return f"{law}  VIOLATED by {adapter}: {find_law(law).sentence}"
    tests = sum(judgement.tests.values())
    laws = sum(count > 0 for count in judgement.tests.values())
    steps = count_of(judgement.steps, "step")
    if judgement.misfit is not None:
        return f"unknown  {adapter} made other choices than the program relies on"
    if judgement.steps == 0 or not any(count for law, count in judgement.tests.items() if law != ANSWERED):
        return f"unknown  {steps} of {adapter} tested no law"
    if judgement.verdict is Verdict.UNKNOWN:
        return f"unknown  {adapter} left undone what it claims, and its file is too old to say why"
    return f"holds  {steps} of {adapter}: {tests:,} tests of {laws} laws, none broken"


def _details(judgement: JudgementDocument) -> list[str]:
    it = judgement.violation
    if it is not None:
        where = judgement.config, it.step, judgement.steps
        return fact_lines(violation_facts(it.message, it.expected, it.observed, *where))
    if judgement.misfit is not None:
        return [f"    because    {escaped(judgement.misfit)}"]
    tested = ", ".join(f"{law} {count:,}" for law, count in sorted(judgement.tests.items()) if count)
    lines = [f"    limits     {escaped(limit_words(limit))}" for limit in judgement.limits]
    return [f"    tests      {tested}", *lines] if tested else lines


def _differences(judgement: JudgementDocument) -> list[str]:
    if judgement.command == "judge":
        return []
    if not judgement.differences:
        return ["    outcomes   as recorded"]
    steps = ", ".join(map(str, judgement.differences[:10]))
    more = ", ..." if len(judgement.differences) > 10 else ""
    return [f"    outcomes   differ from the recorded ones at step {steps}{more}"]


def _times(judgement: JudgementDocument) -> list[str]:
    if not judgement.times:
        return []
    figures = ("calls", "half", "95 %", "99 %", "longest")
    table = make_table("microseconds", *figures, right=figures, gap=2)
    for row in judgement.times:
        label = f"{row.operation} (refused)" if row.is_refused else row.operation
        times = (f"{value:.1f}" for value in (row.p50_us, row.p95_us, row.p99_us, row.max_us))
        table.add_row(label, f"{row.count:,}", *times)
    meaning = {"half, 95 %, 99 %": "of the calls took no longer than this"}
    return ["", *draw(table, make_legend(meaning), fits_terminal=True).splitlines()]
