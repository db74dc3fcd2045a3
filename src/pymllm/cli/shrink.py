"""``pymllm shrink``: a long program that breaks a law in, the smallest that does out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli.command_option import command_option
from pymllm.cli.file_adapter import adapter_of_file, given_adapter
from pymllm.cli.judgement import Judgement, make_text, read_program
from pymllm.cli.options import json_option, progress_option, timeout_option
from pymllm.cli.program import complain, escaped, say
from pymllm.cli.run_store import refuse_missing_folder, refuse_own_input
from pymllm.cli.values import Amount
from pymllm.cli.verify_plan import find_adapter_or_refuse, find_law_or_refuse, load_or_refuse
from pymllm.errors import AdapterError, UsageError
from pymllm.history.files import History, write_history

if TYPE_CHECKING:
    from pymllm.conformance.rerun import RerunResult
    from pymllm.conformance.shrink_run import ShrinkRun, ShrinkTask

__all__ = ["shrink_command"]

_SECONDS = 60.0


@click.command("shrink", short_help="Make a recorded program that breaks a law as small as possible.")
@click.argument("file", type=click.Path())
@click.option(
    "--adapter",
    metavar="NAME",
    show_default="the one that the file names, if `pymllm adapters` has it",
    help="A name of `pymllm adapters`, or module:Class.",
)
@command_option(multiple=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="OUT",
    show_default="FILE's name with .short.jsonl",
    help="Where the small program is written.",
)
@click.option(
    "--law",
    "laws",
    metavar="ID",
    multiple=True,
    show_default="the one that FILE breaks",
    help="Law that the small program is to break, such as R6; may be repeated: any of them will do.",
)
@click.option(
    "--seconds",
    type=Amount(0.0, 1_000_000.0, min_open=True),
    metavar="S",
    default=_SECONDS,
    show_default=True,
    help="After which the smallest so far will do.",
)
@timeout_option
@json_option
@progress_option
def shrink_command(
    file: str,
    adapter: str | None,
    command: str | None,
    output: Path | None,
    laws: tuple[str, ...],
    seconds: float,
    timeout: float,
    as_json: bool,
    progress: str,
) -> int:
    """Look for the smallest program that breaks the same law as the one in FILE.

    FILE is as `pymllm rerun` takes it. It is run again first; then operations are left out, keys, numbers
    and pools made smaller, and each smaller program is run, too. Ctrl-C ends it with the smallest so far.

    Ends with 1 where a law is broken, which is what to expect; with 0 and nothing written where the program
    breaks none any more, with 2 for bad input, and with 3 where nothing can be said.

    What an engine does wrong, its operations alone do not show. A file of such a failure has the acts of the
    machine that drove the engine, too, and they are played and left out instead.
    """
    given = given_adapter(adapter, command)
    history = read_program(file)
    target = output or _beside(Path(file))
    refuse_own_input("--output", target, file)
    name = find_adapter_or_refuse(adapter_of_file(file, history.header.adapter, given)).name
    wanted = tuple(find_law_or_refuse(law).id for law in laws)
    refuse_missing_folder("--output", target)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Not at the top: this loads Hypothesis, which --help and a mistyped option can do without.
    from pymllm.conformance.shrink_run import ShrinkTask

    run, interruption = _run(file, ShrinkTask(history, name, wanted, seconds), timeout, progress)
    if run.best is not None:
        _tell(file, run, wanted, target, as_json)
        if interruption is not None:
            raise interruption
        return 1
    if history.header.scenario is not None:
        say(f"{escaped(file)}: its acts, played again on {escaped(name)}, break no law")
    if run.result is None:
        return 0
    judgement = _judgement(file, name, run.result)
    say(make_text(judgement))
    return judgement.verdict.exit_status


def _beside(file: Path) -> Path:
    """Return where the small program goes by itself; never through a link that came with the file."""
    target = file.with_suffix(".short.jsonl")
    if os.path.islink(target):
        raise click.UsageError(f"{target}: is a link, and may lead anywhere; name a file with --output.")
    return target


def _run(
    file: str, task: ShrinkTask, timeout: float, progress: str
) -> tuple[ShrinkRun, KeyboardInterrupt | None]:
    """Have a program made smaller beside this process; an interrupt, or its end, leaves what it has told."""
    from pymllm.cli.progress import progress_bar
    from pymllm.conformance.workers import Lost, ask

    told: ShrinkRun | None = None
    with ExitStack() as stack:
        show: Callable[[int], None] | None = None

        def hear(run: ShrinkRun) -> None:
            nonlocal told, show
            assert run.before is not None  # or there would be nothing to tell yet
            assert run.best is not None
            total = len(run.before.history)
            if told is None:
                show = stack.enter_context(progress_bar(progress, "shrinking", total, "operations left out"))
            told = run
            if show is not None:
                show(total - len(run.best.history))

        try:
            answer = ask(_carry_out, task, timeout, hear)
        except UsageError as error:
            raise click.UsageError(f"{file}: {error}.") from error
        except KeyboardInterrupt as interruption:
            if told is None:
                raise
            return _seen_again(told, timeout), interruption
    if not isinstance(answer, Lost):
        return answer, None
    if told is None:
        raise AdapterError(task.adapter, answer.message)
    complain(f"{answer.message}; this is the smallest program until then")
    return _seen_again(told, timeout), None


def _carry_out(task: ShrinkTask) -> ShrinkRun:
    """Make a program smaller, in a process that may end over it."""
    from pymllm.conformance.shrink_run import run_shrink

    load_or_refuse(task.adapter)
    return run_shrink(task)


def _seen_again(run: ShrinkRun, timeout: float) -> ShrinkRun:
    """Find out whether what was told last shows its law again."""
    from pymllm.conformance.shrink_run import shows_again
    from pymllm.conformance.workers import ask

    assert run.best is not None  # it was told
    try:
        return replace(run, is_rerun=ask(shows_again, run.best, timeout) is True)
    except KeyboardInterrupt:
        return run


def _judgement(file: str, name: str, result: RerunResult) -> Judgement:
    differences = tuple(now.number for _, now in result.differences)
    counts = result.exercised, result.audited
    return Judgement("rerun", file, name, result.history, *counts, None, result.misfit, differences)


def _tell(file: str, run: ShrinkRun, laws: tuple[str, ...], target: Path, as_json: bool) -> None:
    """Write the smallest program, and say what it is."""
    from pymllm.cli.shrink_document import Shrunk, make_document, make_text
    from pymllm.conformance.acting import with_scenario
    from pymllm.conformance.runner import versions

    best, before = run.best, run.before
    assert best is not None  # a law is broken
    assert before is not None
    if laws and best.violation.law not in laws:
        raise click.UsageError(
            f"{file}: breaks {best.violation.law}, and not {' or '.join(laws)}; name it with --law."
        )
    header = replace(best.history.header, versions=versions(), note=str(best.violation))
    best = replace(best, history=with_scenario(History(header, best.history.steps), best.scenario))
    output = str(target) if _write(best.history, target) else None
    shrunk = Shrunk(file, output, before, best, run.plays, run.seconds, run.misfits, run.is_rerun)
    say(json.dumps(make_document(shrunk), indent=2) if as_json else make_text(shrunk))


def _write(history: History, path: Path) -> bool:
    """Write the small program; what cannot be written is complained of: the result matters more."""
    try:
        write_history(history, path)
    except OSError as error:
        complain(f"{path}: cannot be written: {error.strerror or error}")
        return False
    return True
