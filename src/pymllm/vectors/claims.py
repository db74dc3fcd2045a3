"""The vectors that an implementation can play by its claims, and common sets of claims."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pymllm.history.claims import all_claims
from pymllm.history.files import Config
from pymllm.vectors.format import TWICE, Vector

_TOLD_BY: Final = {
    "window": frozenset({"swa"}),
    "swa_pages": frozenset({"swa"}),
    "track_slots": frozenset({"mamba"}),
    "policy": frozenset({"exact_policy", "ranked_policy"}),
}
"""Settings of prefix caches and allocators, with the claims of which each setting needs one."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """An implementation described by its claims; without ``claims`` it has all, in any configuration.

    ``page_size``: 1 for pages of one token, more for pages of several, ``None`` for who can have both.
    """

    kind: str
    claims: frozenset[str] | None = None
    page_size: int | None = None

    def plays(self, kind: str, vector: Vector) -> bool:
        """Tell whether the implementation claims a vector's needs and supports its configuration."""
        if kind != self.kind:
            return False
        size = vector.config.get("page_size")
        if self.page_size is not None and size is not None and (size == 1) != (self.page_size == 1):
            return False
        if self.claims is None:
            return True
        claims = all_claims(self.claims)
        return set(vector.needs) - {TWICE} <= claims and _can_be_built(kind, vector.config, claims)


def _can_be_built(kind: str, config: Config, claims: Collection[str]) -> bool:
    """Tell whether an implementation with exactly these claims can be built with a configuration."""
    if kind not in ("prefix", "slots"):
        return True
    is_told = all(config.get(name) is None or not told.isdisjoint(claims) for name, told in _TOLD_BY.items())
    if kind == "slots":
        return is_told
    pools = {"none"} if "pool" not in claims else {"token", "swa"} if "swa" in claims else {"token"}
    return is_told and config.get("pool") in pools and config.get("retains") is not False


PLAIN: Final = Claimant("prefix", frozenset({"pool", "extra_key", "exact_lru"}), 1)
"""The claims of a plain prefix cache: tokens as pages, an own pool, namespaces, strict recency."""

_MORE: Final = PLAIN.claims or frozenset()

TYPICAL: Final[tuple[tuple[str, Claimant], ...]] = (
    ("prefix cache, pages of one token", PLAIN),
    ("prefix cache, pages of several tokens", Claimant("prefix", PLAIN.claims, 2)),
    ("prefix cache, pages of any size", Claimant("prefix", PLAIN.claims)),
    ("the same with a window", Claimant("prefix", _MORE | {"swa", "exact_windows"})),
    ("the same with recurrent states", Claimant("prefix", _MORE | {"mamba"})),
    ("slot allocator", Claimant("slots", frozenset({"pool"}))),
    ("slot allocator with halves", Claimant("slots", frozenset({"pool", "swa"}))),
)
"""Common sets of claims, with their names."""


def percent(some: int, of: int) -> str:
    """Return a share in per cent with one digit, rounded down so that only all are 100.0 %."""
    tenths = 1000 * some // max(of, 1)
    return f"{tenths // 10}.{tenths % 10} %"
