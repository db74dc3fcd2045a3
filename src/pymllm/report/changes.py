"""The changes between two runs of one kind, and the run since which each law has been broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.faults import FaultsDocument
from pymllm.documents.programs import JudgementDocument
from pymllm.documents.replays import ReplayDocument
from pymllm.documents.runs import FAIL_ON, DiffDocument, FigureChange, FindingChange, LawChange
from pymllm.documents.searches import VerifyDocument
from pymllm.errors import UsageError
from pymllm.oracle.verdicts import Verdict
from pymllm.report.loading import Run, grouped
from pymllm.report.quantities import show_time
from pymllm.report.records import Figure, Machine
from pymllm.report.trends import figures_of

_RANKS = (Verdict.HOLDS, Verdict.NOT_CLAIMED, Verdict.UNKNOWN, Verdict.VIOLATED)


# -- what is known of a run --------------------------------------------------------------------------------


@dataclass(slots=True)
class Facts:
    """The comparable facts of a run: verdicts, findings, figures, coverage goals and faults."""

    source: str
    kind: str  # `compare` searches as `verify` does, and is of its kind
    machine: Machine | None = None
    laws: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    findings: dict[tuple[str, str | None, str], str] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    faults: dict[str, bool] = field(default_factory=dict)

    def take(self, document: object) -> None:
        """Add the facts of a document."""
        match document:
            case VerifyDocument():
                for adapter in document.adapters:
                    for law in adapter.laws:
                        self.judge(adapter.name, law.id, law.verdict)
                    for it in adapter.violations:
                        self.find(adapter.name, it.law, it.message)
                    for problem in adapter.problems:
                        self.find(adapter.name, None, problem.message)
                    for machine in adapter.machines:
                        self.reach(f"{adapter.name}, {machine.name}", machine.goals)
            case SoakDocument():
                for soaked in document.adapters:
                    for law_id in soaked.untested_laws:
                        self.judge(soaked.name, law_id, Verdict.UNKNOWN)
                    for law_id, tests in soaked.tests.items():
                        self.judge(soaked.name, law_id, Verdict.HOLDS if tests else Verdict.UNKNOWN)
                    self.reach(soaked.name, soaked.goals)
                    for row in soaked.failures:
                        self.find(soaked.name, row.failure.law, row.failure.message)
                laws = {row.failure.law for soaked in document.adapters for row in soaked.failures}
                for conflict in () if "X3" in laws else document.conflicts:  # of an older version
                    self.find("the campaign", "X3", conflict)
            case JudgementDocument():
                subject = document.adapter
                self.laws |= {(subject, law): Verdict.HOLDS for law, n in document.tests.items() if n}
                if document.violation is not None:
                    self.find(subject, document.violation.law, document.violation.message)
            case ReplayDocument() if document.violation is not None:
                self.find(document.violation.cache, document.violation.law, document.violation.message)
            case FaultsDocument():
                self.faults |= {row.id: row.caught for row in document.faults}

    def judge(self, subject: str, law: str, verdict: Verdict) -> None:
        """Record a verdict on a law; a law that any document of the run saw broken stays broken."""
        if self.laws.get((subject, law)) is not Verdict.VIOLATED:
            self.laws[subject, law] = verdict

    def find(self, subject: str, law: str | None, message: str) -> None:
        """Record a broken law (once, under any message) or a problem."""
        self.findings.setdefault((subject, law, "" if law else message), message)
        if law:
            self.laws[subject, law] = Verdict.VIOLATED

    def reach(self, where: str, goals: Mapping[str, int]) -> None:
        """Record the coverage goals that were reached."""
        self.reached |= {f"{name} ({where})" for name, times in goals.items() if times}

    @property
    def subjects(self) -> set[str]:
        """The subjects, such as adapters, whose laws were tested."""
        return {subject for subject, _ in self.laws}

    @property
    def parts(self) -> set[tuple[str, str]]:
        """The comparable parts of the run: subjects of laws, figures and faults."""
        laws = {("laws", subject) for subject in self.subjects}
        return laws | {("figure", name) for name in self.figures} | {("fault", id) for id in self.faults}


def facts_of(run: Run) -> Facts:
    """Return the facts of a run."""
    facts = Facts(run.source, {"compare": "verify"}.get(run.kind, run.kind), run.machine)
    figures = [*run.figures]
    for document in run.documents:
        facts.take(document)
        figures += figures_of(document)
    facts.figures = {it.name: it for it in figures if it.value is not None}
    return facts


# -- two runs ----------------------------------------------------------------------------------------------


def compare_runs(before: Facts, after: Facts, fail_on: Iterable[str] = ()) -> DiffDocument:
    """Compare two runs of one kind; raise `UsageError` for runs of different kinds."""
    if before.kind != after.kind:
        raise UsageError(
            f"{before.source} is a run of {before.kind}, {after.source} of {after.kind}; two of one kind are "
            "compared"
        )
    laws = [
        LawChange(*key, was, now, _RANKS.index(now) > _RANKS.index(was))
        for key, was in before.laws.items()
        if (now := after.laws.get(key, was)) is not was
    ]
    findings = [
        FindingChange(subject, law, mine.findings[subject, law, words], is_new)
        for is_new, mine, other in ((True, after, before), (False, before, after))
        for subject, law, words in mine.findings
        if (subject, law, words) not in other.findings
    ]
    figures = [
        _change(before, after, name)
        for name in before.figures.keys() & after.figures.keys()
        if before.figures[name].value != after.figures[name].value
    ]
    both = before.faults.keys() & after.faults.keys()
    missed = sorted(id for id in both if before.faults[id] and not after.faults[id])
    lost = sorted(before.reached - after.reached)
    reasons = {
        "law": any(it.worse for it in laws),
        "finding": any(it.new for it in findings) or bool(missed),
        "figure": any(it.verdict == "worse" for it in figures),
    }
    reasons["any"] = any(reasons.values()) or bool(lost)
    failed = tuple(name for name in FAIL_ON if name in fail_on and reasons[name])
    same = len(before.laws.keys() & after.laws.keys()) + len(before.figures.keys() & after.figures.keys())
    same += len(both) + len(before.reached & after.reached)
    order = {"worse": 0, "better": 1, "changed": 2, None: 3}
    return DiffDocument(
        before=before.source,
        after=after.source,
        kind=after.kind,
        laws=tuple(sorted(laws, key=lambda it: (not it.worse, -_RANKS.index(it.after)))),
        findings=tuple(findings),
        figures=tuple(sorted(figures, key=lambda it: (order[it.verdict], it.name))),
        goals_lost=tuple(lost),
        faults_missed=tuple(missed),
        faults_caught=tuple(sorted(id for id in both if after.faults[id] and not before.faults[id])),
        only_before=tuple(sorted(before.subjects - after.subjects)),
        only_after=tuple(sorted(after.subjects - before.subjects)),
        failed_on=failed,
        compared=same,
        exit_status=1 if failed else 0 if same else 3,
    )


def _change(before: Facts, after: Facts, name: str) -> FigureChange:
    was, now = before.figures[name], after.figures[name]
    assert was.value is not None  # those without are left out
    assert now.value is not None
    machines = {it.machine.fingerprint if it.machine else None for it in (before, after)}
    verdict: Literal["worse", "better", "changed"] | None = None
    if was.low is None or was.high is None or now.low is None or now.high is None:
        test = "no samples"
    elif len(machines) > 1 or None in machines:
        test = "another machine" if len(machines) > 1 else "no machine recorded"
    elif (was.code, was.unit) != (now.code, now.unit):
        test = "other code"
    elif was.low <= now.high and now.low <= was.high:
        test = "spreads overlap"
    else:
        test, verdict = "spreads apart", "changed"
        if now.better is not None:
            verdict = "better" if (now.value < was.value) == (now.better == "smaller") else "worse"
    return FigureChange(name, now.unit, was.value, now.value, test, verdict)


# -- the runs of a store -----------------------------------------------------------------------------------


def newest_changes(runs: Sequence[Run]) -> Iterator[tuple[DiffDocument, Run, Run]]:
    """Compare the newest run of each implementation, figure and fault with the one before, by kind."""
    known = [(facts_of(run), run) for run in runs]
    for of_kind in grouped(known, lambda it: it[0].kind).values():
        seen: set[tuple[str, str]] = set()
        while of_kind:
            after, newest = of_kind.pop()
            fresh = after.parts - seen
            seen |= fresh
            earlier = next((it for it in reversed(of_kind) if it[0].parts & fresh), None)
            if earlier is not None:
                yield compare_runs(earlier[0], after), earlier[1], newest


def is_fixed(it: LawChange) -> bool:
    """Tell whether a law that was violated now holds; an untested law is not fixed."""
    return (it.before, it.after) == (Verdict.VIOLATED, Verdict.HOLDS)


def word_of(it: LawChange) -> str:
    """Return a word for the change of a verdict; a law no longer tested is neither better nor worse."""
    if is_fixed(it):
        return "fixed"
    if it.after is Verdict.VIOLATED:
        return "newly violated"
    if it.after is not Verdict.HOLDS and it.before in (Verdict.HOLDS, Verdict.VIOLATED):
        return "no longer tested" if it.after is Verdict.UNKNOWN else "no longer claimed"
    return "worse" if it.worse else "better"


@dataclass(slots=True)
class Since:
    """The first run of a store that broke a law, the number of later ones, and any later relapse."""

    first: Run
    tested: int = 0
    broke: int = 0
    held: Run | None = None  # the last in which the law held
    back: Run | None = None  # the first after that which broke it again

    def __str__(self) -> str:
        words = [_words_of(self.first)]
        if self.held is not None:
            words.append(f"held in {_words_of(self.held)}")
        if self.back is not None:
            words.append(f"broken again since {_words_of(self.back)}")
        found = "no run has tested the law since"
        if self.tested > 1:
            count = "all" if self.broke == self.tested else f"{self.broke} of the"
            found = f"{count} {self.tested} runs that tested the law since then broke it"
        return "; ".join([*words, found])


def _words_of(run: Run) -> str:
    words = [f"{'at the latest ' if run.time_is_of_file else ''}{show_time(run.time)} UTC", run.kind]
    if run.commit is not None:
        words.append(f"commit {run.commit_words}")
    if run.pymllm is not None:
        words.append(f"pymllm {run.pymllm}")
    return ", ".join(words)


def find_since(runs: Iterable[Run]) -> dict[tuple[str, str], Since]:
    """Return the run since which each implementation breaks each law; runs are in order of time."""
    found: dict[tuple[str, str], Since] = {}
    for run in runs:
        for key, verdict in facts_of(run).laws.items():
            if verdict is Verdict.VIOLATED:
                found.setdefault(key, Since(run))
            if key in found and verdict in (Verdict.VIOLATED, Verdict.HOLDS):
                since, is_broken = found[key], verdict is Verdict.VIOLATED
                since.tested += 1
                since.broke += is_broken
                if not is_broken:
                    since.held, since.back = run, None
                elif since.held is not None and since.back is None:
                    since.back = run
    return found
