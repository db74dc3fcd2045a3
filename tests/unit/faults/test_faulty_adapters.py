"""Wrong implementations: what they have in common, and the smallest program that shows each fault."""

from __future__ import annotations

import inspect
import pickle

import pytest

from pymllm.adapters.registry import OWN, AdapterEntry, find_adapter, load_adapter, make_adapter
from pymllm.conformance.program import run_program
from pymllm.errors import InvariantViolation
from pymllm.faults import adapters
from pymllm.faults.adapters import FAULTY, Faulty
from pymllm.history import operations as ops
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator
from pymllm.oracle.laws import find_law

each_entry = pytest.mark.parametrize("entry", FAULTY, ids=lambda entry: entry.name)

Program = tuple[ops.Operation, ...]


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


def test_a_fault_is_in_place_only_while_its_adapter_works() -> None:
    """X3: a sound adapter beside it, and whoever uses the class itself, meets the sound code."""
    config = config_of("faulty-slot-zero")
    wrong, right = make_adapter("faulty-slot-zero", config), make_adapter("token-slots", config)
    operation = ops.Alloc(1)
    slots = [it.apply(1, operation).result.slots for it in (wrong, right, wrong)]  # type: ignore[union-attr]
    assert [min(each) for each in slots] == [0, 1, 1]
    assert TokenToKVPoolAllocator(4, "cpu").alloc(1).tolist() == [1]  # type: ignore[union-attr]


def test_a_class_has_the_name_of_its_fault() -> None:
    """It is made once, and another process finds it by that name."""
    assert pickle.loads(pickle.dumps(class_of("faulty-slot-zero"))) is adapters.SlotZero
    with pytest.raises(AttributeError, match="no attribute 'Sound'"):
        _ = adapters.Sound


# -- the smallest program of each ----------------------------------------------------------------------------

ONE, TWO = ops.Span(1, 0, 1), ops.Span(1, 1, 2)
NOBODYS = ops.Span(0, 99, 100)
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
) -> ops.Insert:
    """Caches tokens with slots of a step, or mere numbers, and perhaps the state that a step allocated."""
    slots = (ops.Span(step, start, start + len(tokens) - short),)
    track = None if state is None else ops.Span(state, 0, 1)
    return ops.Insert(ops.Key(tokens, namespace), slots, 0, evicted, state=track)


def put_state(tokens: tuple[int, ...], start: int = 0, state: int | None = None) -> ops.Insert:
    return put(tokens, 1, start, state=state)


def match(*tokens: int, namespace: str | None = None) -> ops.Match:
    return ops.Match(ops.Key(tokens, namespace))


def write(slot: int) -> ops.WriteKV:
    return ops.WriteKV(0, (slot,), ((1, 2),), ((3, 4, 5),))


def ask(first: int, blocks: int, limit: int | None = None) -> ops.AddRequest:
    """A prompt of whole blocks of four tokens that count up."""
    return ops.AddRequest(tuple(range(first, first + 4 * blocks)), limit)


FIRST = ops.Free((ONE,))
CHAIN: Program = (ops.AllocBlocks(2), ops.RegisterBlocks((ops.Span(1, 0, 2),), (11, 22)))
CACHED: Program = (*CHAIN, ops.ReleaseBlocks((ops.Span(1, 0, 2),)))
NAMED: Program = (*CHAIN, ops.AllocSlots((ONE,)), ops.NameStates((ONE,), (11,)))
WITH_STATE: Program = (ops.AllocBlocks(2), ops.AllocSlots((ONE,)))
THREE: Program = (
    ops.AllocBlocks(4),
    ops.RegisterBlocks((ops.Span(1, 0, 4),), (11, 22, 33, 44)),
    ops.AllocSlots((ops.Span(1, 0, 3),)),
    ops.SetClock(1),
    ops.StampBlocks((ONE,)),
    ops.ReleaseBlocks((ops.Span(1, 0, 4),)),
)
WRITTEN: Program = (
    ops.Alloc(2),
    ops.AllocTrack(),
    ops.AllocTrack(),
    *(ops.WriteState(0, ops.Span(at, 0, 1), at, 7) for at in (2, 3)),
)
COLLIDING: Program = tuple(
    operation
    for number in range(300)
    for operation in (ops.AddRequest((number,) * 4), ops.RunStep(), ops.Release(3 * number + 1))
)

