"""A record of GPU memory as text for people, and as plain data for programs."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
from collections.abc import Sequence
from typing import Any

from pymllm.instrument.nvml_record import MemoryCurve
from pymllm.instrument.reading import BYTES, Reading
from pymllm.testing.gpu_memory import GpuMemoryRecord, LimitVerdict

SCHEMA = "pymllm.gpu-memory"
VERSION = 1

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_POINTS = 240  # of a curve in a log


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Draw values in order of time as one line of bars, each the highest of its share: no peak is lost."""
    if not values:
        return ""
    count = min(width, len(values))
    edges = [len(values) * place // count for place in range(count + 1)]
    highest = [max(values[start:stop]) for start, stop in itertools.pairwise(edges)]
    low, span = min(values), max(values) - min(values)
    steps = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / span * steps) if span else 0] for value in highest)


def curve_text(curve: MemoryCurve) -> str:
    """Return a curve with its numbers, or that there is none."""
    if not len(curve):
        return "no sample of the device's memory"
    peak = max(range(len(curve)), key=curve.used.__getitem__)
    low, high = (Reading(value, BYTES) for value in (min(curve.used), curve.used[peak]))
    return (
        f"{sparkline(curve.used)}\n"
        f"{low} to {high}, highest after {curve.times[peak]:.2f} s; {len(curve)} samples in"
        f" {curve.times[-1]:.2f} s"
    )


def record_text(record: GpuMemoryRecord, verdict: LimitVerdict | None = None) -> str:
    """Return what is known of a test's memory, a few lines."""
    lines = [] if verdict is None else [str(verdict)]
    if record.nvml.device is None:
        lines.append(f"device: not watched: {record.nvml.reason}")
    else:
        lines += [curve_text(record.nvml.curve), str(record.nvml)]
    torch = record.torch
    if torch.allocated_peak.is_known:
        lines += [
            f"tensors: {torch.start.allocated} before, {torch.allocated_peak} at most,"
            f" {torch.end.allocated} after",
            f"torch's allocator reserved: {torch.start.reserved} before, {torch.reserved_peak} at most,"
            f" {torch.end.reserved} after",
            f"retries: {torch.alloc_retries}; out of memory: {torch.ooms}",
            f"taken beside the allocator, at least: {record.beside}",
        ]
    else:
        lines.append(f"torch's allocator: not watched: {torch.allocated_peak.reason}")
    return "\n".join(lines)


def make_line(
    test: str,
    worker: str,
    record: GpuMemoryRecord,
    verdict: LimitVerdict | None,
    untouched: str | None = None,
) -> str:
    """Return one line of JSON about a test, without its end, for a log that dashboards are made of.

    The worker is pytest-xdist's, or ``"main"``; ``untouched`` says how it is known that a test which is
    marked for a GPU touched none. Of a long curve, evenly spread samples are kept, the last one
    always.
    """
    plain = dataclasses.asdict(record)
    plain["nvml"]["curve"] = {key: _thinned(values) for key, values in plain["nvml"]["curve"].items()}
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "test": test,
        "worker": worker,
        "limit": None if verdict is None else dataclasses.asdict(verdict),
        "untouched": untouched,
        **plain,
    }
    return json.dumps(document, default=_plain)


def gpu_memory_schema() -> dict[str, Any]:
    """Describe one line of the log as a JSON schema."""
    from pymllm.history.schema import schema_of  # a log is written without msgspec

    record = schema_of(GpuMemoryRecord)
    first: dict[str, Any] = {
        "schema": {"const": SCHEMA},
        "version": {"const": VERSION},
        "test": {"type": "string"},
        "worker": {"type": "string"},
        "limit": {"anyOf": [schema_of(LimitVerdict), {"type": "null"}]},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of the log of pytest --gpu-memory-log",
        **record,
        "properties": {**first, "untouched": {"type": ["string", "null"]}, **record["properties"]},
        "required": [*first, *record["required"]],
    }


def _thinned(values: Sequence[float]) -> list[float]:
    stride = -(-len(values) // _POINTS) or 1
    return list(values[::-1][::stride])[::-1]


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"{value!r} has no place in a log")
