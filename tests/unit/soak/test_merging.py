"""Ledgers put together: the same bytes, whoever played what, in whichever order, however often."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pymllm.adapters.registry import find_adapter
from pymllm.errors import TraceError
from pymllm.oracle.verdicts import Verdict
from pymllm.soak import merging
from pymllm.soak.campaign import soak
from pymllm.soak.ledger import FILE, Memory, RunRecord, read_ledger
from pymllm.soak.measured import MEASURED_FILE, canonical_line, measured_schema
from pymllm.soak.merged_campaigns import MergePlan, merge_campaigns
from pymllm.soak.merging import LineSorter, merge_ledgers
from pymllm.soak.resuming import load_campaign
from pymllm.work.shards import Shard
from tests.unit.soak.test_ledger import HEADER, RECORD, write
from tests.unit.soak.test_shards_of_a_campaign import COUNT, PLAN, of


def made(number: int, **changes: object) -> RunRecord:
    """Make a run of `HEADER`'s campaign."""
    return structs.replace(RECORD, number=number, seed=1_000 + number, failure=None, **changes)  # type: ignore[arg-type]


def bytes_of(folder: Path) -> bytes:
    return (folder / FILE).read_bytes()


# -- lines -------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40).map(lambda it: it.replace(b"\n", b" ") + b"\n")), st.integers(1, 200))
def test_lines_are_sorted_whatever_fits_into_memory(lines: list[bytes], budget: int) -> None:
    """As often as somebody asks, and by two at the same time."""
    sorter = LineSorter(budget)
    for line in lines:
        sorter.add(line)
    assert list(sorter) == sorted(lines)
    pairs = zip(sorter, sorter, strict=True)
    assert all(one == other for one, other in pairs)


def test_parts_become_one_before_they_are_too_many() -> None:
    """Files are open only so many at a time; lines may be longer than what is read at once."""
    lines = [b"%06d" % number + b"x" * (number % 7 * 30_000) + b"\n" for number in range(300)]
    random.Random(1).shuffle(lines)
    sorter = LineSorter(10)
    open_before = len(os.listdir("/proc/self/fd"))
    for line in lines:
        sorter.add(line)
    assert len(os.listdir("/proc/self/fd")) - open_before <= 64
    assert list(sorter) == sorted(lines)
    del sorter
    assert len(os.listdir("/proc/self/fd")) == open_before


# -- ledgers -----------------------------------------------------------------------------------------------


def test_merging_keeps_each_run_once(tmp_path: Path) -> None:
    """Of two lines of a run the one with more walks; in one order, whatever order they came in."""
    walked = structs.replace(RECORD, audited={"P1": 50})
    other = made(8)
    first = write(tmp_path / "a.jsonl", HEADER, other, RECORD)
    second = write(tmp_path / "b.jsonl", HEADER, walked, structs.replace(HEADER, seed=8), made(1))
    both = tmp_path / "both.jsonl"
    both.write_text(first.read_text("utf-8") + second.read_text("utf-8"), encoding="utf-8")
    for paths in ([first, second], [second, first], [both], [first, both, second, first]):
        merged = merge_ledgers(paths)
        assert merged.headers == [HEADER, structs.replace(HEADER, seed=8)]
        assert list(merged) == [walked, other, made(1)]
        assert merged.conflicts == []


def test_a_run_of_two_campaigns_counts_once_and_stands_with_each(tmp_path: Path) -> None:
    """A longer campaign of the same seed begins with the same runs, and `pymllm repeat` plays one of them."""
    longer = structs.replace(HEADER, operations=2000)
    walked = structs.replace(RECORD, audited={"P1": 50}, number=0)
    paths = [
        write(tmp_path / "a.jsonl", HEADER, RECORD),
        write(tmp_path / "b.jsonl", longer, walked, made(9)),
    ]
    merged = merge_ledgers(paths)
    assert [it.seed for it in merged] == [RECORD.seed, 1_009]
    assert next(it.audited for it in merged) == {"P1": 50}
    for order in (paths, paths[::-1]):
        folder = tmp_path / order[0].stem
        merge_ledgers(order).write(folder)
        assert bytes_of(folder).count(b"\n") == 5
        again = merge_ledgers([folder / FILE])
        assert (list(again), again.headers) == (list(merged), merged.headers)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_a_run_that_did_something_else_is_a_conflict(tmp_path: Path) -> None:
    """X3: the same run plays the same, wherever it is played; also of two campaigns, and once for each."""
    second = structs.replace(RECORD, digest="other")
    path = write(tmp_path / "a.jsonl", HEADER, RECORD, second)
    (conflict,) = merge_ledgers([path, path]).conflicts
    assert "seed 9 of rows" in str(conflict)
    assert "'abc'" in str(conflict)
    assert "'other'" in str(conflict)
    apart = write(tmp_path / "b.jsonl", HEADER, RECORD, structs.replace(HEADER, operations=9), second)
    (again,) = merge_ledgers([apart]).conflicts
    assert str(again) == str(conflict)


