"""The generated part of docs/vectors.md: which vector shows which planted fault, and how many of all."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from importlib.resources import files

from pymllm.conformance.vectors.make import Made
from pymllm.faults.table import own_cabinet

BEGIN = "<!-- made by pymllm vectors make -->"

UNSHOWN: dict[str, str] = {
    id: reason
    for reason, ids in tomllib.loads(files(__package__).joinpath("unshown.toml").read_text("utf-8")).items()
    for id in ids
}
"""Planted faults that a search from seed 0 found, though no outcome of its programs shows them; and why."""


def make_page(made: Made, there: str) -> str:
    """Return a page with its generated part, from the line `BEGIN` on, made anew."""
    head = there.partition(BEGIN)[0].rstrip("\n")
    return f"{head}\n\n{BEGIN}\n\n{_table(made)}" if head else f"{BEGIN}\n\n{_table(made)}"


def _table(made: Made) -> str:
    faults = {it.id: it for it in own_cabinet()}
    by_fault: dict[str, list[str]] = defaultdict(list)
    for id, killed in made.kills.items():
        for name in killed:
            by_fault[name].append(id)
    every = len(faults)
    shown = [id for id in faults if id not in UNSHOWN or id in by_fault]
    count, size = sum(map(len, made.vectors.values())), sum(map(len, made.files().values()))
    lines = [
        f"{count} vectors in {size:,} bytes show {len(by_fault)} planted faults:",
        "",
        f"- {_share(len(by_fault), len(shown))} of the {len(shown)} that outcomes show, in a program that a "
        "search from seed 0 finds;",
        f"- {_share(len(by_fault), every)} of all {every}, which searches from seed 0 find, also by "
        "engines, second runs and looks inside.",
        "",
        "| kind | vectors |",
        "| --- | ---: |",
        *(f"| `{kind}` | {len(own)} |" for kind, own in made.vectors.items()),
        "",
        "| fault | laws | vectors that show it |",
        "| --- | --- | --- |",
    ]
    for id, fault in sorted(faults.items()):
        told = [f"`{it}`" for it in sorted(by_fault.get(id, ()))]
        seen = ", ".join(told[:_MOST]) + (f" and {len(told) - _MOST} more" if len(told) > _MOST else "")
        lines.append(f"| {id} | {', '.join(fault.laws)} | {seen or UNSHOWN.get(id, 'none')} |")
    return "\n".join(lines) + "\n"


_MOST = 4


def _share(some: int, of: int) -> str:
    return f"{100 * some / max(of, 1):.1f} %"
