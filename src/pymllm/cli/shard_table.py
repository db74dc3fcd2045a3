"""Shards of ``pymllm verify``, ``compare`` and ``replay``: their common options, and text of results."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.output import complain, escaped
from pymllm.cli.spread import Executor, spread_tasks
from pymllm.cli.tables import draw, progress_bar, tell
from pymllm.documents.shards import ShardDocument
from pymllm.report.quantities import count_of
from pymllm.work.shards import Shard

if TYPE_CHECKING:
    from pymllm.search.tasks import VerifyPlan
    from pymllm.work.kept import KeptResults


def demand_file(shard: Shard | None, keep: Path | None) -> None:
    """Refuse a shard without ``--keep``, whose results could not be merged."""
    if shard is not None and keep is None:
        raise click.UsageError(
            f"{shard.asked}: its results are for a file that is put together with those of the other "
            "shards; give --keep FILE."
        )


def complain_of_others(kept: KeptResults[Any, Any] | None) -> None:
    """Report which results in a file do not count, and why."""
    others = None if kept is None else kept.describe_others()
    if others is not None:
        complain(others)


def refuse_beside_shard(shard: Shard, *names: str) -> None:
    """Refuse options for results that need all shards."""
    options.refuse_typed(
        names, f"a shard gives no verdict; the same command without {shard.origin} gives that of all"
    )


def _demand_seed(keep: Path, plan: VerifyPlan, seed: int | None) -> None:
    """Refuse to keep results of a search without a seed, which could not be resumed."""
    if seed is None and plan.profile.seed is None:
        raise click.UsageError(
            f"--keep {keep}: --profile {plan.profile.name} draws a seed, so the next run would search "
            "elsewhere; give --seed N."
        )


def spread_searches(
    executor: Executor, plan: VerifyPlan, keep: Path, seed: int | None, progress: str
) -> None:
    """Have an engine carry out a plan's first searches, and store the results in a file."""
    from pymllm.search.kept_searches import digest_sources
    from pymllm.search.verify_shard import count_searches

    _demand_seed(keep, plan, seed)
    spread_tasks(executor, keep, digest_sources(plan), lambda: count_searches(plan), plan.jobs, progress)


def open_kept(keep: Path | None, plan: VerifyPlan, seed: int | None) -> KeptResults[Any, Any] | None:
    """Open a file of search results, and report which of them do not count."""
    if keep is None:
        return None
    _demand_seed(keep, plan, seed)
    from pymllm.search.kept_searches import keep_searches

    with options.refusing():
        kept = keep_searches(keep, plan)
    complain_of_others(kept)
    return kept


def search_shard(
    plan: VerifyPlan,
    shard: Shard,
    kept: KeptResults[Any, Any],
    command: str,
    progress: str,
    as_json: bool,
) -> int:
    """Carry out a shard's first searches with a progress bar, print, and return the exit status."""
    from pymllm.search.verify_shard import play_shard

    options.tell_shard_of_environment(shard)
    with options.refusing():
        document, interruption = play_shard(
            plan, shard, kept, command, partial(progress_bar, progress, unit="")
        )
    return tell_shard(document, as_json, interruption)


def tell_shard(document: ShardDocument, as_json: bool, interruption: KeyboardInterrupt | None) -> int:
    """Print the document of a shard; return its exit status, or raise the interruption again."""
    for row in document.broken if as_json else ():
        complain(f"{row.name} violates {row.law}: {row.message}")
    for problem in document.problems if as_json else ():
        complain(problem)
    return tell(document, make_text, as_json, interruption)


def make_text(document: ShardDocument) -> str:
    """Return text on the work of a shard, and on how to merge all shards."""
    it = document
    done = "all done" if it.done == it.tasks else f"{it.done:,} done"
    kept = f", {it.kept:,} of them before" if it.kept else ""
    lines: list[str | tuple[str, str]] = [
        f"pymllm {it.command}, shard {it.shard}: {count_of(it.tasks, 'task')} of {it.total:,}, {done}{kept}, "
        f"{it.seconds:.1f} s",
        "",
    ]
    lines += [(escaped(f"{row.name} violates {row.law}: {row.message}"), "bold red") for row in it.broken]
    lines += [(escaped(problem), "yellow") for problem in it.problems]
    if not it.broken and not it.problems:
        lines.append("no law was broken here" if it.done else "nothing was done")
    file = shlex.quote(it.file)
    lines += ["", escaped(f"results: {it.file}; put the lines of all shards into one file, and give it")]
    lines += [escaped(f"as --keep to the same command without --shard: cat {file} ... > all.jsonl")]
    return draw(*lines, fits_terminal=True)
