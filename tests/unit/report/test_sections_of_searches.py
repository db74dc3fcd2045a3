"""Sections of the page: laws, faults, situations, soaks, machines and runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pymllm.oracle.situations import SITUATIONS
from pymllm.oracle.verdicts import Verdict
from pymllm.report.loading import LoadedRuns, Skipped
from pymllm.report.records import Curve, make_machine
from pymllm.report.sections.faults import make_faults_section
from pymllm.report.sections.laws import make_laws_section, newest_searches
from pymllm.report.sections.machines import BRINGS, machine_name, make_machines_section, make_runs_section
from pymllm.report.sections.situations import make_situations_section
from pymllm.report.sections.soak import make_soak_section
from tests.unit.report import samples
from tests.unit.report.looking import cards, cells, figures, tables, texts
from tests.unit.report.test_trends import OTHER

# -- laws section ----------------------------------------------------------------------------------------


def test_a_table_has_a_column_for_each_implementation_wrong_ones_last() -> None:
    """One table for each kind; numbers are tests."""
    section = make_laws_section([samples.run(samples.verify())])
    assert tables(section) == {
        "rows: 3 laws, 2 implementations": [
            ["P2", "sentence of P2", "✓ 1,234", "✗ violated"],
            ["X1", "sentence of X1", "not claimed", "not about it"],
            ["X4", "sentence of X4", "✓ 7", "? unknown"],
        ]
    }
    assert section is not None
    assert [(tile.value, tile.name) for tile in section.tiles] == [
        ("2", "laws hold"),
        ("1", "laws violated"),
        ("1", "laws unknown"),
    ]


def test_a_violation_leads_to_its_program() -> None:
    """The cell to a card, the card to the file."""
    run = samples.run(samples.verify(), programs={"runs/faulty-x-P2-0.jsonl": samples.PROGRAM})
    section = make_laws_section([run])
    (cell,) = cells(section, "✗ violated")
    (card,) = cards(section)
    assert cell.href == f"#{card.id}"
    assert (card.file, card.lines) == ("faulty-x-P2-0.jsonl", samples.PROGRAM)
    facts = {fact.name: fact.value for fact in card.facts[:4]}
    assert facts == {
        "looked at": "row 1 <position 3>",
        "expected": "0",
        "observed": "1",
        "at": "step 4 of 5 (max_reqs 1, window None); the smallest found",
    }
    commands = [fact.value for fact in card.facts if fact.is_code]
    assert commands == [
        "pymllm rerun runs/faulty-x-P2-0.jsonl --adapter faulty-x",
        "pymllm judge runs/faulty-x-P2-0.jsonl",
    ]


def test_a_violation_says_what_shows_it_again_and_no_more() -> None:
    """Of one that a rerun does not show, the search; without a file, nothing to save."""
    row = samples.violation(
        "P2", file=None, rerun_shows_it=False, judge_shows_it=False, expected=None, observed=None, config={},
        smallest=False,
    )  # fmt: skip
    adapter = samples.adapter("faulty-x", "rows", [samples.law("P2", "violated")], violations=[row])
    (card,) = cards(make_laws_section([samples.run(samples.verify(adapter))]))
    assert card.file == ""
    assert [fact.value for fact in card.facts if fact.is_code] == [
        "pymllm verify --adapter faulty-x --law P2 --seed 3"
    ]
    at = next(fact.value for fact in card.facts if fact.name == "at")
    assert at == "step 4 of 5 (no configuration); perhaps not the smallest: the search was cut short"


def test_a_command_on_a_page_is_quoted() -> None:
    """A document may be anybody's; what runs from outside is named again."""
    name, law = "command:./x y", "P2; touch x"
    row = samples.violation(law, file="a b.jsonl", rerun_shows_it=True, judge_shows_it=False)
    searched = samples.violation("$(x)", file=None, rerun_shows_it=False, judge_shows_it=False)
    laws = [samples.law(law, "violated"), samples.law("$(x)", "violated")]
    adapter = samples.adapter(name, "rows", laws, violations=[row, searched])
    found = cards(make_laws_section([samples.run(samples.verify(adapter))]))
    assert [fact.value for card in found for fact in card.facts if fact.is_code] == [
        "pymllm rerun 'a b.jsonl' --adapter 'command:./x y'",
        "pymllm verify --adapter 'command:./x y' --law '$(x)' --seed 3",
    ]


