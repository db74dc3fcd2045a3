"""Faults of servers, planted into the embedded one by pytest's ``monkeypatch``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pymllm.serving.runner import ModelRunner
from pymllm.serving.service import Ended, Service

Plant = Callable[[pytest.MonkeyPatch], None]


def stale_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last slot of a long hit has keys and values of nobody."""
    compute, begun = ModelRunner.compute, set[int]()

    def wrong(self: ModelRunner, live: Any, start: int, end: int) -> None:
        is_hit = live.request_id not in begun and start >= 32
        begun.add(live.request_id)
        if is_hit:
            slot = int(self._pools.rows.req_to_token[live.row, start - 1])
            for pool in self._kv.values():
                for layer in range(pool.layer_num):
                    keys, values = pool.get_kv_buffer(layer)
                    keys[slot], values[slot] = keys[0], values[0]
        compute(self, live, start, end)

    monkeypatch.setattr(ModelRunner, "compute", wrong)


def ignored_salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Namespaces are one."""
    submit = Service.submit

    def wrong(self: Service, job: Any) -> int:
        job.salt = None
        return submit(self, job)

    monkeypatch.setattr(Service, "submit", wrong)


def counted_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page too many is counted as cached, where any is."""
    end = Service._end

    def wrong(self: Service, number: int, ended: Ended) -> None:
        end(self, number, replace(ended, cached_tokens=ended.cached_tokens + 16 * bool(ended.cached_tokens)))

    monkeypatch.setattr(Service, "_end", wrong)


def leaked_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was aborted counts as running for ever."""
    note = Service._note

    def wrong(self: Service, engine: Any) -> None:
        note(self, engine)
        self.counters = replace(self.counters, running=self.counters.running + self.counters.aborted)

    monkeypatch.setattr(Service, "_note", wrong)


def mixed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In company, a prompt of an odd length gets the logits of the row before it."""
    choose, last = Service._choose, {}

    def wrong(self: Service, live: Any, at: int, logits: Any) -> int:
        others = [it for id, it in last.items() if id in self._jobs and id != live.request_id]
        last[live.request_id] = logits
        mixes = others and live.prompt_length % 2
        return choose(self, live, at, others[-1] if mixes else logits)

    monkeypatch.setattr(Service, "_choose", wrong)


def kept_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset says that the cache is empty, and leaves it as it is."""

    def wrong(self: Service, engine: Any) -> None:
        with self._changed:
            resets, self._resets = self._resets, []
        for tell in resets:
            tell(not self._jobs)

    monkeypatch.setattr(Service, "_reset", wrong)


def counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics count a token twice where the request was served from the cache."""
    choose = Service._choose

    def wrong(self: Service, live: Any, at: int, logits: Any) -> int:
        more = bool(self._jobs[live.request_id].cached_tokens)
        self.counters = replace(self.counters, produced_tokens=self.counters.produced_tokens + more)
        return choose(self, live, at, logits)

    monkeypatch.setattr(Service, "_choose", wrong)


PLANTS: dict[str, Plant] = {
    "V1": stale_slots,
    "V2": mixed_rows,
    "V3": counted_pages,
    "V5": ignored_salts,
    "V6": leaked_aborts,
    "V7": counted_twice,
}
"""By the law that each of them breaks."""
