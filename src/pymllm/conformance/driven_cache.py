"""A prefix cache that is an adapter: each call becomes an operation, is carried out, written down and judged.

So whoever drives a `BasePrefixCache`, such as the simulated engine, can drive any adapter, and all that it
does is an ordinary history. Nodes are step numbers here, and the token of a hold is the step of its `Lock`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from pymllm.errors import AdapterError, UsageError
from pymllm.history.operations import Evict, Insert, Key, Lock, Match, Operation, Reset, Unlock
from pymllm.history.outcomes import Done, Evicted, Failed, Inserted, Locked, Matched, Outcome
from pymllm.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    EvictResult,
    InsertResult,
    MatchResult,
    RadixKey,
)
from pymllm.oracle.prefix_judge import PrefixJudge
from pymllm.oracle.prefix_model import Path, path_of_key

if TYPE_CHECKING:
    from pymllm.conformance.driven_states import DrivenStates

__all__ = ["Carrier", "DrivenCache"]

R = TypeVar("R")


class Carrier:
    """Carries operations out for those who call functions.

    Parameters
    ----------
    do : callable
        Carries one out, judges it, and returns its outcome.
    judge : PrefixJudge
        The judge that ``do`` asks.

    Attributes
    ----------
    judge : PrefixJudge
        As given; its ledger names slots.
    steps : int
        Number of the last operation, as the history counts them.
    asked : Operation or None
        The operation that somebody has asked for and got no answer to; ``None`` where all were answered.
    """

    def __init__(self, do: Callable[[Operation], Outcome], judge: PrefixJudge) -> None:
        self.judge = judge
        self.steps = 0
        self.asked: Operation | None = None
        self._do = do
        self._told: dict[str, int] = {}

    def do(self, operation: Operation, *kinds: type[R]) -> R:
        """Carry an operation out, and return its result, which is of one of some kinds.

        Raises
        ------
        InvariantViolation
            It broke a law.
        UsageError
            It was rightly refused: who called asked for what the specification forbids.
        AdapterError
            The adapter cannot carry it out.
        """
        self.asked = operation
        outcome = self._do(operation)
        self.steps += 1
        self._told = outcome.sizes
        result = outcome.result
        if isinstance(result, kinds):
            self.asked = None
            return result
        if isinstance(result, Failed):
            raise UsageError(f"{operation} was refused: {result.error}: {result.message}")
        raise AdapterError("driven by the engine", f"{operation} was answered by {result}")

    def size(self, name: str) -> int:
        """Return a size by its documented name: as the adapter tells it, or else as it must be."""
        if name in self._told:
            return self._told[name]
        return self.judge.sizes()[name]


class DrivenCache(BasePrefixCache):
    """The documented interface over a `Carrier`.

    Parameters
    ----------
    carrier : Carrier
        Of an adapter of kind ``prefix``.
    states : DrivenStates, optional
        Over the same carrier, where the adapter keeps states.

    Notes
    -----
    Tokens are numbered in the order in which they first appear, so that programs are easy to read.
    """

    def __init__(self, carrier: Carrier, states: DrivenStates | None = None) -> None:
        self.states = states
        self._carrier = carrier
        self._tokens: dict[int, int] = {}
        self._paths: dict[int, Path] = {}
        self._states: dict[int, int | None] = {}

    def _key(self, key: RadixKey) -> Key:
        known = self._tokens
        return Key(tuple(known.setdefault(token, len(known) + 1) for token in key), key.extra_key)

    def path_of(self, node: int) -> Path:
        """Return the path that a node stands for."""
        return self._paths[node]

    def path_of_key(self, key: RadixKey) -> Path:
        """Return the path that a key spells."""
        return path_of_key(self._key(key))

    def state_of(self, node: int) -> int | None:
        """Return the row of the state at a matched node, ``None`` where there is none."""
        slot = self._states[node]
        return None if self.states is None or slot is None else self.states.row_of(slot)

    def reset(self) -> None:
        """Empty the cache."""
        self._carrier.do(Reset(), Done)

    def match_prefix(self, key: RadixKey) -> MatchResult:
        """Match a key; the indices are int64 on the CPU."""
        wanted = self._key(key)
        result = self._carrier.do(Match(wanted), Matched)
        step = self._carrier.steps
        self._paths[step] = path_of_key(wanted).upto(result.prefix_len)
        self._states[step] = result.state
        indices = torch.from_numpy(np.array(result.slots, dtype=np.int64))
        return MatchResult(indices, step, result.prefix_len, result.branching)

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        """Insert a key; `InsertResult.last_node` stands for its whole pages.

        ``mamba_value`` is a row of `states`.
        """
        wanted = self._key(key)
        slots = None if value is None else self._carrier.judge.ledger.name(value.tolist())
        row = kwargs.pop("mamba_value", None)
        state = None if row is None or self.states is None else self.states.name(int(row))
        result = self._carrier.do(Insert(wanted, slots, state=state, **kwargs), Inserted)
        step = self._carrier.steps
        self._paths[step] = self._carrier.judge.model.whole(path_of_key(wanted))
        return InsertResult(result.prefix_len, step, result.state_exists, result.adopted)

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        """Evict."""
        result = self._carrier.do(Evict(num_tokens, swa_num_tokens), Evicted)
        return EvictResult(result.full, result.swa, result.states)

    def inc_lock_ref(self, node: int) -> int:
        """Take a hold; the token is the step of its `Lock`."""
        self._carrier.do(Lock(node), Locked)
        return self._carrier.steps

    def dec_lock_ref(self, node: int, **kwargs: Any) -> None:
        """Release the hold whose token is ``swa_boundary_id``; ``node`` follows from it."""
        self._carrier.do(Unlock(kwargs["swa_boundary_id"]), Done)

    def evictable_size(self) -> int:
        """Count the cached tokens that no hold protects."""
        return self._carrier.size("evictable_size")

    def swa_evictable_size(self) -> int:
        """Count the alive ones that no hold's window protects."""
        return self._carrier.size("swa_evictable_size")

    def protected_size(self) -> int:
        """Count the cached tokens under a hold."""
        return self._carrier.size("protected_size")

    def swa_protected_size(self) -> int:
        """Count the tokens inside a hold's window."""
        return self._carrier.size("swa_protected_size")

    def total_size(self) -> int:
        """Count the cached tokens."""
        return self._carrier.size("total_size")
