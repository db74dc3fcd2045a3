"""Programs whose outcomes alone show a planted fault, found by search and made into vectors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pymllm.adapters.registry import OWN, find_adapter, load_adapter, make_adapter
from pymllm.errors import InvariantViolation, ProgramError, PymllmError
from pymllm.faults.detection import HuntPlan, find_program
from pymllm.faults.fault import ANY, Fault
from pymllm.faults.plant import Edit, planted
from pymllm.faults.table import bug_of
from pymllm.history.claims import CLAIMS, REFUSALS, SPECIFICATION, all_claims
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.operations import (
    Alloc,
    AllocBlocks,
    Evict,
    Inspect,
    Operation,
    ReadRows,
    ReadStates,
    Reset,
)
from pymllm.history.outcomes import Done, Outcome
from pymllm.oracle.judge import make_judge
from pymllm.vectors.claims import PLAIN
from pymllm.vectors.derive import derive
from pymllm.vectors.format import TWICE, Vector
from pymllm.vectors.play import FAILED, Played, find_config, play, play_on
from pymllm.vectors.variations import least_needs, split_claims
from pymllm.work.time_limit import TookTooLong, deadline

_SHRINKS = 200
_SECONDS = 20.0
"""Seconds of processor time for all vectors on one fault, beyond which the fault has hung."""
_MOST_STEPS = 40
"""The greatest number of steps in a program, for readability and for the time of derivation."""
_CONTENTS = ("keys", "values", "recurrent", "conv", "rows", "kv", "state", "digests")

_NEVER_NEEDED = {"forms", "engine"}
"""Claims about how and by whom operations are called, which do not change results."""

_PLAIN_CLAIMS = (("pool",), ("pool", "exact_lru"), ("pool", "extra_key", "inspect", "node_ids"))
"""Common claims, for which programs are also searched, the fewest first."""
_ASIDE = frozenset({"inspect", "hit_counts", "hashes", "digests", "bigrams", "forms", "refusals", *REFUSALS})
"""Claims left out so that results show a fault before inspections or misuse do."""

PLAIN_PROGRAMS = 3
"""The number of programs of each fault for a plain cache, since other bugs are only similar."""
_PLAIN_SEEDS = range(8)
_PLAIN_OPERATIONS = 2_500

CALLER = "pymllm.workloads."
"""The place of the simulated engine, whose faults are the caller's and not a cache's."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a vector: kind, law, needs, configuration and operations."""

    kind: str
    law: str
    needs: tuple[str, ...]
    config: Config
    operations: tuple[Operation, ...]
    level: str = "observable"
    bug: str = ""
    link: str = ""


def derive_source(source: Source) -> Vector:
    """Return a vector from the outcomes of the first own adapter with all needs of the source."""
    steps = _play_soundly(source)
    return derive(
        source.kind,
        source.law,
        source.needs,
        source.config,
        steps,
        level=source.level,
        bug=source.bug,
        link=source.link,
        specification=SPECIFICATION,
    )


def _play_soundly(source: Source) -> list[Step]:
    for entry in OWN:
        made = load_adapter(entry)
        config = find_config(source.config, made.CONFIGURATIONS) if source.kind == made.KIND else None
        if config is None:
            continue
        try:
            adapter = make_adapter(entry.name, config)
        except PymllmError:
            continue
        if set(source.needs) - {TWICE} <= all_claims(adapter.capabilities):
            return [Step(at, it, adapter.apply(at, it)) for at, it in enumerate(source.operations, 1)]
    raise ProgramError(f"no adapter of ours claims {', '.join(source.needs)} with {source.config}")


def killers(vectors: Mapping[str, Sequence[Vector]], fault: Fault) -> Iterator[str]:
    """Yield the ids of vectors that show a fault that is already planted."""
    try:
        with deadline(_SECONDS):
            for name in fault.adapters:
                made = load_adapter(find_adapter(name))
                for vector in vectors.get(made.KIND, ()):
                    if play_on(vector, name, made).verdict == FAILED:
                        yield vector.id
    except TookTooLong:
        return


# -- the search --------------------------------------------------------------------------------------------


