"""A program of requests as readable lines, and as a shell script of curl calls."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pymllm.probing.records import Ask, Burst, Cold, Drop, History, Look, Operation, Reset, asks_of
from pymllm.probing.shrinking import as_sent, common_length

if TYPE_CHECKING:  # a file is judged, and told, where httpx is not
    from pymllm.probing.clients import Client

_RUN = "@RUN@"  # replaced by a variable of the script


def lines_of(history: History) -> list[str]:
    """Return a line for each request, with the part of its prompt shared with an earlier one."""
    lines, before = list[str](), list[Ask]()
    program = as_sent(history.steps)
    for number, (operation, step) in enumerate(zip(program, history.steps, strict=True), 1):
        if isinstance(operation, Cold):
            again = ", ".join(map(str, operation.of))
            how = "behind an emptied cache" if history.head.cold == "reset" else "cold"
            lines.append(
                f"{number}  {'requests' if len(operation.of) > 1 else 'request'} {again} again, {how}"
            )
        elif isinstance(operation, Reset):
            lines.append(f"{number}  the cache is emptied")
        elif isinstance(operation, Look):
            lines.append(f"{number}  the metrics are read")
        elif isinstance(operation, Drop):
            where = f"after {operation.bytes} bytes" if operation.bytes else "before the first byte"
            lines.append(f"{number}  {_said(operation.ask, before)}, dropped {where}")
            before.append(operation.ask)
        else:
            beside = " at once" if isinstance(operation, Burst) else ""
            for ask, answer in zip(asks_of(operation), step.answers, strict=True):
                cached = "" if answer.cached is None else f", {answer.cached} cached"
                lines.append(f"{number}  {_said(ask, before)}{beside}{cached}")
            before += asks_of(operation)
    return lines


def _said(ask: Ask, before: Sequence[Ask]) -> str:
    common, other = max(((common_length(ask.tokens, it.tokens), it.id) for it in before), default=(0, 0))
    shared = f", {common} as in request {other}" if common else ""
    salt = f", namespace {ask.salt}" if ask.salt else ""
    return f"request {ask.id}: {len(ask.tokens)} tokens{shared}, {ask.max_tokens} to produce{salt}"


def curl_script(history: History, client: Client, url: str) -> str:
    """Return a program as a shell script, which prints each answer on a line of its own."""
    return "\n".join([*_head(history, url), *_calls(history, client), ""])


def _head(history: History, url: str) -> Iterator[str]:
    yield "#!/bin/sh"
    yield "# A program of pymllm probe. Run it on a server that was just started: URL=http://... sh FILE"
    yield f"URL=${{URL:-{url}}}"
    if history.head.has_salts:
        yield 'RUN="$$-$(date +%s)"  # so that no namespace was used before'
    if history.head.cold == "other":
        yield "COLD=${COLD:?set it to the address of the second server}"


def _calls(history: History, client: Client) -> Iterator[str]:
    made = 0
    asked: dict[int, Ask] = {}
    for operation in as_sent(history.steps):
        yield f"\n# {_named(operation)}"
        if isinstance(operation, Reset) or (isinstance(operation, Cold) and history.head.cold == "reset"):
            yield f'curl -sS -X POST "$URL{client.reset_path}"; echo'
        if isinstance(operation, Look):
            yield 'curl -sS "$URL/metrics" | grep -v "^#"'
        elif isinstance(operation, Drop):
            call = _call(client, operation.ask, operation.ask.salt, stream=True)
            yield f"{call} -N | head -c {operation.bytes}" if operation.bytes else f"{call} --max-time 0.01"
        elif isinstance(operation, Cold):
            is_other = history.head.cold == "other"
            calls = []
            for id in operation.of:
                made += 1
                calls.append(_call(client, asked[id], f"cold-{made}", is_cold=True, is_other=is_other))
            yield from _together(calls)
        else:
            asked |= {ask.id: ask for ask in asks_of(operation)}
            yield from _together([_call(client, ask, ask.salt) for ask in asks_of(operation)])


def _named(operation: Operation) -> str:
    if isinstance(operation, Cold):
        return f"cold: {', '.join(map(str, operation.of))}"
    if isinstance(operation, Drop):
        return f"request {operation.ask.id}, dropped"
    ids = ", ".join(str(ask.id) for ask in asks_of(operation))
    return f"request {ids}" if ids else type(operation).__name__.lower()


def _together(calls: Sequence[str]) -> Iterator[str]:
    if len(calls) == 1:
        yield f"{calls[0]}; echo"
    else:
        yield from (f"{{ {call}; echo; }} &" for call in calls)
        yield "wait"


def _call(
    client: Client,
    ask: Ask,
    salt: str,
    *,
    is_cold: bool = False,
    stream: bool = False,
    is_other: bool = False,
) -> str:
    body = client.body(ask.tokens, ask.max_tokens, f"{_RUN}-{salt}", is_cold=is_cold, stream=stream)
    text = shlex.quote(json.dumps(body, separators=(",", ":"))).replace(_RUN, "'\"$RUN\"'")
    server = "$COLD" if is_other else "$URL"
    return f'curl -sS "{server}{client.path}" -H "Content-Type: application/json" -d {text}'
