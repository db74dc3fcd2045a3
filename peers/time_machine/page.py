"""The page of the time machine, docs/time-machine.md, made from the table and its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from peers.time_machine.bugs import Bug
from peers.time_machine.results import PROGRAMS, Result, Search, program_of
from pymllm.history.files import load_history
from pymllm.oracle.laws import find_law
from pymllm.search.program import write_record

PAGE = Path(__file__).parents[2] / "docs" / "time-machine.md"

_HEAD = """\
# The time machine

The bugs on this page are not planted: they were in releases of other projects, were reported, and are fixed
in a later release. Package registries keep every release, so the same search can look for each bug in its
release, without knowing the bug.

{count}

## Method

`peers/time_machine/bugs.toml` has {all} real bugs, each with the last release that had it and the first
release without it. A search on a CPU can reach {reachable} of them. For each of these both releases are
installed without their dependencies, and the adapter that the table names calls them.

1. The old release is searched by `pymllm verify` in its default profile, from seeds 0, 1 and 2 in turn, and
   then by `pymllm soak` from seed 0, until ten minutes are over. Every row has the same seeds, and no search
   has `--law`: it looks for violations of all laws.
2. Every program that a search found is played again in both releases. A bug is *found* by a program that
   breaks a law in the old release and not in the fixed one. The law must be one that the table names for this
   bug; the table is not read before this step. Then the searches of this row end.
3. The fixed release is searched in the same way, as often. *Silent* means that the program does not break the
   law there, and that these searches found no other program that breaks it. If they found one, the release
   has another bug against this law, which the old release may have, too.

Each row is a bug as its project reported it: rows may share one cause, or have equal programs.

## Do it again

