"""The simplest legal program for each kind of adapter, and which results each operation may have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pymllm.history.files import Config
from pymllm.history.operations import (
    AddRequest,
    Alloc,
    AllocBlocks,
    AllocRows,
    AllocSlots,
    AllocTrack,
    BeginGroup,
    Clear,
    DropStates,
    EndGroup,
    Evict,
    EvictSlots,
    Fault,
    FindSlots,
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
    NameStates,
    Operation,
    Pause,
    PickToken,
    ReadHalves,
    ReadKV,
    ReadLive,
    ReadRows,
    ReadStates,
    RegisterBlocks,
    Release,
    ReleaseBlocks,
    Reset,
    RestoreLive,
    Resume,
    RetainBlocks,
    RunStep,
    SaveLive,
    ScheduleChunk,
    SetClock,
    SliceKey,
    Span,
    StampBlocks,
    StoreState,
    Unlock,
    WriteLive,
)
from pymllm.history.outcomes import (
    BlockBooks,
    Buffers,
    ContextView,
    Done,
    Evicted,
    FoundSlots,
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

__all__ = ["LEGAL_RESULTS", "SampleStep", "make_sample"]

LEGAL_RESULTS: dict[type, tuple[type, ...]] = {
    AddRequest: (RequestView,),
    Alloc: (Slots,),
    AllocBlocks: (Slots,),
    AllocRows: (Slots,),
    AllocSlots: (Slots,),
    AllocTrack: (Slots,),
    BeginGroup: (Done,),
    Clear: (Done,),
    DropStates: (Done,),
    EndGroup: (Done,),
    Evict: (Evicted,),
    EvictSlots: (Slots,),
    Fault: (Done,),
    FindSlots: (FoundSlots,),
    Free: (Done,),
    FreeRow: (Done,),
    FreeSWA: (Done,),
    FreeTrack: (Done,),
    Hash: (Hashes,),
    HashBytes: (Number,),
    HashInt64: (Number,),
    HashPage: (Hashes,),
    Insert: (Inserted,),
    Inspect: (Inspected, BlockBooks, ContextView),
    Lock: (Locked,),
    Match: (Matched,),
    Merge: (Done,),
    NameStates: (Done,),
    Pause: (Done,),
    PickToken: (Tokens,),
    ReadHalves: (Slots,),
    ReadKV: (Buffers,),
    ReadLive: (States,),
    ReadRows: (Table,),
    ReadStates: (States,),
    RegisterBlocks: (Done,),
    Release: (Done,),
    ReleaseBlocks: (Done,),
    Reset: (Done,),
    RestoreLive: (Number,),
    Resume: (Done,),
    RetainBlocks: (Done,),
    RunStep: (Ran,),
    SaveLive: (Done,),
    ScheduleChunk: (RequestView,),
    SetClock: (Done,),
    SliceKey: (Tokens,),
    StampBlocks: (Done,),
    StoreState: (Done,),
    Unlock: (Done,),
    WriteLive: (Done,),
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
    needs_state = "mamba" in capabilities and "bare_inserts" not in capabilities
    steps: _Steps = [
        (None, Match(key)),
        ("pool", Alloc(page)),
        ("mamba", AllocTrack()),
        (None, Insert(key, slots, state=Span(3, 0, 1) if needs_state else None)),
        (None, Match(key)),
        ("hashes", Hash(5)),
        ("inspect", Inspect()),
        ("faults", Fault("free")),
        (None, Evict(0)),
    ]
    steps += [] if needs_state else [("mamba", FreeTrack(Span(3, 0, 1)))]
    # A hold comes last: what it does to later calls is the implementation's affair.
    steps += [(None, Lock(5)), (None, Unlock(len(steps) + 1)), (None, Reset())]
    again = len(steps) + 1
    return steps + ([("mamba", AllocTrack()), ("mamba", FreeTrack(Span(again, 0, 1)))] if needs_state else [])


def _blocks(config: Config, capabilities: Collection[str]) -> _Steps:
    both, first = (Span(1, 0, 2),), Span(1, 0, 1)
    return [
        (None, AllocBlocks(2)),
        (None, RegisterBlocks(both, (11, 22))),
        (None, SetClock(1)),
        (None, StampBlocks(both)),
        (None, RetainBlocks(both)),
        ("mamba", AllocSlots((first,))),
        ("mamba", FindSlots(both)),
        ("mamba", StoreState(first, 0, 1, 2)),
        ("mamba", WriteLive(0, 0, 3, 4)),
        ("mamba", SaveLive((Span(6, 0, 1),), (0,))),
        ("mamba", RestoreLive(0, first)),
        ("mamba", ReadStates(0)),
        ("mamba", ReadLive(0)),
        ("mamba", NameStates((), ())),
        ("mamba", DropStates((first,))),
        ("mamba", EvictSlots(0)),
        ("inspect", Inspect()),
        ("faults", Fault("callback")),
        (None, RetainBlocks(both)),
        (None, ReleaseBlocks(both)),
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
    "blocks": _blocks,
    "requests": _requests,
}
