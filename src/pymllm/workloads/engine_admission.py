"""When a request may have memory: whether it can ever fit, and whether it fits now (law E4)."""

from __future__ import annotations

from collections.abc import Iterable

from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_memory import EngineMemory
from pymllm.workloads.live_request import LiveRequest

__all__ = ["AdmissionRule"]


class AdmissionRule:
    """Compares what a request needs with what there is.

    Parameters
    ----------
    config : EngineConfig
        Already rounded.
    memory : EngineMemory
        The requests' memory.
    """

    def __init__(self, config: EngineConfig, memory: EngineMemory) -> None:
        self._config = config
        self._memory = memory
        self._window = memory.pages_up(config.sliding_window_size or 0)

    def can_ever_fit(self, live: LiveRequest) -> bool:
        """Tell whether a request fits into an engine that has nothing else to do.

        Notes
        -----
        With a window a request holds at most the window that the cache keeps for it, a second one that
        it grows in decode, and the page that it writes next.
        """
        total = self._memory.pages_up(live.final_length)
        if live.final_length > self._config.max_context or total > self._config.capacity:
            return False
        if self._config.swa_capacity is None:
            return True
        return min(total, 2 * self._window + self._config.page_size) <= self._config.swa_capacity

    def suffices(self, live: LiveRequest, prefilling: Iterable[LiveRequest], headroom: int) -> bool:
        """Tell whether free and evictable slots suffice for a request whose prefix is held.

        Parameters
        ----------
        live : LiveRequest
            Needs the rest of its prompt; of the SWA half one window and a page, since chunks are cut to
            what fits there and give back what the window leaves.
        prefilling : iterable of LiveRequest
            Admitted before; what they still need is promised to them.
        headroom : int
            Tokens kept back for requests in decode.

        Notes
        -----
        A request that `can_ever_fit` and has the engine to itself is always admitted.
        """
        full, swa = self._memory.room()
        needs = [self._need(live), *map(self._need, prefilling)]
        if sum(needs) + headroom > full:
            return False
        if self._config.swa_capacity is None:
            return True
        most = self._window + self._config.page_size
        return sum(min(need, most) for need in needs) + headroom <= swa

    def _need(self, live: LiveRequest) -> int:
        """Count the slots that the rest of a prompt will allocate."""
        return self._memory.pages_up(live.prompt_length) - self._memory.pages_up(live.length)
