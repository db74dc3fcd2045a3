"""The options of a soak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest

from pymllm.adapters.registry import OWN
from pymllm.cli.soak_plan import AUDIT, SoakOptions
from pymllm.conformance.soak.campaign import SoakPlan
from pymllm.conformance.soak.ledger import FILE

NONE = SoakOptions(
    adapters=(),
    configs=(),
    machine=None,
    seed=None,
    run=None,
    operations=None,
    minutes=None,
    longest=None,
    audit=None,
    jobs=None,
    timeout=30.0,
    stop_on_failure=False,
    output=None,
    resume=None,
)


@pytest.mark.parametrize(
    ("text", "audit"), [("every", 1), ("off", 0), ("1/64", 64), ("1/1", 1), (" 1/1000 ", 1000)]
)
def test_a_rate_is_operations_between_two_walks(text: str, audit: int) -> None:
    """0 is none."""
    assert AUDIT.convert(text, None, None) == audit


@pytest.mark.parametrize("text", ["", "64", "1/0", "2/64", "1/x", "always", "1/-4"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    """With what would do."""
    with pytest.raises(click.BadParameter, match="write every, off, or 1/64"):
        AUDIT.convert(text, None, None)


def test_defaults_are_ten_minutes_over_everything_from_a_drawn_seed() -> None:
    """A campaign of a number of operations has no clock, unless both are given."""
    plan, folder = NONE.settle()
    assert (plan.adapters, plan.seconds, plan.operations) == (OWN, 600.0, None)
    assert (plan.longest, plan.audit) == (SoakPlan(OWN).longest, SoakPlan(OWN).audit)
    assert plan.jobs >= 1
    assert folder == Path("runs") / f"soak-{plan.seed}"
    assert NONE.settle()[0].seed != plan.seed
    assert replace(NONE, operations=5).settle()[0].seconds is None
    both = replace(NONE, operations=5, minutes=0.5, audit=0).settle()[0]
    assert (both.seconds, both.operations, both.audit) == (30.0, 5, 0)


def test_one_run_has_no_clock_and_a_folder_of_its_own() -> None:
    """It is named by its seed."""
    plan, folder = replace(NONE, adapters=("rows", "rows"), configs=({},), run=77).settle()
    assert (plan.run, plan.seconds, len(plan.adapters)) == (77, None, 1)
    assert folder == Path("runs") / "soak-77"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"adapters": ("radixx",)}, "did you mean radix"),
        ({"configs": ({},)}, "--config is a configuration of one adapter"),
        ({"configs": ({},), "adapters": ("rows", "radix")}, "--config is a configuration of one adapter"),
        ({"run": 3, "adapters": ("rows",)}, "give its --adapter and --config"),
        ({"resume": Path("nowhere")}, "there is no ledger.jsonl"),
        ({"resume": Path("nowhere"), "seed": 0}, "--seed: a campaign that goes on has its own"),
        ({"resume": Path("nowhere"), "audit": 0}, "--audit: a campaign that goes on has its own"),
        ({"resume": Path("nowhere"), "configs": ({},), "adapters": ("rows",)}, "--config: a campaign that"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, object], why: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(click.UsageError, match=why):
        replace(NONE, **options).check()  # type: ignore[arg-type]  # fields by name


def test_a_campaign_is_not_written_over(tmp_path: Path) -> None:
    """It can go on, or another folder be chosen."""
    (tmp_path / FILE).touch()
    with pytest.raises(click.UsageError, match="--resume it"):
        replace(NONE, output=tmp_path).settle()
    resumed = replace(NONE, resume=tmp_path)
    resumed.check()
    assert resumed.settle()[1] == tmp_path
    assert resumed.settle()[0].seconds == 600.0
    assert resumed.settle(5_000)[0].seconds is None


def test_a_ledger_alone_makes_no_code_run(tmp_path: Path) -> None:
    """What comes with this package may go on; a module or command is named again."""
    resumed = replace(NONE, resume=tmp_path)
    resumed.check_resumed(["rows", "faulty-dirty-rows", "rows"])
    replace(resumed, adapters=("rows",)).check_resumed(["rows", "radix"])
    replace(resumed, adapters=("my:Rows",)).check_resumed(["rows", "my:Rows"])
    for names, adapters, why in (
        (["rows", "my:Rows"], (), "ledger.jsonl: names the adapter 'my:Rows'; .* add --adapter my:Rows."),
        (["command:./x y"], ("rows",), "--adapter rows: the campaign in .* plays command:./x y, and goes on"),
        (
            ["command:./x y", "my:Rows"],
            ("my:Rows",),
            "names the adapter 'command:./x y'; .* --command './x y'",
        ),
        (["old-rows"], (), "no adapter 'old-rows'"),
        ([], ("rows",), "plays no adapter"),
    ):
        with pytest.raises(click.UsageError, match=why):
            replace(resumed, adapters=tuple(adapters)).check_resumed(names)
