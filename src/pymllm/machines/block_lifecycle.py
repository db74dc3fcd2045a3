"""The machine that runs the simulated engine over an adapter's context of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pymllm.errors import AdapterError
from pymllm.history import operations as ops
from pymllm.history.operations import Operation
from pymllm.machines.acting import act
from pymllm.machines.driven_context import DrivenContext, driven_block_config
from pymllm.machines.lifecycle import DrawnSource, EngineMachine, EngineNotes
from pymllm.oracle.judge import Judge
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.source import Stage


class BlockLifecycleNotes(EngineNotes):
    """An observer of engine events that counts the coverage goals of an engine over a context."""

    PLAIN: ClassVar[Mapping[Event, str]] = {
        Event.REJECTED: "a request can never fit",
        Event.REFUSED: "an admission fails",
        Event.PAUSED: "a request is set aside for want of memory",
        Event.RESUMED: "a request that was set aside goes on",
    }

    def __init__(self, judge: Judge[Any], source: DrawnSource, config: EngineConfig) -> None:
        super().__init__(judge, source, config.max_context - config.page_size + 1)
        self._aside: set[int] = set()

    def __call__(self, event: Event, live: BlockRequest) -> None:
        """Count an event's coverage goals, and track the paused requests."""
        super().__call__(event, live)
        if event is Event.PAUSED:
            self._aside.add(live.request_id)
        elif event in (Event.RESUMED, Event.RETRACTED, Event.ABORTED):
            self._aside.discard(live.request_id)

    def note_admission(self, live: BlockRequest) -> None:
        """Count the coverage goals of an admission, such as blocks found by a retracted request."""
        super().note_admission(live)
        again = live.request_id in self._retracted and live.cached_tokens
        self._meet("a retracted request finds cached what it had", again)

    def note_abort(self, live: BlockRequest) -> None:
        """Count the abort of a paused request separately."""
        super().note_abort(live)
        self._meet("a request is aborted while it is set aside", live.request_id in self._aside)

    def note_retraction(self, live: BlockRequest) -> None:
        """Count the retraction of a paused request separately."""
        super().note_retraction(live)
        self._meet("a request is retracted while it is set aside", live.request_id in self._aside)


_MOST_OUTPUT = 24  # tokens of a request that grows: each is a step


class BlockLifecycleMachine(EngineMachine):
    """A machine that runs an engine over a context, with requests that are paused and retracted."""

    RESET_LAW = "C9"
    LAWS_OF_CALLS: ClassVar[Mapping[type[Operation], str]] = {ops.Release: "E3", ops.AddRequest: "E4"}
    engine: BlockEngine

    def demand_engine(self) -> None:
        """Raise an error for an adapter that no engine can drive."""
        header = self.examiner.history.header
        if not {"engine", "reserve"} <= {*header.capabilities} or header.kind != "requests":
            raise AdapterError(
                header.adapter, "an engine needs a context that claims reserve, and that it can be driven"
            )

    def set_up(self) -> None:
        """Start the first engine, without reserved tokens for decoding requests."""
        model = self.judge.model.context
        self._size: int = model.block_size
        self._row: int = model.max_blocks * model.block_size  # tokens
        self.start(headroom=0)

    def start(self, *, headroom: int) -> None:
        """Start an engine that reserves ``headroom`` tokens for each decoding request."""
        config = driven_block_config(
            self.examiner.history.header, chunk_tokens=6 * self.scale, decode_headroom=headroom
        )
        self._context = DrivenContext(self._carrier)
        self._notes = BlockLifecycleNotes(self.judge, self.source, config)
        self.engine = BlockEngine(config, self.source, context=self._context, onlooker=self._notes)

    @property
    def allocating(self) -> DrivenContext:
        """The context in which the engine allocates."""
        return self._context

    @property
    def notes(self) -> BlockLifecycleNotes:
        """The observer of the engine's events."""
        return self._notes

    @act(rare=(0, 11), headroom=(0, 2))
    def start_again(self, rare: int, headroom: int) -> None:
        """End all requests, empty the cache, and start another engine."""
        if rare < 2:
            self.end_engine()
            self.start(headroom=headroom * (self._size // 2 + 1))

    @property
    def has_aside(self) -> bool:
        """Whether any request is paused."""
        return bool(self.engine.paused)

    @act(needs="has_aside", pick=(0, 7))
    def abort_aside(self, pick: int) -> None:
        """Mark a paused request for an abort."""
        live = self.engine.paused[pick % len(self.engine.paused)]
        self.source.doom(live.request_id, Stage.DECODE if live.is_prefilled else Stage.PREFILL)

    def reset_cache(self) -> None:
        """Empty the cache by one operation."""
        self._context.empty()

    def empty(self) -> None:
        """Have the engine empty the context, which takes a single operation."""
        self.checked(self.engine.evict_everything, may_reset=True)

    @property
    def scale(self) -> int:
        """The unit of lengths, in tokens: a part of a row, since longer prompts would make programs long."""
        return max(2, self._row // 14)

    @property
    def chunk_unit(self) -> int:
        """The unit of the chunk limit, in tokens."""
        return self.scale // 2

    @property
    def block_tokens(self) -> int:
        """The length of a prompt's block, in tokens."""
        return self._size + max(1, self._size // 4)

    def output_of(self, output: int) -> int:
        """Return the number of tokens that a request produces."""
        return output * 2 if output > 1 else 1

    def crowd_sizes(self, slack: int) -> tuple[tuple[int, int], int]:
        """Return the prompt and output of a growing request, and a prompt that finds no room with it."""
        config = self.engine.config
        prompt = min(config.capacity // 6, config.max_context // 3)
        output = min(_MOST_OUTPUT, config.max_context + 1 - prompt)
        other = config.capacity - prompt - slack * self.scale
        return (prompt, output), min(other, config.max_context)
