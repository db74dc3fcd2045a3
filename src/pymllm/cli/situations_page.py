"""The situations as a page of Markdown, a table for each kind."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.oracle.situation import Situation

__all__ = ["make_page"]

_HEAD = """\
# Situations

A search that never filled its pool says nothing of full pools. A situation is a state in which something
is at stake: the *laws* say what a wrong implementation breaks in it, the *bugs* (ids as in
[faults.md](faults.md)) what went wrong in it before. Judges count situations by name while a program runs;
`pymllm verify` tells which were reached, and with `--strict` one that never was is a failure.

It is expected where the adapter has the capabilities and the configuration is as told under *needs*. A long
run of each such configuration of our own classes reaches it, which the tests show. {count} situations.

This page is written by `pymllm situations --page docs/situations.md`.
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
}


def make_page(situations: Sequence[Situation]) -> str:
    """Lay situations out as the page docs/situations.md."""
    parts = [_HEAD.format(count=len(situations))]
    for kind, of_engine in dict.fromkeys((one.kind, one.of_engine) for one in situations):
        title = f"{_TITLES[kind]} in an engine" if of_engine else _TITLES[kind]
        own = [one for one in situations if (one.kind, one.of_engine) == (kind, of_engine)]
        lines = ["| situation | laws | bugs | needs |", "| --- | --- | --- | --- |", *map(_row, own)]
        parts.append(f"\n## {title}\n\n" + "\n".join(lines) + "\n")
    return "".join(parts)


def _row(one: Situation) -> str:
    needs = [f"`{name}`" for name in sorted(one.needs)] + [condition.text for condition in one.when]
    cells = one.name, ", ".join(one.laws), ", ".join(one.bugs), ", ".join(needs)
    return f"| {' | '.join(cells)} |"
