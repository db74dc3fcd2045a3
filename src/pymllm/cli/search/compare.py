"""The command ``pymllm compare``: one search of several implementations, with a matrix of laws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.search.search_files import earlier_notes, save_programs
from pymllm.cli.search.verify import plan_search, search, verify_command
from pymllm.cli.shard_table import (
    demand_file,
    open_kept,
    refuse_beside_shard,
    search_shard,
    spread_searches,
)
from pymllm.cli.spread import Executor, demand_keep, shard_beside
from pymllm.cli.store import keep_run
from pymllm.cli.tables import draw_document, tell
from pymllm.text_file import cut

if TYPE_CHECKING:
    from pymllm.work.shards import Shard

_FEWEST = 2


@click.command("compare", short_help="Search several implementations, and print verdicts side by side.")
@click.argument("names", metavar="NAME NAME...", nargs=-1, shell_complete=options.complete_adapter)
@options.command(multiple=True)
@options.of(verify_command, "laws", "deviations", "profile", "seed", "examples", "shard", "jobs", "timeout")
@options.of(verify_command, "output", "as_json", "store", "keep", "executor", "progress")
def compare_command(
    names: tuple[str, ...],
    commands: tuple[str, ...],
    output: Path,
    store: Path | None,
    shard: Shard | None,
    keep: Path | None,
    as_json: bool,
    progress: str,
    executor: Executor | None,
    **chosen: Any,
) -> int:
    """Search several implementations from the same seed, and print the verdict on each law for each of them.

    NAME is a name of `pymllm adapters`, module:Class or 'command:PROGRAM ARGS'. The smallest program for
    each violation is written to a file, which `pymllm rerun` runs on any of them. A table has a row for each
    law and a column for each implementation.

    Exit status: as of `pymllm verify`, 1 if a law is violated, 3 if something is unknown. With --examples N
    each of them runs N programs per machine and configuration, however fast it is. --shard and --keep are
    those of `pymllm verify`.
    """
    names = options.names_of(names, commands)
    if len(set(names)) < _FEWEST:
        got = f"{cut(names[0])} was named {len(names)} times" if len(names) > 1 else f"got {len(names)}"
        raise click.UsageError(f"give {_FEWEST} different implementations or more to compare; {got}.")
    demand_keep(executor, keep)
    shard = shard_beside(executor, shard)
    demand_file(shard, keep)
    if shard is not None:
        refuse_beside_shard(shard, "output", "store")
    plan = plan_search(names, **chosen)
    if executor is not None and keep is not None:
        spread_searches(executor, plan, keep, chosen["seed"], progress)
    kept = open_kept(keep, plan, chosen["seed"])
    if shard is not None and kept is not None:
        return search_shard(plan, shard, kept, "compare", progress, as_json)
    report = search(plan, progress, kept)
    files = save_programs(report, output)
    document = report.comparison(files)
    keep_run(store, document, programs=files.programs.values())
    notes = earlier_notes(files.earlier)
    return tell(document, lambda it: draw_document(it, *notes), as_json, report.interruption)
