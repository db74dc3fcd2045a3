"""How the situations of an engine's life are noticed: every exit (E3), and what makes admission hard (E4)."""

from __future__ import annotations

from pymllm.conformance.drawn_source import DrawnSource
from pymllm.conformance.driven_cache import DrivenCache
from pymllm.history.operations import Alloc, AllocTrack, Evict, FreeSWA, Insert, Operation
from pymllm.history.outcomes import Evicted, NoRoom, Outcome, Slots
from pymllm.mem_cache.memory_pool import ReqToTokenPool
from pymllm.oracle.prefix_judge import PrefixJudge
from pymllm.oracle.prefix_pages import Path, path_of_key
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.source import Stage

__all__ = ["LifecycleNotes"]

_ABORTS = {
    Stage.QUEUED: "a waiting request is aborted",
    Stage.HELD: "a request is aborted while its prefix is held",
    Stage.PREFILL: "a request is aborted between two chunks",
    Stage.DECODE: "a request is aborted in decode",
    None: "the engine is drained with requests in it",
}
_ABORTS_WITH_STATES = {
    Stage.PREFILL: "a request is aborted between two chunks while it holds a state",
    Stage.DECODE: "a request is aborted in decode while it holds a state",
}
_PLAIN = {
    Event.REJECTED: "a request can never fit",
    Event.REFUSED: "an admission fails",
    Event.DUPLICATED: "duplicates are given back",
    Event.UNCACHED: "the cache takes nothing of what was computed",
    Event.SNAPSHOT_SKIPPED: "a snapshot is left out for want of a track slot",
    Event.STATE_DUPLICATED: "the track slot of a state that is cached meanwhile is given back",
}


class LifecycleNotes:
    """An onlooker that counts situations.

    Parameters
    ----------
    judge : PrefixJudge
        Its evidence is written to, its model is asked.
    cache : DrivenCache
        What the engine drives.
    source : DrawnSource
        Knows at which stage it asked for an abort.
    rows : ReqToTokenPool
        The engine's.
    config : EngineConfig
        The engine's.
    """

    def __init__(
        self,
        judge: PrefixJudge,
        cache: DrivenCache,
        source: DrawnSource,
        rows: ReqToTokenPool,
        config: EngineConfig,
    ) -> None:
        self._meet = judge.evidence.meet
        self._model = judge.model
        self._cache = cache
        self._source = source
        self._rows = rows
        self._config = config
        self._admitted: set[int] = set()
        self._retracted: set[int] = set()
        self._partings: set[Path] = set()
        self._has_just_evicted = False

    def begin_iteration(self) -> None:
        """Forget who was admitted in the iteration before."""
        self._admitted.clear()

    def __call__(self, event: Event, live: LiveRequest) -> None:
        """Count what an event of the engine means."""
        if event in _PLAIN:
            self._meet(_PLAIN[event])
        if event is Event.REFUSED:
            self._meet("an admission fails for want of a row", not self._rows.available_size())
        elif event is Event.ADMITTED:
            self._note_admission(live)
        elif event is Event.RETRACTED:
            self._note_retraction(live)
        elif event is Event.ABORTED:
            self._note_abort(live)
        elif event is Event.FINISHED:
            self._note_finish(live)

    def _note_abort(self, live: LiveRequest) -> None:
        stage = self._source.aborting
        self._meet(_ABORTS[stage])
        self._meet("a request is aborted while another holds part of its prefix", self._is_shared(live))
        if stage in _ABORTS_WITH_STATES:
            self._meet(_ABORTS_WITH_STATES[stage], self._holds_state(live))
        self._source.aborting = None

    def _is_shared(self, live: LiveRequest) -> bool:
        if not (live.row and live.held_length):
            return False
        return self._model.locks(self._held(live).upto(self._model.page_size)) > 1

    def _holds_state(self, live: LiveRequest) -> bool:
        states = self._model.states
        return states is not None and live.row > 0 and self._held(live) in states

    def _held(self, live: LiveRequest) -> Path:
        return self._cache.path_of_key(live.key(live.held_length))

    def _note_retraction(self, live: LiveRequest) -> None:
        self._meet("a request is retracted twice", live.request_id in self._retracted)
        self._retracted.add(live.request_id)
        where = "between two chunks" if live.length < live.prompt_length else "in decode"
        self._meet(f"a request is retracted {where}")
        self._meet("a request is retracted while it holds a state", self._holds_state(live))
        self._meet("a request is retracted with a track slot in its hands", live.track_slot)

    def _note_admission(self, live: LiveRequest) -> None:
        self._admitted.add(live.request_id)
        self._meet("a retracted request is admitted again", live.request_id in self._retracted)
        prompt = self._cache.path_of_key(live.key(live.prompt_length))
        stored = len(self._model.stored(prompt)) * self._model.page_size
        self._meet("a full hit leaves a token to compute", stored == live.prompt_length)
        lost = min(stored, live.queried_length) > live.held_length
        kept_from = "behind a dead window" if self._model.states is None else "beyond the last state"
        self._meet(f"cached tokens lie {kept_from}", lost)
        held = prompt.upto(live.held_length)
        again = held.tokens and live.request_id in self._retracted
        self._meet("a retracted request finds cached what it had", again)
        self._meet("two requests hold one prefix", held.tokens and self._model.locks(held) > 1)
        self._meet("a request resumes from a state", self._holds_state(live))
        self._partings.add(prompt.upto(live.branching_length))

    def _note_finish(self, live: LiveRequest) -> None:
        self._meet("a request finishes inside its first chunk", live.request_id in self._admitted)
        self._meet("a request finishes in decode", live.prompt_length < live.final_length)
        just = live.final_length > self._config.capacity - self._config.page_size
        self._meet("a request that just fits finishes", just)

    def note_operation(self, operation: Operation, outcome: Outcome) -> None:
        """Count what an operation of the engine met."""
        result = outcome.result
        if isinstance(operation, Evict) and isinstance(result, Evicted) and result.full + result.swa:
            self._meet("an eviction makes room")
            self._meet("an eviction makes room for a prompt just admitted", self._admitted)
            self._meet("an eviction for slots takes a state along", operation.tokens and result.states)
        self._meet("halves behind a window are returned", isinstance(operation, FreeSWA))
        if self._has_just_evicted:
            self._meet("evicting is not enough", isinstance(operation, Alloc) and isinstance(result, NoRoom))
            self._meet(
                "an eviction makes room for a snapshot",
                isinstance(operation, AllocTrack) and isinstance(result, Slots),
            )
        if isinstance(operation, Insert) and operation.state is not None:
            path = path_of_key(operation.key)
            self._meet("a snapshot is taken where prompts part", path in self._partings)
        self._has_just_evicted = isinstance(operation, Evict)
