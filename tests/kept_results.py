"""Lines of a file of kept results, without the heads that stand before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec


def results_in(path: Path) -> list[dict[str, Any]]:
    """Return the results that a file has, each as its line says it; a line that was not finished has none."""
    return [*_results_of(path.read_bytes())] if path.exists() else []


def _results_of(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines(keepends=True):
        if line.startswith(b'{"key": ') and line.endswith(b"\n"):
            with suppress(msgspec.DecodeError):  # somebody went on behind it
                yield msgspec.json.decode(line)
