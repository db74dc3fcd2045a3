"""Ways to spoil a file: some know what JSON is, and some only bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

CANARY = "CANARY"
"""The file that is there once something was run that a file named."""

_RAW = "@raw-{}@"
_TOKENS = (
    "1e999",
    "NaN",
    "-Infinity",
    "9" * 30,
    "-" + "9" * 60,
    "7" * 5_000,
    "[" * 70 + "]" * 70,
    "[" * 3_000 + "]" * 3_000,
    '{"a":' * 900 + "1" + "}" * 900,
    '"\\ud800"',
    '"\\u0000"',
    "01",
    "tru",
    "",
    "'x'",
)
"""What `json.dumps` would not write, some of it no JSON."""

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 1.5, 1e308, -0.0),
    *(2**16, 2**20, 2**20 + 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 10**9, 10**12, -(10**12)),
    *("", "x", "a" * 10_000, "\x1b[31m\n\r\t", "\u2028\u202e", "é中\U0001f40d"),
    *([], {}, [[]], [0] * 50, [[0, 10**12]], {"x": 1}, {"tokens": [1, 2]}, [None], ["x"]),
    *(f"command:touch {CANARY}", "canary_module:X", "canary_module", "__import__('canary_module')"),
    *(
        "/dev/zero",
        "/dev/stdin",
        "/etc/passwd",
        "../../../etc/passwd",
        "fifo",
        ".",
        "radix",
        "faulty",
        "S5",
        "ZZ99",
    ),
    *("prefix", "rows", "blocks", "requests", "hashes", "swa", "token", "none", "lru", "int64", "strided"),
)

_HEADS = ("adapter", "kind", "config", "capabilities", "machine", "file", "scenario", "schema", "places")

Mutator = Callable[[random.Random, bytes], bytes]


def spoil(draw: random.Random, data: bytes) -> bytes:
    """Return the file with one to three things wrong with it."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        mutator = draw.choice(_MUTATORS)
        data = mutator(draw, data)
    return data


# -- of bytes ----------------------------------------------------------------------------------------------


def _flip(draw: random.Random, data: bytes) -> bytes:
    spoiled = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if spoiled:
            spoiled[draw.randrange(len(spoiled))] ^= 1 << draw.randrange(8)
    return bytes(spoiled)


