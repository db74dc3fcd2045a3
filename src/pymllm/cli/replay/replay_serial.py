"""The command ``pymllm replay-serial``: a replay of requests one by one, without an engine."""

from __future__ import annotations

from typing import Any

import click

from pymllm.cli import options
from pymllm.cli.replay.reading import trace_options
from pymllm.cli.replay.replay import play_and_tell, replay_command


@click.command("replay-serial", short_help="Replay one request after another, without an engine.")
@click.argument("workload", metavar="TRACE|NAME")
@click.option(
    "--cache",
    "caches",
    metavar="NAME",
    multiple=True,
    default=("radix",),
    help="radix or chunk; repeat it to compare.",
)
@options.of(replay_command, "requests", "seed")
@trace_options
@options.of(replay_command, "page_sizes", "capacities", "eviction_policies", "check_every")
@options.of(replay_command, "shard", "keep", "executor", "jobs", "as_json", "store", "progress")
def replay_serial_command(**chosen: Any) -> int:
    """Replay one request after another with a cache and an allocator alone; print hit rates and times.

    TRACE, NAME, several capacities, --keep and --shard are as for `pymllm replay`. A table over capacities
    also has the hit rate of the best possible cache of each. `pymllm curve` finds the same numbers of a radix
    tree in one pass.

    Exit status: as of `pymllm replay`.
    """
    return play_and_tell("serial", **chosen)
