"""``pymllm replay``: options in, table or JSON out. What happens in between is in `pymllm.cli.replay_run`."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from pymllm.cli.options import count_processes, jobs_option, json_option, progress_option
from pymllm.cli.program import complain, say
from pymllm.cli.replay_plan import ReplayPlan
from pymllm.cli.replay_result import ReplayResult
from pymllm.cli.run_store import keep_run, refuse_unwritable_store, store_option
from pymllm.cli.values import MILLISECONDS, SEED, TOKENS, Whole

__all__ = ["replay_command"]

# Options that a serial replay, which has no engine, cannot heed.
_ENGINE_ONLY = (
    "window",
    "swa_capacity",
    "track_slots",
    "mamba_chunk_size",
    "eviction_policy",
    "max_running",
    "chunk",
    "iteration_ms",
    "content_check",
)
_TRACE_ONLY = ("block_tokens",)

# Slots are int32 numbers, so no count of tokens is larger, and a pool has a page of padding besides one at
# least. Rows and requests are bounded by what a machine holds.
_TOKENS = Whole(1, 2**31 - 1)
_PAGE = Whole(1, 2**30 - 1)
_CHECKS = Whole(0, 2**31 - 1)
_ROWS = Whole(1, 65_536)
_STATES = Whole(0, 1_048_576)
_REQUESTS = Whole(1, 1_000_000)


@click.command("replay", short_help="Replay a trace or a named workload through the real caches.")
@click.argument("workload", metavar="TRACE|NAME")
@click.option(
    "--cache",
    "caches",
    metavar="NAME",
    multiple=True,
    default=("radix",),
    show_default="radix",
    help="radix, chunk, mamba or blocks; give it twice to compare.",
)
@click.option(
    "--mode",
    type=click.Choice(["engine", "serial"]),
    default="engine",
    show_default=True,
    help="A simulated engine, or one request after another with nothing but cache and allocator.",
)
@click.option(
    "--requests",
    type=_REQUESTS,
    metavar="N",
    show_default="all of a trace, 200 of a named workload",
    help="Replay the first N requests only.",
)
@click.option(
    "--seed",
    type=SEED,
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of a named workload.",
)
@click.option(
    "--block-tokens",
    type=_TOKENS,
    metavar="N",
    default=512,
    show_default=True,
    help="Tokens per block of a trace's hash_ids.",
)
@click.option(
    "--page-size",
    "page_sizes",
    type=_PAGE,
    metavar="N",
    multiple=True,
    default=(1,),
    show_default="1",
    help="Tokens per KV page, or per block; give it twice to compare.",
)
@click.option(
    "--window", type=_TOKENS, metavar="N", help="Sliding attention window in tokens.  [default: none]"
)
@click.option(
    "--capacity",
    "capacities",
    type=TOKENS,
    metavar="TOKENS",
    multiple=True,
    show_default="1M for a trace, a named workload's own",
    help="KV slots, such as 200k or 1M, rounded down to whole pages; several make a curve.",
)
@click.option(
    "--swa-capacity",
    type=TOKENS,
    metavar="TOKENS",
    show_default="as --capacity",
    help="Slots of the window half.",
)
@click.option(
    "--track-slots",
    type=_STATES,
    metavar="N",
    show_default="4 per running request",
    help="States that --cache mamba or blocks may keep.",
)
@click.option(
    "--mamba-chunk-size",
    type=_TOKENS,
    metavar="N",
    show_default="128",
    help="With --cache blocks: a state exists after every N-th token computed.",
)
@click.option(
    "--eviction-policy",
    type=click.Choice(["lru", "ref-zero"]),
    show_default="lru",
    help="With --cache blocks: what becomes of blocks that nobody references.",
)
@click.option(
    "--max-running",
    type=_ROWS,
    metavar="N",
    default=256,
    show_default=True,
    help="Most requests that run at one time.",
)
@click.option(
    "--chunk",
    type=_TOKENS,
    metavar="N",
    default=8192,
    show_default=True,
    help="Prompt tokens computed per iteration.",
)
@click.option(
    "--iteration-ms",
    type=MILLISECONDS,
    metavar="MS",
    default=50.0,
    show_default=True,
    help="Virtual time of one iteration.",
)
@click.option(
    "--content-check/--no-content-check",
    default=None,
    show_default="on for a named workload, off for a trace",
    help="Write fingerprints into KV pools and compare whatever is read.",
)
@click.option(
    "--check-every",
    type=_CHECKS,
    metavar="N",
    default=0,
    show_default=True,
    help="Walk all invariants after every N-th cache operation; 0 never.",
)
@jobs_option
@json_option
@store_option
@progress_option
@click.pass_context
def replay_command(
    context: click.Context,
    /,
    *,
    page_sizes: tuple[int, ...],
    capacities: tuple[int, ...],
    jobs: int | None,
    as_json: bool,
    store: Path | None,
    progress: str,
    **options: Any,
) -> int:
    """Replay requests through a cache and its pools, and say what came of it.

    TRACE is a file of JSON lines in the Mooncake format, plain or gzip, or - for standard input; NAME is
    one of chat, agent, shared-prompt and adversarial, which need no file.

    With several page sizes or capacities every cache is replayed with each of them, in parallel processes:
    a table of hit rates over capacity, beside what an unlimited cache would hit, and, for a serial replay,
    what no cache of that capacity could exceed.

    Ends with 0, with 1 where a law is broken, and with 2 for bad input. After Ctrl-C or SIGTERM it tells what
    was played by then, keeps no run in a store, and ends with 130 or 143. The fields of the JSON document are
    explained in docs/replay.md.
    """
    plans = [
        ReplayPlan(page_size=page_size, capacity=capacity, **options)
        for page_size, capacity in itertools.product(
            _each_once("--page-size", page_sizes), _each_once("--capacity", capacities) or (None,)
        )
    ]
    for plan in plans:
        plan.check()
        _refuse_options_without_meaning(context, plan)
    refuse_unwritable_store(store)
    if len(plans) > 1:
        return _replay_grid(plans, count_processes(jobs), as_json, store, progress)
    (plan,) = plans
    # Not at the top: this loads torch, which --help and a mistyped option can do without.
    from pymllm.cli.replay_run import run_plan

    result = run_plan(plan, progress)
    if store is not None and result.interruption is None:  # a figure of half a trace is no point of a trend
        from pymllm.cli.replay_document import make_document

        keep_run(store, make_document(result))
    say(_as_json(result) if as_json else _as_text(result))
    if result.violation is not None and as_json:
        complain(
            f"{result.violation.law} is violated by {result.violation.cache}: {result.violation.message}"
        )
    if result.interruption is not None:
        raise result.interruption
    return 0 if result.violation is None else 1


def _each_once(option: str, values: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out what was given before, perhaps in other words, and say so."""
    for value, times in Counter(values).items():
        if times > 1:
            complain(f"{option} {value} was given {times} times; it is played once")
    return tuple(dict.fromkeys(values))


