"""The generated part of docs/vectors.md: the planted faults that each vector detects."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files

from pymllm.faults.table import own_cabinet
from pymllm.vectors.claims import TYPICAL, percent
from pymllm.vectors.make import Made
from pymllm.vectors.programs import is_of_caller
from pymllm.vectors.shares import share_of

BEGIN = "<!-- made by pymllm vectors make -->"

UNSHOWN: dict[str, str] = {
    id: reason
    for reason, ids in tomllib.loads(files(__package__).joinpath("unshown.toml").read_text("utf-8")).items()
    for id in ids
}
"""Planted cache faults that no vector detects, with the reasons."""

CALLERS: dict[str, tuple[str, ...]] = {
    fault.id: tuple(
        it.id for it in own_cabinet() if it.entry == fault.entry and not is_of_caller(it) and it != fault
    )
    for fault in own_cabinet()
    if is_of_caller(fault)
}
"""Planted faults of the simulated engine, which no cache can show, with equal bugs in caches."""

_OF_CALLER = "none: the caller's mistake, whatever its cache answers"
_MOST = 4


def make_page(made: Made, there: str) -> str:
    """Return a page with its generated part, from the line `BEGIN` on, made anew."""
    head = there.partition(BEGIN)[0].rstrip("\n")
    return f"{head}\n\n{BEGIN}\n\n{_table(made)}" if head else f"{BEGIN}\n\n{_table(made)}"


def tell_of(made: Made) -> str:
    """Return the number of faults that vectors detect, of all faults, and the undetected faults."""
    killed = _killed(made)
    every = len(own_cabinet()) - len(CALLERS)
    return (
        f"show {len(killed)} of the {every} planted faults of caches, {percent(len(killed), every)}; "
        f"{len(CALLERS)} more are of the simulated engine: a caller's mistakes show in no answer of a cache"
    )


def _of_claims(made: Made) -> Iterator[str]:
    """Yield a row for each common set of claims, and one for all vectors."""
    for name, claimant in TYPICAL:
        share = share_of(claimant, made.vectors, made.kills)
        claims = ", ".join(f"`{it}`" for it in sorted(claimant.claims or ()))
        faults = len(share.shown)
        yield (
            f"| {name} | {claims} | {len(share.vectors)} of {share.of} | {share.faults} | {faults} | "
            f"{percent(share.faults, faults)} |"
        )
    every, killed = len(own_cabinet()) - len(CALLERS), len(_killed(made))
    count = sum(map(len, made.vectors.values()))
    yield f"| all kinds | everything | {count} of {count} | {killed} | {every} | {percent(killed, every)} |"


def _killed(made: Made) -> frozenset[str]:
    return frozenset[str]().union(*made.kills.values())


def _table(made: Made) -> str:
    faults = {it.id: it for it in own_cabinet()}
    by_fault: dict[str, list[str]] = defaultdict(list)
    for id, killed in made.kills.items():
        for name in killed:
            by_fault[name].append(id)
    of_caches = [id for id in faults if id not in CALLERS]
    shown = [id for id in of_caches if id not in UNSHOWN or id in by_fault]
    count, size = sum(map(len, made.vectors.values())), sum(map(len, made.files().values()))
    again = sum(bool(others) for others in CALLERS.values())
    lines = [
        f"{count} vectors in {size:,} bytes show {len(by_fault)} planted faults. A search from seed 0 finds "
        f"all {len(faults)}:",
        "",
        "| group | faults | shown | share |",
        "| --- | ---: | ---: | ---: |",
        f"| faults of caches, allocators, pools, contexts and indexes | {len(of_caches)} | {len(by_fault)} | "
        f"{percent(len(by_fault), len(of_caches))} |",
        f"| of them, those that an outcome shows | {len(shown)} | {len(by_fault)} | "
        f"{percent(len(by_fault), len(shown))} |",
        f"| faults of the simulated engine | {len(CALLERS)} | 0 | none can be |",
        "",
        "The engine calls a cache. What it does wrong, such as to free slots twice, any cache answers as it "
        "must, so no answer is wrong. A search finds it as it drives our engine, and data drives none. "
        f"{again} of these bugs are planted in a cache or a context, too, and counted there.",
        "",
        "| kind | vectors |",
        "| --- | ---: |",
        *(f"| `{kind}` | {len(own)} |" for kind, own in made.vectors.items()),
        "",
        "How many vectors an implementation plays follows from its [claims](protocol.md#capabilities) and "
        "pages, and so does which share of the faults of its kind they show:",
        "",
        "| implementation | claims | vectors | faults shown | of its kind | share |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *_of_claims(made),
        "",
        "| fault | laws | vectors that show it |",
        "| --- | --- | --- |",
    ]
    for id, fault in sorted(faults.items()):
        told = [f"`{it}`" for it in sorted(by_fault.get(id, ()))]
        seen = ", ".join(told[:_MOST]) + (f" and {len(told) - _MOST} more" if len(told) > _MOST else "")
        others = f"; in a cache it is {', '.join(CALLERS[id])}" if CALLERS.get(id) else ""
        why = f"{_OF_CALLER}{others}" if id in CALLERS else UNSHOWN.get(id, "none")
        lines.append(f"| {id} | {', '.join(fault.laws)} | {seen or why} |")
    return "\n".join(lines) + "\n"
