"""What is read of documents: all that a report shows, of documents that keep to their schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import SCHEMAS, make_schema
from pymllm.instrument.peer_comparison import PeerComparison
from pymllm.report.documents import DOCUMENTS, read_document
from tests.unit.report import samples

EACH: dict[str, Callable[[], dict[str, Any]]] = {
    "pymllm.verify": samples.verify,
    "pymllm.compare": lambda: {**samples.verify(), "schema": "pymllm.compare", "matrix": []},
    "pymllm.faults": samples.faults,
    "pymllm.soak": lambda: samples.soak(samples.soak_failure("R6")),
    "pymllm.situations": samples.situations,
    "pymllm.replay": samples.replay,
    "pymllm.doctor": samples.doctor,
    "pymllm.gpu-memory": samples.gpu_memory,
    "pymllm.peers": samples.peers,
    "pymllm.gpu-benchmarks": samples.gpu_benchmarks,
}
WHOLE = tuple(
    name for name in ("verify", "compare", "faults", "soak", "situations", "peers") if name in SCHEMAS
)
"""Documents whose samples are whole, so that they can be held against their schemas."""

IN_PARTS = {"doctor", "gpu-memory", "replay", "gpu-benchmarks"}
"""Those whose samples have only what a report shows."""


def test_every_document_is_tried() -> None:
    """A new one needs a sample."""
    assert set(EACH) == set(DOCUMENTS)


@pytest.mark.parametrize("name", EACH)
def test_a_document_is_read(name: str) -> None:
    """As the record of its kind."""
    assert isinstance(read_document(EACH[name]()), DOCUMENTS[name][1])


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_read_is_what_is_published(name: str) -> None:
    """The samples of these tests keep to the schemas of the commands."""
    errors = Draft202012Validator(make_schema(name)).iter_errors(EACH[f"pymllm.{name}"]())
    assert [error.message for error in errors] == []


def test_every_published_document_that_a_report_shows_is_held_against_its_schema() -> None:
    """Or is known to be shown in parts."""
    assert {name for name in SCHEMAS if f"pymllm.{name}" in DOCUMENTS} <= {*WHOLE, *IN_PARTS}
    assert len(WHOLE) >= 5


def test_a_comparison_with_peers_is_read_whole() -> None:
    """As its own module has it."""
    peers = read_document(samples.peers())
    assert isinstance(peers, PeerComparison)
    assert peers.scenarios[0].ratio is not None
    assert peers.schema == "pymllm.peers"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "pymllm.shrink"}, "no document 'pymllm.shrink'; it shows pymllm.verify"),
        ({"schema": None}, "no document None"),
        ({"version": 2}, "version 2 of pymllm.verify; this version of pymllm reads 1"),
        ({"adapters": 3}, r"pymllm.verify.adapters is 3; it must be a list"),
        ({"adapters": [3]}, r"pymllm.verify.adapters\[0\]"),
        ({"adapters": [{"name": "x"}]}, "field 'kind' is missing"),
    ],
)
def test_what_is_no_whole_document_is_refused(changes: dict[str, Any], said: str) -> None:
    """With the place."""
    with pytest.raises(ValueError, match=said):
        read_document(samples.verify() | changes)
