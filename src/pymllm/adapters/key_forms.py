"""Keys and index tensors in every form that callers use, made from plain data."""

from __future__ import annotations

import array
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pymllm.history.operations import Key, Namespace, Token
from pymllm.mem_cache.base_prefix_cache import RadixKey

CONTAINERS: dict[str, Callable[[Sequence[Token]], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": lambda tokens: array.array("I", tokens),
    "int32": lambda tokens: np.array(tokens, dtype=np.int32),
    "int64": lambda tokens: np.array(tokens, dtype=np.int64),
    # By way of NumPy in 1.1 us; torch itself takes 2.9.
    "tensor32": lambda tokens: torch.from_numpy(np.array(tokens, dtype=np.int32)),
    "tensor64": lambda tokens: torch.from_numpy(np.array(tokens, dtype=np.int64)),
}
"""The function that makes the container of each `Key.form` (K1)."""

SCRAP = 3
"""The value that an overwritten container holds."""


def make_tokens(key: Key) -> Any:
    """Return the tokens in the container that the key's form names; pairs need a list or tuple."""
    if key.form not in CONTAINERS:
        raise ValueError(f"form is {key.form!r}; it must be one of {', '.join(CONTAINERS)}")
    if key.tokens and isinstance(key.tokens[0], tuple) and key.form != "tuple":
        return list(key.tokens)
    return CONTAINERS[key.form](key.tokens)


def make_radix_key(key: Key) -> RadixKey:
    """Return the key as a `RadixKey`."""
    return RadixKey(make_tokens(key), key.extra_key)


def spell_namespace(extra_key: Namespace) -> str | None:
    """Return a namespace of one value as non-empty text, different for texts and numbers.

    `ValueError` where it has several values, which only who claims their dimensions is given.
    """
    if isinstance(extra_key, tuple):
        raise ValueError(f"the namespace {extra_key!r} has several values; spell each by itself")
    return None if extra_key is None else f"{'i' if isinstance(extra_key, int) else 's'}:{extra_key}"


def read_namespace(spelled: str | None) -> str | int | None:
    """Return the namespace of a text from `spell_namespace`."""
    if spelled is None:
        return None
    return int(spelled[2:]) if spelled.startswith("i:") else spelled[2:]


def clobber(container: Any) -> None:
    """Overwrite a container, as its owner may do after a call has returned (X5)."""
    if isinstance(container, torch.Tensor):
        container.fill_(SCRAP)
    elif isinstance(container, np.ndarray):
        container.fill(SCRAP)
    elif not isinstance(container, tuple):
        for position in range(len(container)):
            container[position] = SCRAP


def make_indices(numbers: Sequence[int], form: str) -> torch.Tensor:
    """Return slots, rows or other numbers as a tensor of the named form.

    A form is a dtype, and ``strided`` (a view with gaps) or ``2d`` (one row) or nothing: ``"int64 2d"``.
    `ValueError` where there is no such form, `RuntimeError` where a number does not fit the dtype.
    """
    dtype, layout = _parse_form(form)
    array = _ARRAYS.get(dtype)
    if array is None:
        return _LAYOUTS[layout](torch.tensor(numbers, dtype=getattr(torch, dtype)))
    try:
        # In a third of the time that torch takes for a few numbers; and torch wraps -1 to 255 without a word.
        flat = torch.from_numpy(np.array(numbers, dtype=array))
    except OverflowError as error:
        raise RuntimeError(f"{numbers} as {dtype}: {error}") from error
    return _LAYOUTS[layout](flat) if layout else flat


@functools.lru_cache(maxsize=256)
def _parse_form(form: str) -> tuple[str, str]:
    dtype, _, layout = form.partition(" ")
    if layout not in _LAYOUTS or not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"form is {form!r}; it must be a dtype, and strided, 2d or nothing")
    return dtype, layout


_ARRAYS: dict[str, type[np.generic]] = {
    made.__name__: made
    for made in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
}
"""NumPy dtypes for integer tensors; torch makes all others itself."""
_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda flat: flat,
    "strided": lambda flat: torch.stack((flat, flat), dim=1)[:, 0],
    "2d": lambda flat: flat.unsqueeze(0),
}
