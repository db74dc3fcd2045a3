"""The page of coverage goals: what `pymllm goals` lists, with bugs and needs."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.oracle.laws.goal import CoverageGoal

__all__ = ["make_goals_page"]

_HEAD = """\
# Coverage goals

A search that never filled its pool says nothing about full pools. A coverage goal is a state in which a bug
can show: the *laws* are those that a wrong implementation breaks in it, the *bugs* (ids as in
[faults.md](faults.md)) are known bugs in it. Judges count goals by name while a program runs; `pymllm verify`
lists the reached goals, and with `--strict` fails if one was never reached.

A goal is expected if the adapter has the capabilities, and its configuration the values, in the column
*needs*. Tests show that a long run of each such configuration of our own classes reaches it. {count} coverage
goals.
"""
_TITLES = {
    "slots": "Slot allocators",
    "rows": "Request rows",
    "buffers": "KV buffers",
    "states": "Recurrent states",
    "hashes": "Keys and hashes",
    "prefix": "Prefix caches",
    "blocks": "Blocks and their state slots",
    "requests": "Whole requests",
    "index": "Block indexes",
}


def make_goals_page(goals: Sequence[CoverageGoal]) -> str:
    """Return the page: a table for each kind."""
    parts = [_HEAD.format(count=len(goals))]
    for kind, of_engine in dict.fromkeys((one.kind, one.of_engine) for one in goals):
        title = f"{_TITLES[kind]} in an engine" if of_engine else _TITLES[kind]
        own = [one for one in goals if (one.kind, one.of_engine) == (kind, of_engine)]
        lines = ["| coverage goal | laws | bugs | needs |", "| --- | --- | --- | --- |", *map(_row, own)]
        parts.append(f"\n## {title}\n\n" + "\n".join(lines) + "\n")
    return "".join(parts)


def _row(one: CoverageGoal) -> str:
    needs = [f"`{name}`" for name in sorted(one.needs)] + [condition.text for condition in one.when]
    needs += [f"not `{name}`" for name in sorted(one.unless)]
    cells = one.name, ", ".join(one.laws), ", ".join(one.bugs), ", ".join(needs)
    return f"| {' | '.join(cells)} |"
