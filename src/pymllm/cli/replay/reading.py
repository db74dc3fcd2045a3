"""The options by which commands read traces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pymllm.cli import options
from pymllm.cli.output import complain
from pymllm.replay.plan import NESTED_TIMES, TRACE_FORMATS

if TYPE_CHECKING:
    from pymllm.traces.records import ReadOptions

READING = ("format", "block_tokens", "turns", "lenient")
"""The typed parameters of `trace_options`."""

_SETTINGS: dict[str, dict[str, Callable[[str], Any]]] = {
    "weka": {"nested-times": options.one_of(NESTED_TIMES), "conversations": options.whole(1, 65_536)},
    "applied-compute": {"conversations": options.whole(1, 65_536)},
    "text": {"tokenizer": str},
}
"""The settings that a format's name may carry."""
_SETTINGS["auto"] = {key: read for settings in _SETTINGS.values() for key, read in settings.items()}


def _read_format(context: click.Context, param: click.Parameter, text: str) -> str:
    """Read the format of a trace; the format's settings set parameters of the command."""
    name = options.one_of(("auto", *TRACE_FORMATS))(text.partition(",")[0])
    _, given = options.read_settings(text, _SETTINGS.get(name, {}))
    context.params.update({"tokenizer": None, "nested_times": "auto", "conversations": 16, **given})
    return name


def _read_turns(context: click.Context, param: click.Parameter, deltas: bool | None) -> str:
    """Read the content of later turns in a session."""
    return "ask" if deltas is None else "deltas" if deltas else "cumulative"


_OPTIONS = (
    click.option(
        "--format",
        "format",
        metavar="FORMAT[,KEY=VALUE]...",
        default="auto",
        callback=_read_format,
        shell_complete=lambda context, param, begin: [it for it in TRACE_FORMATS if it.startswith(begin)],
        help=f"Format of the trace: {', '.join(TRACE_FORMATS)}; auto: by its first line. "
        "text,tokenizer=MODULE:FUNCTION names the function that tokenizes text; it is imported, and so runs "
        f"its code. weka,nested-times={'|'.join(NESTED_TIMES)} says whether nested agents count time from "
        "their own or the conversation's beginning; weka,conversations=N, how many conversations run at the "
        "same time, by default 16; of applied-compute, too. auto takes the settings of all.",
    ),
    click.option(
        "--block-tokens",
        type=options.whole(1, 2**31 - 1),
        show_default="what the file says, else 16 for bailian and text, 512 for mooncake and dynamo",
        help="Tokens per block of a trace's hash_ids.",
    ),
    click.option(
        "--deltas/--cumulative",
        "turns",
        default=None,
        callback=_read_turns,
        show_default="whole prompts, and what may be deltas is refused",
        help="For dynamo's sessions: later turns have only their new tokens, or whole prompts.",
    ),
    click.option(
        "--lenient",
        is_flag=True,
        help="Correct contradictions instead of refusing them, and count them: an input_length "
        "that is above or below that of its hash_ids, or missing, and times that go back.",
    ),
)


class _Corrections(logging.Handler):
    """A reporter of a lenient reader's corrections, once per command even if a trace is read twice."""

    def emit(self, record: logging.LogRecord) -> None:
        context, said = click.get_current_context(silent=True), record.getMessage()
        if context is None or said not in (before := context.meta.setdefault(__name__, set())):
            complain(said)
        if context is not None:
            before.add(said)


_READER = logging.getLogger("pymllm.traces")
_READER.addHandler(_Corrections())
_READER.propagate = False


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `READING` to a command, with the parameters that formats' settings set."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_policies(names: Sequence[str], tokenizer: str | None) -> tuple[str, ...]:
    """Return eviction policies by this package's names; others are imported, also from the working folder.

    Names have hyphens; the one that a library spells with an underscore has that in JSON.
    """
    policies = tuple(name if ":" in name else name.replace("_", "-") for name in names)
    for name in (*policies, tokenizer or ""):
        options.add_folder_of(name)
    return policies


def read_options(
    block_tokens: int | None,
    tokenizer: str | None,
    nested_times: str,
    conversations: int,
    turns: str,
    lenient: bool,
) -> ReadOptions:
    """Return the settings from the reading options; refuse an unknown tokenizer."""
    from pymllm.traces.records import ReadOptions  # this needs NumPy; --help does without
    from pymllm.traces.text import find_tokenizer

    encode = None
    if tokenizer is not None:
        options.add_folder_of(tokenizer)
        with options.refusing():
            encode = find_tokenizer(tokenizer)
    return ReadOptions(block_tokens, encode, nested_times, conversations, turns, lenient)
