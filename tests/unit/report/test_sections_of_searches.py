"""Sections of the page: laws, faults, coverage goals, soaks, machines and runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pymllm.oracle.coverage import GOALS
from pymllm.oracle.laws import find_law
from pymllm.report.blocks import Table
from pymllm.report.loading import LoadedRuns, Skipped
from pymllm.report.quantities import machine_name
from pymllm.report.records import Curve, make_machine
from pymllm.report.sections.campaigns import make_faults_section, make_soak_section
from pymllm.report.sections.changes import make_changes_section
from pymllm.report.sections.machines import make_machines_section, make_runs_section
from pymllm.report.sections.searches import make_goals_section, make_laws_section
from tests.unit.report import samples
from tests.unit.report.looking import Look, look
from tests.unit.report.test_trends import FIGURE, OTHER

HERE = samples.MACHINE.fingerprint

# -- laws ------------------------------------------------------------------------------------------------


def test_a_table_has_a_column_for_each_implementation_wrong_ones_last() -> None:
    """One table for each kind; numbers are tests; laws that nobody claims have no row."""
    found = look(make_laws_section, samples.verify())
    assert found.tables == {
        "rows: 2 laws, 2 implementations; not claimed: X1": [
            "P2 | sentence of P2 | ✓ 1,234 | ✗ violated",
            "X4 | sentence of X4 | ✓ 7 | ? unknown",
        ]
    }
    assert found.tiles == [
        ("0 of 2", "laws hold wherever claimed", "good"),
        ("1", "laws violated", "bad"),
        ("1", "laws unknown", "unknown"),
    ]


def test_what_is_wrong_comes_first_and_what_is_well_is_folded() -> None:
    """Violations before tables, tables with something wrong before those without."""
    holds = [samples.law("P1", "holds")]
    well, wrong = (
        samples.adapter("a", "slots", holds),
        samples.adapter("b", "rows", [samples.law("P2", "violated")]),
    )
    wrong["violations"] = [samples.violation("P2")]
    parts = look(make_laws_section, samples.verify(well, wrong)).parts
    assert [type(part).__name__ for part in parts[:3]] == ["Card", "Table", "Table"]
    assert [(it.caption[:5], it.folded) for it in parts if isinstance(it, Table)] == [
        ("rows:", False),
        ("slots", True),
    ]


def test_a_law_that_several_implementations_have_counts_once() -> None:
    """As the worst of them; laws and pairs of law and implementation are never one number."""
    found = look(
        make_laws_section,
        samples.verify(*(samples.adapter(n, "rows", [samples.law("P1", "holds")]) for n in "ab")),
    )
    assert found.tiles == [("1 of 1", "laws hold wherever claimed", "good")]


def test_a_law_that_was_not_searched_to_its_end_says_so() -> None:
    """Behind the number of its tests."""
    laws = [samples.law("P1", "holds") | {"unfinished": True}, samples.law("P2", "violated")]
    found = look(make_laws_section, samples.verify(samples.adapter("a", "rows", laws)))
    assert "not searched to its end" in found.cell("✓ 7 ~").hint


def test_a_violation_leads_to_its_program() -> None:
    """The cell to a card, the card to the file."""
    programs = {"runs/faulty-x-P2-0.jsonl": samples.PROGRAM}
    found = look(make_laws_section, samples.run(samples.verify(), programs=programs))
    (card,) = found.cards
    assert found.cell("✗ violated").href == f"#{card.id}"
    assert (card.file, card.lines) == ("faulty-x-P2-0.jsonl", samples.PROGRAM)
    assert {fact.name: fact.value for fact in card.facts[:4]} == {
        "looked at": "row 1 <position 3>",
        "expected": "0",
        "observed": "1",
        "at": "step 4, in a program of 5 steps (max_reqs 1, window None)",
    }
    assert found.code == [
        "pymllm rerun runs/faulty-x-P2-0.jsonl --adapter faulty-x",
        "pymllm judge runs/faulty-x-P2-0.jsonl",
    ]


def violated(name: str, *rows: dict[str, Any]) -> dict[str, Any]:
    """A document about one implementation that broke laws."""
    laws = [samples.law(row["law"], "violated") for row in rows]
    return samples.verify(samples.adapter(name, "rows", laws, violations=list(rows)))


def test_a_violation_says_what_shows_it_again_and_no_more() -> None:
    """Of one that a rerun does not show, the search; without a file, nothing to save."""
    unknown = {"file": None, "expected": None, "observed": None, "config": {}, "smallest": False}
    row = samples.violation("P2", rerun_shows_it=False, judge_shows_it=False, **unknown)
    found = look(make_laws_section, violated("faulty-x", row))
    assert found.cards[0].file == ""
    hint = "(the operations of the program alone do not break the law)"
    assert found.code == [f"pymllm verify --adapter faulty-x --law P2 --seed 3  {hint}"]
    assert found.cards[0].note.startswith("perhaps not the smallest")


def test_a_command_on_a_page_is_quoted() -> None:
    """A command on a page is quoted for a shell, and a foreign adapter is named again."""
    row = samples.violation("P2; touch x", file="a b.jsonl", judge_shows_it=False)
    searched = samples.violation("$(x)", file=None, rerun_shows_it=False, judge_shows_it=False)
    assert look(make_laws_section, violated("command:./x y", row, searched)).code == [
        "pymllm rerun 'a b.jsonl' --adapter 'command:./x y'",
        "pymllm verify --adapter 'command:./x y' --law '$(x)' --seed 3"
        "  (the operations of the program alone do not break the law)",
    ]


def test_the_newest_search_of_an_implementation_counts() -> None:
    """In order of time, whatever the command was called."""
    old, new = (
        samples.verify(samples.adapter("rows", "rows", [samples.law("P2", verdict)]))
        for verdict in ("violated", "holds")
    )
    found = look(make_laws_section, old, {**new, "schema": "pymllm.compare"})
    assert found.tables == {"rows: 1 law, 1 implementation": ["P2 | sentence of P2 | ✓ 7"]}
    assert found.cards == []


def test_what_could_not_be_examined_is_told() -> None:
    """It has no laws and no kind, and must not be missing."""
    problem = {"message": "cannot be loaded", "file": "crash.jsonl"}
    found = look(make_laws_section, samples.verify(samples.adapter("my:Cache", None, [], problems=[problem])))
    assert found.tables == {}
    (card,) = found.cards
    assert (card.title, card.tone) == ("my:Cache  could not be examined to the end", "unknown")
    assert [(it.name, it.value) for it in card.facts] == [
        ("because", "cannot be loaded"),
        ("program", "crash.jsonl"),
    ]


def test_a_search_that_was_cut_short_says_how_much_was_played() -> None:
    """Programs, not laws: what holds was tested by these only."""
    row = samples.adapter("rows", "rows", [samples.law("P1", "holds")])
    row["machines"][0] |= {"programs": 15, "promised": 51}
    found = look(make_laws_section, samples.verify(row))
    assert found.texts == ["The search of rows was cut short: time was up after 15 of 51 programs."]


def test_a_violation_says_since_when_it_is_there() -> None:
    """On its card, and on that of a soak: whichever run was the first to find it."""
    soak = samples.run(
        samples.soak(samples.soak_failure("R6")), kind="soak", pymllm="0.1.0", commit="ab" * 20
    )
    broken = violated("radix", samples.violation("R6"))
    later = samples.run(broken, time="2026-11-22T00:00:00Z")
    (card,) = look(make_laws_section, soak, later).cards
    (since,) = (fact.value for fact in card.facts if fact.name == "since")
    assert since == (
        "2026-11-21 15:03:11 UTC, soak, commit abababababab, pymllm 0.1.0; "
        "all 2 runs that tested the law since then broke it"
    )
    (card,) = look(make_soak_section, soak, later).cards
    assert since in [fact.value for fact in card.facts]


# -- changes ---------------------------------------------------------------------------------------------


def test_the_newest_run_of_each_kind_is_beside_the_one_before() -> None:
    """A run is compared with the last that shares an implementation: laws, findings, figures, losses."""
    laws = [samples.law("P1", "holds"), samples.law("P2", "violated")]
    old = samples.verify(samples.adapter("rows", "rows", laws, violations=[samples.violation("P2")]))
    old["adapters"][0]["machines"][0]["situations"] = {"the pool is full": 3}
    new = samples.verify(
        samples.adapter("rows", "rows", [samples.law("P1", "unknown"), samples.law("P2", "holds")])
    )
    new["adapters"][0]["machines"][0]["situations"] = {}
    other = samples.verify(samples.adapter("chunk", "prefix", [samples.law("P1", "violated")]))
    figures = [
        (
            replace(FIGURE, value=value, low=value - 1, high=value + 1),
            replace(FIGURE, name="noise", value=value),
        )
        for value in (10.0, 15.0)
    ]
    runs = [
        samples.run(old, time="2026-11-01T00:00:00Z", figures=figures[0]),
        samples.run(other, time="2026-11-02T00:00:00Z"),
        samples.run(new, time="2026-11-03T00:00:00Z", figures=figures[1], kind="compare"),
        samples.run(samples.faults(), kind="faults"),
    ]
    found = look(make_changes_section, *runs)
    assert found.tables == {
        "Runs compared": ["verify | 2026-11-01 00:00:00 | 2026-11-03 00:00:00 | 1 | 1 | 0 | 2 | 1"],
        "Laws with another verdict": [
            "P1 | rows | verify | holds | unknown | no longer tested",
            "P2 | rows | verify | violated | holds | fixed",
        ],
        "Findings of one run alone": ["P2 | rows | verify | row 1 <position 3> | gone"],
        "Figures beyond noise": ["match | verify | 10 µs | 15 µs | +50.0% | worse: spreads apart"],
        "No longer reached or caught": [
            "the pool is full (rows, RowMachine) | verify | coverage goal no longer reached"
        ],
    }
    assert found.tiles == [
        ("1", "no longer tested since the run before", "unknown"),
        ("1", "fixed since the run before", "good"),
    ]


def test_one_run_of_each_kind_has_no_run_before() -> None:
    """Nor have two that looked at different implementations; a fault that is not caught any more is told."""
    rows, chunk = (samples.verify(samples.adapter(name, "rows", [])) for name in ("rows", "chunk"))
    assert look(make_changes_section, rows, chunk, samples.run(samples.doctor(), kind="doctor")).parts == []
    faults = samples.faults(samples.fault("B01", samples.detection(0, "machine", 3)))
    runs = [samples.run(plain, kind="faults") for plain in (faults, samples.faults(samples.fault("B01")))]
    found = look(make_changes_section, *runs)
    assert found.tables["No longer reached or caught"] == ["B01 | faults | fault no longer caught"]


# -- faults ----------------------------------------------------------------------------------------------


def test_faults_are_listed_with_who_caught_them() -> None:
    """Faults are listed with their searchers, and missed faults come first."""
    found = look(make_faults_section, samples.faults())
    assert found.tables["Faults"] == [
        "B02 | title of B02 | R6 | ✗ missed | nobody | never | never | not made",
        "B01 | title of B01 | R6 | ✓ caught | machine (R6), sweep (R6) | 20 | 250 ms | 3 operations",
    ]
    assert found.tables["Searchers"] == ["machine | 1 | 20 | 250 ms", "sweep | 1 | 200 | 250 ms"]
    assert found.tiles == [("1 of 2", "planted faults caught", "bad")]


def test_the_picture_has_a_point_for_each_detection() -> None:
    """On a logarithmic axis, where a violation before the first operation has no zero to stand on."""
    fault = samples.fault("B01", samples.detection(0, "machine", 0), samples.detection(1, "machine", 30))
    (trace,) = look(make_faults_section, samples.faults(fault)).picture("plot-faults").data
    assert list(trace.x) == [1, 30]
    assert "title of B01" in trace.text[0]


def test_the_newest_run_of_a_fault_counts_and_its_problem_is_told() -> None:
    """A later run of one fault does not hide the others; without any caught there is no picture."""
    old = samples.faults(samples.fault("B10"), samples.fault("faulty-x"))
    assert look(make_faults_section, old).plots == {}
    caught = samples.fault("B10", samples.detection(0, "soak", 5))
    new = samples.faults(caught, samples.fault("B9", problems=["no"]))
    rows = look(make_faults_section, old, new).columns("Faults", 0, 3)
    assert rows == [("B9", "✗ missed: no"), ("faulty-x", "✗ missed"), ("B10", "✓ caught")]


# -- coverage goals ------------------------------------------------------------------------------------------

SLOTS = samples.adapter("token-slots", "slots", [])
SLOTS["machines"][0]["name"] = "SlotMachine"


def verify(*rows: tuple[str, int, list[str]]) -> dict[str, Any]:
    """A search of slots that met coverage goals so many times."""
    names = ("name", "times", "unmet")
    found = [{"machine": "SlotMachine", **dict(zip(names, row, strict=True))} for row in rows]
    return samples.verify(SLOTS, situations=found)


def test_goals_are_counted_over_all_runs_by_kind() -> None:
    """Those of searches and those of soaks apart, with what is at stake from the registry."""
    first, second = verify(("the pool is exhausted", 12, [])), verify(("the pool is exhausted", 3, []))
    found = look(make_goals_section, first, second, samples.soak())
    slots, prefix = "slots: 1 of 1 reached", "prefix: 1 of 2 reached"
    assert set(found.tables) == {slots, prefix, "Expected, and never reached"}
    assert found.columns(slots, 0, 1, 2) == [("the pool is exhausted", "15", "0")]
    assert "A2" in found.columns(slots, 3)[0][0]
    rows = {("a leaf gains a child", "0", "5"), ("a callback raises", "0", "0")}
    assert set(found.columns(prefix, 0, 1, 2)) == rows


def test_what_was_expected_and_never_reached_stands_by_itself() -> None:
    """An expected goal that no run reached is listed with the adapters that should have reached it."""
    rows = ("the pool is exhausted", 0, ["token-slots"]), ("an alloc fails", 4, ["swa-slots"])
    found = look(make_goals_section, verify(*rows))
    never = found.columns("Expected, and never reached", 0, 1, 3)
    assert never == [("the pool is exhausted", "slots", "token-slots")]
    assert found.tiles == [("1 of 2", "coverage goals reached", "unknown")]


def test_the_registry_alone_is_listed_as_reached_by_nobody() -> None:
    """As pymllm goals prints it."""
    rows = [{"name": it.name, "kind": it.kind, "laws": it.laws, "bugs": it.bugs} for it in GOALS]
    found = look(make_goals_section, {**samples.goals(), "situations": rows}).tables
    assert sum(map(len, found.values())) == len({(it.kind, it.name) for it in GOALS})
    assert all(" 0 of " in caption for caption in found)


# -- soaks -----------------------------------------------------------------------------------------------

NEWEST = "Newest campaign, by implementation"


def test_a_campaign_is_a_line_and_the_newest_is_laid_out() -> None:
    """With units, and the share that each part of the work took."""
    found = look(make_soak_section, samples.run(samples.soak(), pymllm="0.1.0+abc"))
    assert found.tables == {
        "Campaigns": [
            f"2026-11-21 15:03:11 | {HERE} | 0.1.0+abc | 9 | 144,768 | 7,238 | 240 MiB | ✓ holds | flat"
        ],
        NEWEST: ["radix | not recorded | 9 | 144,768 | 1 of 2 | 1 of 2 | 0"],
        "Its processor time": ["radix | 7,238 | 50.0 % | 25.0 % | 5.0 % | 5.0 % | 15.0 %"],
        "Its memory, per million operations": ["uss | 12 bytes | 1 bytes | 20 bytes | 1 MiB | 30 | flat"],
    }
    assert found.tiles == [("144,768", "operations soaked", None)]


def test_a_failure_is_a_card_with_its_program() -> None:
    """The short one."""
    problem = samples.soak_failure(None, file=None, short=None, config={})
    campaign = {"source": "1", "versions": {}, "seed": 7, "operations": None, "longest": 9, "audit": 64}
    document = samples.soak(samples.soak_failure("R6"), problem, campaigns=[campaign | {"places": 1}])
    programs = {"programs/x-short.jsonl": samples.PROGRAM}
    found = look(make_soak_section, samples.run(document, programs=programs))
    assert [(card.title, card.file, card.lines, card.tone) for card in found.cards] == [
        (
            f"R6  VIOLATED by radix in 2 runs: {find_law('R6').sentence}",
            "x-short.jsonl",
            samples.PROGRAM,
            "bad",
        ),
        ("radix  ended with an error in 2 runs", "", (), "unknown"),
    ]
    again = "pymllm rerun programs/x-short.jsonl --adapter radix"
    config = "pymllm repeat 77 --adapter radix --config"
    run = "--operations 100 --machine PrefixMachine --audit 1/64"
    first, second = f"{config} '{{\"page_size\": 1}}' {run}", f"{config} '{{}}' {run}"
    assert found.code == [first, again, again.replace("-short", "-long"), second]
    assert found.cell("✗ violated").tone == "bad"
    assert found.columns(NEWEST, -1) == [("4",)]


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        (["flat", "flat"], "flat"),
        (["flat", "grows"], "grows"),
        (["flat", "too short to tell"], "too short to tell"),
    ],
)
def test_one_measure_that_grows_outweighs_the_others(verdicts: list[str], shown: str) -> None:
    """And all must be flat to be flat; the slopes are in the hint."""
    drift = samples.soak()["drifts"][0]
    drifts: list[Any] = [{**drift, "verdict": verdict, "slope": None} for verdict in verdicts]
    assert "uss: unknown" in str(
        look(make_soak_section, samples.soak(drifts=drifts)).cell(shown, "Campaigns").hint
    )


def test_a_ledger_and_the_document_of_one_campaign_are_one_campaign() -> None:
    """Both lie in the folder of the run; that with the curves is kept."""
    curve = Curve("process 1", "bytes", "operations", (1.0,), (1,))
    document = samples.run(samples.soak())
    ledger = samples.run(samples.soak(), curves=(curve,), pymllm="0.1.0")
    for runs in ([document, ledger], [ledger, document]):
        assert look(make_soak_section, *runs).columns("Campaigns", 2) == [("0.1.0",)]
    other = samples.run(samples.soak(runs=10), machine=None)
    found = look(make_soak_section, document, other).columns("Campaigns", 1, 2)
    assert found == [(HERE, "not recorded"), ("not recorded", "not recorded")]


def test_the_same_failure_of_two_campaigns_is_two_cards() -> None:
    """Played again from the same seed, each has an anchor of its own."""
    runs = [samples.soak(samples.soak_failure("R6"), runs=runs) for runs in (9, 10)]
    assert len({card.id for card in look(make_soak_section, *runs).cards}) == 2


def test_a_campaign_in_which_nothing_ran_says_so() -> None:
    """An interrupted one, before its first run ended."""
    empty = samples.soak(adapters=[], cpu_seconds=0.0, operations=0, interrupted=True, verdict="unknown")
    found = look(make_soak_section, empty)
    assert found.columns("Campaigns", 5, 6, 7) == [("unknown", "240 MiB", "? unknown, interrupted")]


def test_an_implementation_whose_turn_never_came_has_no_speed() -> None:
    """No zero that looks measured, and nothing green."""
    soak = samples.soak()
    waiting = {"name": "chunk", "runs": 0, "operations": 0, "operations_per_cpu_second": 0.0, "shares": {}}
    soak["adapters"].append(soak["adapters"][0] | waiting)
    found = look(make_soak_section, soak)
    assert found.columns(NEWEST, 0, 2, 3, -1)[1] == ("chunk", "0", "0", "none ran")
    assert found.columns("Its processor time", 0, 1)[1] == ("chunk", "not measured")
    assert found.cell("none ran").tone == "unknown"


# -- machines and runs -----------------------------------------------------------------------------------


def test_machines_are_listed_with_their_runs() -> None:
    """Once each, with as much as any run tells of it."""
    vague = replace(samples.MACHINE, memory=None)
    blind = make_machine("P", 1, None, "Linux x86_64", gpu_reason="no NVML")
    runs = [samples.run(machine=it) for it in (vague, samples.MACHINE, OTHER, blind, None)]
    rows = look(make_machines_section, *runs).tables["Machines"]
    seen = "Some Processor | 8 | 32 GiB | Linux x86_64 | Some GPU (80 GiB, driver 580.1) | 2"
    assert rows[0] == f"rack 3 ({HERE}) | {seen}"
    assert [row.split(" | ")[5] for row in rows[1:]] == ["none", "none seen: no NVML"]


def test_what_doctor_saw_is_listed() -> None:
    """With the reason why NVML was not there, and no package that is not installed."""
    seen = samples.doctor() | {"nvml_reason": None, "nvml": "13", "nvml_devices": []}
    found = look(make_machines_section, samples.run(samples.doctor(), seen, machine=None))
    first, second = found.tables["What pymllm doctor saw"]
    assert first == "Linux-6.18 | CPython 3.11.7 | 2.13.0, CUDA none | unknown: no NVML | torch 2.13.0"
    assert "0 devices" in second


def test_every_run_and_every_file_that_is_none_is_listed() -> None:
    """With what was left out of it."""
    whole = samples.run(source="a", commit="ab" * 20, modified=True, pymllm="0.1.0", unread=("a smell",))
    vague = samples.run(source="b", machine=None, time_is_of_file=True)
    loaded = LoadedRuns((whole, vague), (Skipped("x.json", "not JSON"),), 2)
    found = Look(make_runs_section(loaded, [{"title": "Soak", "brings": "pymllm soak --store FOLDER"}]))
    here, commit = machine_name(samples.MACHINE), "abababababab, modified"
    assert found.tables["Runs"] == [
        f"a | verify | 2026-11-21 15:03:11 | {here} | 0.1.0 | {commit} | a smell",
        "b | verify | ~ 2026-11-21 15:03:11 | not recorded | not recorded | not recorded | nothing",
    ]
    assert found.tables["Files that could not be read"] == ["x.json | not JSON"]
    assert found.texts == ["2 files are copies of another one; each run counts once."]
    assert found.tables["Not in this report"] == ["Soak | pymllm soak --store FOLDER"]


def test_a_report_that_has_everything_misses_nothing() -> None:
    """No empty table; one copy is one file."""
    found = Look(make_runs_section(LoadedRuns((samples.run(),), copies=1), []))
    assert list(found.tables) == ["Runs"]
    assert found.texts == ["1 file is a copy of another one; each run counts once."]
