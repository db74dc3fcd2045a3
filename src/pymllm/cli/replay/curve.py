"""``pymllm curve``: options in, table or JSON out. The work is in `pymllm.replay.curves`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from pymllm.cli import options
from pymllm.cli.output import escaped
from pymllm.cli.replay.reading import READING, read_policies, trace_options
from pymllm.cli.store import keep_run
from pymllm.cli.tables import draw, make_legend, make_table, progress_bar, tell
from pymllm.documents.curves import CurveDocument, CurveRow
from pymllm.errors import UsageError
from pymllm.oracle.models.policy_ranks import POLICY_RANKS
from pymllm.replay.curve_plan import GROUPINGS, CurvePlan
from pymllm.replay.kv_size import DTYPES, MODELS, KvShape, find_shape
from pymllm.report.quantities import count_of, show, show_count

_SIZE = options.whole(1, 1_000_000)


_MODEL = {
    **dict.fromkeys(("layers", "kv-heads", "head-dim", "latent-dim", "hybrid"), _SIZE),
    "dtype": options.one_of(DTYPES),
}


def _read_model(context: click.Context, param: click.Parameter, text: str | None) -> KvShape | None:
    """Read a model that is named or described; its ``dtype`` becomes a parameter of the command."""
    if text is None:
        return None
    name, given = options.read_settings(text, _MODEL)
    context.params["dtype"] = given.pop("dtype", "bf16")
    with options.refusing("--model"):
        return find_shape(name, **given)


@click.command("curve", short_help="Hit rates over many capacities, in one pass over a trace.")
@click.argument("workload", metavar="TRACE|NAME")
@click.option(
    "--capacity",
    "capacities",
    type=options.tokens,
    multiple=True,
    show_default="chosen for the trace",
    help="KV slots, such as 200k or 1M, rounded down to whole pages; repeat it.",
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
    help="Also tell what a cache without a limit would hit; without it, memory holds only what the largest "
    "capacity does.",
)
@click.option(
    "--belady", is_flag=True, help="Also tell what the best choice would hit, which knows the future."
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
    help="Prompt tokens that the model computes per second: tells the seconds saved.",
)
@click.option(
    "--model",
    "shape",
    metavar="NAME|KEY=VALUE,...",
    callback=_read_model,
    help=f"Tells bytes: {', '.join(MODELS)}; or describe yours by layers=N, kv-heads=N and head-dim=N, or "
    "latent-dim=N, the numbers of a token that a layer keeps instead of heads (MLA); hybrid=N: one of N "
    "layers keeps something of every token, others do not. Behind either "
    f"dtype={'|'.join(DTYPES)}, the type of the numbers kept, by default bf16.",
)
@options.jobs
@options.json
@options.store
@options.progress
def curve_command(
    *,
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
    and a prefill rate, the table tells bytes, seconds saved, and what the next GiB is worth.

    Exit status: 0, or 2 for bad input. After Ctrl-C or SIGTERM the results so far are printed, no run is
    stored, and the status is 130 or 143. docs/curves.md explains the JSON document.
    """
    policies = tuple(dict.fromkeys(read_policies(eviction_policies, chosen["tokenizer"])))
    plan = CurvePlan(eviction_policies=policies, **chosen)
    if plan.is_named:
        options.refuse_typed(READING, "a named workload is no trace")
    if plan.capacities:
        options.refuse_typed(("points",), "--capacity says which")
    try:
        plan.check()
        # Not at the top: this loads NumPy, which --help and a mistyped option can do without.
        from pymllm.replay.curves import run_curve

        result = run_curve(plan, jobs, partial(progress_bar, progress))
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    if result.interruption is None:  # a figure of half a trace is no point of a trend
        keep_run(store, result.document)
    return tell(result.document, make_text, as_json, result.interruption)


# -- as text -------------------------------------------------------------------------------------------------

_Column = tuple[str, Callable[[CurveRow], str]]


def make_text(document: CurveDocument) -> str:
    """Lay a curve out as text; outside of a terminal nothing is wrapped or cut."""
    parts: list[Any] = [*_heading(document), _table(document.rows, _columns(document)), ""]
    for group in document.groups:
        parts += [_title(document, group.name), _table(group.rows, _columns_of_group(document)), ""]
    if document.policies:
        parts += [
            "token hit rate of other policies, each capacity replayed by itself",
            _policies(document),
            "",
        ]
    parts += [make_legend(_legend(document)), ""]
    if document.interrupted:
        parts.append((f"interrupted after {document.workload.requests:,} requests", "bold"))
    return draw(*parts, fits_terminal=True)


