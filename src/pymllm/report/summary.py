"""Results of runs as Markdown: for the summary of a CI job, or a comment on a pull request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from pymllm.documents.campaigns import SoakDocument
from pymllm.documents.faults import FaultsDocument
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import BAD, GOOD, UNKNOWN
from pymllm.report.changes import find_since, is_fixed, newest_changes
from pymllm.report.loading import Run, newest_document
from pymllm.report.quantities import count_of, show
from pymllm.report.sections.probes import name_of, newest_probes
from pymllm.report.sections.searches import Searched, commands_again, newest_searches
from pymllm.text_file import cut, escaped

MOST_ROWS = 20
_VERDICTS = (Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.HOLDS, Verdict.NOT_CLAIMED)


def make_summary(runs: Sequence[Run]) -> str:
    """Write verdict, violations, campaigns and changed figures, each table of at most `MOST_ROWS` rows.

    What comes from somebody's document stands in code, where it is neither markup nor a mention.
    """
    searches = newest_searches(runs)
    words, tone = headline(runs)
    sign = {GOOD: "✅ ", BAD: "❌ ", UNKNOWN: "⚠️ "}.get(tone or "", "")
    parts = [
        f"## {sign}pymllm: {words}",
        *_violations(runs, searches),
        *_fixed(runs),
        *_unknown(runs, searches),
    ]
    parts += [*_implementations(searches), *_servers(runs), *_faults(runs), *_soaks(runs), *_changes(runs)]
    return "\n\n".join(parts) + "\n"


def headline(runs: Sequence[Run]) -> tuple[str, str | None]:
    """Sum up the newest runs in a line, with its tone; ``None`` if no run has a judgement."""
    searches = newest_searches(runs)
    counts = Counter(law.verdict for it in searches for law in it.adapter.laws)
    counts[Verdict.UNKNOWN] += sum(not it.adapter.laws for it in searches)
    for probe in newest_probes(runs):
        counts.update(law.verdict for law in probe.laws)
        counts[Verdict.UNKNOWN] += probe.failure is not None
    faults, soak = newest_document(runs, FaultsDocument), newest_document(runs, SoakDocument)
    failed = sum(len(it.failures) for it in soak.adapters) if soak else 0
    bad = [
        _count(counts[Verdict.VIOLATED], "violation of a law", "violations of laws"),
        _count(faults.missed if faults else 0, "fault missed", "faults missed"),
        _count(failed, "failure in a soak", "failures in soaks"),
    ]
    short = _count(sum(bool(it.cut_short) for it in searches), "search", "searches")
    short = f"; {short} cut short" if short else ""
    unknown = f"{count_of(counts[Verdict.UNKNOWN], 'verdict')} unknown" if counts[Verdict.UNKNOWN] else ""
    if any(bad):
        return f"{', '.join(filter(None, [*bad, unknown]))}{short}", BAD
    if unknown:
        return f"{unknown}{short}", UNKNOWN
    if counts[Verdict.HOLDS]:
        return f"all laws that apply hold{short}", UNKNOWN if short else GOOD
    if soak is None:
        return "no laws were searched", None
    return f"the soak found nothing{' until it was interrupted' if soak.interrupted else ''}", GOOD


def _count(count: int, one: str, several: str) -> str:
    return count_of(count, one, several) if count else ""


def _violations(runs: Sequence[Run], searches: Sequence[Searched]) -> Iterator[str]:
    since = find_since(runs)
    rows = [
        (
            _word(it.law),
            _code(who.name),
            _code(it.message),
            _code(it.expected),
            _code(it.observed),
            _code(str(since.get((who.name, it.law), ""))),
            _code(next(commands_again(it, who.name, who.document.seed), None)),
        )
        for who in searches
        for it in who.adapter.violations
    ]
    rows += [
        (
            _word(it.law),
            _code(name_of(probe)),
            _code(it.message),
            _code(it.expected),
            _code(it.observed),
            "",
            _code(probe.again),
        )
        for probe in newest_probes(runs)
        if (it := probe.violation) is not None
    ]
    head = ("law", "implementation", "looked at", "expected", "observed", "first seen", "again")
    yield from _table("Violations", head, rows)


def _fixed(runs: Sequence[Run]) -> Iterator[str]:
    rows = [
        (_word(law.law), _code(law.subject), _code(before.hint), _code(after.hint))
        for it, before, after in newest_changes(runs)
        for law in it.laws
        if is_fixed(law)
    ]
    yield from _table("Fixed", ("law", "implementation", "violated in", "holds in"), rows)


def _unknown(runs: Sequence[Run], searches: Sequence[Searched]) -> Iterator[str]:
    rows = [(_code(it.name), _code("; ".join(why))) for it in searches if (why := it.why_unknown())]
    for probe in newest_probes(runs):
        why = [f"{it.id}: {it.reason}" for it in probe.laws if it.verdict is Verdict.UNKNOWN]
        if told := "; ".join(filter(None, [probe.failure, *why])):
            rows.append((_code(name_of(probe)), _code(told)))
    yield from _table("Unknown", ("implementation", "why"), rows)


def _implementations(searches: Sequence[Searched]) -> Iterator[str]:
    rows = []
    for it in searches:
        counts = Counter(law.verdict for law in it.adapter.laws)
        tests = sum(law.tests for law in it.adapter.laws)
        numbers = [*(f"{counts[verdict]:,}" for verdict in _VERDICTS), f"{tests:,}"]
        if not it.adapter.laws:
            numbers[_VERDICTS.index(Verdict.UNKNOWN)] = "all"
        rows.append((_code(it.name), *numbers, _code(it.profile)))
    rows.sort(key=lambda row: (row[1] == "0", row[2] == "0"))
    head = ("implementation", *(it.value for it in _VERDICTS), "tests", "searched with")
    yield from _table("Laws by implementation", head, rows)


def _servers(runs: Sequence[Run]) -> Iterator[str]:
    rows = [
        (
            _code(name_of(it)),
            it.verdict.value,
            f"{it.requests:,}",
            f"{it.places:,}",
            _word(f"{it.largest:.2g}"),
            _word(f"{it.tolerance.judged:.2g}"),
        )
        for it in newest_probes(runs)
    ]
    head = ("server", "verdict", "requests", "tokens compared", "largest difference", "counts from")
    yield from _table("Servers", head, rows)


def _faults(runs: Sequence[Run]) -> Iterator[str]:
    if document := newest_document(runs, FaultsDocument):
        yield f"Planted faults: {document.caught:,} of {document.caught + document.missed:,} caught."
        missed = [
            (_word(it.id), _code(it.title), _word(", ".join(it.laws)))
            for it in document.faults
            if not it.caught
        ]
        yield from _table("Missed faults", ("fault", "title", "laws that may catch it"), missed)


def _soaks(runs: Sequence[Run]) -> Iterator[str]:
    if document := newest_document(runs, SoakDocument):
        rows = [(_code(it.name), f"{it.operations:,}", str(len(it.failures))) for it in document.adapters]
        cut = " (interrupted)" if document.interrupted else ""
        yield from _table(f"Soak{cut}", ("implementation", "operations judged", "failures"), rows)


def _changes(runs: Sequence[Run]) -> Iterator[str]:
    """List figures that changed beyond the noise of their samples, as of `pymllm diff`, worse ones first."""
    moved = [it for document, _, _ in newest_changes(runs) for it in document.figures if it.verdict]
    moved.sort(key=lambda it: it.verdict != "worse")
    rows = [
        (
            _code(it.name),
            _word(show(it.before, it.unit)),
            _word(show(it.after, it.unit)),
            f"{(it.after - it.before) / abs(it.before):+.1%}" if it.before else "from zero",
            it.verdict or "",
        )
        for it in moved
    ]
    yield from _table("Figures beyond noise", ("figure", "before", "now", "change", ""), rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows[:MOST_ROWS]]
    left = len(rows) - MOST_ROWS
    yield f"### {title}\n\n" + "\n".join(lines) + (f"\n\nand {left:,} more" if left > 0 else "")


def _word(text: str) -> str:
    """Return plain words as they are, and any other text as code."""
    return text if _WORDS.fullmatch(text) else _code(text)


_WORDS = re.compile(r"(?:[^\W_]|[ .,%/-])*")


def _code(text: str | None) -> str:
    if text is None:
        return ""
    words = escaped(" ".join(cut(text, 300).split()))
    return f"<code>{escape(words).replace('|', '&#124;')}</code>"
