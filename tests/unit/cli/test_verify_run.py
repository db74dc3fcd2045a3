"""Carrying out a verification."""

from __future__ import annotations

import click
import pytest

from pymllm.cli.verify_plan import VerifyOptions
from pymllm.cli.verify_run import run_options, settle
from pymllm.conformance.machines import CI, DEEP
from pymllm.oracle.laws import find_law
from pymllm.oracle.verdicts import Verdict


def test_defaults_are_settled() -> None:
    """The profile has the seed; what was given stays."""
    plan = settle(VerifyOptions(("rows",), ("P1",), "ci", None, None, None))
    assert (plan.profile, plan.seed, plan.examples) == (CI, 0, None)
    assert [entry.name for entry in plan.adapters] == ["rows"]
    assert plan.laws == (find_law("P1"),)
    assert plan.jobs >= 1
    plan = settle(VerifyOptions((), (), "deep", 7, 20, 3))
    assert (plan.profile, plan.seed, plan.examples, plan.jobs) == (DEEP, 7, 20, 3)


def test_a_profile_without_a_seed_draws_one() -> None:
    """Another each time."""
    seeds = {settle(VerifyOptions((), (), "deep", None, None, 1)).seed for _ in range(4)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_a_run_shows_its_progress(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, where it is wanted."""
    report = run_options(VerifyOptions((f"{tiny}:TinyRows",), (), "dev", None, 10, 1), "on")
    assert report.verdict is Verdict.HOLDS
    out, err = capsys.readouterr()
    assert out == ""
    assert "smoke tests" in err
    assert "searches" in err


def test_a_law_that_nobody_can_test_is_a_usage_error(tiny: str) -> None:
    """X1: an empty table would look like a success."""
    with pytest.raises(click.UsageError, match=r"no adapter asked for can test R6\."):
        run_options(VerifyOptions((f"{tiny}:TinyRows",), ("R6",), "dev", None, 10, 1), "off")
