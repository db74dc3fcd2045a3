"""Sums over runs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pymllm.conformance.soak.ledger import Failure, Place, Shares
from pymllm.conformance.soak.totals import Totals, expected_at
from tests.unit.conformance.soak.test_records import HEADER, RECORD

FINE = replace(RECORD, failure=None)


def test_what_runs_did_is_summed_up_by_adapter() -> None:
    """Operations, times, tests, walks and situations."""
    totals = Totals([HEADER])
    for record in (FINE, replace(FINE, seed=10), replace(FINE, adapter="other")):
        totals.add(record)
    rows = totals.adapters["rows"]
    assert (rows.runs, rows.operations, rows.places, len(rows.played)) == (2, 202, 1, 1)
    assert (rows.exercised["P1"], rows.audited["P1"], rows.reached["a row is freed"]) == (8, 4, 4)
    assert rows.operations_per_second == 202 / 2.5
    assert rows.shares == {"adapter": 0.4, "judge": 0.2, "walks": 0, "again": 0, "driver": 0}
    assert (totals.runs, totals.operations, totals.cpu) == (3, 303, 3.75)
    assert not totals.has_violations
    assert not totals.has_problems


def test_a_place_of_two_campaigns_is_one_place() -> None:
    """However many campaigns are put together."""
    other = replace(HEADER, seed=HEADER.seed + 1)
    assert Totals([HEADER, other]).adapters["rows"].places == 1


def test_what_is_expected_and_was_not_met_is_named() -> None:
    """By the registry, of every place that the campaign has."""
    totals = Totals([HEADER])
    rows = totals.adapters["rows"]
    assert rows.missing == sorted(expected_at(HEADER.places[0]))
    assert rows.untested == sorted(rows.laws)
    assert rows.operations_per_second == 0
    assert set(rows.shares.values()) == {0}
    totals.add(FINE)
    assert "P1" not in rows.untested
    assert "P1" in rows.laws


def test_an_engines_life_is_expected_where_one_is_driven() -> None:
    """And nothing that only its capabilities would allow elsewhere, nor what only another machine plays."""
    config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
    plain = Place("radix", "prefix", config, "PrefixMachine", "tiny", ("engine", "pool"))
    driven = replace(plain, machine="LifecycleMachine")
    assert "a waiting request is aborted" in expected_at(driven) - expected_at(plain)
    assert "an eviction asks for nothing" in expected_at(plain) - expected_at(driven)


def test_failures_are_counted_by_law_with_the_first() -> None:
    """A problem with the adapter is no violation."""
    totals = Totals([HEADER])
    later = replace(RECORD, seed=11)
    problem = replace(RECORD, failure=Failure(None, "gone"), shares=Shares())
    for record in (RECORD, later, problem):
        totals.add(record)
    failures = totals.adapters["rows"].failures
    assert (failures["P2"].first, failures["P2"].runs) == (RECORD, 2)
    assert (failures[""].first, failures[""].runs) == (problem, 1)
    assert totals.has_violations
    assert totals.has_problems


@pytest.mark.parametrize("kind", ["slots", "prefix"])
def test_each_kind_has_its_own_situations(kind: str) -> None:
    """What nobody expects is not missed."""
    config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "pages": 12}
    place = Place("x", kind, config, "SomeMachine", "tiny", ("pool",))
    assert expected_at(place)
