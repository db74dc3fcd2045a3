"""The version of this package, to the last line of its source."""

from __future__ import annotations

import hashlib
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
