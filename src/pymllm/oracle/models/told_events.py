"""The blocks that cache events report as cached, and oddities in the events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymllm.errors import ProgramError
from pymllm.history.operations import Token
from pymllm.history.outcomes import CacheEvent, Outcome, ToldEvents
from pymllm.oracle.models.kind_model import Seen

PARTS = ("kv", "window", "state")
"""The memories in which a block may be cached, by their names in events."""

Hash = int | str
Content = Any
"""The identity of a cached block, which can be compared; its type depends on the kind."""

Below = Callable[[Content | None, CacheEvent, Hash, tuple[Token, ...]], Content]
"""A function that makes a block's identity from its parent's (or ``None``), its event, hash and tokens."""


@dataclass(slots=True, kw_only=True)
class SeenEvents(Seen):
    """Events as read: the blocks that they report as cached, and those that are cached.

    ``told`` has the content of each part of each block, by part and hash. ``odd``: what the first event does
    that no event may: the thing, what was expected, and what was told.
    """

    told: dict[tuple[str, Hash], Content] = field(default_factory=dict)
    cached: Mapping[str, Collection[Content]] = field(default_factory=dict)
    events: Sequence[CacheEvent] = ()
    odd: tuple[str, object, object] | None = None

    def told_of(self, part: str) -> set[Content]:
        """Return the blocks that the events report as cached in a part."""
        return {content for (of, _), content in self.told.items() if of == part}


class EventFold:
    """The blocks reported by one implementation's events so far, which begin with an empty cache.

    ``block_size``: tokens of a block, ``None`` where events have no tokens. ``below``: makes contents.
    """

    def __init__(self, block_size: int | None, below: Below) -> None:
        self._block_size = block_size
        self._below = below
        self.told: dict[tuple[str, Hash], Content] = {}

    def read(self, outcome: Outcome, cached: Mapping[str, Collection[Content]]) -> Seen:
        """Compare events with the blocks that are cached, by part, without recording the events."""
        result = outcome.result
        if not isinstance(result, ToldEvents):
            return Seen(result)
        seen = SeenEvents(result, told=dict(self.told), cached=cached, events=result.events)
        known = {(part, content): hash for (part, hash), content in seen.told.items()}
        for number, event in enumerate(result.events, 1):
            wrong = self._take(seen.told, known, event)
            if wrong is not None:
                what, expected, observed = wrong
                seen.odd = (f"event {number}, {what}", expected, observed)
                break
        return seen

    def follow(self, seen: SeenEvents) -> None:
        """Record the events that were read."""
        self.told = seen.told

    def _take(
        self,
        told: dict[tuple[str, Hash], Content],
        known: dict[tuple[str, Content], Hash],
        event: CacheEvent,
    ) -> tuple[str, object, object] | None:
        part = event.part
        if event.kind not in ("stored", "removed", "cleared") or part not in PARTS:
            raise ProgramError(
                f"an event has kind {event.kind!r} and part {part!r}; it must be stored, removed or cleared, "
                f"of {', '.join(PARTS)}"
            )
        if event.kind == "cleared":
            told.clear()
            known.clear()
        elif event.kind == "removed":
            for hash in event.hashes:
                if (part, hash) not in told:
                    return f"the removal of {part} of {hash}", "one that was told", "it was not"
                known.pop((part, told.pop((part, hash))), None)
        else:
            return self._store(told, known, event)
        return None

    def _store(
        self,
        told: dict[tuple[str, Hash], Content],
        known: dict[tuple[str, Content], Hash],
        event: CacheEvent,
    ) -> tuple[str, object, object] | None:
        part, size = event.part, self._block_size
        tokens = None if event.tokens is None else len(event.tokens)
        due = None if size is None else size * len(event.hashes)
        if tokens != due:
            return "the tokens of its blocks", due, tokens
        above: Content | None = None
        if event.parent is not None:
            if ("kv", event.parent) not in told:
                return (
                    "the parent of its first block",
                    f"{event.parent} was told",
                    "it was not, or is removed",
                )
            above = told["kv", event.parent]
        for place, hash in enumerate(event.hashes):
            own = () if size is None else (event.tokens or ())[place * size : (place + 1) * size]
            above = self._below(above, event, hash, own)
            if (part, hash) in told:
                return f"{part} of {hash}", "told once while it is there", "told again"
            other = known.get((part, above))
            if other is not None:
                return f"the hash of a block of {part}", other, hash
            told[part, hash] = above
            known[part, above] = hash
        return None
