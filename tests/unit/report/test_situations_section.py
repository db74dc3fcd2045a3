"""The situations."""

from __future__ import annotations

from typing import Any

from pymllm.cli.situations_document import make_document
from pymllm.oracle.situations import SITUATIONS
from pymllm.report.situations_section import make_situations_section
from tests.unit.report import samples
from tests.unit.report.looking import tables

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
    plain = make_document(SITUATIONS)
    found = tables(make_situations_section([samples.run(plain)]))
    assert sum(len(rows) for rows in found.values()) == len({(it.kind, it.name) for it in SITUATIONS})
    assert all(" 0 of " in caption for caption in found)


def test_without_counts_there_is_no_section() -> None:
    """It would be empty."""
    assert make_situations_section([samples.run(samples.faults())]) is None
