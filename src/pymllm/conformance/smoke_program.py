"""The simplest legal program for each kind of adapter, and which results each operation may have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pymllm.oracle.history import Config
from pymllm.oracle.operations import (
    Alloc,
    AllocRows,
    AllocTrack,
    BeginGroup,
    Clear,
    EndGroup,
    Evict,
    Fault,
    Free,
    FreeRow,
    FreeSWA,
    FreeTrack,
    Hash,
    HashBytes,
    HashInt64,
    HashPage,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Merge,
    Operation,
    PickToken,
    ReadHalves,
    ReadKV,
    ReadRows,
    ReadStates,
    Reset,
    SliceKey,
    Span,
    Unlock,
)
from pymllm.oracle.outcomes import (
    Buffers,
    ContextView,
    Done,
    Evicted,
    Hashes,
    Inserted,
    Inspected,
    Locked,
    Matched,
    Number,
    Ran,
    RequestView,
    Slots,
    States,
    Table,
    Tokens,
)
from pymllm.oracle.request_operations import AddRequest, Pause, Release, Resume, RunStep, ScheduleChunk

__all__ = ["LEGAL_RESULTS", "SampleStep", "make_sample"]

LEGAL_RESULTS: dict[type, tuple[type, ...]] = {
    AddRequest: (RequestView,),
    Alloc: (Slots,),
    AllocRows: (Slots,),
    AllocTrack: (Slots,),
    BeginGroup: (Done,),
    Clear: (Done,),
    EndGroup: (Done,),
    Evict: (Evicted,),
    Fault: (Done,),
    Free: (Done,),
    FreeRow: (Done,),
    FreeSWA: (Done,),
    FreeTrack: (Done,),
    Hash: (Hashes,),
    HashBytes: (Number,),
    HashInt64: (Number,),
    HashPage: (Hashes,),
    Insert: (Inserted,),
    Inspect: (Inspected, ContextView),
    Lock: (Locked,),
    Match: (Matched,),
    Merge: (Done,),
    Pause: (Done,),
    PickToken: (Tokens,),
    ReadHalves: (Slots,),
    ReadKV: (Buffers,),
    ReadRows: (Table,),
    ReadStates: (States,),
    Release: (Done,),
    Reset: (Done,),
    Resume: (Done,),
    RunStep: (Ran,),
    ScheduleChunk: (RequestView,),
    SliceKey: (Tokens,),
    Unlock: (Done,),
}
"""What a legal call may answer, where there is room for it."""


@dataclass(frozen=True, slots=True)
class SampleStep:
    """One step of a sample.

    Parameters
    ----------
    operation : Operation
        To carry out.
    needs : str or None
        The capability that it takes.
    is_claimed : bool
        Whether the adapter claims that.
    """

    operation: Operation
    needs: str | None
    is_claimed: bool


def make_sample(kind: str, config: Config, capabilities: Collection[str]) -> dict[int, SampleStep]:
    """Make the sample for one configuration of an adapter; steps by number, what is not claimed included."""
    steps = _SAMPLES[kind](config, capabilities)
    return {
        number: SampleStep(operation, needs, needs is None or needs in capabilities)
        for number, (needs, operation) in enumerate(steps, 1)
    }


_Steps = list[tuple[str | None, Operation]]


def _number(config: Config, key: str, default: int) -> int:
    value = config.get(key)
    return value if type(value) is int and value > 0 else default


def _slots(config: Config, capabilities: Collection[str]) -> _Steps:
    page = _number(config, "page_size", 1)
    return [
        (None, Alloc(page)),
        ("swa", ReadHalves((Span(1, 0, page),))),
        ("swa", FreeSWA((Span(1, 0, page),))),
        (None, Free((Span(1, 0, page),))),
        ("merges", Merge()),
        ("groups", BeginGroup()),
        ("groups", EndGroup()),
        (None, Clear()),
    ]


def _rows(config: Config, capabilities: Collection[str]) -> _Steps:
    return [(None, AllocRows(1)), (None, ReadRows()), (None, FreeRow(Span(1, 0, 1))), (None, Clear())]


def _buffers(config: Config, capabilities: Collection[str]) -> _Steps:
    return [(None, ReadKV(0))]


def _states(config: Config, capabilities: Collection[str]) -> _Steps:
    steps: _Steps = [(None, ReadStates(0))]
    if _number(config, "track_slots", 0):
        steps += [(None, AllocTrack()), (None, FreeTrack(Span(2, 0, 1)))]
    return steps


def _hashes(config: Config, capabilities: Collection[str]) -> _Steps:
    key = Key((1, 2))
    return [
        (None, SliceKey(key, 0, 1)),
        (None, PickToken(key, 1)),
        (None, HashPage(key)),
        (None, HashInt64("00" * 32)),
        (None, HashBytes("00")),
    ]


def _prefix(config: Config, capabilities: Collection[str]) -> _Steps:
    page = _number(config, "page_size", 1)
    key = Key(tuple(range(1, page + 1)))
    slots = (Span(2, 0, page),) if "pool" in capabilities else None
    return [
        (None, Match(key)),
        ("pool", Alloc(page)),
        (None, Insert(key, slots)),
        (None, Match(key)),
        ("hashes", Hash(4)),
        ("inspect", Inspect()),
        ("faults", Fault("free")),
        (None, Evict(0)),
        ("mamba", AllocTrack()),
        ("mamba", FreeTrack(Span(9, 0, 1))),
        # A hold comes last: what it does to later calls is the implementation's affair.
        (None, Lock(4)),
        (None, Unlock(11)),
        (None, Reset()),
    ]


def _requests(config: Config, capabilities: Collection[str]) -> _Steps:
    prompt = tuple(range(1, _number(config, "block_size", 1) + 2))
    return [
        (None, AddRequest(prompt, 1)),
        (None, RunStep()),
        (None, ScheduleChunk(1)),
        (None, RunStep((1,))),
        ("inspect", Inspect()),
        ("faults", Fault("forward", 99)),
        (None, Release(1)),
        (None, Reset()),
    ]


_SAMPLES = {
    "slots": _slots,
    "rows": _rows,
    "buffers": _buffers,
    "states": _states,
    "hashes": _hashes,
    "prefix": _prefix,
    "requests": _requests,
}
