"""The smoke test of an adapter, made before any judgement so that its mistakes are not the cache's.

Nothing here knows a law. What is asked of an adapter: it can be built from each of its configurations,
twice alike; it claims what exists; it understands every operation of its kind, except where a
capability is not claimed; it answers with the right kind of result, with integers for sizes, in a form that
JSON keeps; and the simplest legal calls on something new do not fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pymllm.adapters.base import CAPABILITIES, Adapter, header_of, place_of
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.error_lines import line_of, own_line_of
from pymllm.adapters.registry import KindError
from pymllm.errors import (
    AdapterError,
    ConversationError,
    InvariantViolation,
    ProgramError,
    PymllmError,
    UsageError,
)
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.asked import find_wrong_limit, is_optional, needs_of
from pymllm.history.codec import decode, encode, name_of
from pymllm.history.config_limits import check_config
from pymllm.history.files import Config
from pymllm.history.operations import Key, Operation, Span
from pymllm.history.outcomes import SIZE_NAMES, Effect, Outcome, Result
from pymllm.machines.adapter_calls import (
    EndedConversation,
    apply_step,
    build_adapter,
    closing,
    describe_error,
    ended_conversation,
    find_changed,
    load_class,
)
from pymllm.machines.rehearsal import rehearse
from pymllm.oracle.judge import make_judge
from pymllm.text_file import shown
from pymllm.work.time_limit import HungError

_ANSWERS: dict[str, tuple[type, ...]] = {
    "AddRequest ScheduleChunk Truncate": (out.RequestView,),
    ("Alloc AllocBlocks AllocRows AllocSlots AllocTrack EvictSlots ReadHalves"): (out.Slots,),
    (
        "BeginGroup BeginTransfer Clear DropStates DropWorker EndGroup EndTransfer Fault Free "
        "FreeRow FreeSWA FreeTrack "
        "Merge NameStates Pause Rebuild RegisterBlocks Release ReleaseBlocks Reset Resume RetainBlocks "
        "SaveLive SetClock StampBlocks StoreState TransferRequest Unlock WriteLive"
    ): (out.Done,),
    "Evict": (out.Evicted,),
    "FindBlocks": (out.Leading,),
    "FindSlots": (out.FoundSlots,),
    "Hash HashPage": (out.Hashes,),
    "HashBytes HashInt64 RestoreLive": (out.Number,),
    "Insert": (out.Inserted,),
    "Inspect": (out.Inspected, out.BlockBooks, out.ContextView, out.Indexed),
    "Lock": (out.Locked,),
    "Match": (out.Matched,),
    "PickToken SliceKey": (out.Tokens,),
    "ReadKV": (out.Buffers,),
    "ReadLive ReadStates": (out.States,),
    "ReadRows": (out.Table,),
    "ClearWorker RemoveBlocks StoreBlocks": (out.Done, out.NotThere, out.Missed),
    "RunStep": (out.Ran,),
    "TakeEvents": (out.ToldEvents,),
}
LEGAL_RESULTS: dict[type, tuple[type, ...]] = {
    getattr(ops, name): legal for names, legal in _ANSWERS.items() for name in names.split()
}
"""The permitted result types of a legal call, by operation, where there is room."""


@dataclass(frozen=True, slots=True)
class SampleStep:
    """One step of the sample program in a smoke test."""

    operation: Operation  # to carry out
    needs: str | None  # a capability that it takes and that the adapter does not claim
    is_claimed: bool  # whether the adapter claims that
    is_optional: bool = False  # whether it may be left to others, whatever is claimed


def make_sample(kind: str, config: Config, capabilities: Collection[str]) -> dict[int, SampleStep]:
    """Return the sample program for a configuration of an adapter, by step number, with unclaimed steps."""
    return {
        number: _sample_step(kind, operation, capabilities)
        for number, operation in enumerate(_SAMPLES[kind](config, capabilities), 1)
    }


def _sample_step(kind: str, operation: Operation, capabilities: Collection[str]) -> SampleStep:
    needs = needs_of(kind, operation, capabilities)
    missing = next((need for need in needs if need not in capabilities), None)
    return SampleStep(operation, missing, missing is None, is_optional(kind, type(operation)))


_Steps = list[Operation]


def _number(config: Config, key: str, default: int) -> int:
    value = config.get(key)
    return value if type(value) is int and value > 0 else default


def _slots(config: Config, capabilities: Collection[str]) -> _Steps:
    page = _number(config, "page_size", 1)
    return [
        ops.Alloc(page),
        ops.ReadHalves((Span(1, 0, page),)),
        ops.FreeSWA((Span(1, 0, page),)),
        ops.Free((Span(1, 0, page),)),
        *(_transfer_of(page) if _number(config, "pages", 1) > 1 else []),
        ops.Merge(),
        ops.BeginGroup(),
        ops.EndGroup(),
        ops.Clear(),
    ]


def _transfer_of(page: int) -> _Steps:
    """Return a transfer of the second of two pages, since some allocators never hand out the first."""
    both = (Span(5, 0, 2 * page),)
    return [
        ops.Alloc(2 * page),
        ops.BeginTransfer((Span(5, page, 2 * page),)),
        ops.EndTransfer(6),
        ops.Free(both),
    ]


def _states(config: Config, capabilities: Collection[str]) -> _Steps:
    steps: _Steps = [ops.ReadStates(0)]
    if _number(config, "track_slots", 0):
        steps += [ops.AllocTrack(), ops.FreeTrack(Span(2, 0, 1))]
    return steps


def _prefix(config: Config, capabilities: Collection[str]) -> _Steps:
    page = _number(config, "page_size", 1)
    key = Key(tuple(range(1, page + 1)))
    slots = (Span(2, 0, page),) if "pool" in capabilities else None
    needs_state = "mamba" in capabilities and "bare_inserts" not in capabilities
    steps: _Steps = [
        ops.Match(key),
        ops.Alloc(page),
        ops.AllocTrack(),
        ops.Insert(key, slots, state=Span(3, 0, 1) if needs_state else None),
        ops.Match(key),
        ops.Hash(5),
        ops.Inspect(),
        ops.TakeEvents(),
        ops.Fault("free"),
        ops.Evict(0),
    ]
    steps += [] if needs_state else [ops.FreeTrack(Span(3, 0, 1))]
    # A hold comes last: what it does to later calls is the implementation's affair.
    steps += [ops.Lock(5), ops.Unlock(len(steps) + 1), ops.Reset()]
    again = len(steps) + 1
    return steps + ([ops.AllocTrack(), ops.FreeTrack(Span(again, 0, 1))] if needs_state else [])


def _blocks(config: Config, capabilities: Collection[str]) -> _Steps:
    both, first = (Span(1, 0, 2),), Span(1, 0, 1)
    return [
        ops.AllocBlocks(2),
        ops.RegisterBlocks(both, (11, 22)),
        ops.SetClock(1),
        ops.StampBlocks(both),
        ops.RetainBlocks(both),
        ops.AllocSlots((first,)),
        ops.FindSlots(both),
        ops.StoreState(first, 0, 1, 2),
        ops.WriteLive(0, 0, 3, 4),
        ops.SaveLive((Span(6, 0, 1),), (0,)),
        ops.RestoreLive(0, first),
        ops.ReadStates(0),
        ops.ReadLive(0),
        ops.NameStates((), ()),
        ops.DropStates((first,)),
        ops.EvictSlots(0),
        ops.Inspect(),
        ops.Fault("callback"),
        ops.RetainBlocks(both),
        ops.ReleaseBlocks(both),
        ops.BeginTransfer(both),
        ops.EndTransfer(21),
        ops.TakeEvents(),
        ops.Reset(),
    ]


def _requests(config: Config, capabilities: Collection[str]) -> _Steps:
    prompt = tuple(range(1, _number(config, "block_size", 1) + 2))
    return [
        ops.AddRequest(prompt, 1),
        ops.RunStep(),
        ops.ScheduleChunk(1),
        ops.RunStep((1,)),
        ops.Inspect(),
        ops.Truncate(1, len(prompt), 2),
        ops.Fault("forward", 99),
        ops.TransferRequest(1),
        ops.EndTransfer(8),
        ops.Release(1),
        ops.TakeEvents(),
        ops.Reset(),
    ]


def _index(config: Config, capabilities: Collection[str]) -> _Steps:
    """Return the sample of an index, without event fields that only some indexes know."""
    told: _Steps = [
        ops.StoreBlocks(1, ((11, 1),), group=1),
        ops.StoreBlocks(1, ((11, 1),), medium="CPU"),
        ops.StoreBlocks(1, ((12, 1),), extra_key="salt"),
        ops.StoreBlocks(1, ((13, 1),), extra_key=(None, "adapter")),
        ops.StoreBlocks(1, ((11, 1),), number=0),
    ]
    return [
        ops.StoreBlocks(1, ((11, 1),)),
        ops.FindBlocks((1,)),
        ops.FindBlocks((1,), early=True),
        *(it for it in told if {*needs_of("index", it, capabilities)} <= {*capabilities}),
        ops.Inspect(),
        ops.Rebuild(),
        ops.RemoveBlocks(1, (11,)),
        ops.ClearWorker(1),
        ops.DropWorker(1),
        ops.Reset(),
    ]


_ROWS = (ops.AllocRows(1), ops.ReadRows(), ops.FreeRow(Span(1, 0, 1)), ops.Clear())
_KEYS = (ops.SliceKey(Key((1, 2)), 0, 1), ops.PickToken(Key((1, 2)), 1), ops.HashPage(Key((1, 2))))
_HASHES = (*_KEYS, ops.HashInt64("00" * 32), ops.HashBytes("00"))
_SAMPLES: dict[str, Callable[[Config, Collection[str]], _Steps]] = {
    "slots": _slots,
    "rows": lambda config, capabilities: [*_ROWS],
    "buffers": lambda config, capabilities: [ops.ReadKV(0)],
    "states": _states,
    "hashes": lambda config, capabilities: [*_HASHES],
    "prefix": _prefix,
    "blocks": _blocks,
    "requests": _requests,
    "index": _index,
}


@dataclass(frozen=True, slots=True)
class SmokeReport:
    """The name, kind and configurations of an adapter that passed the smoke test."""

    name: str  # as it was asked for
    kind: str  # one of `pymllm.history.operations.KINDS`
    # each of the class's configurations with what it claims
    configurations: tuple[tuple[Config, frozenset[str]], ...]


@dataclass(frozen=True, slots=True)
class SmokeFailure:
    """The reason why an adapter cannot be used, with its name and kind."""

    name: str  # name, kind: as of `SmokeReport`; ``None`` where not even the kind is known
    kind: str | None
    message: str
    is_missing: bool = False  # whether there is no such adapter to load
    conversation: EndedConversation | None = None  # the one that ended by it

    def refuse_missing(self) -> None:
        """Raise `UsageError` if ``module:Class`` names no existing class."""
        if self.is_missing and ":" in self.name:
            raise UsageError(f"adapter {self.name}: {self.message}")


def try_adapter(entry: AdapterEntry) -> SmokeReport | SmokeFailure:
    """Run the smoke test, and return a failure instead of raising an error."""
    try:
        kind = load_class(entry).KIND
    except AdapterError as error:
        is_missing = not isinstance(error, HungError | ConversationError | KindError)
        return SmokeFailure(entry.name, None, error.message, is_missing, ended_conversation(error))
    try:
        return smoke_test(entry)
    except AdapterError as error:
        return SmokeFailure(entry.name, kind, error.message, conversation=ended_conversation(error))
    except Exception as error:  # what an adapter answers may raise anything where it is looked at
        return SmokeFailure(entry.name, kind, f"reading its answer raised {describe_error(error)}")


def smoke_test(entry: AdapterEntry) -> SmokeReport:
    """Run the smoke test on each configuration; raise `AdapterError` with the failing call and its result."""
    adapter_class = load_class(entry)
    configurations = getattr(adapter_class, "CONFIGURATIONS", None)
    if not isinstance(configurations, Sequence) or not configurations:
        raise AdapterError(
            entry.name,
            "CONFIGURATIONS must be a sequence with one dict at least, such as ({'page_size': 1},), not"
            f" {shown(configurations)}",
        )
    for config in configurations:
        _check_config(entry.name, config, adapter_class.KIND)
    claims = tuple((dict(config), _try_configuration(entry, dict(config))) for config in configurations)
    return SmokeReport(entry.name, adapter_class.KIND, claims)


def _check_config(name: str, config: object, kind: str) -> None:
    if not isinstance(config, dict) or not all(
        isinstance(key, str) and type(value) in (int, str, bool, type(None)) for key, value in config.items()
    ):
        raise AdapterError(
            name, f"a configuration holds names with an int, str, bool or None each, not {shown(config)}"
        )
    try:
        check_config(config, kind)
    except ProgramError as error:
        raise AdapterError(name, f"CONFIGURATIONS has {shown(config)}: {error}") from error


def _try_configuration(entry: AdapterEntry, config: Config) -> frozenset[str]:
    adapter = build_adapter(entry.place, config)
    with closing(adapter):
        _check_claims(entry, config, adapter)
        _check_header(entry.name, adapter)
        _rehearse(entry, config)
        sample = make_sample(adapter.kind, config, adapter.capabilities)
        for number in sample:
            _check_step(entry, adapter, number, sample)
    return adapter.capabilities


_OF_ENGINES = frozenset({"bare_holds", "bare_inserts"})
"""Claims about how an engine uses states when there is no room for one."""


def _check_claims(entry: AdapterEntry, config: Config, adapter: Adapter) -> None:
    unknown = sorted(adapter.capabilities - set(CAPABILITIES))
    if unknown:
        raise AdapterError(
            entry.name, f"claims {unknown[0]!r}, which is no capability; there are {', '.join(CAPABILITIES)}"
        )
    is_hybrid = adapter.kind == "prefix" and {"mamba", "engine"} <= adapter.capabilities
    if is_hybrid and not adapter.capabilities >= _OF_ENGINES:
        needed = " and ".join(sorted(_OF_ENGINES))
        raise AdapterError(entry.name, f"claims engine with states; an engine needs {needed}, too")
    wrong = find_wrong_limit(adapter.kind, getattr(adapter, "limits", {}))
    if wrong is not None:
        raise AdapterError(entry.name, f"limits {wrong}")
    twin = build_adapter(entry.place, config)
    with closing(twin):
        changed = find_changed(header_of(adapter), twin)
        if changed is not None:
            raise AdapterError(entry.name, f"two of {config} differ in {changed}")


def _rehearse(entry: AdapterEntry, config: Config) -> None:
    """Check by a few steps on a new adapter that its results, effects and sizes agree.

    What hangs or ends its conversation is left to the search, which keeps the program that led to it.
    """
    adapter = build_adapter(entry.place, config)
    with suppress(ConversationError, HungError), closing(adapter):
        rehearse(adapter)


def _check_header(name: str, adapter: Adapter) -> None:
    """Raise an error if no judge can be made for an adapter's configuration and claims."""
    try:
        make_judge(header_of(adapter))
    except (PymllmError, KeyError, TypeError, ValueError) as error:
        raise AdapterError(
            name, f"a judge cannot be made for {adapter.config}: {type(error).__name__}: {error}"
        ) from error


