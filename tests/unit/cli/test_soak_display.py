"""What a soak shows while it runs."""

from __future__ import annotations

import io
import sys
import time

import pytest
from rich.console import Console

from pymllm.cli.soak_display import describe_drifts, describe_progress, progress_table, soak_display
from pymllm.conformance.soak.drift import Drift, DriftVerdict
from pymllm.conformance.soak.totals import Totals
from tests.unit.conformance.soak.test_records import HEADER, RECORD


@pytest.fixture
def totals() -> Totals:
    """One run, which failed."""
    made = Totals([HEADER])
    made.add(RECORD)
    return made


def test_a_line_has_everything(totals: Totals) -> None:
    """Time, operations, rate, laws, situations, memory, failures."""
    line = describe_progress(totals, 3725.0)
    for part in ("1:02:05", "101 operations", "0/s", "1 laws", "situations 0 of ", "0.0 MiB", "1 failures"):
        assert part in line
    assert "  -  " in describe_progress(totals, 0.0)


def drift(measure: str, verdict: DriftVerdict) -> Drift:
    """Make a verdict."""
    return Drift(measure, "bytes", None, None, None, 1.0, 9, 1, verdict)


def test_a_line_says_how_memory_goes(totals: Totals) -> None:
    """Measure by measure where they differ, and once where they do not."""
    flat = [drift(name, DriftVerdict.FLAT) for name in ("blocks", "malloc")]
    assert describe_drifts(flat) == "flat"
    words = describe_drifts([*flat, drift("uss", DriftVerdict.GROWS)])
    assert words == "blocks flat, malloc flat, uss grows"
    assert f"memory 0.0 MiB ({words})  1 failures" in describe_progress(totals, 1.0, words)


def test_the_table_has_a_row_for_each_adapter(totals: Totals) -> None:
    """With laws and situations out of those that there are."""
    console = Console(file=io.StringIO(), width=140)
    with console.capture() as captured:
        console.print(progress_table(totals, 1.0))
    row = next(line for line in captured.get().splitlines() if line.startswith("rows"))
    assert row.split()[:4] == ["rows", "1", "101", "81"]


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table_now_and_then(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread draws, and not every run does."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with soak_display("auto") as show:
        assert show is not None
        show(totals)
        assert "rows" not in terminal.getvalue()
        now[0] = 1.0
        show(totals)
        assert "rows" in terminal.getvalue()


def test_elsewhere_there_are_lines_for_whoever_asks(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    """One every ten seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with soak_display("on") as show:
        assert show is not None
        for at in (1.0, 11.0, 12.0, 22.0):
            now[0] = at
            show(totals)
    assert [line.split()[0] for line in pipe.getvalue().splitlines()] == ["0:00:11", "0:00:22"]


def test_nothing_is_shown_where_nothing_is_wanted_or_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed standard error stays closed."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for mode in ("off", "auto"):
        with soak_display(mode) as show:
            assert show is None
    monkeypatch.setattr(sys, "stderr", None)
    with soak_display("on") as show:
        assert show is None
