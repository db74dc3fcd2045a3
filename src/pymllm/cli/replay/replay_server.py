"""The command ``pymllm replay-server``: a trace sent to a running server, compared with predictions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.cli.replay.reading import trace_options
from pymllm.cli.replay.trace import open_or_refuse
from pymllm.cli.store import keep_run, refuse_own_input
from pymllm.cli.tables import draw_document, progress_bar, tell
from pymllm.errors import PymllmError
from pymllm.report.quantities import count_of

if TYPE_CHECKING:
    from pymllm.replay.served import Play, PlayPlan, Served
    from pymllm.workloads.request import Request

_HELD_MOST = 1_000_000
_SHOWN = 20
"""The greatest number of differing requests that are listed."""


@click.command("replay-server", short_help="Send a trace to a running server, and compare its hits.")
@click.argument("trace", metavar="TRACE")
@click.argument("url")
@click.option(
    "--capacity",
    type=options.tokens,
    required=True,
    help="KV slots of the server in tokens, such as 200k or 1M.",
)
@click.option(
    "--page-size", type=options.whole(1, 2**20), default=16, help="Tokens per KV page or block of the server."
)
@click.option(
    "--serial", is_flag=True, help="One request after another, as in `pymllm replay-serial`; no clock."
)
@click.option(
    "--speed", type=options.Amount(0.001, 1e6), default=1.0, help="How much faster than the trace's clock."
)
@click.option(
    "--requests",
    type=options.whole(1, _HELD_MOST),
    show_default="all",
    help="Send the first N requests only.",
)
@click.option("--minutes", type=options.Amount(0.001, 100_000), help="Send no request after so long.")
@click.option(
    "--max-tokens", type=options.whole(1, 2**20), show_default="the trace's", help="Longest answer."
)
@click.option(
    "--max-running",
    type=options.whole(1, 1024),
    default=256,
    help="Most requests that are under way at once.",
)
@click.option("--seed", type=options.SEED, default=0, help="Of the tokens that prompts are made of.")
@click.option(
    "--api",
    type=click.Choice(["auto", "openai", "llama.cpp", "sglang"]),
    default="auto",
    help="API of the server; auto: detect it.",
)
@options.timeout
@click.option(
    "--keep",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write each answer's figures into this file; requests already in it are not sent again.",
)
@trace_options
@options.json
@options.store
@options.progress
def replay_server_command(
    trace: str,
    url: str,
    *,
    serial: bool,
    speed: float,
    requests: int | None,
    minutes: float | None,
    max_tokens: int | None,
    max_running: int,
    capacity: int,
    page_size: int,
    seed: int,
    api: str,
    timeout: float,
    keep: Path | None,
    as_json: bool,
    store: Path | None,
    progress: str,
    **chosen: Any,
) -> int:
    """Send the requests of a trace to a running server; compare its hits with those predicted.

    Prompts are made of the trace's block ids, from a seed, with tokens that any model has. Requests are sent
    by the trace's clock; requests that wait for others, after these have ended. The hits that the server
    reports are compared with those of a radix tree of --capacity, as `pymllm curve` predicts them;
    docs/replay-server.md explains each kind of difference. Start with an empty cache. Traffic goes to URL
    alone.

    It needs pip install 'pymllm[torch,servers]'.

    Exit status: 0, 2 for bad input, 3 if the server failed or answered nothing. After Ctrl-C or SIGTERM the
    results so far are printed, no run is stored, and the status is 130 or 143.
    """
    if serial:
        options.refuse_typed(("speed", "max_running"), "--serial sends one request after another")
    refuse_own_input("--keep", keep, trace)
    if capacity < 2 * page_size:
        raise click.UsageError(f"--capacity {capacity} has less than two pages of {page_size}; give more.")
    opened = open_or_refuse(trace, requests, chosen)
    from pymllm.probing.clients import connect, make_http
    from pymllm.replay.served import PlayPlan, play, read_served

    with options.refusing():
        held = list(_bounded(opened))
        plan = PlayPlan(seed, None if serial else speed, max_running, max_tokens, minutes)
        results = {} if keep is None else read_served(keep, held, plan)
        with make_http(url, timeout) as http:
            client = connect(http, api, keeps_cache=True)
            with (
                _keeping(keep, held, plan, results) as write,
                progress_bar(progress, f"{trace} to {client.url}", len(held), "requests") as show,
            ):
                done = play(http, client, held, plan, results=results, keep=write, show=show)
            address, spoken = client.url, client.api
    if results:
        complain(f"{keep}: {count_of(len(results), 'result')} taken from there, not sent again")
    document = _document(
        held,
        plan,
        done,
        name=trace,
        url=address,
        api=spoken,
        page_size=page_size,
        capacity=capacity,
        kept=len(results),
    )
    if done.interruption is None and done.failure is None:
        keep_run(store, document)
    if done.failure is not None:
        complain(done.failure)
    tell(document, draw_document, as_json, done.interruption)
    answered = any(it.refusal is None for it in done.results.values())
    return 0 if done.failure is None and answered else 3


def _bounded(opened: Any) -> Iterator[Request]:
    for number, request in enumerate(opened):
        if number == _HELD_MOST:
            raise click.UsageError(f"a replay holds {_HELD_MOST:,} requests at most; give --requests.")
        yield request


@contextmanager
def _keeping(
    path: Path | None, held: list[Request], plan: PlayPlan, results: dict[int, Served]
) -> Iterator[Callable[[Served], None]]:
    """Yield a function that appends results to a file with those of an earlier replay."""
    import msgspec

    from pymllm.replay.served import ServedHead, digest_of

    if path is None:
        yield lambda served: None
        return
    encode = msgspec.json.Encoder().encode
    with options.refusing_unreadable():
        fresh = path.with_name(f"{path.name}.new")
        head = encode(ServedHead(digest_of(held, plan)))
        fresh.write_bytes(b"\n".join([head, *map(encode, results.values()), b""]))
        os.replace(fresh, path)
        with path.open("ab", buffering=0) as file:
            yield lambda served: void(file.write(encode(served) + b"\n"))


def void(_: object) -> None:
    """Ignore a value."""


def _document(
    held: list[Request],
    plan: PlayPlan,
    done: Play,
    *,
    name: str,
    url: str,
    api: str,
    page_size: int,
    capacity: int,
    kept: int,
) -> Any:
    """Return the document of a trace sent to a server."""
    from pymllm.documents.served import UNCOMPARED, ServedDocument
    from pymllm.replay.prediction import differences_in, first_tokens_of, kinds_of, predict

    results = sorted(done.results.values(), key=lambda it: it.request)
    answered = [it for it in results if it.refusal is None]
    refused = [it for it in results if it.refusal is not None]
    by_number = {it.request_id: it for it in held}
    try:
        predicted = predict(by_number, answered, seed=plan.seed, page_size=page_size, capacity=capacity)
    except PymllmError as error:
        raise click.UsageError(str(error)) from error
    compared = [it for it in predicted if it.kind not in UNCOMPARED]
    return ServedDocument(
        name=name,
        url=url,
        api=api,
        mode="serial" if plan.speed is None else "clock",
        seed=plan.seed,
        speed=plan.speed or 0.0,
        page_size=page_size,
        capacity=capacity,
        requests=len(held),
        answered=len(answered),
        refused=len(refused),
        kept=kept,
        prompt_tokens=sum(it.request.prompt_length for it in predicted),
        cached_tokens=sum(it.cached or 0 for it in answered),
        predicted_tokens=sum(it.tokens or 0 for it in compared),
        curve_tokens=sum(it.curve_tokens for it in compared),
        output_tokens=sum(it.produced for it in answered),
        most_at_once=done.most_at_once,
        late_s=done.late_s,
        seconds=max((it.end for it in results), default=0.0),
        kinds=tuple(kinds_of(predicted)),
        first_tokens=tuple(first_tokens_of(predicted)),
        differences=tuple(differences_in(predicted, _SHOWN)),
        refusal=refused[0].refusal if refused else None,
        failure=done.failure,
        interrupted=done.interruption is not None,
    )
