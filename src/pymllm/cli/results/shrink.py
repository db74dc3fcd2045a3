"""The command ``pymllm shrink``: the smallest program that breaks the law of a long one."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from pymllm.adapters.registry import find_adapter
from pymllm.cli import options
from pymllm.cli.output import complain, escaped, say
from pymllm.cli.results.judge import make_text as make_judgement_text
from pymllm.cli.results.rerun import judgement_of
from pymllm.cli.store import refuse_own_input, save_program
from pymllm.cli.tables import fact_lines, program_lines, progress_bar, show, tell
from pymllm.documents.programs import ProgramSize, ShrinkDocument
from pymllm.errors import AdapterError
from pymllm.history.files import History
from pymllm.oracle.laws import find_law
from pymllm.report.findings import mistake_facts, violation_facts

if TYPE_CHECKING:
    from pymllm.machines.acting import FoundViolation
    from pymllm.search.shrinker import ShrinkRun, ShrinkTask

_MOST_PRINTED = 100


@click.command("shrink", short_help="Make a recorded program that breaks a law as small as possible.")
@click.argument("file", type=click.Path())
@options.adapter
@options.command(multiple=False)
@click.option(
    "-o",
    "--output",
    type=options.OUTPUT_FILE,
    metavar="OUT",
    show_default="FILE's name with .short.jsonl",
    help="File for the small program.",
)
@click.option(
    "--law",
    "laws",
    metavar="ID",
    multiple=True,
    show_default="the law that FILE breaks",
    help="Law that the small program must break, such as R6; repeat it to allow several.",
)
@click.option(
    "--seconds",
    type=options.Amount(0.0, 1_000_000.0, min_open=True),
    metavar="S",
    default=60.0,
    help="Longest time; then the smallest program so far is written.",
)
@options.timeout
@options.json
@options.progress
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
    """Look for the smallest program that breaks the same law as the program in FILE.

    First the program in FILE runs again. Then pymllm leaves out operations, and makes keys, numbers and pools
    smaller, as long as the law is still broken. Ctrl-C ends the search with the smallest program so far.

    Exit status: 1 if a law is broken, as expected; 0 if the program breaks no law any more, and nothing is
    written; 2 for bad input; 3 if the result is unknown, because the adapter failed.

    A failure of a whole engine may not show in its cache operations alone. Its file also has the acts that
    drove the engine; these are then repeated and left out.
    """
    history, name = options.read_program_for(file, adapter, command)
    path, _ = options.split_program(file)
    target = output or _beside(path)
    refuse_own_input("--output", target, path)
    wanted = tuple(options.find_law_or_refuse(law).id for law in laws)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Not at the top: this loads Hypothesis, which --help and a mistyped option can do without.
    from pymllm.search.shrinker import ShrinkTask

    run, interruption = _run(file, ShrinkTask(history, name, wanted, seconds), timeout, progress)
    if run.best is not None:
        _tell(file, run, wanted, target, as_json, interruption)
        return 1
    if history.header.scenario is not None:
        say(f"{escaped(file)}: its acts, repeated on {escaped(name)}, break no law")
    if run.result is None:
        return 0
    judgement = judgement_of(file, name, run.result)
    show(make_judgement_text(judgement))
    return judgement.exit_status


def _beside(file: Path) -> Path:
    """Return the default path for the small program, refusing links that came with the file."""
    target = file.with_suffix(".short.jsonl")
    if os.path.islink(target):
        raise click.UsageError(
            f"{target}: is a link, which may lead anywhere; name another file with --output."
        )
    return target


def _run(
    file: str, task: ShrinkTask, timeout: float, progress: str
) -> tuple[ShrinkRun, KeyboardInterrupt | None]:
    """Shrink a program in a separate process; after an interrupt or a crash, return the last state sent."""
    from pymllm.work.workers import Lost, ask

    told: ShrinkRun | None = None
    total = len(task.history)
    with progress_bar(progress, "shrinking", total, "operations left out") as show:

        def look() -> None:
            if show is not None:
                show(total - len(told.best.history) if told is not None and told.best is not None else 0)

        def hear(run: ShrinkRun) -> None:
            nonlocal told
            told = run
            look()

        try:
            with options.refusing(file):
                answer = ask(_carry_out, task, timeout, hear, look)
        except KeyboardInterrupt as interruption:
            if told is None:
                raise
            return _seen_again(told, timeout), interruption
    if not isinstance(answer, Lost):
        return answer, None
    if told is None:
        raise AdapterError(task.adapter, answer.message)
    complain(f"{answer.message}; below is the smallest program so far")
    return _seen_again(told, timeout), None


def _carry_out(task: ShrinkTask) -> ShrinkRun:
    """Shrink a program, in a process that a crash may end."""
    from pymllm.search.shrinker import run_shrink

    options.load_or_refuse(task.adapter)
    return run_shrink(task)


def _seen_again(run: ShrinkRun, timeout: float) -> ShrinkRun:
    """Tell whether the last shrunk program breaks its law again."""
    from pymllm.search.shrinker import shows_again
    from pymllm.work.workers import ask

    assert run.best is not None  # it was told
    try:
        return replace(run, is_rerun=ask(shows_again, run.best, timeout) is True)
    except KeyboardInterrupt:
        return run


def _tell(
    file: str,
    run: ShrinkRun,
    laws: tuple[str, ...],
    target: Path,
    as_json: bool,
    interruption: KeyboardInterrupt | None,
) -> None:
    """Write the smallest program, and describe it."""
    from pymllm.machines.acting import with_scenario
    from pymllm.search.runner import versions

    best = run.best
    assert best is not None  # a law is broken
    if laws and best.violation.law not in laws:
        raise click.UsageError(
            f"{file}: breaks {best.violation.law}, and not {' or '.join(laws)}; name it with --law."
        )
    header = replace(
        best.history.header,
        versions=versions([find_adapter(best.history.header.adapter)]),
        note=str(best.violation),
    )
    best = replace(best, history=with_scenario(History(header, best.history.steps), best.scenario))
    document = make_document(file, save_program(best.history, target), replace(run, best=best))
    tell(document, partial(make_text, history=best.history), as_json, interruption)


def make_document(file: str, output: str | None, run: ShrinkRun) -> ShrinkDocument:
    """Return the document of a shrunk program; ``output`` is the file with the small one."""
    from pymllm.search.program import write_program

    assert run.best is not None
    assert run.before is not None
    history, violation = run.best.history, run.best.violation
    return ShrinkDocument(
        file=file,
        output=output,
        adapter=history.header.adapter,
        kind=history.header.kind,
        law=violation.law,
        message=violation.message,
        expected=violation.expected,
        observed=violation.observed,
        before=_size_of(run.before.history),
        after=_size_of(history),
        finished=not run.best.is_unfinished,
        programs=run.plays,
        seconds=round(run.seconds, 3),
        program=write_program(history),
        again=_again(output, run.best, is_rerun=run.is_rerun),
        misfits=run.misfits,
        mistakes=run.best.mistakes,
    )


def _size_of(history: History) -> ProgramSize:
    from pymllm.search.reduction import count_tokens

    return ProgramSize(len(history), count_tokens(history), history.header.config)


def _again(output: str | None, found: FoundViolation, *, is_rerun: bool) -> str | None:
    """Return the command that reproduces the violation; ``None`` if there is none."""
    if output is None or (not is_rerun and found.scenario is None):
        return None
    command = "rerun" if is_rerun else "shrink"
    return f"pymllm {command} {quote(output)} --adapter {quote(found.history.header.adapter)}"


def make_text(document: ShrinkDocument, history: History) -> str:
    """Return lines of text: the law, the sizes before and after, and the program."""
    it, step = document, history.steps[-1].number if history.steps else 0
    lines = [f"{it.law}  VIOLATED by {it.adapter}: {find_law(it.law).sentence}"]
    where = it.after.config, step, it.after.operations
    lines += fact_lines(violation_facts(it.message, it.expected, it.observed, *where))
    was, now = it.before, it.after
    sizes: list[tuple[str, Any, Any]] = [
        ("operations", was.operations, now.operations),
        ("tokens", was.tokens, now.tokens),
    ]
    changed = [key for key, value in was.config.items() if value != now.config[key]]
    sizes += [(key, was.config[key], now.config[key]) for key in changed]
    lines += [f"    {name:10} {before:,} -> {after:,}" for name, before, after in sizes]
    end = "no part of it can be left out" if it.finished else "a larger --seconds may find a smaller one"
    misfits = ", ".join(f"{name} {count:,}" for name, count in it.misfits.items())
    left = f"; {sum(it.misfits.values()):,} of them could not run ({misfits})" if misfits else ""
    lines.append(f"    programs   {it.programs:,} tried in {it.seconds:.1f} s{left}; {end}")
    lines += fact_lines([*mistake_facts(it.mistakes)])
    if it.after.operations <= _MOST_PRINTED:  # nobody reads more, and the file has it
        lines += program_lines(it.program)
    if it.output is not None:
        lines.append(f"    written    {it.output}")
    if it.again is not None:
        lines.append(f"    again      {it.again}")
    return "\n".join(lines)