def search_for(fault: Fault) -> list[Source]:
    """Search for small programs whose outcomes show a fault, including one for a plain cache.

    Only sources come back whose vectors show it. None does where what shows a fault is a walk from inside or
    an engine; and nobody looks for a fault of the engine, which no cache can show.
    """
    if is_of_caller(fault):
        return []
    found: list[Source] = []
    for attempts in (_attempts(fault), _plain_attempts(fault)):
        for wanted, operations in attempts:
            plan = HuntPlan(operations=operations, shrinks=_SHRINKS, from_outside=wanted is not fault)
            program = find_program(wanted, plan)
            shown = [] if program is None else _showing(fault, sources_of(wanted, *program[:2]))
            if shown:
                found += shown
                break
    return found


def search_plainly(fault: Fault) -> list[Source]:
    """Search for several small programs that show a fault on a plain cache, each from its own seed."""
    found: dict[str, Source] = {}
    if not is_of_plain(fault):
        return []
    wanted = _on_plain(fault, PLAIN.claims or ())
    wanted = replace(wanted, adapters=("radix",), settings={**wanted.settings, "page_size": 1})
    for seed in _PLAIN_SEEDS:
        plan = HuntPlan((seed,), _PLAIN_OPERATIONS, shrinks=_SHRINKS, from_outside=True)
        program = find_program(wanted, plan)
        for source in [] if program is None else sources_of(wanted, *program[:2], is_least=True):
            vector = derive_source(source)
            if PLAIN.plays(source.kind, vector) and _shows(vector, source.kind, fault):
                found[vector.id] = source
        if len(found) >= PLAIN_PROGRAMS:
            break
    return list(found.values())


def is_of_plain(fault: Fault) -> bool:
    """Tell whether a fault is in the class of the plain cache rather than in its caller."""
    return "radix" in fault.adapters and not is_of_caller(fault)


def is_of_caller(fault: Fault) -> bool:
    """Tell whether a fault changes only the simulated engine, the caller of a cache."""
    places = [getattr(it, "target", "") for it in fault.edits]
    return bool(places) and all(place.startswith(CALLER) for place in places)


def _attempts(fault: Fault) -> Iterator[tuple[Fault, int]]:
    """Yield a fault in each form to search for, with a number of operations; the usual form first."""
    yield fault, 100_000
    outside = replace(fault, searchers=("machine",))
    yield outside, 20_000
    yield _with_claims(replace(outside, laws=ANY), set(CLAIMS) - _ASIDE), 20_000


def _plain_attempts(fault: Fault) -> Iterator[tuple[Fault, int]]:
    """Yield a fault planted in a common cache: with a pool and few claims, without window or states."""
    if load_adapter(find_adapter(fault.adapters[0])).KIND != "prefix":
        return
    for claims in _PLAIN_CLAIMS:
        yield _on_plain(fault, claims), _PLAIN_OPERATIONS


def _on_plain(fault: Fault, claims: Collection[str]) -> Fault:
    """Return a fault planted in adapters with a pool, without window or states, with few claims."""
    names = {**dict.fromkeys(it for it in fault.adapters if it != "mamba"), "radix": None}
    settings = {**fault.settings, "pool": "token", "window": None}
    plain = replace(fault, searchers=("machine",), laws=ANY, adapters=tuple(names), settings=settings)
    return _with_claims(plain, claims)


def _with_claims(fault: Fault, claims: Collection[str]) -> Fault:
    """Return a fault planted in adapters with at most some claims."""
    fewer = f"return frozenset(claimed) & {{{', '.join(map(repr, sorted(claims)))}}}"
    edit = Edit("pymllm.adapters.base:_read_claims", "return frozenset(claimed)", fewer)
    return replace(fault, edits=(*fault.edits, edit))


def _showing(fault: Fault, sources: Sequence[Source]) -> list[Source]:
    """Return the sources whose vectors show a fault."""
    return [it for it in sources if _shows(derive_source(it), it.kind, fault)]


def _shows(vector: Vector, kind: str, fault: Fault) -> bool:
    with planted(fault.edits):
        return vector.id in killers({kind: [vector]}, fault)


