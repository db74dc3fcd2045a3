"""The section of streams: a card for each broken law, and the laws with their tests."""

from __future__ import annotations

from pymllm.report.sections.streams import make_streams_section, tell_streams
from tests.unit.report import samples
from tests.unit.report.looking import look

HOLDS = samples.watch(source="sound.jsonl", verdict="holds", exit_status=0, findings=[], late=True)
HOLDS["laws"] = [{**law, "verdict": "holds", "broken": 0} for law in HOLDS["laws"]]


def test_a_broken_law_has_a_card_with_its_first_event() -> None:
    """With the messages that told the block, and the command that shows it again."""
    found = look(make_streams_section, samples.run(samples.watch()))
    (card,) = found.cards
    assert (
        card.title
        == "W5  VIOLATED by events.jsonl: a block is reported as removed when its last copy is removed"
    )
    facts = {fact.name: fact.value for fact in card.facts}
    assert facts.keys() == {"looked at", "expected", "observed", "at", "told in", "again"}
    assert facts["observed"] == "removed while 2 copies were there"
    assert facts["again"] == "pymllm watch events.jsonl"
    assert found.tiles == [("1", "laws of streams violated", "bad")]
    assert found.cell("✗ violated").tone == "bad"


def test_each_stream_is_told_by_its_newest_result() -> None:
    """The section names a stream that ended early, and one whose beginning is missing."""
    older, ended = samples.run(samples.watch(), time="2026-11-20T15:03:11Z"), {**HOLDS, "failure": "no JSON"}
    found = look(make_streams_section, older, samples.run(samples.watch(source="events.jsonl"), ended))
    assert len(found.tables["Laws of streams"]) == 14
    assert found.texts == [
        "sound.jsonl: ended early: no JSON",
        "The beginning, or a part since then, was not heard; nothing is blamed for it.",
    ]


def test_streams_stand_in_headlines_test_reports_and_metrics() -> None:
    """Broken is a failure, untested an error, not claimed skipped."""
    told = tell_streams([samples.run(samples.watch())])
    assert (told.bad, told.unknown) == (["1 law of a stream violated"], "")
    (suite,) = told.suites
    assert [case.outcome for case in suite.cases] == [None] * 4 + ["failure", None, "skipped"]
    assert "expected its last copy, observed removed while 2 copies were there" in suite.cases[4].message
    assert {sample.labels["law"] for family in told.families for sample in family.samples} == {
        f"W{number}" for number in range(1, 8)
    }
    untested = samples.watch(findings=[])
    untested["laws"] = [{**law, "verdict": "unknown", "broken": 0, "tests": 0} for law in untested["laws"]]
    assert tell_streams([samples.run(untested)]).unknown == "7 laws of streams not tested"
    assert tell_streams([samples.run(HOLDS)]).good == "all laws of streams hold"
    assert tell_streams([samples.run(samples.doctor())]).good == ""