`tox -e time-machine` plays the rows that have no result yet; `tox -e time-machine -- run --again --only ID`
plays one again. With `--store FOLDER` every verification is kept with its release, and
`pymllm report FOLDER` [draws](report.md#releases) which laws each release breaks.
`python -m peers.time_machine page` writes this page. Without tox, install the packages that the caches
import: `pip install -c constraints.txt -r peers/constraints/peers.txt`.

One program alone, in a clone, on any release:

```sh
pip install --no-deps --target release sglang==0.5.7
export PYMLLM_ANY_VERSION=1 PYTHONPATH=release:.
program=peers/time_machine/programs/sglang-radix-splits-keep-the-whole.jsonl
pymllm rerun $program --adapter peers.time_machine.earlier:EarlierRadix
```

On 0.5.7 it breaks X5, on 0.5.8 no law. [`pymllm bisect`](verify.md#in-which-release-did-it-change) does this
for a series of releases.
"""

_FIGURES = """\
*Operations* are those of the program, in `peers/time_machine/programs` under the bug's name. *Seconds* are
of the wall clock, from the start of the first search of the old release until the program was found, shrunk
and played again in both releases; installing is not counted. *CPU* is the processor time of these searches in
all their processes, which other load on the machine hardly changes.
"""


def render(bugs: Sequence[Bug], results: Mapping[str, Result], programs: Path = PROGRAMS) -> str:
    """Return the page; reachable rows without a result stand under *not played yet*."""
    reachable = [bug for bug in bugs if bug.reachable]
    played = [(bug, results[bug.id]) for bug in reachable if bug.id in results]
    found = [(bug, it) for bug, it in played if it.found is not None]
    missed = [(bug, it) for bug, it in played if it.found is None]
    left = [bug for bug in reachable if bug.id not in results]
    lines = [
        _HEAD.format(count=_count(len(reachable), found), all=len(bugs), reachable=len(reachable)),
        *_section("Found", _found_table(found), _FIGURES),
        *_section("Missed", _missed_table(missed)),
        *_section("Not played yet", _plain_table(left)),
        *_section("Not reachable", _plain_table([bug for bug in bugs if not bug.reachable]), _OUT_OF_REACH),
        *_section("The programs", [line for bug, it in found for line in _program(bug, it, programs)]),
        *_section("How each row was played", _played_table(played)),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


_OUT_OF_REACH = "No search was made for these: *why* says what is missing, or which check would find them.\n"


def _count(reachable: int, found: Sequence[tuple[Bug, Result]]) -> str:
    text = f"**Found {len(found)} of {reachable} reachable bugs**"
    if found:
        longest = max(it.found.operations for _, it in found if it.found is not None)
        slowest = max(it.seconds for _, it in found)
        loud = sum(not it.is_silent for _, it in found)
        text += f", by programs of at most {longest} operations, in at most {slowest:,.0f} seconds each"
        text += ". No program breaks its law in the fixed release"
        text += f"; in {loud} of these, searches break the same law by other programs" if loud else ""
    return f"{text}."


def _section(title: str, lines: Iterable[str], lead: str = "") -> Iterator[str]:
    found = list(lines)
    if found:
        yield from (f"## {title}\n", *([lead] if lead else []), *found, "")


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()
) -> Iterator[str]:
    found = [_row(*cells) for cells in rows]
    if found:
        yield _row(*columns)
        yield _row(*("---:" if column in right else "---" for column in columns))
        yield from found


def _releases(bug: Bug) -> str:
    return f"{bug.project} {bug.last_with}; fixed in {bug.first_without}"


def _links(bug: Bug) -> str:
    numbers = ", ".join(f"[{link.rsplit('/', 1)[-1]}]({link})" for link in bug.links)
    return f"{bug.title} ({numbers})"


def _laws(bug: Bug) -> str:
    return ", ".join(bug.expected)


def _found_table(found: Iterable[tuple[Bug, Result]]) -> Iterator[str]:
    columns = ("bug", "releases", "class", "law", "operations", "seconds", "CPU", "by", "fixed release")
    rows = (
        (
            _links(bug),
            _releases(bug),
            f"`{bug.of}`",
            f"[{it.found.law}](#{bug.id})",
            it.found.operations,
            f"{it.seconds:.0f}",
            f"{sum(search.cpu_seconds for search in it.old):.0f}",
            it.stage,
            _in_fixed(it),
        )
        for bug, it in found
        if it.found is not None
    )
    return _table(columns, rows, right=("operations", "seconds", "CPU"))


def _in_fixed(it: Result) -> str:
    """Describe the behaviour of the fixed release."""
    assert it.found is not None
    law = it.found.law
    told = "silent" if it.is_silent else f"the program is silent; others break {law}, by another bug"
    if it.found.fixed is not None:
        return f"{told}; the program breaks {it.found.fixed} there"
    return told if it.found.fixed_ends is None else f"{told}; the program cannot go on there"


def _missed_table(missed: Iterable[tuple[Bug, Result]]) -> Iterator[str]:
    columns = ("bug", "releases", "class", "laws that would show it", "seconds", "why, and what would see it")
    rows = (
        (_links(bug), _releases(bug), f"`{bug.of}`", _laws(bug), f"{it.seconds:.0f}", bug.missed)
        for bug, it in missed
    )
    return _table(columns, rows, right=("seconds",))


def _plain_table(bugs: Iterable[Bug]) -> Iterator[str]:
    columns = ("bug", "releases", "class", "laws that would show it", "why")
    return _table(columns, ((_links(it), _releases(it), f"`{it.of}`", _laws(it), it.why) for it in bugs))


def _program(bug: Bug, it: Result, programs: Path) -> Iterator[str]:
    """Write a program, and the law that it breaks."""
    assert it.found is not None
    history = load_history(program_of(bug.id, programs))
    law, config = it.found.law, history.header.config
    yield f'### <a id="{bug.id}"></a>{bug.id}\n'
    yield f"{law}, {find_law(law).sentence}: {it.found.message}. On `{it.adapter}` with `{config}`:\n"
    yield "```python"
    yield from (f"{step.number}: {write_record(step.operation)}" for step in history.steps)
    yield "```\n"


def _played_table(played: Iterable[tuple[Bug, Result]]) -> Iterator[str]:
    columns = ("bug", "searches of the old release", "of the fixed release", "when, and where")
    rows = (
        (
            f"`{bug.id}`",
            _searches(it.old),
            _searches(it.fixed) or "none, as nothing was found",
            f"{it.date}, {it.jobs} processes, {it.machine}; "
            + ", ".join(f"{name} {version}" for name, version in it.versions.items()),
        )
        for bug, it in played
    )
    return _table(columns, rows)


def _searches(searches: Iterable[Search]) -> str:
    return "; ".join(
        f"`{it.command} --seed {it.seed}`: {', '.join(it.laws) or 'no law'} broken, {it.seconds:.0f} s"
        + "".join(f", stopped by: {problem}" for problem in it.problems)
        for it in searches
    )
