"""Vectors made: expectations derived anew, each planted fault tried, and those kept that kill.

A file of vectors is its own source: needs, configurations and operations stay as they stand there, and what
they must come to is asked of the judge again. A search adds programs for faults that no vector kills. Seeds
are fixed and everything is sorted, so that two runs write the same bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pymllm.adapters.registry import OWN, find_adapter, load_adapter, make_adapter
from pymllm.conformance.detection import HuntPlan, find_program
from pymllm.conformance.time_limit import TookTooLong, deadline
from pymllm.conformance.vectors.derive import derive, least_needs, split_claims
from pymllm.conformance.vectors.format import Vector, VectorsHeader, dump_vectors, load_folder
from pymllm.conformance.vectors.play import FAILED, Played, find_config, play, play_on
from pymllm.errors import InvariantViolation, ProgramError, PymllmError
from pymllm.faults.fault import Fault
from pymllm.faults.plant import planted
from pymllm.faults.table import bug_of, own_cabinet
from pymllm.history.claims import SPECIFICATION, all_claims
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.operations import (
    KINDS,
    Alloc,
    AllocBlocks,
    Evict,
    Inspect,
    Operation,
    ReadRows,
    Reset,
)
from pymllm.history.outcomes import Done, Outcome
from pymllm.oracle.judge import make_judge

VERSION = "1.0.0"
"""Of the vectors; docs/vectors.md says what its numbers mean."""

LICENSE = "Apache-2.0"

_OPERATIONS, _OPERATIONS_FROM_OUTSIDE = 100_000, 20_000
_SHRINKS = 200
_SECONDS = 20.0
"""Processor time for all vectors on one fault: more, and the fault has hung something."""
_CONTENTS = ("keys", "values", "recurrent", "conv", "rows", "kv", "state", "digests")

_NEVER_NEEDED = {"forms", "engine"}
"""Claims of how operations are handed over and by whom, which change nothing of what they come to."""

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
_T = TypeVar("_T")
Kills = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Source:
    """What a vector is made of."""

    kind: str
    law: str
    needs: tuple[str, ...]
    config: Config
    operations: tuple[Operation, ...]
    level: str = "observable"
    bug: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """Vectors by kind, and the faults that each kills, by its id."""

    vectors: Mapping[str, tuple[Vector, ...]]
    kills: Kills

    def files(self) -> dict[str, str]:
        """Return the text of each file, by its name."""
        return {
            f"{kind}.jsonl": dump_vectors(VectorsHeader(VERSION, kind, SPECIFICATION, LICENSE), vectors)
            for kind, vectors in self.vectors.items()
        }


def make_vectors(folder: Path, *, is_search: bool = False, progress: Progress | None = None) -> Made:
    """Make the vectors of a folder anew; with a search also some for faults that none of them kills.

    `TraceError`: a file cannot be read. `ProgramError`: a vector is none any more, since no implementation
    of this package keeps to it.
    """
    show = progress or (lambda label, total: nullcontext())
    sources = read_sources(folder)
    vectors = _derive_all(sources, show)
    kills = try_faults(vectors, own_cabinet(), show)
    if is_search:
        killed = frozenset[str]().union(*kills.values())
        left = [fault for fault in own_cabinet() if fault.id not in killed]
        found = [
            source for fault in _shown(show, "faults searched for", left) for source in search_for(fault)
        ]
        more = _derive_all(found, show)
        kills = {**kills, **try_faults(more, own_cabinet(), show)}
        vectors = _joined(vectors, more)
    return choose(vectors, kills)


def read_sources(folder: Path) -> list[Source]:
    """Return what the vectors of a folder are made of."""
    return [
        Source(
            header.kind,
            it.law,
            it.needs,
            it.config,
            tuple(step.operation for step in it.steps),
            it.level,
            it.bug,
            it.link,
        )
        for header, vectors in load_folder(folder)
        for it in vectors
    ]


def _shown(show: Progress, label: str, items: Sequence[_T]) -> Iterator[_T]:
    with show(label, len(items)) as done:
        for number, item in enumerate(items):
            yield item
            if done is not None:
                done(number + 1)


def _joined(
    one: Mapping[str, Sequence[Vector]], other: Mapping[str, Sequence[Vector]]
) -> dict[str, list[Vector]]:
    return {
        kind: [*{it.id: it for it in (*one.get(kind, ()), *other.get(kind, ()))}.values()] for kind in KINDS
    }


# -- expectations ------------------------------------------------------------------------------------------


def _derive_all(sources: Sequence[Source], show: Progress) -> dict[str, list[Vector]]:
    made: dict[str, list[Vector]] = defaultdict(list)
    for source in _shown(show, "vectors derived", sources):
        made[source.kind].append(derive_source(source))
    return made


def derive_source(source: Source) -> Vector:
    """Derive a vector from what the first of our own adapters answers that claims what it needs."""
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
        if set(source.needs) <= all_claims(adapter.capabilities):
            return [Step(at, it, adapter.apply(at, it)) for at, it in enumerate(source.operations, 1)]
    raise ProgramError(f"no adapter of ours claims {', '.join(source.needs)} with {source.config}")


# -- faults ------------------------------------------------------------------------------------------------


def try_faults(
    vectors: Mapping[str, Sequence[Vector]], faults: Sequence[Fault], show: Progress | None = None
) -> dict[str, frozenset[str]]:
    """Plant each fault and play the vectors of its adapters' kinds; the faults that each kills, by its id."""
    shows = show or (lambda label, total: nullcontext())
    kills: dict[str, set[str]] = {it.id: set() for own in vectors.values() for it in own}
    for fault in _shown(shows, "faults tried", faults):
        with planted(fault.edits):
            for id in _killers(vectors, fault):
                kills[id].add(fault.id)
    return {id: frozenset(found) for id, found in kills.items()}


