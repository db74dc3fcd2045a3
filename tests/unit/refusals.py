"""Calls that are refused: with which error, in which words, and with nothing changed (law X1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch


class Refusal(NamedTuple):
    """A call on some object, the error that it must raise, and the error's whole message."""

    call: Callable[[Any], object]
    error: type[Exception]
    words: str


def all_refusals(*tables: Iterable[Refusal]) -> pytest.MarkDecorator:
    """Run a test for each refusal of some tables, named by its words."""
    refusals = [refusal for table in tables for refusal in table]
    return pytest.mark.parametrize("refusal", refusals, ids=[it.words[:70] for it in refusals])


def refusal_of(call: str | Callable[..., object]) -> Callable[..., Refusal]:
    """Return what makes refusals of one call: error and words come first, then what the call is given.

    A call is a method of the subject, by its name, or a function that takes the subject first.
    """

    def refuse(error: type[Exception], words: str, /, *given: Any, **named: Any) -> Refusal:
        def ask(subject: Any) -> object:
            act = attrgetter(call)(subject) if isinstance(call, str) else partial(call, subject)
            return act(*given, **named)

        return Refusal(ask, error, words)

    return refuse


def refusal_by(function: Callable[..., object]) -> Callable[..., Refusal]:
    """Return what makes refusals of a function that needs no subject."""
    return refusal_of(lambda _, *given, **named: function(*given, **named))


def size_refusals(call: Callable[..., object], **lowest: int) -> Iterator[Refusal]:
    """Yield the refusals of each named size: a value that is no int, and a value below the smallest."""
    for name, minimum in lowest.items():

        def give(subject: Any, name: str = name, value: Any = "3") -> object:
            return call(subject, **{name: value})

        def give_less(subject: Any, name: str = name, value: int = minimum - 1) -> object:
            return call(subject, **{name: value})

        yield Refusal(give, TypeError, f"{name} must be an int, got str '3'")
        yield Refusal(give_less, ValueError, f"{name} must be at least {minimum}, got {minimum - 1}")


def check_refusal(subject: Any, refusal: Refusal) -> None:
    """Demand the error of just that class with just these words, and a subject that is as it was."""
    before = picture(subject)
    with pytest.raises(refusal.error) as raised:
        refusal.call(subject)
    assert (type(raised.value), str(raised.value)) == (refusal.error, refusal.words)
    assert picture(subject) == before


def picture(subject: Any) -> Any:
    """Return everything that can be reached from an object of ours, as plain data."""
    return _look(subject, {})


_SCRATCH = "_marks"
"""Where a store tells pages apart: what is left there means nothing."""


def _look(it: Any, seen: dict[int, int]) -> Any:
    if isinstance(it, torch.Tensor):
        return str(it.dtype), str(it.device), tuple(it.shape), _bytes_of(it)
    if isinstance(it, np.ndarray):
        return str(it.dtype), it.shape, it.tobytes()
    parts = _parts_of(it)
    if parts is None:
        return repr(it)
    if id(it) in seen:
        return f"object {seen[id(it)]}"
    seen[id(it)] = len(seen)
    return type(it).__name__, [(_look(name, seen), _look(part, seen)) for name, part in parts]


def _parts_of(it: Any) -> list[tuple[Any, Any]] | None:
    """Return the named parts of an object, or nothing where it has none."""
    if isinstance(it, dict):
        return list(it.items())
    if isinstance(it, (list, tuple, set, frozenset)):
        return list(enumerate(it))
    if not (isinstance(it, SimpleNamespace) or type(it).__module__.startswith(("pymllm.", "tests."))):
        return None
    slots = [name for kind in type(it).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [name for name in (*slots, *getattr(it, "__dict__", ())) if hasattr(it, name)]
    names = [name for name in names if name != _SCRATCH]
    return [(name, getattr(it, name)) for name in names]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bits; one without memory has none."""
    if tensor.is_meta or not tensor.numel():
        return b""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy())
