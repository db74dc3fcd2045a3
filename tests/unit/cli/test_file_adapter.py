"""The adapter that a file is run on."""

from __future__ import annotations

import click
import pytest

from pymllm.adapters.registry import FAULTY, OWN, PEERS
from pymllm.cli.file_adapter import adapter_of_file, given_adapter, is_of_registry


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
