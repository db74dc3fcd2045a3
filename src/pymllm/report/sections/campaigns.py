"""The sections of planted faults and the laws that caught them, and of long campaigns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from pymllm.documents.campaigns import DriftRow, FailureRow, SoakDocument, SoakedAdapter
from pymllm.documents.faults import Detection, FaultRow, FaultsDocument
from pymllm.instrument.openmetrics import Family, Sample
from pymllm.oracle.laws import find_law
from pymllm.report.blocks import (
    BAD,
    ENDING,
    GOOD,
    PAGE,
    QUIET,
    TERMINAL,
    UNKNOWN,
    Card,
    Cell,
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
    log_axis,
    make_table,
    number,
    or_quiet,
)
from pymllm.report.changes import Since, find_since
from pymllm.report.findings import deviation_table, run_facts, seen_facts, verdict_cell
from pymllm.report.loading import Run, documents_of, newest_document
from pymllm.report.outcomes import Case, Outcome, Suite, counted
from pymllm.report.quantities import count_of, kept_words, show, show_count, show_share, show_time
from pymllm.report.sections.searches import program_card

# -- faults --------------------------------------------------------------------------------------------------


_Found = list[tuple[FaultRow, Detection]]


def make_faults_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of planted faults, each from the newest run that planted the fault."""
    newest = {fault.id: fault for it, _ in documents_of(runs, FaultsDocument) for fault in it.faults}
    faults = sorted(newest.values(), key=lambda fault: (fault.caught, _order(fault.id)))
    by_searcher: dict[str, _Found] = {}
    for fault in faults:
        for detection in fault.detections:
            by_searcher.setdefault(detection.searcher, []).append((fault, detection))
    found = sorted(by_searcher.items())
    if sum(len(its) for _, its in found) > 1:
        yield _plot(found)
    if found:
        yield _searchers(found)
    if faults:
        yield _faults(faults)
        yield from (Text(line, BAD) for fault in faults for line in _by_others(fault))
        missed = sum(not fault.caught for fault in faults)
        caught = f"{len(faults) - missed:,} of {len(faults):,}"
        yield Tile(caught, "planted faults caught", BAD if missed else GOOD)
    for document, _ in documents_of(runs, FaultsDocument):
        yield Text(_sum_up(document), ENDING, only=TERMINAL)


def _by_others(fault: FaultRow) -> Iterator[str]:
    """Return the laws that caught a fault without being listed for it."""
    for it in fault.detections:
        if it.law in fault.unlisted and not fault.caught:
            yield (
                f"{fault.id} from seed {it.seed}: {it.law} by the {it.searcher} on {it.adapter}: "
                f"{it.message}; its laws are {', '.join(fault.laws)}"
            )


def _sum_up(document: FaultsDocument) -> str:
    seen = Counter(row.detections[0].searcher for row in document.faults if row.detections)
    by = ", ".join(f"{count} by the {name}" for name, count in seen.most_common())
    found = f" ({by})" if by else ""
    ended = f"{document.seconds:.1f} s{kept_words(document.kept)}"
    return f"{document.caught} of {len(document.faults)} faults caught by a listed law{found}; {ended}"


def _order(id: str) -> tuple[str, int, str]:
    return (id[0], int(id[1:]), "") if id[1:].isdigit() else ("~", 0, id)


def _plot(by_searcher: Sequence[tuple[str, _Found]]) -> Plot:
    traces = [
        {
            "type": "box",
            "name": searcher,
            "x": [max(detection.operations, 1) for _, detection in found],
            "text": [f"{fault.id}: {fault.title}<br>law {it.law}, seed {it.seed}" for fault, it in found],
            "boxpoints": "all",
            "pointpos": 0,
            "jitter": 0.6,
            "orientation": "h",
            "fillcolor": "rgba(0,0,0,0)",
            "line": {"width": 1},
            "hovertemplate": "%{text}<br>%{x} operations<extra>%{fullData.name}</extra>",
        }
        for searcher, found in by_searcher
    ]
    operations = [it.operations for _, found in by_searcher for _, it in found]
    layout = {
        "xaxis": log_axis("operations until caught", operations),
        "yaxis": {"automargin": True, "autorange": "reversed"},
        "showlegend": False,
        "height": 140 + 90 * len(traces),
    }
    return Plot(
        "plot-faults",
        "Operations until a planted fault is caught, by searcher",
        "For each searcher, a point for each fault that it caught, at the number of operations that this "
        "took.",
        [Choice("all", [Panel(traces, layout)])],
    )


