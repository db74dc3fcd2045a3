"""A campaign: runs handed to processes, each written to the ledger when it ends, until it is enough.

Runs go to processes of our own (`pymllm.conformance.workers`) and not to joblib, which an early design
had: an adapter under test may hang or end its process, and a campaign of hours must outlive that.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from msgspec import structs

from pymllm.adapters.registry import AdapterEntry
from pymllm.conformance.deviations import GONE, is_of_version, tell_deviations
from pymllm.conformance.documents import CampaignRow, DeviationRow, FindingRow, SoakDocument
from pymllm.conformance.foreign_source import digest_adapter
from pymllm.conformance.machines import MACHINES, missing_machines
from pymllm.conformance.runner import Progress, versions
from pymllm.conformance.shards import Shard
from pymllm.conformance.shrinker import Finding
from pymllm.conformance.smoke import SmokeFailure
from pymllm.conformance.soak.corpus import CorpusRun, RareRuns, choose_runs, read_corpus, write_corpus
from pymllm.conformance.soak.findings import (
    PROGRAMS,
    Findings,
    compare_findings,
    unseen,
    write_findings,
)
from pymllm.conformance.soak.ledger import (
    FILE,
    CampaignHeader,
    Failure,
    Ledger,
    Place,
    RunRecord,
    has_lines,
    read_ledger,
)
from pymllm.conformance.soak.merging import Conflict, Merged, Missing, merge_ledgers
from pymllm.conformance.soak.player import PlayedRun, play_run
from pymllm.conformance.soak.schedule import (
    SIZES,
    RunTask,
    count_runs,
    find_places_of,
    make_task,
    runs_of_shard,
)
from pymllm.conformance.soak.totals import Drift, DriftVerdict, Totals
from pymllm.conformance.workers import Lost, Workers
from pymllm.errors import UsageError
from pymllm.history.files import Config, Deviation, History, write_history
from pymllm.instrument.provenance import build_version
from pymllm.oracle.laws import LAWS
from pymllm.oracle.verdicts import Verdict
from pymllm.text_file import did_you_mean

_RETRIES = 2
"""How often a run is played again whose process somebody killed, until that counts as its adapter's doing."""
_EVERY_LAW = frozenset(law.id for law in LAWS)

