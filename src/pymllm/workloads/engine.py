"""The simulated engine over a prefix cache: a scheduler in virtual time, over real pools and caches.

It admits, prefills in chunks, decodes token by token, retracts when memory runs out, aborts and finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_forward import padded
from pymllm.workloads.engine_loop import EngineLoop
from pymllm.workloads.engine_memory import EngineMemory
from pymllm.workloads.engine_pools import EnginePools, make_engine_pools
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.engine_watch import EngineWatch, Event, Onlooker
from pymllm.workloads.live_request import DecodeBatch, LiveRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import Source, Stage

__all__ = ["AdmissionRule", "Engine", "EngineConfig", "EngineReport", "Model"]


class Model(Protocol):
    """The interface of a model that computes an engine's requests instead of the simulated model."""

    def compute(self, live: LiveRequest, start: int, end: int) -> None:
        """Compute tokens ``start .. end`` of a request, whose row holds their slots.

        Where the prompt ends at or before ``end``, choose the token there, and write it into ``live.tokens``
        unless ``end`` is ``live.final_length``.
        """


class AdmissionRule:
    """The admission rule, which compares the slots that a request needs with those of the engine."""

    def __init__(self, config: EngineConfig, memory: EngineMemory) -> None:
        self._config = config
        self._memory = memory
        self._window = memory.pages_up(config.sliding_window_size or 0)

    def can_ever_fit(self, live: LiveRequest) -> bool:
        """Tell whether a request fits into an otherwise empty engine.

        With a window it holds at most the one that the cache keeps for it, a second that it grows in decode,
        and a page.
        """
        total = self._memory.pages_up(live.final_length)
        if live.final_length > self._config.max_context or total > self._config.capacity:
            return False
        if self._config.swa_capacity is None:
            return True
        return min(total, 2 * self._window + self._config.page_size) <= self._config.swa_capacity

    def suffices(self, live: LiveRequest, prefilling: Iterable[LiveRequest], headroom: int) -> bool:
        """Tell whether free and evictable slots suffice for a request whose cached prefix is held.

        What requests in prefill still need is promised to them, and ``headroom`` tokens are kept back for
        those in decode. Of the SWA half a request needs one window and a page, since chunks are cut to what
        fits there. A request that `can_ever_fit` and is alone is always admitted.
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
        """Return the number of slots that the rest of a prompt will need."""
        return self._memory.pages_up(live.prompt_length) - self._memory.pages_up(live.length)


class Engine(EngineLoop[LiveRequest]):
    """One engine over a prefix cache, and one run of it. Not thread-safe. Laws: E1-E6.

    ``progress`` is called with the number of requests that have ended, after each iteration in which one did;
    ``pools``, new and of the configuration's sizes, are driven instead of those that it names; ``onlooker``
    is told of every `Event`; a ``model`` computes the tokens and chooses those that requests produce.
    Requests in ``prefilling`` are admitted and have a part of the prompt still to compute.

    An iteration is: arrivals, aborts, one token for every decoding request (one ``alloc`` and one table write
    for all), then prompt chunks of prefilling requests and admissions, oldest first, under a token budget.

    Examples
    --------
    >>> from pymllm.workloads.source import RandomSource
    >>> report = Engine(EngineConfig(capacity=256, content_check=True), RandomSource(seed=1)).run()
    >>> report.finished + report.aborted + report.rejected == report.requests == 100
    True
    """

    def __init__(
        self,
        config: EngineConfig,
        source: Source,
        *,
        progress: Callable[[int], None] | None = None,
        pools: EnginePools | None = None,
        onlooker: Onlooker | None = None,
        model: Model | None = None,
    ) -> None:
        config = config.rounded()
        self._pools = make_engine_pools(config) if pools is None else pools
        self.watch = EngineWatch(config, self._pools, onlooker)
        self.memory = EngineMemory(config, self._pools, self.watch)
        super().__init__(config, source, progress, self.memory, self.watch)
        self.prefilling: list[LiveRequest] = []
        self.decoding = DecodeBatch(config.page_size)
        self._admission = AdmissionRule(config, self.memory)
        self._model = model
        self._has_retracted = False

    # -- running ---------------------------------------------------------------------------------------

    def lives(self) -> list[LiveRequest]:
        """Return the requests that own a row, those in prefill first."""
        return [*self.prefilling, *self.decoding.requests]

    def _iterate(self) -> None:
        self._has_retracted = False
        self._decode()
        self._prefill()

    def evict_everything(self) -> None:
        """Empty the cache and check that the pools own everything (law E3)."""
        self.check_quiescent()
        cache = self._pools.kind.cache
        cache.evict(cache.total_size(), cache.swa_evictable_size())
        self.watch.check_emptied()

    def _check_invariants(self) -> None:
        self.decoding.write_back()
        self.watch.check_invariants(self.lives(), self.memory.probe.operations)

    # -- arrivals and aborts -----------------------------------------------------------------------------

    def _receive(self, request: Request, place: int) -> LiveRequest:
        return LiveRequest(request, place)

    def _ceiling_of(self, request: Request) -> int:
        """Return a request's highest possible hit; with a model, all prompt tokens except the last."""
        if self._model is not None:
            return self.memory.whole_pages(request.prompt_length - 1)
        return super()._ceiling_of(request)

    def _can_ever_fit(self, live: LiveRequest) -> bool:
        return self._admission.can_ever_fit(live)

    def by_stage(self) -> Sequence[tuple[Stage, list[LiveRequest]]]:
        """Return the requests that may be aborted, with the stage of each."""
        return (
            (Stage.QUEUED, list(self.queue)),
            (Stage.PREFILL, list(self.prefilling)),
            (Stage.DECODE, self.decoding.requests),
        )

    def _abort(self, live: LiveRequest) -> None:
        self.watch.notice(Event.ABORTED, live)
        if live.row:
            self._tally.count_leaving(live)
            self._leave(live)
            self.memory.give_back(live)
        else:
            self._leave_queue(live)
        self._tally.aborted += 1
        self._note_end(live)

    def _leave(self, live: LiveRequest) -> None:
        if live in self.prefilling:
            self.prefilling.remove(live)
        else:
            self.decoding.remove([live])

    # -- decode ----------------------------------------------------------------------------------------

    def _decode(self) -> None:
        slots = self._allocate_for_decode()
        if slots is None:
            return
        batch = self.decoding
        positions = batch.lengths.copy()
        new = batch.step(slots)
        self._pools.rows.write(
            (torch.from_numpy(padded(batch.rows)), torch.from_numpy(padded(positions))),
            torch.from_numpy(padded(new)),
        )
        if self.watch.forward is not None:
            pairs = zip(batch.requests, positions.tolist(), strict=True)
            self.watch.forward.write(
                torch.from_numpy(new), np.array([live.fingerprints[at] for live, at in pairs])
            )
        if self.watch.recurrent is not None:
            self.watch.recurrent.decode(batch.requests, batch.rows, positions)
        if self._model is not None:
            for live, at in zip(batch.requests, positions.tolist(), strict=True):
                self._model.compute(live, at, at + 1)
        self.memory.release_windows(batch)
        self._finish_those_done()

    def _allocate_for_decode(self) -> np.ndarray | None:
        """Allocate the next page of each request that needs one; return ``None`` if no request decodes."""
        page_size = self.config.page_size
        while self.decoding:
            crossing = self.decoding.crossing().tolist()
            payers = [self.decoding.requests[at].times for at in crossing]
            slots = self.memory.allocate(len(crossing) * page_size, payers)
            if slots is not None:
                return slots.cpu().numpy()[::page_size]
            self._retract()
        return None

    def _finish_those_done(self) -> None:
        done = [self.decoding.requests[at] for at in (self.decoding.remaining == 0).nonzero()[0].tolist()]
        if done:
            self.decoding.remove(done)
        for live in done:
            self._finish(live)

    def _finish(self, live: LiveRequest) -> None:
        self.watch.notice(Event.FINISHED, live)
        self.watch.check_row(live)
        self.memory.finish(live)
        self._tally.count_finish(live)
        self._note_end(live)

    # -- prefill and admission -------------------------------------------------------------------------

    def _prefill(self) -> None:
        budget = self.config.chunk_tokens
        for live in list(self.prefilling):
            if budget and live.row:
                budget -= self._prefill_chunk(live, budget)
        # A request just retracted must not push itself back in within the same iteration.
        while budget and not self._has_retracted and (admitted := self._admit_next()) is not None:
            budget -= self._prefill_chunk(admitted, budget)

    def _prefill_chunk(self, live: LiveRequest, budget: int) -> int:
        """Compute the next tokens of a prompt; return their number, or 0 if the request was retracted."""
        limit = self._ask_for_chunk(live, min(budget, live.prompt_length - live.length))
        computed, end = 0, live.length + limit
        while computed < limit:
            piece = min(end, self.memory.next_stop(live)) - live.length
            done = self._compute(live, piece)
            computed += done
            if done < piece:
                break
        return computed

    def _compute(self, live: LiveRequest, piece: int) -> int:
        """Compute and cache tokens of a chunk; return their number, or 0 if the request was retracted."""
        slots = None
        while slots is None:
            slots = self.memory.extend(live, piece)
            if slots is None:
                self._retract()
                if not live.row:
                    return 0
        start, count = live.length, slots.shape[0]
        live.length += count
        self._tally.count_computed(live, count)
        if self.watch.forward is not None:
            self.watch.forward.write(slots, live.fingerprints[start : live.length])
        if self.watch.recurrent is not None:
            self.watch.recurrent.prefill(live, start)
        if self._model is not None:
            self._model.compute(live, start, live.length)
        self.watch.check_row(live)
        self.memory.share(live)
        if live.length == live.prompt_length:
            self._end_prefill(live)
        return count

    def _end_prefill(self, live: LiveRequest) -> None:
        self.prefilling.remove(live)
        if live.length == live.final_length:
            self._finish(live)
        else:
            self.decoding.add(live)

    def _admit_next(self) -> LiveRequest | None:
        """Admit the oldest waiting request, if memory suffices for it (law E4)."""
        while self._may_ask_again():
            live = self.queue[0]
            prefix = self.memory.match_and_hold(live)
            if self._source.may_abort and self._source.abort(live.request_id, Stage.HELD):
                self.memory.give_back(live)
                self._abort(live)
                continue
            headroom = self.decoding.headroom(self.config.decode_headroom)
            suffices = self._admission.suffices(live, self.prefilling, headroom)
            self.watch.check_admission(live, suffices, self.prefilling, self.decoding)
            if not suffices or not self.memory.take_row(live, prefix):
                self._refuse(live)
                return None
            return self._admit(self.queue.popleft())
        return None

    def _admit(self, live: LiveRequest) -> LiveRequest:
        self.watch.notice(Event.ADMITTED, live)
        self.prefilling.append(live)
        self._tally.count_admission(live)
        self.watch.check_work(live)
        self.watch.check_row(live)
        self.watch.check_fresh_row(live)
        return live

    def _refuse(self, live: LiveRequest) -> None:
        self.watch.notice(Event.REFUSED, live)
        self.memory.give_back(live)
        self._remember_refusal()
        if not (self.prefilling or self.decoding):
            raise InvariantViolation(
                "E4",
                f"request {live.request_id} fits and is alone, but of its {live.prompt_length} tokens only "
                f"{self.memory.room()} are free or evictable (full, SWA)",
            )

    # -- retraction ------------------------------------------------------------------------------------

    def _retract(self) -> None:
        """Put a live request back into the queue, with its output so far as part of its prompt."""
        lives = self.lives()
        if len(lives) == 1:
            raise InvariantViolation(
                "E4",
                f"request {lives[0].request_id} is alone and fits, but cannot grow: only "
                f"{self.memory.room()} slots are free or evictable (full, SWA)",
            )
        live = self._ask_for_victim(lives)
        self.watch.notice(Event.RETRACTED, live)
        self._tally.count_leaving(live)
        self._leave(live)
        live.keep_produced()
        self.memory.give_back(live)
        self.queue.appendleft(live)
        self._tally.retractions += 1
        self._has_retracted = True