def test_a_conflict_is_told_again_of_what_was_merged(tmp_path: Path) -> None:
    """A merged ledger is a ledger: both lines of the run stand in it, and it is merged to the same bytes."""
    second = structs.replace(RECORD, digest="other")
    path = write(tmp_path / "a.jsonl", HEADER, second, RECORD)
    merge_ledgers([path, path]).write(tmp_path / "once")
    merged = merge_ledgers([tmp_path / "once" / FILE])
    assert [str(it) for it in merged.conflicts] == [str(it) for it in merge_ledgers([path]).conflicts] != []
    assert len([*merged]) == 1
    merged.write(tmp_path / "twice")
    for name in (FILE, MEASURED_FILE):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


def test_a_run_that_was_lost_counts_only_where_it_never_ended(tmp_path: Path) -> None:
    """A machine that went down, or was too slow, accuses nobody."""
    lost = structs.replace(RECORD, digest="", operations=3, failure=structs.replace(RECORD.failure, law=None))  # type: ignore[type-var]
    other = structs.replace(lost, operations=5)
    merged = merge_ledgers([write(tmp_path / "a.jsonl", HEADER, lost, RECORD, other)])
    assert (list(merged), merged.conflicts) == ([RECORD], [])
    merged = merge_ledgers([write(tmp_path / "b.jsonl", HEADER, other, lost)])
    assert (list(merged), merged.conflicts) == ([lost], [])


def test_what_was_measured_stands_beside_what_was_played(tmp_path: Path) -> None:
    """And comes back when it is read; alone, each keeps to its schema."""
    kept = [made(1, memory=Memory("x/2", 7, 5, 4, 3), file="programs/a.jsonl"), RECORD]
    merged = merge_ledgers([write(tmp_path / "a.jsonl", HEADER, *reversed(kept))])
    merged.write(tmp_path / "all")
    bare = [it for it in read_ledger(tmp_path / "all" / FILE) if isinstance(it, RunRecord)]
    assert [canonical_line(it) for it in bare] == [canonical_line(it) for it in kept]
    assert [(it.cpu, it.file, it.audited, it.memory) for it in bare] == [(0.0, None, {}, Memory())] * 2
    assert list(merge_ledgers([tmp_path / "all" / FILE])) == kept
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(measured_schema())
    lines = (tmp_path / "all" / MEASURED_FILE).read_text("utf-8").splitlines()
    for line in lines:
        validator.validate(json.loads(line))
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: lines[::-1], "it begins with"),
        (lambda lines: [*lines, lines[1]], "run 1, seed 1001, is not in its place in ledger.jsonl"),
        (lambda lines: [lines[0], lines[2], lines[1]], "run 1, seed 1001, is not in its place"),
        (lambda lines: [*lines, "{}\n"], "missing required field `number`"),
        (lambda lines: [*lines, "nothing\n"], ":4: not JSON"),
    ],
)
def test_measures_that_are_of_no_run_are_refused(tmp_path: Path, change: object, why: str) -> None:
    """They would be counted for another one."""
    merge_ledgers([write(tmp_path / "a.jsonl", HEADER, made(1), made(2))]).write(tmp_path)
    path = tmp_path / MEASURED_FILE
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(change(lines)), encoding="utf-8")  # type: ignore[operator]
    with pytest.raises(TraceError, match=why):
        merge_ledgers([tmp_path / FILE])


def test_measures_of_some_runs_will_do(tmp_path: Path) -> None:
    """A merged campaign that goes on has lines of the old form behind it."""
    merge_ledgers([write(tmp_path / "a.jsonl", HEADER, made(1), made(3))]).write(tmp_path)
    write(tmp_path / FILE, made(2))
    assert list(merge_ledgers([tmp_path / FILE])) == [made(1), made(2), made(3)]


