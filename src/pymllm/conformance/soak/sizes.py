"""How much larger than an adapter's own configurations those of a soak are, by one table.

An adapter's configurations are tiny, so that collisions and pressure are common. Beside them a soak plays
some that are grown from them, in which a program needs thousands of operations to fill a pool.

| kind     | keys that grow                                     | medium | large  |
| -------- | -------------------------------------------------- | -----: | -----: |
| slots    | pages, swa_pages                                   |     16 |    256 |
| rows     | max_reqs, max_context_len                          |      4 |     -- |
| buffers  | size                                               |      4 |     -- |
| states   | max_reqs, track_slots                              |      4 |     -- |
| prefix   | slots, swa_slots (and track_slots)                 |  8 (4) | 64 (8) |
| blocks   | blocks, slots                                      |      3 |     -- |
| requests | num_blocks, max_blocks, paused_limit, max_requests |      4 |     -- |

An engine evicts a little at every step, and the judge looks at all that could have gone each time: machines
that drive one stay out of large pools. What is read as a whole after every act, such as a table of rows, does
not grow further: programs would do nothing else. Keys that a configuration lacks, or that are no number above
0 there, are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from pymllm.conformance.machines import MachineEntry
from pymllm.errors import ProgramError
from pymllm.history.config_limits import check_config
from pymllm.history.files import Config

SIZES: dict[str, int] = {"tiny": 1, "medium": 3, "large": 20}
"""Each size, and by what the length of its runs is divided: their operations take longer."""

_SLOTS = ("slots", "swa_slots")
_GROWTH: dict[str, dict[str, dict[str, int]]] = {
    "slots": {
        "medium": {"pages": 16, "swa_pages": 16},
        "large": {"pages": 256, "swa_pages": 256},
    },
    "rows": {"medium": {"max_reqs": 4, "max_context_len": 4}},
    "buffers": {"medium": {"size": 4}},
    "states": {"medium": {"max_reqs": 4, "track_slots": 4}},
    "prefix": {
        "medium": {**dict.fromkeys(_SLOTS, 8), "track_slots": 4},
        "large": {**dict.fromkeys(_SLOTS, 64), "track_slots": 8},
    },
    "blocks": {"medium": {"blocks": 3, "slots": 3}},
    "requests": {"medium": dict.fromkeys(("num_blocks", "max_blocks", "paused_limit", "max_requests"), 4)},
}
_CAPACITY: dict[str, tuple[str, str, int]] = {
    "slots": ("pages", "", 12),
    "prefix": ("slots", "page_size", 24),
}
"""The key that says how much fits, what it is divided by to count pages, and the pages of a tiny pool."""


def grow(kind: str, config: Config, size: str) -> Config | None:
    """Return an adapter's own configuration in a size of `SIZES`, ``None`` where the table has none."""
    if size == "tiny":
        return dict(config)
    # Without a pool nothing ever makes room: what a long key leaves behind stays.
    is_unbounded = size == "large" and config.get("pool") == "none"
    factors = {} if is_unbounded else _GROWTH.get(kind, {}).get(size, {})
    grown = {key: _times(config[key], factor) for key, factor in factors.items() if key in config}
    larger = {**config, **grown}
    return larger if larger != config and _is_allowed(kind, larger) else None


def _is_allowed(kind: str, config: Config) -> bool:
    """Tell whether what somebody declares may still be grown."""
    try:
        check_config(config, kind)
    except ProgramError:
        return False
    return True


def is_fit_for(machine: MachineEntry, size: str) -> bool:
    """Tell whether a machine gets anywhere in configurations of a size."""
    return size != "large" or not machine.needs


def _times(value: int | str | bool | None, factor: int) -> int | str | bool | None:
    return value * factor if type(value) is int else value


def reach_of(kind: str, config: Mapping[str, int | str | bool | None]) -> int:
    """Return how many times as long as in a tiny pool keys and allocations may be, at least 1."""
    key, unit, tiny = _CAPACITY.get(kind, ("", "", 1))
    capacity, per_page = config.get(key), config.get(unit, 1)
    if type(capacity) is not int or type(per_page) is not int:
        return 1
    return max(1, capacity // max(per_page, 1) // tiny)
