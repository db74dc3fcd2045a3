"""Names of adapters as parts of names of files."""

from __future__ import annotations

import hashlib
import re

__all__ = ["file_name_of"]

_LONGEST = 100


def file_name_of(name: str) -> str:
    """Make a name that may be ``module:Class`` or a whole command one of a file.

    Two long ones that begin alike differ in their ends, which stand for all of them.
    """
    safe = re.sub(r"[^\w.-]+", "-", name)
    if len(safe) <= _LONGEST:
        return safe
    return f"{safe[:_LONGEST]}-{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:8]}"
