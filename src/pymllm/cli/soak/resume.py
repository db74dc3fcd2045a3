"""The command ``pymllm resume``, which continues a campaign with its missing runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pymllm.cli import options
from pymllm.cli.soak import soak_options
from pymllm.cli.soak.soak_options import SoakOptions
from pymllm.cli.soak.soak_playing import play_and_tell
from pymllm.cli.soak.soak_telling import telling_options
from pymllm.cli.spread import Executor, executor_option


@click.command("resume", short_help="Play the missing runs of an interrupted soak.")
@click.argument("folder", metavar="FOLDER", type=options.OUTPUT_FOLDER)
@soak_options.trusted
@options.command(multiple=True)
@soak_options.minutes
@executor_option("retries", of_campaign=True)
@options.jobs
@options.timeout
@soak_options.stop_on_failure
@telling_options
def resume_command(
    folder: Path,
    adapters: tuple[str, ...],
    commands: tuple[str, ...],
    executor: Executor | None,
    progress: str,
    minutes: float | None,
    jobs: int,
    timeout: float,
    stop_on_failure: bool,
    **told: Any,
) -> int:
    """Play the runs that the campaign in FOLDER still lacks, and print the results of all.

    FOLDER is the --output of a `pymllm soak` that did not get to its end. Seed, adapters and all that
    determines the runs is taken from its ledger; a module or a command must be named again with --adapter or
    --command, because a ledger may come from a stranger. A campaign of an executor continues with one.

    Exit status: as of `pymllm soak`.
    """
    plan = SoakOptions(
        options.names_of(adapters, commands),
        minutes=minutes,
        jobs=jobs,
        timeout=timeout,
        stop_on_failure=stop_on_failure,
        resume=folder,
    )
    plan.check(is_spread=executor is not None)
    return play_and_tell(plan, progress, told, executor)
