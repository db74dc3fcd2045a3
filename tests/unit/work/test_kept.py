"""Results that a file keeps: known to the next run, in whichever order, and only for the same task."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pymllm.errors import UsageError
from pymllm.instrument.provenance import build_version
from pymllm.work.kept import KeptResults, Work


def unpack(item: int, plain: object) -> int:
    if not isinstance(plain, int):
        raise ValueError(plain)
    return plain


SQUARES: Work[int, int] = Work("squares", str, lambda item: f"of {item}", lambda result: result, unpack)
CUBES: Work[int, int] = Work("cubes", str, lambda item: f"of {item}", lambda result: result, unpack)
VERSIONS = {"hypothesis": "6.1"}


def kept_in(path: Path, work: Work[int, int] = SQUARES) -> KeptResults[int, int]:
    return KeptResults(path, work, VERSIONS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept.jsonl"


def test_what_is_kept_is_known_to_the_next_run(path: Path) -> None:
    """Each result for its own task."""
    for item in (2, 3):
        kept_in(path).keep(item, item**2)
    assert [kept_in(path).find(item) for item in (2, 3, 4)] == [4, 9, None]


def test_files_are_put_together_in_any_order(tmp_path: Path, path: Path) -> None:
    """Twice, too, and with the half of a line that whoever died left in the middle: that one is lost."""
    texts = []
    for item in range(6):
        part = tmp_path / f"{item}.jsonl"
        kept_in(part).keep(item, item**2)
        texts.append(part.read_text(encoding="utf-8"))
    for seed in range(5):
        shuffled = random.Random(seed).sample(texts * 2, 12)
        path.write_text("".join(shuffled), encoding="utf-8")
        assert [kept_in(path).find(item) for item in range(6)] == [0, 1, 4, 9, 16, 25]
    path.write_text(texts[0] + texts[1][:40] + texts[2] + texts[3][:-1] + texts[4], encoding="utf-8")
    assert [kept_in(path).find(item) for item in range(5)] == [0, None, 4, 9, 16]


def test_a_result_may_look_like_a_line(path: Path) -> None:
    """As the key of a program does: it is no beginning of another result."""
    work: Work[int, object] = Work("programs", str, str, lambda result: result, lambda item, plain: plain)
    results = [{"key": [1, {"key": "a"}]}, '{"key": ', 3]
    kept = KeptResults(path, work, VERSIONS)
    for item, result in enumerate(results):
        kept.keep(item, result)
    again = KeptResults(path, work, VERSIONS)
    assert [again.find(item) for item in range(3)] == results


def test_a_result_that_is_too_long_for_a_line_is_left_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: nobody could read the file any more."""
    kept_in(path).keep(2, 4)
    length = len(path.read_text("utf-8").splitlines(keepends=True)[-1])
    for limit, found in ((length - 1, None), (length, 9)):
        monkeypatch.setattr("pymllm.work.kept.LINE_LIMIT", limit)
        kept_in(path).keep(3, 9)
        assert kept_in(path).find(3) == found
    assert kept_in(path).find(2) == 4


def test_a_head_says_which_work_it_is_and_with_what(path: Path) -> None:
    """Once for all results behind it, and anew behind those of others."""
    kept_in(path).keep(2, 4)
    kept_in(path).keep(3, 9)
    kept_in(path, CUBES).keep(2, 8)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    said = [line.get("work", line.get("task")) for line in lines]
    assert said == ["squares", "of 2", "of 3", "cubes", "of 2"]
    made_with = VERSIONS | {"pymllm": build_version()}
    assert lines[0] == {"format": "pymllm-kept", "schema": 1, "work": "squares", "made_with": made_with}
    assert [*lines[1]] == ["key", "task", "result"]


def test_a_head_that_is_lost_loses_no_result(tmp_path: Path, path: Path) -> None:
    """A file that ended within a line may stand before it: a key says all."""
    kept_in(tmp_path / "other", CUBES).keep(2, 8)
    kept_in(path).keep(2, 4)
    head, line = path.read_text("utf-8").splitlines(keepends=True)
    before = (tmp_path / "other").read_text("utf-8")
    path.write_text(before + head[:30] + line, encoding="utf-8")
    assert (kept_in(path).find(2), kept_in(path, CUBES).find(2)) == (4, 8)


