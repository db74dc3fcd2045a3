"""What somebody may have meant who typed a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]

_LONGEST = 60


def did_you_mean(asked: str, names: Iterable[str], most: int = 1) -> str:
    """Return a question in parentheses with the nearest names, behind a blank; nothing where none is near."""
    # So long a name is near to none, and looking for it would take seconds.
    found = difflib.get_close_matches(asked, list(names), n=most) if len(asked) <= _LONGEST else []
    return f" (did you mean {' or '.join(found)}?)" if found else ""
