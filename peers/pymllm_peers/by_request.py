"""The common part of prefix caches without locks: a hold is a request that comes for a key and stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.errors import ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out


class ByRequest(BaseAdapter):
    """The base of prefix caches without locks; nodes are keys of whole pages, and the root holds nothing."""

    KIND: ClassVar[str] = "prefix"
    LIMITS: ClassVar[Mapping[str, str]] = {"unlock": "a hold is released as it was taken"}

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.page_size = self.number("page_size")
        self._nodes: dict[int, ops.Key] = {}
        self._holds: dict[int, Any] = {}

    def stay(self, step: int, key: ops.Key) -> Any:
        """Let a request arrive for a fully cached key, and return it; the request stays."""
        raise UnsupportedError("lock")

    def leave(self, request: Any) -> None:
        """End a request that has stayed."""
        raise UnsupportedError("unlock")

    def whole(self, key: ops.Key, end: int | None = None) -> ops.Key:
        """Return a key, or its first tokens, cut to whole pages."""
        length = len(key.tokens) if end is None else end
        return ops.Key(key.tokens[: length // self.page_size * self.page_size], key.extra_key)

    def refuse_partial(self, length: int, key: ops.Key) -> None:
        """Raise an error where a staying request would find less than its whole key."""
        if length != len(key.tokens):
            raise RuntimeError(f"{length} of {len(key.tokens)} tokens are there")

    def do_lock(self, step: int, operation: ops.Lock) -> out.Result:
        """Let a request arrive that stays; the root needs none."""
        if operation.of not in self._nodes:
            raise ProgramError(f"step {operation.of} gave no node")
        key = self._nodes[step] = self._nodes[operation.of]
        self._holds[step] = self.stay(step, key) if key.tokens else None
        return out.Locked()

    def do_unlock(self, step: int, operation: ops.Unlock) -> out.Result:
        """End a request; requests from before a reset have ended."""
        if operation.at is not None or operation.token is not None:
            raise UnsupportedError("a hold is released as it was taken")
        if operation.lock not in self._holds:
            raise ProgramError(f"step {operation.lock} took no hold")
        request = self._holds.pop(operation.lock)
        if request is not None:
            self.leave(request)
        return out.Done()

    def forget_requests(self, *, leave: bool = True) -> None:
        """End every request, or only forget them where their cache is gone; their holds stay known."""
        for request in self._holds.values() if leave else ():
            if request is not None:
                self.leave(request)
        self._holds = dict.fromkeys(self._holds)