def _searchers(by_searcher: Sequence[tuple[str, _Found]]) -> Table:
    columns = [
        Column("searcher", lambda it: it[0]),
        number("faults caught", lambda it: show_count(len({fault.id for fault, _ in it[1]}))),
        number("operations, median", lambda it: show_count(median(one.operations for _, one in it[1]))),
        number("time, median", lambda it: show(median(one.seconds for _, one in it[1]), "s")),
    ]
    return make_table("Searchers", by_searcher, columns, only=PAGE)


def _faults(faults: Sequence[FaultRow]) -> Table:
    columns = [
        Column("fault", lambda it: it.id),
        Column("what is wrong", lambda it: it.title),
        Column("laws that may catch it", lambda it: ", ".join(it.laws), only=PAGE),
        Column("caught", _caught),
        Column("by", _by),
        number("operations", lambda it: or_quiet(it.operations, show_count, "never")),
        number("time", lambda it: or_quiet(it.seconds, lambda it: show(it, "s"), "never")),
        number("program", lambda it: or_quiet(it.program, "{} operations".format, "not made")),
    ]
    return make_table("Faults", faults, columns, folded=len(faults) > 30)


def _caught(fault: FaultRow) -> Cell:
    if fault.caught:
        return Cell("✓ caught", GOOD)
    if fault.detections and not fault.problems:
        return Cell("✗ by another law", BAD)
    return Cell(f"✗ missed{''.join(f': {problem}' for problem in fault.problems)}", BAD)


def _by(fault: FaultRow) -> str:
    return ", ".join(dict.fromkeys(f"{it.searcher} ({it.law})" for it in fault.detections)) or "nobody"


def tell_faults(runs: Sequence[Run]) -> Outcome:
    """Return the outcome of the newest search for planted faults, with test cases of all searches."""
    it = newest_document(runs, FaultsDocument)
    if it is None:
        return Outcome()
    missed = [fault for fault in it.faults if not fault.caught]
    counts = [
        number("planted", lambda it: show_count(it.caught + it.missed)),
        number("caught", lambda it: show_count(it.caught)),
        number("missed", lambda it: show_count(it.missed)),
    ]
    columns = [
        Column("fault", lambda it: it.id, is_word=True),
        Column("title", lambda it: it.title),
        Column("laws that may catch it", lambda it: ", ".join(it.laws), is_word=True),
    ]
    outcomes = Sample(it.caught, {"outcome": "caught"}), Sample(it.missed, {"outcome": "missed"})
    return Outcome(
        bad=counted(it.missed, "fault missed", "faults missed"),
        parts=[make_table("Planted faults", [it], counts), make_table("Missed faults", missed, columns)],
        suites=[
            Suite("faults", document.seconds, [_fault_case(fault) for fault in document.faults])
            for document, _ in documents_of(runs, FaultsDocument)
        ],
        families=[Family("pymllm_faults", "gauge", "", "Planted faults by outcome.", outcomes)],
    )


def _fault_case(fault: FaultRow) -> Case:
    why = "; ".join(fault.problems) or f"no law of {', '.join(fault.laws)} caught it"
    name = f"{fault.id} {fault.title}"
    return Case("faults", name) if fault.caught else Case("faults", name, "failure", why)


# -- soak ----------------------------------------------------------------------------------------------------


_SHARES = ("adapter", "judge", "walks", "again", "driver")
"""The names of the shares of processor time."""
_DRIFTS = {"flat": GOOD, "grows": BAD}

_Campaign = tuple[SoakDocument, Run]


def make_soak_section(runs: Sequence[Run]) -> Iterator[Part]:
    """Return the section of campaigns: the newest by implementation, and a card for each failure."""
    campaigns = _campaigns(runs)
    if not campaigns:
        return
    cards = [*failure_cards(campaigns, find_since(runs))]
    yield from cards
    yield _history(campaigns)
    if campaigns[-1][0].deviations:
        yield deviation_table(campaigns[-1][0].deviations)
    if campaigns[-1][0].adapters:
        yield from campaign_tables(campaigns[-1][0])
    yield Tile(show_count(sum(document.operations for document, _ in campaigns)), "operations soaked")
    if cards:
        yield Tile(show_count(len(cards)), "failed in soaks", BAD)


