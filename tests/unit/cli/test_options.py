"""The options that several commands have."""

from __future__ import annotations

import os

import click
import pytest
from click.testing import CliRunner

from pymllm.cli.options import (
    DEFAULT_TIMEOUT,
    count_processes,
    jobs_option,
    json_option,
    progress_option,
    timeout_option,
)
from pymllm.cli.program import main


@click.command()
@jobs_option
@json_option
@progress_option
@timeout_option
def command(jobs: int | None, as_json: bool, progress: str, timeout: float) -> None:
    """Print what came of the options."""
    click.echo(f"{jobs} {as_json} {progress} {timeout}")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], f"None False auto {DEFAULT_TIMEOUT}"),
        (["--jobs", "3", "--json", "--progress", "off", "--timeout", "0"], "3 True off 0.0"),
    ],
)
def test_each_option_is_a_parameter_of_the_command(arguments: list[str], values: str) -> None:
    """X1: what is not given has the value that the help tells."""
    assert CliRunner().invoke(command, arguments).output.split() == values.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--jobs", "0"],
        ["--progress", "maybe"],
        ["--timeout", "-1"],
        ["--timeout", "nan"],
        ["--json", "yes"],
    ],
)
def test_a_value_that_means_nothing_is_refused(arguments: list[str]) -> None:
    """X1: no processes, an unknown mode, a time before now or none at all."""
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert "None" not in result.output


def test_processes_are_those_given_or_one_for_each_processor() -> None:
    """X1: whatever is not given is found out, within what this process may use."""
    assert count_processes(5) == 5
    assert count_processes(None) == len(os.sched_getaffinity(0))


def test_an_option_reads_the_same_in_every_command() -> None:
    """One option has one help text, whichever command has it."""
    context = click.Context(main)
    shared = {"--json": 0, "--progress": 0, "--jobs": 0, "--timeout": 0}
    texts: dict[str, set[str]] = {name: set() for name in shared}
    for command_name in main.list_commands(context):
        found = main.get_command(context, command_name)
        assert found is not None
        for option in found.params:
            for name in shared.keys() & set(option.opts):
                assert isinstance(option, click.Option)
                shared[name] += 1
                texts[name].add(option.help or "")
    assert {name: len(helps) for name, helps in texts.items()} == dict.fromkeys(shared, 1)
    assert min(shared.values()) >= 2