PROGRAMS: dict[str, Program] = {
    # slots
    "slot-zero": (ops.Alloc(1),),
    "backward-slots": (ops.Alloc(2),),
    "eager-reuse": (ops.Alloc(1), FIRST, ops.Alloc(1)),
    "merging-failure": (ops.Alloc(1), FIRST, ops.Alloc(13), ops.Alloc(1)),
    "double-free": (ops.Alloc(1), FIRST, FIRST),
    "half-heard-frees": (ops.Alloc(2), ops.Free((TWO,))),
    "nested-groups": (ops.BeginGroup(), ops.BeginGroup()),
    "unsorted-clear": (ops.Alloc(1), ops.Clear(), ops.Alloc(1)),
    "forgotten-ring": (ops.Alloc(3), ops.Free((ops.Span(1, 2, 3),)), ops.Clear(), ops.Alloc(3)),
    "forgotten-halves": (ops.Alloc(1), FIRST),
    "shared-halves": (ops.Alloc(2),),
    # rows, buffers, states, hashes
    "row-zero": (ops.AllocRows(1),),
    "dirty-rows": (ops.AllocRows(1), ops.WriteRow(ONE, 0, 1, (7,)), ops.FreeRow(ONE), ops.ReadRows()),
    "writes-everywhere": (write(1), ops.ReadKV(1)),
    "silent-casts": (ops.Malformed("write_kv", "keys of another dtype"),),
    "lost-padding": (write(0), ops.ReadKV(0)),
    "working-snapshots": (ops.AllocTrack(),),
    "one-layer-copies": (
        ops.WriteState(1, ops.Span(0, 1, 2), 5, 6),
        ops.CopyStates((ops.Span(0, 1, 2),), (ops.Span(0, 2, 3),)),
        ops.ReadStates(1),
    ),
    "swapped-heads": (ops.ReadStates(0),),
    "lost-namespace": (ops.SliceKey(ops.Key((1, 2), "a"), 0, 1),),
    "unsigned-digests": (ops.HashInt64("f" * 64),),
    # holds, hashes, evictions
    "locked-victims": (ops.Alloc(1), put((7,), 1, 0), ops.Lock(2), ops.Evict(1)),
    "lost-ancestors": (put((7, 8)), ops.Lock(1), match(7), ops.Unlock(2)),
    "namespace-fallback": (put((7,)), match(7, namespace="a")),
    "orphan-hashes": (put((7, 8)), match(7), ops.Hash(1)),
    "bare-namespaces": (put((7,), namespace="a"), ops.Hash(1)),
    "greedy-eviction": (ops.Alloc(2), put((7,), 1, 0), put((9,), 1, 1), ops.Evict(1)),
    "one-by-one": (ops.Alloc(2), put((7,), 1, 0), put((9,), 1, 1), ops.Evict(2)),
    "repeated-pages": (ops.Alloc(4), put((7, 8, 9, 10), 1, 0), ops.Evict(1)),
    "open-callbacks": (put((7,)), ops.Fault("reenter"), ops.Evict(1)),
    "leaves-only": (put((7,)), put((7, 8), start=200)),
    "held-slots-lost": (ops.Alloc(1), put((7,), 1, 0), ops.Lock(2), ops.Reset()),
    "global-ids": (put((7,)), ops.Inspect()),
    # matches, inserts
    "short-matches": (put((7,)), match(7)),
    "bottom-up-slots": (ops.Alloc(2), put((7, 8), 1, 0), match(7), match(7, 8)),
    "silent-hits": (put((7, 8)), match(7, 8), match(7), ops.Inspect()),
    "split-views": (put((7, 8)), match(7), ops.Inspect()),
    "shared-pages": (ops.Alloc(2), put((7, 8), 1, 0), match(7), ops.Inspect()),
    "freed-duplicates": (ops.Alloc(2), put((7,), 1, 0), put((7,), 1, 1)),
    "overstated-adoption": (put((7,)), put((7, 8), start=200)),
    "zero-prefix": (put((7,)), put((7,), start=200)),
    "short-values": (put((7, 8), short=1),),
    "early-refusal": (put((7, 8), short=1),),
    "empty-nodes": (put((7,)), put((7,), start=200), ops.Inspect()),
    # windows
    "dead-windows": (put(KEY[:5], evicted=1), match(1)),
    "stale-matches": (put(KEY[:2]), match(1), ops.Inspect()),
    "short-holds": (put(KEY[:4]), ops.Lock(1)),
    "low-boundaries": (put(KEY), ops.Lock(1), match(1, 2, 3), ops.Inspect()),
    "twice-protected": (put((1,)), ops.Lock(1), ops.Lock(1)),
    "dead-leaves": (ops.Alloc(5), ops.FreeSWA((ONE,)), put(KEY[:5], 1, 0, evicted=1), ops.Evict(1)),
    "living-tombstones": (put((1,)), put((1, 2), start=200), ops.Evict(0, 1), ops.Inspect()),
    "one-window-more": (ops.Alloc(2), put((1,), 1, 0), put((9,), 1, 1), ops.Evict(0, 1)),
    "no-protection": (ops.Insert(ops.Key((1,)), (ops.Span(0, 100, 101),), prev_prefix_len=1),),
    # states beside the KV
    "inherited-states": (
        *(ops.Alloc(2), ops.AllocTrack(), ops.AllocTrack()),
        *(put_state((1,), state=2), put_state((1, 2), state=3)),
    ),
    "stateless-matches": (ops.Alloc(1), put_state((1,)), match(1)),
    "copied-states": (
        ops.Alloc(2),
        ops.AllocTrack(),
        put_state((1, 2), state=2),
        put_state((1,)),
        ops.Inspect(),
    ),
    "stolen-locks": (
        *(ops.Alloc(2), ops.AllocTrack(), put_state((1,), state=2), put_state((1, 2))),
        *(ops.Lock(3), ops.Lock(4), ops.Unlock(6)),
    ),
    "states-as-tokens": (
        *(ops.Alloc(3), ops.AllocTrack(), ops.AllocTrack()),
        *(put_state((1, 1), state=2), put_state((2,), 2, state=3), ops.Evict(0, 2)),
    ),
    "tokens-as-states": (ops.Alloc(2), ops.AllocTrack(), put_state((1, 2), state=2)),
    "freed-states": (
        *(ops.Alloc(1), ops.AllocTrack(), ops.AllocTrack()),
        *(put_state((1,), state=2), put_state((1,), state=3)),
    ),
    "untouched-lists": (ops.Alloc(2), put_state((1,)), put_state((2,), 1), put_state((1,)), ops.Inspect()),
    "overwritten-states": (*WRITTEN, put_state((1,), state=2), put_state((1, 2), state=3), ops.ReadStates(0)),
    "wiped-states": (*WRITTEN, put_state((1,), state=2), ops.Lock(6), ops.Unlock(7), ops.ReadStates(0)),
    # blocks
    "oldest-blocks": (*CACHED, ops.AllocBlocks(7)),
    "releases-once": (ops.AllocBlocks(1), ops.RetainBlocks((ONE,)), ops.ReleaseBlocks((ONE, ONE))),
    "last-registrations": (
        *CHAIN,
        ops.AllocBlocks(1),
        ops.RegisterBlocks((ops.Span(3, 0, 1),), (11,)),
        ops.Inspect(),
    ),
    "foreign-parents": (
        *CHAIN,
        ops.AllocBlocks(2),
        ops.RegisterBlocks((ops.Span(3, 0, 2),), (11, 33)),
        ops.Inspect(),
    ),
    "stale-index": (*CHAIN, ops.Reset(), ops.Inspect()),
    "partial-releases": (ops.AllocBlocks(1), ops.ReleaseBlocks((ONE, NOBODYS))),
    "failing-evictions": (*CACHED, ops.AllocBlocks(9)),
    "early-observer": (ops.AllocBlocks(1), ops.ReleaseBlocks((ONE,))),
    "open-observer": (ops.AllocBlocks(1), ops.Fault("reenter"), ops.ReleaseBlocks((ONE,))),
    "unsettled-errors": (ops.AllocBlocks(1), ops.Fault("callback"), ops.ReleaseBlocks((ONE,))),
    "loud-reset": (ops.AllocBlocks(1), ops.Reset()),
    "unheard-blocks": (ops.AllocBlocks(1), ops.ReleaseBlocks((ONE,))),
    "stale-slots": (*WITH_STATE, ops.DropStates((ONE,)), ops.Inspect()),
    "kept-names": (*NAMED, ops.DropStates((ONE,)), ops.Inspect()),
    "foreign-names": (*NAMED, ops.DropStates((TWO,), "deregistered", (11,)), ops.Inspect()),
    "evicted-batch": (*THREE, ops.AllocSlots((TWO, ops.Span(1, 3, 4)))),
    "leaking-batches": (ops.AllocBlocks(4), ops.AllocSlots((ops.Span(1, 0, 4),))),
    "youngest-slots": (*THREE, ops.EvictSlots(1)),
    "one-layer-saves": (
        *WITH_STATE,
        ops.WriteLive(0, 1, 5, 6),
        ops.SaveLive((ops.Span(2, 0, 1),), (0,)),
        ops.ReadStates(1),
    ),
    "requests-as-rows": (*WITH_STATE, ops.StoreState(ONE, 0, 5, 6), ops.RestoreLive(0, ONE), ops.ReadLive(0)),
    "wiped-live": (ops.AllocBlocks(1), ops.WriteLive(0, 0, 5, 6), ops.RestoreLive(0, ONE), ops.ReadLive(0)),
    "stale-states": (*WITH_STATE, ops.StoreState(ONE, 0, 5, 6), ops.Reset(), ops.ReadStates(0)),
    # requests
    "batch-snapshots": (ask(1, 1), ask(50, 1), ops.RunStep(), ops.Inspect()),
    "prompt-offsets": (ask(1, 1, 2), ops.RunStep(), ops.ScheduleChunk(1), ops.RunStep()),
    "trunks-first": (ask(1, 2), ask(50, 2), ops.RunStep()),
    "unfilled-slots": (ask(1, 1), ops.Fault("store_states"), ops.RunStep()),
    "stale-restores": (ask(1, 1), ops.RunStep(), ask(1, 2)),
    "bare-hashes": COLLIDING,  # of 300 prompts of one block, two have the same hash of eight bits
    "full-hits": (ask(1, 1), ops.RunStep(), ask(1, 1), ops.RunStep()),
    "unheld-hits": (ask(1, 2), ops.RunStep(), ops.Release(1), ask(100, 7), ask(1, 7)),
    "leaky-admissions": (ask(1, 1), ops.RunStep(), ask(100, 7), ask(1, 7), ops.Inspect()),
    "shared-releases": (ask(1, 2), ops.RunStep(), ask(1, 2), ops.Release(1)),
    "long-rows": (ask(1, 2), ops.Release(1), ask(1, 1)),
    "unbounded-pauses": (ask(1, 7), ops.Pause(1)),
    "durable-hashes": (ask(1, 2), ops.RunStep(), ops.Release(1), ops.Reset()),
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
        ("faulty-early-observer", (ops.AllocBlocks(1), ops.Fault("callback"), ops.ReleaseBlocks((ONE,)))),
        ("faulty-requests-as-rows", (*WITH_STATE, ops.RestoreLive(3, ONE))),
        ("faulty-requests-as-rows", (ops.AllocBlocks(1), ops.RestoreLive(0, ONE))),
    ],
)
def test_the_rest_of_it_is_as_it_should_be(name: str, program: Program) -> None:
    """One fault each: errors pass through, and misuse is refused."""
    last = []
    for adapter in (make_adapter(each, config_of(name)) for each in (name, class_of(name).SOUND)):
        result = [adapter.apply(step, operation) for step, operation in enumerate(program, 1)][-1].result
        last.append(getattr(result, "error", result))
    assert last[0] == last[1]
