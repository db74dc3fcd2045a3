"""The plan of a curve, checked before heavy modules are loaded; error messages name options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pymllm.errors import UsageError
from pymllm.replay.keeping import Keeping
from pymllm.replay.kv_size import KvShape
from pymllm.replay.plan import NAMED_WORKLOADS, ReplayPlan

Grouping = Literal["kind", "namespace", "length"]
GROUPINGS: Final[tuple[Grouping, ...]] = ("kind", "namespace", "length")
"""Ways to group requests: by the kind in the trace, by namespace, or by length."""

NAMED_REQUESTS: Final = 200
"""The default number of requests of a named workload."""

MOST_HELD: Final = 200_000
"""The greatest number of requests held in memory for results that need several passes."""


@dataclass(frozen=True, slots=True)
class CurvePlan:
    """The options of one ``pymllm curve`` as given; ``None`` for a default that depends on others.

    Without ``capacities`` so many ``points`` are chosen. ``eviction_policies`` are those beside ``lru``;
    ``checkpoints`` says of hybrid models where states are kept, and their distance in tokens; ``gpus``
    how many GPUs have room for a capacity, of those that can be bought.
    """

    workload: str
    requests: int | None
    seed: int
    block_tokens: int | None
    page_size: int
    capacities: tuple[int, ...]
    points: int
    eviction_policies: tuple[str, ...] = ()
    checkpoints: tuple[tuple[Keeping, int], ...] = ()
    belady: bool = False
    unlimited: bool = True
    sample: float | None = None
    by: Grouping | None = None
    shape: KvShape | None = None
    gpus: Mapping[int, int] = field(default_factory=dict)
    dtype: str = "bf16"
    prefill_rate: float | None = None
    format: str = "auto"
    tokenizer: str | None = None
    nested_times: str = "auto"
    conversations: int = 16
    turns: str = "ask"
    lenient: bool = False

    @property
    def is_named(self) -> bool:
        """Whether the workload is a named workload of this package; ``./chat`` names a file."""
        return self.workload in NAMED_WORKLOADS

    @property
    def is_held(self) -> bool:
        """Whether requests are needed more than once and must stay in memory."""
        return self.belady or bool(self.eviction_policies)

    def replays(self, capacity: int | None, policies: tuple[str, ...] = ()) -> ReplayPlan:
        """Return the serial replay for one point of the curve."""
        return ReplayPlan(
            workload=self.workload,
            mode="serial",
            caches=("radix",),
            requests=self.requests,
            seed=self.seed,
            block_tokens=self.block_tokens,
            page_size=self.page_size,
            capacity=capacity,
            check_every=0,
            eviction_policies=policies,
            format=self.format,
            tokenizer=self.tokenizer,
            nested_times=self.nested_times,
            conversations=self.conversations,
            turns=self.turns,
            lenient=self.lenient,
        )

    def check(self) -> None:
        """Raise an error for settings that do not fit together, naming the options."""
        for capacity in self.capacities or (None,):
            self.replays(capacity, self.eviction_policies).check()
        if not self.capacities and not self.is_named and not _is_kept(self.workload):
            raise UsageError(
                f"{self.workload} can be read only once, and without --capacity a trace is read twice; "
                "give --capacity, once for each point."
            )
        if self.sample is not None:
            # Each of them needs all of the trace, which is what a sample is there to spare.
            for option, value in (
                ("--belady", self.belady),
                ("--eviction-policy", self.eviction_policies),
                ("--by", self.by),
                ("--checkpoints", self.checkpoints),
            ):
                if value:
                    raise UsageError(f"{option} needs every request, not a sample; leave --sample out.")


def _is_kept(place: str) -> bool:
    """Tell whether a trace can be read again, as a file or folder can but a pipe cannot."""
    return os.path.isfile(place) or os.path.isdir(place)