def test_the_newest_search_of_an_implementation_counts() -> None:
    """In order of time, whatever the command was called."""
    old = samples.run(samples.verify(samples.adapter("rows", "rows", [samples.law("P2", "violated")])))
    new = samples.run(
        samples.verify(samples.adapter("rows", "rows", [samples.law("P2", "holds")]))
        | {"schema": "pymllm.compare"},
        time="2026-11-22T00:00:00Z",
    )
    (it,) = newest_searches([old, new])
    assert it.adapter.laws[0].verdict is Verdict.HOLDS
    assert cards(make_laws_section([old, new])) == []


def test_what_could_not_be_examined_is_told() -> None:
    """It has no laws and no kind, and must not be missing."""
    broken = samples.adapter(
        "my:Cache", None, [], problems=[{"message": "cannot be loaded", "file": "crash.jsonl"}]
    )
    section = make_laws_section([samples.run(samples.verify(broken))])
    assert tables(section) == {}
    assert texts(section) == [
        "my:Cache could not be examined to the end: cannot be loaded. The program until there: crash.jsonl."
    ]


def test_without_a_search_there_is_no_section() -> None:
    """It would be empty."""
    assert make_laws_section([samples.run(samples.faults())]) is None


# -- faults section --------------------------------------------------------------------------------------


def test_faults_are_listed_with_who_caught_them() -> None:
    """What was missed comes first."""
    section = make_faults_section([samples.run(samples.faults())])
    found = tables(section)
    assert found["Faults"] == [
        ["B02", "title of B02", "R6", "✗ missed", "nobody", "never", "never", "not made"],
        ["B01", "title of B01", "R6", "✓ caught", "machine (R6), sweep (R6)", "20", "250 ms", "3 operations"],
    ]
    assert found["Searchers"] == [["machine", "1", "20", "250 ms"], ["sweep", "1", "200", "250 ms"]]
    assert section is not None
    assert (section.tiles[0].value, section.tiles[0].tone) == ("1 of 2", "bad")


def test_the_picture_has_a_point_for_each_detection() -> None:
    """On a logarithmic axis, where a violation before the first operation has no zero to stand on."""
    fault = samples.fault("B01", samples.detection(0, "machine", 0), samples.detection(1, "machine", 30))
    (figure,) = figures(make_faults_section([samples.run(samples.faults(fault))]))["plot-faults"].values()
    assert list(figure.data[0].x) == [1, 30]
    assert "title of B01" in figure.data[0].text[0]


def test_the_newest_run_of_a_fault_counts_and_its_problem_is_told() -> None:
    """A later run of one fault does not hide the others."""
    old = samples.run(samples.faults(samples.fault("B10"), samples.fault("faulty-x")))
    caught = samples.fault("B10", samples.detection(0, "soak", 5))
    section = make_faults_section(
        [old, samples.run(samples.faults(caught, samples.fault("B9", problems=["no"])))]
    )
    rows = tables(section)["Faults"]
    assert [(row[0], row[3]) for row in rows] == [
        ("B9", "✗ missed: no"),
        ("faulty-x", "✗ missed"),
        ("B10", "✓ caught"),
    ]


def test_where_nothing_was_caught_there_is_no_picture() -> None:
    """An empty one would say less than the table."""
    section = make_faults_section([samples.run(samples.faults(samples.fault("B01")))])
    assert figures(section) == {}


def test_without_faults_there_is_no_section() -> None:
    """It would be empty."""
    assert make_faults_section([samples.run(samples.verify())]) is None


# -- situations section ----------------------------------------------------------------------------------


SLOTS = samples.adapter("token-slots", "slots", [])
SLOTS["machines"][0]["name"] = "SlotMachine"


def row(name: str, times: int, *unmet: str) -> dict[str, Any]:
    return {"name": name, "machine": "SlotMachine", "times": times, "unmet": list(unmet)}


def verify(*rows: dict[str, Any]) -> dict[str, Any]:
    return samples.verify(SLOTS, situations=list(rows))


def test_situations_are_counted_over_all_runs_by_kind() -> None:
    """Those of searches and those of soaks apart, with what is at stake from the registry."""
    first = samples.run(verify(row("the pool is exhausted", 12)))
    second = samples.run(verify(row("the pool is exhausted", 3)), samples.soak())
    found = tables(make_situations_section([first, second]))
    (slots,) = found["slots: 1 of 1 reached"]
    assert slots[:3] == ["the pool is exhausted", "15", "0"]
    assert "A2" in slots[3]
    prefix = {cells[0]: cells[1:3] for cells in found["prefix: 1 of 2 reached"]}
    assert prefix == {"a leaf gains a child": ["0", "5"], "a callback raises": ["0", "0"]}
    assert set(found) == {"slots: 1 of 1 reached", "prefix: 1 of 2 reached", "Expected, and never reached"}


