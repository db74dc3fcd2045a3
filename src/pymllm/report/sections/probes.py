"""The section of probed servers: broken laws, sizes of errors, and all differences of warm answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pymllm.documents.probes import ProbeDifference, ProbeDocument, ProbeViolation
from pymllm.instrument.openmetrics import Family, Sample
from pymllm.oracle.verdicts import Verdict
from pymllm.report.blocks import (
    BAD,
    ENDING,
    GOOD,
    PAGE,
    PALETTE,
    TERMINAL,
    UNKNOWN,
    Card,
    Choice,
    Column,
    Fact,
    Panel,
    Part,
    Plot,
    Table,
    Text,
    Tile,
    anchor_of,
    legend,
    log_axis,
    make_table,
    number,
    or_quiet,
    scatter,
)
from pymllm.report.findings import TONES, seen_facts, verdict_cell
from pymllm.report.loading import Run, documents_of
from pymllm.report.outcomes import Case, Outcome, Suite, counted
from pymllm.report.quantities import count_of, show_count, show_duration

_LEAST = 1e-17
"""The value drawn on a logarithmic axis in place of a zero difference."""
_KINDS = {
    "warm": "served from the cache",
    "computed": "nothing was cached",
    "cold": "asked cold once more",
}


def newest_probes(runs: Sequence[Run]) -> list[ProbeDocument]:
    """Return the newest probe of each server."""
    return list({name_of(it): it for it, _ in documents_of(runs, ProbeDocument)}.values())


def name_of(it: ProbeDocument) -> str:
    """Return the name of a server: its software, the model, and its address if that is lasting."""
    model = "" if it.model is None else f" {it.model}"
    where = f" at {it.url}" if it.url is not None else f" --demo {it.demo}" if it.demo is not None else ""
    return f"{it.server}{model}{where}"


def sentence_of(it: ProbeDocument, law: str) -> str:
    """Return the sentence of a law that a probe judged."""
    return next((row.sentence for row in it.laws if row.id == law), "")


def make_probes_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of servers, each by its newest probe, broken laws first."""
    probes = newest_probes(runs)
    if not probes:
        return
    for it in probes:
        yield Text(_asked(it), only=TERMINAL)
        yield Text("", only=TERMINAL)
        yield Text(verdict_line(it), TONES[it.verdict], only=TERMINAL)
        if it.failure is not None:
            yield Text(f"{name_of(it)}: ended early: {it.failure}", UNKNOWN)
        yield from (Text(f"{name_of(it)}: {note}") for note in it.notes)
    yield from (_card(it) for it in probes if it.violation is not None)
    yield _servers(probes)
    yield from (_laws(it) for it in probes)
    for it in probes:
        yield from (Text(line, only=TERMINAL) for line in _tolerances(it))
        yield Text(_compared(it), ENDING, only=TERMINAL)
    if drawn := [it for it in probes if it.differences]:
        yield _plot(drawn)
    counts = [it.verdict for it in probes]
    tone = BAD if Verdict.VIOLATED in counts else UNKNOWN if Verdict.UNKNOWN in counts else GOOD
    right = sum(verdict is Verdict.HOLDS for verdict in counts)
    yield Tile(f"{right:,} of {len(probes):,}", "servers keep every law", tone)


def _card(it: ProbeDocument) -> Card:
    found = it.violation
    assert found is not None
    facts = [*seen_facts(found.message, found.expected, found.observed)]
    if found.request:
        facts.append(Fact("request", f"{found.request}, at step {found.step}"))
    facts += [Fact("unshrunk", it.unshrunk)] if it.unshrunk is not None else []
    facts += [Fact("file", it.output)] if it.output is not None else []
    if it.again is not None:
        facts += [
            Fact("again", it.again, is_code=True),
            Fact("as curl", f"{it.again} --as curl", is_code=True),
        ]
    title = f"{found.law}  VIOLATED by {name_of(it)}: {sentence_of(it, found.law)}"
    note = f"the smallest found in {count_of(it.tries, 'try', 'tries')}" if it.program else ""
    return Card(_anchor(it), title, BAD, facts, "\n".join(it.program), note=note)


def _asked(it: ProbeDocument) -> str:
    return (
        f"{name_of(it)}: {count_of(it.requests, 'request')}, {show_duration(it.seconds)}, cold by {it.cold}"
    )