def test_what_is_missing_is_told_by_number_and_shard(tmp_path: Path) -> None:
    """The first hundred stretches, and how many runs in all."""
    header = structs.replace(HEADER, runs=9, shard=(2, 3))
    path = write(
        tmp_path / "a.jsonl", header, made(2), made(3), made(7), structs.replace(header, shard=(1, 3))
    )
    (lack,) = merge_ledgers([path]).missing
    assert (lack.count, lack.ranges, lack.shards) == (6, ((0, 1), (4, 6), (8, 8)), (Shard(3, 3),))
    assert lack.header == structs.replace(HEADER, runs=9)
    write(path, *map(made, (0, 1, 4, 5, 6, 8, 8, 99)))
    assert merge_ledgers([path]).missing == []
    many = write(tmp_path / "b.jsonl", structs.replace(HEADER, runs=1_000), *map(made, range(0, 600, 2)))
    (lack,) = merge_ledgers([many]).missing
    assert (lack.count, len(lack.ranges), lack.shards) == (700, 100, ())
    without = write(tmp_path / "c.jsonl", structs.replace(HEADER, runs=2))
    assert [it.ranges for it in merge_ledgers([without]).missing] == [((0, 1),)]


def test_packages_of_the_machines_are_told_and_make_no_other_campaign(tmp_path: Path) -> None:
    """Whichever machine comes first."""
    header, other = (structs.replace(HEADER, runs=2, versions={"python": it}) for it in ("3.11", "3.12"))
    paths = [write(tmp_path / "a.jsonl", header, made(1)), write(tmp_path / "b.jsonl", other, made(0))]
    for order in (paths, paths[::-1]):
        merged = merge_ledgers(order)
        assert (merged.headers, merged.missing) == ([header, other], [])
        merged.write(tmp_path / order[0].stem)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_names_stand_in_order_in_the_merged_form() -> None:
    """A configuration that somebody typed in another order is the same."""
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    place = HEADER.places[0]
    for records in (
        [structs.replace(RECORD, config=it) for it in (one, other)],
        [structs.replace(HEADER, places=(structs.replace(place, config=it),)) for it in (one, other)],
    ):
        first, second = map(canonical_line, records)  # type: ignore[arg-type]  # headers or runs
        assert first == second
    tiny = "".join(["ti", "ny"])  # which is not the very object that stands in the source
    assert '"size"' not in canonical_line(
        structs.replace(HEADER, places=(structs.replace(place, size=tiny),))
    )
    assert '"size"' in canonical_line(structs.replace(HEADER, places=(structs.replace(place, size="large"),)))
    assert json.loads(canonical_line(structs.replace(HEADER, shard=(1, 2)))) == json.loads(
        canonical_line(HEADER)
    )


def test_memory_does_not_grow_with_what_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times the runs, in five times the parts, take no more."""
    monkeypatch.setattr(merging, "_CHUNK", 512)
    monkeypatch.setattr(merging, "_PARTS", 8)
    peaks = []
    for count in (100, 500):
        path = write(tmp_path / f"{count}.jsonl", HEADER, *map(made, range(count)))
        tracemalloc.start()
        try:
            merged = merge_ledgers([path], budget=5_000)
            merged.write(tmp_path / f"all-{count}")
            assert sum(1 for _ in merged) == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]
    assert (tmp_path / "500.jsonl").stat().st_size > peaks[1]


# -- campaigns ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The whole campaign, and its shards."""
    made = [tmp_path_factory.mktemp("part") for _ in range(1 + COUNT)]
    soak(PLAN, made[0])
    for number in range(1, 1 + COUNT):
        soak(of(number), made[number])
    return made