def tell_soaks(runs: Sequence[Run]) -> Outcome:
    """Return the outcome of the newest campaign, with test cases of all campaigns."""
    it = newest_document(runs, SoakDocument)
    if it is None:
        return Outcome()
    ended = " until it was interrupted" if it.interrupted else ""
    columns = [
        Column("implementation", lambda it: it.name),
        number("operations judged", lambda it: show_count(it.operations)),
        number("failures", lambda it: show_count(len(it.failures))),
    ]
    of = [(adapter, {"adapter": adapter.name}) for adapter in it.adapters]
    played = tuple(Sample(adapter.operations, labels) for adapter, labels in of)
    failed = tuple(Sample(len(adapter.failures), labels) for adapter, labels in of)
    return Outcome(
        bad=counted(
            sum(len(adapter.failures) for adapter in it.adapters), "failure in a soak", "failures in soaks"
        ),
        good=f"the soak found nothing{ended}",
        parts=[make_table(f"Soak{' (interrupted)' if it.interrupted else ''}", it.adapters, columns)],
        suites=[
            Suite(f"soak {adapter.name}", adapter.seconds, [*_soak_cases(adapter)])
            for document, _ in documents_of(runs, SoakDocument)
            for adapter in document.adapters
        ],
        families=[
            Family("pymllm_soak_operations", "gauge", "", "Operations that a soak judged.", played),
            Family("pymllm_soak_failures", "gauge", "", "Ways in which a soak failed.", failed),
        ],
    )


def _soak_cases(adapter: SoakedAdapter) -> Iterator[Case]:
    suite = f"soak {adapter.name}"
    if not adapter.failures:
        yield Case(suite, f"{adapter.operations:,} operations")
    for row in adapter.failures:
        law = row.failure.law
        where = f"seed {row.seed} in {row.machine}, {row.runs} runs"
        outcome = "failure" if law else "error"
        yield Case(suite, law or "asked to the end", outcome, row.failure.message, where)


def _campaigns(runs: Sequence[Run]) -> list[_Campaign]:
    """Return each campaign once, although its ledger and its printed document are two files."""
    found: dict[tuple[int, int, float], _Campaign] = {}
    for document, run in documents_of(runs, SoakDocument):
        key = document.runs, document.operations, round(document.cpu_seconds, 1)
        if key not in found or not found[key][1].curves:
            found[key] = document, run
    return list(found.values())


def _history(campaigns: Sequence[_Campaign]) -> Table:
    columns = [
        Column("ended (UTC)", lambda it: Cell(show_time(it[1].time), hint=it[1].source), is_word=True),
        Column("machine", lambda it: or_quiet(it[1].machine and it[1].machine.fingerprint), is_word=True),
        Column("pymllm", lambda it: or_quiet(it[1].pymllm), is_word=True),
        number("runs", lambda it: show_count(it[0].runs)),
        number("operations", lambda it: show_count(it[0].operations)),
        number("operations per CPU second", lambda it: _speed(it[0])),
        number("most memory", lambda it: show(it[0].peak_bytes, "bytes")),
        Column("verdict", lambda it: _verdict(it[0])),
        Column("memory over operations", lambda it: _drift(it[0].drifts)),
    ]
    return make_table("Campaigns", campaigns, columns, only=PAGE)


def _speed(it: SoakDocument) -> str:
    return f"{it.operations / it.cpu_seconds:,.0f}" if it.cpu_seconds else "unknown"


def _verdict(it: SoakDocument) -> Cell:
    return verdict_cell(it.verdict, f"{it.verdict.value}, interrupted" if it.interrupted else "")


def _drift(drifts: Sequence[DriftRow]) -> Cell:
    """Return the verdict of all memory measures: growing if any grows, flat if all are flat."""
    verdicts = {it.verdict for it in drifts}
    verdict = "grows" if "grows" in verdicts else "flat" if verdicts == {"flat"} else "too short to tell"
    hint = "; ".join(
        f"{it.measure}: {show(it.slope, it.unit)} per million operations, {it.verdict}" for it in drifts
    )
    return Cell(verdict, _DRIFTS.get(verdict, UNKNOWN), hint=hint or None)


