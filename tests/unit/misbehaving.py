"""Adapters that misbehave where they are asked for anything at all; each is right in all else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from first_adapters import Right


class Unspeakable:
    """Cannot be shown, compared or hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise ValueError("no words")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    def __iter__(self) -> Any:
        raise ValueError("no items")


class OddError(Exception):
    """Cannot be put into words."""

    def __str__(self) -> str:
        raise ValueError("no words")


def endless(*arguments: Any) -> Any:
    return endless(*arguments)


def raising(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def raise_(*arguments: Any) -> Any:
        raise error()

    return raise_


def returning(value: Any) -> Callable[..., Any]:
    return lambda *arguments: value


WAYS: dict[str, Callable[..., Any]] = {
    "raises": raising(lambda: ValueError("out of order")),
    "leaves": raising(lambda: SystemExit(3)),
    "raises_odd": raising(OddError),
    "recurses": endless,
    "is_none": returning(None),
    "is_number": returning(7),
    "is_huge": returning("x" * 1_000_000),
    "is_odd": returning(Unspeakable()),
    "has_odd": returning({"available_size": Unspeakable()}),
    "is_nested": returning([[[]]]),
}
"""What a method does instead of what it should."""

METHODS = ("__init__", "claim", "sizes", "apply", "audit", "close")
VALUES: dict[str, Any] = {
    "none": None,
    "number": 7,
    "huge": "x" * 1_000_000,
    "odd": Unspeakable(),
    "empty": (),
    "lists": [[1], [2]],
    "nones": [None],
    "floats": ({"page_size": 1.5},),
    "big": ({"page_size": 10**30, "pool": "token", "slots": 10**30},),
    "negative": ({"page_size": -1, "pool": "token", "slots": -1},),
    "odd_inside": ({"page_size": Unspeakable()},),
    "odd_key": ({3: 1},),
}
"""What stands where ``CONFIGURATIONS`` or ``KIND`` should."""
ATTRIBUTES = ("CONFIGURATIONS", "KIND")
LATE = ("name", "kind", "config", "capabilities")


class Late(Right):
    """Tells no sizes once three pages are cached."""

    def sizes(self) -> Any:
        return None if len(self.cache.pages) > 2 else super().sizes()


NAMES = [f"{method.strip('_')}_{way}" for method in METHODS for way in WAYS]
NAMES += [f"{name}_{value}" for name in ATTRIBUTES for value in VALUES]
NAMES += [f"{name}_{way}" for name in LATE for way in ("is_none", "is_number", "is_huge", "is_odd", "raises")]


def _make(name: str) -> type:
    for method in METHODS:
        for way, act in WAYS.items():
            if name == f"{method.strip('_')}_{way}":
                return type(name, (Right,), {method: lambda self, *it, _act=act: _act(*it)})
    for attribute in ATTRIBUTES:
        for key, value in VALUES.items():
            if name == f"{attribute}_{key}":
                return type(name, (Right,), {attribute: value})
    attribute, _, way = name.partition("_")
    return type(name, (Right,), {attribute: property(lambda self: WAYS[way](), lambda self, value: None)})


for _name in NAMES:
    globals()[_name] = _make(_name)
    globals()[_name].__module__ = __name__
