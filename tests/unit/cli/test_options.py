"""Options that several commands have, and their kinds of values."""

from __future__ import annotations

import os
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from pymllm.cli.options import (
    CONFIG,
    DEFAULT_TIMEOUT,
    MILLISECONDS,
    TOKENS,
    Amount,
    Whole,
    command_option,
    count_processes,
    jobs_option,
    json_option,
    names_of,
    progress_option,
    timeout_option,
)
from pymllm.cli.program import main


# from test_options
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
    [["--jobs", "0"], ["--progress", "maybe"], ["--timeout", "-1"], ["--timeout", "nan"], ["--json", "yes"]],
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


# from test_values
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1),
        ("200000", 200_000),
        ("1_000_000", 1_000_000),
        ("1,000,000", 1_000_000),
        ("200k", 200_000),
        (" 1M ", 1_000_000),
        ("1.5m", 1_500_000),
        ("1Mi", 1 << 20),
        ("64ki", 1 << 16),
        ("0.5Ki", 512),
        ("2G", 2_000_000_000),
        ("2147483647", 2**31 - 1),
    ],
)
def test_token_counts_are_read_as_written(text: str, tokens: int) -> None:
    """k, M and G are decimal, Ki, Mi and Gi binary; case does not matter."""
    assert TOKENS.convert(text, None, None) == tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no number of tokens in 1..2147483647; write 200000, 200k"),
        ("9" * 5000, "999...' is no number of tokens in 1..2147483647"),
        ("-1", "'-1' is no number"),
        ("12q", "'12q' is no number"),
        ("1__0", "'1__0' is no number"),
        ("1e6", "'1e6' is no number"),
        ("٣", "is no number"),
        ("1.5", "'1.5' is 1.5 tokens, not a whole number"),
        ("0", "'0' is 0 tokens, not in 1..2147483647"),
        ("2Gi", "'2Gi' is 2147483648 tokens, not in 1..2147483647"),
    ],
)
def test_other_token_counts_are_refused(text: str, words: str) -> None:
    """X1: the message names the value and the bound."""
    with pytest.raises(click.BadParameter) as caught:
        TOKENS.convert(text, None, None)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("12.5", 12.5), ("0.01", 0.01), ("86400000", 86_400_000.0)]
)
def test_milliseconds_reach_from_a_hundredth_to_a_day(text: str, milliseconds: float) -> None:
    """Both bounds are inside."""
    assert MILLISECONDS.convert(text, None, None) == milliseconds


@pytest.mark.parametrize("text", ["0", "0.009", "-1", "nan", "inf", "soon", "86400001", "1e300", "1e308"])
def test_other_milliseconds_are_refused(text: str) -> None:
    """X1: a virtual clock that stands still never ends, and one that adds up to infinity is no JSON."""
    with pytest.raises(
        click.BadParameter, match=rf"'{text}' is no number of milliseconds in 0\.01\.\.86400000"
    ):
        MILLISECONDS.convert(text, None, None)


@pytest.mark.parametrize("text", ["nan", "NaN", "-0.1", "10.1", "inf", "much", "1e5000", "9" * 5000])
def test_an_amount_is_a_number_within_its_bounds(text: str) -> None:
    """X1: no bound is above or below what is no number; what was typed is said, and no more than is read."""
    assert Amount(0, 10).convert("2.5", None, None) == 2.5
    with pytest.raises(click.BadParameter) as caught:
        Amount(0, 10).convert(text, None, None)
    assert text[:57] in caught.value.message
    assert len(caught.value.message) < 150


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "1e5000", "x", "-1", "11", "9" * 5000, "٣"])
def test_a_whole_number_is_within_its_bounds(text: str) -> None:
    """X1: the value, cut, and both bounds; Python's words about digits are none of ours."""
    assert [Whole(0, 10).convert(good, None, None) for good in ("0", " 10 ", "+7", "1_0", 3)] == [
        0,
        10,
        7,
        10,
        3,
    ]
    with pytest.raises(click.BadParameter) as caught:
        Whole(0, 10).convert(text, None, None)
    shown = text if len(text) < 60 else f"{text[:57]}..."
    is_number = text.lstrip("-").isdecimal() and text.isascii()
    assert caught.value.message == (
        f"{shown} is not in the range 0<=x<=10." if is_number else f"{shown!r} is no whole number in 0..10."
    )


def test_a_configuration_is_a_json_object() -> None:
    """Integers, strings, booleans and null, by name; one that was read stays."""
    config = CONFIG.convert('{"page_size": 4, "store": "host", "sorted": true, "window": null}', None, None)
    assert config == {"page_size": 4, "store": "host", "sorted": True, "window": None}
    assert CONFIG.convert(config, None, None) is config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("page_size=4", "'page_size=4': not JSON: Expecting value at column 1"),
        ("4", "it is 4; it must be an object"),
        ("[" * 50_000, r"'\[{56,57}\.\.\.: more than 64 lists and objects stand inside each other"),
        (f'{{"a": {"9" * 5000}}}', "does not fit into 128 bits"),
        ('{"page_size": [4]}', r"page_size is \[4\]; it must be an integer, a string, true"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, words: str) -> None:
    """X1: the message names the value and what it must be."""
    with pytest.raises(click.BadParameter, match=words):
        CONFIG.convert(text, None, None)


# from test_command_option
def test_a_command_is_an_adapter_by_its_name() -> None:
    """After those that have one already."""
    assert names_of(["radix"], ["./a 1", "b"]) == ("radix", "command:./a 1", "command:b")


def test_one_or_several_can_be_given() -> None:
    """As the command takes."""

    @click.command()
    @command_option(multiple=True)
    def several(commands: tuple[str, ...]) -> None:
        click.echo(commands)

    @click.command()
    @command_option(multiple=False)
    def one(command: str | None) -> None:
        click.echo(command)

    def run(command: click.Command, *arguments: str) -> str:
        return CliRunner().invoke(command, arguments, catch_exceptions=False).output

    assert run(several, "--command", "a b", "--command", "c") == "('a b', 'c')\n"
    assert run(one, "--command", "a b") == "a b\n"
    assert "docs/protocol.md" in run(one, "--help")


def test_verify_takes_programs_beside_adapters(tiny_program: Callable[..., str]) -> None:
    """X1: one that is not there is one line and status 2."""
    from pymllm.cli import main

    arguments = [
        "verify",
        "--adapter",
        "hashes",
        "--command",
        "no-such-program",
        "--jobs",
        "1",
        "--examples",
        "1",
    ]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "'no-such-program' cannot be started: No such file or directory" in result.stderr
