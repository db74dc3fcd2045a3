"""A Markdown summary of runs, for a CI job or a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from pymllm.report.blocks import BAD, GOOD, UNKNOWN, Column, Part, Table
from pymllm.report.loading import Run
from pymllm.report.outcomes import Outcome
from pymllm.report.sections import tell_all
from pymllm.text_file import cut, escaped

MOST_ROWS = 20


def make_summary(runs: Sequence[Run]) -> str:
    """Return verdict, violations, campaigns and changed figures as Markdown, in tables of `MOST_ROWS` rows.

    The text of a document stands in code, where it is neither markup nor a mention.
    """
    outcomes = tell_all(runs)
    words, tone = headline(outcomes)
    sign = {GOOD: "✅ ", BAD: "❌ ", UNKNOWN: "⚠️ "}.get(tone or "", "")
    drawn = [text for outcome in outcomes for part in outcome.parts for text in _draw(part)]
    return "\n\n".join([f"## {sign}pymllm: {words}", *drawn]) + "\n"


def headline(outcomes: Sequence[Outcome]) -> tuple[str, str | None]:
    """Return the newest runs as one line with its tone; ``None`` if no run has a verdict."""
    bad = [words for it in outcomes for words in it.bad]
    unknown = [it.unknown for it in outcomes if it.unknown]
    short = "".join(f"; {it.short}" for it in outcomes if it.short)
    if bad or unknown:
        return f"{', '.join([*bad, *unknown])}{short}", BAD if bad else UNKNOWN
    good = next((it.good for it in outcomes if it.good), None)
    if good is None:
        return "no laws were searched", None
    return f"{good}{short}", UNKNOWN if short else GOOD


def _draw(part: Part) -> Iterator[str]:
    """Return a table as Markdown, or nothing for an empty table or any other part."""
    if not isinstance(part, Table) or not part.rows:
        return
    lines = [f"| {' | '.join(column.name for column in part.columns)} |", f"|{' --- |' * len(part.columns)}"]
    for row in part.rows[:MOST_ROWS]:
        cells = (_cell(column, cell.text) for column, cell in zip(part.columns, row, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    left = len(part.rows) - MOST_ROWS
    yield f"### {part.caption}\n\n" + "\n".join(lines) + (f"\n\nand {left:,} more" if left > 0 else "")


def _cell(column: Column, text: str) -> str:
    """Return a cell as Markdown: plain in columns of words or numbers, and otherwise as code."""
    if not text or ((column.is_number or column.is_word) and _WORDS.fullmatch(text)):
        return text
    words = escaped(" ".join(cut(text, 300).split()))
    return f"<code>{escape(words).replace('|', '&#124;')}</code>"


_WORDS = re.compile(r"(?:[^\W_]|[ .,%/+-])*")
