"""The command ``pymllm curve``, whose work is done by `pymllm.replay.curves`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from pymllm.cli import options
from pymllm.cli.replay.reading import READING, read_policies, trace_options
from pymllm.cli.store import keep_run
from pymllm.cli.tables import draw_document, progress_bar, tell
from pymllm.errors import UsageError
from pymllm.oracle.models.policy_ranks import POLICY_RANKS
from pymllm.replay.curve_plan import GROUPINGS, CurvePlan
from pymllm.replay.keeping import KEEPINGS, Keeping
from pymllm.replay.kv_size import DTYPES, MODELS, GpuMemory, KvShape, find_shape
from pymllm.text_file import cut

_SIZE = options.whole(1, 1_000_000)


_MODEL = {
    **dict.fromkeys(("layers", "kv-heads", "head-dim", "latent-dim", "hybrid"), _SIZE),
    "dtype": options.one_of(DTYPES),
}


def _read_model(context: click.Context, param: click.Parameter, text: str | None) -> KvShape | None:
    """Read a model given by name or by values; its ``dtype`` sets a parameter of the command."""
    if text is None:
        return None
    name, given = options.read_settings(text, _MODEL)
    context.params["dtype"] = given.pop("dtype", "bf16")
    with options.refusing("--model"):
        return find_shape(name, **given)


_MEMORY: dict[str, Callable[[str], Any]] = {
    "gpus": options.whole(1, 1 << 16),
    "share": options.Amount(0.01, 1),
    "weights": options.size,
}


def _read_memory(context: click.Context, param: click.Parameter, text: str | None) -> GpuMemory | None:
    """Read ``SIZE,KEY=VALUE,...``."""
    if text is None:
        return None
    size, given = options.read_settings(text, _MEMORY)
    if "weights" not in given:
        raise click.BadParameter("give weights=SIZE, too: the model's memory without its cache, as 15GiB.")
    return GpuMemory(options.size(size), **given)


def _read_capacity(value: str) -> int | str:
    """Read a capacity in tokens; one in bytes stays as it is until the model is known."""
    return value if options.is_size(value) else options.tokens(value)


def _capacities_of(
    asked: Sequence[int | str], memory: GpuMemory | None, shape: KvShape | None, dtype: str
) -> tuple[tuple[int, ...], dict[int, int]]:
    """Return capacities in tokens, with the numbers of GPUs for those derived from GPU memory."""
    in_bytes = next((it for it in asked if isinstance(it, str)), None)
    if shape is None and (in_bytes is not None or memory is not None):
        option = "--memory" if in_bytes is None else f"--capacity {in_bytes}"
        raise click.UsageError(f"{option} is memory; give --model too, for the bytes of a token.")
    found = []
    for it in asked:
        if isinstance(it, str):
            assert shape is not None
            found.append(options.tokens(int(options.size(it) / shape.bytes_per_token(dtype))))
        else:
            found.append(it)
    if memory is None:
        return tuple(found), {}
    assert shape is not None
    with options.refusing("--memory"):
        gpus = memory.capacities(shape, dtype)
    return (*found, *map(options.tokens, gpus)), gpus


_DISTANCE = options.whole(1, 2**30 - 1)


def _read_checkpoints(
    context: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[Keeping, int], ...]:
    """Read ``KIND=TOKENS``, refusing repeats."""
    found = []
    for text in dict.fromkeys(texts):
        kind, _, tokens = text.partition("=")
        keeping = next((it for it in KEEPINGS if it == kind), None)
        if keeping is None:
            raise click.BadParameter(
                f"{cut(text)!r} is not KIND=TOKENS, such as last=528, with one of {', '.join(KEEPINGS)}."
            )
        if not tokens:
            raise click.BadParameter(f"{kind} needs a distance, such as {kind}=528.")
        found.append((keeping, _DISTANCE(tokens)))
    return tuple(dict.fromkeys(found))


@click.command("curve", short_help="Hit rates over many capacities, in one pass over a trace.")
@click.argument("workload", metavar="TRACE|NAME")
@click.option(
    "--capacity",
    "capacities",
    type=_read_capacity,
    metavar="TOKENS|SIZE",
    multiple=True,
    show_default="chosen for the trace",
    help="KV slots, such as 200k or 1M, rounded down to whole pages, or with --model memory, such as 80GiB; "
    "repeat it.",
)
@click.option(
    "--memory",
    metavar="SIZE,weights=SIZE[,gpus=N][,share=0.9]",
    callback=_read_memory,
    help="Memory of a GPU: the capacities of 1, 2, 4 up to N GPUs (default: 8), tensor-parallel, "
    "of the share that a server takes, without the weights. Needs --model.",
)
@click.option("--points", type=options.whole(2, 1000), default=20, help="Number of capacities to choose.")
@click.option("--page-size", type=options.whole(1, 2**30 - 1), default=1, help="Tokens per KV page.")
@click.option(
    "--requests",
    type=options.whole(1, 2**31 - 1),
    show_default="all of a trace, 200 of a named workload",
    help="Read the first N requests only.",
)
@click.option("--seed", type=options.SEED, default=0, help="Seed of a named workload, and of --sample.")
@trace_options
@click.option(
    "--unlimited/--no-unlimited",
    default=True,
    help="Also compute the hits of an unlimited cache; without it, memory holds only what the largest "
    "capacity does.",
)
@click.option(
    "--belady", is_flag=True, help="Also compute the hits of the best choice, which knows the future."
)
@click.option(
    "--eviction-policy",
    "eviction_policies",
    metavar="NAME",
    multiple=True,
    show_default="lru",
    help=f"Also replay each capacity with this policy: {', '.join(POLICY_RANKS)}, or your own as "
    "module:Name; may be repeated.",
)
@click.option(
    "--checkpoints",
    metavar="KIND=TOKENS",
    multiple=True,
    callback=_read_checkpoints,
    help="Also compute the hits of a hybrid model with recurrent states at multiples of its block of TOKENS: "
    "every one, the last one of a prompt, or branch: that one and where a prompt leaves what is cached; "
    "may be repeated.",
)
@click.option(
    "--sample",
    type=options.Amount(0.0001, 1),
    metavar="SHARE",
    help="Estimate from this share of the blocks, such as 0.01, with an error.",
)
@click.option(
    "--by", type=click.Choice(GROUPINGS), help="Also count requests apart that have this in common."
)
@click.option(
    "--prefill-rate",
    type=options.Amount(0.001, 1e12),
    metavar="TOKENS_PER_S",
    help="Prompt tokens that the model computes per second: adds the seconds saved.",
)
@click.option(
    "--model",
    "shape",
    metavar="NAME|KEY=VALUE,...",
    callback=_read_model,
    help=f"Count the bytes of a token in this model: {', '.join(MODELS)}; or describe yours by layers=N, "
    "kv-heads=N and head-dim=N, or latent-dim=N, the numbers of a token that a layer keeps instead of heads "
    "(MLA); hybrid=N: one of N layers keeps something of every token, others do not. Behind either "
    f"dtype={'|'.join(DTYPES)}, the type of the numbers kept, by default bf16.",
)
@options.jobs
@options.json
@options.store
@options.progress
def curve_command(
    *,
    capacities: tuple[int | str, ...],
    memory: GpuMemory | None,
    eviction_policies: tuple[str, ...],
    jobs: int,
    as_json: bool,
    store: Path | None,
    progress: str,
    **chosen: Any,
) -> int:
    """Tell how many prompt tokens caches of many capacities hit: a radix tree with lru, exactly.

    TRACE is a file of requests in one of the formats of docs/traces.md, plain or gzip, or - for standard
    input; NAME is one of chat, agent, shared-prompt and adversarial, which need no file.

    The numbers are those of `pymllm replay-serial` at each capacity, found in one pass. With a model
    and a prefill rate, the table has bytes, seconds saved, and what the next GiB is worth.

    Exit status: 0, or 2 for bad input. After Ctrl-C or SIGTERM the results so far are printed, no run is
    stored, and the status is 130 or 143. docs/curves.md explains the JSON document.
    """
    policies = tuple(dict.fromkeys(read_policies(eviction_policies, chosen["tokenizer"])))
    in_tokens, gpus = _capacities_of(capacities, memory, chosen["shape"], chosen.get("dtype", "bf16"))
    plan = CurvePlan(eviction_policies=policies, capacities=in_tokens, gpus=gpus, **chosen)
    if plan.is_named:
        options.refuse_typed(READING, "a named workload is no trace")
    if plan.capacities:
        options.refuse_typed(("points",), f"{'--capacity' if capacities else '--memory'} says which")
    try:
        plan.check()
        # Not at the top: this loads NumPy, which --help and a mistyped option can do without.
        from pymllm.replay.curves import run_curve

        result = run_curve(plan, jobs, partial(progress_bar, progress))
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    if result.interruption is None:  # a figure of half a trace is no point of a trend
        keep_run(store, result.document)
    return tell(result.document, draw_document, as_json, result.interruption)
