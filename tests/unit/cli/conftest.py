"""A report with everything in it that can come out of a verification."""

from __future__ import annotations

import pytest

from pymllm.documents.searches import LawRow
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import AllocRows, Clear
from pymllm.history.outcomes import Done, Outcome, Slots
from pymllm.machines.adapter_calls import EndedConversation
from pymllm.oracle.laws import find_law
from pymllm.oracle.verdicts import Verdict
from pymllm.search.results import AdapterResult, MachineResult, VerifyReport, law_row
from pymllm.search.search import Crash
from pymllm.search.shrinker import Finding

SAID = EndedConversation("hung", "> hello\n")


def law(id: str, verdict: Verdict, exercised: int = 0, audited: int = 0) -> LawRow:
    return law_row(find_law(id), verdict, exercised, audited)


def finding(law: str, steps: int, *, is_rerun: bool = True, is_judged: bool = True) -> Finding:
    history = History(
        Header("my.rows:Rows", "rows", {"max_reqs": 3}, seed=41),
        [
            Step(1, AllocRows(1), Outcome(Slots((1,)))),
            *(Step(number, Clear(), Outcome(Done())) for number in range(2, steps + 1)),
        ],
    )
    violation = InvariantViolation(law, "row 1\nposition 3", expected="0", observed="7\x1b")
    return Finding(violation, history, is_rerun, is_judged)


@pytest.fixture
def report() -> VerifyReport:
    """Three adapters: one breaks two laws, one holds, one could not be examined."""
    broken = AdapterResult(
        "my.rows:Rows",
        "rows",
        (Crash("it stumbled\nover its feet", History(Header("my.rows:Rows", "rows"), [Step(1, Clear())])),),
        (
            law("P1", Verdict.HOLDS, 1200, 30),
            law("P2", Verdict.VIOLATED, 1),
            law("P3", Verdict.VIOLATED, 2),
            law("X1", Verdict.NOT_CLAIMED),
        ),
        (
            MachineResult(
                "RowMachine",
                2,
                37,
                1000,
                0.5,
                {"a row is freed twice": 4, "row 0 is freed": 1},
                frozenset({"a row is freed twice", "a row outside is freed"}),
            ),
        ),
        (finding("P2", 2), finding("P3", 5, is_rerun=False, is_judged=False)),
    )
    fine = AdapterResult(
        "rows",
        "rows",
        (),
        (law("P1", Verdict.HOLDS, 34, 12), law("P2", Verdict.HOLDS, 3), law("E5", Verdict.UNKNOWN)),
        (MachineResult("RowMachine", 1, 3, 10, 0.0, {}, frozenset({"a row is freed twice"})),),
        (),
    )
    gone = AdapterResult("gone:Cache", None, (Crash("cannot import gone", None, SAID),), (), (), ())
    versions = {"pymllm": "0.1", "python": "3.11"}
    return VerifyReport("ci", 41, None, 2, 40, versions, (broken, fine, gone), 12.34)
