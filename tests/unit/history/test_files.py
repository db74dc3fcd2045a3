"""Histories: written, read, also those of old, and refused with the line or the size that is wrong."""

from __future__ import annotations

import json
import os
import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pymllm.adapters.process.messages import Request, Told, read_answer
from pymllm.adapters.process.wire import make_line, write_operation
from pymllm.adapters.registry import OWN, load_adapter
from pymllm.errors import ProgramError, TraceError
from pymllm.history import files, operations, outcomes
from pymllm.history.config_limits import ELEMENTS_LIMIT, SIZE_LIMITS, check_config, config_schema, read_number
from pymllm.history.files import (
    Header,
    History,
    Step,
    dump_history,
    history_schema,
    load_histories,
    load_history,
    read_history,
    write_history,
)
from pymllm.history.operations import KINDS, Alloc, Free, Span
from pymllm.history.outcomes import Done, Outcome, Slots
from pymllm.oracle.judge import make_judge

HEAD = '{"format": "pymllm-history", "schema": 1, "adapter": "x", "kind": "prefix", "config": {}}'
HEADER = Header("token-slots", "slots", {"page_size": 4, "window": None}, ("pool",), 7, {"torch": "2.13"})
STEPS = [
    Step(1, Alloc(4), Outcome(Slots((4, 5, 6, 7)), (), {"available_size": 8})),
    Step(3, Free((Span(1, 0, 4),)), Outcome(Done())),
    Step(4, Alloc(4)),
]
LINES = list(dump_history(History(HEADER, STEPS)))


def test_a_history_survives_the_way_through_a_file(tmp_path: Path) -> None:
    """Header, gaps between the steps and steps that were not run included."""
    path = tmp_path / "found.jsonl"
    write_history(History(HEADER, list(STEPS)), path)
    again = load_history(path)
    assert (again.header, again.steps) == (HEADER, STEPS)
    assert len(again) == 3
    assert path.read_text(encoding="utf-8").splitlines() == LINES


def test_a_history_that_cannot_be_written_leaves_none_and_no_half(tmp_path: Path) -> None:
    """A failed write on a full disk leaves the old file whole."""
    path = tmp_path / "found.jsonl"
    write_history(History(HEADER, list(STEPS)), path)
    with full_disk(10_000), pytest.raises(OSError, match="too large"):
        write_history(History(HEADER, [Step(number, Alloc(4)) for number in range(1, 1000)]), path)
    assert load_history(path).steps == STEPS
    assert os.listdir(tmp_path) == ["found.jsonl"]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_empty_lines_do_not_count() -> None:
    """A file may end in one, or be edited by hand."""
    assert read_history(["", LINES[0], " ", LINES[1]], "x").steps == STEPS[:1]


def named(name: str) -> list[str]:
    """Return the lines of a good history of some name."""
    return list(dump_history(History(msgspec.structs.replace(HEADER, name=name), STEPS)))


def test_a_file_may_have_several_histories_by_name(tmp_path: Path) -> None:
    """Empty lines between them, or none; a file of one may leave the name out."""
    path = tmp_path / "several.jsonl"
    path.write_text("\n".join([*named("one"), "", *named("two"), *named("pymllm-history")]), encoding="utf-8")
    found = load_histories(path)
    assert list(found) == ["one", "two", "pymllm-history"]
    assert all(it.header.name == name and it.steps == STEPS for name, it in found.items())
    path.write_text("\n".join(LINES), encoding="utf-8")
    assert list(load_histories(path)) == [""]


def test_one_of_several_histories_must_be_named() -> None:
    """A name stands for a single history, and the reader of one history lists the names of several."""
    with pytest.raises(TraceError, match=r"^x: has several programs; add # and the name of one: one, two$"):
        read_history([*named("one"), *named("two")], "x")


def test_two_histories_of_a_name_are_refused(tmp_path: Path) -> None:
    """X1: nobody would find the second."""
    path = tmp_path / "several.jsonl"
    path.write_text("\n".join([*named("one"), *named("one")]), encoding="utf-8")
    with pytest.raises(TraceError, match="two programs have the name 'one'"):
        load_histories(path)


