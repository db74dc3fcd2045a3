"""The runners: all say the same, of sound examples, of those with a fault, of spoiled files."""

from __future__ import annotations

import copy
import json
import random
import re
import resource
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.vectors.runners import FAULTS, FOLDER, RAISES, RUNNERS

FILES = sorted(FOLDER.glob("*.jsonl"))
PREFIX = FOLDER / "prefix.jsonl"
CLAIMS = {"pool", "extra_key", "exact_lru"}
LINES, EXAMPLE_LINES = 340, 150
"""What a reader has before them; in Go and C++ the example is a file beside the runner."""
COLUMNS = {"python": 110, "rust": 120, "go": 110, "cpp": 110}
COMPILED = [name for name in RUNNERS if name != "python"]

Make = Callable[[str, str], list[str]]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Build a runner, once for each fault; without its compiler, the test is skipped."""
    made: dict[tuple[str, str], list[str]] = {}

    def make_one(name: str, fault: str) -> list[str]:
        if (name, fault) not in made:
            folder = tmp_path_factory.mktemp(name) / "runner"
            made[name, fault] = RUNNERS[name].make(folder, fault)
        return made[name, fault]

    return make_one


def run(command: list[str], *words: object) -> tuple[int, str, str]:
    """A runner's status, and what it says."""
    done = subprocess.run(
        [*command, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def read(path: Path = PREFIX) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


# -- each runner ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNNERS)
def test_the_example_passes_and_says_what_became_of_each(name: str, make: Make) -> None:
    """Some vectors are played, none fails, every one is counted, and of those skipped it is said why."""
    status, said, complaint = run(make(name, ""), PREFIX)
    assert (status, complaint) == (0, "")
    *skips, last = said.splitlines()
    head, *rest = last.split(", ")
    counts = {verdict: int(count) for verdict, count in (it.rsplit(" ", 1) for it in rest)}
    played, total = counts["passed"] + counts.get("other way", 0), len(read()) - 1
    share = 1000 * played // total
    assert head == f"played {played} of {total} vectors ({share // 10}.{share % 10} %)"
    assert set(counts) <= {"passed", "other way", "skipped"}
    assert counts["passed"] > 0
    assert sum(counts.values()) == len(read()) - 1
    missing = Counter(", ".join(it for it in vector["needs"] if it not in CLAIMS) for vector in read()[1:])
    del missing[""]
    expected = {f"    {count} skipped: does not claim {them}" for them, count in missing.items()}
    assert {line for line in skips if "does not claim" in line} == expected
    others = dict(reversed(line.split(" skipped: ")) for line in set(skips) - expected)
    assert set(others) == {"cannot be built so", "free is unsupported"}
    assert sum(map(int, others.values())) == counts["skipped"] - sum(missing.values())


@pytest.mark.parametrize("name", RUNNERS)
def test_other_kinds_are_skipped(name: str, make: Make) -> None:
    """The example is a cache of prefixes; where nothing was played, nothing has passed."""
    others = {read(path)[0]["kind"]: len(read(path)) - 1 for path in FILES if path != PREFIX}
    assert others
    said = "".join(f"    {others[kind]} skipped: is not of kind {kind}\n" for kind in sorted(others))
    count = sum(others.values())
    last = f"nothing was played of {count} vectors, skipped {count}\n"
    assert run(make(name, ""), *(path for path in FILES if path != PREFIX)) == (3, said + last, "")


@pytest.mark.parametrize("name", RUNNERS)
def test_a_file_without_vectors_plays_nothing(name: str, make: Make, tmp_path: Path) -> None:
    """That is no success either."""
    path = write(tmp_path / "none.jsonl", read()[:1])
    assert run(make(name, ""), path) == (3, "nothing was played of 0 vectors\n", "")


@pytest.mark.parametrize("name", RUNNERS)
def test_an_operation_that_is_not_there_is_named(name: str, make: Make, tmp_path: Path) -> None:
    """The example has no look from inside, whatever it claims."""
    header, *vectors = read()
    looking = next(it for it in vectors if it["needs"] == ["inspect", "pool"])
    path = write(tmp_path / "looking.jsonl", [header, {**looking, "needs": ["pool"]}])
    said = "    1 skipped: inspect is unsupported\nnothing was played of 1 vectors, skipped 1\n"
    assert run(make(name, ""), path) == (3, said, "")


@pytest.mark.parametrize("fault", RAISES)
@pytest.mark.parametrize("name", RUNNERS)
def test_a_cache_that_raises_fails(name: str, fault: str, make: Make) -> None:
    """Each vector that meets it, with the message in one line; nothing else is told, and the others go on."""
    status, said, complaint = run(make(name, fault), PREFIX)
    lines = said.splitlines()
    failed = [at for at, line in enumerate(lines) if line.startswith("prefix-")]
    assert (status, complaint, len(failed) > 0) == (1, "", True)
    begin = "    step " if fault == "locks raise" else '    build: {"page_size":'
    assert all(lines[at + 1].startswith(begin) for at in failed)
    raised = {lines[at + 2] for at in failed}
    assert len(raised) == 1
    assert re.fullmatch(r"    raised   .*lost.+hold.*", raised.pop())
    assert f", failed {len(failed)}, " in lines[-1]
    assert ("passed" in lines[-1]) == (fault == "locks raise")


@pytest.mark.parametrize("name", RUNNERS)
def test_a_bug_is_shown_and_can_be_known(name: str, make: Make, tmp_path: Path) -> None:
    """A known deviation does not fail; one that passes is reported."""
    status, said, _ = run(make(name, "lost holds"), PREFIX)
    failed = [line.split()[0] for line in said.splitlines() if line.startswith("prefix-")]
    assert (status, len(failed) > 0) == (1, True)
    assert "    seen     {" in said
    known = write(tmp_path / "known.json", [dict.fromkeys(failed, "holds are lost")])
    status, said, _ = run(make(name, "lost holds"), PREFIX, "--known", known)
    assert (status, said.count("\n    known: holds are lost\n")) == (0, len(failed))
    status, said, _ = run(make(name, ""), "--known", known, PREFIX)
    assert status == 0
    assert all(f"{id}  passes, and is listed as a known deviation\n" in said for id in failed)


@pytest.mark.parametrize("name", RUNNERS)
def test_it_is_short_and_runs_by_itself(name: str, make: Make) -> None:
    """No longer than it is allowed to be, and all vectors take less than five seconds of processor time."""
    runner = RUNNERS[name]
    for path, most in {runner.example: EXAMPLE_LINES, runner.source: LINES}.items():
        lines = path.read_text(encoding="utf-8").expandtabs(4).splitlines()
        assert len(lines) <= most
        assert max(map(len, lines)) <= COLUMNS[name]
    command = make(name, "")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run(command, *FILES)[0] == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 5


# -- all alike -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["", *FAULTS])
@pytest.mark.parametrize("name", COMPILED)
def test_all_say_the_same_of_the_same_example(name: str, fault: str, make: Make) -> None:
    """Byte for byte, of every file of vectors, with and without a fault."""
    for path in FILES:
        assert run(make(name, fault), path) == run(make("python", fault), path)
    assert run(make(name, fault), PREFIX)[0] == bool(fault)


BAD = {
    "no such file": None,
    "empty": b"",
    "no header": b'{"id":"x"}\n',
    "no JSON": b'{"format":"cache-vectors","schema":1,"kind":"prefix"}\n{"id":\n',
    "a list": b'{"format":"cache-vectors","schema":1,"kind":"prefix"}\n[]\n',
    "no steps": b'{"format":"cache-vectors","schema":1,"kind":"prefix"}\n{"id":"a","law":"R1"}\n',
    "a float": b'{"format":"cache-vectors","schema":1.0,"kind":"prefix"}\n',
    "a long number": b'{"format":"cache-vectors","schema":10000000000000000000,"kind":"prefix"}\n',
    "a number with a zero before": b'{"format":"cache-vectors","schema":01,"kind":"prefix"}\n',
    "no ASCII": b'{"format":"cache-vectors","schema":1,"kind":"pr\xc3\xa9fix"}\n',
    "no text": b'\xff\xfe{"format":"cache-vectors"}\n',
    "an escape": b'{"format":"cache-vectors","schema":1,"kind":"pr\\u0065fix"}\n',
    "a comma too many": b'{"format":"cache-vectors","schema":1,"kind":"prefix",}\n',
    "two values": b'{"format":"cache-vectors","schema":1,"kind":"prefix"} {}\n',
    "lists in lists": b"[" * 100_000,
    "zeros": bytes(1000),
    "another schema": b'{"format":"cache-vectors","schema":2,"kind":"prefix"}\n',
    "a schema below zero": b'{"format":"cache-vectors","schema":-1,"kind":"prefix"}\n',
    "a schema in quotes": b'{"format":"cache-vectors","schema":"1","kind":"prefix"}\n',
    "a schema that is true": b'{"format":"cache-vectors","schema":true,"kind":"prefix"}\n',
    "a schema in a list": b'{"format":"cache-vectors","schema":[ 1 ],"kind":"prefix"}\n',
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line(what: str, make: Make, tmp_path: Path) -> None:
    """The same line, with the place, and status 2; nothing else is said."""
    path, content = tmp_path / "bad.jsonl", BAD[what]
    if content is not None:
        path.write_bytes(content)
    for name in RUNNERS:
        status, said, complaint = run(make(name, ""), path)
        assert (status, said, complaint.count("\n")) == (2, "", 1), name
        assert complaint.startswith(str(path))
        assert complaint == run(make("python", ""), path)[2]


def test_another_schema_is_named(make: Make, tmp_path: Path) -> None:
    """With the one that a runner reads, and where to find another runner."""
    path = write(tmp_path / "later.jsonl", [{**read()[0], "schema": 17}])
    said = f"{path}: line 1: schema is 17, and must be 1: take the runner that came with these vectors\n"
    assert {run(make(name, ""), path) for name in RUNNERS} == {(2, "", said)}


KNOWN, BROKEN, USAGE = "known.json", "broken.json", "usage: run_vectors FILE... [--known FILE], with one list"
WORDS = {
    "no file": ([], USAGE),
    "an option that is not there": (["--loud", PREFIX], USAGE),
    "an option that is not there, and a list that is not": (["--loud", PREFIX, "--known", "none"], USAGE),
    "no list": ([PREFIX, "--known"], USAGE),
    "a list without a name": (["--known", "", PREFIX], USAGE),
    "two lists": ([PREFIX, "--known", KNOWN, "--known", KNOWN], USAGE),
    "two lists, one of them none": (["--known", BROKEN, PREFIX, "--known", "none"], USAGE),
    "a list without a file": (["--known", KNOWN], USAGE),
    "a list that is called as the option": (["--known", "--known", PREFIX], "--known: must be a file that"),
    "the option as the name of the second": (["--known", KNOWN, "--known", "--known", PREFIX], USAGE),
    "a list that is broken": (
        [PREFIX, "--known", BROKEN],
        f"--known {BROKEN}: must be plain JSON, an object",
    ),
    "a list that is not there": ([PREFIX, "--known", "none"], "none: must be a file that can be read"),
}


@pytest.mark.parametrize("what", WORDS)
def test_words_that_mean_nothing_are_one_line(
    what: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same line of all, and status 2."""
    (tmp_path / KNOWN).write_text("{}", encoding="utf-8")
    (tmp_path / BROKEN).write_text('{"id": 1', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words, beginning = WORDS[what]
    ((status, said, complaint),) = {run(make(name, ""), *words) for name in RUNNERS}
    assert (status, said, complaint.count("\n")) == (2, "", 1)
    assert complaint.startswith(beginning)


def test_a_list_may_begin_with_empty_lines(make: Make, tmp_path: Path) -> None:
    """And ends as its editor left it."""
    known = tmp_path / "known.json"
    known.write_text('\n \r\n{"prefix-X1-00000000": "known"}\n\n', encoding="utf-8")
    ((status, said, complaint),) = {run(make(name, ""), PREFIX, "--known", known) for name in RUNNERS}
    assert (status, said.count("passed"), complaint) == (0, 1, "")


def test_all_say_the_same_of_vectors_that_demand_something_else(make: Make, tmp_path: Path) -> None:
    """All runners report the same of vectors with a changed number, a shortened list, or another form."""
    header, *vectors = read()
    spoiled = [
        {**bent, "id": f"{vector['id']}-{number}"}
        for vector in vectors
        if set(vector["needs"]) <= CLAIMS
        for number, bent in enumerate(bend(vector))
        if number % 12 == 0
    ]
    path = write(tmp_path / "bent.jsonl", [header, *spoiled])
    said = {name: run(make(name, ""), path) for name in RUNNERS}
    assert said["python"][0] == 1
    assert said["python"][1].count("\n    expected ") > 20
    assert "passed" in said["python"][1]
    assert all(it == said["python"] for it in said.values())


def bend(vector: dict[str, Any]) -> list[dict[str, Any]]:
    """Vectors in which one part of an expectation is another."""
    bent = []
    for at, step in enumerate(vector["steps"]):
        for path, part in parts_of(step["expect"]):
            for other in others(part):
                new = copy.deepcopy(vector)
                put(new["steps"][at], ["expect", *path], other)
                bent.append(new)
    return bent


def parts_of(value: Any) -> list[tuple[list[Any], Any]]:
    found: list[tuple[list[Any], Any]] = [([], value)]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict) and "stop" in value:
        return []
    for name, it in inner:
        found += [([name, *path], part) for path, part in parts_of(it)]
    return found


def others(part: Any) -> list[Any]:
    forms = [
        {"$any": [part, 77]},
        {"$free": True},
        {"$may": 77, "or": [78, part]},
        {"$may": part},
        {"$may": 77},
    ]
    if isinstance(part, list):
        return [part[:-1], [*part, 77], {"$set": part[::-1]}, {"$set": [*part, 77]}, *forms]
    if isinstance(part, dict):
        return [{**part, "is": "else"}, {"$set": [part]}, *forms]
    return [
        part + 1 if type(part) is int else None,
        [part],
        {"$of": [{"step": 1, "start": 0, "stop": 1}]},
        *forms,
    ]


def put(value: Any, path: list[Any], new: Any) -> None:
    for name in path[:-1]:
        value = value[name]
    value[path[-1]] = new


def test_all_end_alike_on_spoiled_bytes(make: Make, tmp_path: Path) -> None:
    """With the same words and status, whatever was cut out or changed."""
    chance = random.Random(0)
    lines = PREFIX.read_bytes().splitlines(keepends=True)
    ours = [line for line in lines[1:] if set(json.loads(line)["needs"]) <= CLAIMS]
    path = tmp_path / "spoiled.jsonl"
    statuses = set()
    for _ in range(12):
        data = bytearray(b"".join([lines[0], *chance.sample(ours, 4)]))
        at = chance.randrange(len(data))
        if chance.random() < 0.5:
            data[at] ^= 1 << chance.randrange(8)
        else:
            del data[at : at + chance.choice([1, 2, 400])]
        path.write_bytes(data)
        ((status, _, _),) = {run(make(name, ""), path) for name in RUNNERS}
        statuses.add(status)
    assert 2 in statuses
    assert statuses <= {0, 1, 2, 3}
