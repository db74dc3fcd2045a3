"""The base class of adapters, which carry out operations on an implementation and report outcomes.

A class of its own per implementation derives from `BaseAdapter` and has one method per operation it
understands, named like the operation (``do_match``, ``do_free_swa``), which takes the operation and
returns a result. The rest is here: numbering, naming slots by step, errors, effects, sizes.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from operator import index
from typing import Any, ClassVar, Protocol

from pymllm.adapters.error_lines import line_of, own_line_of
from pymllm.errors import AdapterError, InvariantViolation, ProgramError
from pymllm.history.asked import find_wrong_limit
from pymllm.history.claims import CAPABILITIES as CAPABILITIES
from pymllm.history.claims import SPECIFICATION
from pymllm.history.codec import name_of
from pymllm.history.files import Config, Header
from pymllm.history.operations import OPERATIONS_OF, Operation, Span
from pymllm.history.outcomes import Effect, Failed, Matched, Outcome, Result, Slots, Unsupported
from pymllm.history.spans import resolve_spans
from pymllm.text_file import cut, shown

_METHODS = {
    kind: {operation: f"do_{name_of(operation)}" for operation in operations}
    for kind, operations in OPERATIONS_OF.items()
}
_GIVES = (Slots, Matched)
_LONGEST = 1000  # characters of an error's words


class Adapter(Protocol):
    """The interface of an adapter of one implementation, with its claims and its limits by operation (X9)."""

    name: str
    kind: str
    config: Config
    capabilities: frozenset[str]
    limits: Mapping[str, str]

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Carry out an operation and report all its observable effects.

        `ProgramError` where it names a step that gave nothing, `AdapterError` where the adapter is at fault.
        """

    def audit(self) -> Sequence[str]:
        """Audit the implementation's internal state if possible; return the ids of the checked laws."""

    def close(self) -> None:
        """Release all resources that outlive the object, such as a process."""


class AdapterClass(Protocol):
    """The interface of an adapter's class, which is called with one of its configurations."""

    KIND: ClassVar[str]
    CONFIGURATIONS: ClassVar[Sequence[Config]]

    def __call__(self, name: str, config: Mapping[str, int | str | bool | None]) -> Adapter:
        """Build an adapter; raise `ValueError` with the key that the configuration lacks."""


class UnsupportedError(Exception):
    """Raised inside an adapter that cannot carry out an operation and has done nothing."""


class BaseAdapter:
    """The base class of adapters that run in this process.

    `KIND` is one of `pymllm.history.operations.KINDS`, `CONFIGURATIONS` what to examine where nobody asks for
    anything else: small pages, tiny pools. `effects` is what the operation in progress has done to pools and
    callbacks so far.
    """

    KIND: ClassVar[str]
    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({},)
    REFUSALS: ClassVar[Mapping[type[Exception], str]] = {}
    """The documented name of each error that the implementation raises under another name for misuse."""
    LIMITS: ClassVar[Mapping[str, str]] = {}
    """Operations that are claimed but limited in some form, by name, each with the reason in words:
    ``{"unlock": "a hold is released as it was taken"}``. What is claimed and answered with `Unsupported` for
    no reason that stands here breaks X9."""

    METHODS: ClassVar[Mapping[str, str]] = {}
    """The names of an object's methods by an adapter's, for messages; empty for a written adapter."""

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        self.name = name
        self.kind = self.KIND
        self.config: Config = dict(config)
        self.capabilities = _read_claims(name, self.claim())
        self.limits = _read_limits(name, self.KIND, self.LIMITS)
        self.effects: list[Effect] = []
        self._given: dict[int, tuple[int, ...]] = {}

    def claim(self) -> Collection[str]:
        """Return the claims of this configuration, names from `CAPABILITIES`, in any collection."""
        return frozenset()

    def sizes(self) -> dict[str, int]:
        """Return every known size and counter by its documented name."""
        return {}

    def audit(self) -> Sequence[str]:
        """Return no checked laws, since the base class cannot inspect an implementation."""
        return ()

    def close(self) -> None:
        """Do nothing; subclasses release resources that outlive the object."""

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Carry out an operation, and turn the implementation's errors into `Failed` results."""
        name = _METHODS[self.kind].get(type(operation))
        method = None if name is None else getattr(self, name, None)
        if method is None:
            return Outcome(Unsupported(name_of(type(operation))), (), _read_sizes(self, self.sizes()))
        self.effects = []
        result: Result
        try:
            result = method(step, operation)
        except (AdapterError, ProgramError, InvariantViolation):
            raise
        except UnsupportedError as reason:
            result = Unsupported(str(reason))
        except Exception as error:
            kinds = type(error).__mro__
            named = next((self.REFUSALS[kind] for kind in kinds if kind in self.REFUSALS), kinds[0].__name__)
            result = Failed(named, (_words_of(error) + self._line_of(error)).lstrip())
        if isinstance(result, _GIVES):
            self._given[step] = result.slots
        return Outcome(result, tuple(self.effects), _read_sizes(self, self.sizes()))

    def _line_of(self, error: Exception) -> str:
        """Return the line of outside code that raised an error; empty if the error is from this package."""
        is_ours = type(self).__module__.startswith("pymllm.")
        return f" ({line_of(error)})" if not is_ours and own_line_of(error) else ""

    def number(self, key: str) -> int:
        """Return a number from the configuration; raise `ValueError` if the value is no number."""
        value = self.config[key]
        if type(value) is not int:
            raise ValueError(f"the configuration's {key} is {cut(repr(value))}; it must be an integer")
        return value

    def numbers(self, spans: Sequence[Span]) -> list[int]:
        """Return the numbers that spans name; raise `ProgramError` if a step returned too few."""
        return resolve_spans(spans, self._given)

    def one(self, span: Span) -> int:
        """Return the only number that a span names; raise `ProgramError` if it names none or several."""
        numbers = self.numbers((span,))
        if len(numbers) != 1:
            raise ProgramError(f"{span} names {len(numbers)} numbers; it must name one")
        return numbers[0]