def sources_of(fault: Fault, name: str, history: History, *, is_least: bool = False) -> list[Source]:
    """Return sources from a program that shows a fault: one with the fewest claims, one with all."""
    header, operations = history.header, [it.operation for it in history.steps]
    wrong: list[Step] = []
    law = ""
    for look in ((), *_LOOKS.get(header.kind, ())):
        wrong, law = _play_wrongly(fault, name, header, [*operations, *look])
        if law:
            break
    if len(wrong) > _MOST_STEPS:
        return []
    if not law:
        return _told_twice(fault, header, operations) if "X3" in fault.laws else []
    try:
        adapter = make_adapter(name, dict(header.config))
        claims = split_claims(adapter.capabilities)
        sound = [Step(it.number, it.operation, adapter.apply(it.number, it.operation)) for it in wrong]
        least = least_needs(header, sound, wrong)
    except (PymllmError, InvariantViolation):
        return []
    wrong = _read_twice(wrong)
    operations = [it.operation for it in wrong]
    told = _told(fault)
    sources = []
    every = least if is_least else claims - _NEVER_NEEDED
    for needs in dict.fromkeys((tuple(sorted(least)), tuple(sorted(every)))):
        source = Source(
            header.kind, law, needs, _without_unused(header.config), tuple(operations), "observable", *told
        )
        try:
            vector = derive_source(source)
        except ProgramError:
            continue
        shown = play(vector, lambda number, operation: wrong[number - 1].outcome or Outcome(Done()))
        sources.append(replace(source, level=_level_of(source.kind, shown)))
    return sources


def _told(fault: Fault) -> tuple[str, str]:
    bug = bug_of(fault)
    return ("", "") if bug is None else (bug.id, bug.links[0] if bug.links else "")


def _told_twice(fault: Fault, header: Header, operations: Sequence[Operation]) -> list[Source]:
    """Return a source from a program that shows a fault by other results in a second run."""
    needs = {"node_ids", TWICE, *({"pool"} & set(header.capabilities))}
    needs |= {"inspect"} if any(isinstance(it, Inspect) for it in operations) else set()
    config = _without_unused(header.config)
    source = Source(
        header.kind, "X3", tuple(sorted(needs)), config, tuple(operations), "observable", *_told(fault)
    )
    try:
        derive_source(source)
    except ProgramError:
        return []
    return [source]


def _read_twice(steps: Sequence[Step]) -> list[Step]:
    """Append two reads of all states: the first for their number, the second for their contents."""
    is_read = bool(steps) and isinstance(steps[-1].operation, ReadStates)
    return [*steps, *steps[-1:]] if is_read else list(steps)


_LOOKS: dict[str, tuple[tuple[Operation, ...], ...]] = {
    "rows": ((ReadRows(),),),
    "prefix": ((Inspect(),), (Evict(1000),), (Reset(),), (Reset(), Alloc(1000))),
    "blocks": ((Inspect(),), (AllocBlocks(1),), (AllocBlocks(2),)),
    "requests": ((Inspect(),),),
    "index": ((Inspect(),),),
}
"""Inspections appended to a program that alone shows nothing, in place of an audit."""


def _play_wrongly(
    fault: Fault, name: str, header: Header, operations: Sequence[Operation]
) -> tuple[list[Step], str]:
    """Play a program with a planted fault until a law of the fault breaks; return steps and law."""
    steps: list[Step] = []
    with planted(fault.edits):
        try:
            adapter = make_adapter(name, dict(header.config))
            judge = make_judge(header, coverage=False)
            for number, operation in enumerate(operations, 1):
                outcome = adapter.apply(number, operation)
                steps.append(Step(number, operation, outcome))
                judge.judge(number, operation, outcome)
        except InvariantViolation as violation:
            is_seen = (
                len(steps) > 0 and steps[-1].outcome is not None and fault.may_be_caught_by(violation.law)
            )
            return steps, violation.law if is_seen else ""
        except Exception:  # whatever the fault has made of the code
            return steps, ""
    return steps, ""


def _without_unused(config: Config) -> Config:
    """Remove the sizes of absent pools, which other implementations do not report."""
    unused = {"none": ("slots", "swa_slots"), "token": ("swa_slots",)}.get(str(config.get("pool")), ())
    return {name: value for name, value in config.items() if name not in unused}


def _level_of(kind: str, shown: Played) -> str:
    """Return the level of the outcome's part that shows a fault."""
    parts = shown.where.replace("[", ".").split(".")
    if any(part in _CONTENTS for part in parts):
        return "content"
    if parts[0] == "sizes" or "inside" in parts:
        return "counters"
    return "ownership" if {"effects", "slots", "swa_slots", "blocks"} & set(parts) else "observable"
