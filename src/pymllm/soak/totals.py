"""The results of a campaign so far, kept in memory that does not grow with the campaign."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import structs

from pymllm.documents.campaigns import Failure, FailureRow, SoakedAdapter, SoakedLimit
from pymllm.history.files import Config
from pymllm.machines.registry import MACHINES
from pymllm.oracle.answers import limits_of
from pymllm.oracle.coverage import expected_names
from pymllm.oracle.laws import laws_of
from pymllm.soak.drift import MemoryCourse
from pymllm.soak.ledger import CampaignHeader, Place, RunRecord

_SHARES = ("adapter", "judge", "walks", "again", "driver")


def expected_at(place: Place) -> frozenset[str]:
    """Return the coverage goals that a long run at a place must reach."""
    is_driven = any(it.has_engine for it in MACHINES[place.kind] if it.name == place.machine)
    return expected_names(place.kind, place.config, place.capabilities, of_engine=is_driven)


@dataclass(slots=True)
class FailureTotals:
    """The failing runs of one adapter that broke the same law or had the same problem."""

    first: RunRecord  # the run that met it first
    runs: int = 0  # how many met it

    def row(self) -> FailureRow:
        """Return the failure's row in a document."""
        first = self.first
        assert first.failure is not None  # it is counted as one
        return FailureRow(
            runs=self.runs,
            source=first.version,
            config=first.config,
            machine=first.machine,
            seed=first.seed,
            limit=first.limit,
            failure=first.failure,
            file=first.file,
            short=first.short,
        )


@dataclass(slots=True)
class AdapterTotals:
    """The sums over all runs of one adapter."""

    name: str  # name, kind: of the adapter
    kind: str
    # planned, played: places of the campaigns, a machine on a configuration each, and those where runs were
    # played
    planned: set[str] = field(default_factory=set)
    expected: frozenset[str] = frozenset()  # coverage goals that they must reach
    laws: frozenset[str] = frozenset()  # that can be tested at some place
    played: set[str] = field(default_factory=set)
    runs: int = 0
    operations: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    cpu_by: Counter[str] = field(default_factory=Counter)
    exercised: Counter[str] = field(default_factory=Counter)
    audited: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    not_done: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    undone: dict[str, RunRecord] = field(default_factory=dict)  # the shortest run of each kind of such steps
    failures: dict[str, FailureTotals] = field(default_factory=dict)

    @property
    def places(self) -> int:
        """The number of places, where a place in several campaigns counts once."""
        return len(self.planned)

    @property
    def missing(self) -> list[str]:
        """Coverage goals that no run has reached, in order."""
        return sorted(self.expected - set(self.reached))

    @property
    def untested(self) -> list[str]:
        """Laws that no run has tested, in order."""
        return sorted(self.laws - set(+self.exercised))

    @property
    def operations_per_second(self) -> float:
        """Operations per second of processor time, including judging; 0 if nothing ran."""
        return self.operations / self.cpu if self.cpu else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """The shares of processor time by activity, as parts of 1."""
        return {name: self.cpu_by[name] / self.cpu if self.cpu else 0.0 for name in _SHARES}

    def add(self, record: RunRecord) -> None:
        """Add a run."""
        self.played.add(_place(record.config, record.machine))
        self.runs += 1
        self.operations += record.operations
        self.seconds += record.seconds
        self.cpu += record.cpu
        self.cpu_by.update({name: getattr(record.shares, name) for name in _SHARES})
        self.exercised.update(record.exercised)
        self.audited.update(record.audited)
        self.reached.update(record.reached)
        self.known.update(record.known)
        self.done.update(record.done)
        self.not_done.update(record.not_done)
        for told in record.not_done:
            if told not in self.undone or record.operations < self.undone[told].operations:
                self.undone[told] = record
        if record.failure is not None:
            about = self.failures.setdefault(record.failure.law or "", FailureTotals(record))
            about.runs += 1

    def row(self) -> SoakedAdapter:
        """Return the adapter's row in a document."""
        return SoakedAdapter(
            name=self.name,
            kind=self.kind,
            places=self.places,
            places_played=len(self.played),
            runs=self.runs,
            operations=self.operations,
            seconds=round(self.seconds, 3),
            cpu_seconds=round(self.cpu, 3),
            operations_per_cpu_second=round(self.operations_per_second, 1),
            shares={name: round(share, 4) for name, share in self.shares.items()},
            tests=dict(sorted(self.exercised.items())),
            walks=dict(sorted(self.audited.items())),
            untested_laws=tuple(self.untested),
            goals=dict(sorted(self.reached.items())),
            missing_goals=tuple(self.missing),
            failures=tuple(it.row() for it in self.failures.values()),
            limits=self.limits,
        )

    @property
    def limits(self) -> tuple[SoakedLimit, ...]:
        """Steps that were not done, by kind, each with the shortest run that contains one."""
        return tuple(
            SoakedLimit(
                operation=it.operation,
                reason=it.reason,
                not_done=it.steps,
                done=it.done,
                config=self.undone[it.told].config,
                machine=self.undone[it.told].machine,
                seed=self.undone[it.told].seed,
                limit=self.undone[it.told].limit,
            )
            for it in limits_of(self.not_done, self.done)
        )


