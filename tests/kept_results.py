"""Lines of a file of kept results, without the heads that stand before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


def results_in(path: Path) -> list[dict[str, Any]]:
    """Return the results that a file has, each as its line says it; a line that was not finished has none."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    finished = [line for line in lines if line.startswith(b'{"key": ') and line.endswith(b"\n")]
    return [msgspec.json.decode(line) for line in finished]
