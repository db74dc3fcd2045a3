"""The command ``pymllm repeat``, which repeats one run of a campaign from its seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pymllm.cli import options
from pymllm.cli.soak import soak_options
from pymllm.cli.soak.soak_options import SoakOptions
from pymllm.cli.soak.soak_playing import play_and_tell
from pymllm.cli.soak.soak_telling import telling_options
from pymllm.history.files import Config, Deviation


@click.command("repeat", short_help="Repeat one run of a soak, as a failure names it.")
@click.argument("seed", metavar="SEED", type=options.SEED)
@options.adapter_to_run
@options.command(multiple=False)
@click.option(
    "--config", type=options.json_object, metavar="JSON", required=True, help="The configuration of the run."
)
@soak_options.machine
@click.option(
    "--operations",
    type=options.whole(1, 10**12),
    default=soak_options.LONGEST,
    help="Operations after which the run ends.",
)
@soak_options.audit
@options.deviations
@options.timeout
@soak_options.output
@telling_options
def repeat_command(
    seed: int,
    adapter: str | None,
    command: str | None,
    config: Config,
    machine: str | None,
    operations: int,
    audit: int | None,
    deviations: tuple[Deviation, ...],
    timeout: float,
    output: Path | None,
    progress: str,
    **told: Any,
) -> int:
    """Repeat the run of a `pymllm soak` that has this SEED, on its adapter and configuration.

    A campaign prints this command for each failure. The same operations are played again, in a campaign of
    this one run.

    Exit status: as of `pymllm soak`.
    """
    asked = SoakOptions(
        (options.name_of_one(adapter, command),),
        configs=(config,),
        deviations=deviations,
        machine=machine,
        seed=seed,
        run=seed,
        operations=operations,
        audit=audit,
        timeout=timeout,
        output=output,
    )
    asked.check()
    return play_and_tell(asked, progress, told)
