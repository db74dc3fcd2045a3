"""The results of one campaign or of several merged ones: totals, verdict and document."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pymllm.documents.campaigns import CampaignRow, FindingRow, SoakDocument
from pymllm.documents.searches import DeviationRow
from pymllm.machines.smoke import SmokeFailure
from pymllm.oracle.verdicts import Verdict
from pymllm.search.deviations import GONE, tell_deviations
from pymllm.search.shrinker import Finding
from pymllm.soak.drift import Drift, DriftVerdict
from pymllm.soak.ledger import CampaignHeader
from pymllm.soak.merging import Conflict, Missing
from pymllm.soak.totals import Totals
from pymllm.work.shards import Shard


@dataclass(frozen=True, slots=True)
class SoakReport:
    """The results of one campaign or of several merged ones."""

    headers: tuple[CampaignHeader, ...]  # one, or those of the campaigns that were put together
    totals: Totals
    drifts: tuple[Drift, ...]
    seconds: float = 0.0  # this took, wall-clock; 0 where ledgers were only read
    jobs: int = 1
    # where ledger and programs are; of campaigns that were put together, the programs are in their `parts`
    folder: Path | None = None
    # by adapter and law: the program made small by this campaign
    findings: dict[tuple[str, str], Finding] | None = None
    refused: tuple[SmokeFailure, ...] = ()  # adapters that could not be played at all
    conflicts: tuple[Conflict, ...] = ()  # the first lines of runs that did not do the same twice
    interruption: KeyboardInterrupt | None = None  # what ended it early
    parts: tuple[Path, ...] = ()  # the folders of campaigns that were put together
    missing_runs: tuple[Missing, ...] = ()  # that are in none of them
    without_ledger: tuple[str, ...] = ()  # folders in which nothing was played
    differing: int = 0  # how many runs did not do the same twice
    given_up: dict[str, str] = field(default_factory=dict)  # shards that no machine played, and why
    kinds: tuple[FindingRow, ...] = ()  # what was found in them, equal programs once
    has_baseline: bool = False  # whether it was compared with what was known before

    @property
    def missing(self) -> dict[str, list[str]]:
        """Coverage goals that no run reached, by adapter."""
        return {name: it.missing for name, it in self.totals.adapters.items() if it.missing}

    @property
    def growing(self) -> tuple[Drift, ...]:
        """The measures of memory that grow."""
        return tuple(drift for drift in self.drifts if drift.verdict is DriftVerdict.GROWS)

    def _missing_of(self, header: CampaignHeader) -> tuple[int, tuple[tuple[int, int], ...]]:
        found = (it for it in self.missing_runs if it.header == header)
        return next(((it.count, it.ranges) for it in found), (0, ()))

    @property
    def has_news(self) -> bool:
        """Whether any finding is new."""
        return any(it.new for it in self.kinds)

    @property
    def deviations(self) -> tuple[DeviationRow, ...]:
        """A row for each known deviation, with its status over all campaigns."""
        known = {repr(it): it for header in self.headers for it in header.deviations}
        met = {it.name: (it.laws, it.known) for it in self.totals.adapters.values()}
        return tell_deviations(tuple(known.values()), met)

    def verdict(self, *, strict: bool = False) -> Verdict:
        """Return the verdict; ``strict`` counts a missed coverage goal or growing memory as a violation.

        So does a deviation that no longer shows. Where nothing was played nothing is known, nor where runs
        are missing.
        """
        gone = any(row.status == GONE for row in self.deviations)
        unmet = strict and bool(self.missing or self.growing or gone)
        is_broken = self.has_news if self.has_baseline else self.totals.has_violations
        if is_broken or self.conflicts or unmet:
            return Verdict.VIOLATED
        lacks = self.refused or self.missing_runs or self.given_up or self.without_ledger
        is_unknown = self.totals.has_problems or lacks or not self.totals.runs
        return Verdict.UNKNOWN if is_unknown else Verdict.HOLDS

    def document(self, *, strict: bool = False) -> SoakDocument:
        """Return the report's document; ``strict`` as of `verdict`."""
        totals, verdict = self.totals, self.verdict(strict=strict)
        return SoakDocument(
            campaigns=tuple(
                CampaignRow(
                    *(it.version, it.versions, it.seed, it.operations, it.longest, it.audit, len(it.places)),
                    it.runs,
                    it.shard and str(Shard(*it.shard)),
                    *self._missing_of(it),
                )
                for it in self.headers
            ),
            strict=strict,
            verdict=verdict,
            exit_status=verdict.exit_status,
            interrupted=self.interruption is not None,
            seconds=round(self.seconds, 3),
            jobs=self.jobs,
            folder=None if self.folder is None else str(self.folder),
            runs=totals.runs,
            operations=totals.operations,
            cpu_seconds=round(totals.cpu, 3),
            peak_bytes=totals.memory.peak,
            adapters=tuple(it.row() for it in totals.adapters.values()),
            drifts=tuple(it.row() for it in self.drifts),
            refused={it.name: it.message for it in self.refused},
            conflicts=tuple(map(str, self.conflicts)),
            deviations=self.deviations,
            findings=self.kinds,
            has_baseline=self.has_baseline,
            given_up=self.given_up,
            without_ledger=self.without_ledger,
        )
