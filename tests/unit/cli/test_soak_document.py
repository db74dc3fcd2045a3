"""The JSON document of a soak."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from jsonschema import Draft202012Validator

from pymllm.cli.soak_document import make_document, soak_schema
from pymllm.conformance.smoke import SmokeFailure
from pymllm.conformance.soak.campaign import SoakReport
from pymllm.conformance.soak.drift import Drift, DriftVerdict
from pymllm.conformance.soak.ledger import Conflict
from pymllm.conformance.soak.totals import Totals
from tests.unit.conformance.soak.test_records import HEADER, RECORD


def test_everything_that_can_come_out_keeps_to_the_schema() -> None:
    """And is there."""
    totals = Totals([HEADER])
    totals.add(RECORD)
    drifts = (
        Drift("uss", "bytes", 2.55, 1.0, 3.0, 9.0, 40, 1, DriftVerdict.FLAT),
        Drift("blocks", "blocks", None, None, None, 9.0, 3, 1, DriftVerdict.TOO_SHORT),
    )
    conflicts = (Conflict(RECORD, replace(RECORD, digest="other")),)
    refused = (SmokeFailure("gone", None, "why"),)
    report = SoakReport((HEADER,), totals, drifts, 1.23456, 2, Path("c"), {}, refused, conflicts)
    document = json.loads(json.dumps(make_document(report, strict=True)))
    Draft202012Validator(soak_schema()).validate(document)
    assert (document["verdict"], document["exit_status"], document["strict"]) == ("violated", 1, True)
    assert document["campaigns"][0]["source"] == "1+a"
    assert document["adapters"][0]["failures"][0]["failure"]["step"] == 44
    assert [it["verdict"] for it in document["drifts"]] == ["flat", "too short to tell"]
    assert document["drifts"][0]["slope"] == 2.5
    assert document["drifts"][1]["slope"] is None
    assert (document["refused"], len(document["conflicts"])) == ({"gone": "why"}, 1)


def test_an_empty_report_keeps_to_the_schema() -> None:
    """Of a campaign that had no time."""
    document = make_document(SoakReport((HEADER,), Totals(), ()))
    Draft202012Validator(soak_schema()).validate(json.loads(json.dumps(document)))
    assert document["folder"] is None
    assert document["verdict"] == "unknown"
