"""Frozen records as plain data and back: what a dict may hold is read off the record's annotations.

A record is a frozen dataclass whose fields are numbers, strings, ``None``, tuples, dicts of these, or
records. Fields that have their default are left out. Where several kinds of record are possible, one
key of the dict, the *tag*, names the kind: the class's name in snake case.

For records that are dataclasses still; the language's are those of `pymllm.history.codec`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pymllm.text_file import cut

__all__ = [
    "decode",
    "decode_tagged",
    "encode",
    "encode_tagged",
    "name_of",
    "schema_of",
    "tagged_schema_of",
]


def name_of(kind: type) -> str:
    """Name a record class in plain data: ``FreeSWA`` is ``"free_swa"``."""
    return _snake_case(kind.__name__)


@functools.cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


# -- writing -----------------------------------------------------------------------------------------------


def encode(record: Any) -> Any:
    """Return a record, or what a field of one holds, as numbers, strings, lists and dicts.

    Parameters
    ----------
    record : object
        A record or a value of one of the types above.

    Returns
    -------
    object
        Nothing of it is shared with ``record``.
    """
    kind: Any = type(record)
    if hasattr(kind, "__struct_fields__"):
        from pymllm.history import codec

        return codec.encode(record)
    is_record: bool = dataclasses.is_dataclass(kind)
    if is_record:
        return {
            field.name: encode(value)
            for field in _fields_of(kind)
            if (value := getattr(record, field.name)) != _default_of(field)
        }
    if isinstance(record, tuple):
        # Most of a history is numbers in tuples: without a call for each, writing one takes a third less.
        return [value if type(value) in _LEAVES else encode(value) for value in record]
    if isinstance(record, dict):
        return {key: encode(value) for key, value in record.items()}
    return record


_LEAVES = frozenset({int, str, bool, type(None), float})


def encode_tagged(record: Any, tag: str) -> dict[str, Any]:
    """Return a record as a dict that begins with its kind."""
    return {tag: name_of(type(record)), **encode(record)}


@functools.cache
def _fields_of(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


# -- reading -----------------------------------------------------------------------------------------------


def decode(kind: Any, plain: Any, where: str = "") -> Any:
    """Return plain data as a value of a type.

    Parameters
    ----------
    kind : type
        A record class or the annotation of a field.
    plain : object
        As `encode` makes it, or as JSON reads it.
    where : str
        What is being read, for the error.

    Raises
    ------
    ValueError
        Something is missing, too much, or of another type; says where and what was expected.
    """
    if hasattr(kind, "__struct_fields__"):
        from pymllm.history import codec

        return codec.decode(kind, plain, where)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, plain, where)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(kind, plain, where)
    if origin is tuple:
        return _decode_tuple(typing.get_args(kind), plain, where)
    if origin is dict:
        _require(isinstance(plain, Mapping), where, "an object", plain)
        _, value_kind = typing.get_args(kind)
        return {
            str(key): decode(value_kind, value, f"{where}.{cut(str(key))}") for key, value in plain.items()
        }
    _require(_is_plain(plain, kind), where, _word_for(kind), plain)
    return plain


def decode_tagged(kinds: Sequence[type], plain: Any, tag: str, where: str = "") -> Any:
    """Return a dict as the record whose kind its ``tag`` names; `ValueError` where there is none such."""
    _require(isinstance(plain, Mapping), where, "an object", plain)
    by_name = {name_of(kind): kind for kind in kinds}
    named = plain.get(tag)
    if not isinstance(named, str) or named not in by_name:
        shown = cut(repr(named))
        raise ValueError(f"{where or 'record'}: {tag} is {shown}; it must be one of {', '.join(by_name)}")
    fields = {key: value for key, value in plain.items() if key != tag}
    return _decode_record(by_name[named], fields, f"{where}.{named}" if where else named)


def _decode_record(kind: Any, plain: Any, where: str) -> Any:
    _require(isinstance(plain, Mapping), where, "an object", plain)
    hints = _hints_of(kind)
    unknown = sorted(set(plain) - set(hints))
    if unknown:
        shown = cut(repr(unknown[0]))
        raise ValueError(f"{where or name_of(kind)}: unknown field {shown}; it has {', '.join(hints)}")
    values = {key: decode(hints[key], value, f"{where}.{key}") for key, value in plain.items()}
    missing = [name for name in _required_of(kind) if name not in values]
    if missing:
        raise ValueError(f"{where or name_of(kind)}: field {missing[0]!r} is missing")
    return kind(**values)


def _decode_union(kind: Any, plain: Any, where: str) -> Any:
    for option in typing.get_args(kind):
        try:
            return decode(option, plain, where)
        except ValueError:
            continue
    raise ValueError(_mismatch(where, _word_for(kind), plain))


def _decode_tuple(kinds: tuple[Any, ...], plain: Any, where: str) -> tuple[Any, ...]:
    _require(isinstance(plain, list | tuple), where, "a list", plain)
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(plain)
    _require(len(kinds) == len(plain), where, f"a list of {len(kinds)}", plain)
    return tuple(
        decode(kind, value, f"{where}[{at}]")
        for at, (kind, value) in enumerate(zip(kinds, plain, strict=True))
    )


def _is_plain(plain: Any, kind: Any) -> bool:
    if kind is type(None):
        return plain is None
    if kind is float:
        return type(plain) in (int, float)
    return type(plain) is kind  # True is no int here


def _require(truth: bool, where: str, expected: str, plain: Any) -> None:
    if not truth:
        raise ValueError(_mismatch(where, expected, plain))


def _mismatch(where: str, expected: str, plain: Any) -> str:
    return f"{where or 'value'} is {cut(repr(plain))}; it must be {expected}"


def _word_for(kind: Any) -> str:
    words = {int: "an integer", str: "a string", bool: "true or false", float: "a number", type(None): "null"}
    if kind in words:
        return words[kind]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_word_for(option) for option in typing.get_args(kind))
    return "a list" if typing.get_origin(kind) is tuple else "an object"


@functools.cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@functools.cache
def _required_of(kind: Any) -> tuple[str, ...]:
    return tuple(
        field.name for field in dataclasses.fields(kind) if _default_of(field) is dataclasses.MISSING
    )


# -- describing --------------------------------------------------------------------------------------------


def schema_of(kind: Any) -> dict[str, Any]:
    """Describe the plain data of a type as a JSON schema (draft 2020-12)."""
    if hasattr(kind, "__struct_fields__"):
        from pymllm.history import schema

        return schema.schema_of(kind)
    if dataclasses.is_dataclass(kind):
        return _record_schema(kind, {})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(option) for option in arguments]}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return {"type": "array", "items": schema_of(arguments[0])}
        count = len(arguments)
        items = [schema_of(argument) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [option.value for option in kind]}
    names = {int: "integer", str: "string", bool: "boolean", float: "number", type(None): "null"}
    return {"type": names[kind]}


def tagged_schema_of(kinds: Sequence[type], tag: str) -> dict[str, Any]:
    """Describe records of several kinds, told apart by ``tag``."""
    return {"oneOf": [_record_schema(kind, {tag: {"const": name_of(kind)}}) for kind in kinds]}


def _record_schema(kind: Any, first: dict[str, Any]) -> dict[str, Any]:
    summary = (kind.__doc__ or "").partition("\n")[0]
    return {
        "type": "object",
        "description": summary,
        "properties": {**first, **{name: schema_of(hint) for name, hint in _hints_of(kind).items()}},
        "required": [*first, *_required_of(kind)],
        "additionalProperties": False,
    }
