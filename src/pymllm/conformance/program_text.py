"""A history as Python that one can paste: running it breaks the same law."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pymllm.history.files import History, Step

_COMMENT_MAX = 160


def write_program(history: History) -> str:
    """Write a history as a Python program that needs this package and the adapter, outcomes as comments."""
    names = sorted({name for step in history.steps for name in _names_in(step.operation)})
    numbers = [step.number for step in history.steps]
    is_numbered = numbers == list(range(1, len(numbers) + 1))
    opening, closing = ("[", "]") if is_numbered else ("{", "}")
    lines = ["from pymllm.conformance.program import run_program"]
    if names:
        lines.append(f"from pymllm.history.operations import {', '.join(names)}")
    lines += ["", "run_program(", f"    {history.header.adapter!r},", f"    {history.header.config!r},"]
    lines.append(f"    {opening}")
    for step in history.steps:
        number = "" if is_numbered else f"{step.number}: "
        lines.append(f"        {number}{write_record(step.operation)},  # {_comment(step)}")
    lines += [f"    {closing},", ")"]
    return "\n".join(lines) + "\n"


def write_record(record: object) -> str:
    """Write a record, or what a field of one holds, as a Python expression without its defaults."""
    if isinstance(record, tuple):
        items = ", ".join(write_record(item) for item in record)
        return f"({items},)" if len(record) == 1 else f"({items})"
    if isinstance(record, dict):
        return "{" + ", ".join(f"{key!r}: {write_record(value)}" for key, value in record.items()) + "}"
    if not dataclasses.is_dataclass(record):
        return repr(record)
    parts = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            parts.append(write_record(value))
        elif value != _default_of(field):
            parts.append(f"{field.name}={write_record(value)}")
    return f"{type(record).__name__}({', '.join(parts)})"


def _default_of(field: dataclasses.Field[object]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _names_in(record: object) -> Iterator[str]:
    """Names of the record classes that an expression for the record needs."""
    if isinstance(record, tuple):
        for item in record:
            yield from _names_in(item)
    elif dataclasses.is_dataclass(record):
        yield type(record).__name__
        for field in dataclasses.fields(record):
            yield from _names_in(getattr(record, field.name))


def _comment(step: Step) -> str:
    if step.outcome is None:
        return f"{step.number}: not run"
    effects = "".join(f", {write_record(effect)}" for effect in step.outcome.effects)
    text = f"{step.number}: {write_record(step.outcome.result)}{effects}"
    return text if len(text) <= _COMMENT_MAX else f"{text[: _COMMENT_MAX - 3]}..."
