"""Verdicts: the heavier one prevails."""

from __future__ import annotations

import itertools

import pytest

from pymllm.oracle.verdicts import Verdict, merge_verdicts

HOLDS, VIOLATED, UNKNOWN, NOT_CLAIMED = Verdict.HOLDS, Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.NOT_CLAIMED


@pytest.mark.parametrize(
    ("verdicts", "merged"),
    [
        ([], NOT_CLAIMED),
        ([NOT_CLAIMED, HOLDS], HOLDS),
        ([HOLDS, UNKNOWN], UNKNOWN),
        ([HOLDS, UNKNOWN, VIOLATED], VIOLATED),
    ],
)
def test_the_heavier_verdict_prevails(verdicts: list[Verdict], merged: Verdict) -> None:
    """Violated outranks unknown outranks holds, in any order."""
    assert {merge_verdicts(order) for order in itertools.permutations(verdicts)} == {merged}


def test_exit_statuses_are_those_of_the_command_line() -> None:
    """0 holds, 1 violated, 3 unknown; 2 is usage and no verdict."""
    assert {verdict: verdict.exit_status for verdict in Verdict} == {
        HOLDS: 0,
        NOT_CLAIMED: 0,
        VIOLATED: 1,
        UNKNOWN: 3,
    }
