"""The class of a law: its text, the kinds that it applies to, and the checks of recorded outcomes.

A law is a function over the model before an operation, the operation, and what was seen of it. Its docstring
is the law's whole text, and pages are printed from it (``python docs/builder/specification.py``): a sentence,
what is demanded, and then four sections under NumPy's underlines, whose names are `SECTIONS`. A check says
what it found and nothing else (`Found`): it names no other law, and `pymllm.oracle.judge` counts and blames.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pymllm.history.claims import are_met
from pymllm.history.operations import KINDS, Operation
from pymllm.oracle.models.expected_cells import SeenCells
from pymllm.oracle.models.kind_model import DONE

SECTIONS = ("Why", "Choices", "Caller", "Engines")
"""Sections of a law's text: the harm without it, allowed choices, the caller's duties, engines today."""

_HEADING = re.compile(r"^(\w+)\n-+\n", flags=re.MULTILINE)

# -- what a check finds ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broken:
    """The finding that a law is broken, by default the check's own law; its truth value is false."""

    what: str
    expected: object
    observed: object
    law: str = ""

    def __bool__(self) -> bool:
        return False


class LeftOut(enum.Enum):
    """The finding of a check on a part that the implementation does not report."""

    LEFT_OUT = enum.auto()


LEFT_OUT = LeftOut.LEFT_OUT

Found = Broken | LeftOut | bool | tuple[str, ...] | None
"""The result of a check: `Broken`; `True` or ids of laws that were tested and kept; or `None` for no test."""


def same(what: str, expected: object, observed: object) -> Found:
    """Compare an observed value with the only value that the model permits."""
    return True if expected == observed else Broken(what, expected, observed)


def demand(truth: object, what: str, expected: object, observed: object) -> Found:
    """Require a relation, where an implementation may choose among several values."""
    return True if truth else Broken(what, expected, observed)


def same_cells(seen: SeenCells) -> Found:
    """Compare the contents of a whole memory with the expected cells, which know the laws at stake."""
    wrong = seen.memory.find_wrong(seen.cells)
    return seen.memory.tested if wrong is None else Broken(*wrong)


Check = Callable[[Any, Any, Any], Found]
"""A function of the model before an operation, the operation, and the outcome as the model read it."""

CheckT = TypeVar("CheckT", bound=Check)


@dataclass(frozen=True, slots=True)
class Asked:
    """The type of result that an operation must have, and the law that any other result breaks.

    - ``answer``: What it must answer with where it was done; ``None`` where a law looks at that itself.
    - ``law``: The law that another answer breaks; of several the first that is claimed.
    - ``sizes``: The law that a wrong size breaks afterwards; by default ``law``.
    - ``is_test``: Whether the right answer is a test of the law by itself.

    Either may depend on what was seen: a function over the model before, the operation, and that.
    """

    answer: type | None
    law: str | Callable[[Any, Any, Any], str]
    sizes: str | Callable[[Any, Any, Any], str] = ""
    is_test: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class KindLaws:
    """The laws of one kind of implementation, in the order in which each operation is judged by them.

    - ``order``: Ids of laws, in which they are asked; the first that is broken is the one that is named. Of
      one that stands there several times the checks of an operation are put one by one, the rest last. Laws
      that do not stand there come last, in the specification's order.
    - ``orders``: Other orders, of operations that need them.
    - ``asked``: What each operation asks for; one that is missing has no answer and no size of its own.
    - ``sizes_law``: The law of sizes that no operation has changed.
    - ``sizes``: Sizes that are another law's than the operation's: that law, by the operation's and the name;
      of several the first that is claimed, and none is tested where it is not.
    - ``is_wrong_from_start``: Whether a size that is wrong after a refusal that is the first operation was
      wrong before it; else it is the refusal's (X1).
    - ``met``: Which coverage goals an operation meets that came to something, told before it is followed.
    - ``counts_all``: Whether a right answer is a test of its law, and right sizes where nothing has changed
      one of X1, X4 and X7; otherwise what is looked at afterwards is.
    """

    order: str
    asked: Mapping[type[Operation], Asked]
    sizes_law: str
    orders: Mapping[type[Operation], str] = field(default_factory=dict)
    sizes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    is_wrong_from_start: bool = True
    met: Mapping[tuple[type[Operation], str], Callable[[Any, Any, Any], Mapping[str, object]]] = field(
        default_factory=dict
    )
    counts_all: bool = True


@dataclass(frozen=True, slots=True)
class TextLaw:
    """A law without checks of operations, such as a law of servers: its id and its text."""

    id: str
    text: str

    @classmethod
    def of(cls, id: str, check: Callable[..., Found]) -> TextLaw:
        """Return the law whose text is the docstring of a check."""
        return cls(id, inspect.cleandoc(check.__doc__ or ""))

    @property
    def sentence(self) -> str:
        """The first line of the law's text, for tables."""
        line = self.text.partition("\n")[0].removesuffix(".")
        return line[0].lower() + line[1:]


TextCheck = Callable[..., Found]
_TextCheck = TypeVar("_TextCheck", bound=TextCheck)


def enter_in(laws: dict[str, TextLaw]) -> Callable[[_TextCheck], _TextCheck]:
    """Return a decorator that adds a check to a table of laws, under the check's name in capitals."""

    def enter(check: _TextCheck) -> _TextCheck:
        id = check.__name__.upper()
        laws[id] = TextLaw.of(id, check)
        return check

    return enter


# -- laws --------------------------------------------------------------------------------------------------