def verdict_line(it: ProbeDocument) -> str:
    """Return a line that names the broken or unknown laws, or says that all hold."""
    claimed = [law for law in it.laws if law.verdict is not Verdict.NOT_CLAIMED]
    found = [law.id for law in claimed if law.verdict is it.verdict]
    if it.verdict in (Verdict.VIOLATED, Verdict.UNKNOWN) and found:
        of = f"{len(found)} of {len(claimed)} laws that apply: {', '.join(found)}"
        return f"{it.verdict.value.upper():8}  {of}"
    if it.verdict is Verdict.UNKNOWN:
        return "UNKNOWN   the probe did not get to its end"
    return f"holds     all {count_of(len(claimed), 'law')} that apply"


def _tolerances(it: ProbeDocument) -> Iterator[str]:
    told = it.tolerance
    yield (
        f"differences of log-probabilities count from {_size(told.judged)} alone, "
        f"{_size(told.judged_company)} in company, {_size(told.judged_warm)} out of the cache"
    )
    if told.alone is not None:
        yield (
            f"measured: the same request cold again {_size(told.alone)}, at once with others "
            f"{_size(told.company)}, just cached {_size(told.warm)}"
        )


def _compared(it: ProbeDocument) -> str:
    left_out = f", {it.left_out:,} could not be" if it.left_out else ""
    return f"{it.places:,} tokens were compared{left_out}; the largest difference is {_size(it.largest)}"


def _size(value: float | None) -> str:
    return "unknown" if value is None or math.isnan(value) else f"{value:.2g}"


def _anchor(it: ProbeDocument) -> str:
    return anchor_of("server", name_of(it))


def _servers(probes: Sequence[ProbeDocument]) -> Table:
    columns = [
        Column("server probed", name_of),
        Column("verdict of the probe", lambda it: verdict_cell(it.verdict)),
        number("requests", lambda it: show_count(it.requests)),
        Column("cold by", lambda it: it.cold),
        number("tokens compared", lambda it: show_count(it.places)),
        number("largest difference", lambda it: f"{it.largest:.2g}"),
        number("counts from", lambda it: f"{it.tolerance.judged:.2g}"),
        number("in company from", lambda it: f"{it.tolerance.judged_company:.2g}"),
        Column("ended early", lambda it: or_quiet(it.failure, missing="no")),
    ]
    return make_table("Servers", probes, columns, only=PAGE)


def _laws(it: ProbeDocument) -> Table:
    columns = [
        Column("law", lambda law: law.id),
        Column("verdict", lambda law: verdict_cell(law.verdict)),
        number("tests of the law", lambda law: show_count(law.tests)),
        Column("what it says", lambda law: law.reason or law.sentence),
    ]
    is_folded = it.verdict is Verdict.HOLDS
    return make_table(f"Laws of servers: {name_of(it)}", it.laws, columns, folded=is_folded)


def _plot(probes: Sequence[ProbeDocument]) -> Plot:
    return Plot(
        "plot-probes",
        "Differences, warm and cold",
        "How far a log-probability in each answer is from the same request cold and alone, over requests, "
        "for answers from the cache and others, with the tolerance as a line.",
        [Choice(name_of(it), [_panel(it)], _note(it)) for it in probes],
        "server",
    )


def _note(it: ProbeDocument) -> str:
    none = sum(row.size == 0 for row in it.differences)
    return (
        f"{none:,} of {len(it.differences):,} answers differ by nothing at all; they stand at the lower edge."
    )


def _panel(it: ProbeDocument) -> Panel:
    sizes = [max(row.size, _LEAST) for row in it.differences]
    traces = [
        _marks(name, color, rows)
        for (kind, name), color in zip(_KINDS.items(), PALETTE, strict=False)
        if (rows := [row for row in it.differences if row.kind == kind])
    ]
    ends = [min(row.request for row in it.differences), max(row.request for row in it.differences)]
    line = {"mode": "lines", "line": {"dash": "dash", "color": PALETTE[-1]}}
    traces.append(scatter("what counts alone", ends, [it.tolerance.judged] * 2, **line))
    layout = {
        "xaxis": {"title": {"text": "request"}},
        "yaxis": log_axis("difference of a log-probability", [*sizes, it.tolerance.judged]),
        "height": 420,
        **legend(),
    }
    return Panel(traces, layout)


