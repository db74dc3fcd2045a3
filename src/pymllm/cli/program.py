"""The program ``pymllm``: its name, its version, and how every command ends.

======  ====================================================================================
status  meaning
======  ====================================================================================
0       done, and every law that was checked holds
1       a law is broken (`pymllm.errors.InvariantViolation`); the command says which
2       bad input or usage: one line on standard error says what is wrong and what would do
130     interrupted from the keyboard
141     whoever read the output closed it
======  ====================================================================================

An error that nobody foresaw keeps its traceback: it is a bug of ours, and the traceback is the report.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from pymllm import __version__
from pymllm.errors import TraceError

__all__ = ["Program", "complain", "main", "say"]

_USAGE, _INTERRUPTED, _PIPE_CLOSED = 2, 130, 141


class Program(click.Group):
    """A group of commands whose statuses are those of this module's table.

    A command returns its own status, or ``None`` for 0.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its status; without ``standalone_mode`` return and raise instead."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, False, **extra)
        except (click.ClickException, TraceError) as error:
            complain(_one_line(error))
            status = _USAGE
        except (click.Abort, KeyboardInterrupt):
            complain("interrupted")
            status = _INTERRUPTED
        except SystemExit:
            # Outside of its standalone mode click itself exits for one reason only, a closed pipe.
            status = _PIPE_CLOSED
        except OSError as error:
            _let_go_of_stdout()
            complain(f"cannot write the result: {error.strerror or error}")
            status = _USAGE
        sys.exit(status or 0)


def _one_line(error: click.ClickException | TraceError) -> str:
    if isinstance(error, TraceError):
        return str(error)
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f" (see {error.ctx.command_path} --help)"
    return " ".join(error.format_message().split()) + hint


def say(text: str) -> None:
    """Print lines on standard output, escaping what its encoding does not have."""
    click.echo(_printable(text.rstrip("\n"), sys.stdout.encoding))


def complain(message: str) -> None:
    """Print one line on standard error."""
    click.echo(_printable(f"pymllm: {message}", sys.stderr.encoding), err=True)


def _printable(text: str, encoding: str | None) -> str:
    """Escape what cannot be printed: names of files may hold anything."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _let_go_of_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter does not fail on it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@click.group(cls=Program, invoke_without_command=True, context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="pymllm", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Know that LLM cache memory is right, and fast."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(_USAGE)