class Way(enum.Enum):
    """A way to check a law; every law has at least two ways."""

    STRUCTURE = "structure"
    """A walk through our own objects (`pymllm.invariants`, the engine's audits)."""
    ORACLE = "oracle"
    """A check of operations and outcomes alone, which works for any implementation."""
    PLANT = "plant"
    """A planted fault that some test must detect."""


@dataclass(frozen=True, slots=True)
class Law:
    """A law of the specification: its id, its text, and its checks.

    Parameters
    ----------
    id : str
        Such as ``"R6"``. It never changes its meaning.
    text : str
        All of it: a sentence, what is demanded, and `SECTIONS`; the docstring of its function.
    page : str
        Of the specification, where the text is printed: a file of ``docs/specification`` without its suffix.
    ways : frozenset of Way
        How it is checked.
    kinds : tuple of str
        Kinds of implementation that it is about.
    needs : frozenset of str
        Capabilities without which it is not claimed; of ``"one|other"`` any is enough.
    is_of_content : bool
        Whether it says nothing of a cache that keeps nothing (``retains`` is false in its configuration).
    is_of_splits : bool
        Whether it says nothing of a cache whose nodes never have several pages, so that none is split
        (``splits`` is false in its configuration).
    is_of_tails : bool
        Whether it says nothing of pages of one token, of which no key has a part, unless misuse is refused.
    is_of_runs : bool
        Whether it is about the counters of a whole run, which no operation tells (`pymllm.oracle.runs`).
    needs_in : mapping of str to frozenset of str
        Further capabilities without which it is not claimed, by kinds; ``engine``: where an engine drives it.
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
    is_of_runs: bool = False
    needs_in: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False)
    checks: list[tuple[type[Operation], str, str, Check]] = field(default_factory=list, compare=False)

    def on(
        self, *operations: type[Operation], fate: str = DONE, kinds: str = ""
    ) -> Callable[[CheckT], CheckT]:
        """Add a check of the outcomes of some operations, for all kinds of the law unless kinds are named."""

        def add(check: CheckT) -> CheckT:
            named = kinds.split() or self.kinds
            self.checks.extend((operation, fate, kind, check) for operation in operations for kind in named)
            return check

        return add

    @property
    def sentence(self) -> str:
        """The law's demand in a few words for tables: the first line of its text."""
        line = self.text.partition("\n")[0].removesuffix(".")
        return line if line[1].isupper() else line[0].lower() + line[1:]

    @property
    def source(self) -> str:
        """Where the text can be read, from the repository's root."""
        return f"docs/specification/{self.page}.md#{self.id.lower()}"

    @property
    def demands(self) -> str:
        """The demands on an implementation, without the sentence: Markdown."""
        return _HEADING.split(self.text)[0].partition("\n")[2].strip()

    @property
    def sections(self) -> dict[str, str]:
        """The text of the law after its first line, by section names in `SECTIONS`, as Markdown."""
        _, *parts = _HEADING.split(self.text)
        return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}

    def is_claimed_by(self, capabilities: Collection[str], kind: str | None = None) -> bool:
        """Tell whether the law applies to an adapter with these capabilities, and perhaps of this kind."""
        return are_met(self.needs_of(kind), capabilities)

    def needs_of(self, kind: str | None) -> frozenset[str]:
        """Return the capabilities that an adapter of a kind needs to be tested by the law."""
        return self.needs | self.needs_in.get(kind or "", frozenset())

    @property
    def about(self) -> str:
        """The kinds of implementation that the law is about, with the capabilities each needs: Markdown."""
        told = []
        for kind in self.kinds:
            needs = self.needs_in.get(kind, frozenset())
            drives = " in an engine" if "engine" in needs else ""
            takes = "".join(f" with `{need}`" for need in sorted(needs - {"engine"}))
            told.append(f"`{kind}`{drives}{takes}".replace("|", "` or `"))
        return ", ".join(told)

    def applies_to(
        self, config: Mapping[str, object], capabilities: Collection[str], kind: str | None = None
    ) -> bool:
        """Tell whether a program can test the law on an adapter with this configuration and these claims."""
        is_empty = self.is_of_content and config.get("retains") is False
        is_whole = self.is_of_splits and config.get("splits") is False
        is_even = (
            self.is_of_tails
            and config.get("page_size") == 1
            and not are_met(("refuses_bad_arguments",), capabilities)
        )
        return self.is_claimed_by(capabilities, kind) and not (is_empty or is_whole or is_even)


def law(
    id: str,
    *operations: type[Operation],
    page: str,
    ways: str,
    kinds: str,
    needs: str = "",
    is_of_content: bool = False,
    is_of_splits: bool = False,
    is_of_tails: bool = False,
    is_of_runs: bool = False,
    needs_in: Mapping[str, str] | None = None,
) -> Callable[[Check], Law]:
    """Return a decorator that makes a law of a function, whose docstring is the law's text.

    ``ways`` are letters of structure, oracle and plant, lists are split at spaces.
    """
    chosen = {"s": Way.STRUCTURE, "o": Way.ORACLE, "p": Way.PLANT}

    def declare(check: Check) -> Law:
        made = Law(
            id,
            inspect.cleandoc(check.__doc__ or ""),
            page,
            frozenset(chosen[way] for way in ways),
            KINDS if kinds == "all" else tuple(kinds.split()),
            frozenset(needs.split()),
            is_of_content,
            is_of_splits,
            is_of_tails,
            is_of_runs,
            {kind: frozenset(each.split()) for kind, each in (needs_in or {}).items()},
        )
        made.on(*operations)(check)
        return made

    return declare
