"""The commands, from the program itself: what each does, its arguments and its options."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator

import click
from sources import ROOT

from pymllm.cli import main
from pymllm.cli.old_spellings import OLD_SPELLINGS

__all__ = ["make_commands_page"]

_HEAD = """\
# Commands

This page has the text of `pymllm COMMAND --help` for every command. An exit status means the same for all
commands:

{statuses}

What was a mode or a group of options is a verb or a setting now. In this release, an old spelling is answered
with the new one:

{old}

"""


def make_commands_page() -> str:
    """Return the page: a section for each command, and one for each command of a command."""
    context = click.Context(main, info_name="pymllm")
    parts = [_section(command, context) for command in _commands_of(main, context)]
    return _HEAD.format(statuses=_statuses(), old=_old_spellings()) + "\n".join(parts)


def _commands_of(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command


def _section(command: click.Command, parent: click.Context, level: int = 2) -> str:
    context = click.Context(command, info_name=command.name, parent=parent, max_content_width=100)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    page = ROOT / "docs" / f"{command.name}.md"
    is_named = f"docs/{page.name}" in (command.help or "")
    more = f"[More about it]({page.name}).\n" if page.exists() and level == 2 and not is_named else ""
    parts = [
        f"{'#' * level} pymllm {context.command_path.removeprefix('pymllm ')}\n",
        f"```console\n$ {usage}\n```\n",
        _text(inspect.cleandoc(command.help or "")),
        more,
        *(_option(one, context) for one in command.params if isinstance(one, click.Option)),
    ]
    if isinstance(command, click.Group):
        parts += [_section(one, context, level + 1) for one in _commands_of(command, context)]
    return "\n".join(part for part in parts if part)


def _text(help_text: str) -> str:
    """Turn click's paragraphs into Markdown; paragraphs that click never wraps become blocks of code."""
    blocks = []
    for block in help_text.split("\n\n"):
        is_as_it_is = block.startswith("\b\n")
        lines = block.removeprefix("\b\n").splitlines()
        blocks.append("```text\n" + "\n".join(lines) + "\n```" if is_as_it_is else _inline(" ".join(lines)))
    return "\n\n".join(blocks) + "\n"


def _option(option: click.Option, context: click.Context) -> str:
    names, text = option.get_help_record(context) or ("", "")
    about, bracket, extra = text.rpartition("  [")
    meaning = f"{_inline(about)} *{_inline(_limits(extra.removesuffix(']')))}*" if bracket else _inline(text)
    return f"`{names}`\n:   {meaning}\n"


def _limits(extra: str) -> str:
    """Say a range and a default in words."""
    extra = re.sub(
        r"(\d+)(?:\.0)?<=?x<=(\d+)(?:\.0)?", lambda found: f"{found[1]} to {int(found[2]):,}", extra
    )
    return re.sub(r"default: \((.*)\)", r"default: \1", extra)


def _inline(text: str) -> str:
    """Escape a help text so that Markdown reads only its backticks; names of pages become links."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    plain = re.sub(r"([*_\[\]])", r"\\\1", html.escape(text, quote=False))
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", plain)


def _old_spellings() -> str:
    """Return the table of old spellings, those with the same new one together."""
    rows: dict[str, list[str]] = {}
    for old, new in OLD_SPELLINGS:
        rows.setdefault(new, []).append(f"`{old}`")
    lines = [f"| {', '.join(olds)} | `{new}` |" for new, olds in rows.items()]
    return "\n".join(["| before | now |", "| --- | --- |", *lines])


def _statuses() -> str:
    """Read the table of statuses out of the program's docstring."""
    text = (ROOT / "src" / "pymllm" / "cli" / "program.py").read_text(encoding="utf-8")
    return "\n".join(line for line in text.split('"""')[1].splitlines() if line.startswith("|"))
