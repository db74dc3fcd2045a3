"""The lines of a run: what is written is read again, and what makes no sense is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.report.records import RECORDS, Curve, Document, Figure, Histogram, Program, Record, RunHeader
from pymllm.report.run_lines import dump_record, dump_run_header, read_record, read_run_header, run_schema
from tests.unit.report.samples import HEADER

EACH: tuple[Record, ...] = (
    Document({"schema": "pymllm.verify", "version": 1, "adapters": []}),
    Figure("match: p99", 12.5, "us", "smaller", 12.0, 13, None, "c0de", "match"),
    Figure("device memory", None, "bytes", reason="no NVML"),
    Curve("used", "bytes", "seconds", (0.0, 1.0, 2.5), (3, None, 4), "memory", 8, "flat", True),
    Histogram("match", "us", (1.0, 2.0, 4.0), (3, 0, 1), "latency", "c0de"),
    Program("runs/x-R6-0.jsonl", ('{"format": "pymllm-history"}', '{"step": 1}')),
)


def test_every_kind_of_record_is_tried() -> None:
    """A new kind needs an example above."""
    assert {type(record) for record in EACH} == set(RECORDS)


@pytest.mark.parametrize("record", EACH, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    """One line each, valid under the schema."""
    line = dump_record(record)
    assert "\n" not in line
    Draft202012Validator(run_schema()).validate(json.loads(line))
    assert read_record(line) == record


@pytest.mark.parametrize("header", [HEADER, RunHeader("verify", "2026-11-21T15:03:11Z", None, "0.1.0")])
def test_a_header_is_read_as_it_was_written(header: RunHeader) -> None:
    """With a machine and without."""
    line = dump_run_header(header)
    Draft202012Validator(run_schema()).validate(json.loads(line))
    assert read_run_header(line) == header


def test_what_a_later_version_adds_is_left_out() -> None:
    """New fields and kinds of records do not make a store unreadable."""
    plain = json.loads(dump_run_header(HEADER))
    plain["weather"] = plain["machine"]["colour"] = plain["machine"]["gpus"][0]["fans"] = 1
    assert read_run_header(json.dumps(plain)) == HEADER
    assert read_record('{"record": "figure", "name": "x", "value": 1, "unit": "s", "weather": 1}') == Figure(
        "x", 1, "s"
    )
    assert read_record('{"record": "smell", "of": "roses"}') is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "pymllm-soak"}, "format 'pymllm-soak', schema 1; this version reads 'pymllm-run', 1"),
        ({"schema": 2}, "schema 2; this version reads"),
        ({"kind": "Two Words"}, "kind must be a word in lower case"),
        ({"time": "yesterday"}, "time must be in UTC"),
        ({"time": "2026-02-30T00:00:00Z"}, "day"),
        ({"pymllm": 1}, "pymllm is 1; it must be a string"),
        ({"machine": []}, "machine must be an object"),
        ({"machine": {"gpus": 3}}, "gpus is 3; it must be a list"),
        ({"machine": {"gpus": [3]}}, "must be an object"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(changes: dict[str, Any], said: str) -> None:
    """With what is wrong."""
    with pytest.raises(ValueError, match=said):
        read_run_header(json.dumps({**json.loads(dump_run_header(HEADER)), **changes}))


@pytest.mark.parametrize("line", ["[]", "3", "null"])
def test_a_header_is_an_object(line: str) -> None:
    """Not just any JSON."""
    with pytest.raises(ValueError, match="begins with an object"):
        read_run_header(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "names its kind"),
        ('{"record": 3}', "names its kind"),
        ('{"record": "document", "document": 3}', "must be an object"),
        ('{"record": "document", "document": {"version": 1}}', "names its schema and version"),
        ('{"record": "document", "document": {"schema": "x", "version": true}}', "names its schema"),
        ('{"record": "figure", "name": "x", "unit": "s"}', "field 'value' is missing"),
        ('{"record": "figure", "name": "x", "value": NaN, "unit": "s"}', "NaN is no number"),
        ('{"record": "figure", "name": "x", "value": null, "unit": "s"}', "or a reason why"),
        ('{"record": "figure", "name": "x", "value": 1, "unit": "s", "better": "much"}', "smaller, bigger"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(line: str, said: str) -> None:
    """With what is wrong."""
    with pytest.raises(ValueError, match=said):
        read_record(line)
