"""The command ``pymllm diff``: the changes from one run to another, of any kind in reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pymllm.cli import options
from pymllm.cli.tables import draw_document, tell
from pymllm.documents.programs import JudgementDocument
from pymllm.documents.runs import FAIL_ON, read_as
from pymllm.errors import TraceError
from pymllm.text_file import NotJSONError, read_json, read_text_file

if TYPE_CHECKING:
    from pymllm.report.changes import Facts


@click.command("diff", short_help="Show the changes from one run to another.")
@click.argument("before", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.argument("after", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    multiple=True,
    help="End with 1 where a law has a worse verdict, a finding is new or a fault is missed, or a figure is "
    "worse by more than its noise; any: for each of these, and for a goal that is no longer reached.",
)
@options.json
def diff_command(before: Path, after: Path, fail_on: tuple[str, ...], as_json: bool) -> int:
    """Show the changes from the first RUN to the second: laws, findings, figures, coverage goals, faults.

    A RUN is a file that --store or --json wrote, a folder with one such file or with the ledger of a soak, or
    a file of pytest-benchmark. Figures are judged on one machine and one code only, and only where each has a
    spread of its own samples: a change is more than noise where the two spreads are apart.

    Exit status: 0, 1 for a change that --fail-on names, 2 for bad input, such as runs of two kinds, 3 if the
    runs share nothing to compare.
    """
    from pymllm.report.changes import compare_runs

    with options.refusing():
        document = compare_runs(read_facts(before), read_facts(after), fail_on)
    return tell(document, draw_document, as_json)


def read_facts(path: Path) -> Facts:
    """Read the facts of a run; refuse a path without one, and raise `TraceError` for an invalid line."""
    facts = _of_document(path) if path.is_file() else None
    if facts is not None:
        return facts
    from pymllm.report.changes import facts_of
    from pymllm.report.loading import load_runs

    with options.refusing_unreadable():
        loaded = load_runs([path])
    if len(loaded.runs) != 1:
        named = ", ".join(run.source for run in loaded.runs[:3]) or "none that can be read"
        raise click.UsageError(f"{path}: has {len(loaded.runs)} runs ({named}); name one of them.")
    return facts_of(loaded.runs[0])


def _of_document(path: Path) -> Facts | None:
    """Return the facts of a document that no report shows, such as a judgement's."""
    from pymllm.report.changes import Facts

    try:
        plain = read_json(read_text_file(path, errors="replace"))
        if not isinstance(plain, dict) or plain.get("schema") != "pymllm.judgement":
            return None
        facts = Facts(str(path), "judgement")
        facts.take(read_as(JudgementDocument, plain))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}.") from None
    except NotJSONError:
        return None  # lines, which are read one by one
    except ValueError as error:
        raise TraceError(str(path), None, str(error)) from None
    return facts