Onlooker = Callable[[Totals], None]
"""Called now and then with what there is so far."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """What to play, and for how long."""

    adapters: tuple[AdapterEntry, ...]
    # only these configurations; empty for the adapters' own and those grown from them
    configs: tuple[Config, ...] = ()
    seed: int = 0  # of all choices
    operations: int | None = None  # operations to play; the same runs on every machine
    seconds: float | None = None  # after which no run begins
    longest: int = 50_000  # most operations of one run
    audit: int = 64  # operations between two walks from inside; 0 for none
    jobs: int = 1
    timeout: float = 0.0  # most seconds for one call of an adapter; 0 for no limit
    stops_on_failure: bool = False  # whether no run begins after one that broke a law
    machine: str | None = None  # only this machine, by its name
    run: int | None = None  # play the run with this seed, and nothing else, at the one place there is
    deviations: tuple[Deviation, ...] = ()  # what is known to differ, and is passed over
    # only this part of the runs, and its failures are made small when all parts are merged
    shard: Shard | None = None
    corpus: tuple[CorpusRun, ...] = ()  # runs that come first, where they can be played


@dataclass(frozen=True, slots=True)
class SoakReport:
    """The results of a campaign."""

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
    conflicts: tuple[Conflict, ...] = ()  # runs that did not do the same twice
    interruption: KeyboardInterrupt | None = None  # what ended it early
    parts: tuple[Path, ...] = ()  # the folders of campaigns that were put together
    missing_runs: tuple[Missing, ...] = ()  # that are in none of them
    kinds: tuple[FindingRow, ...] = ()  # what was found in them, equal programs once
    has_baseline: bool = False  # whether it was compared with what was known before

    @property
    def missing(self) -> dict[str, list[str]]:
        """Coverage goals at zero, by adapter."""
        return {name: it.missing for name, it in self.totals.adapters.items() if it.missing}

    @property
    def growing(self) -> tuple[Drift, ...]:
        """Measures of memory that grow."""
        return tuple(drift for drift in self.drifts if drift.verdict is DriftVerdict.GROWS)

    def _missing_of(self, header: CampaignHeader) -> tuple[int, tuple[tuple[int, int], ...]]:
        found = (it for it in self.missing_runs if it.header == header)
        return next(((it.count, it.ranges) for it in found), (0, ()))

    @property
    def has_news(self) -> bool:
        """Whether something was found that was not known."""
        return any(it.new for it in self.kinds)

    @property
    def deviations(self) -> tuple[DeviationRow, ...]:
        """What became of what is known, over all campaigns."""
        known = {repr(it): it for header in self.headers for it in header.deviations}
        met = {it.name: (it.laws, it.known) for it in self.totals.adapters.values()}
        return tell_deviations(tuple(known.values()), met)

    def verdict(self, *, strict: bool = False) -> Verdict:
        """Return the verdict; a strict one takes a coverage goal at zero or memory that grows for broken.

        So does a deviation that no longer shows. Where nothing was played nothing is known, nor where runs
        are missing.
        """
        gone = any(row.status == GONE for row in self.deviations)
        unmet = strict and bool(self.missing or self.growing or gone)
        is_broken = self.has_news if self.has_baseline else self.totals.has_violations
        if is_broken or self.conflicts or unmet:
            return Verdict.VIOLATED
        is_unknown = self.totals.has_problems or self.refused or self.missing_runs or not self.totals.runs
        return Verdict.UNKNOWN if is_unknown else Verdict.HOLDS

    def document(self, *, strict: bool = False) -> SoakDocument:
        """Return the record of it; ``strict`` as of `verdict`."""
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
        )


def load_campaign(folder: Path) -> tuple[CampaignHeader, Merged]:
    """Read a campaign that is to go on, and its runs by number; `UsageError` where it cannot.

    It was written by another version: what it would go on with are other programs. Or several campaigns are
    in it, lines of one run that disagree, a place that no campaign has, or a link for its ledger.
    `TraceError` and `OSError` as of `read_ledger`.
    """
    if not _stays_inside(folder / FILE, folder):
        raise UsageError(f"{folder}: {FILE} is a link to a file elsewhere; put the file in its place")
    merged = merge_ledgers([folder / FILE])
    headers = merged.headers
    if len(headers) > 1:
        raise UsageError(
            f"{folder} has {len(headers)} campaigns in one ledger; resume one that has a ledger of its own"
        )
    if headers[0].version != build_version():
        raise UsageError(
            f"{folder} is of version {headers[0].version}, which alone resumes it; this is {build_version()}"
        )
    if merged.conflicts:
        raise UsageError(
            f"{folder} has lines of one run that disagree; pymllm soak merge {folder} shows them"
        )
    _refuse_strange_places(folder, headers[0])
    return next(it for it in read_ledger(folder / FILE) if isinstance(it, CampaignHeader)), merged


def _stays_inside(path: Path, folder: Path) -> bool:
    """Tell whether what is written to a file of a campaign stays there: a folder may have come with links."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))  # circles included


def _refuse_strange_places(folder: Path, header: CampaignHeader) -> None:
    if any(not 0 <= kept.place < len(header.places) or kept.limit < 1 for kept in header.corpus):
        raise UsageError(f"{folder}: a run of the corpus is at a place that there is not, or has no length")
    if header.longest < 1:
        raise UsageError(f"{folder}: longest is {header.longest}; a run has 1 operation or more")
    for place in header.places:
        machines = [entry.name for entry in MACHINES.get(place.kind, ())]
        for what, value, known in (
            ("kind", place.kind, MACHINES),
            ("machine", place.machine, machines),
            ("size", place.size, SIZES),
        ):
            if value not in known:
                raise UsageError(f"{folder}: a {what} is {value!r}; it must be one of {', '.join(known)}")


