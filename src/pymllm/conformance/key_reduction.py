"""Shorter keys and fewer of them: what operations have in common stays common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pymllm.conformance.reduction import Reduction
from pymllm.conformance.span_reduction import cut_spans
from pymllm.history.operations import Insert, Key, Operation, Token

__all__ = ["merge_tokens", "shorten_keys"]


Program = tuple[Operation, ...]


def shorten_keys(reduction: Reduction) -> None:
    """Cut whole pages out of keys, then single tokens: for all that share them, then for one alone."""
    page_size = reduction.program.config.get("page_size")
    units = (page_size, 1) if type(page_size) is int and page_size > 1 else (1,)
    for unit in units:
        for is_shared in (True, False):
            while any(
                reduction.attempt(shorter) for shorter in _shorter(reduction.operations, unit, is_shared)
            ):
                pass


def _shorter(
    operations: tuple[Operation, ...], unit: int, is_shared: bool
) -> Iterator[tuple[Operation, ...]]:
    """Yield programs in which some tokens of a key are gone, those first in which many are."""
    keys = [(at, key) for at, operation in enumerate(operations) if (key := _key_of(operation)) is not None]
    seen = set()
    for at, key in sorted(keys, key=lambda item: -len(item[1].tokens)):
        if is_shared and (key.extra_key, key.tokens) in seen:
            continue
        seen.add((key.extra_key, key.tokens))
        for start, stop in _ranges(len(key.tokens), unit):
            shared = key.tokens[:stop]
            yield tuple(
                _cut(operation, start, stop)
                if other == at or (is_shared and _begins(operation, key.extra_key, shared))
                else operation
                for other, operation in enumerate(operations)
            )


def _ranges(length: int, unit: int) -> Iterator[tuple[int, int]]:
    """Yield what to cut out, in whole units from the end on: a half, a quarter, and so on."""
    size = length // unit // 2 or 1
    while size:
        for stop in range(length // unit * unit, 0, -size * unit):
            yield max(stop - size * unit, 0), stop
        size //= 2
    if length % unit:
        yield length // unit * unit, length


def _key_of(operation: Operation) -> Key | None:
    key = getattr(operation, "key", None)
    return key if isinstance(key, Key) else None


def _begins(operation: Operation, space: str | int | None, tokens: Sequence[Token]) -> bool:
    key = _key_of(operation)
    return key is not None and key.extra_key == space and key.tokens[: len(tokens)] == tokens


def _cut(operation: Any, start: int, stop: int) -> Any:
    """Cut tokens out of an operation's key, and with them their slots."""
    key = operation.key
    changes: dict[str, Any] = {"key": replace(key, tokens=key.tokens[:start] + key.tokens[stop:])}
    if isinstance(operation, Insert):
        if operation.slots is not None:
            changes["slots"] = cut_spans(operation.slots, start, stop)
        for name in ("prev_prefix_len", "swa_evicted_seqlen"):
            length = getattr(operation, name)
            changes[name] = length - max(0, min(length, stop) - start)
    return replace(operation, **changes)


def merge_tokens(reduction: Reduction) -> None:
    """Let the tokens of all keys count from 1, then let two be one: families, and branches of a family."""
    tokens = _tokens(reduction.operations)
    ranks = {token: rank for rank, token in enumerate(tokens, 1)}
    reduction.attempt(_with_tokens(reduction.operations, lambda token: ranks.get(token, token)))
    is_merging = True
    while is_merging:
        tokens = _tokens(reduction.operations)
        pairs = [(gone, kept) for gone in reversed(tokens) for kept in tokens if kept < gone]
        is_merging = any(reduction.attempt(_merged(reduction.operations, *pair)) for pair in pairs)


def _merged(operations: Program, gone: int, kept: int) -> Program:
    return _with_tokens(operations, lambda token: kept if token == gone else token)


def _tokens(operations: Sequence[Operation]) -> list[int]:
    """Return the numbers that stand in keys, in ascending order."""
    keys = [key for operation in operations if (key := _key_of(operation)) is not None]
    return sorted({number for key in keys for token in key.tokens for number in _numbers(token)})


def _numbers(token: Token) -> tuple[int, ...]:
    return token if isinstance(token, tuple) else (token,)


def _with_tokens(operations: Sequence[Operation], change: Callable[[int], int]) -> tuple[Operation, ...]:
    return tuple(_with_token_changed(operation, change) for operation in operations)


def _with_token_changed(operation: Any, change: Callable[[int], int]) -> Any:
    key = _key_of(operation)
    if key is None:
        return operation
    tokens = tuple(
        tuple(change(number) for number in token) if isinstance(token, tuple) else change(token)
        for token in key.tokens
    )
    return replace(operation, key=replace(key, tokens=tokens))