def _check_step(entry: AdapterEntry, adapter: Adapter, number: int, sample: Mapping[int, SampleStep]) -> None:
    step = sample[number]

    def fail(what: str) -> AdapterError:
        return AdapterError(entry.name, f"{adapter.config}: step {number}, {step.operation}: {what}")

    try:
        outcome = apply_step(adapter, number, step.operation)
    except (InvariantViolation, ProgramError) as error:
        raise fail(str(error)) from error
    problem = find_fault(outcome, step)
    if problem is None:
        return
    if isinstance(outcome, Outcome) and isinstance(outcome.result, out.Failed):
        problem += _find_line(entry, adapter.config, number, sample)
    elif isinstance(outcome, Outcome) and problem == _find_wrong_sizes(outcome):
        problem += place_of(adapter, "sizes")
    raise fail(problem)


def _find_line(entry: AdapterEntry, config: Config, last: int, sample: Mapping[int, SampleStep]) -> str:
    """Return the line that raised an error, found by calling the method again without `apply`."""
    adapter = build_adapter(entry.place, config)
    with closing(adapter):
        for number in range(1, last):
            apply_step(adapter, number, sample[number].operation)
        operation = sample[last].operation
        try:
            getattr(adapter, f"do_{name_of(type(operation))}", lambda *step: None)(last, operation)
        except Exception as error:
            name = name_of(type(operation))
            if type(adapter).__module__.startswith("pymllm."):
                is_given = bool(getattr(adapter, "METHODS", None))  # its lines here are nobody's to mend
                return "" if is_given and not own_line_of(error) else f" ({line_of(error)})"
            if own_line_of(error):
                return ""  # the result says it
            return place_of(
                adapter, name if hasattr(adapter, name) else f"do_{name}"
            )  # it cannot be called so
    return ""


