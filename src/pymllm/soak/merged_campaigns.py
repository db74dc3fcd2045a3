"""The merge of several campaigns into one ledger, findings, a corpus, and common results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pymllm.documents.campaigns import FindingRow
from pymllm.soak.corpus import RareRuns, read_corpus, write_corpus
from pymllm.soak.findings import Findings, compare_findings, write_findings
from pymllm.soak.ledger import FILE, has_lines
from pymllm.soak.merging import merge_ledgers
from pymllm.soak.results import SoakReport
from pymllm.soak.totals import Totals
from pymllm.work.carrying import Progress, unseen


def find_ledgers(folders: Sequence[Path]) -> list[Path]:
    """Return the ledger of each campaign that has begun; a path may also name a ledger itself.

    Where none began, the ledgers that there would be.
    """
    ledgers = [folder / FILE if folder.is_dir() else folder for folder in folders]
    began = [it for folder, it in zip(folders, ledgers, strict=True) if folder == it or has_lines(it)]
    return began or ledgers


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The plan of a merge of campaigns."""

    output: Path | None = None  # folder for one ledger of all runs, findings, and their small programs
    shrinks: int = 0  # so many failing runs of each adapter and law are made small
    baseline: tuple[FindingRow, ...] | None = None  # what was known before
    corpus: Path | None = None  # folder whose corpus is to have the runs that reached what few reach
    jobs: int = 1  # processes that make programs small
    progress: Progress = unseen
    # refuses adapters that nobody trusts, before one of them runs
    refuse: Callable[[Iterable[str]], None] = lambda adapters: None


def merge_campaigns(folders: Sequence[Path], plan: MergePlan | None = None) -> SoakReport:
    """Merge campaigns, given as folders or ledgers.

    A folder whose campaign ended before its ledger had a line is left out, and told, unless all are such.
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
    for it in merged.differing.values():
        totals.differ(it.conflict.first, it.conflict.second, it.runs)
    if plan.shrinks:
        plan.refuse(found.adapters())
    parts = tuple(ledger.parent for ledger in ledgers)
    kinds = found.settle(parts, output, plan.jobs, plan.progress)
    for (adapter, law), (run, _) in found.small.items():
        totals.adapters[adapter].failures[law].first = run
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
        findings={key: finding for key, (_, finding) in found.small.items()},
        conflicts=tuple(merged.conflicts),
        differing=sum(it.runs for it in merged.differing.values()),
        parts=parts,
        kinds=kinds,
        has_baseline=plan.baseline is not None,
        missing_runs=tuple(merged.missing),
        without_ledger=tuple(str(it) for it in folders if not {it, it / FILE}.intersection(ledgers)),
    )
