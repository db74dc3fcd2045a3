"""The plan of a replay, checked before heavy modules are loaded; error messages name options."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from pymllm.errors import UsageError
from pymllm.oracle.models.policy_ranks import POLICY_RANKS
from pymllm.text_file import cut, did_you_mean

NAMED_WORKLOADS = ("chat", "agent", "shared-prompt", "adversarial")
"""The keys of `pymllm.workloads.synthetic.WORKLOADS`, repeated to avoid loading that module."""

TRACE_FORMATS = (
    "mooncake",
    "bailian",
    "weka",
    "dynamo",
    "agentic-mooncake",
    "request-trace",
    "applied-compute",
    "ragpulse",
    "kvsim",
    "pymllm",
    "text",
)
"""The keys of `pymllm.traces.registry.FORMATS`, repeated to avoid loading that module."""

WRITTEN_FORMATS = ("mooncake", "bailian", "dynamo", "kvsim", "pymllm")
"""The trace formats that can also be written."""

NESTED_TIMES = ("auto", "relative", "absolute")
"""The values of `NESTED_TIMES` in `pymllm.traces.weka`."""

_BLOCKS = "blocks"
_CACHES_OF_STATES = ("mamba", _BLOCKS)
_TREES = ("radix", "mamba")
_OF_BLOCKS = ("lru", "ref-zero")

EVICTION_POLICIES = tuple(dict.fromkeys((*POLICY_RANKS, *_OF_BLOCKS)))
"""Names for ``--eviction-policy``; ``module:Name`` is a policy outside this package."""


def knows_policy(cache: str, policy: str) -> bool:
    """Tell whether a cache supports an eviction policy."""
    if cache == _BLOCKS:
        return policy in _OF_BLOCKS
    return cache in _TREES and (policy in POLICY_RANKS or ":" in policy)


_SLOT_MAX = 2**31 - 1
_ADVERSARIAL_MAX = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The options of one ``pymllm replay`` as given; ``None`` for a default that depends on others.

    Sizes are tokens: those of the pool are of KV slots. ``check_every`` counts cache operations between two
    walks of the invariants, 0 for none; ``iteration_ms`` is virtual time; ``track_slots`` are states.
    """

    workload: str
    mode: str
    caches: tuple[str, ...]
    requests: int | None
    seed: int
    block_tokens: int | None
    page_size: int
    capacity: int | None
    check_every: int
    window: int | None = None
    swa_capacity: int | None = None
    track_slots: int | None = None
    max_running: int = 256
    chunk: int = 8192
    iteration_ms: float = 50.0
    content_check: bool | None = None
    mamba_chunk_size: int | None = None
    eviction_policies: tuple[str, ...] = ()
    format: str = "auto"
    tokenizer: str | None = None
    nested_times: str = "auto"
    conversations: int = 16
    turns: str = "ask"
    lenient: bool = False

    @property
    def columns(self) -> tuple[tuple[str, str | None], ...]:
        """Each cache with each policy that it supports, or with ``None`` if it supports none."""
        found: list[tuple[str, str | None]] = []
        for cache in self.caches:
            known = [policy for policy in self.eviction_policies if knows_policy(cache, policy)]
            found += [(cache, policy) for policy in known or (None,)]
        return tuple(found)

    @property
    def is_named(self) -> bool:
        """Whether the workload is a named workload of this package; ``./chat`` names a file."""
        return self.workload in NAMED_WORKLOADS

    @property
    def has_states(self) -> bool:
        """Whether any of the caches keeps recurrent states beside KV."""
        return any(cache in _CACHES_OF_STATES for cache in self.caches)

    @property
    def has_blocks(self) -> bool:
        """Whether any of the caches is a block context, which pauses requests."""
        return _BLOCKS in self.caches

    def check(self) -> None:
        """Raise an error for settings that do not fit together, naming the options."""
        if not (self.is_named or self.workload == "-" or os.path.exists(self.workload)):
            raise UsageError(_no_such_workload(self.workload))
        if self.swa_capacity is not None and self.window is None:
            raise UsageError("swa_capacity is the window half's; give window too.")
        self._check_policies()
        self._check_states()
        for option, slots in (("--capacity", self.capacity), ("--window N,capacity", self.swa_capacity)):
            if slots is not None and slots < self.page_size:
                raise UsageError(
                    f"{option} {slots} holds no page of {self.page_size} tokens; "
                    f"give at least {self.page_size}, or a smaller --page-size."
                )
            if slots is not None and slots + self.page_size > _SLOT_MAX:
                raise UsageError(
                    f"{option} {slots} and one page of {self.page_size} are more than {_SLOT_MAX} slots, "
                    "which int32 indices cannot count; give less."
                )
        if self.workload == "adversarial" and (self.capacity or 0) > _ADVERSARIAL_MAX:
            raise UsageError(
                f"--capacity {self.capacity} is too much for adversarial, whose prompts are as long as the "
                f"pool; give at most {_ADVERSARIAL_MAX}."
            )

    def _check_policies(self) -> None:
        for policy in self.eviction_policies:
            if any(knows_policy(cache, policy) for cache in self.caches):
                continue
            known = [cache for cache in (*_TREES, _BLOCKS) if knows_policy(cache, policy)]
            if known:
                raise UsageError(
                    f"--eviction-policy {cut(policy)} is for {' and '.join(known)}; "
                    f"give --cache {' or '.join(known)} too."
                )
            names = [name for name in EVICTION_POLICIES if any(knows_policy(it, name) for it in self.caches)]
            own = ", or your own as module:Name" if set(_TREES) & set(self.caches) else ""
            pick_name(policy, names or EVICTION_POLICIES, "eviction policy", own)

    def _check_states(self) -> None:
        with_states = [cache for cache in self.caches if cache in _CACHES_OF_STATES]
        if self.track_slots is not None and not with_states:
            raise UsageError("--track-slots is for states; give --cache mamba or blocks too.")
        if self.mamba_chunk_size is not None and not self.has_blocks:
            raise UsageError("mamba_chunk_size is for blocks; give blocks among caches too.")
        if self.mode == "serial" and with_states:
            raise UsageError(
                f"--cache {with_states[0]} caches the states of an engine, and a serial replay has none; "
                "take pymllm replay, or another --cache."
            )
        if self.window is not None and with_states:
            raise UsageError(
                f"--cache {with_states[0]} has no window; leave --window out, or give another --cache."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledPlan(ReplayPlan):
    """A checked plan with all sizes filled in by `pymllm.replay.replays.settle`."""

    capacity: int
    content_check: bool


def pick_name(asked: str, names: Iterable[str], what: str, others: str = "") -> str:
    """Return a known name; refuse an unknown one with the nearest match, ``what`` being the kind."""
    known = sorted(names)
    if asked not in known:
        raise UsageError(
            f"there is no {what} {cut(asked)!r}{did_you_mean(asked, known)}; "
            f"give one of {', '.join(known)}{others}."
        )
    return asked


def _no_such_workload(asked: str) -> str:
    return (
        f"{cut(asked)!r} is no file and no workload{did_you_mean(asked, NAMED_WORKLOADS)}; "
        f"give a trace file or one of {', '.join(NAMED_WORKLOADS)}."
    )
