"""One law: what it says, of whom, and how it is checked.

A law's text is written once, beside its check, and pages are printed from it
(``python docs/builder/specification.py``). It reads like a docstring: a sentence, what is demanded, and then
four sections under NumPy's underlines, whose names are `SECTIONS`.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pymllm.history.operations import KINDS

SECTIONS = ("Why", "Choices", "Caller", "Engines")
"""What goes wrong in a server without it; what an implementation may choose; what the caller owes; how the
engines of the field differ today."""

_HEADING = re.compile(r"^(\w+)\n-+\n", flags=re.MULTILINE)


class Way(enum.Enum):
    """How a law is checked; every law in at least two ways."""

    STRUCTURE = "structure"
    """A walk through our own objects (`pymllm.invariants`, the engine's audits)."""
    ORACLE = "oracle"
    """Operations and outcomes alone, for anybody's implementation."""
    PLANT = "plant"
    """A planted fault that some test must notice."""


@dataclass(frozen=True, slots=True)
class Law:
    """One law.

    Parameters
    ----------
    id : str
        Such as ``"R6"``. It never changes its meaning.
    text : str
        All of it: a sentence, what is demanded, and `SECTIONS`.
    page : str
        Of the specification, where the text is printed: a file of ``docs/specification`` without its suffix.
    ways : frozenset of Way
        How it is checked.
    kinds : tuple of str
        Kinds of implementation that it is about.
    needs : frozenset of str
        Capabilities without which it is not claimed.
    is_of_content : bool
        Whether it says nothing of a cache that keeps nothing (``retains`` is false in its configuration).
    is_of_splits : bool
        Whether it says nothing of a cache whose nodes never have several pages, so that none is split
        (``splits`` is false in its configuration).
    is_of_tails : bool
        Whether it says nothing of pages of one token, of which no key has a part, unless misuse is refused.
    driven_kinds : frozenset of str
        Kinds of which it says something only where an engine drives them (capability ``engine``).
    """

    id: str
    text: str
    page: str
    ways: frozenset[Way]
    kinds: tuple[str, ...]
    needs: frozenset[str] = frozenset()
    is_of_content: bool = False
    is_of_splits: bool = False
    is_of_tails: bool = False
    driven_kinds: frozenset[str] = frozenset()

    @property
    def sentence(self) -> str:
        """What it demands in a few words, such as stand in tables: the text's first line."""
        line = self.text.partition("\n")[0].removesuffix(".")
        return line if line[1].isupper() else line[0].lower() + line[1:]

    @property
    def source(self) -> str:
        """Where the text can be read, from the repository's root."""
        return f"docs/specification/{self.page}.md#{self.id.lower()}"

    @property
    def demands(self) -> str:
        """What an implementation must do, without the sentence: Markdown."""
        return _HEADING.split(self.text)[0].partition("\n")[2].strip()

    @property
    def sections(self) -> dict[str, str]:
        """The rest of the text by the names of `SECTIONS`: Markdown."""
        _, *parts = _HEADING.split(self.text)
        return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}

    def is_claimed_by(self, capabilities: Collection[str], kind: str | None = None) -> bool:
        """Tell whether an adapter with these capabilities, and perhaps of this kind, is judged by it."""
        return self.needs_of(kind) <= set(capabilities)

    def needs_of(self, kind: str | None) -> frozenset[str]:
        """Return the capabilities that it takes to test it on adapters of a kind."""
        return self.needs | {"engine"} if kind in self.driven_kinds else self.needs

    def applies_to(
        self, config: Mapping[str, object], capabilities: Collection[str], kind: str | None = None
    ) -> bool:
        """Tell whether a program can test it on an adapter of this configuration with these capabilities."""
        is_empty = self.is_of_content and config.get("retains") is False
        is_whole = self.is_of_splits and config.get("splits") is False
        is_even = self.is_of_tails and config.get("page_size") == 1 and "refusals" not in capabilities
        return self.is_claimed_by(capabilities, kind) and not (is_empty or is_whole or is_even)


def law(
    id: str,
    text: str,
    *,
    page: str,
    ways: str,
    kinds: str,
    needs: str = "",
    is_of_content: bool = False,
    is_of_splits: bool = False,
    is_of_tails: bool = False,
    driven_kinds: str = "",
) -> Law:
    """Make a law of words: ``ways`` are letters of structure, oracle and plant, lists are split at spaces."""
    chosen = {"s": Way.STRUCTURE, "o": Way.ORACLE, "p": Way.PLANT}
    return Law(
        id,
        inspect.cleandoc(text),
        page,
        frozenset(chosen[way] for way in ways),
        KINDS if kinds == "all" else tuple(kinds.split()),
        frozenset(needs.split()),
        is_of_content,
        is_of_splits,
        is_of_tails,
        frozenset(driven_kinds.split()),
    )
