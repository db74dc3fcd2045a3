"""``pymllm shrink``: a long program that breaks a law in, the smallest that does out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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
from pymllm.errors import UsageError
from pymllm.oracle.history import History, write_history

if TYPE_CHECKING:
    from pymllm.conformance.acting import FoundViolation
    from pymllm.conformance.rerun import RerunResult
    from pymllm.conformance.scenario import Scenario
    from pymllm.conformance.shrinker import ShrinkProgress

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
    load_or_refuse(name)
    # Not at the top: this may load torch, which --help and a mistyped option can do without.
    from pymllm.conformance.time_limit import time_limit

    with time_limit(timeout):
        scenario = _find_scenario(history, file)
        result = _rerun(history, name, file, has_acts=scenario is not None)
        found = _see_again(history, name, result, scenario)
        if found is not None:
            return _shrink(file, found, wanted, seconds, target, as_json, progress)
        if scenario is not None:
            say(f"{escaped(file)}: its acts, played again on {escaped(name)}, break no law")
        if result is None:
            return 0
        say(make_text(_judgement(file, name, result)))
        return _judgement(file, name, result).verdict.exit_status


def _beside(file: Path) -> Path:
    """Return where the small program goes by itself; never through a link that came with the file."""
    target = file.with_suffix(".short.jsonl")
    if os.path.islink(target):
        raise click.UsageError(f"{target}: is a link, and may lead anywhere; name a file with --output.")
    return target


def _find_scenario(history: History, file: str) -> Scenario | None:
    from pymllm.conformance.scenario import find_scenario

    try:
        return find_scenario(history.header)
    except UsageError as error:
        raise click.UsageError(f"{file}: {error}.") from error


def _rerun(history: History, name: str, file: str, *, has_acts: bool) -> RerunResult | None:
    """Run the operations again; ``None`` where they make no sense, and acts may show why."""
    from pymllm.conformance.rerun import rerun_history

    try:
        return rerun_history(history, name)
    except UsageError as error:
        if has_acts:  # no caller may do what an engine did wrong
            return None
        raise click.UsageError(f"{file}: {error}.") from error


def _see_again(
    history: History, name: str, result: RerunResult | None, scenario: Scenario | None
) -> FoundViolation | None:
    """Take the violation of the operations, or else that of the acts."""
    from pymllm.conformance.acting import FoundViolation
    from pymllm.conformance.scenario_reduction import play_scenario

    if result is not None and result.violation is not None:
        return FoundViolation(result.history, result.violation, scenario=scenario)
    return None if scenario is None else play_scenario(scenario, replace(history.header, adapter=name))


def _judgement(file: str, name: str, result: RerunResult) -> Judgement:
    differences = tuple(now.number for _, now in result.differences)
    counts = result.exercised, result.audited
    return Judgement("rerun", file, name, result.history, *counts, None, result.misfit, differences)


def _shrink(
    file: str,
    before: FoundViolation,
    laws: tuple[str, ...],
    seconds: float,
    target: Path,
    as_json: bool,
    progress: str,
) -> int:
    from pymllm.cli.progress import progress_bar
    from pymllm.cli.shrink_document import Shrunk, make_document, make_text
    from pymllm.conformance.runner import versions
    from pymllm.conformance.scenario import with_scenario
    from pymllm.conformance.shrinker import Shrinker

    interruption: KeyboardInterrupt | None = None
    with progress_bar(progress, "shrinking", len(before.history), "operations left out") as show:
        tell = None if show is None else _telling(show, len(before.history))
        shrinker = Shrinker(before, seconds=seconds, laws=laws or None, on_progress=tell)
        try:
            shrinker.run()
        except KeyboardInterrupt as error:
            interruption = error
    best = shrinker.best
    if laws and best.violation.law not in laws:
        raise click.UsageError(
            f"{file}: breaks {best.violation.law}, and not {' or '.join(laws)}; name it with --law."
        )
    header = replace(best.history.header, versions=versions(), note=str(best.violation))
    best = replace(best, history=with_scenario(History(header, best.history.steps), best.scenario))
    output = str(target) if _write(best.history, target) else None
    budget = shrinker.budget
    shrunk = Shrunk(
        file, output, before, best, budget.plays, budget.seconds, dict(sorted(budget.misfits.items()))
    )
    say(json.dumps(make_document(shrunk), indent=2) if as_json else make_text(shrunk))
    if interruption is not None:
        raise interruption
    return 1


def _write(history: History, path: Path) -> bool:
    """Write the small program; what cannot be written is complained of: the result matters more."""
    try:
        write_history(history, path)
    except OSError as error:
        complain(f"{path}: cannot be written: {error.strerror or error}")
        return False
    return True


def _telling(show: Callable[[int], None], total: int) -> Callable[[ShrinkProgress], None]:
    return lambda progress: show(total - progress.operations)
