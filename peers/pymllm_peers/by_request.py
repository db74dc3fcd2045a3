"""The common part of prefix caches without locks: a hold is a request that comes for a key and stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.errors import ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out


class ByRequest(BaseAdapter):
    """Nodes are keys of whole pages; of the root nothing is held."""

    KIND: ClassVar[str] = "prefix"
    LIMITS: ClassVar[Mapping[str, str]] = {"unlock": "a hold is released as it was taken"}

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.page_size = self.number("page_size")
        self._nodes: dict[int, ops.Key] = {}
        self._holds: dict[int, Any] = {}

    def stay(self, step: int, key: ops.Key) -> Any:
        """Let a request come for a key that is cached as a whole, and return it; it stays."""
        raise UnsupportedError("lock")

    def leave(self, request: Any) -> None:
        """Let a request go that has stayed."""
        raise UnsupportedError("unlock")

    def whole(self, key: ops.Key, end: int | None = None) -> ops.Key:
        """Return a key, or so many tokens of it, as far as pages are whole."""
        length = len(key.tokens) if end is None else end
        return ops.Key(key.tokens[: length // self.page_size * self.page_size], key.extra_key)

    def refuse_partial(self, length: int, key: ops.Key) -> None:
        """Raise where less than the whole key is there for a request that is to stay."""
        if length != len(key.tokens):
            raise RuntimeError(f"{length} of {len(key.tokens)} tokens are there")

    def do_lock(self, step: int, operation: ops.Lock) -> out.Result:
        """Let a request come that stays; for the root none comes."""
        if operation.of not in self._nodes:
            raise ProgramError(f"step {operation.of} gave no node")
        key = self._nodes[step] = self._nodes[operation.of]
        self._holds[step] = self.stay(step, key) if key.tokens else None
        return out.Locked()

    def do_unlock(self, step: int, operation: ops.Unlock) -> out.Result:
        """Let a request go; one of before a reset is gone."""
        if operation.at is not None or operation.token is not None:
            raise UnsupportedError("a hold is released as it was taken")
        if operation.lock not in self._holds:
            raise ProgramError(f"step {operation.lock} took no hold")
        request = self._holds.pop(operation.lock)
        if request is not None:
            self.leave(request)
        return out.Done()

    def forget_requests(self, *, leave: bool = True) -> None:
        """Let every request go, or, where their cache is gone, only forget them; their holds stay known."""
        for request in self._holds.values() if leave else ():
            if request is not None:
                self.leave(request)
        self._holds = dict.fromkeys(self._holds)
