"""Other people's caches and pools under a short search: nothing that is claimed for them is broken."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import load_adapter, make_adapter
from pymllm.cli import main
from pymllm.errors import AdapterError, InvariantViolation
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.registry import load_machine, machines_for
from pymllm.machines.smoke import smoke_test
from pymllm_peers import ADAPTERS
from tests.example_programs import build_c, build_python, build_rust, build_strict

ENTRIES = tuple(entry for entry in ADAPTERS if entry.package == "sglang")
KNOWN = {"sglang-token": {"X4"}, "sglang-paged": {"X4"}}
"""Laws with a page in peers/findings that a search without anything special breaks."""


@pytest.fixture(autouse=True)
def is_in_this_version(request: pytest.FixtureRequest) -> None:
    """Skip what this version of sglang does not have: tox -e peers has a new one, peers-older an old one."""
    entry = request.node.callspec.params["entry"] if hasattr(request.node, "callspec") else ENTRIES[0]
    try:
        make_adapter(entry.name).close()
    except AdapterError as error:
        if "is not the version" not in error.message:
            raise
        pytest.skip(error.message)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_adapter_is_sane(entry: AdapterEntry) -> None:
    """Before its implementation is judged."""
    assert smoke_test(entry).kind == load_adapter(entry).KIND


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_what_is_claimed_holds(entry: AdapterEntry) -> None:
    """Every machine that can drive it, on every configuration."""
    adapter = load_adapter(entry)
    laws: set[str] = set()
    broken: dict[str, str] = {}
    for config in adapter.CONFIGURATIONS:
        claims = make_adapter(entry.name, dict(config)).capabilities
        for place in machines_for(adapter.KIND, claims):
            machine = make_machine(load_machine(place), entry.name, dict(config))
            for seed in range(4):
                try:
                    laws.update(drive(machine, seed, 60).examiner.judge.evidence.exercised)
                except InvariantViolation as violation:
                    broken.setdefault(violation.law, str(violation))
    assert broken.keys() <= KNOWN.get(entry.name, set()), broken
    assert len(laws) >= 3


OURS = ["radix", "mamba"]
THEIRS = ["sglang-radix", "sglang-unified", "sglang-rust", "sglang-rust-swa"]


def compare(folder: Path, *names: str) -> dict[str, Any]:
    options = ["--profile", "dev", "--examples", "4", "--jobs", "1", "--output", str(folder), "--json"]
    result = CliRunner().invoke(main, ["compare", *names, *options], catch_exceptions=False)
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_implementations_are_compared(tmp_path: Path) -> None:
    """Ours and four of sglang's in one matrix; the same programs, so that one row can be read across."""
    document = compare(tmp_path, *OURS, *THEIRS)
    (row,) = [row for row in document["matrix"] if row["id"] == "R4"]
    assert [(cell["adapter"], cell["verdict"]) for cell in row["cells"]] == [
        (name, "holds") for name in (*OURS, *THEIRS)
    ]
    assert document["verdict"] != "violated"


def test_programs_in_other_languages_stand_in_the_same_matrix(tmp_path: Path) -> None:
    """In C, Rust and Python, beside ours and sglang's: rows of laws that hold of all of them, none broken."""
    built = [build(tmp_path) for build in (build_c, build_rust, build_python, build_strict)]
    programs = [f"command:{shlex.join(words)}" for words in built]
    names = [*OURS, *THEIRS, *programs]
    document = compare(tmp_path, *names)
    assert [adapter["name"] for adapter in document["adapters"]] == names
    cells = {row["id"]: {cell["adapter"]: cell for cell in row["cells"]} for row in document["matrix"]}
    for law in ("R2", "R4", "R5", "R6", "A2", "E1"):
        assert {name: cells[law][name]["verdict"] for name in names} == dict.fromkeys(names, "holds")
        assert all(cells[law][name]["tests"] > 0 for name in names)
    assert {name for name in names if cells["X6"][name]["verdict"] != "not claimed"} == {*OURS, programs[-1]}
    assert document["verdict"] != "violated"
