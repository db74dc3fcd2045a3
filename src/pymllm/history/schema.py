"""JSON schemas (draft 2020-12) made from records: types, tags, and the descriptions in docstrings."""

from __future__ import annotations

import functools
import re
from inspect import cleandoc
from typing import Any

from msgspec import inspect

_NOTE = re.compile(r"^- ((?:``\w+``(?:, )?)+): (.*(?:\n  .*)*)", re.MULTILINE)
"""An item of a docstring's list, about one field or several."""
_NAMES: dict[type, str] = {
    inspect.IntType: "integer",
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.FloatType: "number",
    inspect.NoneType: "null",
}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type's plain data; records of several kinds are distinguished by their tag."""
    info = inspect.type_info(kind)
    return _tagged_schema(info) if isinstance(info, inspect.StructType) else _schema_of(info)


def _schema_of(info: inspect.Type) -> dict[str, Any]:
    match info:
        case inspect.StructType() | inspect.DataclassType():
            return _record_schema(info, {})  # of one kind only: it needs no tag
        case inspect.UnionType() if any(getattr(option, "tag", None) for option in info.types):
            return {"oneOf": [_tagged_schema(option) for option in info.types]}  # type: ignore[arg-type]
        case inspect.UnionType():
            has_float = any(isinstance(option, inspect.FloatType) for option in info.types)
            kinds = [it for it in info.types if not (has_float and isinstance(it, inspect.IntType))]
            options = [_schema_of(kind) for kind in kinds]
            return {"anyOf": options} if len(options) > 1 else options[0]
        case inspect.VarTupleType():
            return {"type": "array", "items": _schema_of(info.item_type)}
        case inspect.TupleType():
            items, count = [_schema_of(item) for item in info.item_types], len(info.item_types)
            return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _schema_of(info.value_type)}
        case inspect.EnumType():
            return {"enum": [option.value for option in info.cls]}
        case inspect.AnyType():
            return {}
        case inspect.IntType(ge=int() as least):
            return {"type": "integer", "minimum": least}
    return {"type": _NAMES[type(info)]}


def _tagged_schema(info: inspect.StructType) -> dict[str, Any]:
    return _record_schema(info, {} if info.tag is None else {str(info.tag_field): {"const": info.tag}})


def _record_schema(info: inspect.StructType | inspect.DataclassType, first: dict[str, Any]) -> dict[str, Any]:
    notes = field_notes(info.cls)
    properties = {
        field.encode_name: _schema_of(field.type)
        | ({"description": notes[field.name]} if field.name in notes else {})
        for field in info.fields
    }
    return {
        "type": "object",
        "description": (info.cls.__doc__ or "").partition("\n")[0],
        "properties": {**first, **properties},
        "required": [*first, *(field.encode_name for field in info.fields if field.required)],
        "additionalProperties": False,
    }


@functools.cache
def field_notes(kind: type) -> dict[str, str]:
    """Return the notes of a record's docstring on its fields, in one line each."""
    notes: dict[str, str] = {}
    for names, text in _NOTE.findall(cleandoc(kind.__doc__ or "")):
        said = " ".join(text.split()).replace("`", "")
        notes |= dict.fromkeys(re.findall(r"\w+", names), said)
    return notes
