"""The conversion of frozen records to plain data and JSON and back, based on msgspec.

Fields that have their default are left out. Where several kinds of record are possible, one key, the *tag*,
names the kind: its class in snake case. A line is spelled as `json.dumps` spells it, byte for byte.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from pymllm.text_file import cut, has_long_number, read_json


@functools.cache
def snake_case(name: str) -> str:
    """Return a class's name in the form of plain data: ``"free_swa"`` for ``FreeSWA``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.rpartition(".")[2]).lower()


def name_of(kind: type) -> str:
    """Return the name of a record class in plain data."""
    return snake_case(kind.__name__)


class _DataclassFields:
    """The fields of a record in the form that `dataclasses.fields` and `dataclasses.replace` read."""

    def __get__(self, record: object, kind: type[Record]) -> dict[str, dataclasses.Field[Any]]:
        return _dataclass_fields(kind)


@functools.cache
def _dataclass_fields(kind: type[Record]) -> dict[str, dataclasses.Field[Any]]:
    none = {msgspec.NODEFAULT: dataclasses.MISSING}
    fields = []
    for it in msgspec.structs.fields(kind):
        default: Any = none.get(it.default, it.default)
        factory: Any = none.get(it.default_factory, it.default_factory)
        fields.append((it.name, it.type, dataclasses.field(default=default, default_factory=factory)))
    made: Any = dataclasses.make_dataclass(kind.__name__, fields)
    return dict(made.__dataclass_fields__)


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Plain data: numbers, strings, ``None``, tuples, dicts of these, and records.

    Nothing in it leads back to it, so the garbage collector need not look. The functions of `dataclasses`
    take it for one of theirs: adapters of other people call `dataclasses.replace` on what they are given.
    """

    __dataclass_fields__ = _DataclassFields()


# -- writing --
def encode(record: Any) -> Any:
    """Return a record, or a field's value, as plain numbers, strings, lists and dicts."""
    return _with_lists(msgspec.to_builtins(lean(record)))


def _with_lists(plain: Any) -> Any:
    if isinstance(plain, tuple | list):
        return [_with_lists(item) for item in plain]
    return {key: _with_lists(item) for key, item in plain.items()} if isinstance(plain, dict) else plain


def write_json(record: Any) -> str:
    """Return a record as one line of JSON, without the newline."""
    record = lean(record)
    try:
        line = msgspec.json.format(_ENCODER.encode(record), indent=0).decode("ascii")
    except UnicodeError:  # beyond ASCII, or half of a surrogate pair, which is an escape
        return json.dumps(msgspec.to_builtins(record))
    if "\x7f" in line or (_FLOAT in line and _ODD_FLOAT.search(line)):
        return json.dumps(msgspec.to_builtins(record))
    return line


_ENCODER = msgspec.json.Encoder()
_FLOAT = '"last_access": '
"""The only field that holds a float."""
_ODD_FLOAT = re.compile(f"{_FLOAT}(?:null|-?0\\.0000|-?[0-9.]+e)")
"""Floats that msgspec writes differently: NaN, very small and very large numbers."""


def lean(value: Any) -> Any:
    """Return a value with equal defaults replaced by identical ones, since msgspec omits only these."""
    kind: Any = type(value)
    make_lean = _leaner_of(kind)
    if make_lean is not None:
        return make_lean(value)
    return tuple(map(lean, value)) if type(value) is tuple and value and type(value[0]) is not int else value


Lean = Callable[[Any], Any]


@functools.cache
def _leaner_of(hint: Any) -> Lean | None:
    """Return a function that makes values of a type `lean`; ``None`` if the type needs no change."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return lean if any(map(_leaner_of, arguments)) else None
    if origin in (tuple, dict):
        return _items_leaner(origin, _field_leaner(arguments[-1 if origin is dict else 0]))
    if _is_record(hint):
        return _record_leaner(hint)
    return None


def _items_leaner(origin: type, make_lean: Lean | None) -> Lean | None:
    if make_lean is None:
        return None
    if origin is dict:
        return lambda value: {key: make_lean(item) for key, item in value.items()}
    return lambda value: tuple(map(make_lean, value))


def _record_leaner(kind: type[msgspec.Struct]) -> Lean | None:
    fields = [
        (field.name, field.default, _field_leaner(field.type)) for field in msgspec.structs.fields(kind)
    ]
    unsure = [field for field in fields if field[2] or not _is_one_of_a_kind(field[1])]

    def make_lean(record: Any) -> Any:
        changes = {}
        for name, default, make in unsure:
            value = getattr(record, name)
            if value is not default and value is not None:
                leaner = default if value == default else value if make is None else make(value)
                if leaner is not value:
                    changes[name] = leaner
        return msgspec.structs.replace(record, **changes) if changes else record

    return make_lean if unsure else None


def _field_leaner(hint: Any) -> Lean | None:
    """Return a function that makes a field's value `lean`, without a tag if the field has a single type."""
    make_lean = _leaner_of(hint)
    if _is_record(hint) and hint.__struct_config__.tag is not None:
        untagged: Any = types.new_class(hint.__name__, (hint,), {"tag": False})
        return lambda value: untagged(*msgspec.structs.astuple(make_lean(value) if make_lean else value))
    return make_lean


def _is_one_of_a_kind(default: Any) -> bool:
    """Tell whether equal values are identical in CPython, as ``()``, ``""`` and small integers are."""
    return default is msgspec.NODEFAULT or type(default) in (type(None), bool, int) or default in ((), "")


