"""Tests of the sums of a campaign, and of the growth of its memory."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from pymllm.documents.campaigns import Failure
from pymllm.soak.drift import MEASURES, Drift, DriftVerdict, MemoryCourse, estimate_drift
from pymllm.soak.ledger import Memory, Place, Shares
from pymllm.soak.totals import Totals, expected_at
from tests.unit.soak.test_ledger import HEADER, RECORD

MIB = 1 << 20
MALLOC = MEASURES[1]


def drift(slope: float, noise: float, samples: int = 60, processes: int = 1, seed: int = 0) -> Drift:
    """Of samples every 10,000 operations on a line with a slope per million, with noise around it."""
    source = random.Random(seed)
    series = {
        str(process): (
            [10_000.0 * at for at in range(samples)],
            [slope * at / 100 + source.uniform(-noise, noise) for at in range(samples)],
        )
        for process in range(processes)
    }
    return estimate_drift(MALLOC, series)


def test_a_leak_grows_and_its_slope_is_found() -> None:
    """Whatever the noise, as long as it is smaller than the growth."""
    found = drift(50 * MIB, 2 * MIB)
    assert found.verdict is DriftVerdict.GROWS
    assert found.slope == pytest.approx(50 * MIB, rel=0.1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.slope < found.high


def test_noise_alone_is_flat_once_there_are_samples_enough() -> None:
    """The spread narrows: with few samples nobody knows."""
    assert drift(0, MIB / 2, 300).verdict is DriftVerdict.FLAT
    assert drift(0, 40 * MIB, 12).verdict is DriftVerdict.TOO_SHORT


def test_a_few_large_runs_do_not_move_the_slope() -> None:
    """It is a median."""
    series = [0.0] * 60
    series[30] = series[45] = 500.0 * MIB
    found = estimate_drift(MALLOC, {"p": ([10_000.0 * at for at in range(60)], series)})
    assert found.slope == 0
    assert found.verdict is DriftVerdict.FLAT


def test_growth_that_adds_up_to_little_is_no_leak_yet() -> None:
    """A judge never accuses the innocent: a few pages more after a second are none."""
    found = drift(10 * MIB, 0, 40)
    assert found.low == pytest.approx(10 * MIB)
    assert found.verdict is DriftVerdict.TOO_SHORT


def test_few_samples_say_nothing() -> None:
    """Nor do those of which all were taken at once."""
    found = drift(50 * MIB, 0, 9)
    assert (found.verdict, found.slope, found.samples) == (DriftVerdict.TOO_SHORT, None, 7)
    found = estimate_drift(MALLOC, {"p": ([0.0] * 40, [1.0] * 40)})
    assert found.verdict is DriftVerdict.TOO_SHORT
    assert estimate_drift(MALLOC, {}).samples == 0


def test_several_processes_are_looked_at_each_by_itself() -> None:
    """The level of one process above another is no growth."""
    many = drift(150 * MIB, MIB, 20, 4)
    assert (many.processes, many.samples) == (4, 60)
    assert many.verdict is DriftVerdict.GROWS
    lone = {"a": ([1.0, 2.0], [0.0, 1e12])}
    assert estimate_drift(MALLOC, lone).processes == 0


def test_long_courses_are_thinned_out() -> None:
    """The number of pairs grows with the square of the samples."""
    found = drift(50 * MIB, MIB, 4_000)
    assert found.samples <= 256
    assert found.slope == pytest.approx(50 * MIB, rel=0.1)


def at_rest(operations: int, held: float, *, blocks: int = 100, is_first: bool = False) -> Memory:
    """A sample of a process that holds so many bytes."""
    return Memory("p", operations, int(held), int(held), blocks, is_first, int(held))


def test_the_course_leaves_first_runs_out() -> None:
    """Modules and classes come once; what grows in other runs is summed up."""
    course = MemoryCourse()
    for at in range(40):
        is_first = at < 10
        grown = 1000 * min(at + 1, 10) * MIB + 5 * max(0, at - 9) * MIB
        course.add(at_rest(10_000 * (at + 1), grown, is_first=is_first))
    blocks, malloc, uss, rss = course.estimate()
    assert malloc.slope == uss.slope == rss.slope == pytest.approx(500 * MIB)
    assert (malloc.verdict, blocks.verdict) == (DriftVerdict.GROWS, DriftVerdict.FLAT)
    assert course.peak == (10_000 + 150) * MIB


def test_what_a_run_leaves_behind_for_a_while_is_neither_growth_nor_the_opposite() -> None:
    """Also where it came with a first run, which is left out, and went with another, which is not."""
    course = MemoryCourse()
    for at in range(80):
        left = 300 * MIB if at % 10 in (3, 4) else 0
        course.add(at_rest(10_000 * (at + 1), 200 * MIB + left, is_first=at % 10 == 3))
    for found in course.estimate():
        assert (found.slope, found.verdict) == (0, DriftVerdict.FLAT)


def test_a_leak_is_seen_through_what_runs_leave_behind() -> None:
    """The floor rises with it."""
    course = MemoryCourse()
    for at in range(80):
        left = 300 * MIB if at % 3 == 0 else 0
        course.add(at_rest(10_000 * (at + 1), 200 * MIB + left + 2 * at * MIB, blocks=1_000 * (at + 1)))
    blocks, malloc, uss, _ = course.estimate()
    assert blocks.verdict is malloc.verdict is uss.verdict is DriftVerdict.GROWS
    assert malloc.slope == pytest.approx(200 * MIB, rel=0.1)


def test_what_cannot_be_asked_is_no_measure() -> None:
    """A number that the library does not give is no measure."""
    course = MemoryCourse()
    for at in range(30):
        course.add(Memory("p", 10_000 * at, 5 * MIB, 5 * MIB, 100))
    assert [it.measure for it in course.estimate()] == ["blocks", "uss", "rss"]


def test_runs_that_were_not_measured_are_no_samples() -> None:
    """Those whose process died."""
    course = MemoryCourse()
    for _ in range(30):
        course.add(Memory())
    assert [it.samples for it in course.estimate()] == [0, 0, 0, 0]


FINE = replace(RECORD, failure=None)


def test_what_runs_did_is_summed_up_by_adapter() -> None:
    """Operations, times, tests, walks and coverage goals."""
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
    """A driven place expects goals of an engine's life, and no goals that only other machines reach."""
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
def test_each_kind_has_its_own_goals(kind: str) -> None:
    """Goals are expected at a place of each kind."""
    config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "pages": 12}
    place = Place("x", kind, config, "SomeMachine", "tiny", ("pool",))
    assert expected_at(place)


