"""Operations and outcomes as they stand in a line: those of histories, with the slots that are meant.

A history names slots by the step that gave them, so that it runs anywhere. A program is told the numbers
that it gave itself: what is a `Span` there is here a list of integers, or one integer where exactly one is
meant. Nodes and holds stay steps. How an argument lies in memory (``form``) is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pymllm.adapters.process.field_notes import with_notes
from pymllm.errors import ProgramError
from pymllm.history.operations import OPERATIONS, Hash, Key, Lock, Operation, Span, Unlock
from pymllm.history.outcomes import RESULTS, Effect, Outcome, outcome_from_plain
from pymllm.history.records import encode, name_of, schema_of

__all__ = [
    "nodes_and_holds_of",
    "operations_schema",
    "read_outcome",
    "spans_of",
    "steps_of",
    "write_operation",
]

Numbers = Callable[[Sequence[Span]], list[int]]

_UNSAID = "form"
_ABSENT = object()

# -- writing -------------------------------------------------------------------------------------------------


def write_operation(operation: Operation, numbers: Numbers) -> dict[str, Any]:
    """Return an operation as plain data, ``op`` first; fields that have their default are left out.

    Parameters
    ----------
    operation : Operation
        What is asked.
    numbers : callable
        Returns the numbers that spans name, as `pymllm.adapters.base.BaseAdapter.numbers` does.

    Raises
    ------
    ProgramError
        A span names what was never given, or not exactly one number where one is meant.
    """
    kind: type = type(operation)
    plain: dict[str, Any] = {"op": _name_of(kind)}
    for name, default, write in _writers_of(kind):
        value = getattr(operation, name)
        if value != default:
            plain[name] = write(value, numbers)
    return plain


def spans_of(operation: Operation) -> list[Span]:
    """Return every span of an operation."""
    found: list[Span] = []
    kind: type = type(operation)
    for name in _span_fields_of(kind):
        value = getattr(operation, name)
        found += (value,) if isinstance(value, Span) else value or ()
    return found


def nodes_and_holds_of(operation: Operation) -> tuple[Sequence[int], Sequence[int]]:
    """Return the steps that an operation names for their node, and those that it names for their hold."""
    if isinstance(operation, Lock | Hash):
        return (operation.of,), ()
    if isinstance(operation, Unlock):
        nodes = () if operation.at is None else (operation.at,)
        return nodes, (operation.lock, operation.token) if operation.token else (operation.lock,)
    return (), ()


def steps_of(operation: Operation) -> Iterator[int]:
    """Yield every step that an operation names."""
    yield from (span.step for span in spans_of(operation))
    for steps in nodes_and_holds_of(operation):
        yield from steps


_name_of = functools.cache(name_of)


@functools.cache
def _hints_of(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if name != _UNSAID}


@functools.cache
def _span_fields_of(kind: type) -> tuple[str, ...]:
    return tuple(name for name, hint in _hints_of(kind).items() if _write_for(hint) in (_many, _one))


@functools.cache
def _writers_of(kind: type) -> tuple[tuple[str, Any, Callable[[Any, Numbers], Any]], ...]:
    defaults = {
        field.name: _ABSENT if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(kind)
    }
    return tuple((name, defaults[name], _write_for(hint)) for name, hint in _hints_of(kind).items())


def _write_for(hint: Any) -> Callable[[Any, Numbers], Any]:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if Span in options:
        return _one
    if tuple[Span, ...] in options:
        return _many
    return _key if hint is Key else _plain


def _many(spans: Sequence[Span] | None, numbers: Numbers) -> list[int] | None:
    return None if spans is None else numbers(spans)


def _one(span: Span | None, numbers: Numbers) -> int | None:
    if span is None:
        return None
    found = numbers((span,))
    if len(found) != 1:
        raise ProgramError(f"{span} names {len(found)} numbers where exactly one is meant")
    return found[0]


def _key(key: Key, numbers: Numbers) -> dict[str, Any]:
    plain: dict[str, Any] = {"tokens": key.tokens}
    if key.extra_key is not None:
        plain["extra_key"] = key.extra_key
    return plain


def _plain(value: Any, numbers: Numbers) -> Any:
    return encode(value)


# -- reading -------------------------------------------------------------------------------------------------


def read_outcome(plain: Any) -> Outcome:
    """Return plain data as an outcome; `ValueError` says what is wrong with it.

    Notes
    -----
    Cost: a fifth of `outcome_from_plain`, which finds the words for what is wrong (64 slots: 5 us, not 90).
    """
    try:
        result = dict(plain["result"])
        read = _RESULT_READERS[result.pop("is")](result)
        effects, sizes = plain.get("effects"), plain.get("sizes")
        if len(plain) == 1 + (effects is not None) + (sizes is not None):
            told = () if effects is None else _read_effects(effects)
            return Outcome(read, told, {} if sizes is None else _read_sizes(sizes))
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    return outcome_from_plain(plain)


@functools.cache
def _reader_of(kind: Any) -> Callable[[Any], Any]:
    """Return a function that reads plain data as a value of a type, and raises a `TypeError` or so if not."""
    if dataclasses.is_dataclass(kind):
        make: Any = kind
        readers = {name: _reader_of(hint) for name, hint in typing.get_type_hints(kind).items()}
        return lambda plain: make(**{name: readers[name](value) for name, value in plain.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_reader([_reader_of(option) for option in arguments])
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is dict:
        return _read_integers_by_name
    return _exactly({float: (int, float)}.get(kind, (kind,)))


def _exactly(kinds: tuple[type, ...]) -> Callable[[Any], Any]:
    def read(plain: Any) -> Any:
        if type(plain) not in kinds:  # True is no int here
            raise TypeError
        return plain

    return read


def _union_reader(options: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(plain: Any) -> Any:
        for option in options:
            try:
                return option(plain)
            except (AttributeError, KeyError, TypeError):
                continue
        raise TypeError

    return read


def _tuple_reader(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    def read_integers(plain: Any) -> Any:
        if type(plain) is not list or not {*map(type, plain)} <= {int}:
            raise TypeError
        return tuple(plain)

    def read_alike(plain: Any) -> Any:
        if type(plain) is not list:
            raise TypeError
        return tuple(map(item, plain))

    def read_each(plain: Any) -> Any:
        if type(plain) is not list:
            raise TypeError
        return tuple(read(value) for read, value in zip(items, plain, strict=True))

    if kinds[-1] is not Ellipsis:
        items = [_reader_of(kind) for kind in kinds]
        return read_each
    item = _reader_of(kinds[0])
    return read_integers if kinds[0] is int else read_alike


def _read_integers_by_name(plain: Any) -> Any:
    """Read the only kind of dict that an outcome has; the keys of JSON are strings."""
    if type(plain) is not dict or not {*map(type, plain.values())} <= {int}:
        raise TypeError
    return plain


_RESULT_READERS = {name_of(kind): _reader_of(kind) for kind in RESULTS}
_read_effects = _reader_of(tuple[Effect, ...])
_read_sizes = _reader_of(dict[str, int])

# -- describing ----------------------------------------------------------------------------------------------


def operations_schema() -> dict[str, Any]:
    """Describe the plain data of every operation, told apart by ``op``."""
    return {"oneOf": [_operation_schema(kind) for kind in OPERATIONS]}


def _operation_schema(kind: type) -> dict[str, Any]:
    properties = {name: _field_schema(hint) for name, hint in _hints_of(kind).items()}
    required = [name for name, default, _ in _writers_of(kind) if default is _ABSENT]
    schema = {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "properties": {"op": {"const": name_of(kind)}, **properties},
        "required": ["op", *required],
        "additionalProperties": False,
    }
    return with_notes(schema, kind)


def _field_schema(hint: Any) -> dict[str, Any]:
    write = _write_for(hint)
    if write is _one:
        return {"type": "integer"}
    if write is _many:
        return {"type": "array", "items": {"type": "integer"}}
    if write is _key:
        key = schema_of(Key)
        del key["properties"][_UNSAID]
        return key
    return schema_of(hint)
