"""Which devices CUDA shows this process, told from its environment alone."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pymllm.instrument.reading import Unreadable

__all__ = ["VARIABLE", "is_uuid", "visible_name"]

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NUMBER = re.compile(r"\s*([+-]?\d+)")


def is_uuid(name: str) -> bool:
    """Whether a name is the UUID of a GPU or of a MIG instance, or how one begins."""
    return name.startswith(("GPU-", "MIG-"))


def visible_name(index: int, environment: Mapping[str, str]) -> int | str:
    """Return what NVML must be asked for: the device that CUDA gives this index.

    Parameters
    ----------
    index : int
        As CUDA counts in this process.
    environment : mapping
        Of the process, such as ``os.environ``.

    Returns
    -------
    int or str
        An index of the machine, or a UUID or its beginning.

    Raises
    ------
    Unreadable
        When CUDA shows no device of that index.

    Notes
    -----
    As CUDA reads the variable: unset means all, empty means none, a UUID may be cut short, a negative or
    malformed entry ends the list, and a device named twice empties it.
    """
    text = environment.get(VARIABLE)
    if text is None:
        return index
    names = _names(text)
    if len(set(names)) < len(names):
        raise Unreadable(f"{VARIABLE}={text!r} names a device twice, for which CUDA shows none")
    if index >= len(names):
        devices = "1 device" if len(names) == 1 else f"{len(names)} devices"
        raise Unreadable(f"{VARIABLE}={text!r} shows {devices}, so none has index {index}")
    return names[index]


def _names(text: str) -> list[int | str]:
    """Return the entries up to the first that is none."""
    names: list[int | str] = []
    for entry in text.split(","):
        name = entry.strip()
        if is_uuid(name):
            names.append(name)
            continue
        number = _NUMBER.match(name)
        if number is None or int(number[1]) < 0:
            break
        names.append(int(number[1]))
    return names
