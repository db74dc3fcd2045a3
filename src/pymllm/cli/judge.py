"""``pymllm judge``: the recorded outcomes of a file, judged without the implementation."""

from __future__ import annotations

import json

import click

from pymllm.cli.judgement import Judgement, make_document, make_text, read_program
from pymllm.cli.options import json_option
from pymllm.cli.program import complain, say
from pymllm.errors import ProgramError
from pymllm.history.files import History
from pymllm.history.outcomes import SIZE_NAMES
from pymllm.oracle.judge import judge_steps
from pymllm.text_file import cut

__all__ = ["judge_command"]


@click.command("judge", short_help="Judge the recorded outcomes of a program.")
@click.argument("file", type=click.Path())
@json_option
def judge_command(file: str, as_json: bool) -> int:
    """Judge the outcomes that FILE has recorded, without running anything.

    FILE holds a program as JSON lines, as `pymllm verify` writes it: a header, and operations with their
    outcomes. Neither the implementation nor its adapter is needed. A recorded run that was cut short ends
    with an operation that has no outcome; what was before it is judged.

    Ends with 0 where no law is broken, with 1 where one is, with 2 for bad input, and with 3 where the
    program tests nothing.
    """
    history = _without_unfinished(file, read_program(file))
    judgement = _judge(file, history)
    _name_unknown_sizes(file, history)
    say(json.dumps(make_document(judgement), indent=2) if as_json else make_text(judgement))
    return judgement.verdict.exit_status


def _without_unfinished(file: str, history: History) -> History:
    """Leave out a last step in which a recorded run ended, and say so."""
    if len(history) < 2 or history.steps[-1].outcome is not None or history.steps[-2].outcome is None:
        return history
    complain(f"{file}: the run ended in step {history.steps[-1].number}; what was before it is judged")
    return History(history.header, history.steps[:-1])


def _name_unknown_sizes(file: str, history: History) -> None:
    """Say which sizes the file tells that no law is about: a mistyped one would be judged by nobody."""
    told = {name for step in history.steps if step.outcome is not None for name in step.outcome.sizes}
    unknown = sorted(told - SIZE_NAMES)
    if unknown:
        shown = ", ".join(cut(repr(name)) for name in unknown[:10])
        complain(f"{file}: sizes that nobody knows were not judged: {shown}")


def _judge(file: str, history: History) -> Judgement:
    try:
        evidence, broken = judge_steps(history.header, history.steps)
    except ProgramError as error:
        raise click.UsageError(f"{file}: {error}.") from None
    header, violation = history.header, None
    if broken is not None:
        step, violation = broken
        history = History(header, [kept for kept in history.steps if kept.number <= step.number])
    return Judgement("judge", file, header.adapter, history, evidence.exercised, {}, violation)
