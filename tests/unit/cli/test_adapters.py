"""``pymllm adapters``: who can be examined."""

from __future__ import annotations

import json
from functools import partial

from pymllm.adapters.registry import OWN, PEERS
from pymllm.faults.adapters import FAULTY
from tests.unit.cli.typed import typed

adapters = partial(typed, "adapters")


def test_all_of_the_registry_are_listed() -> None:
    """Name, kind, how many configurations, what is adapted."""
    result = adapters()
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [entry.name for entry in (*OWN, *PEERS, *FAULTY)]
    (rows,) = (line.split() for line in lines if line.startswith("rows "))
    assert rows == ["rows", "rows", "2", "ReqToTokenPool"]


def test_verbose_says_what_each_configuration_claims(tiny: str) -> None:
    """And what the words mean that were used; nothing is left blank."""
    result = adapters("-v", "hashes", f"{tiny}:TinyRows")
    assert "    no settings: claims nothing\n" in adapters("-v", f"{tiny}:Bare").stdout
    assert "    max_reqs 3, max_context_len 4: pool, zeroed_rows\n" in result.stdout
    assert "\npool         has slots, rows, states or blocks to allocate" in result.stdout
    assert "swa:" not in result.stdout


def test_the_document_has_the_same(tiny: str) -> None:
    """For a program to read."""
    (found,) = json.loads(adapters("--json", f"{tiny}:TinyRows").stdout)["adapters"]
    assert (found["name"], found["kind"]) == (f"{tiny}:TinyRows", "rows")
    assert found["configurations"][1] == {
        "config": {"max_reqs": 2, "max_context_len": 3},
        "capabilities": ["pool", "zeroed_rows"],
    }