def _refuse_other_sources(folder: Path, header: CampaignHeader) -> None:
    for name, source in dict.fromkeys((place.adapter, place.source) for place in header.places):
        if digest_adapter(name) != source:
            raise UsageError(
                f"the source of {name} changed since the campaign in {folder} began; begin a new one"
            )


def soak(
    plan: SoakPlan,
    folder: Path,
    resumed: tuple[CampaignHeader, Iterable[RunRecord]] | None = None,
    show: Onlooker | None = None,
) -> SoakReport:
    """Play a campaign; of a plan that goes on, only time, processes and what ends it are looked at.

    A shard that has begun in the folder goes on there, so that what starts it again need not know.
    `UsageError`: there is no such class as ``module:Class`` names, nothing to play, the source of an adapter
    from outside this package changed since the campaign began, or another campaign is in the folder.
    `OSError`: the ledger cannot be written. `KeyboardInterrupt`: it came before anything was played.
    """
    start = time.monotonic()
    if resumed is not None:
        _refuse_other_sources(folder, resumed[0])
    with Workers(plan.jobs, plan.timeout) as workers:
        refused: tuple[SmokeFailure, ...] = ()
        if resumed is None:
            header, refused = _begin(plan, workers, show)
            if plan.shard is not None:
                resumed = _find_begun(folder, header)
        if resumed is not None:
            header = resumed[0]
        campaign = _Campaign(plan, header, folder, show)
        with Ledger(folder / FILE, is_new=resumed is None) as ledger:
            if resumed is None:
                ledger.add(header)
            for record in resumed[1] if resumed is not None else ():
                if record.has_ended:
                    campaign.count(record)
            campaign.play(workers, ledger, start)
    if workers.interruption is not None and not campaign.totals.runs:
        raise workers.interruption
    return SoakReport(
        (header,),
        campaign.totals,
        campaign.totals.memory.estimate(),
        time.monotonic() - start,
        plan.jobs,
        folder,
        campaign.findings,
        refused,
        (),
        workers.interruption,
    )


def _begin(
    plan: SoakPlan, workers: Workers, show: Onlooker | None
) -> tuple[CampaignHeader, tuple[SmokeFailure, ...]]:
    done = None if show is None else lambda count: show(Totals([]))
    answers = workers.map(find_places_of, [(entry, plan.configs) for entry in plan.adapters], done)
    if workers.interruption is not None:
        raise workers.interruption
    refused: list[SmokeFailure] = []
    places: list[Place] = []
    for entry, answer in zip(plan.adapters, answers, strict=True):
        if isinstance(answer, Lost):
            refused.append(SmokeFailure(entry.name, None, answer.message))
        elif isinstance(answer, SmokeFailure):
            answer.refuse_missing()
            refused.append(answer)
        else:
            places += [place for place in answer if plan.machine in (None, place.machine)]
            refused += _missing_players(answer, plan.machine)
    if not places and not refused:
        known = sorted({place.machine for it in answers if isinstance(it, tuple) for place in it})
        near = did_you_mean(str(plan.machine), known)
        raise UsageError(f"--machine {plan.machine}{near}: these adapters have {', '.join(known)}")
    if plan.run is not None and len(places) > 1:
        names = ", ".join(dict.fromkeys(place.machine for place in places))
        raise UsageError(
            f"the run may be of {len(places)} places; give one --config, and one --machine of {names}"
        )
    header = CampaignHeader(
        build_version(),
        versions(),
        plan.seed,
        plan.operations,
        plan.longest,
        plan.audit,
        tuple(places),
        tuple(filter(is_of_version, plan.deviations)),
    )
    if plan.run is None:
        header = structs.replace(header, corpus=choose_runs(plan.corpus, header.places))
        header = structs.replace(header, runs=count_runs(header))
    header, runs = structs.replace(header, shard=plan.shard and astuple(plan.shard)), header.runs
    if plan.shard is not None and runs is not None and 0 < runs < plan.shard.count:
        raise UsageError(
            f"--shard {plan.shard}: the campaign has {runs} runs; take at most so many shards, or give it "
            "more --operations or a smaller --longest"
        )
    return header, tuple(refused)


