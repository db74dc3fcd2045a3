"""What can be asked of a context that serves whole requests: operations of kind ``requests``.

A request is named by the step of the `AddRequest` that took it up. The forward pass belongs to the adapter.
It must compute exactly what follows, out of what it reads through the context, and so must whoever judges it.

The KV of a token is one number: that of the token before it times `KV_FACTOR`, plus the token plus 1, modulo
`KV_PRIME`; before the first token stands 0. What is told of a block is the sum of its numbers, each
times its place in the block, counted from 1.

A recurrent state has for each of its elements an integer below the prime of its kind. A token t takes
element e of a state from x to ``(a * x + b) % prime``, where
``a = 1 + (t + 1) * (e + 3) * 7919 % (prime - 1)`` and ``b = (t + 1) * (e + 5) * 104729 + e``. Elements are
counted through all layers of the conv states, and again through all layers of the SSM states; before the
first token all are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.slot_init import built_through_slots

__all__ = [
    "CONV_PRIME",
    "KV_FACTOR",
    "KV_PRIME",
    "SSM_PRIME",
    "AddRequest",
    "Pause",
    "Release",
    "Resume",
    "RunStep",
    "ScheduleChunk",
]

KV_FACTOR = 1_000_003
KV_PRIME = 2**31 - 1
CONV_PRIME = 251
"""The largest prime whose residues bfloat16 holds exactly."""
SSM_PRIME = 16_777_213
"""The same for float32."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class AddRequest:
    """Take up a request and schedule its first chunk (C3, E4); answered by `RequestView` or `NoRoom`.

    Parameters
    ----------
    tokens : tuple of int
        The prompt.
    limit : int or None
        The most tokens to compute in the first chunk; ``None`` for all.
    """

    tokens: tuple[int, ...]
    limit: int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class ScheduleChunk:
    """Schedule the next chunk of a request that waits (E4); answered by `RequestView` or `NoRoom`."""

    request: int
    limit: int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class RunStep:
    """Compute all scheduled chunks, and a token of each decoding request; answered by `Ran`.

    Parameters
    ----------
    next_tokens : tuple of int
        One at least: what is sampled by the requests that sample, in the order in which they were added,
        from the start again where there are more of them.
    """

    next_tokens: tuple[int, ...] = (1,)


@built_through_slots
@dataclass(frozen=True, slots=True)
class Pause:
    """Set a request aside with its blocks (C1); answered by `Done` or `NoRoom`."""

    request: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Resume:
    """Let a paused request go on; answered by `Done`."""

    request: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Release:
    """Let a request go with all that it has (E3); answered by `Done`."""

    request: int
