"""A status badge: the JSON that shields.io's endpoint badge reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from pymllm.oracle.verdicts import Verdict
from pymllm.report.laws_section import newest_searches
from pymllm.report.loading import Run

__all__ = ["make_badge"]


def make_badge(runs: Sequence[Run], label: str = "laws") -> str:
    """Sum the laws of every implementation up in a few words and a colour.

    Parameters
    ----------
    runs : sequence of Run
        In order of time; each implementation counts as its newest search found it.
    label : str
        The left half of the badge.

    Returns
    -------
    str
        JSON. Red where a law is violated, yellow where one is unknown, green where all that apply hold, and
        grey where nothing was searched.
    """
    searches = newest_searches(runs)
    counts = Counter(law.verdict for it in searches for law in it.adapter.laws)
    is_unknown = any(it.adapter.verdict == Verdict.UNKNOWN.value for it in searches)
    order = (Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.HOLDS)
    words = ", ".join(_words(it, counts[it.value]) for it in order if counts[it.value])
    if counts[Verdict.VIOLATED.value]:
        color = "red"
    elif counts[Verdict.UNKNOWN.value] or is_unknown:
        color = "yellow"
    else:
        color = "brightgreen" if words else "lightgrey"
    badge = {"schemaVersion": 1, "label": label, "message": words or "not searched", "color": color}
    return json.dumps(badge)


def _words(verdict: Verdict, count: int) -> str:
    if verdict is Verdict.HOLDS:
        return f"{count} hold" if count != 1 else "1 holds"
    return f"{count} {verdict.value}"
