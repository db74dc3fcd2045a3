"""What a request does with states: begin from a cached one, and leave snapshots where others may begin.

A state is good after exactly the token at which it was taken. So a prompt is computed in pieces that end
where a snapshot is due: at the end of its whole pages, and where the cache has seen prompts part. Track slots
are few; a snapshot for which none can be had is left out, which costs later hits and nothing else.
"""

from __future__ import annotations

import torch

from pymllm.errors import InvariantViolation
from pymllm.workloads.cache_probe import CacheProbe
from pymllm.workloads.engine_pools import CacheKind, StatePool
from pymllm.workloads.engine_watch import EngineWatch, Event
from pymllm.workloads.live_request import LiveRequest

__all__ = ["EngineStates"]


class EngineStates:
    """The requests' side of one engine's states.

    Parameters
    ----------
    pool : StatePool
        Working states, by row, and track slots; nobody else allocates from it.
    kind : CacheKind
        The cache that track slots are handed to.
    probe : CacheProbe
        Through which states are evicted.
    watch : EngineWatch
        Told of events, and of every copy.
    page_size : int
        Tokens per page.

    Attributes
    ----------
    skipped : int
        Snapshots left out because no track slot could be had.

    Notes
    -----
    Laws: M1, M2, P5, E1, E3.
    """

    def __init__(
        self, pool: StatePool, kind: CacheKind, probe: CacheProbe, watch: EngineWatch, page_size: int
    ) -> None:
        self.skipped = 0
        self._pool = pool
        self._kind = kind
        self._probe = probe
        self._watch = watch
        self._page_size = page_size

    def held(self) -> int:
        """Count the track slots that are not free."""
        return self._pool.max_track_slots - self._pool.available_track_slots()

    def begin(self, live: LiveRequest) -> None:
        """Make the working state of a request's new row that of the prefix that it holds.

        Raises
        ------
        InvariantViolation
            M2: the prefix does not end at a state.
        """
        if not live.held_length:
            self._pool.reset_states(live.row)
            self._watch.note_reset(live.row)
            return
        track_slot = self._kind.state_of(live.held_node)
        if track_slot is None:
            raise InvariantViolation(
                "M2",
                f"request {live.request_id} was given a prefix of {live.held_length} tokens, which does not "
                "end at a state",
            )
        self._copy(track_slot, live.row)

    def next_stop(self, live: LiveRequest) -> int:
        """Tell up to which token the next piece of a prompt may go."""
        return next((stop for stop in self._stops(live) if stop > live.length), live.prompt_length)

    def _stops(self, live: LiveRequest) -> tuple[int, int]:
        return live.branching_length, live.prompt_length // self._page_size * self._page_size

    def reserve(self, live: LiveRequest, end: int) -> None:
        """Give a request a track slot if a snapshot is due after its first ``end`` tokens.

        Where none is free the least recent state goes that no hold protects.
        """
        if live.track_slot or end not in self._stops(live):
            return
        slot = self._pool.alloc_track_slot()
        if slot is None:
            self._probe.evict(0, 1, [live.times])
            slot = self._pool.alloc_track_slot()
        live.track_slot = slot or 0

    def is_due(self, live: LiveRequest) -> bool:
        """Tell whether a snapshot is to be taken now; counts those for which there is no track slot."""
        if not live.track_slot and live.length in self._stops(live):
            self.skipped += 1
            self._watch.notice(Event.SNAPSHOT_SKIPPED, live)
        return live.track_slot > 0

    def save(self, live: LiveRequest) -> torch.Tensor:
        """Copy the working state into the request's track slot.

        Returns
        -------
        torch.Tensor
            The track slot, shape ``(1,)``, on the host.
        """
        self._copy(live.row, live.track_slot)
        return torch.tensor([live.track_slot])

    def hand_over(self, live: LiveRequest, exists: bool) -> None:
        """Leave the track slot to the cache, or take it back where a state was there before (M1)."""
        if exists:
            self._watch.notice(Event.STATE_DUPLICATED, live)
            self.give_back(live)
        live.track_slot = 0

    def give_back(self, live: LiveRequest) -> None:
        """Free the track slot of a request, if it has one."""
        if live.track_slot:
            self._pool.free_track_slot(live.track_slot)
            live.track_slot = 0

    def _copy(self, source: int, destination: int) -> None:
        self._pool.copy_states(source, destination)
        self._watch.note_copy(source, destination)
