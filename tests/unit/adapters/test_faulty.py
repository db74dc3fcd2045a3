"""Wrong implementations: what they have in common, and the smallest program that shows each fault."""

from __future__ import annotations

import inspect

import pytest

from pymllm.adapters.faulty import Faulty, configured
from pymllm.adapters.registry import FAULTY, OWN, AdapterEntry, find_adapter, load_adapter, make_adapter
from pymllm.conformance.program import run_program
from pymllm.errors import InvariantViolation
from pymllm.history.operations import (
    AddRequest,
    Alloc,
    AllocBlocks,
    AllocRows,
    AllocSlots,
    AllocTrack,
    BeginGroup,
    Clear,
    CopyStates,
    DropStates,
    Evict,
    EvictSlots,
    Fault,
    Free,
    FreeRow,
    FreeSWA,
    Hash,
    HashInt64,
    Insert,
    Inspect,
    Key,
    Lock,
    Malformed,
    Match,
    NameStates,
    Operation,
    Pause,
    ReadKV,
    ReadLive,
    ReadRows,
    ReadStates,
    RegisterBlocks,
    Release,
    ReleaseBlocks,
    Reset,
    RestoreLive,
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
    WriteKV,
    WriteLive,
    WriteRow,
    WriteState,
)
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.oracle.laws import find_law

each_entry = pytest.mark.parametrize("entry", FAULTY, ids=lambda entry: entry.name)

Program = tuple[Operation, ...]


def class_of(name: str) -> type[Faulty]:
    found = load_adapter(find_adapter(name))
    assert issubclass(found, Faulty)
    return found


def config_of(name: str) -> dict[str, int | str | bool | None]:
    """Its first configuration."""
    return dict(class_of(name).CONFIGURATIONS[0])


# -- what they have in common --------------------------------------------------------------------------------


@each_entry
def test_it_breaks_a_law_that_its_sound_sibling_claims(entry: AdapterEntry) -> None:
    """An accusation of a law that nobody promised to keep would prove nothing."""
    faulty, law = load_adapter(entry), find_law(class_of(entry.name).BREAKS)
    assert faulty.KIND in law.kinds
    for config in faulty.CONFIGURATIONS:
        assert law.is_claimed_by(make_adapter(class_of(entry.name).SOUND, dict(config)).capabilities)


@each_entry
def test_it_is_its_sound_sibling_but_for_the_fault(entry: AdapterEntry) -> None:
    """It claims the same in configurations of the same class, and is not looked into."""
    sibling = find_adapter(class_of(entry.name).SOUND)
    assert sibling in OWN
    assert load_adapter(entry).CONFIGURATIONS
    for config in load_adapter(entry).CONFIGURATIONS:
        assert config in load_adapter(sibling).CONFIGURATIONS
        wrong, right = make_adapter(entry.name, dict(config)), make_adapter(sibling.name, dict(config))
        assert (wrong.kind, wrong.capabilities) == (right.kind, right.capabilities)
        assert wrong.audit() == ()


@each_entry
def test_the_registry_says_what_is_wrong(entry: AdapterEntry) -> None:
    """One line, the same as in the class."""
    assert inspect.getdoc(load_adapter(entry)) == f"{entry.summary[0].upper()}{entry.summary[1:]}."


def test_configured_keeps_what_agrees() -> None:
    """Several settings must all agree; a setting that is missing does not."""
    ones, fours = {"page_size": 1, "pool": "none"}, {"page_size": 4, "pool": "none"}
    configurations = (ones, fours, {"page_size": 4})
    assert configured(configurations, page_size=4, pool="none") == (fours,)
    assert configured(configurations) == configurations


@pytest.mark.parametrize("window", [None, 4])
def test_parts_are_put_into_an_otherwise_sound_cache(window: int | None) -> None:
    """Every part is of the kind that was asked for, and they know each other."""
    config = {"page_size": 1, "window": window, "pool": "none", "slots": 24, "swa_slots": 18}
    adapter = make_adapter("faulty-lost-ancestors", config)
    cache = adapter.cache  # type: ignore[attr-defined]
    assert type(cache) is RadixCache
    assert type(cache._tree) is adapter.TREE  # type: ignore[attr-defined]
    assert type(cache._tree).__name__ == "LostAncestors"
    assert (cache._window is None) == (window is None)
    assert window is None or cache._window.tree is cache._tree


# -- the smallest program of each ----------------------------------------------------------------------------

ONE, TWO = Span(1, 0, 1), Span(1, 1, 2)
NOBODYS = Span(0, 99, 100)
KEY = tuple(range(1, 7))  # windows are 4 tokens


