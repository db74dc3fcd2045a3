"""The program ``pymllm``: its name, its version, and the exit status of every command.

| status | meaning                                                                             |
| -----: | ----------------------------------------------------------------------------------- |
|      0 | done, and every law that was checked holds                                          |
|      1 | a law is broken (`pymllm.errors.InvariantViolation`); the command says which        |
|      2 | bad input or usage: one line on standard error says what is wrong and what would do; |
|        | or all went well, but a file that was asked for beside the result was not written   |
|      3 | unknown: a law that applies was not tested, or an adapter could not be examined     |
|      4 | sick: `pymllm doctor` found something wrong with this machine                       |
|     70 | a bug of ours: nobody foresaw the error, and the traceback is the report            |
|    130 | interrupted from the keyboard                                                       |
|    141 | whoever read the output closed it                                                   |
|    143 | asked to end (SIGTERM)                                                              |

The status holds where nobody can be told: without a standard error, or with a full one, the words are lost. A
standard output that is closed from the start is refused at once, before anything is computed for it.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import click

from pymllm import __version__
from pymllm.cli.old_spellings import new_spelling
from pymllm.cli.output import UNWRITTEN, WORDS, complain, let_go_of, say, tell_error
from pymllm.errors import AdapterError, ConversationError, TraceError
from pymllm.signals import Terminated, terminable
from pymllm.text_file import did_you_mean
from pymllm.torch_extra import PACKAGES, why_no_torch

_USAGE, _UNKNOWN, _BUG, _INTERRUPTED, _PIPE_CLOSED, _TERMINATED = 2, 3, 70, 130, 141, 143

_FIRST_FREE = 3  # after standard input, output and error


def status_of(interruption: KeyboardInterrupt | click.Abort) -> int:
    """Return the exit status of a command after an interrupt or SIGTERM."""
    is_terminated = Terminated in (type(interruption), type(interruption.__cause__))
    return _TERMINATED if is_terminated else _INTERRUPTED


class Program(click.Group):
    """The group of all commands, which return their own exit status or ``None`` for 0."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.sections: dict[str, list[str]] = {}

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command and exit with its status; without ``standalone_mode``, return or raise instead."""
        run: Any = super().main
        run = partial(run, *args, standalone_mode=False, **extra)
        return run() if not standalone_mode else sys.exit(self._status(run))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the whole program, which stores the typed words."""
        words = (info_name or "pymllm", *args)
        self._refuse_old_spelling(args)
        context = super().make_context(info_name, args, parent, **extra)
        context.meta[WORDS] = words
        return context

    def _refuse_old_spelling(self, args: Sequence[str]) -> None:
        command = self.commands.get(args[0]) if args else None
        found = new_spelling(args, list(command.commands) if isinstance(command, click.Group) else [])
        if found is not None:
            old, new = found
            raise click.UsageError(f"pymllm {old} is an old spelling; type {new}.")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under the headings that they were added with."""
        names = [name for names in self.sections.values() for name in names]
        width = max(map(len, names), default=0)
        for title, names in self.sections.items():
            with formatter.section(title):
                limit = formatter.width - 6 - width
                rows = [(f"{name:{width}}", self.commands[name].get_short_help_str(limit)) for name in names]
                formatter.write_dl(rows)

    def add_section(self, title: str, commands: Iterable[click.Command]) -> None:
        """Add commands for one task."""
        for command in commands:
            self.add_command(command)
            self.sections.setdefault(title, []).append(str(command.name))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and turn an interrupt into click's own without click's empty line.

        What printed its result and could not write a file that was asked for did not do what was asked.
        """
        try:
            status = super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            raise click.Abort from interruption
        return _USAGE if not status and ctx.meta.get(UNWRITTEN) else status

    def _status(self, run: Callable[[], int | None]) -> int:
        """Run a command, report any error that ended it, and return the exit status."""
        _occupy_standard_descriptors()
        if sys.stdout is None:
            complain("standard output is closed, so no result can be written; redirect it to a file")
            return _USAGE
        try:
            with terminable():
                status = run()
        except (click.ClickException, TraceError) as error:
            complain(_one_line(error))
            status = _USAGE
        except AdapterError as error:
            complain(" ".join(str(error).split()) + _last_lines_of(error))
            status = _UNKNOWN
        except (click.Abort, KeyboardInterrupt) as error:
            status = status_of(error)
            complain("terminated" if status == _TERMINATED else "interrupted")
        except SystemExit:
            # Outside of its standalone mode click itself exits for one reason only, a closed pipe.
            status = _PIPE_CLOSED
        except OSError as error:
            let_go_of(sys.stdout)
            complain(f"cannot write the result: {error.strerror or error}")
            status = _USAGE
        except Exception as error:
            reason = why_no_torch()
            if reason is not None and isinstance(error, ModuleNotFoundError) and error.name in PACKAGES:
                complain(f"this command {reason}")
                status = _USAGE
            else:
                tell_error(traceback.format_exc())
                status = _BUG
        return status or 0


def _occupy_standard_descriptors() -> None:
    """Open each closed standard descriptor, so that no file gets the number of standard error."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < _FIRST_FREE:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _one_line(error: click.ClickException | TraceError) -> str:
    if isinstance(error, TraceError):
        return str(error)
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f" (see {error.ctx.command_path} --help)"
        extra = re.match(r"Got unexpected extra argument \((\w\S*:\w+)\)", error.message)
        if extra and any("--adapter" in param.opts for param in error.ctx.command.params):
            hint = f" (did you mean --adapter {extra[1]}?)" + hint
    if isinstance(error, click.BadParameter) and error.param and isinstance(error.param.type, click.Choice):
        asked = re.match("'(.*?)' is not one of", error.message)
        hint = did_you_mean(asked[1], map(str, error.param.type.choices)) + hint if asked else hint
    return " ".join(error.format_message().split()) + hint


def _last_lines_of(error: AdapterError) -> str:
    """Write the last lines of an ended conversation to a file, and report its name."""
    if not isinstance(error, ConversationError):
        return ""
    from pymllm.cli.options import file_name_of
    from pymllm.cli.store import save_text

    path = save_text(error.conversation, Path("runs") / f"{file_name_of(error.adapter)}-conversation.txt")
    return "" if path is None else f"; the last lines of the conversation are in {path}"


def find_clash() -> str | None:
    """Return a line about another installed project named ``pymllm``, or ``None``.

    The package index has one, whose documented interface ours is. pip knows one name once: installing either
    removes the other, and what is left of ours runs without its plug-ins. Cost: a millisecond, two files.
    """
    try:
        installed = distribution("pymllm")
    except PackageNotFoundError:  # run from its source tree
        return None
    if any(point.group == "pymllm.adapters" for point in installed.entry_points):
        return None
    here = Path(__file__).parent.parent
    return (
        f"the distribution pymllm {installed.version} that is installed here is another project's of the "
        f"same name, and this program, from {here}, runs without its plug-ins; install each in an "
        "environment of its own (docs/index.md)"
    )


SETTINGS = {"max_content_width": 100, "show_default": True}


@click.group(cls=Program, invoke_without_command=True, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="pymllm", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Check that the cache memory of an LLM server is right, and measure how fast it is."""
    if clash := find_clash():
        complain(clash)
    if context.invoked_subcommand is None:
        say(context.get_help())
