"""The operations and outcomes of histories as lines of JSON, with slots as numbers.

A history names slots by the step that gave them, so that it runs anywhere. A program is told the numbers
that it gave itself: what is a `Span` there is here a list of integers, or one integer where exactly one is
meant. Nodes and holds stay steps. How an argument lies in memory (``form``) is left out.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pymllm.errors import ProgramError
from pymllm.history.codec import Record, encode, lean
from pymllm.history.operations import Operation, Span
from pymllm.history.schema import schema_of
from pymllm.history.spans import span_fields_of
from pymllm.text_file import TOO_DEEP, demand_strict, has_long_number

_DEPTH = 8
"""A depth of nested objects and lists that no message reaches."""
_CONTAINERS = (dict, list)


def make_line(message: dict[str, Any] | Record) -> bytes:
    """Return a message as a UTF-8 line with its newline; equal values give equal lines.

    msgspec takes a quarter of the time of `json` (two lists of 64 numbers: 2 us, not 9).
    """
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair is no UTF-8, but an escape
        return json.dumps(encode(message), separators=(",", ":")).encode() + b"\n"


def read_line(line: bytes) -> Any:
    """Return the value of a line of JSON; raise `ValueError` with the reason if it is not JSON."""
    try:
        plain = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = repr(bytes(line[:60]))[1:]
        raise ValueError(f"{shown} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if line.count(b":") != _count_fields(plain) or has_long_number(line):
        demand_strict(line.decode(), plain)
    return plain


def _count_fields(plain: Any) -> int:
    """Return the number of fields in a message and its nested records, up to a depth.

    Fewer than there are colons, and the line is looked at more closely: a name stands there twice, or a colon
    in a string, or something is too deep. To ask that takes less than a look at every value.
    """
    count = 0
    level = [plain]
    for _ in range(_DEPTH):
        below: list[Any] = []
        for item in level:
            if type(item) is dict:
                count += len(item)
                below += [value for value in item.values() if type(value) in _CONTAINERS]
            elif type(item) is list and item and type(item[0]) in _CONTAINERS:
                below += item
        if not below:
            return count
        level = below
    return -1


Numbers = Callable[[Sequence[Span]], list[int]]

_UNSAID = "form"

# -- writing -------------------------------------------------------------------------------------------------


def write_operation(operation: Operation, numbers: Numbers) -> dict[str, Any]:
    """Return an operation as plain data, ``op`` first, without fields that have their default.

    ``numbers`` returns what spans name; not exactly one where one is meant is a `ProgramError`.
    """
    plain: dict[str, Any] = msgspec.to_builtins(lean(operation))
    plain.pop(_UNSAID, None)
    if "key" in plain:
        plain["key"].pop(_UNSAID, None)
    for name in span_fields_of(type(operation)):
        if name in plain:
            spans = getattr(operation, name)
            plain[name] = _one(spans, numbers) if isinstance(spans, Span) else numbers(spans)
    return plain


def _one(span: Span, numbers: Numbers) -> int:
    found = numbers((span,))
    if len(found) != 1:
        raise ProgramError(f"{span} names {len(found)} numbers where exactly one is meant")
    return found[0]


def operations_schema() -> dict[str, Any]:
    """Return the schema of every operation as plain data, distinguished by ``op``."""
    schema = schema_of(Operation)
    for kind, described in zip(typing.get_args(Operation), schema["oneOf"], strict=True):
        fields = described["properties"]
        fields.pop(_UNSAID, None)
        if "key" in fields:
            del fields["key"]["properties"][_UNSAID]
        for field in msgspec.structs.fields(kind):
            if field.name in span_fields_of(kind):
                is_one = field.type in (Span, Span | None)
                number = {"type": "integer"}
                said = number if is_one else {"type": "array", "items": number}
                note = fields[field.name].get("description")
                fields[field.name] = {**said, "description": note} if note else said
    return schema
