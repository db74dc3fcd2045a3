"""The document of a run over faults keeps to its schema, whatever happened."""

from __future__ import annotations

import json

from jsonschema import Draft202012Validator

from pymllm.adapters.cabinet.fault import Fault
from pymllm.cli.faults_document import SCHEMA, VERSION, faults_schema, make_document
from pymllm.conformance.detection import Detection, FaultResult, HuntPlan
from pymllm.conformance.faults_run import FaultsReport

FAULT = Fault("x", "is wrong", ("R1", "R2"), ("radix",))
FOUND = Detection(0, "R1", "page 3", "invariants", "radix", {"page_size": 1}, 12, 0.1234, None)


def test_a_document_says_everything_and_is_valid() -> None:
    """One caught, one not: no number is made up for it."""
    results = (FaultResult(FAULT, (FOUND,), (), 1.0), FaultResult(FAULT, (), ("seed 0: gone",), 1.0))
    document = make_document(FaultsReport(HuntPlan(), 2, {"pymllm": "0"}, results, 3.0))
    Draft202012Validator(faults_schema()).validate(json.loads(json.dumps(document)))
    assert (document["schema"], document["version"]) == (SCHEMA, VERSION)
    assert (document["caught"], document["missed"], document["exit_status"]) == (1, 1, 1)
    caught, missed = document["faults"]
    assert caught["detections"][0]["seconds"] == 0.123
    assert (caught["operations"], caught["program"]) == (12.0, None)
    assert (missed["operations"], missed["seconds"], missed["problems"]) == (None, None, ["seed 0: gone"])


def test_the_schema_names_the_searchers() -> None:
    """Who reads the document can rely on six words: four searchers, verify and soak."""
    row = faults_schema()["properties"]["faults"]["items"]["properties"]["detections"]["items"]
    assert row["properties"]["searcher"]["enum"] == [
        "machine",
        "life-cycle machine",
        "invariants",
        "sweep",
        "verification",
        "campaign",
    ]