def test_a_step_may_have_the_name_of_the_format(tmp_path: Path) -> None:
    """It is a line of its history all the same."""
    line = json.dumps(
        {"step": 9, "op": {"op": "match", "key": {"tokens": [7], "extra_key": "pymllm-history"}}}
    )
    assert [it.number for it in read_history([*LINES, line], "x").steps] == [1, 3, 4, 9]
    with pytest.raises(TraceError, match="x:5: value is 'pymllm-history'; it must be an object"):
        read_history([*LINES, '"pymllm-history"'], "x")


def spoiled(line: int, **changes: object) -> list[str]:
    """Return the lines of a good history, one of them with other fields."""
    lines = list(LINES)
    lines[line] = json.dumps({**json.loads(lines[line]), **changes})
    return lines


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "x: empty; a history begins with its header"),
        (["["], "x:1: not JSON: Expecting value at column 2"),
        (["[" * 100_000], "x:1: "),
        ([LINES[1]], "x:1: a history begins with a header"),
        (["[]"], "x:1: a history begins with a header"),
        (spoiled(0, schema=2), "x:1: schema is 2; this version reads 1"),
        (spoiled(0, kind="queue"), "x:1: kind is 'queue'; it must be one of slots, rows"),
        (spoiled(0, seed="7"), "x:1: header.seed is '7'; it must be an integer or null"),
        (spoiled(2, step=1), "x:3: step is 1; it must be an integer above 1"),
        (spoiled(1, step=True), "x:2: step is True; it must be an integer"),
        (spoiled(1, op={"op": "fly"}), "x:2: op: op is 'fly'"),
        (spoiled(1, more=1), "x:2: step: unknown field 'more'; it has step, op, outcome"),
        ([LINES[0], "4"], "x:2: value is 4; it must be an object"),
        (spoiled(1, outcome={}), "x:2: outcome: field 'result' is missing"),
    ],
)
def test_a_bad_line_is_named(lines: list[str], says: str) -> None:
    """X1: the error has the file, the line and what was expected."""
    with pytest.raises(TraceError) as caught:
        read_history(lines, "x")
    assert str(caught.value).startswith(says)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """X1: a binary file is no history."""
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8 text"):
        load_history(path)


def test_the_schema_names_format_version_and_kinds() -> None:
    """A reader in another language can tell whether it understands a file."""
    published = Path(__file__).parents[3] / "docs" / "schemas" / "history.schema.json"
    assert history_schema() == json.loads(published.read_text(encoding="utf-8"))
    header, step = history_schema()["oneOf"]
    assert header["properties"]["schema"] == {"const": 1}
    assert "slots" in header["properties"]["kind"]["enum"]
    assert step["required"] == ["step", "op"]
    assert set(step["properties"]) == {"step", "op", "outcome"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([HEAD.replace("{}", '{"slots": 1000000000000}')], "slots is 1,000,000,000,000; at most it is"),
        ([HEAD, '{"step": 1, "op": {"op": "reset"}, "op": {"op": "reset"}}'], "an object names 'op' twice"),
        ([HEAD, '{"step": 1, "op": ' + "[" * 5_000], "more than 64 lists and objects stand inside"),
        ([HEAD, '{"step": ' + "9" * 5_000 + ', "op": {"op": "reset"}}'], "does not fit into 128 bits"),
        ([HEAD, '{"step": 1, "op": {"op": "evict", "tokens": NaN}}'], "NaN is no number that JSON has"),
        (
            [HEAD, '{"step": 1, "op": {"op": "' + "x" * 10_000 + '"}}'],
            r"op is 'xx.*\.\.\.; it must be",
        ),
        (
            [HEAD, '{"step": 1, "op": {"op": "reset", "' + "x" * 10_000 + '": 1}}'],
            r"field 'x*\.\.\.; it",
        ),
    ],
)
def test_a_line_of_a_broken_hand_is_refused_in_few_words(lines: list[str], words: str) -> None:
    """X1: with the line, and in our own words."""
    with pytest.raises(TraceError, match=words) as caught:
        read_history(lines, "it")
    assert caught.value.line == len(lines)
    assert len(str(caught.value)) < 1_500


