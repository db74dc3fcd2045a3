"""Results are plain and do not change under whoever prints them."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.cli.replay_result import Violation


def test_a_violation_does_not_change() -> None:
    """What was found stays what was found."""
    violation = Violation("radix", "E1", "expected 1, found 2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        violation.law = "E2"  # type: ignore[misc]
    assert violation == Violation("radix", "E1", "expected 1, found 2")