def test_a_file_of_an_older_version_is_read(path: Path) -> None:
    """A file of an older version, without heads and with the task on each line, is read."""
    kept_in(path).keep(2, 4)
    head, line = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    old = {"key": line["key"], "work": "squares", "task": "of 2", "made_with": head["made_with"], "result": 4}
    other = old | {"key": "x", "made_with": {"hypothesis": "5"}}
    text = f"{json.dumps(other)}\n{json.dumps(old)[:50]}{json.dumps(old)}\n"
    path.write_text(text, encoding="utf-8")
    kept = kept_in(path)
    assert kept.find(2) == 4
    assert (kept.describe_others() or "").startswith(f"{path}: 1 of 2 results do not count here")
    kept.keep(3, 9)
    assert path.read_text("utf-8").startswith(text)
    assert [kept_in(path).find(item) for item in (2, 3)] == [4, 9]


def test_nothing_that_was_kept_is_lost_at_any_byte(path: Path) -> None:
    """Whoever is killed, goes on, and is put before another file, loses the result at hand alone."""
    for item in (2, 3):
        kept_in(path).keep(item, item**2)
    whole = path.read_text("utf-8")
    ends = [place + 1 for place, letter in enumerate(whole) if letter == "\n"]  # of head, 2, 3
    for killed in range(len(whole) + 1):
        path.write_text(whole[:killed] + whole, encoding="utf-8")
        assert [kept_in(path).find(item) for item in (2, 3)] == [4, 9]
        path.write_text(whole[:killed], encoding="utf-8")
        kept_in(path).keep(4, 16)
        found = [kept_in(path).find(item) for item in (2, 3, 4)]
        assert found[1:] == [9 if killed >= ends[2] - 1 else None, 16]
        assert found[0] == (4 if killed >= ends[1] - 1 else None)


def test_works_share_a_file(path: Path) -> None:
    """Whoever keeps all of a night in one file need not sort it."""
    kept_in(path).keep(2, 4)
    kept_in(path, CUBES).keep(2, 8)
    assert (kept_in(path).find(2), kept_in(path, CUBES).find(2)) == (4, 8)


def test_what_was_made_with_something_else_does_not_count(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that is said, with what differs: it is done again."""
    kept_in(path).keep(2, 4)
    assert kept_in(path).describe_others() is None
    later = KeptResults(path, SQUARES, {"hypothesis": "6.2", "sglang": "0.5"})
    assert later.find(2) is None
    assert later.describe_others() == (
        f"{path}: 1 of 1 results do not count here, for they were made with hypothesis 6.1 for 6.2, "
        "sglang none for 0.5"
    )
    monkeypatch.setattr("pymllm.work.kept.build_version", lambda: "another")
    assert kept_in(path).find(2) is None


@pytest.mark.parametrize("broken", ['{"key": "half', "[]", '{"key": "x"}'])
def test_a_line_that_was_not_finished_is_passed_over(path: Path, broken: str) -> None:
    """An unfinished line is passed over, its task is done again, and the new result has a line of its own."""
    path.write_text(broken, encoding="utf-8")
    kept = kept_in(path)
    assert kept.find(2) is None
    kept.keep(2, 4)
    assert kept_in(path).find(2) == 4
    assert path.read_text(encoding="utf-8").splitlines()[0] == broken


def test_a_result_that_cannot_be_read_is_made_again(path: Path) -> None:
    """As one is that somebody changed by hand."""
    kept_in(path).keep(2, 4)
    path.write_text(path.read_text("utf-8").replace('"result": 4', '"result": [4]'), encoding="utf-8")
    assert kept_in(path).find(2) is None


@pytest.mark.parametrize("text", ["# My notes\n", '{"id": "x"}\n\n', "[]\n", "\n"])
def test_somebody_elses_file_gets_no_lines(path: Path, text: str) -> None:
    """A mistyped name must not cost a file; one that died in its first line goes on."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="no line of it is a kept result; name another"):
        kept_in(path)
    assert path.read_text(encoding="utf-8") == text
    path.write_text('{"key": "ha\n' + text, encoding="utf-8")
    assert kept_in(path).find(2) is None
    with pytest.raises(UsageError, match="no regular file"):
        kept_in(Path("/dev/zero"))


def test_a_file_that_cannot_be_had_is_refused(tmp_path: Path, path: Path) -> None:
    """X1: before anything is done, and in the middle with what there is."""
    path.mkdir()
    with pytest.raises(UsageError, match="results cannot be kept in"):
        kept_in(path)
    kept = kept_in(tmp_path / "other.jsonl")
    kept.path.unlink()
    kept.path.mkdir()
    with pytest.raises(UsageError, match=r"results cannot be kept in .*; those before stay there"):
        kept.keep(2, 4)
