"""Options that say how a trace is read, for every command that reads one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.replay.plan import NESTED_TIMES, TRACE_FORMATS

if TYPE_CHECKING:
    from pymllm.traces.records import ReadOptions

READING = ("format", "block_tokens", "tokenizer", "nested_times", "conversations")
"""The parameters of `trace_options`."""

_OPTIONS = (
    click.option(
        "--format",
        "format",
        type=click.Choice(("auto", *TRACE_FORMATS)),
        default="auto",
        help="How the trace is written; auto: told by its first line.",
    ),
    click.option(
        "--block-tokens",
        type=options.whole(1, 2**31 - 1),
        show_default="what the file says, else 16 for bailian and text, 512 for mooncake and dynamo",
        help="Tokens per block of a trace's hash_ids.",
    ),
    click.option(
        "--tokenizer",
        metavar="MODULE:FUNCTION",
        help="For lines of text: what makes tokens of it. It is imported, and so runs its code.",
    ),
    click.option(
        "--nested-times",
        type=click.Choice(NESTED_TIMES),
        default="auto",
        help="For weka: whether nested agents count time from their own or the conversation's beginning.",
    ),
    click.option(
        "--conversations",
        type=options.whole(1, 65_536),
        default=16,
        help="For weka: how many conversations run at the same time.",
    ),
)


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `READING`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_policies(names: Sequence[str], tokenizer: str | None) -> tuple[str, ...]:
    """Return eviction policies as they are called here; one's own may lie in the working folder.

    Names have hyphens; the one that a library spells with an underscore has that in JSON.
    """
    policies = tuple(name if ":" in name else name.replace("_", "-") for name in names)
    for name in (*policies, tokenizer or ""):
        options.add_folder_of(name)
    return policies


def read_options(
    block_tokens: int | None, tokenizer: str | None, nested_times: str, conversations: int
) -> ReadOptions:
    """Return what those options come to; a tokenizer that there is not is refused."""
    from pymllm.traces.records import ReadOptions  # this needs NumPy; --help does without
    from pymllm.traces.text import find_tokenizer

    encode = None
    if tokenizer is not None:
        options.add_folder_of(tokenizer)
        with options.refusing():
            encode = find_tokenizer(tokenizer)
    return ReadOptions(block_tokens, encode, nested_times, conversations)