def _find_begun(folder: Path, header: CampaignHeader) -> tuple[CampaignHeader, Merged] | None:
    """Read what there is already of a shard that is to be played; `UsageError` where it is something else."""
    if not has_lines(folder / FILE):
        return None
    there, runs = load_campaign(folder)
    if structs.replace(there, versions=header.versions) != header:
        raise UsageError(
            f"{folder}: there is another campaign, or another shard; choose another folder, or --resume that"
        )
    return there, runs


def _missing_players(places: Sequence[Place], asked: str | None) -> list[SmokeFailure]:
    """Return which machines would play at some places and cannot here, each once with its reason."""
    missing = {
        entry.name: SmokeFailure(place.adapter, place.kind, entry.why_missing or "")
        for place in places
        for entry in missing_machines(place.kind, place.capabilities)
        if asked in (None, entry.name)
    }
    return list(missing.values())


class _Campaign:
    """The state of a campaign that is being played."""

    def __init__(self, plan: SoakPlan, header: CampaignHeader, folder: Path, show: Onlooker | None) -> None:
        self.totals = Totals([header])
        self.findings: dict[tuple[str, str], Finding] = {}
        self._plan = plan
        self._header = header
        self._folder = folder
        self._show = show or (lambda totals: None)
        self._done: set[int] = set()
        self._killed: Counter[int] = Counter()  # how often the process of a run was killed
        self._again: list[RunTask] = []  # to be played once more
        self._is_over = False

    def count(self, record: RunRecord) -> None:
        """Take a run into the totals, and do not play it again."""
        self._done.add(record.number)
        self.totals.add(record)

    def play(self, workers: Workers, ledger: Ledger, start: float) -> None:
        """Play what is left; an interrupt ends it with whole lines."""
        try:
            self._play_all(workers, ledger, self._all_tasks(), start)
            while self._again and not workers.interruption:
                again, self._again = self._again, []
                self._play_all(workers, ledger, again, start)
        except KeyboardInterrupt as interruption:  # between two answers
            workers.interruption = interruption

    def _play_all(self, workers: Workers, ledger: Ledger, tasks: Iterable[RunTask], start: float) -> None:
        for task, answer in workers.stream(play_run, self._tasks(tasks, start), self._tick):
            if isinstance(answer, Lost) and self._is_to_be_played_again(task, answer):
                continue
            played = PlayedRun(_lost(task, answer), answer.history) if isinstance(answer, Lost) else answer
            record = self._keep_programs(played)
            ledger.add(record)
            self.count(record)
            self._is_over |= self._plan.stops_on_failure and record.failure is not None
            self._tick()

    def _is_to_be_played_again(self, task: RunTask, answer: Lost) -> bool:
        """Tell whether a run shall be forgotten that somebody else ended: it says nothing of the adapter."""
        self._killed[task.number] += answer.is_killed
        is_again = answer.is_killed and self._killed[task.number] <= _RETRIES
        self._again += [task] if is_again else []
        return is_again

    def _tasks(self, tasks: Iterable[RunTask], start: float) -> Iterator[RunTask]:
        for task in tasks:
            is_late = self._plan.seconds is not None and time.monotonic() - start >= self._plan.seconds
            if self._is_over or is_late:
                return
            if task.number not in self._done:
                known = frozenset(law for name, law in self.findings if name == task.place.adapter)
                yield replace(task, known=known if self._header.shard is None else _EVERY_LAW)

    def _all_tasks(self) -> Iterator[RunTask]:
        header, run = self._header, self._plan.run
        if not header.places:
            return
        if run is None:
            yield from runs_of_shard(header)
        else:
            limit, place = header.operations or header.longest, header.places[0]
            yield replace(make_task(header, 0, place), seed=run, limit=limit)

    def _tick(self) -> None:
        self._show(self.totals)

    def _keep_programs(self, played: PlayedRun) -> RunRecord:
        """Write the programs of a failure; what cannot be written is left out."""
        record, finding = played.record, played.finding
        if record.failure is None or played.history is None:
            return record
        law = record.failure.law or "problem"
        adapter = re.sub(r"[^\w.-]+", "-", record.adapter)  # of a ``module:Class`` the name of a file
        name = f"{adapter}-{law}-{record.seed}"
        note = f"{law}: {record.failure.message}"
        file = self._write(f"{name}.jsonl", played.history, note)
        short = None
        if finding is not None:
            self.findings[record.adapter, finding.law] = finding
            short = self._write(f"{name}-short.jsonl", finding.history, str(finding.violation))
        return structs.replace(record, file=file, short=short)

    def _write(self, name: str, history: History, note: str) -> str | None:
        path = self._folder / PROGRAMS / name
        header = replace(history.header, versions=self._header.versions, note=note)
        if not _stays_inside(path, self._folder):
            return None
        try:
            path.parent.mkdir(exist_ok=True)
            write_history(History(header, history.steps), path)
        except OSError:
            return None
        return f"{PROGRAMS}/{name}"


