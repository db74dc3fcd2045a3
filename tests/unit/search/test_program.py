"""Programs that were written down: run and judged, recorded, and run again."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.adapters.own_pools import Rows
from pymllm.errors import AdapterError, InvariantViolation, OwnershipError, ProgramError, UsageError
from pymllm.history import operations as ops
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.operations import Key, Operation, Span
from pymllm.history.outcomes import INJECTED, Done, Effect, Evicted, NoRoom, Outcome, Slots, Table
from pymllm.machines.determinism import check_clears, check_determinism, check_idle_steps
from pymllm.machines.examiner import Examiner
from pymllm.search.program import (
    rerun_history,
    run_program,
    write_program,
    write_record,
)
from tests.unit.finding import DIRTY, ROWS


def test_a_program_runs_and_gives_its_history(tiny: str) -> None:
    """A program gives an outcome for every step, with any adapter that runs it."""
    for adapter in ("rows", f"{tiny}:TinyRows"):
        history = run_program(adapter, ROWS, DIRTY)
        assert [step.number for step in history.steps] == [1, 2, 3, 4]
        assert history.steps[0].outcome is not None
        assert history.steps[0].outcome.result == Slots((1,))
        assert (history.header.adapter, history.header.config) == (adapter, ROWS)


def test_steps_may_have_numbers_of_their_own(tiny: str) -> None:
    """A program of which lines were dropped keeps its references."""
    history = run_program(f"{tiny}:TinyRows", ROWS, {3: ops.AllocRows(1), 9: ops.FreeRow(Span(3, 0, 1))})
    assert [step.number for step in history.steps] == [3, 9]


def test_the_whole_program_is_run_again(tiny: str) -> None:
    """X3: a second run with other outcomes is a violation, too."""
    with pytest.raises(InvariantViolation) as caught:
        run_program(f"{tiny}:Moody", {"max_reqs": 60, "max_context_len": 1}, [ops.AllocRows(50)])
    assert caught.value.law == "X3"


def test_what_cannot_be_run_is_told(tiny: str) -> None:
    """X1: a program without sense, an adapter that does not exist, one that gives up."""
    with pytest.raises(ProgramError, match="step 1 gave 1"):
        run_program(f"{tiny}:TinyRows", ROWS, [ops.AllocRows(1), ops.FreeRow(Span(1, 1, 2))])
    with pytest.raises(UsageError, match="no adapter 'rowz'"):
        run_program("rowz", ROWS, [])
    with pytest.raises(AdapterError, match="lost the connection"):
        run_program(f"{tiny}:GivesUp", ROWS, [ops.AllocRows(2), ops.AllocRows(1)])


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (ops.Merge(), "Merge()"),
        (ops.Unlock(3, token=0), "Unlock(3, token=0)"),
        (
            ops.Insert(Key(((1, 2),), "a"), (Span(1, 0, 1),)),
            "Insert(Key(((1, 2),), extra_key='a'), slots=(Span(1, 0, 1),))",
        ),
        (Effect("callback", node=3, sizes={"a": 1}), "Effect('callback', node=3, sizes={'a': 1})"),
        ((), "()"),
    ],
)
def test_a_record_is_written_without_its_defaults(record: object, text: str) -> None:
    """The text is an expression whose value is the record."""
    assert write_record(record) == text
    assert (
        eval(text, {kind.__name__: kind for kind in (Effect, ops.Insert, Key, ops.Merge, Span, ops.Unlock)})
        == record
    )


def test_a_program_says_what_came_of_each_step() -> None:
    """One line per step, its outcome beside it."""
    steps = [
        Step(1, ops.AllocRows(2), Outcome(Slots((1, 2)))),
        Step(2, ops.FreeRow(Span(1, 0, 1)), Outcome(Evicted(4), (Effect("free", (4, 5)),))),
        Step(3, ops.WriteRow(Span(1, 1, 2), 0, 1, (7,)), Outcome(Slots(tuple(range(99))))),
    ]
    lines = write_program(History(Header("rows", "rows", {"max_reqs": 2}), steps)).splitlines()
    assert lines[:8] == [
        "from pymllm.search.program import run_program",
        "from pymllm.history.operations import AllocRows, FreeRow, Span, WriteRow",
        "",
        "run_program(",
        "    'rows',",
        "    {'max_reqs': 2},",
        "    [",
        "        AllocRows(2),  # 1: Slots((1, 2))",
    ]
    assert lines[8] == "        FreeRow(Span(1, 0, 1)),  # 2: Evicted(4), Effect('free', slots=(4, 5))"
    assert lines[9].endswith("...")
    assert lines[10:] == ["    ],", ")"]


def test_numbers_with_gaps_are_written_down() -> None:
    """References stay right; a step that was not run says so."""
    text = write_program(
        History(Header("rows", "rows"), [Step(4, ops.AllocRows(2)), Step(7, ops.AllocRows(1))])
    )
    assert (
        "    {\n        4: AllocRows(2),  # 4: not run\n        7: AllocRows(1),  # 7: not run\n    },\n"
        in text
    )


def test_an_empty_program_is_a_program() -> None:
    """Nothing is imported that is not used."""
    text = write_program(History(Header("rows", "rows")))
    assert text.splitlines()[:2] == ["from pymllm.search.program import run_program", ""]
    assert "    [\n    ],\n" in text


def test_a_pasted_program_breaks_the_same_law(tiny: str) -> None:
    """P2: what is printed runs."""
    program = [*DIRTY[:3], ops.AllocRows(0)]
    history = run_program(f"{tiny}:TinyRows", {"max_reqs": 1, "max_context_len": 2}, program)
    text = write_program(history).replace("TinyRows", "KeepsEntries").replace("AllocRows(0)", "ReadRows()")
    text = text.replace("import AllocRows", "import AllocRows, ReadRows")
    with pytest.raises(InvariantViolation) as caught:
        exec(text, {})
    assert caught.value.law == "P2"


ONE_ENTRY = {"max_reqs": 3, "max_context_len": 1}
OUTSIDE = Span(0, 7, 8)


class TurningRows(Rows):
    """Hands out the other end first, from the moment on that it was asked for too much."""

    def do_alloc_rows(self, step: int, operation: ops.AllocRows) -> Slots | NoRoom:
        result = super().do_alloc_rows(step, operation)
        if isinstance(result, NoRoom):
            self.pool._free_rows.reverse()
        return result


class SulkingRows(Rows):
    """The same, from the first refusal on."""

    def do_free_row(self, step: int, operation: ops.FreeRow) -> Done:
        try:
            return super().do_free_row(step, operation)
        except OwnershipError:
            self.pool._free_rows.reverse()
            raise


class AgingRows(Rows):
    """The same, from the first clear on."""

    def do_clear(self, step: int, operation: ops.Clear) -> Done:
        done = super().do_clear(step, operation)
        self.pool._free_rows.reverse()
        return done


class ShyRows(Rows):
    """Hands out the other end first, from the first look on."""

    def do_read_rows(self, step: int, operation: ops.ReadRows) -> Table:
        table = super().do_read_rows(step, operation)
        self.pool._free_rows.sort(reverse=True)
        return table


class TouchyRows(ShyRows):
    """The same, from the first look or refusal on."""

    def do_free_row(self, step: int, operation: ops.FreeRow) -> Done:
        try:
            return super().do_free_row(step, operation)
        except OwnershipError:
            self.pool._free_rows.sort(reverse=True)
            raise


class LooseRows(SulkingRows):
    """Claims neither refusals nor a pool."""

    def claim(self) -> frozenset[str]:
        return frozenset()


def examine(adapter_class: type[Rows], *operations: Operation) -> Examiner:
    examiner = Examiner(adapter_class("x", ONE_ENTRY), audit=False)
    for operation in operations:
        examiner.do(operation)
    return examiner


def check_both(examiner: Examiner, adapter_class: type[Rows]) -> None:
    for check in (check_idle_steps, check_clears):
        check(examiner, lambda: adapter_class("x", ONE_ENTRY))


def counted(*operations: Operation) -> dict[str, int]:
    """Return what the determinism checks of our own class count."""
    examiner = examine(Rows, *operations)
    before = dict(examiner.judge.evidence.exercised)
    check_both(examiner, Rows)
    return {law: n for law, n in examiner.judge.evidence.exercised.items() if n != before.get(law)}


class CountingRows(Rows):
    """Hands out the other end first in every second pool that is made."""

    made = 0

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        type(self).made += 1
        if self.made % 2:
            self.pool._free_rows.reverse()


@pytest.mark.parametrize(
    ("adapter_class", "operations", "law"),
    [
        (TurningRows, (ops.AllocRows(4), ops.AllocRows(1)), "X4"),
        (SulkingRows, (ops.FreeRow(OUTSIDE), ops.AllocRows(1)), "X1"),
        (AgingRows, (ops.AllocRows(1), ops.Clear(), ops.AllocRows(1)), "X7"),
        # The last step left out is blamed, whichever came before the difference.
        (SulkingRows, (ops.AllocRows(4), ops.FreeRow(OUTSIDE), ops.AllocRows(1)), "X1"),
        (TurningRows, (ops.FreeRow(OUTSIDE), *map(ops.AllocRows, (4, 1, 3))), "X4"),
        (ShyRows, (ops.ReadRows(), ops.AllocRows(1)), "X8"),
        # A look behind a refusal is not blamed for what the refusal did.
        (SulkingRows, (ops.FreeRow(OUTSIDE), ops.ReadRows(), ops.AllocRows(1)), "X1"),
        (ShyRows, (ops.ReadRows(), ops.FreeRow(OUTSIDE), ops.AllocRows(1)), "X8"),
        # Each of them would do, so that leaving out one of them shows nothing.
        (TouchyRows, (ops.FreeRow(OUTSIDE), ops.ReadRows(), ops.AllocRows(1)), "X8"),
        # A difference before all that was left out is no trace of it: the same program did something else.
        (CountingRows, (ops.AllocRows(1), ops.AllocRows(4)), "X3"),
    ],
)
def test_what_must_change_nothing_does_not_turn_the_order(
    adapter_class: type[Rows], operations: tuple[Operation, ...], law: str
) -> None:
    """X1, X4, X7, X8: not even the order of what is handed out next, after a refusal, a clear or a look."""
    examiner = examine(adapter_class, *operations)
    with pytest.raises(InvariantViolation, match="run again") as caught:
        check_both(examiner, adapter_class)
    assert caught.value.law == law


def test_only_kinds_whose_refusals_change_nothing_have_twins() -> None:
    """X4: a prefix cache may be refused after it did something, as by a pool that fails on purpose."""
    examiner = examine(TurningRows, ops.AllocRows(4), ops.AllocRows(1))
    with pytest.raises(InvariantViolation, match="X4"):
        check_determinism(examiner, lambda: TurningRows("x", ONE_ENTRY))
    examiner.adapter.kind = "prefix"
    check_determinism(examiner, lambda: TurningRows("x", ONE_ENTRY))


def test_only_what_could_show_something_counts() -> None:
    """A program without a refusal, a look, or a clear, proves nothing of either."""
    assert counted(ops.AllocRows(1)) == {}
    assert set(counted(ops.ReadRows(), ops.AllocRows(1))) == {"X8"}
    assert counted(ops.AllocRows(4)) == {"X4": counted(ops.AllocRows(4))["X4"]}
    assert set(counted(ops.FreeRow(OUTSIDE), ops.AllocRows(4), ops.Clear(), ops.AllocRows(1))) == {
        "X1",
        "X4",
        "X7",
    }


def test_a_step_that_names_what_was_cleared_ends_the_comparison() -> None:
    """X7: a new pool never gave it, so nothing can be said."""
    clear_and_reuse = (ops.AllocRows(1), ops.Clear(), ops.AllocRows(1), ops.FreeRow(Span(1, 0, 1)))
    assert counted(*clear_and_reuse) == {}


def test_what_is_not_claimed_is_not_compared() -> None:
    """X1, X4: an adapter without refusals and pool has neither law."""
    examiner = examine(LooseRows, ops.AllocRows(4), ops.AllocRows(1))
    check_idle_steps(examiner, lambda: LooseRows("x", ONE_ENTRY))
    assert set(examiner.judge.evidence.exercised) == {"P1", "X9"}


def examine_blocks(adapter_class: type[Blocks], *operations: Operation) -> Examiner:
    examiner = Examiner(adapter_class("x", dict(Blocks.CONFIGURATIONS[0])), audit=False)
    for operation in operations:
        examiner.do(operation)
    return examiner


def test_a_fault_is_left_out_with_its_step() -> None:
    """X1: else it would strike the step that follows; what raised for a fault did something, and stays."""
    release = ops.ReleaseBlocks((Span(1, 0, 1),))
    refused = ops.RetainBlocks((OUTSIDE,))
    examiner = examine_blocks(
        Blocks, ops.AllocBlocks(2), ops.Fault("callback"), refused, release, ops.AllocBlocks(1)
    )
    check_determinism(examiner, lambda: Blocks("x", dict(Blocks.CONFIGURATIONS[0])))
    assert set(examiner.judge.evidence.exercised) >= {"X1"}
    struck = examine_blocks(Blocks, ops.AllocBlocks(2), ops.Fault("callback"), release, ops.AllocBlocks(1))
    assert struck.history.steps[2].outcome is not None
    assert getattr(struck.history.steps[2].outcome.result, "error", "") == INJECTED
    check_determinism(struck, lambda: Blocks("x", dict(Blocks.CONFIGURATIONS[0])))
    assert "X1" not in struck.judge.evidence.exercised


class AgingBlocks(Blocks):
    """Hands out the other end first, from the first reset on."""

    def do_reset(self, step: int, operation: ops.Reset) -> Done:
        done = super().do_reset(step, operation)
        self.pool._free[:] = self.pool._free[::-1].copy()
        return done


def test_what_was_reset_does_what_is_new() -> None:
    """X7: the same blocks in the same order, although any free one would be right."""
    examiner = examine_blocks(AgingBlocks, ops.AllocBlocks(1), ops.Reset(), ops.AllocBlocks(1))
    with pytest.raises(InvariantViolation, match="X7"):
        check_determinism(examiner, lambda: AgingBlocks("x", dict(Blocks.CONFIGURATIONS[0])))


@pytest.fixture
def history(tiny: str) -> History:
    return run_program(f"{tiny}:TinyRows", ROWS, DIRTY)


def test_the_same_again(history: History, tiny: str) -> None:
    """Nothing differs, and laws were tested."""
    result = rerun_history(history, f"{tiny}:TinyRows")
    assert (result.violation, result.misfit, result.differences) == (None, None, ())
    assert result.history.steps == history.steps
    assert result.exercised["P1"] > 0
    assert result.audited == {}


def test_another_adapter_breaks_the_law(history: History, tiny: str) -> None:
    """P2: the history ends with the step that shows it, whose outcome is not the recorded one."""
    result = rerun_history(history, f"{tiny}:KeepsEntries")
    assert result.violation is not None
    assert result.violation.law == "P2"
    assert len(result.history) == 4
    assert [now.number for _, now in result.differences] == [4]


def test_walks_from_inside_are_counted(history: History) -> None:
    """Our own classes are looked at from inside, too, but not behind what only reads."""
    assert rerun_history(history, "rows").audited["P1"] == 3


def test_another_configuration_can_be_chosen(history: History, tiny: str) -> None:
    """A program may be rerun with another configuration, in which it may hold."""
    result = rerun_history(history, f"{tiny}:TinyRows", {"max_reqs": 1, "max_context_len": 2})
    assert result.history.header.config == {"max_reqs": 1, "max_context_len": 2}
    assert result.violation is None
    assert [now.number for _, now in result.differences] == [1, 2, 3, 4]


def test_a_program_that_was_never_run_has_no_differences(history: History, tiny: str) -> None:
    """Outcomes may be missing."""
    program = History(history.header, [Step(step.number, step.operation) for step in history.steps])
    assert rerun_history(program, f"{tiny}:TinyRows").differences == ()


def test_a_program_that_does_not_fit_is_no_ones_fault(history: History, tiny: str) -> None:
    """It was recorded where two rows were given; here there are none, so nothing can be said of the rest."""
    steps = [Step(1, ops.AllocRows(2), history.steps[0].outcome), Step(5, ops.FreeRow(Span(1, 0, 1)))]
    result = rerun_history(
        History(history.header, steps), f"{tiny}:TinyRows", {"max_reqs": 1, "max_context_len": 4}
    )
    assert result.misfit is not None
    assert result.misfit.startswith("step 5: step 1 gave 0")
    assert result.violation is None


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Step(4, ops.FreeRow(Span(1, 0, 1)))], "step 4: step 1 gave 0"),
        ([Step(1, ops.AllocRows(4), Outcome(NoRoom(), (), {"size": 3, "available_size": 3})),
          Step(2, ops.FreeRow(Span(1, 0, 1)))], "step 2: step 1 gave 0"),
    ],
)  # fmt: skip
def test_a_program_without_sense_is_refused(
    history: History, tiny: str, steps: list[Step], words: str
) -> None:
    """X1: nothing differs from what was recorded, so the program itself is wrong."""
    with pytest.raises(ProgramError, match=words):
        rerun_history(History(history.header, steps), f"{tiny}:TinyRows")


def test_an_adapter_of_another_kind_is_refused(history: History, tiny: str) -> None:
    """X1: the message names both kinds."""
    with pytest.raises(UsageError, match="a program for rows; token-slots is of kind slots"):
        rerun_history(history, "token-slots")
    header = dataclasses.replace(history.header, kind="slots")
    with pytest.raises(UsageError, match="a program for slots"):
        rerun_history(History(header, [Step(1, ops.Merge())]), f"{tiny}:TinyRows")