def _words_of(error: Exception) -> str:
    """Return the text of an implementation's error, shortened; empty if it has no readable text."""
    try:
        return cut(str(error), _LONGEST)
    except Exception:  # a stranger's class may do anything there
        return ""


def place_of(adapter: object, method: str) -> str:
    """Return `` (line 3 of file.py)`` for the definition of an adapter's method.

    It is empty where that is unknown, and where nobody wrote an adapter.
    """
    if getattr(adapter, "METHODS", None):
        return ""
    function = getattr(adapter, method, None)
    code = None if function is None else getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" (line {code.co_firstlineno} of {code.co_filename})"


def _read_sizes(adapter: BaseAdapter, sizes: object) -> dict[str, int]:
    """Return the dict of `sizes` with plain integers in place of NumPy's; raise `AdapterError` for no dict.

    A size that is no integer stays for the smoke test.
    """
    if type(sizes) is dict and {*map(type, sizes.values())} <= {int}:
        return sizes
    if not isinstance(sizes, Mapping):
        raise AdapterError(
            adapter.name,
            f"sizes() returned {shown(sizes)}; it must return a dict of integers by name, such as"
            f" {{'available_size': 6}}{place_of(adapter, 'sizes')}",
        )
    return {key: _plain_size(size) for key, size in sizes.items()}


def _plain_size(size: Any) -> Any:
    with suppress(TypeError, ValueError):  # as of a tensor with several elements
        return index(size) if type(size) is not bool else size
    return size


def _read_claims(name: str, claimed: object) -> frozenset[str]:
    """Return the claims of an adapter as a set; raise `AdapterError` for an unknown claim."""
    if isinstance(claimed, str) or not isinstance(claimed, Collection):
        raise AdapterError(
            name, f"claim() returned {shown(claimed)}; it must return a set, such as {{'pool'}}"
        )
    for word in claimed:
        if not isinstance(word, str) or word not in CAPABILITIES:
            near = " or ".join(map(repr, difflib.get_close_matches(str(word), CAPABILITIES)))
            question = f" (did you mean {near}?)" if near else ""
            raise AdapterError(
                name,
                f"claim() returned {shown(word)}, which is no capability{question};"
                f" there are {', '.join(CAPABILITIES)}",
            )
    return frozenset(claimed)


def _read_limits(name: str, kind: str, limits: object) -> dict[str, str]:
    """Return the declared limits as a dict; raise `AdapterError` for an invalid entry."""
    wrong = find_wrong_limit(kind, limits)
    if wrong is not None:
        raise AdapterError(name, f"LIMITS {wrong}")
    assert isinstance(limits, Mapping)
    return dict(limits)


def header_of(adapter: Adapter, seed: int | None = None, versions: Mapping[str, str] | None = None) -> Header:
    """Return the header of a history that an adapter is about to write."""
    return Header(
        adapter.name,
        adapter.kind,
        dict(adapter.config),
        tuple(sorted(adapter.capabilities)),
        seed,
        dict(versions or {}),
        specification=SPECIFICATION,
        limits=dict(getattr(adapter, "limits", {})),
    )
