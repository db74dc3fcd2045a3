"""Names of adapters as parts of names of files."""

from __future__ import annotations

from pymllm.cli.file_names import file_name_of


def test_a_name_keeps_what_a_file_may_be_called() -> None:
    """No folder, no space, no quote."""
    assert file_name_of("radix-window") == "radix-window"
    assert file_name_of("my.rows:Rows") == "my.rows-Rows"
    assert file_name_of("command:./a 'b c' --x=1") == "command-.-a-b-c---x-1"


def test_long_names_are_cut_and_stay_apart() -> None:
    """A file's name has an end; two commands may differ in their last word."""
    one, other = (file_name_of(f"command:{'x' * 400} {last}") for last in (1, 2))
    assert one != other
    assert max(len(one), len(other)) < 120
    assert file_name_of(f"{'x' * 400}\udcff") != one
