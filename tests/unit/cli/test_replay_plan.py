"""What is refused before anything heavy is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from pymllm.cli.replay_plan import NAMED_WORKLOADS, ReplayPlan, pick_name
from pymllm.workloads.synthetic import WORKLOADS

PLAN = ReplayPlan(
    workload="chat",
    mode="engine",
    caches=("radix",),
    requests=None,
    seed=0,
    block_tokens=512,
    page_size=16,
    window=None,
    capacity=None,
    swa_capacity=None,
    track_slots=None,
    max_running=4,
    chunk=64,
    iteration_ms=50.0,
    content_check=None,
    check_every=0,
)


def test_the_named_workloads_are_those_that_exist() -> None:
    """The list is written twice, because the other one loads NumPy."""
    assert tuple(WORKLOADS) == NAMED_WORKLOADS


def test_a_file_called_like_a_workload_needs_its_path(tmp_path: Path) -> None:
    """Names win; a path with a separator is always a file."""
    (tmp_path / "chat").touch()
    assert PLAN.is_named
    other = replace(PLAN, workload=str(tmp_path / "chat"))
    assert not other.is_named
    other.check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workload": "chatt"}, r"'chatt' is no file and no workload \(did you mean chat\?\); give a trace"),
        ({"workload": "zzz"}, "'zzz' is no file and no workload; give a trace file or one of chat, agent"),
        ({"swa_capacity": 64}, "--swa-capacity is the window half's; give --window too"),
        ({"track_slots": 8}, "--track-slots is for states; give --cache mamba or blocks too"),
        ({"caches": ("chunk", "mamba"), "mode": "serial"}, "--cache mamba caches the states of an engine"),
        ({"caches": ("mamba",), "window": 64}, "--cache mamba has no window"),
        ({"caches": ("radix", "blocks"), "mode": "serial"}, "--cache blocks caches the states of an engine"),
        ({"caches": ("blocks",), "window": 64}, "--cache blocks has no window"),
        ({"mamba_chunk_size": 64}, "--mamba-chunk-size is for blocks; give --cache blocks too"),
        (
            {"caches": ("mamba",), "eviction_policy": "lru"},
            "--eviction-policy is for blocks; give --cache blocks too",
        ),
        ({"capacity": 15}, "--capacity 15 holds no page of 16 tokens; give at least 16"),
        ({"capacity": 64, "swa_capacity": 15, "window": 4}, "--swa-capacity 15 holds no page"),
        (
            {"workload": "adversarial", "capacity": 10_000_001},
            "--capacity 10000001 is too much for adversarial",
        ),
        ({"capacity": 2**31 - 16}, "--capacity 2147483632 and one page of 16 are more than 2147483647 slots"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, int | str], words: str) -> None:
    """X1: the message names the options, the values and what would do."""
    with pytest.raises(click.UsageError, match=words):
        replace(PLAN, **change).check()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"capacity": 16},
        {"swa_capacity": 16, "window": 1, "capacity": 16},
        {"workload": "adversarial", "capacity": 10_000_000},
        {"workload": "-", "capacity": 2**31 - 17},
    ],
)
def test_what_fits_passes(change: dict[str, Any]) -> None:
    """One page is enough; standard input is no file that could be missing."""
    replace(PLAN, **change).check()


def test_a_known_name_is_picked_and_another_refused() -> None:
    """X1: the nearest name is offered where one is near."""
    assert pick_name("radix", {"radix": 1, "chunk": 2}, "cache") == "radix"
    with pytest.raises(
        click.UsageError, match=r"no cache 'radx' \(did you mean radix\?\); give one of chunk, radix"
    ):
        pick_name("radx", ("radix", "chunk"), "cache")
    with pytest.raises(click.UsageError, match="no cache 'q'; give one of"):
        pick_name("q", ("radix", "chunk"), "cache")
