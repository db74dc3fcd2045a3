"""``--command`` where an adapter is named."""

from __future__ import annotations

from collections.abc import Callable

import click
from click.testing import CliRunner

from pymllm.cli.command_option import command_option, names_of


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
