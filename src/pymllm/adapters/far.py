"""Configurations with addresses beyond 32 bits, in virtual memory of which few pages are used.

What is read as a whole has few numbers, or a program would do nothing else. So the pool has many rows, and a
program names one of so many: its row 3 is row 3 * ``apart`` of the pool. Memory that nobody has touched does
not exist, so a pool of 9 GiB takes a few MiB. Where the machine has no such memory, nothing far is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pymllm.history.files import Config

_APART: Final = 2**26
_SHAPES: Final[Config] = {"layers": 1, "dtype": "float8_e4m3fn", "apart": _APART}

FAR: Final[Mapping[str, tuple[Config, ...]]] = {
    "kv-buffers": (
        {"size": 9, "page_size": 1, "k_heads": 1, "k_dim": 8, "v_heads": 2, "v_dim": 4, **_SHAPES},
    ),
    "gdn-states": (
        {
            **{"max_reqs": 9, "track_slots": 2, "v_heads": 1, "k_dim": 2, "v_dim": 1},
            **{"conv_dim": 4, "kernel": 3, **_SHAPES},
        },
    ),
}
"""The configurations of widely spaced rows, by adapter. A row has eight bytes everywhere, of eight elements
where these are small: half of the rows lie behind 2**31 bytes and elements, the last ones behind 2**32."""

FAR_BYTES: Final = 9 * _APART * 8
"""The size of each buffer in bytes, without padding."""


def why_not_far(needed: int = FAR_BYTES) -> str | None:
    """Return the reason why a buffer of so many bytes cannot be allocated, or ``None``.

    Few of its pages will exist, but Linux refuses at once what is more than all of its memory.
    """
    import psutil  # type: ignore[import-untyped]  # only where something is so far

    available = psutil.virtual_memory().available
    if needed <= available:
        return None
    return (
        f"a buffer of {needed / 2**30:.1f} GiB is needed, of which few pages will exist, and "
        f"{available / 2**30:.1f} GiB are available; take a machine with more memory"
    )
