"""``pymllm rerun``: the operations of a file on an implementation, judged as they happen."""

from __future__ import annotations

import json
import os

import click

from pymllm.cli.judgement import Judgement, make_document, make_text, read_program
from pymllm.cli.options import json_option, timeout_option
from pymllm.cli.program import say
from pymllm.cli.values import CONFIG
from pymllm.cli.verify_plan import find_adapter_or_refuse, load_or_refuse
from pymllm.errors import UsageError
from pymllm.oracle.history import Config

__all__ = ["rerun_command"]


@click.command("rerun", short_help="Run a recorded program again, on any implementation.")
@click.argument("file", type=click.Path())
@click.option(
    "--adapter",
    metavar="NAME",
    show_default="the one that the file names",
    help="A name of `pymllm adapters`, or module:Class.",
)
@click.option(
    "--config",
    type=CONFIG,
    metavar="JSON",
    show_default="the file's",
    help="What to build, such as '{\"page_size\": 4}'.",
)
@timeout_option
@json_option
def rerun_command(
    file: str, adapter: str | None, config: Config | None, timeout: float, as_json: bool
) -> int:
    """Run the operations of FILE again, judge every step, and compare with what was recorded.

    FILE holds a program as JSON lines, as `pymllm verify` writes it; outcomes may be missing. It names
    slots and nodes by the step that gave them, so it runs on any adapter of its kind.

    Ends with 0 where no law is broken, with 1 where one is, with 2 for bad input, and with 3 where nothing
    can be said: the adapter could not be asked, or made choices that the program does not fit.
    """
    history = read_program(file)
    name = find_adapter_or_refuse(adapter or history.header.adapter).name
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    load_or_refuse(name)
    # Not at the top: this may load torch, which --help and a mistyped option can do without.
    from pymllm.conformance.rerun import rerun_history
    from pymllm.conformance.time_limit import time_limit

    try:
        with time_limit(timeout):
            result = rerun_history(history, name, config)
    except UsageError as error:
        raise click.UsageError(f"{file}: {error}.") from error
    judgement = Judgement(
        "rerun",
        file,
        name,
        result.history,
        result.exercised,
        result.audited,
        result.violation,
        result.misfit,
        tuple(now.number for _, now in result.differences),
    )
    say(json.dumps(make_document(judgement), indent=2) if as_json else make_text(judgement))
    return judgement.verdict.exit_status
