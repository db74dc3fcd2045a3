"""The command ``pymllm soak``, whose campaigns are played by `pymllm.soak.campaign`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pymllm.cli import options
from pymllm.cli.soak import soak_options
from pymllm.cli.soak.soak_options import SoakOptions
from pymllm.cli.soak.soak_playing import play_and_tell
from pymllm.cli.soak.soak_telling import corpus_option, telling_options
from pymllm.cli.spread import Executor, executor_option, shard_beside


@click.command("soak", short_help="Run long random programs for hours.")
@options.adapters
@options.command(multiple=True)
@soak_options.configs
@options.deviations
@soak_options.machine
@soak_options.minutes
@click.option(
    "--operations",
    type=options.whole(1, 10**12),
    help="Operations to play; the last run goes beyond. Equal numbers and seeds give equal runs.",
)
@click.option(
    "--longest", type=options.whole(1, 1_000_000), show_default="50000", help="Most operations of one run."
)
@click.option("--seed", type=options.SEED, show_default="drawn", help="Seed of every choice.")
@corpus_option("Play the runs first that `pymllm merge --corpus` kept there, beside --operations.")
@options.shard
@executor_option("shards", "retries", of_campaign=True)
@options.jobs
@soak_options.audit
@options.timeout
@soak_options.stop_on_failure
@soak_options.output
@telling_options
def soak_command(
    adapters: tuple[str, ...],
    commands: tuple[str, ...],
    executor: Executor | None,
    strict: bool,
    as_json: bool,
    store: Path | None,
    page: Path | None,
    verbose: bool,
    progress: str,
    **chosen: Any,
) -> int:
    """Run long random programs for hours, while pools fill, age and drain; judge every operation.

    A campaign has many runs. In a run, a state machine chooses the operations for one configuration of one
    adapter; it leaves out some kinds of operation, prefers others, and changes this from phase to phase. Each
    finished run is a line in the campaign's ledger; `pymllm resume` continues from there. A program that
    fails is saved and made small, and the campaign continues. With --shard it runs one part of the campaign;
    the same command continues that part, and `pymllm merge` puts all parts together.

    Exit status: 0 if no law is broken, 1 if one is, 2 for bad input, 3 if an adapter failed, no run
    ended, or a shard was given up. After Ctrl-C or SIGTERM the results so far are printed, and the status is
    130 or 143. docs/soak.md explains table, ledger and document.
    """
    told = {"strict": strict, "as_json": as_json, "store": store, "page": page, "verbose": verbose}
    shard = chosen["shard"] = shard_beside(executor, chosen["shard"])
    if strict and shard is not None:
        raise click.UsageError(
            f"--strict is for the whole campaign, {shard.asked} for a part; give it to pymllm merge."
        )
    names = options.names_of(adapters, commands)
    chosen["configs"] = soak_options.spell_out(names, chosen["configs"])
    plan = SoakOptions(names, **chosen)
    plan.check()
    return play_and_tell(plan, progress, told, executor)