def test_what_was_expected_and_never_reached_stands_by_itself() -> None:
    """With who should have; what only one of two never reached does not."""
    rows = [row("the pool is exhausted", 0, "token-slots"), row("an alloc fails", 4, "swa-slots")]
    section = make_situations_section([samples.run(verify(*rows))])
    (never,) = tables(section)["Expected, and never reached"]
    assert (never[0], never[1], never[3]) == ("the pool is exhausted", "slots", "token-slots")
    assert section is not None
    assert (section.tiles[0].value, section.tiles[0].tone) == ("1 of 2", "unknown")


def test_the_registry_alone_is_listed_as_reached_by_nobody() -> None:
    """As pymllm situations prints it."""
    rows = [{"name": it.name, "kind": it.kind, "laws": it.laws, "bugs": it.bugs} for it in SITUATIONS]
    plain = {**samples.situations(), "situations": rows}
    found = tables(make_situations_section([samples.run(plain)]))
    assert sum(len(rows) for rows in found.values()) == len({(it.kind, it.name) for it in SITUATIONS})
    assert all(" 0 of " in caption for caption in found)


def test_without_counts_there_is_no_section() -> None:
    """It would be empty."""
    assert make_situations_section([samples.run(samples.faults())]) is None


# -- soak section ----------------------------------------------------------------------------------------


def test_a_campaign_is_a_line_and_the_newest_is_laid_out() -> None:
    """With units, and the share that each part of the work took."""
    section = make_soak_section([samples.run(samples.soak(), pymllm="0.1.0+abc")])
    found = tables(section)
    assert found["Campaigns"] == [
        ["2026-11-21 15:03:11", samples.MACHINE.fingerprint, "0.1.0+abc", "9", "144,768", "7,238", "240 MiB",
         "✓ holds", "flat"]
    ]  # fmt: skip
    assert found["Newest campaign, by implementation"] == [
        [
            "radix",
            "9",
            "144,768",
            "7,238",
            "50.0 %",
            "25.0 %",
            "5.0 %",
            "5.0 %",
            "15.0 %",
            "1 of 2",
            "1 of 2",
            "0",
        ]
    ]
    (figure,) = figures(section)["plot-soak"].values()
    assert sum(trace.x[0] for trace in figure.data) == pytest.approx(100)


def test_a_failure_is_a_card_with_its_program() -> None:
    """The short one."""
    run = samples.run(
        samples.soak(
            samples.soak_failure("R6"), samples.soak_failure(None, file=None, short=None, config={})
        ),
        programs={"programs/x-short.jsonl": samples.PROGRAM},
    )
    section = make_soak_section([run])
    broken, problem = cards(section)
    assert broken.title == "R6 violated by radix in a soak"
    assert (broken.file, broken.lines, broken.tone) == ("x-short.jsonl", samples.PROGRAM, "bad")
    assert [fact.value for fact in broken.facts if fact.is_code] == [
        "programs/x-short.jsonl",
        "pymllm rerun programs/x-short.jsonl --adapter radix",
    ]
    assert (problem.title, problem.file, problem.tone) == ("problem with radix in a soak", "", "unknown")
    assert cells(section, "✗ violated")[0].tone == "bad"
    assert tables(section)["Newest campaign, by implementation"][0][-1] == "4"


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
    (cell,) = cells(make_soak_section([samples.run(samples.soak(drifts=drifts))]), shown)
    assert cell.hint is not None
    assert "uss: unknown" in cell.hint


def test_a_ledger_and_the_document_of_one_campaign_are_one_campaign() -> None:
    """Both lie in the folder of the run; that with the curves is kept."""
    curve = Curve("process 1", "bytes", "operations", (1.0,), (1,))
    document, ledger = samples.run(samples.soak()), samples.run(samples.soak(), curves=(curve,))
    for runs in ([document, ledger], [ledger, document]):
        assert len(tables(make_soak_section(runs))["Campaigns"]) == 1
    other = samples.run(samples.soak(runs=10), machine=None)
    found = tables(make_soak_section([document, other]))["Campaigns"]
    assert [row[1:3] for row in found] == [
        [samples.MACHINE.fingerprint, "not recorded"],
        ["not recorded", "not recorded"],
    ]


def test_the_same_failure_of_two_campaigns_is_two_cards() -> None:
    """Played again from the same seed, each has an anchor of its own."""
    runs = [samples.run(samples.soak(samples.soak_failure("R6"), runs=runs)) for runs in (9, 10)]
    assert len({card.id for card in cards(make_soak_section(runs))}) == 2


