"""One machine on one configuration."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest

from pymllm.conformance.acting import ActingMachine, act, make_machine
from pymllm.conformance.row_machine import RowMachine
from pymllm.conformance.search import SearchPlan, SearchResult, burst, search
from pymllm.history.operations import FreeRow, ReadRows, Span

CONFIG = {"max_reqs": 3, "max_context_len": 4}
PLAN = SearchPlan(seed=1, steps=20, examples=30, seconds=0.0)


def machine_of(adapter: str) -> type[ActingMachine]:
    return make_machine(RowMachine, adapter, dict(CONFIG))


def facts_of(result: SearchResult) -> SearchResult:
    return dataclasses.replace(result, seconds=0.0)


def test_a_right_adapter_has_its_laws_tested(tiny: str) -> None:
    """Nothing is found, and what was tested is counted over all programs."""
    result = search(machine_of(f"{tiny}:TinyRows"), PLAN)
    assert (result.found, result.crash) == ((), None)
    assert result.programs >= 30
    assert result.steps > 100
    assert result.seconds > 0
    assert {"P1", "P2", "P3", "X3"} <= set(+result.exercised)
    assert result.audited == {}
    assert result.reached["a batch finds too few rows"] > 0


def test_equal_plans_give_equal_results(tiny: str) -> None:
    """X3: whatever runs between, and other seeds look elsewhere."""
    first, second = (facts_of(search(machine_of(f"{tiny}:TinyRows"), PLAN)) for _ in "ab")
    assert first == second
    other = search(machine_of(f"{tiny}:TinyRows"), dataclasses.replace(PLAN, seed=2))
    assert facts_of(other) != first


def test_a_broken_law_is_found_with_the_smallest_program(tiny: str) -> None:
    """P2: take a row, write an entry that is not 0, free the row, look."""
    result = search(machine_of(f"{tiny}:KeepsEntries"), PLAN)
    assert result.crash is None
    finding = result.found[0]
    assert finding.law == "P2"
    assert len(finding.history) == 4
    assert isinstance(finding.history.steps[-1].operation, ReadRows)
    assert any(isinstance(step.operation, FreeRow) for step in finding.history.steps)
    assert (finding.is_rerun, finding.is_judged) == (True, True)


def test_a_search_that_takes_too_long_says_what_is_missing(tiny: str) -> None:
    """One program at least is played, however little time there is; nothing is taken for a crash."""
    plan = SearchPlan(seed=1, steps=10, examples=30, seconds=1e-9, driven=7)
    result = search(machine_of(f"{tiny}:TinyRows"), plan)
    assert (result.programs, result.missing, result.crash) == (1, 36, None)
    assert burst(machine_of(f"{tiny}:TinyRows"), plan, ["R6"]).missing == 0


def test_what_is_played_does_not_follow_from_time(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that runs a thousand times as fast, as it seems to on a busy machine, changes nothing."""
    plan = SearchPlan(seed=1, steps=10, examples=30, seconds=1e5, driven=7)
    quiet = search(machine_of(f"{tiny}:TinyRows"), plan)
    clock = time.monotonic
    monkeypatch.setattr("pymllm.conformance.search.time.monotonic", lambda: 1000 * clock())
    busy = search(machine_of(f"{tiny}:TinyRows"), plan)
    assert facts_of(busy) == facts_of(quiet)
    assert (quiet.programs, quiet.missing) == (37, 0)
    assert busy.seconds > quiet.seconds


def test_a_violation_leaves_nothing_missing(tiny: str) -> None:
    """Who has found what to look for has not been cut short."""
    result = search(machine_of(f"{tiny}:KeepsEntries"), dataclasses.replace(PLAN, examples=500, driven=9))
    assert result.found
    assert (result.programs < 509, result.missing) == (True, 0)


def test_what_was_found_is_found_again_without_what_was_played_before(tiny: str) -> None:
    """X3: the run of Hypothesis that found it is enough, and may shrink this time."""
    plan = dataclasses.replace(PLAN, examples=500, shrinks=0)
    machine = make_machine(RowMachine, f"{tiny}:FailsLate", dict(CONFIG))
    first = search(machine, plan)
    assert first.again is not None
    assert first.again.first_slice > 0
    again = first.again
    machine = make_machine(RowMachine, f"{tiny}:FailsLate", dict(CONFIG))
    second = search(machine, again)
    assert [it.history for it in second.found] == [it.history for it in first.found]
    assert second.programs < first.programs
    machine = make_machine(RowMachine, f"{tiny}:FailsLate", dict(CONFIG))
    small = search(machine, dataclasses.replace(again, shrinks=300))
    assert len(small.found[0].history) < len(first.found[0].history)
    assert search(machine_of(f"{tiny}:TinyRows"), PLAN).again is None


