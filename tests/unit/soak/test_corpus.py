"""Runs that reached what few reach: which are kept, and that they are played first."""

from __future__ import annotations

import json
from dataclasses import replace as replaced
from pathlib import Path

import pytest
from msgspec.structs import replace

from pymllm.documents.campaigns import Failure
from pymllm.errors import TraceError, UsageError
from pymllm.oracle.verdicts import Verdict
from pymllm.soak.campaign import soak
from pymllm.soak.corpus import (
    CORPUS_FILE,
    CorpusRun,
    RareRuns,
    choose_runs,
    corpus_schema,
    read_corpus,
    write_corpus,
)
from pymllm.soak.ledger import FILE, KeptRun, RunRecord, read_ledger
from pymllm.soak.merged_campaigns import MergePlan, merge_campaigns
from pymllm.soak.resuming import load_campaign
from pymllm.soak.schedule import count_runs, is_run_of, plan_runs
from tests.unit.soak.test_ledger import HEADER, RECORD
from tests.unit.soak.test_shards_of_a_campaign import COUNT, PLAN, of


def reaching(seed: int, operations: int, *goals: str) -> RunRecord:
    reached = dict.fromkeys(goals, 1)
    return replace(RECORD, seed=seed, operations=operations, reached=reached, failure=None)


def settle(*records: RunRecord, known: tuple[CorpusRun, ...] = ()) -> tuple[CorpusRun, ...]:
    rare = RareRuns()
    for record in records:
        rare.add(record)
    return rare.settle(known)


def test_of_what_few_reach_the_shortest_run_is_kept() -> None:
    """The shortest run with rare goals is kept, not runs with common goals or a failure."""
    common = [reaching(number, 100, "often") for number in range(10, 20)]
    failed = replace(reaching(4, 1, "rare"), failure=Failure("P2", "held"))
    runs = [*common, reaching(1, 90, "rare", "often"), reaching(2, 80, "rare", "rarer"), failed]
    for order in (runs, runs[::-1]):
        (kept,) = settle(*order)
        assert (kept.seed, kept.operations, kept.goals) == (2, 80, ("rare", "rarer"))
        assert (kept.adapter, kept.config, kept.machine, kept.limit) == (
            "rows",
            {"max_reqs": 3},
            "RowMachine",
            100,
        )


def test_a_corpus_keeps_what_it_has_until_a_shorter_run_comes() -> None:
    """Its own runs may reach what was rare often from then on."""
    known = settle(reaching(1, 90, "one"), reaching(2, 80, "two"))
    again = settle(*(reaching(number, 10 + number, "one") for number in range(10)), known=known)
    assert {it.seed for it in again} == {1, 2}
    better = settle(reaching(7, 20, "one"), known=known)
    assert [(it.seed, it.goals) for it in better] == [(2, ("two",)), (7, ("one",))]


def test_a_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    """And keeps to its schema; where there is none yet it is empty."""
    assert read_corpus(tmp_path) == ()
    corpus = settle(reaching(1, 90, "one"), reaching(2, 80, "two"))
    write_corpus(corpus, tmp_path / "new")
    assert read_corpus(tmp_path / "new") == corpus
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(corpus_schema())
    for line in (tmp_path / "new" / CORPUS_FILE).read_text("utf-8").splitlines():
        validator.validate(json.loads(line))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: lines[1:], ":1: it begins with"),
        (lambda lines: [lines[0], "{}"], ":2: Object missing required field `adapter`"),
        (lambda lines: [*lines, "x"], ":3: not JSON"),
        (
            lambda lines: [lines[0], lines[1].replace('"limit": 100', '"limit": 0')],
            "limit 0, seed 1: must be",
        ),
        (
            lambda lines: [lines[0], lines[1].replace('"seed": 1', '"seed": -1')],
            "limit 100, seed -1: must be",
        ),
        (lambda lines: [], "empty; a corpus begins with its format"),
    ],
)
def test_what_is_no_corpus_is_refused(tmp_path: Path, change: object, why: str) -> None:
    """Which line, and why."""
    write_corpus(settle(reaching(1, 90, "one")), tmp_path)
    lines = change((tmp_path / CORPUS_FILE).read_text("utf-8").splitlines())  # type: ignore[operator]
    (tmp_path / CORPUS_FILE).write_text("".join(f"{it}\n" for it in lines), encoding="utf-8")
    with pytest.raises(TraceError, match=why):
        read_corpus(tmp_path)


