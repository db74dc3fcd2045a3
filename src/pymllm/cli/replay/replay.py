"""The command ``pymllm replay``, whose work is done by `pymllm.replay.grid`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.cli.replay.reading import READING, read_policies, trace_options
from pymllm.cli.shard_table import complain_of_others, demand_file
from pymllm.cli.shard_table import make_text as make_shard_text
from pymllm.cli.spread import Executor, demand_keep, shard_beside, spread_tasks, work_options
from pymllm.cli.store import keep_run, refuse_own_input
from pymllm.cli.tables import draw_document, progress_bar, tell
from pymllm.documents.replays import column_of
from pymllm.errors import UsageError
from pymllm.oracle.models.policy_ranks import POLICY_RANKS
from pymllm.replay.plan import ReplayPlan
from pymllm.report.quantities import count_of
from pymllm.torch_extra import collector_aside

if TYPE_CHECKING:
    from pymllm.replay.cells import Replayed
    from pymllm.replay.grid import ReplayGrid
    from pymllm.work.shards import Shard

# Slots are int32 numbers, so no count of tokens is larger, and a pool has a page of padding besides one at
# least. Rows and requests are bounded by what a machine holds; a trace's clock, up to 10**13 ms, must move by
# an iteration, and what it adds up to must fit a line.
_TOKENS = options.whole(1, 2**31 - 1)
_ITERATION = options.Amount(0.01, 86_400_000)


def _read_caches(context: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Read the names of caches; the settings of a cache set parameters of the command."""
    names = []
    for text in texts:
        name = text.partition(",")[0]
        _, given = options.read_settings(text, {"mamba-chunk-size": _TOKENS} if name == "blocks" else {})
        context.params.update(given)
        names.append(name)
    return tuple(names)


@click.command("replay", short_help="Replay a trace or a synthetic workload through the caches.")
@click.argument("workload", metavar="TRACE|NAME")
@click.option(
    "--cache",
    "caches",
    metavar="NAME[,KEY=VALUE]",
    multiple=True,
    default=("radix",),
    callback=_read_caches,
    help="radix, chunk, mamba or blocks; repeat it to compare. blocks,mamba-chunk-size=N saves a state after "
    "every N tokens, by default 128.",
)
@click.option(
    "--requests",
    type=options.whole(1, 1_000_000),
    show_default="all of a trace, 200 of a named workload",
    help="Replay the first N requests only.",
)
@click.option("--seed", type=options.SEED, default=0, help="Seed of a named workload.")
@trace_options
@click.option(
    "--page-size",
    "page_sizes",
    type=options.whole(1, 2**30 - 1),
    multiple=True,
    default=(1,),
    help="Tokens per KV page, or per block; repeat it to compare.",
)
@click.option(
    "--window",
    metavar="TOKENS[,capacity=TOKENS]",
    callback=options.read_window,
    show_default="none",
    help="Sliding attention window, and the KV slots of its layers, by default as --capacity.",
)
@click.option(
    "--capacity",
    "capacities",
    type=options.tokens,
    multiple=True,
    show_default="1M for a trace, a named workload's own",
    help="KV slots, such as 200k or 1M, rounded down to whole pages; repeat it for a curve.",
)
@click.option(
    "--track-slots",
    type=options.whole(0, 1_048_576),
    show_default="4 per running request",
    help="States that --cache mamba or blocks may keep.",
)
@click.option(
    "--eviction-policy",
    "eviction_policies",
    metavar="NAME",
    multiple=True,
    show_default="lru",
    help=f"Eviction order of radix and mamba: {', '.join(POLICY_RANKS)}, or your own as module:Name. With "
    "--cache blocks: keep unreferenced blocks until memory is short (lru), or free them at once (ref-zero). "
    "Repeat it to compare.",
)
@click.option(
    "--max-running",
    type=options.whole(1, 65_536),
    default=256,
    help="Most requests that run at the same time.",
)
@click.option(
    "--chunk", type=_TOKENS, default=8192, help="Most prompt tokens that are computed per iteration."
)
@click.option(
    "--iteration-ms", type=_ITERATION, metavar="MS", default=50.0, help="Virtual time of one iteration."
)
@click.option(
    "--content-check/--no-content-check",
    default=None,
    show_default="on for a named workload, off for a trace",
    help="Write fingerprints into the KV pools, and compare them at each read.",
)
@click.option(
    "--check-every",
    type=options.whole(0, 2**31 - 1),
    default=0,
    help="Check all invariants after every N-th cache operation; 0: never.",
)
@work_options
@options.json
@options.store
@options.progress
def replay_command(**chosen: Any) -> int:
    """Replay requests through a cache and its pools in a simulated engine; print hit rates, memory and times.

    TRACE is a file of requests in one of the formats of docs/traces.md, plain or gzip, or - for standard
    input; NAME is one of chat, agent, shared-prompt and adversarial, which need no file.

    With several page sizes, capacities or policies, each cache is replayed with each of them, in parallel
    processes. A table then has the hit rate for each capacity, beside that of an unlimited cache. --keep
    writes each result into a file, from which an interrupted replay continues. With --shard, several machines
    do a part each; --keep with all their lines in one file, without --shard, prints the table. With
    --executor and --keep, an engine's machines do so.

    Exit status: 0, 1 if a law is broken, 2 for bad input. After Ctrl-C or SIGTERM the results so far are
    printed, no run is stored, and the status is 130 or 143. docs/replay.md explains the JSON document.
    """
    return play_and_tell("engine", **chosen)


