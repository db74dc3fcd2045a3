"""Ours beside its peers: who is best, what the ratio says, and a document that keeps to its schema."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pymllm.instrument.peer_comparison import (
    OURS,
    SCHEMA,
    VERSION,
    Contender,
    PeerComparison,
    ScenarioRow,
    make_document,
    make_row,
    make_standing,
    peers_schema,
)


def row(samples: dict[str, list[float]], **changes: Any) -> ScenarioRow:
    given: dict[str, Any] = {
        "id": "T0-p1",
        "title": "nothing at all",
        "unit": "us",
        "statistic": "median",
        "target": 5.0,
        "limit_of": "nothing",
        "code": "0123456789abcdef",
        "samples": samples,
        "limit_samples": [1.0, 3.0, 2.0],
        "facts": {OURS: {"hit_tokens": 7.0}},
    }
    return make_row(**{**given, **changes})


@pytest.mark.parametrize(
    ("ours", "verdict"), [([1.0, 1.1, 1.2], "ahead"), ([9.0, 9.1, 9.2], "behind"), ([1.0, 3.0, 9.0], "level")]
)
def test_the_verdict_needs_the_whole_interval(ours: list[float], verdict: str) -> None:
    """One lucky sample makes nobody faster."""
    found = row({OURS: ours, "slow": [50.0, 50.0, 50.0], "quick": [3.0, 3.0, 3.0]})
    assert (found.best_peer, found.verdict) == ("quick", verdict)
    assert found.limit == 2.0


def test_the_target_is_about_ours_alone() -> None:
    """Being ahead of everybody does not reach it, and reaching it does not need a peer."""
    assert not row({OURS: [6.0] * 3, "slow": [50.0] * 3}).reached
    alone = row({OURS: [4.0] * 3})
    assert alone.reached
    assert (alone.best_peer, alone.ratio, alone.verdict) == (None, None, "alone")


def test_percentiles_are_samples() -> None:
    """The smallest sample that is not below so many percent of all."""
    standing = make_standing("it", [float(number) for number in range(100, 0, -1)], "mean", {"n": 1.0})
    assert (standing.p50, standing.p95, standing.p99, standing.longest) == (50.0, 95.0, 99.0, 100.0)
    assert (standing.value, standing.samples, standing.facts) == (50.5, 100, {"n": 1.0})
    assert make_standing("it", [3.0], "median", {}).p50 == 3.0


def test_a_document_keeps_to_its_schema() -> None:
    """Also where a peer is missing, and where there is none at all."""
    document = make_document(
        PeerComparison(
            schema=SCHEMA,
            version=VERSION,
            versions={"torch": "2"},
            machine={"processor": "one"},
            clock="cpu",
            slice="smoke",
            seconds=1.5,
            contenders=(Contender(OURS, "pymllm", "0.1", None), Contender("b", "b", None, "not installed")),
            scenarios=(row({OURS: [1.0, 2.0, 3.0], "b": [2.0, 2.0, 2.0]}), row({OURS: [1.0]})),
        )
    )
    validator = Draft202012Validator(peers_schema())
    validator.validate(document)
    assert document["scenarios"][0]["ratio"]["value"] == 1.0
    with pytest.raises(ValidationError):
        validator.validate({**document, "clock": "sundial"})
