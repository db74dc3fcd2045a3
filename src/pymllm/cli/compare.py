"""``pymllm compare``: several implementations under one search, and a matrix of laws by implementation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from pymllm.cli.command_option import command_option, names_of
from pymllm.cli.program import say
from pymllm.cli.run_store import keep_run, refuse_unwritable_store
from pymllm.cli.verify import refuse_unwritable_folder, verify_command
from pymllm.cli.verify_plan import VerifyOptions
from pymllm.text_file import cut

__all__ = ["compare_command"]

_FEWEST = 2
_OF_VERIFY = (
    "laws",
    "profile",
    "seed",
    "examples",
    "jobs",
    "timeout",
    "output",
    "store",
    "as_json",
    "progress",
)
"""Options that mean here what they mean to ``pymllm verify``."""


@click.command("compare", short_help="Put several implementations under the same search.")
@click.argument("names", metavar="NAME NAME...", nargs=-1)
@command_option(multiple=True)
def compare_command(
    names: tuple[str, ...],
    commands: tuple[str, ...],
    output: Path,
    store: Path | None,
    as_json: bool,
    progress: str,
    **options: Any,
) -> int:
    """Search several implementations from the same seed, and lay out which law holds of which.

    NAME is a name of `pymllm adapters`, module:Class or 'command:PROGRAM ARGS'. A cell says how often the
    law was tested and held, that it is violated, unknown or not claimed; it is empty where the law is
    about another kind of thing.
    The smallest program for each violation is written to a file, for `pymllm rerun` on any of them.

    Ends like `pymllm verify`: with 1 where a law is violated, with 3 where something is unknown. With
    --examples N all of them play N programs per machine and configuration, however fast they are.
    """
    names = names_of(names, commands)
    if len(set(names)) < _FEWEST:
        got = f"{cut(names[0])} was named {len(names)} times" if len(names) > 1 else f"got {len(names)}"
        raise click.UsageError(f"compares {_FEWEST} different implementations or more; {got}.")
    plan = VerifyOptions(adapters=names, **options)
    plan.check()
    refuse_unwritable_folder(output)
    refuse_unwritable_store(store)
    # Not at the top: this loads Hypothesis, which --help and a mistyped option can do without.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors are tiny; read when torch is loaded
    from pymllm.cli.compare_matrix import make_document, make_text
    from pymllm.cli.verify_files import save_programs
    from pymllm.cli.verify_run import run_options

    report = run_options(plan, progress)
    files = save_programs(report, output)
    document = make_document(report, files)
    keep_run(store, document, programs=files.programs.values())
    say(json.dumps(document, indent=2) if as_json else make_text(report, files))
    if report.interruption is not None:
        raise report.interruption
    return report.verdict.exit_status


compare_command.params += [option for option in verify_command.params if option.name in _OF_VERIFY]