def put(
    tokens: tuple[int, ...],
    step: int = 0,
    start: int = 100,
    *,
    short: int = 0,
    evicted: int = 0,
    namespace: str | None = None,
    state: int | None = None,
) -> Insert:
    """Caches tokens with slots of a step, or mere numbers, and perhaps the state that a step allocated."""
    slots = (Span(step, start, start + len(tokens) - short),)
    track = None if state is None else Span(state, 0, 1)
    return Insert(Key(tokens, namespace), slots, 0, evicted, state=track)


def put_state(tokens: tuple[int, ...], start: int = 0, state: int | None = None) -> Insert:
    return put(tokens, 1, start, state=state)


def match(*tokens: int, namespace: str | None = None) -> Match:
    return Match(Key(tokens, namespace))


def write(slot: int) -> WriteKV:
    return WriteKV(0, (slot,), ((1, 2),), ((3, 4, 5),))


def ask(first: int, blocks: int, limit: int | None = None) -> AddRequest:
    """A prompt of whole blocks of four tokens that count up."""
    return AddRequest(tuple(range(first, first + 4 * blocks)), limit)


FIRST = Free((ONE,))
CHAIN: Program = (AllocBlocks(2), RegisterBlocks((Span(1, 0, 2),), (11, 22)))
CACHED: Program = (*CHAIN, ReleaseBlocks((Span(1, 0, 2),)))
NAMED: Program = (*CHAIN, AllocSlots((ONE,)), NameStates((ONE,), (11,)))
WITH_STATE: Program = (AllocBlocks(2), AllocSlots((ONE,)))
THREE: Program = (
    AllocBlocks(4),
    RegisterBlocks((Span(1, 0, 4),), (11, 22, 33, 44)),
    AllocSlots((Span(1, 0, 3),)),
    SetClock(1),
    StampBlocks((ONE,)),
    ReleaseBlocks((Span(1, 0, 4),)),
)
WRITTEN: Program = (
    Alloc(2),
    AllocTrack(),
    AllocTrack(),
    *(WriteState(0, Span(at, 0, 1), at, 7) for at in (2, 3)),
)
COLLIDING: Program = tuple(
    operation
    for number in range(300)
    for operation in (AddRequest((number,) * 4), RunStep(), Release(3 * number + 1))
)