def _cut_off(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _drop_slice(draw: random.Random, data: bytes) -> bytes:
    start = draw.randrange(len(data) + 1)
    return data[:start] + data[start + draw.randrange(1, 200) :]


def _put_in(draw: random.Random, data: bytes) -> bytes:
    pieces = (
        b"\0",
        b"\xff\xfe",
        b"\xc3\x28",
        b"\n",
        b"\r",
        b'"',
        b"\\",
        b"]",
        b"{",
        b"\xe2\x80\xa8",
        b"9" * 400,
        b" " * 5_000,
    )
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(pieces) * draw.choice((1, 1, 3)) + data[at:]


def _shuffle_lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    here, there = draw.randrange(len(lines)), draw.randrange(len(lines))
    how = draw.randrange(4)
    if how == 0:
        lines[here], lines[there] = lines[there], lines[here]
    elif how == 1:
        lines.insert(here, lines[there])
    elif how == 2:
        del lines[here]
    else:
        lines[here:here] = [lines[there]] * draw.choice((2, 50, 1_000))
    return b"".join(lines)


# -- of JSON -----------------------------------------------------------------------------------------------


def _in_line(change: Callable[[random.Random, Any], tuple[Any, str | None]]) -> Mutator:
    """Make a change of one JSON value one of a file: of a line of it, or of all of it."""

    def mutate(draw: random.Random, data: bytes) -> bytes:
        try:
            whole = json.loads(data)
        except (ValueError, RecursionError):
            whole = None
        if isinstance(whole, dict | list):
            return _written(*change(draw, whole), indent=draw.choice((None, 1)))
        lines = data.split(b"\n")
        # The header is one line of many, and everything hangs on it.
        at = 0 if draw.random() < 0.3 else draw.randrange(len(lines))
        try:
            plain = json.loads(lines[at])
        except (ValueError, RecursionError):
            return data
        lines[at] = _written(*change(draw, plain), indent=None)
        return b"\n".join(lines)

    return mutate


def _written(plain: Any, raw: str | None, indent: int | None) -> bytes:
    text = json.dumps(plain, indent=indent)
    if raw is not None:
        text = text.replace(json.dumps(_RAW), raw)
    return text.encode("utf-8", "surrogatepass")


def _places(plain: Any) -> list[tuple[Any, Any]]:
    """Return each place of a value: what holds it, and under which name or number."""
    found: list[tuple[Any, Any]] = []
    level = [plain]
    while level:
        item = level.pop()
        names = item if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for name in names:
            found.append((item, name))
            level.append(item[name])
    return found


def _replace(draw: random.Random, plain: Any) -> tuple[Any, str | None]:
    places = _places(plain)
    if not places:
        return _value(draw), None
    heads = [place for place in places if place[1] in _HEADS]
    holder, name = draw.choice(heads if heads and draw.random() < 0.2 else places)
    if draw.random() < 0.3:
        holder[name] = _RAW
        return plain, draw.choice(_TOKENS)
    value = holder[name]
    if type(value) is int and draw.random() < 0.4:
        holder[name] = value + draw.choice((-1, 1, 2, 100, 10**6))
    else:
        holder[name] = _value(draw)
    return plain, None


def _nudge(draw: random.Random, plain: Any) -> tuple[Any, str | None]:
    """Put a value of the same type in the place of one: what is left can be read, and is wrong inside."""
    places = _places(plain)
    for _ in range(draw.choice((1, 1, 2, 4)) if places else 0):
        holder, name = draw.choice(places)
        value = holder[name]
        alike = [at[other] for at, other in places if type(at[other]) is type(value) and at[other] != value]
        if type(value) is int and draw.random() < 0.6:
            holder[name] = draw.choice((value - 1, value + 1, -value, 0, 1, 2**31, 2**40))
        elif type(value) is bool:
            holder[name] = not value
        elif isinstance(value, list) and draw.random() < 0.5:
            draw.shuffle(value)
        elif alike and not isinstance(value, dict | list):
            holder[name] = draw.choice(alike)
    return plain, None


def _value(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(_VALUES))  # nothing may stand at two places, or within itself


def _rename(draw: random.Random, plain: Any) -> tuple[Any, str | None]:
    named = [place for place in _places(plain) if isinstance(place[0], dict)]
    if not named:
        return plain, None
    holder, name = draw.choice(named)
    value = holder.pop(name)
    how = draw.randrange(3)
    if how == 0:
        holder[draw.choice(("x", "op", "is", "a" * 500, "\x1b[2J", "file", "adapter"))] = value
    elif how == 1:
        other, twin = draw.choice(named)
        if twin in other:
            holder[name] = copy.deepcopy(other[twin])
    return plain, None


def _name_twice(draw: random.Random, plain: Any) -> tuple[Any, str | None]:
    named = [place for place in _places(plain) if isinstance(place[0], dict)]
    if not named:
        return plain, None
    holder, name = draw.choice(named)
    value = json.dumps(holder[name])
    holder[name] = _RAW
    return plain, f"{value}, {json.dumps(name)}: {json.dumps(_value(draw))}"


def _grow(draw: random.Random, plain: Any) -> tuple[Any, str | None]:
    lists = [holder[name] for holder, name in _places(plain) if isinstance(holder[name], list)]
    if lists:
        chosen = draw.choice(lists)
        how = draw.randrange(3)
        if how == 0 and chosen:
            chosen *= draw.choice((2, 3, 100))
        elif how == 1:
            chosen.append(_value(draw))
        elif chosen:
            del chosen[draw.randrange(len(chosen))]
    return plain, None


_MUTATORS: tuple[Mutator, ...] = (
    *(_flip, _cut_off, _drop_slice, _put_in, _shuffle_lines),
    *([_in_line(_replace)] * 5),
    *([_in_line(_nudge)] * 6),
    *(_in_line(_rename), _in_line(_name_twice), _in_line(_grow)),
)
