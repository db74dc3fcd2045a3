"""The order of a campaign's runs, and the configurations in which they play.

An adapter's own configurations are tiny, so that collisions and pressure are common. Beside them a soak plays
some that are grown from them (`_GROWTH`), in which a program needs thousands of operations to fill a pool. An
engine evicts a little at every step, and the judge looks at all that could have gone each time: machines that
drive one stay out of large pools. What is read as a whole after every act, such as a table of rows, does not
grow further: programs would do nothing else. Keys that a configuration lacks, or that are no number above 0
there, are left alone.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pymllm.adapters.entry import AdapterEntry
from pymllm.errors import AdapterError, ProgramError, PymllmError
from pymllm.history.config_limits import check_config
from pymllm.history.files import Config, Deviation
from pymllm.machines.adapter_calls import build_adapter, closing
from pymllm.machines.registry import MachineEntry, machines_for
from pymllm.machines.smoke import SmokeFailure, try_adapter
from pymllm.search.foreign_source import digest_adapter
from pymllm.soak.ledger import CampaignHeader, Place
from pymllm.work.shards import Shard

SIZES: dict[str, int] = {"tiny": 1, "medium": 3, "large": 20, "far": 20}
"""Sizes of configurations, each with the divisor of its runs' length, since larger ones play slower. Of an
adapter's own configurations those with ``apart`` are far, which are played only where they are asked for:
what a campaign plays is the same on every machine, and not each has that memory."""

_SLOTS = ("slots", "swa_slots")
_GROWTH: dict[str, dict[str, dict[str, int]]] = {
    "slots": {
        "medium": {"pages": 16, "swa_pages": 16},
        "large": {"pages": 256, "swa_pages": 256},
    },
    "rows": {"medium": {"max_reqs": 4, "max_context_len": 4}},
    "buffers": {"medium": {"size": 4}},
    "states": {"medium": {"max_reqs": 4, "track_slots": 4}},
    "prefix": {
        "medium": {**dict.fromkeys(_SLOTS, 8), "track_slots": 4},
        "large": {**dict.fromkeys(_SLOTS, 64), "track_slots": 8},
    },
    "blocks": {"medium": {"blocks": 3, "slots": 3}},
    "requests": {"medium": dict.fromkeys(("num_blocks", "max_blocks", "paused_limit", "max_requests"), 4)},
}
_CAPACITY: dict[str, tuple[str, str, int]] = {
    "slots": ("pages", "", 12),
    "prefix": ("slots", "page_size", 24),
}
"""The key of a kind's capacity, its divisor to count pages, and the number of pages of a tiny pool."""


def grow(kind: str, config: Config, size: str) -> Config | None:
    """Return an adapter's configuration grown to a size of `SIZES`; ``None`` if the table has no growth."""
    if size == "tiny":
        return dict(config)
    # Without a pool nothing ever makes room: what a long key leaves behind stays.
    is_unbounded = size == "large" and config.get("pool") == "none"
    factors = {} if is_unbounded else _GROWTH.get(kind, {}).get(size, {})
    larger: Config = dict(config)
    for key, factor in factors.items():
        value = config.get(key)
        if type(value) is int:
            larger[key] = value * factor
    return larger if larger != config and _is_allowed(kind, larger) else None


def _is_allowed(kind: str, config: Config) -> bool:
    """Tell whether a grown configuration is legal."""
    try:
        check_config(config, kind)
    except ProgramError:
        return False
    return True


def is_fit_for(machine: MachineEntry, size: str) -> bool:
    """Tell whether a machine's acts are useful in configurations of a size."""
    return size != "large" or not machine.needs