def _replay_grid(plans: list[ReplayPlan], jobs: int, as_json: bool, store: Path | None, progress: str) -> int:
    """Replay every plan with every cache, and print all of it together."""
    from pymllm.cli.replay_curve import make_curves
    from pymllm.cli.replay_document import make_grid_document
    from pymllm.cli.replay_grid import run_grid

    grid = run_grid(plans, jobs, progress)
    document = make_grid_document(grid)
    if grid.interruption is None:
        keep_run(store, document)
    say(json.dumps(document, indent=2) if as_json else make_curves(grid))
    found = grid.violation
    if found is not None and as_json:
        complain(f"{found.law} is violated by {found.cache}: {found.message}")
    if grid.interruption is not None:
        raise grid.interruption
    return 0 if found is None else 1


def _as_json(result: ReplayResult) -> str:
    from pymllm.cli.replay_document import make_document

    return json.dumps(make_document(result), indent=2)


def _as_text(result: ReplayResult) -> str:
    from pymllm.cli.replay_table import make_text

    if not _stdout_is_terminal():
        return make_text(result)
    return make_text(result, width=shutil.get_terminal_size().columns, styled=True)


def _stdout_is_terminal() -> bool:
    return sys.stdout.isatty()


def _refuse_options_without_meaning(context: click.Context, plan: ReplayPlan) -> None:
    """Refuse options that were typed but would be ignored."""
    useless = {name: "a serial replay has no engine" for name in _ENGINE_ONLY if plan.mode == "serial"}
    useless |= {name: "a named workload has its own" for name in _TRACE_ONLY if plan.is_named}
    for param in context.command.params:
        source = context.get_parameter_source(str(param.name))
        if param.name in useless and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{param.opts[0]} has no effect here: {useless[param.name]}; leave it out."
            )
