"""The command ``pymllm serve``: an embedded server with a tiny model on this package's caches."""

from __future__ import annotations

import importlib.util
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from pymllm.cli.options import read_window, refuse_typed, refusing
from pymllm.cli.output import say
from pymllm.errors import UsageError
from pymllm.faults.plant import Change, planted
from pymllm.torch_extra import collector_aside, why_no_torch

if TYPE_CHECKING:
    from pymllm.serving.publisher import EventPublisher

_HELP = """\
Serve a tiny random model, whose memory is our own classes, behind OpenAI's completions.

It is a server to try tools on: a few layers with seeded random weights, 128 tokens (ASCII), and answers that
do not depend on the cache. POST /v1/completions takes a text or token ids, logprobs, cache_salt and stream;
GET /metrics, /health and /v1/models tell; POST /reset_prefix_cache empties the cache. With --events it
publishes each block that is stored or removed, as vLLM does: `pymllm watch` judges that.

It needs pip install 'pymllm[torch,servers]', and listens until Ctrl-C.
"""


def why_no_servers() -> str | None:
    """Return the reason why no server can run and the remedy; ``None`` if one can."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return f"{' and '.join(missing)} {verb} not installed; pip install 'pymllm[servers]' brings them"
    return why_no_torch()


_size = click.IntRange(1, 1 << 24)


@click.command("serve", short_help="Serve a tiny random model over our own classes.", help=_HELP)
@click.argument(
    "architecture",
    type=click.Choice(["dense", "window", "hybrid"]),
    default="dense",
    metavar="[ARCHITECTURE]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, show_default=True, help="Of the weights."
)
@click.option("--page-size", type=_size, default=16, show_default=True, help="Tokens in a page.")
@click.option(
    "--capacity", type=_size, default=4096, show_default=True, help="Slots of the cache, in tokens."
)
@click.option(
    "--window",
    metavar="TOKENS[,capacity=TOKENS]",
    default="64,capacity=1024",
    show_default=True,
    callback=read_window,
    help="Sliding window, and the slots of its layers.",
)
@click.option(
    "--track-slots", type=_size, default=32, show_default=True, help="States that a hybrid may keep."
)
@click.option(
    "--max-running", type=_size, default=8, show_default=True, help="Requests that run at one time."
)
@click.option(
    "--max-context", type=_size, default=1024, show_default=True, help="Tokens of the longest request."
)
@click.option("--chunk-tokens", type=_size, default=128, show_default=True, help="Prompt tokens in a step.")
@click.option(
    "--check", is_flag=True, help="Count all memory again after each step; a fault ends the engine."
)
@click.option("--fault", metavar="ID", help="Put a fault of servers in, as `pymllm faults list` names them.")
@click.option(
    "--events",
    metavar="ADDRESS",
    help="Publish the cache's events here over ZeroMQ, such as tcp://127.0.0.1:5557; for `pymllm watch`.",
)
@click.option("--replay", metavar="ADDRESS", help="With --events: answer here for messages that were missed.")
@click.option("--device", default="cpu", show_default=True, help="Device of the model and its memory.")
def serve_command(
    host: str, port: int, fault: str | None, events: str | None, replay: str | None, **sizes: object
) -> None:
    """Serve until interrupted."""
    if events is None:
        refuse_typed(("replay",), "without --events there are no messages", "; give both")
    reason = why_no_servers()
    if reason is not None:
        raise click.UsageError(f"pymllm serve: {reason}.")
    with collector_aside():
        import torch
        import uvicorn

        from pymllm.serving.app import make_app
        from pymllm.serving.background import answer_at_once
        from pymllm.serving.service import ServerConfig, Service
    with ExitStack() as stack:
        with refusing():
            edits = () if fault is None else _edits_of(fault)
            config = ServerConfig(**sizes)  # type: ignore[arg-type]  # declared twice: here and there
            publisher = None if events is None else _publisher(events, replay, config.window)
            if publisher is not None:
                stack.callback(publisher.close)
            service = Service(config, publisher)
        torch.set_num_threads(1)  # matrices of 64 by 64: more threads wait for each other
        listener = stack.enter_context(_listen(host, port))
        stack.enter_context(planted(edits))
        answer_at_once(listener)
        address, taken = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        told = "" if publisher is None else f", its events at {publisher.address}"
        say(f"serving {sizes['architecture']} at http://{shown}:{taken}{told} (Ctrl-C ends it)")
        settings = uvicorn.Config(make_app(service), log_level="warning", timeout_graceful_shutdown=5)
        uvicorn.Server(settings).run(sockets=[listener])


def _publisher(address: str, replay: str | None, window: int) -> EventPublisher:
    if importlib.util.find_spec("zmq") is None:
        raise UsageError("pyzmq is not installed; pip install 'pymllm[servers]' brings it")
    from pymllm.serving.publisher import EventPublisher

    return EventPublisher(address, replay, window)


def _edits_of(fault: str) -> tuple[Change, ...]:
    from pymllm.faults.table import SERVERS, find_faults

    (found,) = find_faults([fault], SERVERS)
    return found.edits


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise click.UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}.") from error
