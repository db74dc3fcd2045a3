"""The smallest program that breaks a law, the smallest scenario, and who can see a violation again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.faults.plant import Replace, planted
from pymllm.faults.table import find_faults, own_cabinet
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import (
    Alloc,
    AllocRows,
    Evict,
    FreeRow,
    Insert,
    Key,
    Lock,
    Match,
    Operation,
    ReadRows,
    Span,
    WriteRow,
)
from pymllm.machines.acting import FoundViolation, make_machine
from pymllm.machines.examiner import Examiner
from pymllm.machines.lifecycle import LifecycleMachine
from pymllm.machines.rows import RowMachine
from pymllm.search import shrinker
from pymllm.search.program import play_steps, rerun_history, run_program
from pymllm.search.shrinker import (
    Finding,
    Shrinker,
    ShrinkProgress,
    ShrinkRun,
    ShrinkTask,
    make_finding,
    pick_smallest,
    run_shrink,
    shows_again,
    shrink,
)
from pymllm.work.time_limit import time_limit
from tests.unit.finding import DIRTY, ROWS, found_by, found_in


def test_outcomes_alone_show_what_the_oracle_found(tiny: str) -> None:
    """P2: with and without the implementation."""
    finding = make_finding(found_in(f"{tiny}:KeepsEntries"))
    assert (finding.law, finding.step, finding.is_rerun, finding.is_judged) == ("P2", 4, True, True)


def test_what_was_seen_from_inside_needs_the_implementation(tiny: str) -> None:
    """P1: outcomes are as they must be."""
    finding = make_finding(found_in(f"{tiny}:WrongInside", [AllocRows(2)]))
    assert (finding.law, finding.step, finding.is_rerun, finding.is_judged) == ("P1", 1, True, False)


def test_what_needs_an_engine_is_not_seen_again(tiny: str) -> None:
    """E3: neither way; nor does an adapter that is gone show anything."""
    violation = InvariantViolation("E3", "one slot is gone")
    history = run_program(f"{tiny}:TinyRows", ROWS, DIRTY)
    finding = make_finding(FoundViolation(history, violation))
    assert (finding.is_rerun, finding.is_judged) == (False, False)
    gone = History(Header("gone", "rows", ROWS), history.steps)
    assert not make_finding(FoundViolation(gone, violation)).is_rerun
    senseless = History(Header(f"{tiny}:TinyRows", "rows", {}), [])
    finding = make_finding(FoundViolation(senseless, violation))
    assert (finding.step, finding.is_rerun, finding.is_judged) == (0, False, False)


def test_the_smallest_program_of_each_law_is_kept() -> None:
    """Smallest first; of two as small the one that came first."""

    def finding(law: str, steps: int, seed: int = 0) -> Finding:
        history = History(
            Header("tiny", "rows", seed=seed), [Step(1 + at, ReadRows()) for at in range(steps)]
        )
        return Finding(InvariantViolation(law, "looked"), history, True, True)

    first = finding("P2", 3, seed=1)
    kept = pick_smallest([finding("P1", 4), first, finding("P2", 3, seed=2), finding("P1", 5)])
    assert [(it.law, len(it.history)) for it in kept] == [("P2", 3), ("P1", 4)]
    assert kept[0] is first
    assert pick_smallest([]) == ()


LONG: list[Operation] = [
    AllocRows(0),
    ReadRows(),
    AllocRows(1),
    AllocRows(1),
    WriteRow(Span(3, 0, 1), 0, 1, (7,)),
    WriteRow(Span(4, 0, 1), 0, 1, (7,)),
    ReadRows(),
    FreeRow(Span(3, 0, 1)),
    AllocRows(0),
    ReadRows(),
]
SHORT = [AllocRows(1), WriteRow(Span(1, 0, 1), 0, 1, (1,)), FreeRow(Span(1, 0, 1)), ReadRows()]


def found(adapter: str) -> FoundViolation:
    return found_in(adapter, LONG)


def operations_of(found: FoundViolation) -> list[Operation]:
    return [step.operation for step in found.history.steps]


def test_only_what_is_needed_stays(tiny: str) -> None:
    """P2: a row, a write, a free and a look, numbered from 1, with the outcomes of this program."""
    short = shrink(found(f"{tiny}:KeepsEntries"), plays=1000)
    assert operations_of(short) == SHORT
    assert [step.number for step in short.history.steps] == [1, 2, 3, 4]
    assert all(step.outcome is not None for step in short.history.steps)
    assert short.violation.law == "P2"
    assert short.history.header.seed == 5
    assert short.history.header.config == {"max_reqs": 1, "max_context_len": 1}
    again = rerun_history(short.history, short.history.header.adapter)
    assert again.violation is not None
    assert (again.violation.law, again.differences) == ("P2", ())


def test_a_small_program_stays_as_it_is(tiny: str) -> None:
    """And the same program gives the same, time and again."""
    short = shrink(found(f"{tiny}:KeepsEntries"), plays=1000)
    again = shrink(short, plays=1000)
    assert operations_of(again) == operations_of(short)
    assert again.history.header == short.history.header
    assert not again.is_unfinished


def test_any_of_some_laws_will_do(tiny: str) -> None:
    """The one that was broken need not be among them."""
    original = found(f"{tiny}:KeepsEntries")
    other = FoundViolation(original.history, InvariantViolation("X3", "looked"))
    assert shrink(other, plays=1000).violation.law == "X3"
    short = shrink(other, plays=1000, laws=("X3", "P2"))
    assert short.violation.law == "P2"
    assert operations_of(short) == SHORT


def test_it_tells_how_far_it_is(tiny: str) -> None:
    """Programs played, operations left, seconds."""
    told: list[ShrinkProgress] = []
    Shrinker(found(f"{tiny}:KeepsEntries"), plays=30, on_progress=told.append).run()
    assert [it.plays for it in told] == list(range(len(told)))
    lengths = [it.operations for it in told]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (len(LONG), len(SHORT))
    assert [it.seconds for it in told] == sorted(it.seconds for it in told)


def test_the_best_so_far_survives_an_interrupt(tiny: str) -> None:
    """It is smaller already, and marked as unfinished."""

    def interrupt(progress: ShrinkProgress) -> None:
        if progress.operations < len(LONG):
            raise KeyboardInterrupt

    shrinker = Shrinker(found(f"{tiny}:KeepsEntries"), on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        shrinker.run()
    assert len(shrinker.best.history) < len(LONG)
    assert shrinker.best.is_unfinished


def test_what_only_a_look_inside_shows_is_looked_at_inside(tiny: str) -> None:
    """P1: no outcome tells of it."""
    inside = found_in(f"{tiny}:WrongInside", [ReadRows(), *[AllocRows(1)] * 3])
    short = shrink(inside, plays=1000)
    assert operations_of(short) == [AllocRows(2)]


def test_it_ends(tiny: str) -> None:
    """A shrinker that runs out of plays returns a program that breaks the law, numbered from 1."""
    lengths = [len(shrink(found(f"{tiny}:KeepsEntries"), plays=plays).history) for plays in (0, 12, 100)]
    assert lengths[0] == len(LONG) > lengths[1] > lengths[2] == len(SHORT)


def test_what_does_not_break_the_law_again_stays_as_it_is(tiny: str) -> None:
    """A program that does not break the law again stays: of an engine, another law, a lost adapter."""
    original = found(f"{tiny}:KeepsEntries")
    for adapter, law in ((f"{tiny}:TinyRows", "P2"), (f"{tiny}:KeepsEntries", "E3"), ("gone", "P2")):
        history = History(Header(adapter, "rows", dict(ROWS)), original.history.steps)
        same = FoundViolation(history, InvariantViolation(law, "looked"))
        assert shrink(same, plays=1000) is same


def test_a_crash_on_the_way_is_no_shorter_program(tiny: str) -> None:
    """A crash of a shorter program does not count as the same violation."""
    short = shrink(found(f"{tiny}:KeepsEntriesAndBreaks"), plays=1000)
    assert short.violation.law == "P2"
    assert len(short.history) == len(SHORT) + 1


def test_a_program_that_hangs_ends_it(tiny: str) -> None:
    """A program that hangs ends the shrinking, and the smallest program so far is marked unfinished."""
    original = found(f"{tiny}:KeepsEntriesAndHangs")
    with time_limit(0.3):
        short = shrink(original, plays=1000)
    assert short.violation.law == "P2"
    assert len(short.history) <= len(LONG)
    assert short.is_unfinished
    assert not shrink(found(f"{tiny}:KeepsEntries"), plays=1000).is_unfinished
    assert shrink(found(f"{tiny}:KeepsEntries"), plays=12).is_unfinished


def test_acts_go_that_are_not_needed(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: of a long program before operations go; pools become small with them."""
    found = found_by(make_machine(RowMachine, f"{tiny}:KeepsEntries", ROWS, seed=3, audit=False))
    monkeypatch.setattr(shrinker, "_LONG", len(found.history) - 1)
    by_acts = Shrinker(found, seconds=None, plays=60)
    by_acts.run()
    assert by_acts.best.violation.law == "P2"
    assert by_acts.best.history.header.config["max_reqs"] == 1
    assert len(shrink(found, plays=1000).history) == len(SHORT)


