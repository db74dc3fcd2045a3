"""What a replay was asked to do, settled and checked before anything heavy is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import click

from pymllm.cli.near_names import did_you_mean
from pymllm.text_file import cut

__all__ = ["NAMED_WORKLOADS", "ReplayPlan", "pick_name"]

NAMED_WORKLOADS = ("chat", "agent", "shared-prompt", "adversarial")
"""Keys of `pymllm.workloads.synthetic.WORKLOADS`, which this module must not load."""

_BLOCKS = "blocks"
_CACHES_OF_STATES = ("mamba", _BLOCKS)

_SLOT_MAX = 2**31 - 1
_ADVERSARIAL_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The options of one ``pymllm replay``, as given; ``None`` where a default depends on the rest.

    Parameters
    ----------
    workload : str
        A name of `NAMED_WORKLOADS`, a path, or ``-`` for standard input.
    mode : str
        ``"engine"`` or ``"serial"``.
    caches : tuple of str
        Caches to run one after another over the same requests.
    requests : int or None
        How many requests; all of a trace, 200 of a named workload.
    seed : int
        Of a named workload, and of the engine's own small choices.
    block_tokens : int
        Tokens per block of a trace.
    page_size : int
        Tokens per page.
    window : int or None
        Sliding window in tokens.
    capacity : int or None
        KV slots in tokens; a million for a trace, a named workload's own.
    swa_capacity : int or None
        Slots of the window half in tokens; as many as ``capacity``.
    track_slots : int or None
        States that a cache of states may keep; four per running request.
    max_running : int
        Most requests at one time.
    chunk : int
        Prompt tokens per iteration.
    iteration_ms : float
        Virtual time of an iteration.
    content_check : bool or None
        Compare contents; on for a named workload, off for a trace.
    check_every : int
        Cache operations between two walks of the invariants; 0 for none.
    mamba_chunk_size : int or None
        Tokens between two states of the kernel of ``"blocks"``; 128.
    eviction_policy : str or None
        ``"lru"`` or ``"ref-zero"``, of ``"blocks"``; the former.
    """

    workload: str
    mode: str
    caches: tuple[str, ...]
    requests: int | None
    seed: int
    block_tokens: int
    page_size: int
    window: int | None
    capacity: int | None
    swa_capacity: int | None
    track_slots: int | None
    max_running: int
    chunk: int
    iteration_ms: float
    content_check: bool | None
    check_every: int
    mamba_chunk_size: int | None = None
    eviction_policy: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether the workload is one of ours; ``./chat`` names a file of that name."""
        return self.workload in NAMED_WORKLOADS

    @property
    def has_states(self) -> bool:
        """Whether one of the caches keeps states beside KV."""
        return any(cache in _CACHES_OF_STATES for cache in self.caches)

    @property
    def has_blocks(self) -> bool:
        """Whether one of the caches is a block context, which pauses requests."""
        return _BLOCKS in self.caches

    def check(self) -> None:
        """Refuse what does not fit together, naming the options.

        Raises
        ------
        click.UsageError
            Says which values, and what would do.
        """
        if not (self.is_named or self.workload == "-" or os.path.exists(self.workload)):
            raise click.UsageError(_no_such_workload(self.workload))
        if self.swa_capacity is not None and self.window is None:
            raise click.UsageError("--swa-capacity is the window half's; give --window too.")
        self._check_states()
        for option, slots in (("--capacity", self.capacity), ("--swa-capacity", self.swa_capacity)):
            if slots is not None and slots < self.page_size:
                raise click.UsageError(
                    f"{option} {slots} holds no page of {self.page_size} tokens; "
                    f"give at least {self.page_size}, or a smaller --page-size."
                )
            if slots is not None and slots + self.page_size > _SLOT_MAX:
                raise click.UsageError(
                    f"{option} {slots} and one page of {self.page_size} are more than {_SLOT_MAX} slots, "
                    "which int32 indices cannot count; give less."
                )
        if self.workload == "adversarial" and (self.capacity or 0) > _ADVERSARIAL_MAX:
            raise click.UsageError(
                f"--capacity {self.capacity} is too much for adversarial, whose prompts are as long as the "
                f"pool; give at most {_ADVERSARIAL_MAX}."
            )

    def _check_states(self) -> None:
        with_states = [cache for cache in self.caches if cache in _CACHES_OF_STATES]
        if self.track_slots is not None and not with_states:
            raise click.UsageError("--track-slots is for states; give --cache mamba or blocks too.")
        for option, value in (
            ("--mamba-chunk-size", self.mamba_chunk_size),
            ("--eviction-policy", self.eviction_policy),
        ):
            if value is not None and not self.has_blocks:
                raise click.UsageError(f"{option} is for blocks; give --cache blocks too.")
        if self.mode == "serial" and with_states:
            raise click.UsageError(
                f"--cache {with_states[0]} caches the states of an engine, and a serial replay has none; "
                "give --mode engine, or another --cache."
            )
        if self.window is not None and with_states:
            raise click.UsageError(
                f"--cache {with_states[0]} has no window; leave --window out, or give another --cache."
            )


def pick_name(asked: str, names: Iterable[str], what: str) -> str:
    """Find a name, or refuse with the nearest one.

    Parameters
    ----------
    asked : str
        What the user typed.
    names : iterable of str
        What there is.
    what : str
        What kind of thing it is, for the message.

    Returns
    -------
    str
        ``asked``.

    Raises
    ------
    click.UsageError
        There is no such name.
    """
    known = sorted(names)
    if asked not in known:
        raise click.UsageError(
            f"there is no {what} {cut(asked)!r}{did_you_mean(asked, known)}; give one of {', '.join(known)}."
        )
    return asked


def _no_such_workload(asked: str) -> str:
    return (
        f"{cut(asked)!r} is no file and no workload{did_you_mean(asked, NAMED_WORKLOADS)}; "
        f"give a trace file or one of {', '.join(NAMED_WORKLOADS)}."
    )