def fits(record: Record) -> bool:
    """Tell whether a record and all its fields have exactly their declared types.

    Nothing is checked where a record is built. Cost: a third of a look at each field in Python.
    """
    try:
        return bool(msgspec.convert(msgspec.to_builtins(record), type(record)) == record)
    except (TypeError, ValueError, RecursionError):
        return False


# -- reading --
def decode(kind: Any, plain: Any, where: str = "") -> Any:
    """Convert plain data from `encode` or JSON to a value of a type.

    `ValueError` says where something is missing, too much or of another type, and what was expected.
    """
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_told(str(error), kind, plain, where)) from None


def json_reader(
    kind: Any, where: str = "", parse: Callable[[Any], Any] = read_json
) -> Callable[[str | bytes], Any]:
    """Return a function that reads a line of JSON from any writer as a value of a type.

    It raises as `decode`, and as ``parse``, which reads what msgspec refuses or may be too lenient with.
    """
    quick = msgspec.json.Decoder(kind)

    def read(line: str | bytes) -> Any:
        try:
            record = quick.decode(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return decode(kind, parse(line), where)
        return decode(kind, parse(line), where) if _is_doubtful(line, record) else record

    return read


def _is_doubtful(line: str | bytes, record: Any) -> bool:
    """Tell whether msgspec may have missed an error: a number beyond 128 bits, or a repeated field.

    What was read is written again: a field that was named twice is then a colon less, as one with its default
    is. In strings there are as many colons as before, since no backslash spells one.
    """
    data = line.encode() if isinstance(line, str) else line
    if b"\\" in data or has_long_number(data):
        return True
    return data.count(b":") != _ENCODER.encode(lean(record)).count(b":")


_STEPS = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)


def _told(message: str, kind: Any, plain: Any, where: str) -> str:
    """Return words for a msgspec error, with the wrong value and the kinds of the enclosing records."""
    message, path = _message_and_path(message, plain)
    hint, value = kind, plain
    for name, place in _STEPS.findall(path):
        if name:
            record = _record_of(hint, value)
            if record is None or name == _tag_of(record).tag_field:
                break  # the tag itself is wrong
            where = f"{_place(where, record, value)}.{name}"
            hint, value = _fields_of(record)[name].type, value[name]
        elif place == "...":
            hint = typing.get_args(_option(hint, dict))[1]
            key, value = next(item for item in value.items() if not _is_of(hint, item[1]))
            where = f"{where}.{cut(key)}"
        else:
            items = typing.get_args(_option(hint, tuple))
            hint, value = items[0 if items[-1] is Ellipsis else int(place)], value[int(place)]
            where = f"{where}[{place}]"
    where = where.removeprefix(".")
    record, field = _record_of(hint, value), _FIELD.fullmatch(message)
    if record is not None and field is not None:
        place = _place(where, record, value).removeprefix(".") or name_of(record)
        if field[1] == "missing required":
            return f"{place}: field {field[2]!r} is missing"
        return f"{place}: unknown field {cut(repr(field[2]))}; it has {', '.join(_fields_of(record))}"
    records = [option for option in _options(hint) if _is_record(option)]
    if records and isinstance(value, dict):
        tag, known = _tag_of(records[0]).tag_field, ", ".join(str(_tag_of(option).tag) for option in records)
        place = f"{where}: " if where else ""
        return f"{place}{tag} is {cut(repr(value.get(tag)))}; it must be one of {known}"
    _, _, count = message.partition("` of length ")
    word = f"a list of {count}" if count else " or ".join(dict.fromkeys(map(_word_for, _options(hint))))
    return f"{where or 'value'} is {cut(repr(value))}; it must be {word}"


def _message_and_path(message: str, plain: Any) -> tuple[str, str]:
    """Split a msgspec error into message and path, although field names may look like paths."""
    field = _FIELD.fullmatch(message)
    if field is not None and isinstance(plain, dict) and field[2] in plain:
        return message, ""
    said, _, path = message.rpartition(" - at ")
    return (said, path) if said else (message, "")


def _place(where: str, record: type[msgspec.Struct], value: Any) -> str:
    tag = _tag_of(record)
    return f"{where}.{tag.tag}" if tag.tag_field in value else where


def _tag_of(record: type[msgspec.Struct]) -> Any:
    return record.__struct_config__


def _fields_of(record: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(record)}


def _options(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _option(hint: Any, origin: type) -> Any:
    return next(option for option in _options(hint) if typing.get_origin(option) is origin)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _record_of(hint: Any, value: Any) -> type[msgspec.Struct] | None:
    """Return the record class of an object, by its tag if several are possible."""
    records = [option for option in _options(hint) if _is_record(option)]
    if not records or not isinstance(value, dict):
        return None
    named = value.get(_tag_of(records[0]).tag_field)
    return next((it for it in records if len(records) == 1 or _tag_of(it).tag == named), None)


def _is_of(hint: Any, plain: Any) -> bool:
    try:
        msgspec.convert(plain, hint)
    except msgspec.ValidationError:
        return False
    return True


def _word_for(hint: Any) -> str:
    words = {int: "an integer", str: "a string", bool: "true or false", float: "a number", type(None): "null"}
    return words.get(hint) or ("a list" if typing.get_origin(hint) is tuple else "an object")
