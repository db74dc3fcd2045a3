"""Turn the log of ``pytest --gpu-memory-log`` into figures that github-action-benchmark stores and plots.

::

    python gpu_memory_figures.py gpu.jsonl > figures.json

The result is an array for its tool ``customSmallerIsBetter``: the peak of each test's tensors, and of the
device. What was not read is left out: a zero would look like a success.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any


def figures(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return one entry for each figure that was read."""
    found = []
    for line in lines:
        test = json.loads(line)
        device = "" if test.get("index") is None else f" on cuda:{test['index']}"
        peaks = {"tensors": test["torch"]["allocated_peak"], "device": test["nvml"]["used_peak"]}
        found += [
            {"name": f"{test['test']}{device}: {what}", "unit": reading["unit"], "value": reading["value"]}
            for what, reading in peaks.items()
            if reading["value"] is not None
        ]
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python gpu_memory_figures.py LOG > FIGURES")
    try:
        with open(sys.argv[1], encoding="utf-8") as log:
            found = figures(log)
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"{sys.argv[1]}: no log of pytest --gpu-memory-log: {error!r}")
    json.dump(found, sys.stdout, indent=2)
