"""Requests and sources that a test writes out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from pymllm.core.inference.contexts.prefix_index import HashPage
from pymllm.workloads.block_engine import BlockEngine, MeasuredContext, make_block_context
from pymllm.workloads.engine import Engine, EngineConfig
from pymllm.workloads.engine_config import BLOCKS
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage, TraceSource


class ScriptedSource(TraceSource):
    """Given requests; aborts when a stage is asked about for the n-th time, chunks and victims as told."""

    may_abort = True

    def __init__(
        self,
        requests: Iterable[Request],
        *,
        aborts: dict[tuple[int, Stage], int] | None = None,
        chunk: int | None = None,
        victims: Sequence[int] = (),
    ) -> None:
        super().__init__(requests)
        self.aborts = dict(aborts or {})
        self.chunk = chunk
        self.victims = list(victims)
        self.candidates: list[list[int]] = []

    def abort(self, request_id: int, stage: Stage) -> bool:
        """Count down to the abort of this request at this stage."""
        left = self.aborts.get((request_id, stage), 0)
        self.aborts[request_id, stage] = left - 1
        return left == 1

    def chunk_limit(self, request_id: int, limit: int) -> int:
        """Give the scripted chunk, cut to what is allowed."""
        return limit if self.chunk is None else min(self.chunk, limit)

    def retract_victim(self, candidates: Sequence[int]) -> int:
        """Give the next scripted victim, then the youngest."""
        self.candidates.append(list(candidates))
        return self.victims.pop(0) if self.victims else super().retract_victim(candidates)


@pytest.fixture
def ask() -> Callable[..., Request]:
    """Make a request whose prompt is its own, or begins with given tokens."""

    def make(
        number: int,
        prompt: int,
        output: int = 1,
        *,
        tokens: Iterable[int] = (),
        arrival_ms: float = 0.0,
        namespace: str | int | None = None,
    ) -> Request:
        shared = tuple(tokens)
        own = range(1000 * (number + 1), 1000 * (number + 1) + prompt - len(shared))
        return Request(number, arrival_ms, prompt, output, (*shared, *own), 1, namespace)

    return make


@pytest.fixture
def script() -> type[ScriptedSource]:
    """Give the class of scripted sources."""
    return ScriptedSource


@pytest.fixture
def engine_of(script: type[ScriptedSource]) -> Callable[..., Engine | BlockEngine]:
    """Make a small engine that checks everything, from requests or a source."""

    def make(source: TraceSource | Sequence[Request], **changes: object) -> Engine | BlockEngine:
        sizes: dict[str, object] = {
            "capacity": 64,
            "max_running": 4,
            "chunk_tokens": 16,
            "decode_headroom": 0,
        }
        checks: dict[str, object] = {"content_check": True, "check_every": 1}
        config = EngineConfig(**(sizes | checks | changes))  # type: ignore[arg-type]
        asked = script(source) if isinstance(source, Sequence) else source
        return BlockEngine(config, asked) if config.cache == BLOCKS else Engine(config, asked)

    return make


@pytest.fixture
def block_config() -> Callable[..., EngineConfig]:
    """Give a rounded configuration: 16 blocks of 4 tokens, a state after every 2, contents checked."""

    def make(**changes: object) -> EngineConfig:
        sizes: dict[str, object] = {
            "page_size": 4,
            "capacity": 64,
            "mamba_chunk_size": 2,
            "max_running": 4,
            "content_check": True,
        }
        return EngineConfig(cache=BLOCKS, **(sizes | changes)).rounded()  # type: ignore[arg-type]

    return make


@pytest.fixture
def context_of(block_config: Callable[..., EngineConfig]) -> Callable[..., MeasuredContext]:
    """Make the context of such a configuration."""

    def make(hash_page: HashPage | None = None, **changes: object) -> MeasuredContext:
        return make_block_context(block_config(**changes), hash_page)

    return make