FOLDER = Path(__file__).parent / "written_by_1"
AS_WRITTEN = sorted(
    path.name
    for path in FOLDER.glob("*.jsonl")
    if path.name not in ("by-hand.jsonl", "cut-off.jsonl") and not path.name.startswith("said-")
)


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_a_history_is_read_and_written_byte_for_byte(name: str) -> None:
    """Digests, ledgers and merged campaigns compare bytes."""
    history = load_history(FOLDER / name)
    lines = "".join(f"{line}\n" for line in dump_history(history))
    assert lines.encode() == (FOLDER / name).read_bytes()


def test_there_is_one_of_each_kind() -> None:
    """The corpus leaves no kind out."""
    assert {load_history(FOLDER / name).header.kind for name in AS_WRITTEN} == {*KINDS}


def test_a_history_that_was_typed_is_read_as_before() -> None:
    """Fields in any order, spaces anywhere, defaults spelled out."""
    read = repr(load_history(FOLDER / "by-hand.jsonl"))
    assert read == (FOLDER / "by-hand.txt").read_text(encoding="utf-8").rstrip("\n")


def test_a_line_that_was_cut_off_is_named() -> None:
    """A line that was cut off is named, and the lines before it are whole."""
    lines = (FOLDER / "cut-off.jsonl").read_text(encoding="utf-8").splitlines()
    with pytest.raises(TraceError, match="x:3: not JSON"):
        read_history(lines, "x")
    assert len(read_history(lines[:-1], "x")) == 1


def test_a_program_is_told_the_same_bytes() -> None:
    """Requests, and operations with the numbers that their spans stand for."""
    lines = (FOLDER / "said-to-a-program.jsonl").read_bytes().splitlines(keepends=True)
    requests = [line for line in lines if b'"say":"op"' not in line]
    for line in requests:
        assert make_line(msgspec.json.decode(line, type=Request)) == line
    said = []
    for name in ("everything", "blocks", "hashes", "rows", "swa-slots"):
        for step in load_history(FOLDER / f"{name}.jsonl").steps[:14]:
            operation = write_operation(step.operation, lambda spans: [span.start for span in spans])
            said.append(make_line({"say": "op", "step": step.number, "op": operation}))
    assert said == lines[len(requests) :]


def test_what_a_program_said_is_read_as_before() -> None:
    """Every kind of answer."""
    lines = (FOLDER / "said-by-a-program.jsonl").read_bytes().splitlines(keepends=True)
    answers = [read_answer(line) for line in lines]
    expected = (FOLDER / "said-by-a-program.txt").read_text(encoding="utf-8").splitlines()
    assert [repr(answer) for answer in answers] == expected
    told = [answer for answer in answers if isinstance(answer, Told)]
    names = {**vars(files), **vars(operations), **vars(outcomes), "Told": Told}
    assert [eval(repr(answer), names) for answer in told] == told
    assert len(told) > 50
    assert all(json.loads(line) for line in lines)