def _lost(task: RunTask, answer: Lost) -> RunRecord:
    """Write down that the process of a run died or hung."""
    steps = answer.history.steps if answer.history is not None else []
    failure = Failure(None, answer.message, step=steps[-1].number if steps else 0)
    return RunRecord(*task.head, 0, len(steps), (), {}, {}, {}, "", failure)


def find_ledgers(folders: Iterable[Path]) -> list[Path]:
    """Return the ledger of each campaign; one that is named itself stays what it is."""
    return [folder / FILE if folder.is_dir() else folder for folder in folders]


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What is done with campaigns that are put together."""

    output: Path | None = None  # folder for one ledger of all runs, findings, and their small programs
    shrinks: int = 0  # so many failing runs of each adapter and law are made small
    baseline: tuple[FindingRow, ...] | None = None  # what was known before
    corpus: Path | None = None  # folder whose corpus is to have the runs that reached what few reach
    jobs: int = 1  # processes that make programs small
    progress: Progress = unseen
    # refuses adapters that nobody trusts, before one of them runs
    refuse: Callable[[Iterable[str]], None] = lambda adapters: None


def merge_campaigns(folders: Sequence[Path], plan: MergePlan | None = None) -> SoakReport:
    """Put campaigns, folders or ledgers, together.

    Programs as they were played stay where they are. `FileExistsError`: there is a ledger in ``output``.
    `TraceError`, `OSError`: a ledger cannot be read, or none can be written.
    """
    plan = plan or MergePlan()
    output = plan.output
    if output is not None and (output / FILE).exists():
        raise FileExistsError(output / FILE)
    ledgers = find_ledgers(folders)
    corpus = () if plan.corpus is None else read_corpus(plan.corpus)
    with plan.progress("ledgers", len(ledgers)) as done:
        merged = merge_ledgers(ledgers, done=done)
    if output is not None:
        merged.write(output)
    totals, found, rare = Totals(merged.headers), Findings(plan.shrinks), RareRuns()
    for run in merged:
        totals.add(run)
        found.add(run)
        rare.add(run)
    if plan.shrinks:
        plan.refuse(found.adapters())
    parts = tuple(ledger.parent for ledger in ledgers)
    kinds = found.settle(parts, output, plan.jobs, plan.progress)
    if plan.baseline is not None:
        kinds = compare_findings(kinds, plan.baseline)
    if output is not None:
        write_findings(kinds, output)
    if plan.corpus is not None:
        write_corpus(rare.settle(corpus), plan.corpus)
    return SoakReport(
        tuple(merged.headers),
        totals,
        totals.memory.estimate(),
        folder=output,
        conflicts=tuple(merged.conflicts),
        parts=parts,
        kinds=kinds,
        has_baseline=plan.baseline is not None,
        missing_runs=tuple(merged.missing),
    )
