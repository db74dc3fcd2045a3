"""docs/protocol.md: its conversation is the one that is spoken, and its tables are those of the code."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from pymllm import __version__
from pymllm.adapters.base import CAPABILITIES
from pymllm.adapters.process.adapter import ProcessAdapter
from pymllm.adapters.process.channel import KEPT_LINES
from pymllm.adapters.process.messages import LINE_LIMIT, protocol_schema
from pymllm.adapters.registry import make_adapter
from pymllm.history.operations import (
    KINDS,
    Alloc,
    Evict,
    Hash,
    Insert,
    Key,
    Lock,
    Match,
    Operation,
    Span,
    Unlock,
)
from pymllm.oracle.laws import laws_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
PROGRAM: list[Operation] = [
    Alloc(4),
    Insert(Key((7, 8, 9, 10, 11), "a"), (Span(1, 0, 4), Span(0, 0, 1))),
    Match(Key((7, 8, 9, 10, 12), "a")),
    Lock(3),
    Evict(4),
    Unlock(4),
    Evict(1),
    Hash(3),
]


def test_the_conversation_of_the_page_is_the_one_that_is_spoken() -> None:
    """With the Python example, line by line."""
    command = shlex.join([sys.executable, "-S", str(ROOT / "examples" / "protocol" / "page_cache.py")])
    config = {"page_size": 2, "window": None, "pool": "token", "slots": 6, "swa_slots": 0}
    # A bye of its own, which ends the conversation and not the program's life on a shelf.
    adapter = make_adapter(f"command:{command} a-conversation-of-its-own", dict(config))
    assert isinstance(adapter, ProcessAdapter)
    for step, operation in enumerate(PROGRAM, 1):
        adapter.apply(step, operation)
    conversation = adapter.conversation
    assert conversation.finish() == 0
    (shown,) = re.findall(r"^```\n(> .*?)```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert conversation.transcript.text() == re.sub(r'"pymllm [\d.]+"', f'"pymllm {__version__}"', shown)


def test_the_page_has_every_message() -> None:
    """The table of messages names every message to a program, and the page names every answer."""
    rows = re.findall(r"^\| `(\w+)`(?:: [^|]*)? \| (?:`(\w+)`[^|]*)?\|", PAGE, flags=re.MULTILINE)
    said = {name.removeprefix("to-program-") for name in protocol_schema()["$defs"] if name.startswith("to-")}
    answered = {name.removeprefix("from-program-") for name in protocol_schema()["$defs"]} - {
        f"to-program-{word}" for word in said
    }
    table = PAGE.split("## Messages")[1].split("\n\n")[1]
    assert {row[0] for row in rows if f"| `{row[0]}`" in table} >= said
    assert all(f"`{word}`" in PAGE or f'"{word}"' in PAGE for word in answered)


def test_the_numbers_and_kinds_of_the_page_are_those_of_the_code() -> None:
    """Bytes of a line, lines that are kept, what a program can be."""
    assert f"at most {LINE_LIMIT:,} bytes" in PAGE
    assert f"The last {KEPT_LINES} lines" in PAGE
    assert all(f"`{kind}`" in PAGE for kind in KINDS)


def test_the_claims_of_the_page_are_those_that_laws_of_a_prefix_cache_need() -> None:
    """Each capability is a word of the code, and each word that a law needs has its row, with the law."""
    table = PAGE.split("## Capabilities")[1].split("\n\n")[2]
    rows = [line.split("|")[1:4] for line in table.splitlines()[2:]]
    shown = {word: row for row in rows for word in re.findall(r"`(\w+)`", row[0])}
    assert shown.keys() <= CAPABILITIES.keys()
    for law in laws_of("prefix"):
        needed = {word for need in law.needs_of("prefix") for word in need.split("|")}
        assert needed <= shown.keys()
        laws = " ".join(shown[word][2] for word in needed)
        assert not needed or _names(laws, law.id), law.id


def _names(laws: str, law: str) -> bool:
    """Tell whether a list such as ``A1 to A3, X4`` has a law."""
    spans = re.findall(r"([A-Z])(\d+)(?: to [A-Z](\d+))?", laws)
    number = int(law[1:])
    return any(law[0] == letter and int(low) <= number <= int(high or low) for letter, low, high in spans)