def test_a_campaign_in_which_nothing_ran_says_so() -> None:
    """An interrupted one, before its first run ended."""
    empty = samples.soak(adapters=[], cpu_seconds=0.0, operations=0, interrupted=True, verdict="unknown")
    section = make_soak_section([samples.run(empty)])
    assert tables(section)["Campaigns"][0][5:8] == ["unknown", "240 MiB", "? unknown, interrupted"]
    assert figures(section) == {}


def test_an_implementation_whose_turn_never_came_has_no_speed() -> None:
    """No bar, no zero that looks measured, and nothing green."""
    soak = samples.soak()
    waiting = {"name": "chunk", "runs": 0, "operations": 0, "operations_per_cpu_second": 0.0, "shares": {}}
    soak["adapters"].append(soak["adapters"][0] | waiting)
    section = make_soak_section([samples.run(soak)])
    row = tables(section)["Newest campaign, by implementation"][1]
    assert row[:4] + row[-1:] == ["chunk", "0", "0", "not measured", "none ran"]
    assert cells(section, "none ran")[0].tone == "unknown"
    (figure,) = figures(section)["plot-soak"].values()
    assert {name for trace in figure.data for name in trace.y} == {"radix"}
    alone = samples.soak(adapters=soak["adapters"][1:])
    assert figures(make_soak_section([samples.run(alone)])) == {}


def test_without_campaigns_there_is_no_section() -> None:
    """It would be empty."""
    assert make_soak_section([samples.run(samples.verify())]) is None


# -- machines section ------------------------------------------------------------------------------------


def test_a_machine_has_a_short_name() -> None:
    """Its own, or its processor's; with the GPU that it is about."""
    assert machine_name(samples.MACHINE) == f"rack 3, Some GPU ({samples.MACHINE.fingerprint})"
    assert machine_name(OTHER) == f"Another Processor ({OTHER.fingerprint})"
    assert machine_name(None) == "machine not recorded"


def test_machines_are_listed_with_their_runs() -> None:
    """Once each, with as much as any run tells of it."""
    vague = replace(samples.MACHINE, memory=None)
    blind = make_machine("P", 1, None, "Linux x86_64", gpu_reason="no NVML")
    runs = [samples.run(machine=it) for it in (vague, samples.MACHINE, OTHER, blind, None)]
    section = make_machines_section(runs)
    rows = tables(section)["Machines"]
    assert rows[0] == [
        f"rack 3 ({samples.MACHINE.fingerprint})", "Some Processor", "8", "32 GiB", "Linux x86_64",
        "Some GPU (80 GiB, driver 580.1)", "2",
    ]  # fmt: skip
    assert [row[5] for row in rows[1:]] == ["none", "none seen: no NVML"]


def test_what_doctor_saw_is_listed() -> None:
    """With the reason why NVML was not there, and no package that is not installed."""
    seen = samples.doctor() | {"nvml_reason": None, "nvml": "13", "nvml_devices": []}
    section = make_machines_section([samples.run(samples.doctor(), seen, machine=None)])
    first, second = tables(section)["What pymllm doctor saw"]
    assert first == ["Linux-6.18", "CPython 3.11.7", "2.13.0, CUDA none", "unknown: no NVML", "torch 2.13.0"]
    assert second[3] == "0 devices"


def test_without_machines_there_is_no_section() -> None:
    """It would be empty."""
    assert make_machines_section([samples.run(samples.verify(), machine=None)]) is None


def test_every_run_and_every_file_that_is_none_is_listed() -> None:
    """With what was left out of it."""
    runs = (
        samples.run(commit="ab" * 20, modified=True, pymllm="0.1.0", unread=("a smell",)),
        samples.run(machine=None, time_is_of_file=True),
    )
    loaded = LoadedRuns(runs, (Skipped("x.json", "not JSON"),), 2)
    section = make_runs_section(loaded, {"laws"})
    found = tables(section)
    here = machine_name(samples.MACHINE)
    told = ["verify", "2026-11-21 15:03:11", here, "0.1.0", "abababababab, modified", "a smell"]
    assert found["Runs"][0][1:] == told
    assert found["Runs"][1][2:] == [
        "~ 2026-11-21 15:03:11", "machine not recorded", "not recorded", "not recorded", "nothing"
    ]  # fmt: skip
    assert found["Files that could not be read"] == [["x.json", "not JSON"]]
    assert texts(section) == ["2 files were copies of others and count once."]
    assert ["soak", "pymllm soak --store FOLDER"] in found["Not in this report"]
    assert not any(row[0].startswith("laws") for row in found["Not in this report"])


def test_a_report_that_has_everything_misses_nothing() -> None:
    """No empty table."""
    section = make_runs_section(LoadedRuns((samples.run(),)), set(BRINGS))
    assert list(tables(section)) == ["Runs"]
