"""Smaller pools and pages: the least configuration in which the law is still broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pymllm.conformance.reduction import Reduction
from pymllm.history.files import Config
from pymllm.history.operations import Alloc, Evict, Insert, Key, Operation, Span

__all__ = ["shrink_pages", "shrink_pools"]

_IN_TOKENS = ("slots", "swa_slots", "window")
"""Keys of a configuration that count tokens."""
_OF_PAGES = ("slots", "swa_slots")
"""Those of them that are whole pages."""


def shrink_pools(reduction: Reduction) -> None:
    """Lower each number of the configuration as far as it goes."""
    for key in list(reduction.program.config):
        while _lower(reduction, key):
            pass


def _lower(reduction: Reduction, key: str) -> bool:
    value = reduction.program.config[key]
    if type(value) is not int:
        return False
    page_size = reduction.program.config.get("page_size")
    unit = page_size if key in _OF_PAGES and type(page_size) is int and page_size > 0 else 1
    counts = dict.fromkeys((1, value // unit // 2, value // unit - 1))
    smaller = [count * unit for count in counts if 0 < count * unit < value]
    return any(reduction.attempt(reduction.operations, **{key: size}) for size in smaller)


def shrink_pages(reduction: Reduction) -> None:
    """Let a page be one token: the first of each page, of keys as of slots."""
    page_size = reduction.program.config.get("page_size")
    if type(page_size) is int and page_size > 1:
        config = _scaled(reduction.program.config, page_size)
        reduction.attempt(_with_pages_of_one(reduction.operations, page_size), **config)


def _scaled(config: Config, size: int) -> Config:
    scaled: Config = {"page_size": 1}
    for key in _IN_TOKENS:
        value = config.get(key)
        if type(value) is int:
            scaled[key] = -(-value // size)
    return scaled


def _with_pages_of_one(operations: Sequence[Operation], size: int) -> tuple[Operation, ...]:
    def change(record: Any) -> Any:
        if isinstance(record, Key):
            return replace(record, tokens=record.tokens[::size])
        if isinstance(record, Span):
            # Of a track slot there is one, whatever a page is.
            is_one = record.stop - record.start == 1 and record.start == 0
            return record if is_one else Span(record.step, record.start // size, -(-record.stop // size))
        if isinstance(record, tuple):
            return tuple(change(item) for item in record)
        if not is_dataclass(record):
            return record  # a number or a word, in a tuple
        if isinstance(record, Alloc | Evict):
            record = replace(record, tokens=-(-record.tokens // size))
        if isinstance(record, Evict):
            return replace(record, secondary=-(-record.secondary // size))
        if isinstance(record, Insert):
            record = replace(
                record,
                prev_prefix_len=record.prev_prefix_len // size,
                swa_evicted_seqlen=record.swa_evicted_seqlen // size,
            )
        changes = {
            field.name: change(value)
            for field in fields(record)
            if isinstance(value := getattr(record, field.name), Key | Span | tuple)
        }
        return replace(record, **changes) if changes else record

    return tuple(change(operation) for operation in operations)