def play_and_tell(
    mode: str,
    *,
    page_sizes: tuple[int, ...],
    capacities: tuple[int, ...],
    eviction_policies: tuple[str, ...],
    shard: Shard | None,
    keep: Path | None,
    jobs: int,
    as_json: bool,
    store: Path | None,
    progress: str,
    executor: Executor | None,
    **chosen: Any,
) -> int:
    """Replay the plans that a command's options ask for, print the results, and return the exit status."""
    policies = _each_once("--eviction-policy", read_policies(eviction_policies, chosen["tokenizer"]))
    plans = [
        ReplayPlan(mode=mode, page_size=page_size, capacity=capacity, eviction_policies=policies, **chosen)
        for page_size, capacity in itertools.product(
            _each_once("--page-size", page_sizes), _each_once("--capacity", capacities) or (None,)
        )
    ]
    show = partial(progress_bar, progress)
    if plans[0].is_named:
        options.refuse_typed(READING, "a named workload is no trace")
    demand_keep(executor, keep)
    if executor is not None and plans[0].workload == "-":
        raise click.UsageError("--executor: a shard has no standard input; write the trace into a file.")
    shard = shard_beside(executor, shard)
    demand_file(shard, keep)
    if shard is not None:
        options.refuse_typed(("store",), "a shard has a part of the results only")
    if not plans[0].is_named:
        refuse_own_input("--keep", keep, plans[0].workload)
    try:
        for plan in plans:
            plan.check()
        # Not at the top: this loads torch, which --help and a mistyped option can do without.
        with collector_aside():
            from pymllm.replay.cells import keep_replays
            from pymllm.replay.grid import count_cells, replay, run_shard, source_of
            from pymllm.replay.replays import settle

        plans = [settle(plan) for plan in plans]  # before a file is made
        if executor is not None and keep is not None:
            spread_tasks(executor, keep, source_of(plans), lambda: count_cells(plans), jobs, progress)
        kept = None if keep is None else keep_replays(keep)
        complain_of_others(kept)
        if shard is not None and kept is not None:
            options.tell_shard_of_environment(shard)
            done, interruption = run_shard(plans, shard, jobs, kept, show)
            for row in done.broken if as_json else ():
                complain(f"{row.name} violates {row.law}: {row.message}")
            return tell(done, make_shard_text, as_json, interruption)
        result = replay(plans, jobs, show, kept)
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    if result.kept:
        complain(f"{keep}: {count_of(result.kept, 'result')} taken from there, not replayed again")
    document, found = result.document, result.document.violation
    for run in document.runs if result.interruption is None else ():
        if not (run.requests if run.finished is None else run.finished):
            complain(f"{run.config.column}: no request was replayed; --capacity may be too small for each")
    if result.interruption is None:  # a figure of half a trace is no point of a trend
        keep_run(store, document)
    if as_json and found is not None:
        complain(f"{found.cache} violates {found.law}: {found.message}")
    tell(document, lambda it: draw_document(it, *_notes(result)), as_json, result.interruption)
    return 0 if found is None else 1


def _notes(result: Replayed | ReplayGrid) -> Iterator[str]:
    """Yield the points where a law broke, and the runs that an interrupt ended or left out."""
    from pymllm.replay.grid import ReplayGrid

    if isinstance(result, ReplayGrid):
        for plan, found in ((one.plan, one.document.violation) for one in result.results):
            if found is not None:
                size = f"page size {plan.page_size}, capacity {plan.capacity}"
                yield f"{found.law}  of {found.cache} with {size}"
        if result.interruption is not None:
            yield "interrupted: not all runs and ceilings were done"
    elif result.interruption is not None:
        runs, last = result.document.runs, result.document.runs[-1]
        begun = last.requests if last.finished is None else last.finished
        ended = begun + (last.skipped or 0) + (last.rejected or 0)
        left = [column_of(*column) for column in result.plan.columns[len(runs) :]]
        unplayed = f"; not replayed: {', '.join(left)}" if left else ""
        total = result.document.workload.requests
        yield f"interrupted: {last.config.column} after {ended:,} of {total:,} requests{unplayed}"


_Value = TypeVar("_Value", int, str)


def _each_once(option: str, values: tuple[_Value, ...]) -> tuple[_Value, ...]:
    """Return values without repeats, even in another spelling, and report these."""
    for value, times in Counter(values).items():
        if times > 1:
            complain(f"{option} {value} was given {times} times; it is replayed once")
    return tuple(dict.fromkeys(values))
