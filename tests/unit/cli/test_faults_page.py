"""The page of faults: figures of several runs, and the texts of every bug."""

from __future__ import annotations

from datetime import date

from pymllm.adapters.cabinet.bugs import BUGS, UNPLANTED
from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.table import find_faults, own_cabinet
from pymllm.cli.faults_page import make_page, print_anew, rows_of
from pymllm.conformance.detection import Detection, FaultResult, HuntPlan
from pymllm.conformance.faults_run import FaultsReport

DAY = date(2026, 11, 21)
B01, B79 = find_faults(["B01", "B79-requests"], own_cabinet())
OTHER = Fault("mine", "is wrong, too", ("R2",), ("radix",))


def caught(fault: Fault, law: str = "R2", program: int | None = 4) -> FaultResult:
    detection = Detection(0, law, "page 3", "machine", "radix", {}, 1200, 0.5, program)
    return FaultResult(fault, (detection,), (), 1.0)


def page(*results: FaultResult, day: date = DAY, earlier: str = "") -> str:
    return make_page(FaultsReport(HuntPlan((0, 1)), 2, {"pymllm": "1.0"}, results, 12.34), day, earlier)


def test_the_page_has_what_was_measured_and_of_which_run() -> None:
    """Caught, caught by another law, not caught; a stranger's fault has no section to lead to."""
    missed = FaultResult(B79, (), ("seed 0: not caught",), 1.0)
    text = page(caught(B01), missed, caught(OTHER, "R1", None))
    assert "- run 1: 2026-11-21, pymllm 1.0, 3 faults from 2 seeds with 2 processes, 12 s\n" in text
    assert f"| [B01](#b01) | {B01.title} | R2 | machine | 1,200 | 0.50 | 4 | 1 |\n" in text
    assert f"| [B79-requests](#b79-requests) | {B79.title} | **no** |  |  |  |  | 1 |\n" in text
    assert "| mine | is wrong, too | R1 **by another law** | machine | 1,200 | 0.50 |  | 1 |\n" in text
    assert "1 of 3 faults caught by a law of their list (1 by the machine).\n" in text
    assert "0 of 1 faults caught by a law of their list.\n" in page(missed)


def test_rows_of_an_earlier_run_stay_where_a_fault_was_not_looked_for() -> None:
    """A run that nobody refers to any more goes."""
    first = page(caught(B01), caught(B79))
    second = page(caught(B79, program=3), day=date(2026, 11, 22), earlier=first)
    assert rows_of(second) == {
        "B01": ("R2", "machine", "1,200", "0.50", "4", "1"),
        "B79-requests": ("R2 **by another law**", "machine", "1,200", "0.50", "3", "2"),
    }
    assert "- run 1: 2026-11-21" in second
    assert "- run 2: 2026-11-22" in second
    third = page(caught(B01), caught(B79), earlier=second)
    assert "- run 1" not in third
    assert "- run 2" not in third
    assert "- run 3" in third


def test_a_run_says_what_it_did_not_look_for_again() -> None:
    """Its seconds are without that."""
    report = FaultsReport(HuntPlan((0,)), 1, {"pymllm": "1.0"}, (caught(B01),), 12.34, kept=1)
    assert "1 faults from 1 seeds with 1 processes, 12 s without 1 that were known\n" in make_page(
        report, DAY
    )


def test_texts_are_printed_anew_without_a_run() -> None:
    """The figures stay, whatever a title was."""
    text = page(caught(B01))
    assert print_anew(text.replace(B01.title, "Something else")) == text


def test_every_bug_has_its_section() -> None:
    """With engine, version, links, evidence, how it came about, what was seen, and where it is planted."""
    text = page(caught(B01))
    for bug in BUGS.values():
        section = text.partition(f"\n### {bug.id}\n\n")[2].partition("\n### ")[0]
        assert section.startswith(f"**{bug.title}.** {bug.engine}")
        assert all(f"]({link})" in section for link in bug.links)
        assert f"; {bug.evidence}.\n" in section
        assert f"- *How*: {bug.mechanism}\n- *Seen*: {bug.seen}\n" in section
        assert ("- *Planted*: " in section) != (bug.id in UNPLANTED)
        assert section.count(UNPLANTED.get(bug.id, "no reason")) == (bug.id in UNPLANTED)
    assert "**Upstream pymllm revives" in text
    assert "mllm (commit b9c30702): [radix_cache.py](https" in text
    assert "- *Planted*: on `radix`; laws R2, R6.\n" in text
    assert '- *Planted*: <a id="b79-requests"></a>B79-requests, on `requests`; laws C1, C6, E4.\n' in text
    assert "[issue 35270](https" in text
    assert "[pull request 46](https" in text
    assert "[commit 61acfdcb](https" in text
    assert f"| [B83](#b83) | {BUGS['B83'].title} | {UNPLANTED['B83']} |\n" in text
