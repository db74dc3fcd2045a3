"""What watches an engine: content check, audits, an onlooker, and a count of the tests of each law."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence

from pymllm.errors import InvariantViolation
from pymllm.workloads import engine_audit
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_forward import SimulatedForward
from pymllm.workloads.engine_pools import EnginePools
from pymllm.workloads.engine_recurrent import SimulatedRecurrent
from pymllm.workloads.live_request import LiveRequest

__all__ = ["EngineWatch", "Event", "Onlooker"]


class Event(enum.Enum):
    """Something that happens to a request; told before anything is given back or forgotten."""

    REJECTED = "rejected"
    """It could never fit."""
    ADMITTED = "admitted"
    """It has a row, which names the prefix that it holds."""
    REFUSED = "refused"
    """It holds its prefix, but rows or memory do not suffice; it goes on waiting without the hold."""
    DUPLICATED = "duplicated"
    """Others have cached meanwhile what it computed; its duplicates are about to be given back."""
    UNCACHED = "uncached"
    """The cache took nothing of what it computed, and has nothing of it: the window would be dead."""
    SNAPSHOT_SKIPPED = "snapshot skipped"
    """A state was due to be cached, but no track slot could be had."""
    STATE_DUPLICATED = "state duplicated"
    """Others have cached meanwhile the state that it has saved; its track slot is about to be given back."""
    PAUSED = "paused"
    """It is about to be set aside with what it has, because memory ran out."""
    RESUMED = "resumed"
    """It goes on where it was set aside."""
    RETRACTED = "retracted"
    """It goes back into the queue, because memory ran out."""
    ABORTED = "aborted"
    """It ends without finishing; a row, if it has one, is about to be given back."""
    FINISHED = "finished"
    """It has produced its last token; its sequence is about to be cached."""


Onlooker = Callable[[Event, LiveRequest], None]
"""Who is told of events; it must not touch what it sees."""

_EXITS = frozenset({Event.REFUSED, Event.RETRACTED, Event.ABORTED, Event.FINISHED})


class EngineWatch:
    """Runs the engine's checks and counts them.

    Parameters
    ----------
    config : EngineConfig
        Already rounded.
    pools : EnginePools
        The engine's.
    onlooker : callable, optional
        Told of every event.

    Attributes
    ----------
    forward : SimulatedForward or None
        Writes and compares content, where the configuration asks for it.
    recurrent : SimulatedRecurrent or None
        The same for states, where the cache keeps any.
    tested : Counter of str
        How often each law was tested and held, by its id; a test that could not have failed is not counted.
    """

    def __init__(self, config: EngineConfig, pools: EnginePools, onlooker: Onlooker | None = None) -> None:
        self.forward: SimulatedForward | None = None
        if config.content_check:
            self.forward = SimulatedForward(config, pools.swa_allocator, pools.allocator.size)
        self.recurrent: SimulatedRecurrent | None = None
        if config.content_check and pools.kind.state_pool is not None:
            self.recurrent = SimulatedRecurrent(pools.kind.state_pool, config.seed)
        self.tested: Counter[str] = Counter()
        self._config = config
        self._pools = pools
        self._onlooker = onlooker
        self._exits = 0
        self._audited_operations = -1

    def notice(self, event: Event, live: LiveRequest) -> None:
        """Take note of an event and tell the onlooker."""
        self._exits += event in _EXITS
        if self._onlooker is not None:
            self._onlooker(event, live)

    @property
    def content_tokens(self) -> int:
        """KV rows compared so far; 0 where content is not checked."""
        return 0 if self.forward is None else self.forward.checked_tokens

    def note_copy(self, source: int, destination: int) -> None:
        """Take note that a state was copied from row to row."""
        if self.recurrent is not None:
            self.recurrent.note_copy(source, destination)

    def note_reset(self, row: int) -> None:
        """Take note that a working state was reset."""
        if self.recurrent is not None:
            self.recurrent.note_reset(row)

    def check_row(self, live: LiveRequest) -> None:
        """Read a request's row, window and state back, where content is checked (laws E1, S1)."""
        if self.forward is not None and live.length:
            row = self._pools.rows.req_to_token[live.row, : live.length]
            self.forward.check_row(live.request_id, row, live.fingerprints[: live.length])
            self.tested["E1"] += 1
        if self.recurrent is not None:
            self.recurrent.check(live)

    def check_work(self, live: LiveRequest) -> None:
        """Check that a request that is admitted has a token left to compute (law E4).

        Raises
        ------
        InvariantViolation
            E4: its whole prompt is a hit, and nothing would give it its next token.
        """
        if live.length >= live.prompt_length:
            raise InvariantViolation(
                "E4",
                f"request {live.request_id}: {live.length} tokens are a hit, which leaves none of "
                f"{live.prompt_length} to compute",
            )

    def check_fresh_row(self, live: LiveRequest) -> None:
        """Check that a request's new row carries nothing over (law E2), where books are checked."""
        if self._config.check_every:
            engine_audit.check_fresh_row(self._pools, live)
            self.tested["E2"] += 1

    def check_books(self, lives: Sequence[LiveRequest], operations: int) -> None:
        """Check who owns what between two iterations (laws E2, E3, S1).

        Parameters
        ----------
        lives : sequence of LiveRequest
            All requests that own a row.
        operations : int
            Cache operations so far: nodes are looked at only if there were any since the last check.
        """
        self._pools.check_allocator()
        if self.recurrent is not None:
            self.recurrent.check_untouched()
        engine_audit.check_track_slots(self._pools, lives)
        with_cache = operations != self._audited_operations
        engine_audit.check_ownership(self._config, self._pools, lives, with_cache=with_cache)
        engine_audit.check_windows(self._config, self._pools, lives)
        self._audited_operations = operations
        self.tested["E2"] += bool(lives)
        self._count_exits()

    def check_progress(self, tokens: int, room: tuple[int, int], available: tuple[int, int]) -> None:
        """Check that an eviction made the room that there was to make (law E4).

        Parameters
        ----------
        tokens : int
            Wanted, in whole pages.
        room, available : tuple of (int, int)
            Free and evictable tokens before, and free ones after; full and SWA half.
        """
        if tokens > min(room):
            return
        if tokens > min(available):
            raise InvariantViolation(
                "E4",
                f"{tokens} tokens are needed and {room} were free or evictable (full, SWA), but after "
                f"evicting only {available} are free",
            )
        self.tested["E4"] += 1

    def check_quiescent(self) -> None:
        """Check that pools and cache own everything now that no request lives (laws E2, E3, E5)."""
        engine_audit.check_quiescent(self._config, self._pools)
        self._count_exits()
        if self.forward is not None:
            self.tested["E5"] += self.forward.unchecked_writes > 0
            self.forward.check_untouched()
        if self.recurrent is not None:
            self.recurrent.check_untouched()

    def check_emptied(self) -> None:
        """Check that the pools own everything after evicting everything (law E3)."""
        engine_audit.check_emptied(self._config, self._pools)
        self.tested["E3"] += 1

    def _count_exits(self) -> None:
        self.tested["E3"] += self._exits
        self._exits = 0