def campaign_tables(document: SoakDocument) -> Iterator[Table]:
    """Yield the tables of one campaign: implementations, their processor time, and memory."""
    adapters = [
        Column("implementation", lambda it: it.name),
        number("places", lambda it: or_quiet(it.places or None, f"{it.places_played} of {{}}".format)),
        number("runs", lambda it: show_count(it.runs)),
        number("operations", lambda it: show_count(it.operations)),
        number(
            "laws tested",
            lambda it: _reached(sum(count > 0 for count in it.tests.values()), it.untested_laws),
        ),
        number("coverage goals", lambda it: _reached(len(it.goals), it.missing_goals, "; ")),
        number("runs that failed", _failed),
    ]
    yield make_table("Newest campaign, by implementation", document.adapters, adapters)
    times = [
        adapters[0],
        number("operations per CPU second", lambda it: _measured(it, f"{it.operations_per_cpu_second:,.0f}")),
        *(_share_column(name) for name in _SHARES),
    ]
    yield make_table("Its processor time", document.adapters, times)
    if document.drifts:
        drifts = [
            Column("memory", lambda it: it.measure),
            *(_growth_column(*names) for names in _GROWTHS.items()),
            number("samples", lambda it: show_count(it.samples)),
            Column("verdict", lambda it: Cell(it.verdict, _DRIFTS.get(it.verdict, UNKNOWN))),
        ]
        yield make_table("Its memory, per million operations", document.drifts, drifts)


_GROWTHS = {"growth": "slope", "from": "low", "to": "high", "bound": "bound"}


def _growth_column(name: str, field: str) -> Column:
    return number(
        name, lambda it: or_quiet(getattr(it, field), lambda value: show(value, it.unit), "unknown")
    )


def _share_column(name: str) -> Column:
    return number(name, lambda it: _measured(it, show_share(it.shares.get(name, 0.0))))


def _measured(it: SoakedAdapter, text: str) -> Cell:
    return Cell(text) if it.operations else Cell("not measured", QUIET)


def _reached(count: int, missing: Sequence[str], between: str = ", ") -> Cell:
    text = f"{count} of {count + len(missing)}"
    return Cell(text, UNKNOWN, hint=between.join(missing)) if missing else Cell(text, GOOD)


def _failed(it: SoakedAdapter) -> Cell:
    failed = sum(failure.runs for failure in it.failures)
    return Cell(show_count(failed), BAD if failed else GOOD) if it.runs else Cell("none ran", UNKNOWN)


def failure_cards(campaigns: Sequence[_Campaign], since: Mapping[tuple[str, str], Since]) -> Iterator[Card]:
    """Yield a card for each failure, with its program if the run includes it."""
    for place, (document, run) in enumerate(campaigns, 1):
        audits = {campaign.audit for campaign in document.campaigns}
        audit = audits.pop() if len(audits) == 1 else None
        for adapter in document.adapters:
            for row in adapter.failures:
                failure, met = row.failure, since.get((adapter.name, row.failure.law or ""))
                facts = [
                    *seen_facts(failure.message, failure.expected, failure.observed),
                    *run_facts(adapter.name, row, audit),
                    *([] if met is None else [Fact("since", str(met))]),
                ]
                yield failure_card(place, adapter.name, row, facts, run)


def failure_card(
    place: int, adapter: str, row: FailureRow, facts: Sequence[Fact], run: Run | None = None
) -> Card:
    """Return the card of one failure of a campaign, given its place."""
    law, runs = row.failure.law, count_of(row.runs, "run")
    id = anchor_of("soak", str(place), adapter, law or "problem", str(row.seed))
    title = f"{adapter}  ended with an error in {runs}"
    if law is not None:
        title = f"{law}  VIOLATED by {adapter} in {runs}: {_sentence(law)}"
    return program_card(id, title, BAD if law else UNKNOWN, facts, run, row.short or row.file)


def _sentence(law: str) -> str:
    """Return the sentence of a law, or nothing for a law unknown to this version."""
    try:
        return find_law(law).sentence
    except ValueError:
        return "a law that this version does not know"