def test_what_an_engine_does_wrong_is_found_in_a_small_pool() -> None:
    """E2: its calls alone, run again, break no law; one request of two tokens does."""
    radix = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
    (fault,) = find_faults(["B10"], own_cabinet())
    with planted(fault.edits):
        found = found_by(make_machine(LifecycleMachine, "radix", radix, seed=0, audit=False))
        short = shrink(found, plays=100)
    assert short.violation.law in fault.laws
    assert short.scenario is not None
    assert found.scenario is not None
    assert len(short.scenario.acts) < len(found.scenario.acts)
    assert len(short.history) <= 12
    assert int(short.history.header.config["slots"] or 0) < 24


SMALL = {"max_reqs": 2, "max_context_len": 2}
RECORDED = [
    AllocRows(0),
    ReadRows(),
    AllocRows(1),
    WriteRow(Span(3, 0, 1), 0, 1, (7,)),
    FreeRow(Span(3, 0, 1)),
    ReadRows(),
]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[ShrinkRun]:
    words: list[ShrinkRun] = []
    monkeypatch.setattr(shrinker, "tell", words.append)
    monkeypatch.setattr(shrinker, "_BETWEEN_WORDS", 0.0)
    return words


@pytest.fixture
def history() -> History:
    return run_program("rows", SMALL, RECORDED)


