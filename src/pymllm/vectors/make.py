"""The making of vectors: new expectations, and a choice of vectors that detect planted faults.

A file of vectors is its own source: needs, configurations and operations stay as they stand there, and what
they must come to is asked of the judge again. A search adds programs for faults that no vector kills. Seeds
are fixed and everything is sorted, so that two runs write the same bytes.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pymllm.faults.fault import Fault
from pymllm.faults.plant import planted
from pymllm.faults.table import own_cabinet
from pymllm.history.claims import SPECIFICATION
from pymllm.history.operations import KINDS
from pymllm.vectors.claims import PLAIN
from pymllm.vectors.format import Vector, VectorsHeader, dump_vectors, load_folder
from pymllm.vectors.programs import (
    PLAIN_PROGRAMS,
    Source,
    derive_source,
    is_of_plain,
    killers,
    search_for,
    search_plainly,
)

VERSION = "3.0.0"
"""The version of the vectors, whose numbers docs/vectors.md explains."""

LICENSE = "Apache-2.0"

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None] | None]]
_T = TypeVar("_T")
Kills = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Made:
    """The vectors by kind, and the faults that each vector detects."""

    vectors: Mapping[str, tuple[Vector, ...]]
    kills: Kills
    unsearched: tuple[str, ...] = ()  # faults that nobody looked for, as the time was over

    def files(self) -> dict[str, str]:
        """Return the text of each file by its name."""
        return {
            f"{kind}.jsonl": dump_vectors(VectorsHeader(VERSION, kind, SPECIFICATION, LICENSE), vectors)
            for kind, vectors in self.vectors.items()
        }


def make_vectors(
    folder: Path, *, is_search: bool = False, seconds: float = 3600.0, progress: Progress | None = None
) -> Made:
    """Remake the vectors of a folder; with a search, also make some for undetected faults.

    No fault is looked for once the search has taken so many seconds of processor time: `Made.unsearched`.

    `TraceError`: a file cannot be read. `ProgramError`: a vector is none any more, since no implementation
    of this package keeps to it.
    """
    show = progress or (lambda label, total: nullcontext())
    sources = read_sources(folder)
    vectors = _derive_all(sources, show)
    kills = try_faults(vectors, own_cabinet(), show)
    unsearched: tuple[str, ...] = ()
    if is_search:
        found, unsearched = _search(vectors, kills, seconds, show)
        more = _derive_all(found, show)
        kills = {**kills, **try_faults(more, own_cabinet(), show)}
        vectors = _joined(vectors, more)
    return replace(choose(vectors, kills), unsearched=unsearched)


def _search(
    vectors: Mapping[str, Sequence[Vector]], kills: Kills, seconds: float, show: Progress
) -> tuple[list[Source], tuple[str, ...]]:
    """Search for programs for faults that no vector, or too few for a plain cache, detect."""
    killed = Counter(fault for them in kills.values() for fault in them)
    plainly = Counter(
        fault
        for kind, own in vectors.items()
        for it in own
        if PLAIN.plays(kind, it)
        for fault in kills[it.id]
    )
    left = [
        it
        for it in own_cabinet()
        if not killed[it.id] or (is_of_plain(it) and plainly[it.id] < PLAIN_PROGRAMS)
    ]
    start, found, unsearched = time.process_time(), list[Source](), list[str]()
    for fault in _shown(show, "faults searched for", left):
        if time.process_time() - start >= seconds:
            unsearched.append(fault.id)
            continue
        found += search_for(fault) if not killed[fault.id] else ()
        found += search_plainly(fault)
    return found, tuple(unsearched)


def read_sources(folder: Path) -> list[Source]:
    """Return the sources of the vectors in a folder."""
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


# -- faults ------------------------------------------------------------------------------------------------


def try_faults(
    vectors: Mapping[str, Sequence[Vector]], faults: Sequence[Fault], show: Progress | None = None
) -> dict[str, frozenset[str]]:
    """Plant each fault, play the vectors of its kinds, and return the faults that each vector detects."""
    shows = show or (lambda label, total: nullcontext())
    kills: dict[str, set[str]] = {it.id: set() for own in vectors.values() for it in own}
    for fault in _shown(shows, "faults tried", faults):
        with planted(fault.edits):
            for id in killers(vectors, fault):
                kills[id].add(fault.id)
    return {id: frozenset(found) for id, found in kills.items()}


def choose(vectors: Mapping[str, Sequence[Vector]], kills: Kills) -> Made:
    """Choose the simplest vectors for each fault, with and without a pool, and drop useless ones.

    Of those that a plain cache can play, several stay: most have no more than that, and each sees a little
    beside the fault that it was made for.
    """
    everything = {it.id: (kind, it) for kind, own in vectors.items() for it in own}
    killers: dict[tuple[str, str], list[Vector]] = defaultdict(list)
    for id, faults in kills.items():
        kind, vector = everything[id]
        has_none = kind == "prefix" and vector.config.get("pool") == "none"
        for fault in faults:
            killers[fault, "none" if has_none else ""].append(vector)
            if PLAIN.plays(kind, vector):
                killers[fault, "plain"].append(vector)
    chosen = {
        it.id
        for (_, whose), them in killers.items()
        for it in sorted(them, key=_plainness)[: PLAIN_PROGRAMS if whose == "plain" else 1]
    }
    kept = {
        kind: tuple(sorted((it for it in own if it.id in chosen), key=lambda it: it.id))
        for kind, own in sorted(vectors.items())
    }
    return Made(
        {kind: own for kind, own in kept.items() if own},
        {id: kills[id] for id in sorted(chosen)},
    )


_COMMON = {"pool", "extra_key", "inspect", "node_ids"}
"""Claims that nearly every implementation with the feature makes."""


def _plainness(vector: Vector) -> tuple[int | str, ...]:
    """Return the rank of a vector by its needs, as few implementations have windows or states."""
    config = vector.config
    settings = [
        config.get("window") is not None,
        *(name in config for name in ("track_slots", "policy", "retains", "swa_slots")),
    ]
    needs = set(vector.needs)
    return (
        sum(settings),
        len(needs - _COMMON),
        len(needs),
        vector.flag != "must",
        len(vector.steps),
        vector.id,
    )
