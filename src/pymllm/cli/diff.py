"""``pymllm diff``: what changed from one run to another, of any kind that a report reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from pymllm.cli import options
from pymllm.cli.program import escaped
from pymllm.cli.tables import draw, make_table, tell
from pymllm.conformance.documents import (
    FaultsDocument,
    JudgementDocument,
    ReplayDocument,
    SoakDocument,
    VerifyDocument,
    read_as,
)
from pymllm.errors import TraceError
from pymllm.instrument.documents import Document, Row
from pymllm.oracle.verdicts import Verdict
from pymllm.text_file import NotJSONError, read_json, read_text_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pymllm.report.records import Figure, Machine

_APART = "spreads apart"
_OVERLAP = "spreads overlap"
_RANKS = (Verdict.HOLDS, Verdict.NOT_CLAIMED, Verdict.UNKNOWN, Verdict.VIOLATED)
FAIL_ON = ("law", "finding", "figure", "any")


# -- the document ------------------------------------------------------------------------------------------


class LawChange(Row, frozen=True):
    """A law of one implementation with another verdict than before."""

    subject: str
    law: str
    before: Verdict
    after: Verdict
    worse: bool


class FindingChange(Row, frozen=True):
    """A broken law, or a problem where that is null, that one run alone has; new is that of the later one."""

    subject: str
    law: str | None
    message: str
    new: bool


class FigureChange(Row, frozen=True):
    """A figure with another value; where its spreads overlap, or nothing tells of noise, it is not judged.

    ``test`` says why: the spreads (quartiles, or an interval of confidence) are apart or overlap, there are
    no samples, or the machine or the code that measured is another.
    """

    name: str
    unit: str
    before: float
    after: float
    test: str
    verdict: Literal["worse", "better", "changed"] | None


class DiffDocument(Document, frozen=True, kw_only=True, tag="pymllm.diff"):
    """What ``pymllm diff --json`` prints: the worse comes first; ``failed_on`` are the reasons for status 1.

    Laws are compared where both runs know them: ``only_before`` and ``only_after`` are subjects of one alone.
    """

    before: str
    after: str
    kind: str
    laws: tuple[LawChange, ...]
    findings: tuple[FindingChange, ...]
    figures: tuple[FigureChange, ...]
    situations_lost: tuple[str, ...]
    faults_missed: tuple[str, ...]
    faults_caught: tuple[str, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    failed_on: tuple[str, ...]
    exit_status: int


# -- the command -------------------------------------------------------------------------------------------


@click.command("diff", short_help="Say what changed from one run to another.")
@click.argument("before", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.argument("after", metavar="RUN", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    multiple=True,
    help="End with 1 where a law has a worse verdict, a finding is new or a fault is missed, or a figure is "
    "worse by more than its noise; any: for each of these, and for a situation that is no longer reached.",
)
@options.json
def diff_command(before: Path, after: Path, fail_on: tuple[str, ...], as_json: bool) -> int:
    """Say what changed from the first RUN to the second: laws, findings, figures, situations, faults.

    A RUN is a file that --store or --json wrote, a folder with one such file or with the ledger of a soak, or
    a file of pytest-benchmark. Figures are judged on one machine and one code only, and only where each has a
    spread of its own samples: a change is more than noise where the two spreads are apart.

    Ends with 0, with 1 for what --fail-on names, and with 2 for bad input, such as runs of two kinds.
    """
    return tell(compare_runs(read_facts(before), read_facts(after), fail_on), make_text, as_json)


# -- what is known of a run --------------------------------------------------------------------------------


@dataclass(slots=True)
class Facts:
    """What of a run can be set beside another: by subject (an adapter, a cache) and law, by name, by id."""

    source: str
    kind: str
    machine: Machine | None = None
    laws: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    findings: dict[tuple[str, str | None, str], str] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    faults: dict[str, bool] = field(default_factory=dict)

    def take(self, document: object) -> None:
        """Read what a document says."""
        match document:
            case VerifyDocument():
                for adapter in document.adapters:
                    self.laws |= {(adapter.name, row.id): row.verdict for row in adapter.laws}
                    for it in adapter.violations:
                        self.find(adapter.name, it.law, it.message)
                    for problem in adapter.problems:
                        self.find(adapter.name, None, problem.message)
                    for machine in adapter.machines:
                        self.reach(f"{adapter.name}, {machine.name}", machine.situations)
            case SoakDocument():
                for soaked in document.adapters:
                    self.laws |= {(soaked.name, law): Verdict.UNKNOWN for law in soaked.untested_laws}
                    self.laws |= {(soaked.name, law): Verdict.HOLDS for law, n in soaked.tests.items() if n}
                    self.reach(soaked.name, soaked.situations)
                    for row in soaked.failures:
                        self.find(soaked.name, row.failure.law, row.failure.message)
                for conflict in document.conflicts:
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

    def find(self, subject: str, law: str | None, message: str) -> None:
        """Note a broken law, which is one finding whatever its words, or a problem."""
        self.findings.setdefault((subject, law, "" if law else message), message)
        if law:
            self.laws[subject, law] = Verdict.VIOLATED

    def reach(self, where: str, situations: Mapping[str, int]) -> None:
        """Note situations that were met."""
        self.reached |= {f"{name} ({where})" for name, times in situations.items() if times}

    @property
    def subjects(self) -> set[str]:
        """Whose laws were looked at."""
        return {subject for subject, _ in self.laws}


def read_facts(path: Path) -> Facts:
    """Read a run, or refuse what is none: `TraceError` says which line, and why."""
    facts = _of_document(path) if path.is_file() else None
    if facts is not None:
        return facts
    from pymllm.report.loading import load_runs
    from pymllm.report.trends import figures_of

    try:
        loaded = load_runs([path])
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}.") from None
    if len(loaded.runs) != 1:
        named = ", ".join(run.source for run in loaded.runs[:3]) or "none that can be read"
        raise click.UsageError(f"{path}: has {len(loaded.runs)} runs ({named}); name one of them.")
    (run,) = loaded.runs
    facts = Facts(run.source, run.kind, run.machine)
    figures = [*run.figures]
    for document in run.documents:
        facts.take(document)
        figures += figures_of(document)
    facts.figures = {it.name: it for it in figures if it.value is not None}
    return facts


def _of_document(path: Path) -> Facts | None:
    """Read a document that no report shows, such as that of a judgement."""
    try:
        plain = read_json(read_text_file(path, errors="replace"))
        if not isinstance(plain, dict) or plain.get("schema") != "pymllm.judgement":
            return None
        facts = Facts(str(path), "judgement")
        facts.take(read_as(JudgementDocument, plain))
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}.") from None
    except NotJSONError:
        return None  # lines, which are read one by one
    except ValueError as error:
        raise TraceError(str(path), None, str(error)) from None
    return facts


# -- two runs ----------------------------------------------------------------------------------------------


def compare_runs(before: Facts, after: Facts, fail_on: Iterable[str] = ()) -> DiffDocument:
    """Set two runs of one kind beside each other, or refuse them."""
    kinds = [{"compare": "verify"}.get(it.kind, it.kind) for it in (before, after)]
    if kinds[0] != kinds[1]:
        raise click.UsageError(
            f"{before.source} is a run of {before.kind}, {after.source} of {after.kind}; two of one kind are "
            "compared."
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
    order = {"worse": 0, "better": 1, "changed": 2, None: 3}
    return DiffDocument(
        before=before.source,
        after=after.source,
        kind=kinds[0],
        laws=tuple(sorted(laws, key=lambda it: (not it.worse, -_RANKS.index(it.after)))),
        findings=tuple(findings),
        figures=tuple(sorted(figures, key=lambda it: (order[it.verdict], it.name))),
        situations_lost=tuple(lost),
        faults_missed=tuple(missed),
        faults_caught=tuple(sorted(id for id in both if after.faults[id] and not before.faults[id])),
        only_before=tuple(sorted(before.subjects - after.subjects)),
        only_after=tuple(sorted(after.subjects - before.subjects)),
        failed_on=failed,
        exit_status=int(bool(failed)),
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
        test = _OVERLAP
    else:
        test, verdict = _APART, "changed"
        if now.better is not None:
            verdict = "better" if (now.value < was.value) == (now.better == "smaller") else "worse"
    return FigureChange(name, now.unit, was.value, now.value, test, verdict)


# -- as text -----------------------------------------------------------------------------------------------


def make_text(document: DiffDocument) -> str:
    """Lay a comparison out as text: what is worse comes first, and one line at the end sums up."""
    from pymllm.report.quantities import show

    it = document
    parts: list[RenderableType | tuple[str, str]] = [escaped(f"before  {it.before}")]
    parts.append(escaped(f"after   {it.after}"))
    if it.laws:
        table = make_table("law", "of", "before", "after", "")
        for law in it.laws:
            word = "WORSE" if law.worse else "better"
            table.add_row(law.law, escaped(law.subject), law.before.value, law.after.value, word)
        parts += ["", table]
    parts += _lines(it)
    if it.figures:
        table = make_table("figure", "before", "after", "change", "", right=("before", "after", "change"))
        for row in it.figures:
            ratio = f"{(row.after - row.before) / abs(row.before):+.1%}" if row.before else ""
            word = row.test if row.verdict is None else f"{row.verdict.upper()}: {row.test}"
            values = show(row.before, row.unit), show(row.after, row.unit)
            table.add_row(escaped(row.name), *values, ratio, word)
        parts += ["", table]
    return draw(*parts, "", _sum_up(it), fits_terminal=True)


def _lines(it: DiffDocument) -> Iterator[str]:
    for finding in it.findings:
        word = "new" if finding.new else "gone"
        yield escaped(f"{word}: {finding.law or 'problem'} of {finding.subject}: {finding.message}")
    for label, names in (
        ("no longer reached", it.situations_lost),
        ("no longer caught", it.faults_missed),
        ("now caught", it.faults_caught),
        ("only before", it.only_before),
        ("only after", it.only_after),
    ):
        if names:
            yield escaped(f"{label}: {'; '.join(names)}")


def _sum_up(it: DiffDocument) -> str:
    worse = sum(law.worse for law in it.laws)
    new = sum(finding.new for finding in it.findings)
    judged = [row.verdict for row in it.figures if row.verdict is not None]
    words = [
        f"laws: {worse} worse, {len(it.laws) - worse} better",
        f"findings: {new} new, {len(it.findings) - new} gone",
        f"figures: {judged.count('worse')} worse and {judged.count('better')} better beyond noise of "
        f"{len(it.figures)} that changed",
        f"{len(it.situations_lost)} situations lost, {len(it.faults_missed)} faults no longer caught",
    ]
    failed = f"; failed on {', '.join(it.failed_on)}" if it.failed_on else ""
    return f"{it.kind}: {'; '.join(words)}{failed}"