STATES = {"layers": 1, "max_reqs": 1, "track_slots": 1, "v_heads": 1, "v_dim": 1, "k_dim": 1, "conv_dim": 1}


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("prefix", {"slots": 10**12}, "slots is 1,000,000,000,000; at most it is 1,048,576: give it less"),
        ("prefix", {"page_size": 10**9}, "page_size is 1,000,000,000; at most it is 65,536"),
        (None, {"window": 2**20 + 1}, "window is 1,048,577; at most it is 1,048,576"),
        (None, {"x" * 99: 2**63}, "configuration's xxxxx.*[.]{3} is 9,223,.*; an integer has 64 bits"),
        (None, {"x": -(10**300)}, "is a number of 997 bits; an integer has 64 bits"),
        ("slots", {"page_size": 64, "pages": 2**15}, "has 2,097,152 slots; at most it has 1,048,576"),
        (
            "rows",
            {"max_reqs": 2**10, "max_context_len": 65},
            "66,560 entries of its table; at most it has 65,536",
        ),
        (
            "states",
            {**STATES, "v_dim": 2**15, "kernel": 2**14},
            "numbers in its states; at most it has 65,536",
        ),
        ("blocks", {"blocks": 2**20, "block_size": 2}, "2,097,152 tokens in its blocks; at most it has"),
        ("requests", {"max_requests": 2**12, "max_blocks": 2**12}, "16,777,216 entries of its table"),
    ],
)
def test_what_is_too_large_is_refused(kind: str | None, config: dict[str, Any], words: str) -> None:
    """X1: with the key, the value, the limit and the way out."""
    with pytest.raises(ProgramError, match=words):
        check_config(config, kind)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "the configuration has no pages, which must be an integer from 2 on"),
        ({"pages": None}, "the configuration's pages is None; it must be an integer from 2 on"),
        ({"pages": True}, "the configuration's pages is True; it must be an integer from 2 on"),
        ({"pages": 1}, "the configuration's pages is 1; it must be an integer from 2 on"),
    ],
)
def test_a_number_that_is_missing_or_too_small_is_refused(config: dict[str, Any], words: str) -> None:
    """A missing number is not reported as None."""
    with pytest.raises(ProgramError, match=rf"^{words}$"):
        read_number(config, "pages", 2)
    assert read_number({"pages": 2}, "pages", 2) == 2


@pytest.mark.parametrize("entry", OWN, ids=lambda entry: entry.name)
def test_our_own_configurations_are_far_below(entry: Any) -> None:
    """Our configurations pass the bounds, and a value that is missing or no integer is not checked."""
    made = load_adapter(entry)
    for config in made.CONFIGURATIONS:
        check_config({**config, "name": "x", "is": True, "none": None}, made.KIND)


LARGEST: dict[str, dict[str, Any]] = {
    "slots": {"page_size": 1, "pages": 2**20, "swa_pages": 2**20},
    "rows": {"max_reqs": 2**8, "max_context_len": 2**8},
    "buffers": {
        **{"layers": 1, "size": 2**14 - 1, "page_size": 1},
        **{"k_heads": 1, "k_dim": 2, "v_heads": 1, "v_dim": 2},
    },
    "states": {**STATES, "max_reqs": 2**14, "track_slots": 2**14, "kernel": 1},
    "prefix": {"page_size": 1, "window": 8, "pool": "swa", "slots": 2**20, "swa_slots": 2**20},
    "blocks": {
        **{"blocks": 2**20, "policy": "lru", "slots": 2**14, "layers": 1, "requests": 2**14},
        **{"ssm_heads": 1, "ssm_dim": 1, "conv_dim": 1, "conv_width": 1},
    },
    "requests": {
        **{"max_requests": 1, "num_blocks": 2**18, "max_blocks": 2**20, "block_size": 4, "chunk_size": 4},
        **{"paused_limit": 2**20, "layers": 1, "mamba_slots": 2**13, "conv_width": 2, "ssm_width": 2},
        **{"policy": "lru"},
    },
}


@pytest.mark.parametrize("kind", LARGEST)
def test_a_model_costs_what_is_used_and_not_what_is_declared(kind: str) -> None:
    """Of the largest configuration that is allowed, less than a megabyte."""
    claims = ("callbacks", "pool", *(("mamba",) if kind in ("blocks", "requests") else ("swa",)))
    header = Header("mine", kind, LARGEST[kind], claims)
    make_judge(Header("mine", "hashes"))  # what is imported is not the model's
    make_judge(header)
    tracemalloc.start()
    judge = make_judge(header)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert judge.evidence.exercised == {}


def test_the_schema_has_every_limit() -> None:
    """A reader in another language knows it before it is refused."""
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(config_schema())
    assert check.is_valid({"slots": SIZE_LIMITS["slots"], "pool": "none", "window": None, "x": 2**63 - 1})
    for bad in ({"slots": SIZE_LIMITS["slots"] + 1}, {"x": 2**63}, {"x": 1.5}, {"x": []}, {"layers": 2000}):
        assert not check.is_valid(bad)
    assert ELEMENTS_LIMIT == 65_536