PROGRAMS: dict[str, Program] = {
    # slots
    "slot-zero": (Alloc(1),),
    "backward-slots": (Alloc(2),),
    "eager-reuse": (Alloc(1), FIRST, Alloc(1)),
    "merging-failure": (Alloc(1), FIRST, Alloc(13), Alloc(1)),
    "double-free": (Alloc(1), FIRST, FIRST),
    "half-heard-frees": (Alloc(2), Free((TWO,))),
    "nested-groups": (BeginGroup(), BeginGroup()),
    "unsorted-clear": (Alloc(1), Clear(), Alloc(1)),
    "forgotten-ring": (Alloc(3), Free((Span(1, 2, 3),)), Clear(), Alloc(3)),
    "forgotten-halves": (Alloc(1), FIRST),
    "shared-halves": (Alloc(2),),
    # rows, buffers, states, hashes
    "row-zero": (AllocRows(1),),
    "dirty-rows": (AllocRows(1), WriteRow(ONE, 0, 1, (7,)), FreeRow(ONE), ReadRows()),
    "writes-everywhere": (write(1), ReadKV(1)),
    "silent-casts": (Malformed("write_kv", "keys of another dtype"),),
    "lost-padding": (write(0), ReadKV(0)),
    "working-snapshots": (AllocTrack(),),
    "one-layer-copies": (
        WriteState(1, Span(0, 1, 2), 5, 6),
        CopyStates((Span(0, 1, 2),), (Span(0, 2, 3),)),
        ReadStates(1),
    ),
    "swapped-heads": (ReadStates(0),),
    "lost-namespace": (SliceKey(Key((1, 2), "a"), 0, 1),),
    "unsigned-digests": (HashInt64("f" * 64),),
    # holds, hashes, evictions
    "locked-victims": (Alloc(1), put((7,), 1, 0), Lock(2), Evict(1)),
    "lost-ancestors": (put((7, 8)), Lock(1), match(7), Unlock(2)),
    "namespace-fallback": (put((7,)), match(7, namespace="a")),
    "orphan-hashes": (put((7, 8)), match(7), Hash(1)),
    "bare-namespaces": (put((7,), namespace="a"), Hash(1)),
    "greedy-eviction": (Alloc(2), put((7,), 1, 0), put((9,), 1, 1), Evict(1)),
    "one-by-one": (Alloc(2), put((7,), 1, 0), put((9,), 1, 1), Evict(2)),
    "repeated-pages": (Alloc(4), put((7, 8, 9, 10), 1, 0), Evict(1)),
    "open-callbacks": (put((7,)), Fault("reenter"), Evict(1)),
    "leaves-only": (put((7,)), put((7, 8), start=200)),
    "held-slots-lost": (Alloc(1), put((7,), 1, 0), Lock(2), Reset()),
    "global-ids": (put((7,)), Inspect()),
    # matches, inserts
    "short-matches": (put((7,)), match(7)),
    "bottom-up-slots": (Alloc(2), put((7, 8), 1, 0), match(7), match(7, 8)),
    "silent-hits": (put((7, 8)), match(7, 8), match(7), Inspect()),
    "split-views": (put((7, 8)), match(7), Inspect()),
    "shared-pages": (Alloc(2), put((7, 8), 1, 0), match(7), Inspect()),
    "freed-duplicates": (Alloc(2), put((7,), 1, 0), put((7,), 1, 1)),
    "overstated-adoption": (put((7,)), put((7, 8), start=200)),
    "zero-prefix": (put((7,)), put((7,), start=200)),
    "short-values": (put((7, 8), short=1),),
    "early-refusal": (put((7, 8), short=1),),
    "empty-nodes": (put((7,)), put((7,), start=200), Inspect()),
    # windows
    "dead-windows": (put(KEY[:5], evicted=1), match(1)),
    "stale-matches": (put(KEY[:2]), match(1), Inspect()),
    "short-holds": (put(KEY[:4]), Lock(1)),
    "low-boundaries": (put(KEY), Lock(1), match(1, 2, 3), Inspect()),
    "twice-protected": (put((1,)), Lock(1), Lock(1)),
    "dead-leaves": (Alloc(5), FreeSWA((ONE,)), put(KEY[:5], 1, 0, evicted=1), Evict(1)),
    "living-tombstones": (put((1,)), put((1, 2), start=200), Evict(0, 1), Inspect()),
    "one-window-more": (Alloc(2), put((1,), 1, 0), put((9,), 1, 1), Evict(0, 1)),
    "no-protection": (Insert(Key((1,)), (Span(0, 100, 101),), prev_prefix_len=1),),
    # states beside the KV
    "inherited-states": (
        *(Alloc(2), AllocTrack(), AllocTrack()),
        *(put_state((1,), state=2), put_state((1, 2), state=3)),
    ),
    "stateless-matches": (Alloc(1), put_state((1,)), match(1)),
    "copied-states": (Alloc(2), AllocTrack(), put_state((1, 2), state=2), put_state((1,)), Inspect()),
    "stolen-locks": (
        *(Alloc(2), AllocTrack(), put_state((1,), state=2), put_state((1, 2))),
        *(Lock(3), Lock(4), Unlock(6)),
    ),
    "states-as-tokens": (
        *(Alloc(3), AllocTrack(), AllocTrack()),
        *(put_state((1, 1), state=2), put_state((2,), 2, state=3), Evict(0, 2)),
    ),
    "tokens-as-states": (Alloc(2), AllocTrack(), put_state((1, 2), state=2)),
    "freed-states": (
        *(Alloc(1), AllocTrack(), AllocTrack()),
        *(put_state((1,), state=2), put_state((1,), state=3)),
    ),
    "untouched-lists": (Alloc(2), put_state((1,)), put_state((2,), 1), put_state((1,)), Inspect()),
    "overwritten-states": (*WRITTEN, put_state((1,), state=2), put_state((1, 2), state=3), ReadStates(0)),
    "wiped-states": (*WRITTEN, put_state((1,), state=2), Lock(6), Unlock(7), ReadStates(0)),
    # blocks
    "oldest-blocks": (*CACHED, AllocBlocks(7)),
    "releases-once": (AllocBlocks(1), RetainBlocks((ONE,)), ReleaseBlocks((ONE, ONE))),
    "last-registrations": (*CHAIN, AllocBlocks(1), RegisterBlocks((Span(3, 0, 1),), (11,)), Inspect()),
    "foreign-parents": (*CHAIN, AllocBlocks(2), RegisterBlocks((Span(3, 0, 2),), (11, 33)), Inspect()),
    "stale-index": (*CHAIN, Reset(), Inspect()),
    "partial-releases": (AllocBlocks(1), ReleaseBlocks((ONE, NOBODYS))),
    "failing-evictions": (*CACHED, AllocBlocks(9)),
    "early-observer": (AllocBlocks(1), ReleaseBlocks((ONE,))),
    "open-observer": (AllocBlocks(1), Fault("reenter"), ReleaseBlocks((ONE,))),
    "unsettled-errors": (AllocBlocks(1), Fault("callback"), ReleaseBlocks((ONE,))),
    "loud-reset": (AllocBlocks(1), Reset()),
    "unheard-blocks": (AllocBlocks(1), ReleaseBlocks((ONE,))),
    "stale-slots": (*WITH_STATE, DropStates((ONE,)), Inspect()),
    "kept-names": (*NAMED, DropStates((ONE,)), Inspect()),
    "foreign-names": (*NAMED, DropStates((TWO,), "deregistered", (11,)), Inspect()),
    "evicted-batch": (*THREE, AllocSlots((TWO, Span(1, 3, 4)))),
    "leaking-batches": (AllocBlocks(4), AllocSlots((Span(1, 0, 4),))),
    "youngest-slots": (*THREE, EvictSlots(1)),
    "one-layer-saves": (*WITH_STATE, WriteLive(0, 1, 5, 6), SaveLive((Span(2, 0, 1),), (0,)), ReadStates(1)),
    "requests-as-rows": (*WITH_STATE, StoreState(ONE, 0, 5, 6), RestoreLive(0, ONE), ReadLive(0)),
    "wiped-live": (AllocBlocks(1), WriteLive(0, 0, 5, 6), RestoreLive(0, ONE), ReadLive(0)),
    "stale-states": (*WITH_STATE, StoreState(ONE, 0, 5, 6), Reset(), ReadStates(0)),
    # requests
    "batch-snapshots": (ask(1, 1), ask(50, 1), RunStep(), Inspect()),
    "prompt-offsets": (ask(1, 1, 2), RunStep(), ScheduleChunk(1), RunStep()),
    "trunks-first": (ask(1, 2), ask(50, 2), RunStep()),
    "unfilled-slots": (ask(1, 1), Fault("store_states"), RunStep()),
    "stale-restores": (ask(1, 1), RunStep(), ask(1, 2)),
    "bare-hashes": COLLIDING,  # of 300 prompts of one block, two have the same hash of eight bits
    "full-hits": (ask(1, 1), RunStep(), ask(1, 1), RunStep()),
    "unheld-hits": (ask(1, 2), RunStep(), Release(1), ask(100, 7), ask(1, 7)),
    "leaky-admissions": (ask(1, 1), RunStep(), ask(100, 7), ask(1, 7), Inspect()),
    "shared-releases": (ask(1, 2), RunStep(), ask(1, 2), Release(1)),
    "long-rows": (ask(1, 2), Release(1), ask(1, 1)),
    "unbounded-pauses": (ask(1, 7), Pause(1)),
    "durable-hashes": (ask(1, 2), RunStep(), Release(1), Reset()),
}