def sample_of(process: str, operations: int, *, is_first: bool = False) -> Memory:
    """Look at a process whose memory grows by a block for each operation."""
    return Memory(process, operations, 10_000 + operations, 5_000 + operations, operations, is_first, 7)


def test_samples_may_come_in_any_order() -> None:
    """A merge has them by number of run, and not as a process played them."""
    ordered, mixed = MemoryCourse(), MemoryCourse()
    samples = [sample_of(process, 100 * at) for process in ("a", "b") for at in range(1, 30)]
    for course, given in ((ordered, samples), (mixed, sorted(samples, key=lambda it: it.operations % 700))):
        for it in given:
            course.add(it)
    assert mixed.estimate() == ordered.estimate()
    assert mixed.processes == ["a", "b"]
    assert mixed.samples("a", "blocks") == [(100 * at, 100 * at) for at in range(1, 30)]


def test_a_long_course_is_thinned_and_keeps_first_runs_and_the_slope() -> None:
    """Half of it tells as much; what a first run added is still left out."""
    course = MemoryCourse(most=2_000)
    for at in range(1, 5_000):
        course.add(sample_of("a", 100 * at, is_first=at % 500 == 1))
    kept = course.samples("a", "is_first")
    assert 1_000 <= len(kept) <= 2_000
    assert sum(is_first for _, is_first in kept) == 10
    (blocks,) = (it for it in course.estimate() if it.measure == "blocks")
    assert blocks.slope == pytest.approx(1_000_000)
    assert course.peak == 10_000 + 100 * 4_999


def test_of_many_short_courses_some_are_looked_at_the_same_whoever_comes_first() -> None:
    """A thousand computers have more processes than anybody needs."""
    names = [f"machine-{number}/1/1.0" for number in range(300)]
    chosen = []
    for order in (names, names[::-1]):
        course = MemoryCourse(most=400)
        for name in order:
            for at in range(1, 5):
                course.add(sample_of(name, 100 * at))
        assert 40 <= len(course.processes) <= 100
        assert all(len(course.samples(name, "uss")) == 4 for name in course.processes)
        chosen.append(course.processes)
    assert {*chosen[0]} & {*chosen[1]}
    assert min(chosen, key=len) == sorted({*chosen[0]} & {*chosen[1]})


def test_the_slopes_of_many_processes_share_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a thousand of them take no more memory than thirty."""
    monkeypatch.setattr("pymllm.soak.drift._PAIRS_MOST", 1_000)
    course = MemoryCourse()
    for number in range(10):
        for at in range(1, 60):
            course.add(sample_of(f"{number}", 100 * at))
    (blocks,) = (it for it in course.estimate() if it.measure == "blocks")
    assert blocks.slope == pytest.approx(1_000_000)
    assert blocks.samples == 10 * 14  # of each process so many that pairs are a hundred
