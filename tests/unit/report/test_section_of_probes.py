"""Probes in the report: the section of servers, the summary and the cases of JUnit."""

from __future__ import annotations

from pymllm.report.blocks import Plot
from pymllm.report.feeds import make_junit
from pymllm.report.sections.probes import make_probes_section
from pymllm.report.summary import make_summary
from tests.unit.report import samples
from tests.unit.report.looking import look

NAME = "vllm tiny at http://127.0.0.1:8000"
GOOD = {
    "violation": None,
    "verdict": "holds",
    "exit_status": 0,
    "program": [],
    "laws": [
        {"id": "V1", "sentence": "warm is cold", "verdict": "holds", "tests": 9, "reason": None},
    ],
}


def test_the_newest_probe_of_each_server_is_shown() -> None:
    """What was broken, with request, token, how far off, and the program; then the servers and their laws."""
    older = samples.run(samples.probe(requests=3), time="2026-11-20T15:03:11Z")
    other = samples.probe(url=None, server="pymllm", model=None, **GOOD)
    found = look(make_probes_section, older, samples.run(samples.probe(), other))
    (card,) = found.cards
    assert card.title == f"V1  VIOLATED by {NAME}: an answer does not depend on what the cache holds"
    facts = {fact.name: fact.value for fact in card.facts}
    assert facts["looked at"] == "request 2 served from the cache, token 1 of the answer, off by 0.5"
    assert (facts["request"], facts["expected"]) == ("2, at step 3", "-1.000000 for token 7")
    assert facts["again"] == "pymllm probe http://127.0.0.1:8000 --again runs/probe-V1.jsonl"
    assert card.program.splitlines()[2] == "3  request 2 again, cold"
    assert found.tables["Servers"] == [
        f"{NAME} | ✗ violated | 18 | salt | 1 | 0.5 | 0.0001 | 0.0001 | no",
        "pymllm | ✓ holds | 18 | salt | 1 | 0.5 | 0.0001 | 0.0001 | no",
    ]
    assert found.columns(f"Laws of servers: {NAME}", 0, 1, 2) == [
        ("V1", "✗ violated", "1"),
        ("V2", "? unknown", "0"),
        ("V6", "- not claimed", "0"),
    ]
    assert found.tiles == [("1 of 2", "servers keep every law", "bad")]


def test_differences_are_drawn_warm_and_cold() -> None:
    """Each answer by its request, what is nothing at the lower edge, and the tolerance as a line."""
    found = look(make_probes_section, samples.run(samples.probe()))
    (plot,) = (part for part in found.parts if isinstance(part, Plot))
    (choice,) = plot.choices
    assert choice.note.startswith("2 of 3 answers differ by nothing at all")
    marks = {trace["name"]: (trace["x"], trace["y"]) for trace in choice.panels[0].traces}
    assert marks == {
        "served from the cache": ([2], [0.5]),
        "nothing was cached": ([1], [1e-17]),
        "asked cold once more": ([1], [1e-17]),
        "what counts alone": ([1, 2], [0.0001, 0.0001]),
    }
    text = choice.panels[0].traces[0]["text"][0]
    assert text == "request 2, 3 tokens cached<br>token 1 of the answer is off by 0.5; 0.0001 counts"
    assert not look(make_probes_section, samples.run(samples.doctor())).parts


def test_a_probe_counts_in_the_summary_of_a_job() -> None:
    """Its violation stands beside those of classes; a failure of the server makes it unknown."""
    text = make_summary([samples.run(samples.probe())])
    assert text.startswith("## ❌ pymllm: 1 law violated by a server, 1 verdict on a server unknown\n")
    assert f"| V1 | <code>{NAME}</code> | <code>request 2 served from the cache" in text
    assert f"| <code>{NAME}</code> | <code>V2: no request tested it; ask for more</code> |" in text
    assert f"| <code>{NAME}</code> | violated | 18 | 1 | 0.5 | 0.0001 |" in text
    died = samples.run(samples.probe(**{**GOOD, "verdict": "unknown", "failure": "it died"}))
    assert "1 verdict on a server unknown" in make_summary([died])
    assert "<code>it died</code>" in make_summary([died])


def test_each_law_of_a_server_is_a_case() -> None:
    """The broken one fails with its program; what was not tested is an error."""
    text = make_junit([samples.run(samples.probe())])
    assert (
        f'<testsuite name="probe {NAME}" tests="3" time="2.500" failures="1" errors="1" skipped="1">' in text
    )
    assert "3  request 2 again, cold</failure>" in text
    assert 'message="no request tested it; ask for more"' in text
