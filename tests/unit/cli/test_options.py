"""Tests of shared options and arguments: their kinds of values, adapters, laws, files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import adapters
from pymllm.cli import main, options
from pymllm.errors import AdapterError, ConversationError
from pymllm.faults.adapters import FAULTY
from pymllm.text_file import did_you_mean


@click.command()
@options.jobs
@options.json
@options.progress
@options.timeout
def command(jobs: int, as_json: bool, progress: str, timeout: float) -> None:
    """Print what came of the options."""
    click.echo(f"{jobs} {as_json} {progress} {timeout}")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], f"{len(os.sched_getaffinity(0))} False auto 30.0"),
        (["--jobs", "3", "--json", "--progress", "off", "--timeout", "0"], "3 True off 0.0"),
    ],
)
def test_each_option_is_a_parameter_of_the_command(
    arguments: list[str], values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: what is not given has the value that the help tells."""
    monkeypatch.delenv("PYMLLM_PROGRESS", raising=False)
    assert CliRunner().invoke(command, arguments).output.split() == values.split()


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


@pytest.mark.parametrize(
    ("text", "count"),
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
def test_token_counts_are_read_as_written(text: str, count: int) -> None:
    """k, M and G are decimal, Ki, Mi and Gi binary; case does not matter."""
    assert options.tokens(text) == count


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not a number of tokens in 1..2147483647; write 200000, 200k"),
        ("9" * 5000, "999...' is not a number of tokens in 1..2147483647"),
        ("-1", "'-1' is not a number"),
        ("12q", "'12q' is not a number"),
        ("1__0", "'1__0' is not a number"),
        ("1e6", "'1e6' is not a number"),
        ("٣", "is not a number"),
        ("1.5", "'1.5' is 1.5 tokens, not a whole number"),
        ("0", "'0' is 0 tokens, not in 1..2147483647"),
        ("2Gi", "'2Gi' is 2147483648 tokens, not in 1..2147483647"),
    ],
)
def test_other_token_counts_are_refused(text: str, words: str) -> None:
    """X1: the message names the value and the bound."""
    with pytest.raises(click.BadParameter) as caught:
        options.tokens(text)
    assert words in caught.value.message


@pytest.mark.parametrize("text", ["nan", "NaN", "-0.1", "10.1", "inf", "much", "1e5000", "9" * 5000])
def test_an_amount_is_a_number_within_its_bounds(text: str) -> None:
    """X1: no bound is above or below what is no number; what was typed is said, and no more than is read."""
    assert options.Amount(0, 10).convert("2.5", None, None) == 2.5
    with pytest.raises(click.BadParameter) as caught:
        options.Amount(0, 10).convert(text, None, None)
    assert text[:57] in caught.value.message
    assert len(caught.value.message) < 150


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "1e5000", "x", "-1", "11", "9" * 5000, "٣"])
def test_a_whole_number_is_within_its_bounds(text: str) -> None:
    """X1: the value, cut, and both bounds; Python's words about digits are none of ours."""
    assert [options.whole(0, 10)(good) for good in ("0", " 10 ", "+7", "1_0", 3)] == [0, 10, 7, 10, 3]
    with pytest.raises(click.BadParameter) as caught:
        options.whole(0, 10)(text)
    shown = text if len(text) < 60 else f"{text[:57]}..."
    is_number = text.lstrip("-").isdecimal() and text.isascii()
    assert caught.value.message == (
        f"{shown} is not in the range 0<=x<=10."
        if is_number
        else f"{shown!r} is not a whole number in 0..10."
    )


def test_a_configuration_is_a_json_object() -> None:
    """Integers, strings, booleans and null, by name; one that was read stays."""
    config = options.json_object('{"page_size": 4, "store": "host", "sorted": true, "window": null}')
    assert config == {"page_size": 4, "store": "host", "sorted": True, "window": None}
    assert options.json_object(config) is config


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
        options.json_object(text)


def test_a_command_is_an_adapter_by_its_name() -> None:
    """After those that have one already."""
    assert options.names_of(["radix"], ["./a 1", "b"]) == ("radix", "command:./a 1", "command:b")


# -- adapters, laws and files --------------------------------------------------------------------------------


def test_a_name_of_the_registry_is_taken_from_the_file() -> None:
    """Ours, those of plug-ins, and faulty ones."""
    assert set(FAULTY) < set(adapters())
    for entry in adapters():
        assert options.is_of_registry(entry.name)
        assert options.adapter_of_file("x", entry.name, None) == entry.name


