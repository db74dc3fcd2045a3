"""Every wrong implementation is caught by the law that it names, and its sound sibling never is."""

from __future__ import annotations

import functools

import pytest
from faulty_page import PAGE, render
from faulty_table import CAUGHT, class_of, look_for

from pymllm.adapters.registry import find_adapter
from pymllm.faults.adapters import FAULTY
from pymllm.machines.prefix import PrefixMachine
from pymllm.machines.smoke import SmokeReport, try_adapter
from pymllm.oracle.laws import INVARIANTS
from pymllm.search.program import rerun_history
from pymllm.search.shrinker import Finding

NAMES = [entry.name for entry in FAULTY]

each_faulty = pytest.mark.parametrize("name", NAMES)

# A search takes seconds. `pymllm faults hunt`, which is in the gate, looks for all of them. A third is looked
# for here, too, for small programs and for what sound classes make of them, and the rest with -m slow.
each_searched = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if at % 3 else []) for at, name in enumerate(NAMES)]
)


@functools.cache
def finding_of(name: str) -> Finding:
    """The smallest program that breaks the law which the class names; looked for once."""
    result = look_for(name, CAUGHT[name].seed)
    assert result.crash is None
    laws = {finding.law: finding for finding in result.found}
    assert set(laws) <= {CAUGHT[name].law, *CAUGHT[name].also}
    return laws[CAUGHT[name].law]


@each_searched
def test_it_is_caught_by_its_law_with_a_small_program(name: str) -> None:
    """The law of its class; Hypothesis shrinks the program to what is recorded, or smaller."""
    assert CAUGHT[name].law == class_of(name).BREAKS
    assert 1 <= len(finding_of(name).history) <= CAUGHT[name].operations


@each_searched
def test_the_found_program_shows_the_same_again(name: str) -> None:
    """Run again it breaks the same law, and its outcomes alone do, unless that takes two runs."""
    finding = finding_of(name)
    assert finding.is_rerun
    assert finding.is_judged == (finding.law != "X3" and name != "faulty-restless-snapshots")


@each_searched
def test_the_sound_sibling_is_not_accused(name: str) -> None:
    """The same program on the class without the fault: no violation, and all of it makes sense."""
    history = finding_of(name).history
    again = rerun_history(history, class_of(name).SOUND)
    assert (again.violation, again.misfit) == (None, None)
    assert len(again.history) == len(history)


@pytest.mark.parametrize("name", [name for name in NAMES if class_of(name).NEEDS_ENGINE])
def test_what_needs_an_engine_is_seen_by_no_other_machine(name: str) -> None:
    """E1: programs of single calls find nothing, as many of them as an engine's that do."""
    assert look_for(name, CAUGHT[name].seed, PrefixMachine).found == ()


@each_faulty
def test_the_fault_is_not_taken_for_the_adapters(name: str) -> None:
    """It passes the smoke test in every configuration: what is wrong with it is a law's business."""
    report = try_adapter(find_adapter(name))
    assert isinstance(report, SmokeReport), report.message
    assert len(report.configurations) == len(class_of(name).CONFIGURATIONS)  # type: ignore[attr-defined]


def test_every_invariant_that_users_ask_for_has_wrong_implementations() -> None:
    """R6, S6; A1, P1, P5; S1, S4, S5: each of their laws is broken by one at least."""
    broken = {found.law for found in CAUGHT.values()}
    assert {law for laws in INVARIANTS.values() for law in laws} <= broken


def test_the_page_says_what_the_table_says() -> None:
    """docs/faulty.md is up to date: python tests/meta/faulty_page.py writes it anew."""
    assert list(CAUGHT) == NAMES
    assert PAGE.read_text(encoding="utf-8") == render(CAUGHT)
