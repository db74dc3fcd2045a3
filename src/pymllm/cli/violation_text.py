"""How a broken law, and what stopped a search, are put into words, alike for every command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from pymllm.cli.program import escaped
from pymllm.errors import InvariantViolation
from pymllm.history.files import History

if TYPE_CHECKING:
    from pymllm.cli.verify_files import SavedFiles
    from pymllm.conformance.finding import Finding
    from pymllm.conformance.results import AdapterResult

__all__ = ["again_lines", "explain", "mistake_lines", "problem_lines"]


def explain(violation: InvariantViolation, history: History) -> list[str]:
    """Return lines that say what was looked at, what the law demands, what there was, and where.

    Parameters
    ----------
    violation : InvariantViolation
        The broken law.
    history : History
        The program up to the step that broke it.
    """
    lines = [f"    looked at  {escaped(violation.message)}"]
    if violation.expected is not None:
        lines.append(f"    expected   {escaped(violation.expected)}")
    if violation.observed is not None:
        lines.append(f"    observed   {escaped(violation.observed)}")
    config = ", ".join(f"{key} {value}" for key, value in history.header.config.items())
    count = f"{len(history)} step" if len(history) == 1 else f"{len(history)} steps"
    last = history.steps[-1].number if history.steps else 0
    where = escaped(config) or "no configuration"
    lines.append(f"    at         step {last}, in a program of {count} ({where})")
    return lines


def again_lines(finding: Finding, adapter: str, path: str | None, seed: int) -> list[str]:
    """Return lines with the commands that show a violation again, those only that do.

    Parameters
    ----------
    finding : Finding
        Says in which ways it shows.
    adapter : str
        Name to type.
    path : str or None
        File of the program.
    seed : int
        Of the search.
    """
    commands = []
    if path is not None and finding.is_rerun:
        commands.append(f"pymllm rerun {quote(path)} --adapter {quote(adapter)}")
    if path is not None and finding.is_judged:
        commands.append(f"pymllm judge {quote(path)}")
    if not finding.is_rerun:
        search = f"pymllm verify --adapter {quote(adapter)} --law {finding.law} --seed {seed}"
        commands.append(f"{search}  (its operations alone, run again, do not break the law)")
        if path is not None and finding.history.header.scenario is not None:
            commands.append(f"pymllm shrink {quote(path)} --adapter {quote(adapter)}  (plays its acts)")
    again = [f"    {'again' if not place else '':11}{command}" for place, command in enumerate(commands)]
    return mistake_lines(finding.mistakes) + again


def mistake_lines(mistakes: Sequence[str]) -> list[str]:
    """Return lines that say what this package did wrong itself while a smaller program was looked for.

    Parameters
    ----------
    mistakes : sequence of str
        As of `pymllm.conformance.acting.FoundViolation`.
    """
    return [f"    mistake    of pymllm: {escaped(mistake)}" for mistake in mistakes]


def problem_lines(adapter: AdapterResult, files: SavedFiles) -> Iterator[str]:
    """Yield lines that say what a search of an adapter came to grief with, and which files have more of it.

    Parameters
    ----------
    adapter : AdapterResult
        With its problems.
    files : SavedFiles
        Where their programs and conversations are.
    """
    for place, problem in enumerate(adapter.problems):
        yield from ("", f"{adapter.name}  could not be examined to the end")
        if problem.conversation is not None:
            yield f"    verdict    {problem.conversation.verdict}"
        yield f"    because    {escaped(problem.message)}"
        program = files.crashes.get((adapter.name, place))
        if program is not None:
            yield f"    program    {program}"
        last_lines = files.conversations.get((adapter.name, place))
        if last_lines is not None:
            yield f"    last said  {last_lines}"
