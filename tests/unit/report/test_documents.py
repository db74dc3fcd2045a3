"""What is read of documents: all that a report shows, of documents that keep to their schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import SCHEMAS, make_schema
from pymllm.report.documents import (
    DOCUMENTS,
    FaultsDocument,
    GpuMemoryDocument,
    PeersDocument,
    ReplayDocument,
    SituationsDocument,
    SoakDocument,
    VerifyDocument,
    read_document,
)
from tests.unit.report import samples

SITUATIONS = {
    "schema": "pymllm.situations",
    "version": 1,
    "situations": [
        {"name": "x", "kind": "rows", "of_engine": False, "laws": ["P2"], "bugs": [], "capabilities": [],
         "configuration": []}
    ],
}  # fmt: skip

EACH: dict[str, Callable[[], dict[str, Any]]] = {
    "pymllm.verify": samples.verify,
    "pymllm.compare": lambda: {**samples.verify(), "schema": "pymllm.compare", "matrix": []},
    "pymllm.faults": samples.faults,
    "pymllm.soak": lambda: samples.soak(samples.soak_failure("R6")),
    "pymllm.situations": lambda: SITUATIONS,
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
    Draft202012Validator(make_schema(name)).validate(EACH[f"pymllm.{name}"]())


def test_every_published_document_that_a_report_shows_is_held_against_its_schema() -> None:
    """Or is known to be shown in parts."""
    assert {name for name in SCHEMAS if f"pymllm.{name}" in DOCUMENTS} <= {*WHOLE, *IN_PARTS}
    assert len(WHOLE) >= 5


def test_numbers_arrive_where_they_belong() -> None:
    """One of each document."""
    verify = read_document(samples.verify())
    assert isinstance(verify, VerifyDocument)
    assert verify.adapters[0].violations[0].config == {"max_reqs": 1, "window": None}
    assert verify.adapters[1].laws[0].tests == 1234
    faults = read_document(samples.faults())
    assert isinstance(faults, FaultsDocument)
    assert [it.operations for it in faults.faults[0].detections] == [20, 200]
    soak = read_document(samples.soak(samples.soak_failure(None)))
    assert isinstance(soak, SoakDocument)
    assert soak.adapters[0].failures[0].failure.law is None
    replay = read_document(samples.replay())
    assert isinstance(replay, ReplayDocument)
    assert replay.runs[0].match.p99_us == 129.0
    log = read_document(samples.gpu_memory())
    assert isinstance(log, GpuMemoryDocument)
    assert log.torch.reserved_peak.reason == "no CUDA"
    peers = read_document(samples.peers())
    assert isinstance(peers, PeersDocument)
    assert peers.scenarios[0].ratio is not None
    situations = read_document(SITUATIONS)
    assert isinstance(situations, SituationsDocument)
    assert situations.situations[0].laws == ("P2",)


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
