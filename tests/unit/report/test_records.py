"""The lines of a run: what is written is read again, and what makes no sense is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.report.records import (
    RECORDS,
    Curve,
    Document,
    Figure,
    Gpu,
    Histogram,
    Program,
    Record,
    RunHeader,
    dump_record,
    dump_run_header,
    make_machine,
    read_record,
    read_run_header,
    run_schema,
)

MACHINE = make_machine(
    "Some Processor", 8, 32 << 30, "Linux x86_64", (Gpu("Some GPU", 80 << 30, "580.1"),), None, "rack 3"
)
HEADER = RunHeader(
    "benchmark",
    "2026-11-21T15:03:11.123Z",
    MACHINE,
    "0.1.0+0123456789ab",
    "ab" * 20,
    True,
    "c0de",
    "pytest benchmarks",
    {"torch": "2.13.0"},
)
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


def test_numbers_that_json_has_not_are_refused_when_a_record_is_made() -> None:
    """Not when somebody reads it."""
    with pytest.raises(ValueError, match="inf is no number that JSON has"):
        Figure("x", float("inf"), "s")
    with pytest.raises(ValueError, match="nan"):
        Curve("x", "bytes", "seconds", (0.0,), (float("nan"),))
    with pytest.raises(ValueError, match="a value, or a reason"):
        Figure("x", 1.0, "s", reason="none")


@pytest.mark.parametrize(
    "make", [lambda: Curve("x", "s", "epochs", (1.0, 2.0), (1.0,)), lambda: Histogram("x", "s", (1.0,), ())]
)
def test_lists_that_belong_together_are_as_long(make: Any) -> None:
    """Or nobody knows which is which."""
    with pytest.raises(ValueError, match="must be as long"):
        make()


def test_a_fingerprint_is_of_what_speed_depends_on() -> None:
    """Not of drivers, nor of memory, nor of why no GPU was seen."""
    same = make_machine(
        "Some Processor",
        8,
        64 << 30,
        "Linux x86_64",
        (Gpu("Some GPU", None, "590.2"),),
        "?",
        "rack 3",
    )
    assert same.fingerprint == MACHINE.fingerprint
    plain: dict[str, Any] = {
        "processor": "Some Processor", "cores": 8, "memory": 32 << 30, "system": "Linux x86_64",
        "gpus": MACHINE.gpus, "name": "rack 3",
    }  # fmt: skip
    others: list[dict[str, Any]] = [
        {"processor": "Another"}, {"cores": 4},
        {"system": "Linux aarch64"}, {"gpus": ()}, {"name": None},
    ]  # fmt: skip
    found = {make_machine(**{**plain, **change}).fingerprint for change in others}
    assert len({*found, MACHINE.fingerprint}) == len(others) + 1


def test_the_header_refuses_a_kind_that_is_no_word() -> None:
    """It becomes a part of a file's name."""
    with pytest.raises(ValueError, match="kind must be a word"):
        replace(HEADER, kind="../verify")