def _killers(vectors: Mapping[str, Sequence[Vector]], fault: Fault) -> Iterator[str]:
    try:
        with deadline(_SECONDS):
            for name in fault.adapters:
                made = load_adapter(find_adapter(name))
                for vector in vectors.get(made.KIND, ()):
                    if play_on(vector, name, made).verdict == FAILED:
                        yield vector.id
    except TookTooLong:
        return


def choose(vectors: Mapping[str, Sequence[Vector]], kills: Kills) -> Made:
    """Keep of each fault's killers the one with the fewest needs and steps; what kills nothing goes."""
    everything = {it.id: it for own in vectors.values() for it in own}
    killers: dict[str, list[Vector]] = defaultdict(list)
    for id, faults in kills.items():
        for fault in faults:
            killers[fault].append(everything[id])
    chosen = {
        min(them, key=lambda it: (len(it.needs), len(it.steps), it.flag != "must", it.id)).id
        for them in killers.values()
    }
    kept = {
        kind: tuple(sorted((it for it in own if it.id in chosen), key=lambda it: it.id))
        for kind, own in sorted(vectors.items())
    }
    return Made(
        {kind: own for kind, own in kept.items() if own},
        {id: kills[id] for id in sorted(chosen)},
    )


# -- programs ----------------------------------------------------------------------------------------------


def search_for(fault: Fault) -> list[Source]:
    """Look for a small program whose outcomes alone show a fault: first as everybody does, then from outside.

    None comes back where what shows it is a walk from inside, a second run, or an engine.
    """
    from_outside = replace(fault, searchers=("machine",))
    for wanted, operations in ((fault, _OPERATIONS), (from_outside, _OPERATIONS_FROM_OUTSIDE)):
        found = find_program(wanted, HuntPlan(operations=operations, shrinks=_SHRINKS))
        if found is not None:
            sources = sources_of(fault, *found[:2])
            if sources:
                return sources
    return []


def sources_of(fault: Fault, name: str, history: History) -> list[Source]:
    """Make sources of a program that shows a fault: with the least claims, and with all that matter."""
    header, operations = history.header, [it.operation for it in history.steps]
    wrong: list[Step] = []
    law = ""
    for look in ((), *_LOOKS.get(header.kind, ())):
        wrong, law = _play_wrongly(fault, name, header, [*operations, *look])
        if law:
            break
    if not law:
        return []
    try:
        adapter = make_adapter(name, dict(header.config))
        claims = split_claims(adapter.capabilities)
        sound = [Step(it.number, it.operation, adapter.apply(it.number, it.operation)) for it in wrong]
        least = least_needs(header, sound, wrong)
    except (PymllmError, InvariantViolation):
        return []
    operations = [it.operation for it in wrong]
    bug = bug_of(fault)
    told = ("", "") if bug is None else (bug.id, bug.links[0] if bug.links else "")
    sources = []
    for needs in dict.fromkeys((tuple(sorted(least)), tuple(sorted(claims - _NEVER_NEEDED)))):
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


_LOOKS: dict[str, tuple[tuple[Operation, ...], ...]] = {
    "rows": ((ReadRows(),),),
    "prefix": ((Inspect(),), (Evict(1000),), (Reset(),), (Reset(), Alloc(1000))),
    "blocks": ((Inspect(),), (AllocBlocks(1),), (AllocBlocks(2),)),
    "requests": ((Inspect(),),),
    "index": ((Inspect(),),),
}
"""What is asked at the end where a program alone shows nothing: a search has looked from inside there."""


def _play_wrongly(
    fault: Fault, name: str, header: Header, operations: Sequence[Operation]
) -> tuple[list[Step], str]:
    """Play a program with a fault in place, up to what breaks a law of the fault; and which."""
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
    """Leave out the sizes of pools that are not there, which other implementations do not know."""
    unused = {"none": ("slots", "swa_slots"), "token": ("swa_slots",)}.get(str(config.get("pool")), ())
    return {name: value for name, value in config.items() if name not in unused}


def _level_of(kind: str, shown: Played) -> str:
    """Return what of an outcome shows a fault."""
    parts = shown.where.replace("[", ".").split(".")
    if any(part in _CONTENTS for part in parts):
        return "content"
    if parts[0] == "sizes" or "inside" in parts:
        return "counters"
    return "ownership" if {"effects", "slots", "swa_slots", "blocks"} & set(parts) else "observable"