def _marks(name: str, color: str, rows: Sequence[ProbeDifference]) -> dict[str, Any]:
    return scatter(
        name,
        [row.request for row in rows],
        [max(row.size, _LEAST) for row in rows],
        mode="markers",
        marker={
            "color": color,
            "size": 7,
            "symbol": ["circle-open" if it.beside else "circle" for it in rows],
        },
        text=["<br>".join(_facts(row)) for row in rows],
        hovertemplate="%{text}<extra>%{fullData.name}</extra>",
    )


def _facts(row: ProbeDifference) -> Iterator[str]:
    cached = "" if row.cached is None else f", {row.cached:,} tokens cached"
    beside = f", beside {row.beside} more" if row.beside else ""
    yield f"request {row.request}{cached}{beside}"
    yield f"token {row.token} of the answer is off by {row.size:.2g}; {row.tolerance:.2g} counts"


# -- their outcome -----------------------------------------------------------------------------------------


def tell_probes(runs: Sequence[Run]) -> Outcome:
    """Return the outcome of the newest probe of each server; one that ended early is unknown."""
    probes = newest_probes(runs)
    broken = [(it, it.violation) for it in probes if it.violation is not None]
    untested = sum(law.verdict is Verdict.UNKNOWN for it in probes for law in it.laws)
    untested += sum(it.failure is not None for it in probes)
    unknown = counted(untested, "verdict on a server", "verdicts on servers")
    return Outcome(
        bad=counted(len(broken), "law violated by a server", "laws violated by servers"),
        unknown="".join(f"{words} unknown" for words in unknown),
        good="servers keep all laws that apply" if probes else "",
        parts=[*_summary(probes, broken)],
        suites=[Suite(f"probe {name_of(it)}", it.seconds, [*_cases(it)]) for it in probes],
        families=[Family("pymllm_probes", "gauge", "", "Laws of each server by verdict.", _counts(probes))],
    )


def _summary(
    probes: Sequence[ProbeDocument], broken: Sequence[tuple[ProbeDocument, ProbeViolation]]
) -> Iterator[Table]:
    violations = [
        Column("law", lambda it: it[1].law, is_word=True),
        Column("server", lambda it: name_of(it[0])),
        Column("looked at", lambda it: it[1].message),
        Column("expected", lambda it: it[1].expected),
        Column("observed", lambda it: it[1].observed),
        Column("again", lambda it: it[0].again or ""),
    ]
    yield make_table("Laws violated by servers", broken, violations)
    why = {
        name_of(it): "; ".join(
            [
                *([] if it.failure is None else [it.failure]),
                *(f"{law.id}: {law.reason}" for law in it.laws if law.verdict is Verdict.UNKNOWN),
            ]
        )
        for it in probes
    }
    unknown = [Column("server", lambda it: it[0]), Column("why", lambda it: it[1])]
    yield make_table("Unknown of servers", [it for it in why.items() if it[1]], unknown)
    columns = [
        Column("server", name_of),
        Column("verdict", lambda it: it.verdict.value, is_word=True),
        number("requests", lambda it: show_count(it.requests)),
        number("tokens compared", lambda it: show_count(it.places)),
        number("largest difference", lambda it: f"{it.largest:.2g}"),
        number("counts from", lambda it: f"{it.tolerance.judged:.2g}"),
    ]
    yield make_table("Servers", probes, columns)


def _cases(it: ProbeDocument) -> Iterator[Case]:
    suite, found = f"probe {name_of(it)}", it.violation
    for law in it.laws:
        name = f"{law.id} {law.sentence}"
        if found is not None and law.id == found.law:
            message = f"{found.message}; expected {found.expected}, observed {found.observed}"
            yield Case(suite, name, "failure", message, "\n".join([message, "", *it.program]))
        elif law.verdict is Verdict.UNKNOWN:
            yield Case(suite, name, "error", it.failure or law.reason or "")
        elif law.verdict is Verdict.NOT_CLAIMED:
            yield Case(suite, name, "skipped", law.reason or "")
        else:
            yield Case(suite, name)


def _counts(probes: Sequence[ProbeDocument]) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            sum(law.verdict is verdict for law in it.laws),
            {"server": name_of(it), "verdict": verdict.value.replace(" ", "_")},
        )
        for it in probes
        for verdict in Verdict
    )
