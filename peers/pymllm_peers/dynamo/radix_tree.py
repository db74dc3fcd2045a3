"""Adapter of dynamo's ``RadixTree``, the index behind its router, from the package ``ai-dynamo-runtime``.

It is the tree of one thread; those of many threads have no interface in Python.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.outcomes import Done, Indexed, IndexedBlock, Leading, NotThere, Result
from pymllm_peers.installed import require_known

VERSION = "1.6.1"
"""The version that the adapter was tried with; peers/constraints/peers-dynamo.txt."""

_NOT_THERE = ("Failed to find parent block", "Failed to find block")
"""How the tree tells what it does not know of a worker; anything else that it raises is an error."""


def load_radix_tree() -> Any:
    """Import the class; `ImportError` where the package is missing, or has an unknown version."""
    require_known("ai-dynamo-runtime", (VERSION,), "peers-dynamo")
    os.environ.setdefault("DYN_LOG", "error")  # or it warns on the terminal of all that is not there
    return importlib.import_module("dynamo._core").RadixTree


class DynamoIndex(BaseAdapter):
    """``RadixTree``; ``own_hashes``, and ``also``: capabilities that dynamo does not promise.

    Hashes of the sequence are its ``block_hash``, those of the tokens its ``tokens_hash``; a worker has one
    rank. dynamo promises nothing of workers that hash in different ways, and refuses only some misuse.
    """

    KIND: ClassVar[str] = "index"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"own_hashes": False},)

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._make = load_radix_tree()
        self._tree = self._make()
        self._workers: set[int] = set()
        self._events = 0

    def claim(self) -> frozenset[str]:
        """Claim dynamo's early exit and dump, and the capabilities of ``also`` for one program."""
        return frozenset({"early_exit", "inspect", *str(self.config.get("also", "")).split()})

    def do_store_blocks(self, step: int, operation: ops.StoreBlocks) -> Result:
        blocks = [{"block_hash": hash, "tokens_hash": tokens} for hash, tokens in operation.blocks]
        return self._tell(operation.worker, {"stored": {"parent_hash": operation.parent, "blocks": blocks}})

    def do_remove_blocks(self, step: int, operation: ops.RemoveBlocks) -> Result:
        return self._tell(operation.worker, {"removed": {"block_hashes": list(operation.hashes)}})

    def do_clear_worker(self, step: int, operation: ops.ClearWorker) -> Result:
        return self._tell(operation.worker, "cleared")

    def do_drop_worker(self, step: int, operation: ops.DropWorker) -> Done:
        self._tree.remove_worker(operation.worker)
        return Done()

    def do_find_blocks(self, step: int, operation: ops.FindBlocks) -> Leading:
        scores = self._tree.find_matches(list(operation.tokens), operation.early).scores
        return Leading(tuple(sorted((worker, count) for (worker, _), count in scores.items())))

    def do_inspect(self, step: int, operation: ops.Inspect) -> Indexed:
        blocks = {block for event in self._dump() for block in _blocks_of(event)}
        return Indexed(tuple(sorted(blocks, key=lambda it: (it.worker, it.hash, it.parent or -1))))

    def do_rebuild(self, step: int, operation: ops.Rebuild) -> Done:
        events, self._tree = self._dump(), self._make()
        for event in events:
            self._apply(event["worker_id"], event["event"])
        return Done()

    def do_reset(self, step: int, operation: ops.Reset) -> Done:
        """Clear every worker: the tree has no other way to become empty."""
        for worker in self._workers:
            self._tree.clear_all_blocks(worker)
        return Done()

    def do_malformed(self, step: int, operation: ops.Malformed) -> Result:
        raise UnsupportedError("what is malformed")

    def _tell(self, worker: int, data: object) -> Result:
        self._workers.add(worker)
        self._events += 1
        return self._apply(worker, {"event_id": self._events, "data": data, "dp_rank": 0})

    def _apply(self, worker: int, event: Mapping[str, Any]) -> Result:
        try:
            self._tree.apply_event(worker, json.dumps(event).encode())
        except RuntimeError as error:
            if str(error).endswith(_NOT_THERE):
                return NotThere()
            raise
        return Done()

    def _dump(self) -> list[Any]:
        return [json.loads(event) for event in self._tree.dump_tree_as_events()]


def _blocks_of(event: Mapping[str, Any]) -> Iterator[IndexedBlock]:
    """Yield the blocks of a dumped event, each the child of the one before."""
    stored = event["event"]["data"]["stored"]
    parent = stored["parent_hash"]
    for block in stored["blocks"]:
        yield IndexedBlock(event["worker_id"], block["block_hash"], block["tokens_hash"], parent)
        parent = block["block_hash"]
