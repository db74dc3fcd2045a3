"""Files of vectors: what is written is read again, and what is none is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pymllm.errors import TraceError
from pymllm.history.operations import Alloc
from pymllm.vectors.format import (
    Vector,
    VectorsHeader,
    VectorStep,
    dump_vectors,
    load_vectors,
    make_id,
)
from pymllm.work.time_limit import deadline
from tests.unit.vectors.runners import FOLDER

HEADER = VectorsHeader("1.0.0", "slots", "2.1", "Apache-2.0")
CONFIG = {"page_size": 1, "pages": 2}
STEP = VectorStep(
    Alloc(1), {"result": {"is": "slots", "slots": {"$of": [{"step": 0, "start": 1, "stop": 2}]}}}
)
VECTOR = Vector("slots-A3-1", "A3", "a law", "ownership", "must", ("pool",), CONFIG, (STEP,))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """In the order of ids, and the same bytes again."""
    other = Vector("slots-A3-0", "A3", "a law", "counters", "may", (), CONFIG, (STEP, STEP), "B01", "link")
    path = tmp_path / "slots.jsonl"
    path.write_text(dump_vectors(HEADER, [VECTOR, other]), encoding="utf-8")
    header, vectors = load_vectors(path)
    assert (header, vectors) == (HEADER, (other, VECTOR))
    assert dump_vectors(header, vectors) == path.read_text(encoding="utf-8")


def test_an_id_is_of_what_is_run() -> None:
    """Another operation or need, another id; the order of needs does not matter."""
    first = make_id("slots", "A3", ("a", "b"), CONFIG, [Alloc(1)])
    assert first == make_id("slots", "A3", ("b", "a"), CONFIG, [Alloc(1)])
    assert first.startswith("slots-A3-")
    others = [
        make_id("slots", "A3", ("a",), CONFIG, [Alloc(1)]),
        make_id("slots", "A3", ("a", "b"), CONFIG, [Alloc(2)]),
        make_id("slots", "A3", ("a", "b"), {**CONFIG, "pages": 3}, [Alloc(1)]),
    ]
    assert len({first, *others}) == 4


def line_of(vector: Vector = VECTOR, **changes: object) -> str:
    plain = json.loads(dump_vectors(HEADER, [vector]).splitlines()[1])
    return json.dumps({**plain, **changes})


FIRST = dump_vectors(HEADER, []).strip()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "empty"),
        (["{}"], ":1: a file of vectors begins"),
        ([FIRST.replace('"schema":1', '"schema":2')], "this version reads 1"),
        ([FIRST.replace('"slots"', '"nothing"')], "kind is 'nothing'"),
        ([FIRST, line_of(), line_of()], ":3: id 'slots-A3-1' is in two lines"),
        ([FIRST, line_of(law="Z9")], ":2: "),
        ([FIRST, line_of(level="deep")], "level is 'deep'; it must be one of observable"),
        ([FIRST, line_of(flag="should")], "flag is 'should'"),
        ([FIRST, line_of(needs=["magic"])], "needs 'magic', which is no capability"),
        ([FIRST, line_of(steps=[])], "has no step"),
        ([FIRST, line_of(config={"page_size": 1 << 40})], "page_size"),
        ([FIRST, line_of(steps=[{"op": {"op": "read_rows"}, "expect": {}}])], "no operation of kind slots"),
        ([FIRST, line_of(steps=[{"op": {"op": "alloc", "tokens": 1}, "expect": {"x": 1}}])], "expects 'x'"),
        ([FIRST, line_of(extra=1)], "unknown field 'extra'"),
        ([FIRST, "{"], ":2: "),
    ],
)
def test_what_is_no_vector_is_refused(tmp_path: Path, lines: list[str], words: str) -> None:
    """With the file, and the line where there is one."""
    path = tmp_path / "it.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(TraceError) as error:
        load_vectors(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_many_vectors_are_read_in_time(tmp_path: Path) -> None:
    """The time to look for an id that stands twice grows with the file, not with its square."""
    line, path = line_of(), tmp_path / "slots.jsonl"
    lines = [line.replace("slots-A3-1", f"slots-A3-{number:x}") for number in range(20_000)]
    path.write_text("\n".join([FIRST, *lines]), encoding="utf-8")
    with deadline(20):
        assert len(load_vectors(path)[1]) == 20_000


def test_the_vectors_are_small() -> None:
    """Nobody vendors a large file."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 1_500_000