def _heading(document: CurveDocument) -> list[str]:
    it = document.workload
    versions = "  ".join(f"{name} {version}" for name, version in document.versions.items())
    seed = f", seed {it.seed}" if it.kind == "named" else ""
    lines = [
        versions,
        f"{escaped(it.name)}: {it.requests:,} requests{seed}, longest prompt "
        f"{count_of(document.longest_prompt, 'token')}, {show(document.trace_seconds, 's')}",
        f"radix tree, lru, serial replay, pages of {count_of(document.page_size, 'token')}: "
        + _method(document),
    ]
    model = document.model
    if model is not None:
        kept = f"latent {model.latent_dim}" if model.latent_dim else f"{model.kv_heads} x {model.head_dim}"
        layers = f"{model.counted_layers} of {count_of(model.layers, 'layer')}"
        size = f"{show_count(model.bytes_per_token)} bytes per token"
        lines.append(f"{model.name}: {layers}, {kept}, {model.dtype}: {size}")
    return [*lines, ""]


def _method(document: CurveDocument) -> str:
    seconds = show(document.cpu_seconds, "s")
    if document.sample is None:
        return f"exact, one pass, {seconds} of processor time"
    return f"estimated from {document.sample.rate * 100:g} % of the blocks, {seconds} of processor time"


def _title(document: CurveDocument, name: str) -> str:
    return f"{document.by} {escaped(name)}"


def _columns(document: CurveDocument) -> list[_Column]:
    """Return the columns that something is known for."""
    rows = document.rows
    columns: list[_Column] = [("capacity", lambda it: f"{it.capacity:,}")]
    if document.model is not None:
        columns.append(("memory", lambda it: show(it.kv_bytes, "bytes")))
    columns.append(("hit rate", lambda it: _percent(it.token_hit_rate)))
    if document.sample is not None:
        columns.append(("between", lambda it: f"{_percent(it.low)} and {_percent(it.high)}"))
    if any(it.belady_hit_rate is not None for it in rows):
        columns.append(("Belady", lambda it: _percent(it.belady_hit_rate)))
    if any(it.ceiling_hit_rate is not None for it in rows):
        columns.append(("unlimited", lambda it: _percent(it.ceiling_hit_rate)))
    columns.append(("tokens saved", lambda it: f"{it.hit_tokens:,}"))
    if document.prefill_rate is not None:
        columns.append(("prefill saved", lambda it: show(it.prefill_seconds_saved, "s")))
    if document.model is not None:
        columns.append(("next GiB saves", partial(_next_gib, document.prefill_rate is not None)))
    if any(it.evicted_tokens is not None for it in rows):
        columns.append(("evicted", lambda it: "-" if it.evicted_tokens is None else f"{it.evicted_tokens:,}"))
    return columns + _left_out(rows)


def _columns_of_group(document: CurveDocument) -> list[_Column]:
    columns: list[_Column] = [
        ("capacity", lambda it: f"{it.capacity:,}"),
        ("requests", lambda it: f"{it.requests:,}"),
        ("hit rate", lambda it: _percent(it.token_hit_rate)),
        ("tokens saved", lambda it: f"{it.hit_tokens:,}"),
    ]
    return columns + _left_out([row for group in document.groups for row in group.rows])


def _left_out(rows: Sequence[CurveRow]) -> list[_Column]:
    return [("left out", lambda it: f"{it.skipped:,}")] if any(it.skipped for it in rows) else []


def _next_gib(in_seconds: bool, row: CurveRow) -> str:
    if row.next_gib_tokens is None:
        return "-"
    if in_seconds:
        return show(row.next_gib_seconds, "s")
    return f"{row.next_gib_tokens:,.0f} tokens"


def _table(rows: Sequence[CurveRow], columns: Sequence[_Column]) -> Any:
    head = tuple(name for name, _ in columns)
    return make_table(
        *head, right=head, gap=2, rows=[tuple(cell(row) for _, cell in columns) for row in rows]
    )


def _policies(document: CurveDocument) -> Any:
    names = [it.eviction_policy for it in document.policies]
    rates = {
        (it.eviction_policy, point.capacity): point.token_hit_rate
        for it in document.policies
        for point in it.points
    }
    head = ("capacity", "lru", *names)
    rows = [
        (
            f"{row.capacity:,}",
            _percent(row.token_hit_rate),
            *(_percent(rates.get((name, row.capacity))) for name in names),
        )
        for row in document.rows
    ]
    return make_table(*head, right=head, gap=2, rows=rows)


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"


def _legend(document: CurveDocument) -> dict[str, str]:
    """Explain the columns that are there."""
    explained = {
        "capacity": "KV slots in tokens",
        "memory": "keys and values of so many tokens; no weights, no states",
        "hit rate": "part of the prompt tokens that the cache had",
        "between": "where the hit rate lies, most likely",
        "Belady": "highest hit rate of any cache of this capacity",
        "unlimited": "hit rate of a cache without a limit",
        "tokens saved": "prompt tokens that need not be computed",
        "prefill saved": "time to compute them at --prefill-rate",
        "next GiB saves": "over this trace, on the way to the next capacity",
        "evicted": "tokens that the cache evicted",
        "left out": "requests with a prompt above half the capacity",
    }
    there = {name for name, _ in _columns(document)}
    return {name: text for name, text in explained.items() if name in there}
