"""Small changes of recorded programs: of what one says it did, what was asked, and what was claimed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pymllm.history.codec import decode, encode
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import Operation
from pymllm.history.outcomes import INJECTED, Outcome

_ANSWERS: tuple[dict[str, Any], ...] = (
    {"is": "done"},
    {"is": "no_room"},
    {"is": "failed", "error": "RuntimeError"},
    {"is": "failed", "error": "ValueError"},
    {"is": "failed", "error": INJECTED},
)
_EFFECTS: tuple[dict[str, Any], ...] = (
    {"call": "free", "slots": [1]},
    {"call": "free_swa", "slots": [1]},
    {"call": "move_swa", "slots": [1], "target": [2]},
    {"call": "free_state", "slots": [1]},
    {"call": "callback", "slots": [1], "node": 1},
)

Change = tuple[str, History]
"""What was changed, in words, and the program with the change."""


def change_each(history: History) -> Iterator[Change]:
    """Yield a history with each of its small changes; one that no file could hold is left out."""
    for place, step in enumerate(history.steps):
        before, after = history.steps[:place], history.steps[place + 1 :]
        for words, changed in _change_step(step):
            yield words, History(history.header, [*before, changed, *after])
    for words, header in _change_header(history.header):
        yield words, History(header, history.steps)


def _change_step(step: Step) -> Iterator[tuple[str, Step]]:
    outcome = step.outcome
    assert outcome is not None
    plain = {
        "result": {**encode(outcome)["result"], **_whole(outcome.result)},
        "effects": _whole(outcome.effects),
        "sizes": outcome.sizes,
    }
    where = f"step {step.number}: "
    for words, changed in _change_outcome(plain):
        try:
            other = decode(Outcome, changed, "outcome")
        except ValueError:  # no outcome says this
            continue
        yield where + words, dataclasses.replace(step, outcome=other)
    asked = {**encode(step.operation), **_whole(step.operation)}
    for words, changed in _change(asked, "op"):
        try:
            operation = decode(Operation, changed, "op")
        except ValueError:
            continue
        yield where + words, dataclasses.replace(step, operation=operation)


def _change_outcome(plain: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield outcomes that differ in one value, in the answer's kind, or in one call of a pool."""
    yield from _change(plain, "outcome")
    for answer in _ANSWERS:
        if any(plain["result"].get(name) != value for name, value in answer.items()):
            yield f"the answer is {' '.join(answer.values())}", {**plain, "result": answer}
    for effect in _EFFECTS:
        yield f"{effect['call']} is called, too", {**plain, "effects": [*plain["effects"], effect]}
    for place, effect in enumerate(plain["effects"]):
        if len(slots := effect.get("slots", ())) > 1:
            halves = [{**effect, "slots": part} for part in (slots[:1], slots[1:])]
            parted = [*plain["effects"][:place], *halves, *plain["effects"][place + 1 :]]
            yield f"{effect['call']} is called in parts", {**plain, "effects": parted}


def _whole(value: Any) -> Any:
    """Return a record as plain data, with the fields that have their default."""
    if dataclasses.is_dataclass(value):
        return {field.name: _whole(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [*map(_whole, value)] if isinstance(value, tuple) else value


def _change_header(header: Header) -> Iterator[tuple[str, Header]]:
    for claim in header.capabilities:
        claims = tuple(it for it in header.capabilities if it != claim)
        yield f"{claim} is not claimed", dataclasses.replace(header, capabilities=claims)
    for words, config in _change(header.config, "config"):
        yield words, dataclasses.replace(header, config=config)


def _change(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield a value of plain data with one small change, and its place with what became of it."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in ("is", "op", "message"):
                for words, changed in _change(part, f"{where}.{key}"):
                    yield words, {**value, key: changed}
    elif isinstance(value, list):
        yield from _change_list(value, where)
    else:
        yield from ((f"{where} is {leaf!r}", leaf) for leaf in _other_leaves(value))


def _change_list(value: list[Any], where: str) -> Iterator[tuple[str, Any]]:
    yield f"{where} is None", None
    if value:
        yield f"{where} lacks its first", value[1:]
        yield f"{where} has its last twice", [*value, value[-1]]
    if len(value) > 1:
        yield f"{where} lacks its last", value[:-1]
        yield f"{where} is reversed", value[::-1]
    for place in sorted({0, len(value) - 1} if value else ()):
        for words, changed in _change(value[place], f"{where}[{place}]"):
            yield words, [*value[:place], changed, *value[place + 1 :]]


def _other_leaves(value: bool | int | float | str | None) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int | float):
        return (value + 1, value - 1, None)
    return (f"{value}x", None) if isinstance(value, str) else (1,)
