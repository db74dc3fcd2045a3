"""The page of faults, with measured results and every bug with its source.

A whole measurement takes minutes, so its rows stay in the page itself: printing the page anew keeps the rows
that are there, and a run replaces only the rows of the faults that it looked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import date

from pymllm.documents.faults import FaultRow, FaultsDocument
from pymllm.faults.fault import Bug, Fault
from pymllm.faults.table import BUGS, PLANTED, SERVERS, UNPLANTED, own_cabinet
from pymllm.report.quantities import count_of, kept_words

_HEAD = """\
# Faults

Each row is one of our classes with one planted fault. Most faults are bugs from the history of serving
engines; [the sections below](#the-bugs) have their sources. `pymllm faults hunt` plants one fault after the
other and searches. A fault counts as caught only if the search breaks a law that its entry lists. Every
planted bug must also make one of our tests fail (those marked `notices`).

| column | meaning |
| --- | --- |
| *law* | the laws that caught it; the sections, and `pymllm faults list`, have all laws that may catch it |
| *by the* | the [searcher](verify.md#test-the-search-with-known-bugs) that caught it |
| *operations* | operations of that searcher until then, the median of all seeds |
| *seconds* | time of all searchers together until then, the median of all seeds |
| *program* | the operations of the smallest program found that breaks one of the laws |
| *run* | the run that measured it |

{runs}

`pymllm faults hunt --full --page docs/faults.md` measures every fault again, or only the named ids; other
rows stay unchanged. `python docs/builder/faults_page.py` updates the texts and keeps all figures.

"""
_SERVERS = """
## Faults of servers

Each row is the server of `pymllm serve` with one planted fault, probed like by `pymllm probe`. *Requests*
counts the requests until then, without the cold repetitions, the median of all seeds; *program* has the steps
of the smallest program found. `pymllm faults probe --full --page docs/faults.md` measures these rows again.

"""
_BUGS = """
## The bugs

An id never changes its meaning. *How* is the mistake, *seen* its effect for users, *planted* the adapters
with the planted bug and the laws that may catch it. If our class differs from the engine's, it also says how
the planted fault differs from the bug.
"""
_COLUMNS = ("id", "fault", "law", "by the", "operations", "seconds", "program", "run")
_ROW = re.compile(r"^\| \[?([\w-]+)\]?(?:\(#[\w-]+\))? \| [^|]* \| ((?:[^|]* \| ){5})(\d+) \|$", re.MULTILINE)
_RUN = re.compile(r"^- run (\d+): .*$", re.MULTILINE)
_KINDS = {"issues": "issue", "pull": "pull request"}


def _measured(row: FaultRow) -> tuple[str, ...]:
    """Return the cells of a row after the title."""
    laws = ", ".join(dict.fromkeys(it.law for it in row.detections))
    missed = "" if row.caught else "**by another law**" if row.detections and not row.problems else "**no**"
    return (
        f"{laws} {missed}".strip(),
        ", ".join(dict.fromkeys(it.searcher for it in row.detections)),
        "" if row.operations is None else f"{row.operations:,.0f}",
        "" if row.seconds is None else f"{row.seconds:.2f}",
        "" if row.program is None else str(row.program),
    )


def rows_of(page: str) -> dict[str, tuple[str, ...]]:
    """Return the measured cells in a page, by the id of the fault."""
    return {id: (*cells.split(" | ")[:-1], run) for id, cells, run in _ROW.findall(page)}


def make_page(document: FaultsDocument, day: date, earlier: str = "") -> str:
    """Return a report as the page docs/faults.md."""
    runs = _runs_of(earlier)
    number = max(runs, default=0) + 1
    kept = kept_words(document.kept)
    runs[number] = (
        f"- run {number}: {day}, pymllm {document.versions.get('pymllm', 'unknown')}, "
        f"{count_of(len(document.faults), 'fault')} from {count_of(len(document.seeds), 'seed')} with "
        f"{count_of(document.jobs, 'process', 'processes')}, {document.seconds:.0f} s{kept}"
    )
    rows = rows_of(earlier)
    for row in document.faults:
        rows[row.id] = (*_measured(row), str(number))
    return _laid_out({row.id: row.title for row in document.faults}, rows, runs)


def print_anew(page: str) -> str:
    """Return a page with present texts and its earlier figures."""
    return _laid_out({}, rows_of(page), _runs_of(page))


def _runs_of(page: str) -> dict[int, str]:
    return {int(found[1]): found[0] for found in _RUN.finditer(page)}


def _laid_out(examined: Mapping[str, str], rows: dict[str, tuple[str, ...]], runs: dict[int, str]) -> str:
    titles = {**{fault.id: fault.title for fault in own_cabinet()}, **examined}
    servers = {fault.id: fault.title for fault in SERVERS}
    used = {int(rows[id][-1]) for id in {**titles, **servers} if id in rows}
    table = _table({id: title for id, title in titles.items() if id not in servers}, rows)
    probed = _SERVERS + _table(servers, rows, "requests") + "\n" if servers.keys() & rows else ""
    head = _HEAD.format(runs="\n".join(text for number, text in sorted(runs.items()) if number in used))
    reasons = [f"| {_linked(id)} | {BUGS[id].title} | {reason} |" for id, reason in UNPLANTED.items()]
    tail = ["\n## Not planted\n", "| id | bug | reason |", "| --- | --- | --- |", *reasons]
    return (
        head + table + "\n" + probed + _BUGS + "".join(map(_section, BUGS.values())) + "\n".join(tail) + "\n"
    )


def _table(titles: Mapping[str, str], rows: dict[str, tuple[str, ...]], unit: str = "operations") -> str:
    """Return the measured rows in the order of titles, and the number caught."""
    shown = {id: title for id, title in titles.items() if id in rows}
    names = [unit if it == "operations" else it for it in _COLUMNS]
    lines = [
        f"| {' | '.join(names)} |",
        f"| {' | '.join('---:' if it in _COLUMNS[4:] else '---' for it in _COLUMNS)} |",
        *(f"| {_linked(id)} | {title} | {' | '.join(rows[id])} |" for id, title in shown.items()),
    ]
    return "\n".join([*lines, "", _sum_up([rows[id] for id in shown])])


def _linked(id: str) -> str:
    return f"[{id}](#{id.lower()})" if id.partition("-")[0] in BUGS else id


def _sum_up(rows: list[tuple[str, ...]]) -> str:
    caught = [row for row in rows if "**" not in row[0]]
    first = Counter(row[1].partition(",")[0] for row in caught)
    by = ", ".join(f"{count} by the {name}" for name, count in first.most_common())
    return f"{len(caught)} of {len(rows)} faults caught by a listed law" + (f" ({by})." if by else ".")


def _section(bug: Bug) -> str:
    links = ", ".join(f"[{_named(link)}]({link})" for link in bug.links)
    version = f" ({bug.version})" if bug.version else ""
    plants = [_plant(fault, bug) for fault in (*PLANTED, *SERVERS) if fault.entry == bug.id]
    if bug.id in UNPLANTED:
        plants.append(f"- *Not planted*: {UNPLANTED[bug.id]}.")
    lines = [
        f"\n### {bug.id}\n",
        f"**{bug.title}.** {bug.engine}{version}: {links}; {bug.evidence}.\n",
        f"- *How*: {bug.mechanism}",
        f"- *Seen*: {bug.seen}",
        *plants,
    ]
    return "\n".join(lines) + "\n"


def _plant(fault: Fault, bug: Bug) -> str:
    anchor = "" if fault.id == bug.id else f'<a id="{fault.id.lower()}"></a>{fault.id}, '
    of = "the server " if fault in SERVERS else ""
    where = ", ".join(f"{of}`{name}`" for name in fault.adapters)
    note = f"; {fault.note}" if fault.note else ""
    return f"- *Planted*: {anchor}on {where}; laws {', '.join(fault.laws)}{note}."


def _named(link: str) -> str:
    *_, kind, what = link.split("/")[:7]
    if kind == "blob":
        return link.rpartition("/")[2]
    return f"commit {what[:8]}" if kind == "commit" else f"{_KINDS[kind]} {what}"