def test_only_runs_of_places_that_there_are_are_chosen() -> None:
    """Whichever way a configuration was typed."""
    corpus = settle(reaching(5, 90, "one"))
    assert choose_runs(corpus, HEADER.places) == (KeptRun(0, 5, 100),)
    assert choose_runs([replace(it, machine="Other") for it in corpus], HEADER.places) == ()


def test_runs_of_a_corpus_come_first_and_change_no_other_run() -> None:
    """They are not counted among the operations."""
    header = replace(HEADER, corpus=(KeptRun(0, 5, 100), KeptRun(0, 6, 10)))
    first, second, *rest = plan_runs(header)
    assert [(it.number, it.seed, it.limit) for it in (first, second)] == [(0, 5, 100), (1, 6, 10)]
    alone = list(plan_runs(HEADER))
    assert [(it.seed, it.limit, it.place) for it in rest] == [(it.seed, it.limit, it.place) for it in alone]
    assert [it.number for it in rest] == [it.number + 2 for it in alone]
    assert count_runs(header) == len(alone) + 2
    assert all(is_run_of(header, it.number, it.seed) for it in (first, second, *rest))
    assert not is_run_of(header, 0, 6)
    assert not is_run_of(header, 2, 6)


def test_a_campaign_plays_its_corpus_whole_or_in_shards(tmp_path: Path) -> None:
    """X3: the goals are reached again, and shards merge to the bytes of the whole campaign."""
    soak(PLAN, tmp_path / "first")
    report = merge_campaigns([tmp_path / "first"], MergePlan(corpus=tmp_path / "corpus"))
    assert report.verdict() is Verdict.HOLDS
    corpus = read_corpus(tmp_path / "corpus")[:4]
    assert corpus
    plan = replaced(PLAN, seed=9, operations=600, corpus=corpus)
    soak(plan, tmp_path / "whole")
    runs = {it.seed: it for it in read_ledger(tmp_path / "whole" / FILE) if isinstance(it, RunRecord)}
    for kept in corpus:
        assert set(kept.goals) <= set(runs[kept.seed].reached)
        assert runs[kept.seed].number < len(corpus)
    for number in range(1, COUNT + 1):
        soak(of(number, plan), tmp_path / f"{number}")
    for name, parts in (("a", ["whole"]), ("b", ["3", "1", "2"])):
        report = merge_campaigns([tmp_path / part for part in parts], MergePlan(tmp_path / name))
        assert (report.missing_runs, report.conflicts) == ((), ())
    assert (tmp_path / "a" / FILE).read_bytes() == (tmp_path / "b" / FILE).read_bytes()


def test_a_ledger_whose_corpus_is_nowhere_does_not_go_on(tmp_path: Path) -> None:
    """In one line."""
    soak(replaced(PLAN, operations=100), tmp_path)
    header, *lines = (tmp_path / FILE).read_text("utf-8").splitlines()
    for kept in ({"place": 99, "seed": 1, "limit": 5}, {"place": 0, "seed": 1, "limit": 0}):
        text = "\n".join([json.dumps(json.loads(header) | {"corpus": [kept]}), *lines])
        (tmp_path / FILE).write_text(f"{text}\n", encoding="utf-8")
        with pytest.raises(UsageError, match="a run of the corpus is at a place that there is not"):
            load_campaign(tmp_path)
