"""A caching allocator of a device that does not exist, with torch's counters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pymllm.instrument.reading import BYTES, Reading

SEGMENT = 2 << 20
BLOCK = 512


class FakeAllocator:
    """An allocator that takes whole segments from the device, and keeps freed memory until asked.

    ``pinned`` are segments that it cannot give back: each still has a block of somebody.
    """

    def __init__(
        self, backend: str = "native", missing: str | None = None, uncounted: str | None = None
    ) -> None:
        self.missing = missing
        self.uncounted = uncounted  # why it tells nothing, though it is in use
        self.kind = backend
        self.live = 0
        self.given = 0
        self.reserved = 0
        self.pinned = 0
        self.peaks = {"allocated": 0, "reserved": 0}
        self.retries = 0
        self.ooms = 0
        self.history: int | None = None
        self.dumped: list[Path] = []
        self.settled = 0
        self.private = 0  # bytes that a graph's pool keeps for no tensor
        self.host = 0  # bytes of pinned host memory

    # -- as a program uses it ----------------------------------------------------------------------------

    def allocate(self, size: int) -> None:
        self.live += -(-size // BLOCK) * BLOCK
        self.given += size
        while self.reserved < self.live:
            self.reserved += SEGMENT
        self._rise()

    def free(self, size: int) -> None:
        self.live -= -(-size // BLOCK) * BLOCK

    def _rise(self) -> None:
        self.peaks["allocated"] = max(self.peaks["allocated"], self.live)
        self.peaks["reserved"] = max(self.peaks["reserved"], self.reserved)

    # -- as an instrument asks it ------------------------------------------------------------------------

    @property
    def identity(self) -> Hashable:
        return id(self)

    def is_in_use(self) -> bool:
        return self.missing is None

    def why_not(self) -> str | None:
        return self.missing or self.uncounted

    def backend(self) -> str:
        return self.kind

    def stats(self) -> Mapping[str, int]:
        assert self.why_not() is None, "asked although it said that it cannot be"
        return {
            "allocated_bytes.all.allocated": self.given,
            "allocated_bytes.all.current": self.live,
            "allocated_bytes.all.peak": self.peaks["allocated"],
            "reserved_bytes.all.current": self.reserved,
            "reserved_bytes.all.peak": self.peaks["reserved"],
            "active_bytes.all.current": self.live,
            "active_bytes.all.peak": self.peaks["allocated"],
            "inactive_split_bytes.all.current": self.reserved - self.live,
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
        }

    def reset_peak(self) -> None:
        self.peaks = {"allocated": self.live, "reserved": self.reserved}

    def settle(self) -> None:
        self.settled += 1

    def release_cache(self) -> None:
        needed = -(-self.live // SEGMENT) + self.pinned
        self.reserved = min(self.reserved, needed * SEGMENT)

    def segments(self) -> Sequence[Mapping[str, Any]]:
        pool = {"segment_pool_id": (0, 1), "total_size": self.private, "allocated_size": 0, "blocks": []}
        return [pool] if self.private else []

    def pinned_host(self) -> Reading:
        reason = self.why_not()
        return Reading(self.host, BYTES) if reason is None else Reading.unknown(BYTES, reason)

    def is_recording(self) -> bool:
        return self.history is not None

    def record_stacks(self, on: bool) -> None:
        self.history = 0 if on else None

    def record_history(self, entries: int | None) -> None:
        self.history = entries

    def dump(self, path: Path) -> None:
        self.dumped.append(path)