def find_fault(outcome: Outcome, step: SampleStep) -> str | None:
    """Return words for a mistake in the outcome of a sample step, or ``None``."""
    if not isinstance(outcome, Outcome):
        return f"answered {shown(outcome)}, which is not an Outcome"
    return (
        _find_wrong_result(outcome.result, step) or _find_wrong_sizes(outcome) or _find_lost_in_json(outcome)
    )


def _find_wrong_result(result: Result, step: SampleStep) -> str | None:
    if not step.is_claimed:
        if isinstance(result, out.Unsupported):
            return None
        return f"answered {result}, although it claims no {step.needs!r}; it must be Unsupported"
    if isinstance(result, out.Unsupported) and step.is_optional:
        return None
    if isinstance(result, out.Unsupported):
        needed = "everything that it needs is claimed, and no limit excuses all of an operation"
        return f"is unsupported ({result.what}), although {needed}"
    if isinstance(result, out.Failed):
        return f"a plain legal call failed with {result.error}: {result.message}"
    legal = LEGAL_RESULTS[type(step.operation)]
    if not isinstance(result, legal):
        return f"answered {result}; it must be {' or '.join(kind.__name__ for kind in legal)}"
    return None


def _find_wrong_sizes(outcome: Outcome) -> str | None:
    if not isinstance(outcome.effects, tuple) or not all(isinstance(it, Effect) for it in outcome.effects):
        return f"effects are {outcome.effects!r}; they must be a tuple of Effect"
    for sizes in (outcome.sizes, *(effect.sizes for effect in outcome.effects)):
        if type(sizes) is not dict:
            return f"sizes are {shown(sizes)}; they must be a dict of integers by name"
        for key, value in sizes.items():
            if not isinstance(key, str) or type(value) is not int:
                return f"the size {shown(key)} is {shown(value)}; sizes are integers by name"
    return find_unknown_size(outcome.sizes)


def find_unknown_size(sizes: Mapping[str, int]) -> str | None:
    """Return the first unknown name of a size, or ``None`` if all are known."""
    if SIZE_NAMES.issuperset(sizes):
        return None
    unknown = next(name for name in sizes if name not in SIZE_NAMES)
    return f"sizes have the unknown name {shown(unknown)}; known are {', '.join(sorted(SIZE_NAMES))}"


def _find_lost_in_json(outcome: Outcome) -> str | None:
    try:
        again = decode(Outcome, json.loads(json.dumps(encode(outcome))))
    except (TypeError, ValueError) as error:
        return f"JSON does not keep {outcome}: {error}"
    return None if again == outcome else f"JSON turns {outcome} into {again}"
