"""The table of a verification."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.cli.verify_files import SavedFiles
from pymllm.cli.verify_table import make_text, sum_up
from pymllm.conformance.results import VerifyReport

FILES = SavedFiles(
    {("my.rows:Rows", "P2"): "runs/P2.jsonl", ("my.rows:Rows", "P3"): "runs/P3.jsonl"},
    {("my.rows:Rows", 0): "runs/crash.jsonl"},
    {("gone:Cache", 0): "runs/said.txt"},
)


def test_what_somebody_has_to_look_at_comes_first(report: VerifyReport) -> None:
    """Unknown, violated, holds, not claimed; every law once, over all adapters."""
    lines = make_text(report, FILES).splitlines()
    assert lines[:3] == [
        "pymllm 0.1  python 3.11",
        "profile ci: programs of up to 40 acts, seed 41, 2 processes",
        "",
    ]
    table = [(line.split()[0], line.split("  ")[-1].strip()) for line in lines[4:9]]
    assert table == [("E5", "rows"), ("P2", "my.rows:Rows"), ("P3", "my.rows:Rows"), ("P1", "2"), ("X1", "1")]
    assert (
        "P1    rows 1 to max_reqs are handed out, row 0 is padding   holds         1,234      42   2" in lines
    )


def test_invariants_are_listed_by_name(report: VerifyReport) -> None:
    """People ask for them so; only those that are made of laws in the table."""
    assert "slot 0 is never handed out   holds     P1" in make_text(report, FILES)
    assert "windows are valid" not in make_text(report, FILES)
    without = dataclasses.replace(report, adapters=report.adapters[2:])
    assert "invariant" not in make_text(without, FILES)


def test_a_violation_is_facts_and_commands(report: VerifyReport) -> None:
    """Law, expected, observed, where, the file; what was found elsewhere is escaped into its line."""
    text = make_text(report, FILES)
    assert (
        """
P2  VIOLATED by my.rows:Rows: a freed row is zero, and is freed once
    looked at  row 1\\nposition 3
    expected   0
    observed   7\\x1b
    at         step 2, in a program of 2 steps (max_reqs 3)
    file       runs/P2.jsonl
    again      pymllm rerun runs/P2.jsonl --adapter my.rows:Rows
               pymllm judge runs/P2.jsonl
    program
        from pymllm.conformance.program import run_program
        from pymllm.history.operations import AllocRows, Clear

        run_program(
            'my.rows:Rows',
            {'max_reqs': 3},
            [
                AllocRows(1),  # 1: Slots((1,))
                Clear(),  # 2: Done()
            ],
        )
"""
        in text
    )


def test_only_the_smallest_program_of_an_adapter_is_printed(report: VerifyReport) -> None:
    """The others are in their files; one that only its engine shows says so."""
    text = make_text(report, FILES)
    assert text.count("    program\n") == 1
    assert (
        "    file       runs/P3.jsonl\n"
        "    again      pymllm verify --adapter my.rows:Rows --law P3 --seed 41  "
        "(its operations alone, run again, do not break the law)\n"
    ) in text


def test_a_file_that_could_not_be_written_has_no_commands(report: VerifyReport) -> None:
    """The program is printed all the same."""
    text = make_text(report, SavedFiles())
    assert text.count("    file       could not be written\n") == 2
    assert "pymllm rerun" not in text
    assert "pymllm judge" not in text
    assert "could not be examined to the end\n    because    it stumbled\\nover its feet\n\n" in text


def test_problems_say_why(report: VerifyReport) -> None:
    """And where the program is that met them."""
    text = make_text(report, FILES)
    assert "    because    it stumbled\\nover its feet\n    program    runs/crash.jsonl\n" in text
    assert (
        "\ngone:Cache  could not be examined to the end\n    verdict    hung\n"
        "    because    cannot import gone\n    last said  runs/said.txt\n"
    ) in text
    assert "last said" not in make_text(report, SavedFiles())


def test_verbose_has_a_table_for_each_adapter_and_the_machines(report: VerifyReport) -> None:
    """How much was played, and how fast."""
    plain, verbose = (make_text(report, FILES, verbose=verbose) for verbose in (False, True))
    assert "configurations" not in plain
    assert (
        "my.rows:Rows   RowMachine                2         37         37   1,000   0.5 s     2,000"
        in verbose
    )
    assert (
        "rows           RowMachine                1          3          3      10   0.0 s         0"
        in verbose
    )
    count = ["RowMachine", "a", "row", "is", "freed", "twice", "4", "rows"]
    assert [count in [line.split() for line in text.splitlines()] for text in (plain, verbose)] == [
        False,
        True,
    ]
    assert verbose.count("P1    rows 1 to max_reqs are handed out") == 3


def test_situations_are_counted_and_those_at_zero_named(report: VerifyReport) -> None:
    """Each machine once; reached is what no adapter missed."""
    text = make_text(report, FILES)
    assert "situations of the   reached   of\nRowMachine                0    2\n" in text
    names = "a row is freed twice (rows); a row outside is freed (my.rows:Rows)"
    assert f"\nnever reached by the RowMachine: {names}\n" in text
    assert "situations of the" not in make_text(dataclasses.replace(report, adapters=()), FILES)


def test_the_last_line_sums_up(report: VerifyReport) -> None:
    """Laws over all adapters, and how much was done."""
    line = "1 unknown, 2 violated, 1 hold, 1 not claimed; 40 programs, 1,010 steps, 12.3 s"
    assert sum_up(report) == line
    assert make_text(report, FILES).splitlines()[-1] == line


@pytest.mark.parametrize(("is_strict", "words"), [(False, "s; CUT"), (True, "s; failed by --strict: CUT")])
def test_the_last_line_says_when_less_was_played_than_promised(
    report: VerifyReport, is_strict: bool, words: str
) -> None:
    """Each machine says it, too, where all are listed."""
    adapter = report.adapters[0]
    (machine,) = adapter.machines
    cut = dataclasses.replace(adapter, machines=(dataclasses.replace(machine, missing=63),))
    report = dataclasses.replace(report, adapters=(cut, *report.adapters[1:]), is_strict=is_strict)
    assert sum_up(report).endswith(f"{words} SHORT: time was up, played 40 of 103 promised programs")
    text = make_text(report, FILES, verbose=True)
    assert text.splitlines()[-1] == sum_up(report)
    assert "         37        100   1,000   0.5 s" in text


def test_a_number_of_programs_and_a_single_process_are_said(report: VerifyReport) -> None:
    """What the result depends on is in the second line."""
    report = dataclasses.replace(report, examples=1000, jobs=1)
    assert "40 acts, 1,000 per machine and configuration, seed 41, 1 process\n" in make_text(report, FILES)


def test_a_terminal_has_bold_and_a_width(report: VerifyReport) -> None:
    """Tables fold into the columns that there are; without a terminal nothing is cut."""
    narrow = make_text(report, FILES, width=60, styled=True)
    assert "\x1b[1m" in narrow
    assert "\x1b" not in make_text(report, FILES)
    assert len(narrow.splitlines()) > len(make_text(report, FILES).splitlines())


def test_a_name_between_colons_stays_as_it_is(report: VerifyReport) -> None:
    """No adapter is taken for a picture."""
    first = dataclasses.replace(report.adapters[0], name="command:cat:")
    report = dataclasses.replace(report, adapters=(first, *report.adapters[1:]))
    assert "command:cat:" in make_text(report, SavedFiles(), verbose=True)
    assert make_text(report, SavedFiles(), verbose=True).isascii()