def reach_of(kind: str, config: Mapping[str, int | str | bool | None]) -> int:
    """Return the factor, at least 1, by which keys and allocations are longer than in a tiny pool."""
    key, unit, tiny = _CAPACITY.get(kind, ("", "", 1))
    capacity, per_page = config.get(key), config.get(unit, 1)
    if type(capacity) is not int or type(per_page) is not int:
        return 1
    return max(1, capacity // max(per_page, 1) // tiny)


_SIZE_SHARES = {"tiny": 0.6, "medium": 0.3, "large": 0.1, "far": 0.1}
_SHORTEST = 2_000
_SHORTEST_EVER = 500


@dataclass(frozen=True, slots=True)
class RunTask:
    """A run to play."""

    number: int  # of the run in its campaign
    version: str  # as of `pymllm.instrument.provenance.build_version`
    place: Place
    seed: int  # of everything that is drawn. The same seed with a higher limit begins with the same program
    limit: int  # operations after which no act begins
    audit: int  # operations between two walks from inside; 0 for none
    known: frozenset[str] = frozenset()  # laws of which there is a small program already
    deviations: tuple[Deviation, ...] = ()  # what is known to differ there

    @property
    def head(self) -> tuple[int, str, str, str, Config, str, str, int, int]:
        """The first fields of the run's record."""
        it = self.place
        where = it.adapter, it.kind, it.config, it.machine, it.size
        return self.number, self.version, *where, self.seed, self.limit


def find_places(entry: AdapterEntry) -> tuple[Place, ...] | SmokeFailure:
    """Return every machine on each configuration of an adapter, grown ones included, or the reason for none.

    What cannot be built larger is left as it is: the table of sizes is ours.
    """
    smoke = try_adapter(entry)
    if isinstance(smoke, SmokeFailure):
        return smoke
    source = digest_adapter(entry.name)
    return tuple(
        Place(entry.name, smoke.kind, config, machine.name, size, tuple(sorted(claims)), source)
        for own, _ in smoke.configurations
        for size in SIZES
        if (config := grow(smoke.kind, own, size)) is not None
        and (claims := _claims_of(entry, config)) is not None
        for machine in machines_for(smoke.kind, claims)
        if is_fit_for(machine, size)
    )


def find_places_of(asked: tuple[AdapterEntry, tuple[Config, ...]]) -> tuple[Place, ...] | SmokeFailure:
    """Return every machine on each of some configurations of an adapter, by default as `find_places`."""
    entry, configs = asked
    if not configs:
        return find_places(entry)
    places = []
    source = digest_adapter(entry.name)
    for config in configs:
        try:
            adapter = build_adapter(entry.name, dict(config))
            with closing(adapter):
                kind, claims = adapter.kind, adapter.capabilities
        except AdapterError as error:
            return SmokeFailure(entry.name, None, error.message)
        places += [
            Place(entry.name, kind, dict(config), machine.name, size, tuple(sorted(claims)), source)
            for size in ["far" if "apart" in config else "tiny"]
            for machine in machines_for(kind, claims)
        ]
    return tuple(places)


def _claims_of(entry: AdapterEntry, config: Config) -> frozenset[str] | None:
    try:
        adapter = build_adapter(entry.place, dict(config))
        with closing(adapter):
            return adapter.capabilities
    except PymllmError:
        return None


def plan_runs(header: CampaignHeader) -> Iterator[RunTask]:
    """Yield the runs of a campaign, endlessly if its operations have no limit.

    Adapters take turns, and so do the places of an adapter within a size, in an order drawn from the seed: a
    short campaign sees every adapter, a long one every place. Lengths are drawn so that short and long runs
    are equally common. Before them come the runs of a corpus, and change nothing in them.
    """
    for number, kept in enumerate(header.corpus):
        place = header.places[kept.place]
        yield replace(make_task(header, number, place), seed=kept.seed, limit=kept.limit)
    turns, before = _Turns(header), len(header.corpus)
    planned = number = 0
    while header.operations is None or planned < header.operations:
        task = make_task(header, number, turns.take(number))
        planned += task.limit
        yield replace(task, number=before + number)
        number += 1


def is_run_of(header: CampaignHeader, number: int, seed: int) -> bool:
    """Tell whether a campaign has a run with this number and this seed."""
    before = len(header.corpus)
    return (seed_of(header, number - before) if number >= before else header.corpus[number].seed) == seed


def count_runs(header: CampaignHeader) -> int | None:
    """Return the number of runs in a campaign, or ``None`` if time decides; takes 20 microseconds a run."""
    return None if header.operations is None else sum(1 for _ in plan_runs(header)) if header.places else 0


def runs_of_shard(header: CampaignHeader) -> Iterator[RunTask]:
    """Yield the runs that the ledger of a header should have: all of `plan_runs`, or a shard's.

    Shards have equally many operations, but for one run.
    """
    runs = plan_runs(header)
    return runs if header.shard is None else Shard(*header.shard).keep(runs, lambda task: task.limit)


def seed_of(header: CampaignHeader, number: int) -> int:
    """Return the seed of a run, given the campaign and the number of the run."""
    return int.from_bytes(hashlib.sha256(f"{header.seed}/{number}".encode()).digest()[:6])


def make_task(header: CampaignHeader, number: int, place: Place) -> RunTask:
    """Return a run of a campaign, given its number and its place."""
    seed = seed_of(header, number)
    source = random.Random(f"{seed}/length")
    longest = max(header.longest // SIZES.get(place.size, 1), min(_SHORTEST_EVER, header.longest))
    shortest = min(_SHORTEST, longest)
    limit = int(shortest * (longest / shortest) ** source.random())
    if header.operations is not None:
        limit = min(limit, header.operations)
    known = header.known_at(place)
    return RunTask(number, header.version_at(place), place, seed, limit, header.audit, deviations=known)


class _Turns:
    """The order of places: one adapter after the other, each in a randomly drawn size."""

    def __init__(self, header: CampaignHeader) -> None:
        self._seed = header.seed
        self._places: dict[str, dict[str, list[Place]]] = defaultdict(lambda: defaultdict(list))
        for place in header.places:
            self._places[place.adapter][place.size].append(place)
        self._taken: dict[tuple[str, str], int] = defaultdict(int)
        for adapter, sizes in self._places.items():
            for size, places in sizes.items():
                random.Random(f"{header.seed}/{adapter}/{size}").shuffle(places)

    def take(self, number: int) -> Place:
        """Return the place of the next run; run numbers must be given in order."""
        adapters = list(self._places)
        adapter = adapters[number % len(adapters)]
        sizes = self._places[adapter]
        source = random.Random(f"{self._seed}/{number}/size")
        (size,) = source.choices(list(sizes), [_SIZE_SHARES[size] for size in sizes])
        taken = self._taken[adapter, size]
        self._taken[adapter, size] += 1
        return sizes[size][taken % len(sizes[size])]
