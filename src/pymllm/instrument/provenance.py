"""The origin of a figure: the version and source digest of this package, and the processor."""

from __future__ import annotations

import hashlib
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

from pymllm import __version__


@cache
def build_version() -> str:
    """Return this package's version with a digest of its source, so that no change passes unnoticed."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}+{digest.hexdigest()[:12]}"


def find_processor() -> str:
    """Return the processor's model, from a file on Linux and otherwise from the system."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
