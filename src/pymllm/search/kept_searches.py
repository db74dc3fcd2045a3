"""The file that keeps results of ``pymllm verify`` and ``compare``, so that a stopped run can resume.

A result is kept for its whole task: adapter with its source, configuration, machine, plan, and what is passed
over. Where any of that differs, so may the result. It is written and read to the last field, so that whoever
takes it from the file tells what whoever found it would have told.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pymllm.errors import InvariantViolation, PymllmError
from pymllm.history.files import History, dump_history, read_history
from pymllm.oracle.laws import find_law
from pymllm.search.foreign_source import digest_adapter
from pymllm.search.runner import versions
from pymllm.search.search import SearchResult
from pymllm.search.shrinker import Finding
from pymllm.search.tasks import SearchTask, ShrinkTask, VerifyPlan, is_cut_short
from pymllm.work.kept import KeptResults, Work

SearchOrShrink = SearchTask | ShrinkTask
Found = SearchResult | tuple[Finding, ...]


def keep_searches(path: Path, plan: VerifyPlan) -> KeptResults[SearchOrShrink, Found]:
    """Open a file of the results of a plan's searches; searches of changed adapters are repeated."""
    sources = _sources_of(plan)

    def key_of(task: SearchOrShrink) -> str:
        plain = msgspec.to_builtins(task, enc_hook=_plain, order="deterministic")  # sets have an order then
        return json.dumps([type(task).__name__, sources[task.adapter], plan.timeout, plain], sort_keys=True)

    work: Work[SearchOrShrink, Found] = Work("searches", key_of, _title_of, pack, unpack, _is_final)
    return KeptResults(path, work, versions(plan.adapters))


def _sources_of(plan: VerifyPlan) -> dict[str, str]:
    return {entry.name: digest_adapter(entry.name) for entry in plan.adapters}


def digest_sources(plan: VerifyPlan) -> str:
    """Return the sources, versions and seed, besides the typed options, that determine a plan's searches."""
    return json.dumps([_sources_of(plan), versions(plan.adapters), plan.seed], sort_keys=True)


def _title_of(task: SearchOrShrink) -> str:
    what = "smaller programs" if isinstance(task, ShrinkTask) else "search"
    for_what = ", ".join([*task.laws, *task.goals]) if isinstance(task, SearchTask) else task.finding.law
    return f"{what} {task.adapter} {task.machine.name} {json.dumps(task.config)} {for_what}".rstrip()


def _is_final(task: SearchOrShrink, found: Found) -> bool:
    return not (
        isinstance(task, SearchTask) and isinstance(found, SearchResult) and is_cut_short(task, found)
    )


def pack(found: Found) -> Any:
    """Convert a result to plain data for JSON."""
    return msgspec.to_builtins(found, enc_hook=_plain)


def unpack(task: SearchOrShrink, plain: Any) -> Found:
    """Read the result of a task written by `pack`; raise `ValueError` if it cannot be the task's result."""
    kind: Any = tuple[Finding, ...] if isinstance(task, ShrinkTask) else SearchResult
    found: Found = msgspec.convert(plain, kind, dec_hook=_made_of)
    for history in _histories_of(found):
        _check(task, history)
    return found


def _plain(violation: InvariantViolation) -> Any:
    """Convert a value to plain data if msgspec does not know its type."""
    return violation.args


def _made_of(kind: type, plain: Any) -> InvariantViolation | Counter[str]:
    """Read a value from plain data if msgspec does not know its type."""
    if kind is not InvariantViolation:
        return Counter(msgspec.convert(plain, dict[str, int]))
    law, message, expected, observed = msgspec.convert(plain, tuple[str, str, str | None, str | None])
    return InvariantViolation(find_law(law).id, message, expected=expected, observed=observed)


def _histories_of(found: Found) -> Iterator[History]:
    findings = found.found if isinstance(found, SearchResult) else found
    yield from (finding.history for finding in findings)
    if isinstance(found, SearchResult):
        yield from found.undone.values()
        if found.crash is not None and found.crash.history is not None:
            yield found.crash.history


def _check(task: SearchOrShrink, history: History) -> None:
    """Refuse a program that no search can have written, since it is run on the adapter that it names."""
    if history.header.adapter != task.adapter:
        raise ValueError(f"a program of {history.header.adapter}, not of {task.adapter}")
    try:
        read_history(dump_history(history), "a kept result")
    except PymllmError as error:
        raise ValueError(error) from None
