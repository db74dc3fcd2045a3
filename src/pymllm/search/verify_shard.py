"""One shard of ``pymllm verify`` or ``compare``: its part of the first searches, kept in a file.

The searches follow from what is to be searched alone, so every machine deals out the same. What they come to
together, second searches and smaller programs, is for whoever puts the files together, once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from pymllm.documents.shards import BrokenLaw, ShardDocument
from pymllm.errors import UsageError
from pymllm.machines.smoke import SmokeReport
from pymllm.oracle.verdicts import Verdict
from pymllm.search.runner import SearchCarrier, begin
from pymllm.search.search import SearchResult
from pymllm.search.shrinker import Finding, pick_smallest
from pymllm.search.tasks import SearchTask, VerifyPlan, is_cut_short, price_of
from pymllm.work.carrying import Progress, unseen
from pymllm.work.kept import KeptResults
from pymllm.work.shards import Shard
from pymllm.work.workers import INTERRUPTED, Lost, Workers

_FINE = 1_000  # Prices are dealt as integers, small ones told apart.

Searched = list[tuple[SearchTask, SearchResult | Lost]]


def play_shard(
    plan: VerifyPlan,
    shard: Shard,
    kept: KeptResults[Any, Any],
    command: str,
    progress: Progress = unseen,
) -> tuple[ShardDocument, KeyboardInterrupt | None]:
    """Play and keep the first searches of a shard; return its document, and an interruption if any.

    Each adapter is tried as by `pymllm.search.runner.verify`, which says what is raised; besides
    `UsageError` where there are more shards than searches.
    """
    start = time.monotonic()
    with Workers(plan.jobs, plan.timeout) as workers:
        carrier = SearchCarrier(workers, progress, kept)
        smokes, tasks = begin(plan, carrier)
        refused = [
            f"{entry.name} could not be examined: {smoke.message}"
            for entry, smoke in zip(plan.adapters, smokes, strict=True)
            if not isinstance(smoke, SmokeReport)
        ]
        if shard.count > len(tasks) and not refused:
            amount = "1 search" if len(tasks) == 1 else f"{len(tasks)} searches"
            raise UsageError(f"{shard.asked}: the plan has {amount}; take at most so many shards")
        hand = deal(tasks, shard)
        searched = list(zip(hand, carrier.search("searches", hand), strict=True))
    if workers.interruption is not None and all(answer is INTERRUPTED for _, answer in searched):
        raise workers.interruption
    broken = _broken_by(searched)
    problems = tuple(dict.fromkeys([*refused, *_problems_of(searched)]))
    done = sum(_is_done(task, answer) for task, answer in searched)
    is_unknown = bool(problems) or done < len(hand)
    verdict = Verdict.VIOLATED if broken else Verdict.UNKNOWN if is_unknown else Verdict.HOLDS
    document = ShardDocument(
        command=command,
        shard=str(shard),
        file=str(kept.path),
        tasks=len(hand),
        total=len(tasks),
        done=done,
        kept=carrier.taken,
        seconds=round(time.monotonic() - start, 3),
        broken=broken,
        problems=problems,
        interrupted=workers.interruption is not None,
        exit_status=verdict.exit_status,
    )
    return document, workers.interruption


def count_searches(plan: VerifyPlan) -> int:
    """Return the number of first searches in a plan; raises errors as `begin`."""
    with Workers(plan.jobs, plan.timeout) as workers:
        return len(begin(plan, SearchCarrier(workers))[1])


def deal(tasks: Iterable[SearchTask], shard: Shard) -> list[SearchTask]:
    """Return the searches of a shard, dealt longest first so that all shards take about as long."""
    dear_first = sorted(tasks, key=price_of, reverse=True)
    return list(shard.keep(dear_first, weight=lambda task: max(1, round(_FINE * price_of(task)))))


def _is_done(task: SearchTask, answer: SearchResult | Lost) -> bool:
    return isinstance(answer, SearchResult) and not is_cut_short(task, answer)


def _broken_by(searched: Searched) -> tuple[BrokenLaw, ...]:
    """Return each law that an adapter broke, once, with the message of its smallest program."""
    found: dict[str, list[Finding]] = {}
    for task, answer in searched:
        if isinstance(answer, SearchResult):
            found.setdefault(task.adapter, []).extend(answer.found)
    return tuple(
        BrokenLaw(name, finding.law, finding.violation.message)
        for name, findings in found.items()
        for finding in pick_smallest(findings)
    )


def _problems_of(searched: Searched) -> Iterable[str]:
    for task, answer in searched:
        if isinstance(answer, Lost):
            if answer is not INTERRUPTED:
                yield f"{task.adapter}: a search was lost, and is not kept: {answer.message}"
        elif answer.crash is not None:
            yield f"{task.adapter} could not be examined to the end: {answer.crash.message}"
        elif is_cut_short(task, answer):
            amount = f"{answer.programs:,} of {answer.programs + answer.missing:,} programs"
            yield f"{task.adapter}: time was up after {amount} of a search, which is not kept"