@pytest.mark.parametrize(
    ("named", "way"),
    [
        ("os:path", "if you trust it, add --adapter os:path ("),
        ("pymllm.adapters.own_pools:Rows", "add --adapter pymllm.adapters.own_pools:Rows ("),
        ("command:rm -rf x", "add --command 'rm -rf x' ("),
        ("command:", "add --command '' ("),
        ("a:$(touch x)", "add --adapter 'a:$(touch x)' ("),
    ],
)
def test_code_is_not(named: str, way: str) -> None:
    """Unless the user names it, or something else."""
    assert not options.is_of_registry(named)
    with pytest.raises(click.UsageError) as caught:
        options.adapter_of_file("x.jsonl", named, None)
    assert str(caught.value).startswith(
        f"x.jsonl: names the adapter {named!r}, which may run any code; if you trust "
    )
    assert way in str(caught.value)
    assert options.adapter_of_file("x.jsonl", named, named) == named
    assert options.adapter_of_file("x.jsonl", named, "rows") == "rows"


def test_a_name_keeps_what_a_file_may_be_called() -> None:
    """No folder, no space, no quote; long ones are cut and stay apart, as two commands by their last word."""
    one, other = (options.file_name_of(f"command:{'x' * 400} {last}") for last in (1, 2))
    assert one != other
    assert max(len(one), len(other)) < 120
    assert options.file_name_of(f"{'x' * 400}\udcff") != one
    assert options.file_name_of("radix-window") == "radix-window"
    assert options.file_name_of("my.rows:Rows") == "my.rows-Rows"
    assert options.file_name_of("command:./a 'b c' --x=1") == "command-.-a-b-c---x-1"


def test_the_nearest_names_are_asked_for() -> None:
    """Some of them, the nearest first; none where all are far."""
    assert did_you_mean("radxi", ["rows", "radix"]) == " (did you mean radix?)"
    assert (
        did_you_mean("slots", ["swa-slots", "token-slots"], 2) == " (did you mean swa-slots or token-slots?)"
    )
    assert did_you_mean("zzz", ["rows"]) == ""
    assert did_you_mean("rows" * 1000, ["rows"]) == ""


def test_a_missing_package_is_told_with_what_installs_it(plug_in: Callable[[str, str], None]) -> None:
    """X1: before anything is loaded."""
    entry = "AdapterEntry('theirs', 'a:Cache', 'theirs', 'their_cache', install='pip install their-cache')"
    plug_in("their_plugin", f"from pymllm.adapters.entry import AdapterEntry\nADAPTERS = [{entry}]")
    with pytest.raises(click.UsageError, match=r"theirs needs their_cache, .*; pip install their-cache"):
        options.find_adapters_or_own(("rows", "theirs"))


def test_a_module_is_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As python -m does; once, and not for names of the registry, nor for programs."""
    monkeypatch.chdir(tmp_path)
    elsewhere = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", [*elsewhere])
    options.find_adapter_or_refuse("radix")
    options.find_adapter_or_refuse("command:./x")
    assert sys.path == elsewhere
    for _ in "ab":
        assert options.find_adapter_or_refuse("mine:Cache").place == "mine:Cache"
    assert sys.path == [str(tmp_path), *elsewhere]


def test_a_class_that_is_not_there_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: as a name is that the registry does not have; of its own names each has its class."""
    assert options.load_or_refuse("hashes").KIND == "hashes"
    with pytest.raises(click.UsageError, match=r"adapter json:Nobody: json has no class 'Nobody'\."):
        options.load_or_refuse("json:Nobody")
    broken = AdapterEntry("hashes", "json:Nobody", "")
    monkeypatch.setattr("pymllm.cli.options.find_adapter", lambda name: broken)
    with pytest.raises(AdapterError, match="json has no class"):
        options.load_or_refuse("hashes")


def test_a_program_that_does_not_speak_is_no_bad_input(tiny_program: Callable[..., str]) -> None:
    """A program that ends without an answer gets a verdict; a program that cannot start is bad input."""
    with pytest.raises(ConversationError, match="status 3"):
        options.load_or_refuse(f"command:{tiny_program('hello', 'status-3')}")
    with pytest.raises(click.UsageError, match="cannot be started"):
        options.load_or_refuse("command:no-such-program-anywhere")
