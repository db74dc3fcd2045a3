"""What a command examines: adapters, laws, files."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from pymllm.adapters.registry import FAULTY, OWN, PEERS, AdapterEntry
from pymllm.cli.choice import (
    adapter_of_file,
    file_name_of,
    find_adapter_or_refuse,
    find_adapters_or_own,
    given_adapter,
    is_of_registry,
    load_or_refuse,
)
from pymllm.errors import AdapterError, ConversationError
from pymllm.text_file import did_you_mean


def test_a_name_of_the_registry_is_taken_from_the_file() -> None:
    """Ours, peers' and faulty ones."""
    for entry in (*OWN, *PEERS, *FAULTY):
        assert is_of_registry(entry.name)
        assert adapter_of_file("x", entry.name, None) == entry.name


@pytest.mark.parametrize(
    ("named", "way"),
    [
        ("os:path", "Where you trust what it runs, add --adapter os:path."),
        ("pymllm.adapters.own_pools:Rows", "add --adapter pymllm.adapters.own_pools:Rows."),
        ("command:rm -rf x", "add --command 'rm -rf x'."),
        ("command:", "add --command ''."),
        ("a:$(touch x)", "add --adapter 'a:$(touch x)'."),
    ],
)
def test_code_is_not(named: str, way: str) -> None:
    """Unless the user names it, or something else."""
    assert not is_of_registry(named)
    with pytest.raises(click.UsageError) as caught:
        adapter_of_file("x.jsonl", named, None)
    assert str(caught.value).startswith(
        f"x.jsonl: names the adapter {named!r}; from a file only the names of "
    )
    assert str(caught.value).endswith(way)
    assert adapter_of_file("x.jsonl", named, named) == named
    assert adapter_of_file("x.jsonl", named, "rows") == "rows"


def test_a_name_that_there_is_not_is_told_with_the_nearest() -> None:
    """As where the user types it."""
    with pytest.raises(click.UsageError, match=r"no adapter 'radixx'.*did you mean radix"):
        adapter_of_file("x.jsonl", "radixx", None)


def test_one_adapter_is_named_by_one_option() -> None:
    """A command is the name of a program behind its prefix."""
    assert given_adapter(None, None) is None
    assert given_adapter("rows", None) == "rows"
    assert given_adapter(None, "./x y") == "command:./x y"
    with pytest.raises(click.UsageError, match="give one of them"):
        given_adapter("rows", "./x")


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


def test_the_nearest_names_are_asked_for() -> None:
    """Some of them, the nearest first; none where all are far."""
    assert did_you_mean("radxi", ["rows", "radix"]) == " (did you mean radix?)"
    assert (
        did_you_mean("slots", ["swa-slots", "token-slots"], 2) == " (did you mean swa-slots or token-slots?)"
    )
    assert did_you_mean("zzz", ["rows"]) == ""
    assert did_you_mean("rows" * 1000, ["rows"]) == ""


def test_a_missing_package_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: before anything is loaded."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sglang" else find(name))
    with pytest.raises(
        click.UsageError, match=r"sglang-swa needs sglang, .*; tox -e peers-older installs it"
    ):
        find_adapters_or_own(("rows", "sglang-swa"))


def test_a_module_is_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As python -m does; once, and not for names of the registry."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    find_adapter_or_refuse("radix")
    assert sys.path == ["elsewhere"]
    for _ in "ab":
        assert find_adapter_or_refuse("mine:Cache").place == "mine:Cache"
    assert sys.path == [str(tmp_path), "elsewhere"]


def test_a_class_that_is_not_there_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: as a name is that the registry does not have; of its own names each has its class."""
    assert load_or_refuse("hashes").KIND == "hashes"
    with pytest.raises(click.UsageError, match=r"adapter json:Nobody: json has no class 'Nobody'\."):
        load_or_refuse("json:Nobody")
    broken = AdapterEntry("hashes", "json:Nobody", "")
    monkeypatch.setattr("pymllm.cli.choice.find_adapter", lambda name: broken)
    with pytest.raises(AdapterError, match="json has no class"):
        load_or_refuse("hashes")


def test_a_program_that_does_not_speak_is_no_bad_input(tiny_program: Callable[..., str]) -> None:
    """It is there, so its end is a verdict; one that is not there is bad input."""
    with pytest.raises(ConversationError, match="status 3"):
        load_or_refuse(f"command:{tiny_program('hello', 'status-3')}")
    with pytest.raises(click.UsageError, match="cannot be started"):
        load_or_refuse("command:no-such-program-anywhere")


def test_the_current_folder_is_not_for_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Modules are looked for there, where a name has a class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    find_adapter_or_refuse("command:./x")
    assert sys.path == ["elsewhere"]