def describe_end(record: RunRecord) -> str:
    """Return a few words for how a run ended, different for runs with different results."""
    failure = record.failure
    if failure is None:
        return f"digest {record.digest}"
    return f"digest {record.digest}; {failure.law or 'an error'} at step {failure.step}: {failure.message}"


def _place(config: Config, machine: str) -> str:
    return json.dumps([config, machine])


class Totals:
    """Sums over all runs of one or more campaigns, by adapter, and the memory samples of their processes."""

    def __init__(self, headers: Iterable[CampaignHeader] = ()) -> None:
        self.adapters: dict[str, AdapterTotals] = {}
        self.memory = MemoryCourse()
        for header in headers:
            self.expect(header)

    def expect(self, header: CampaignHeader) -> None:
        """Record the places of a campaign, with the goals and laws of each place."""
        for place in header.places:
            known = self._of(place.adapter, place.kind)
            known.planned.add(_place(place.config, place.machine))
            known.expected |= expected_at(place)
            known.laws |= {
                law.id
                for law in laws_of(place.kind)
                if law.applies_to(place.config, place.capabilities, place.kind)
            }

    def add(self, record: RunRecord) -> None:
        """Add a run."""
        self._of(record.adapter, record.kind).add(record)
        self.memory.add(record.memory)

    def differ(self, first: RunRecord, second: RunRecord, runs: int) -> None:
        """Count the runs of an adapter with different results when repeated, given one of these runs (X3)."""
        adapter = self._of(first.adapter, first.kind)
        message = "the same run, played once more"
        failure = Failure("X3", message, describe_end(first), describe_end(second), first.operations)
        record = structs.replace(first, failure=failure, file=None, short=None)
        adapter.failures.setdefault("X3", FailureTotals(record)).runs += runs

    def _of(self, adapter: str, kind: str) -> AdapterTotals:
        return self.adapters.setdefault(adapter, AdapterTotals(adapter, kind))

    @property
    def runs(self) -> int:
        """The number of runs that ended."""
        return sum(it.runs for it in self.adapters.values())

    @property
    def operations(self) -> int:
        """The number of operations carried out in all runs."""
        return sum(it.operations for it in self.adapters.values())

    @property
    def cpu(self) -> float:
        """Seconds of processor time that the runs took."""
        return sum(it.cpu for it in self.adapters.values())

    @property
    def has_violations(self) -> bool:
        """Whether any run broke a law."""
        return any(law for it in self.adapters.values() for law in it.failures)

    @property
    def has_problems(self) -> bool:
        """Whether any run failed without breaking a law, which leaves the run unjudged."""
        return any("" in it.failures for it in self.adapters.values())