def test_what_is_found_is_told_as_it_gets_smaller(history: History, tiny: str, told: list[ShrinkRun]) -> None:
    """P2: first the program as it was; the answer is the smallest, and whether it shows the law again."""
    run = run_shrink(ShrinkTask(history, f"{tiny}:KeepsEntries", (), 60.0))
    lengths = [len(word.best.history) for word in told if word.best is not None]
    assert (lengths[0], lengths) == (6, sorted(lengths, reverse=True))
    assert run.before is not None
    assert run.best is not None
    assert (len(run.before.history), len(run.best.history), run.is_rerun) == (6, 4, True)
    assert (run.best.violation.law, run.plays) == ("P2", told[-1].plays + 1)
    assert shows_again(run.best)


def test_words_are_seconds_apart(history: History, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long program takes some time to be told; the first comes at once."""
    words: list[ShrinkRun] = []
    monkeypatch.setattr(shrinker, "tell", words.append)
    monkeypatch.setattr(shrinker, "_BETWEEN_WORDS", 1e6)
    assert run_shrink(ShrinkTask(history, f"{tiny}:KeepsEntries", (), 60.0)).plays > 1
    assert len(words) == 1


def test_a_program_without_sense_is_refused(history: History) -> None:
    """It has no acts that could show why."""
    steps = [Step(1, FreeRow(Span(7, 0, 1)))]
    with pytest.raises(ProgramError, match="step 7"):
        run_shrink(ShrinkTask(History(history.header, steps), "rows", (), 60.0))


EXAMPLES = Path(__file__).parents[3] / "examples"


def evict_parents(self: Any, count: int) -> list[int]:
    """Evict as the stranger's cache does, without a look at the holds of what becomes a leaf meanwhile."""
    gone: list[int] = []
    bare: set[tuple[int, ...]] = set()
    while len(gone) < count:
        inner = {prefix[:-1] for prefix in self.pages}
        leaves = (it for it in self.pages if it not in inner and (it in bare or not self.holds[it]))
        leaf = next(leaves, None)
        if leaf is None:
            break
        gone += self.pages.pop(leaf)
        bare.add(leaf[:-1])
    self.free += gone
    return gone


HELD = Match(Key((1,)))
FIVE = [Alloc(2), Insert(Key((1, 1)), (Span(1, 0, 2),)), HELD, Lock(3), Evict(2)]
USELESS = [Alloc(2), FIVE[1], HELD, Insert(Key((1,)), (Span(3, 0, 1),)), Lock(4), Evict(2)]
TWICE = [Alloc(5), Insert(Key((1,) * 5), (Span(1, 0, 5),)), Evict(3), HELD, Lock(4), Evict(2)]


@pytest.mark.parametrize("longer", [USELESS, TWICE], ids=["a useless insert", "two evictions"])
def test_a_parent_that_is_held_is_evicted_in_five_operations(
    longer: list[Operation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: no insert stands there only to be held, and nothing is evicted in two goes."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with planted([Replace("stranger_cache:PageCache.evict", evict_parents)]):
        adapter = make_adapter(
            "stranger_adapter:StrangerCache", {"page_size": 1, "pool": "token", "slots": 5}
        )
        examiner = Examiner(adapter, seed=5)
        with pytest.raises(InvariantViolation) as caught:
            play_steps(examiner, enumerate(longer, 1))
        assert caught.value.law == "R6"
        short = shrink(FoundViolation(examiner.history, caught.value))
    assert operations_of(short) == FIVE
    assert short.history.header.config["slots"] == 2
    assert not short.is_unfinished


def test_a_class_keeps_to_the_pages_that_it_declares(tiny: str) -> None:
    """X4: in pages of one token even a right one would do wrong; its pool may get smaller."""
    examiner = Examiner(make_adapter(f"{tiny}:PagesOfFour", {"page_size": 4, "pages": 6}))
    with pytest.raises(InvariantViolation) as caught:
        play_steps(examiner, enumerate([Alloc(8), Alloc(24)], 1))
    short = shrink(FoundViolation(examiner.history, caught.value))
    assert (operations_of(short), short.violation.law) == ([Alloc(5)], "X4")
    assert short.history.header.config == {"page_size": 4, "pages": 1}