def test_shrinking_ends(tiny: str) -> None:
    """What was found until then is kept."""
    result = search(machine_of(f"{tiny}:KeepsEntries"), dataclasses.replace(PLAN, shrinks=0))
    assert result.found[0].law == "P2"
    assert len(result.found[0].history) > 4
    assert result.crash is None


def test_what_happens_by_chance_is_a_finding_too(tiny: str) -> None:
    """X3: Hypothesis cannot play it the same way again, and that is the point."""
    machine = make_machine(RowMachine, f"{tiny}:Moody", {"max_reqs": 30, "max_context_len": 1})
    result = search(machine, dataclasses.replace(PLAN, examples=60))
    assert "X3" in [finding.law for finding in result.found]
    assert result.crash is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GivesUp", "lost the connection"),
        ("Breaks", "raised ZeroDivisionError: integer division or modulo by zero (line "),
    ],
)
def test_an_error_that_is_no_violation_is_a_crash(tiny: str, name: str, words: str) -> None:
    """Nothing is said of any law; the program that met it is kept, as small as the others."""
    result = search(machine_of(f"{tiny}:{name}"), PLAN)
    assert result.found == ()
    assert result.crash is not None
    assert words in result.crash.message
    assert result.crash.history is not None
    assert 0 < len(result.crash.history) <= 12


def test_an_adapter_that_cannot_be_made_is_a_crash_without_a_program(tiny: str) -> None:
    """Nothing was played."""
    result = search(make_machine(RowMachine, f"{tiny}:TinyRows", {}), PLAN)
    assert (result.programs, result.found) == (0, ())
    assert result.crash is not None
    assert result.crash.message == (
        "cannot be built with {}: there is no 'max_context_len' in it; one of its own is "
        "{'max_reqs': 3, 'max_context_len': 4}"
    )
    assert result.crash.history is None


class Stumbling(RowMachine):
    """A machine with a bug of its own, at the end as well."""

    @act()
    def stumble(self) -> None:
        self.do(FreeRow(Span(1, 7, 8)))

    def end(self) -> None:
        raise KeyError("later")


def test_the_first_error_is_the_one_that_is_told(tiny: str) -> None:
    """What goes wrong while a program is cleaned up is not the cause."""
    result = search(make_machine(Stumbling, f"{tiny}:TinyRows", dict(CONFIG)), PLAN)
    assert result.crash is not None
    assert result.crash.message.startswith(("ProgramError: step 1 gave 0", "KeyError: 'later'"))


def test_a_burst_ends_once_the_laws_were_tested(tiny: str) -> None:
    """Long programs, one seed after another, until nothing is missing or the number is up."""
    plan = dataclasses.replace(PLAN, steps=400, examples=5, seconds=math.inf)
    assert burst(machine_of(f"{tiny}:TinyRows"), plan, ["P1"]).programs == 1
    result = burst(machine_of(f"{tiny}:TinyRows"), plan, ["P1", "R6"])
    assert (result.programs, result.found, result.crash) == (5, (), None)
    assert result.steps > 5 * 400
    late = dataclasses.replace(plan, examples=10_000, seconds=0.05)
    assert 1 <= burst(machine_of(f"{tiny}:TinyRows"), late, ["R6"]).programs < 100


def test_a_burst_goes_on_until_situations_are_reached(tiny: str) -> None:
    """One that this adapter never reaches takes all the programs."""
    plan = dataclasses.replace(PLAN, steps=400, examples=5, seconds=math.inf)
    met = burst(machine_of(f"{tiny}:TinyRows"), plan, [], ["a batch finds too few rows"])
    assert met.programs == 1
    assert met.reached["a batch finds too few rows"] > 0
    assert burst(machine_of(f"{tiny}:TinyRows"), plan, ["P1"], ["row 0 is freed"]).programs == 5


def test_a_burst_keeps_what_it_finds(tiny: str) -> None:
    """Without the steps that do not matter."""
    result = burst(machine_of(f"{tiny}:KeepsEntries"), dataclasses.replace(PLAN, examples=5), ["R6"])
    assert result.programs == 1
    assert result.found[0].law == "P2"
    assert len(result.found[0].history) == 4


def test_behind_the_programs_of_hypothesis_come_long_ones(tiny: str) -> None:
    """They go where the short ones of Hypothesis end; what they find loses the steps that do not matter."""
    plan = SearchPlan(seed=1, steps=5, examples=20, shrinks=500, driven=200)
    result = search(machine_of(f"{tiny}:WearsOut"), plan)
    assert result.again is None
    assert result.found[0].law == "P2"
    assert plan.steps < len(result.found[0].history) < 20
    assert not result.found[0].is_unfinished
    again = dataclasses.replace(plan, slices=1, driven=0)
    assert search(machine_of(f"{tiny}:WearsOut"), again).found == ()
