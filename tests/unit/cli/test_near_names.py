"""Names that were mistyped."""

from __future__ import annotations

from pymllm.cli.near_names import did_you_mean


def test_the_nearest_names_are_asked_for() -> None:
    """Some of them, the nearest first; none where all are far."""
    assert did_you_mean("radxi", ["rows", "radix"]) == " (did you mean radix?)"
    assert (
        did_you_mean("slots", ["swa-slots", "token-slots"], 2) == " (did you mean swa-slots or token-slots?)"
    )
    assert did_you_mean("zzz", ["rows"]) == ""
    assert did_you_mean("rows" * 1000, ["rows"]) == ""