@each_entry
def test_a_program_breaks_the_law_that_it_names(entry: AdapterEntry) -> None:
    """All of A to X: the last step breaks the law, and the sound sibling keeps it."""
    faulty, program = class_of(entry.name), PROGRAMS[entry.name.removeprefix("faulty-")]
    config = config_of(entry.name)
    with pytest.raises(InvariantViolation) as caught:
        run_program(entry.name, config, program)
    assert caught.value.law == faulty.BREAKS
    if faulty.BREAKS != "X3" and program is not COLLIDING:  # X3 shows in any program, once it runs again
        run_program(entry.name, config, program[:-1])
    assert len(run_program(faulty.SOUND, config, program)) == len(program)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("faulty-early-observer", (AllocBlocks(1), Fault("callback"), ReleaseBlocks((ONE,)))),
        ("faulty-requests-as-rows", (*WITH_STATE, RestoreLive(3, ONE))),
        ("faulty-requests-as-rows", (AllocBlocks(1), RestoreLive(0, ONE))),
    ],
)
def test_the_rest_of_it_is_as_it_should_be(name: str, program: Program) -> None:
    """One fault each: errors pass through, and misuse is refused."""
    last = []
    for adapter in (make_adapter(each, config_of(name)) for each in (name, class_of(name).SOUND)):
        result = [adapter.apply(step, operation) for step, operation in enumerate(program, 1)][-1].result
        last.append(getattr(result, "error", result))
    assert last[0] == last[1]
