"""Faults looked for as the commands look."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.table import load_cabinet
from pymllm.adapters.registry import find_adapter
from pymllm.conformance.detection import HuntPlan, HuntTask
from pymllm.conformance.faults_run import hunt_by_soak, hunt_by_verify, look_for_faults
from pymllm.conformance.machines import DEV
from pymllm.conformance.runner import VerifyPlan
from pymllm.conformance.soak.campaign import SoakPlan

VERIFY = VerifyPlan((find_adapter("rows"),), (), DEV, seed=3, examples=15, jobs=1)
SOAK = SoakPlan((find_adapter("rows"),), seed=3, operations=600, longest=200)


def table(name: str) -> dict[str, Fault]:
    return {fault.id: fault for fault in load_cabinet(f"tiny_cabinet:{name}")}


def test_a_fault_is_caught_by_the_law_of_its_list_with_a_small_program(tiny: str) -> None:
    """P2: by either, whomever the plan names."""
    fault = table("TABLE")["dirty"]
    for name, result in (
        ("verification", hunt_by_verify(VERIFY, HuntTask(fault, HuntPlan()))),
        ("campaign", hunt_by_soak(SOAK, HuntTask(fault, HuntPlan()))),
    ):
        (seen,) = result.detections
        assert result.is_caught
        assert (seen.law, seen.searcher, seen.adapter) == ("P2", name, "tiny_adapters:TinyRows")
        assert seen.program == 4
        assert seen.operations > 4


def test_a_miss_says_how_much_was_played(tiny: str) -> None:
    """Nothing is wrong here, so nobody may find anything."""
    sound = replace(table("TABLE")["dirty"], edits=())
    missed = hunt_by_verify(VERIFY, HuntTask(sound, HuntPlan()))
    assert not missed.is_caught
    assert missed.problems[0].startswith("seed 3: not caught; played 30 of 30 programs, ")
    missed = hunt_by_soak(SOAK, HuntTask(sound, HuntPlan()))
    assert missed.problems[0].startswith("seed 3: not caught; played 6")


def test_what_cannot_be_planted_or_examined_is_a_problem(tiny: str) -> None:
    """A law that was not tested has caught nothing."""
    stale, broken = (table("TROUBLE")[name] for name in ("stale", "broken"))
    for plan, hunt in ((VERIFY, hunt_by_verify), (SOAK, hunt_by_soak)):
        (problem,) = hunt(plan, HuntTask(stale, HuntPlan())).problems  # type: ignore[arg-type]
        assert problem.startswith("cannot be planted: tiny_adapters:TinyRows.do_free_row has 'no such text'")
        (problem,) = hunt(plan, HuntTask(broken, HuntPlan())).problems  # type: ignore[arg-type]
        assert "not caught; played 0 " in problem
        assert "cannot be built" in problem


def test_the_next_fault_finds_sound_code_in_the_same_process(tiny: str) -> None:
    """Whatever became of the one before it, a whole method that was replaced included."""
    whole, broken = table("BY_ANY")["whole"], table("TROUBLE")["broken"]
    failing = replace(whole, id="failing", adapters=broken.adapters)
    sound = replace(whole, id="sound", edits=())
    report = look_for_faults(
        [whole, failing, sound], HuntPlan((3,)), 1, hunter=partial(hunt_by_verify, VERIFY)
    )
    caught, failed, missed = report.results
    assert caught.is_caught
    assert "cannot be built" in failed.problems[0]
    assert "not caught; played 30 of 30 programs" in missed.problems[0]
