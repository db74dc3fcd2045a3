"""Good programs with one spoiled outcome each, and runs with one spoiled counter.

A judge refuses what no wrong implementation of ours does.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.errors import InvariantViolation
from pymllm.history.files import Config, History, Step
from pymllm.history.operations import (
    AddRequest,
    Alloc,
    AllocRows,
    AllocTrack,
    Clear,
    FindBlocks,
    Free,
    FreeRow,
    FreeTrack,
    Inspect,
    Key,
    Operation,
    PickToken,
    ReadHalves,
    ReadKV,
    ReadRows,
    ReadStates,
    Reset,
    RunStep,
    Span,
    Truncate,
    WriteEntries,
    WriteKV,
    WriteRow,
    WriteState,
)
from pymllm.history.outcomes import (
    Buffers,
    ContextView,
    Done,
    Effect,
    Outcome,
    Ran,
    RequestView,
    Slots,
    States,
    Table,
    Tokens,
    Unsupported,
)
from pymllm.oracle.judge import judge_steps
from pymllm.replay.serial import SerialConfig, replay_serially
from pymllm.search.program import run_program
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.engine import Engine, EngineConfig
from pymllm.workloads.source import RandomSource
from pymllm.workloads.synthetic import make_requests


@dataclass(frozen=True, slots=True)
class Spoil:
    """A program on the first configuration of a sound adapter that fits, and a wrong outcome of its end."""

    law: str
    adapter: str
    config: Config
    operations: tuple[Operation, ...]
    spoil: Callable[[Outcome], Outcome]

    @property
    def kind(self) -> str:
        """Kind of the adapter."""
        return load_adapter(find_adapter(self.adapter)).KIND


def record(spoil: Spoil) -> History:
    """Run the program; nothing is wrong with it."""
    configurations = load_adapter(find_adapter(spoil.adapter)).CONFIGURATIONS
    (config, *_) = (config for config in configurations if spoil.config.items() <= config.items())
    return run_program(spoil.adapter, dict(config), spoil.operations)


def judge_spoiled(history: History, spoil: Spoil) -> tuple[Step, InvariantViolation] | None:
    """Judge the history with its last outcome spoiled."""
    *before, last = history.steps
    assert last.outcome is not None
    spoiled = dataclasses.replace(last, outcome=spoil.spoil(last.outcome))
    _, found = judge_steps(history.header, [*before, spoiled])
    return found


def _size(name: str, by: int) -> Callable[[Outcome], Outcome]:
    """Tell one size wrong."""
    return lambda outcome: dataclasses.replace(
        outcome, sizes={**outcome.sizes, name: outcome.sizes[name] + by}
    )


def _result(result: Slots | Done | Tokens) -> Callable[[Outcome], Outcome]:
    """Give another answer."""
    return lambda outcome: dataclasses.replace(outcome, result=result)


def _cell(row: int, value: int) -> Callable[[Outcome], Outcome]:
    """Read something else in the first cell of a row of a table, buffer or state."""

    def spoil(outcome: Outcome) -> Outcome:
        read = outcome.result
        assert isinstance(read, Table | Buffers | States)
        name = {Table: "rows", Buffers: "keys", States: "recurrent"}[type(read)]
        rows = list(getattr(read, name))
        rows[row] = (value, *rows[row][1:])
        return dataclasses.replace(outcome, result=dataclasses.replace(read, **{name: tuple(rows)}))

    return spoil


def _writes(outcome: Outcome) -> Outcome:
    """Write a block that is not shared into the dummy."""
    ran = outcome.result
    assert isinstance(ran, Ran)
    (run,) = ran.requests
    run = dataclasses.replace(run, writes=((48, run.count),))
    return dataclasses.replace(outcome, result=dataclasses.replace(ran, requests=(run,)))


def _slot(outcome: Outcome) -> Outcome:
    """Show the last block in a slot that there is not."""
    view = outcome.result
    assert isinstance(view, ContextView)
    *blocks, last = view.blocks
    spoiled = (*blocks, dataclasses.replace(last, slot=99))
    return dataclasses.replace(outcome, result=dataclasses.replace(view, blocks=spoiled))


def _callback(outcome: Outcome) -> Outcome:
    """Tell an observer of a block."""
    return dataclasses.replace(outcome, effects=(Effect("callback", (0,)),))


def _untold(outcome: Outcome) -> Outcome:
    """Tell no observer of anything."""
    assert outcome.effects
    return dataclasses.replace(outcome, effects=())


def _uncut(outcome: Outcome) -> Outcome:
    """Show a row with a block more than its request keeps."""
    view = outcome.result
    assert isinstance(view, RequestView)
    return dataclasses.replace(outcome, result=dataclasses.replace(view, blocks=(*view.blocks, 9)))


def _unwound(outcome: Outcome) -> Outcome:
    """Show the live state that a request has before its first token."""
    view = outcome.result
    assert isinstance(view, RequestView)
    return dataclasses.replace(outcome, result=dataclasses.replace(view, state=(0,) * len(view.state)))


def _dropped(outcome: Outcome) -> Outcome:
    """Let a step lose the state of a block."""
    ran = outcome.result
    assert isinstance(ran, Ran)
    return dataclasses.replace(outcome, result=dataclasses.replace(ran, dropped=(0,)))


_ROW = Span(1, 0, 1)
_NOBODYS = Span(0, 99, 100)
_WRITE_NOWHERE = WriteKV(9, (1,), ((1, 2),), ((3, 4, 5),))
_PROMPT = AddRequest((1, 2, 3, 4))

_CUT = (AddRequest((1, 2, 3)), RunStep((4,)), RunStep((5,)), RunStep((6,)), Truncate(1, 3, 7))
"""A request that has computed five tokens is cut in its first block, which has a hash."""

_UNDONE = _result(Unsupported("not now"))

SPOILS = (
    Spoil("X1", "token-slots", {"page_size": 1}, (Alloc(1), Free((_NOBODYS,))), _size("available_size", -1)),
    Spoil("X1", "rows", {}, (FreeRow(_NOBODYS),), _result(Done())),
    Spoil("X4", "rows", {}, (AllocRows(9),), _result(Slots((1, 2, 3)))),
    Spoil("X7", "rows", {}, (AllocRows(1), Clear()), _size("available_size", -1)),
    Spoil("P3", "rows", {}, (AllocRows(1), WriteRow(_ROW, 0, 1, (7,)), ReadRows()), _cell(1, 8)),
    Spoil("E5", "rows", {}, (WriteEntries((Span(0, 0, 1),), (0,), (7,)), ReadRows()), _cell(0, 8)),
    Spoil("X1", "kv-buffers", {}, (_WRITE_NOWHERE, ReadKV(0)), _cell(1, 1)),
    Spoil("X1", "gdn-states", {}, (FreeTrack(_NOBODYS),), _result(Done())),
    Spoil("X4", "gdn-states", {"track_slots": 0}, (AllocTrack(),), _result(Slots((4,)))),
    Spoil("X7", "gdn-states", {}, (WriteState(0, Span(0, 1, 2), 5, 6), Clear(), ReadStates(0)), _cell(1, 5)),
    Spoil("X1", "hashes", {}, (PickToken(Key((1, 2)), 2),), _result(Tokens((2,)))),
    Spoil("K2", "hashes", {}, (PickToken(Key((1, 2), ("a", "b")), 1),), _result(Tokens((2,), ("b", "a")))),
    Spoil("X4", "radix", {"pool": "token"}, (Alloc(99),), _result(Slots((1, 2)))),
    Spoil("A1", "radix", {"pool": "token"}, (Alloc(1),), _result(Slots((0,)))),
    Spoil("A2", "radix", {"pool": "token"}, (Alloc(1),), _size("available_size", 1)),
    Spoil("A3", "radix", {"pool": "token", "page_size": 4}, (Alloc(2),), _result(Slots((5, 4)))),
    Spoil("A7", "radix-window", {"pool": "swa"}, (Alloc(1),), _result(Slots((1,), (0,)))),
    Spoil("X1", "requests", {}, (AddRequest(()),), _result(Done())),
    Spoil("C9", "requests", {}, (_PROMPT, RunStep(), Reset()), _size("pool_avail", -1)),
    Spoil("X7", "requests", {}, (_PROMPT, Reset()), _callback),
    Spoil("C2", "requests", {}, (_PROMPT, RunStep(), Inspect()), _slot),
    Spoil("C6", "requests", {}, (_PROMPT, RunStep()), _dropped),
    Spoil("X8", "swa-slots", {}, (Alloc(1), ReadHalves((_ROW,))), _callback),
    Spoil("X8", "rows", {}, (ReadRows(),), _callback),
    Spoil("X8", "kv-buffers", {}, (ReadKV(0),), _callback),
    Spoil("X8", "blocks", {}, (Inspect(),), _callback),
    Spoil("X8", "requests", {}, (Inspect(),), _callback),
    Spoil("E5", "requests", {}, (_PROMPT, RunStep()), _writes),
    Spoil("C3", "requests", {}, _CUT, _untold),
    Spoil("E2", "requests", {}, _CUT, _uncut),
    Spoil("E1", "requests", {}, _CUT, _unwound),
    Spoil("C1", "requests", {}, (*_CUT[:4], Truncate(1, 4, 1)), _untold),
    Spoil("X9", "requests", {}, _CUT, _UNDONE),
    Spoil("X9", "token-slots", {}, (Alloc(1), Free((_ROW,))), _UNDONE),
    Spoil("X9", "rows", {}, (AllocRows(1), Clear(), Clear()), _UNDONE),
    Spoil("X9", "kv-buffers", {}, (ReadKV(0),), _UNDONE),
    Spoil("X9", "gdn-states", {}, (ReadStates(0),), _UNDONE),
    Spoil("X9", "hashes", {}, (PickToken(Key((1, 2)), 1),), _UNDONE),
    Spoil("X9", "blocks", {}, (Inspect(),), _UNDONE),
    Spoil("X9", "requests", {}, (_PROMPT,), _UNDONE),
    Spoil("X9", "index-dict", {}, (FindBlocks((1,)),), _UNDONE),
)
"""A law that no wrong implementation of a kind breaks, for each kind that it is about."""

# -- runs ----------------------------------------------------------------------------------------------------


@functools.cache
def count_run(cache: str) -> dict[str, Any]:
    """Report a run in which requests are retracted and aborted, or a serial one; its counters add up."""
    if cache == "serial":
        requests = make_requests("chat", 30, capacity=8192)
        return asdict(replay_serially(requests, SerialConfig(capacity=8192)))
    source = RandomSource(seed=3, requests=150, max_prompt=24, mean_gap_ms=5.0)
    config = EngineConfig(cache=cache, page_size=4, capacity=40, decode_headroom=0)
    return asdict(BlockEngine(config, source).run() if cache == "blocks" else Engine(config, source).run())


SPOILED_COUNTERS: dict[str, float] = {
    **dict.fromkeys(("requests", "skipped", "finished", "rejected", "aborted"), 1),
    **dict.fromkeys(("prompt_tokens", "ceiling_tokens"), 1),
    "hit_tokens": -1,
    **dict.fromkeys(("token_hit_rate", "ceiling_hit_rate"), -0.001),
    **dict.fromkeys(("computed_tokens", "recomputed_tokens", "uncomputed_tokens"), -1),
}
"""Counters of a run, and what is added to each where it is spoiled."""
