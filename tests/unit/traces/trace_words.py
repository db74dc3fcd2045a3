"""Traces for tests: small ones of each format, random ones, and a tokenizer."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pymllm.traces.records import ReadOptions
from pymllm.traces.registry import open_trace
from pymllm.workloads.request import Request

SMALL = Path(__file__).with_name("small_traces")


def encode(said: Any) -> list[int]:
    """Make a token of each word, of a text or of messages."""
    text = said if isinstance(said, str) else " ".join(message.get("content") for message in said)
    return [zlib.crc32(word.encode()) % 50_000 for word in text.split()]


def read(path: Path, format: str = "auto", **options: Any) -> list[Request]:
    requests = options.pop("requests", None)
    return list(open_trace(path, format=format, requests=requests, options=ReadOptions(**options)))


def random_trace(
    seed: int, count: int = 40, *, size: int = 4, namespaces: Iterable[str | int | None] = (None,)
) -> list[Request]:
    """Prompts that begin alike, of whole and partial blocks, with sessions, waits, delays and kinds."""
    draw = random.Random(seed)
    prompts: list[list[int]] = [[]]
    made = []
    now = 0.0
    for number in range(count):
        begin = draw.choice(prompts)
        ids = [
            *begin[: draw.randint(0, len(begin))],
            *(draw.randrange(30) for _ in range(draw.randint(1, 4))),
        ]
        prompts.append(ids)
        length = len(ids) * size - draw.choice([0, 0, draw.randrange(size)])
        now += draw.choice([0.0, 10.0, 1500.0, 70_000.0])
        after = tuple(sorted(draw.sample(range(number), min(number, draw.choice([0, 0, 1, 2])))))
        request = Request(number, now, length, draw.randint(1, 9), tuple(ids), size)
        made.append(
            replace(
                request,
                namespace=draw.choice([*namespaces]),
                session=draw.choice([None, draw.randrange(5)]),
                wait_for=after,
                delay_ms=draw.choice([None, 0.0, 20.0]) if after else None,
                kind=draw.choice([None, "chat", "tool"]),
            )
        )
    return made


def renumbered(requests: Iterable[Request]) -> list[Request]:
    """Number blocks and sessions by first appearance, the slow way."""
    blocks: dict[int, int] = {}
    sessions: dict[int, int] = {}
    return [
        replace(
            it,
            block_ids=tuple(blocks.setdefault(id, len(blocks)) for id in it.block_ids),
            session=None if it.session is None else sessions.setdefault(it.session, len(sessions)),
        )
        for it in requests
    ]


Words = Callable[..., list[Request]]
