"""A campaign: runs given to processes, each written to the ledger when it ends, until the plan is met.

Runs go to processes of our own (`pymllm.work.workers`) and not to joblib, which an early design
had: an adapter under test may hang or end its process, and a campaign of hours must outlive that.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from pymllm.adapters.entry import AdapterEntry
from pymllm.documents.campaigns import Failure
from pymllm.errors import UsageError
from pymllm.history.files import Config, Deviation, History, write_history
from pymllm.instrument.provenance import build_version
from pymllm.machines.registry import missing_machines
from pymllm.machines.smoke import SmokeFailure
from pymllm.oracle.laws import LAWS
from pymllm.search.deviations import is_of_version
from pymllm.search.runner import versions
from pymllm.search.shrinker import Finding
from pymllm.soak.corpus import CorpusRun, choose_runs
from pymllm.soak.findings import (
    PROGRAMS,
)
from pymllm.soak.ledger import FILE, CampaignHeader, Ledger, Place, RunRecord
from pymllm.soak.player import PlayedRun, play_run
from pymllm.soak.results import SoakReport
from pymllm.soak.resuming import find_begun, refuse_other_sources, stays_inside
from pymllm.soak.schedule import (
    RunTask,
    count_runs,
    find_places_of,
    make_task,
    runs_of_shard,
)
from pymllm.soak.totals import Totals
from pymllm.text_file import did_you_mean
from pymllm.work.shards import Shard
from pymllm.work.workers import Lost, Workers

_RETRIES = 2
"""How often a run is repeated whose process was killed from outside, before its adapter is at fault."""
_EVERY_LAW = frozenset(law.id for law in LAWS)

Onlooker = Callable[[Totals], None]
"""A function that is called from time to time with the results so far."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """The plan of a campaign: the runs to play, and for how long."""

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


def soak(
    plan: SoakPlan,
    folder: Path,
    resumed: tuple[CampaignHeader, Iterable[RunRecord]] | None = None,
    show: Onlooker | None = None,
) -> SoakReport:
    """Play a campaign; one that is resumed takes only time, processes and end from the plan.

    A shard that has begun in the folder goes on there, so that what starts it again need not know.
    `UsageError`: there is no such class as ``module:Class`` names, nothing to play, the source of an adapter
    from outside this package changed since the campaign began, or another campaign is in the folder.
    `OSError`: the ledger cannot be written. `KeyboardInterrupt`: it came before anything was played.
    """
    start = time.monotonic()
    if resumed is not None:
        refuse_other_sources(folder, resumed[0])
    with Workers(plan.jobs, plan.timeout) as workers:
        refused: tuple[SmokeFailure, ...] = ()
        if resumed is None:
            header, refused = _begin(plan, workers, show)
            if plan.shard is not None:
                resumed = find_begun(folder, header)
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
        versions(plan.adapters),
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
    shard = None if plan.shard is None else (plan.shard.number, plan.shard.count)
    header, runs = structs.replace(header, shard=shard), header.runs
    if plan.shard is not None and runs is not None and 0 < runs < plan.shard.count:
        raise UsageError(
            f"{plan.shard.asked}: the campaign has {runs} runs; take at most so many shards, or give it "
            "more --operations or a smaller --longest"
        )
    return header, tuple(refused)


def _missing_players(places: Sequence[Place], asked: str | None) -> list[SmokeFailure]:
    """Return the machines that places need and that cannot run here, each once with its reason."""
    missing = {
        entry.name: SmokeFailure(place.adapter, place.kind, entry.why_missing or "")
        for place in places
        for entry in missing_machines(place.kind, place.capabilities)
        if asked in (None, entry.name)
    }
    return list(missing.values())


class _Campaign:
    """The state of a campaign in progress."""

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
        """Add a run to the totals, so that the campaign does not play it again."""
        self._done.add(record.number)
        self.totals.add(record)

    def play(self, workers: Workers, ledger: Ledger, start: float) -> None:
        """Play the remaining runs; an interrupt ends the campaign between two lines of the ledger."""
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
        """Tell whether to repeat a run whose process was killed from outside, not through the adapter."""
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
        """Write the programs of a failure; leave out programs that cannot be written."""
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
        if not stays_inside(path, self._folder):
            return None
        try:
            path.parent.mkdir(exist_ok=True)
            write_history(History(header, history.steps), path)
        except OSError:
            return None
        return f"{PROGRAMS}/{name}"


def _lost(task: RunTask, answer: Lost) -> RunRecord:
    """Return the record of a run whose process died or hung."""
    steps = answer.history.steps if answer.history is not None else []
    failure = Failure(None, answer.message, step=steps[-1].number if steps else 0)
    return RunRecord(*task.head, 0, len(steps), (), {}, {}, {}, "", failure)
