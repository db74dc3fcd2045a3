"""The JSON document and the page that explains it are one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pymllm.cli.replay_document import SCHEMA, VERSION, make_document
from pymllm.cli.replay_plan import ReplayPlan
from pymllm.cli.replay_result import Violation
from pymllm.cli.replay_run import run_plan

PAGE = Path(__file__).parents[3] / "docs" / "replay.md"
PLAN = ReplayPlan(
    workload="chat",
    mode="engine",
    caches=("radix",),
    requests=5,
    seed=0,
    block_tokens=512,
    page_size=16,
    window=64,
    capacity=5000,
    swa_capacity=None,
    track_slots=None,
    max_running=4,
    chunk=512,
    iteration_ms=50.0,
    content_check=True,
    check_every=0,
)


def field_names(value: Any, prefix: str = "") -> list[str]:
    """Dotted names of everything in a document that is no object itself."""
    if not isinstance(value, dict):
        return [prefix]
    return [name for key, part in value.items() for name in field_names(part, f"{prefix}.{key}".lstrip("."))]


def documented_fields(heading: str) -> list[str]:
    """First column of the table below a heading of the page."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.split(r"^#+ ", text.split(f" {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([\w.]+)` \|", section, flags=re.MULTILINE)


@pytest.mark.parametrize(("mode", "heading"), [("engine", "An engine run"), ("serial", "A serial run")])
def test_the_page_lists_the_fields_of_a_run_in_order(mode: str, heading: str) -> None:
    """Whoever reads the page knows the document, and the other way round."""
    document = make_document(run_plan(replace(PLAN, mode=mode), "off"))
    assert field_names(document["runs"][0]) == documented_fields(heading)
    assert document["mode"] == mode


def test_the_page_lists_the_fields_around_the_runs() -> None:
    """The same for what does not depend on the mode."""
    result = replace(run_plan(PLAN, "off"), violation=Violation("radix", "E1", "wrong"))
    assert field_names(make_document(result)) == documented_fields("The JSON document")


def test_the_document_says_what_it_is() -> None:
    """A dashboard can tell one version from another."""
    document = make_document(run_plan(PLAN, "off"))
    assert (document["schema"], document["version"]) == (SCHEMA, VERSION) == ("pymllm.replay", 1)
    assert document["violation"] is None
    assert document["workload"] == {
        "name": "chat",
        "kind": "named",
        "requests": 5,
        "seed": 0,
        "block_tokens": None,
    }
    assert document["asked"] == {"capacity": 5000, "swa_capacity": None}
    assert document["runs"][0]["config"]["capacity"] == 4992


def test_the_document_is_plain_data() -> None:
    """Reading what was written gives the same."""
    document = make_document(run_plan(PLAN, "off"))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