def test_shards_merge_to_the_bytes_of_the_whole_campaign(folders: list[Path], tmp_path: Path) -> None:
    """X3: in any order, with duplicates, torn and played again, merged before, or all in one file."""
    whole, *parts = folders
    merge_campaigns([whole], MergePlan(tmp_path / "whole"))
    expected = bytes_of(tmp_path / "whole")
    assert expected.count(b"\n") == len(list(load_campaign(whole)[1])) + 1
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / FILE).write_bytes(bytes_of(parts[0])[:-100])
    appended = tmp_path / "appended"
    appended.mkdir()
    (appended / FILE).write_bytes(b"".join(map(bytes_of, reversed(parts))))
    merge_campaigns(parts[:2], MergePlan(tmp_path / "some"))
    for number, order in enumerate(
        (
            parts,
            parts[::-1],
            [*parts, *parts, whole],
            [torn, *parts],
            [parts[2], parts[1], torn, parts[0]],
            [appended],
            [parts[2], tmp_path / "some"],
        )
    ):
        report = merge_campaigns(order, MergePlan(tmp_path / f"{number}"))
        assert bytes_of(tmp_path / f"{number}") == expected
        assert (report.verdict(), report.conflicts, report.missing_runs) == (Verdict.HOLDS, (), ())
        assert report.headers == tuple(load_campaign(whole)[:1])


def test_an_incomplete_set_of_shards_is_unknown(folders: list[Path], tmp_path: Path) -> None:
    """And complete once the rest is there, by whichever way."""
    _, first, second, third = folders
    report = merge_campaigns([first, third], MergePlan(tmp_path / "some"))
    assert report.verdict() is Verdict.UNKNOWN
    (lack,) = report.missing_runs
    assert (lack.count, lack.shards) == (len(list(load_campaign(second)[1])), (Shard(2, 3),))
    again = merge_campaigns([tmp_path / "some"])
    assert (again.missing_runs[0].count, again.missing_runs[0].shards) == (lack.count, ())
    assert again.totals.cpu == report.totals.cpu > 0
    header, merged = load_campaign(tmp_path / "some")
    soak(PLAN, tmp_path / "some", (header, merged))
    report = merge_campaigns([tmp_path / "some"], MergePlan(tmp_path / "all"))
    assert report.verdict() is Verdict.HOLDS
    merge_campaigns(folders, MergePlan(tmp_path / "whole"))
    assert bytes_of(tmp_path / "all") == bytes_of(tmp_path / "whole")


def test_shards_that_were_killed_and_started_again_merge_to_the_same_bytes(
    folders: list[Path], tmp_path: Path
) -> None:
    """X3: one of three, in the middle, with everything that it had started; by the same command."""
    words = "--adapter token-slots --adapter rows --seed 3 --operations 4000 --longest 300 --jobs 1"
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "pymllm", "soak", *words.split(), "--shard", "2/3", "--progress", "off"]
    command += ["--output", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        (folder / FILE).exists() and bytes_of(folder).count(b"\n") > 1
    ):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = bytes_of(folder)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    assert bytes_of(folder).startswith(killed[: killed.rfind(b"\n") + 1])
    assert 1 < killed.count(b"\n") < bytes_of(folder).count(b"\n"), "it had played some of its runs"
    report = merge_campaigns([folders[3], folder, folders[1]], MergePlan(tmp_path / "all"))
    merge_campaigns(folders[:1], MergePlan(tmp_path / "whole"))
    assert bytes_of(tmp_path / "all") == bytes_of(tmp_path / "whole")
    assert report.verdict() is Verdict.HOLDS


def test_failures_of_shards_are_those_of_the_whole_campaign(tmp_path: Path) -> None:
    """P2: which run met it first does not depend on who played it."""
    plan = replace(PLAN, adapters=(find_adapter("faulty-dirty-rows"),), operations=2_000)
    soak(plan, tmp_path / "whole")
    for number in (2, 1):
        soak(of(number, plan, 2), tmp_path / f"{number}")
    whole = merge_campaigns([tmp_path / "whole"], MergePlan(tmp_path / "a"))
    parts = merge_campaigns([tmp_path / "1", tmp_path / "2"], MergePlan(tmp_path / "b"))
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")
    one, other = (it.totals.adapters["faulty-dirty-rows"].failures["P2"] for it in (whole, parts))
    assert (one.runs, canonical_line(one.first)) == (other.runs, canonical_line(other.first))
    assert parts.verdict() is Verdict.VIOLATED


def test_a_ledger_of_an_older_version_is_read_as_it_was(tmp_path: Path) -> None:
    """Its header does not say how many runs there are, so none is missing."""
    report = merge_campaigns([write(tmp_path / FILE, HEADER, made(5)).parent], MergePlan(tmp_path / "all"))
    assert (report.missing_runs, report.totals.runs) == ((), 1)
    assert next(iter(read_ledger(tmp_path / "all" / FILE))) == HEADER
