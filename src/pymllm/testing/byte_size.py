"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

__all__ = ["parse_bytes"]

_UNITS = {
    "B": 1,
    **{f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}B": int(10 ** (3 * power)) for power, prefix in enumerate("kMGT", 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_bytes(size: int | str) -> int:
    """Return a number of bytes.

    Parameters
    ----------
    size : int or str
        Bytes, or a number with a unit: ``"2 GiB"``, ``"512MiB"``, ``"1.5 GB"``.

    Raises
    ------
    ValueError
        When it is none of these, or negative.
    TypeError
        When it is neither a number nor a text.
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"size must be a number of bytes or a text such as '2 GiB', got {size!r}")
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"size must be at least 0, got {size}")
        return size
    found = _SIZE.fullmatch(size.strip())
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"size is {size!r}; write a number and one of {', '.join(_UNITS)}, such as '2 GiB'")
    return round(float(found[1]) * _UNITS[found[2]])
