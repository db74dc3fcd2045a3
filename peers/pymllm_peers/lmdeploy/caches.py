"""lmdeploy's ``BlockTrie`` and the ``LogicalAllocator`` of its block manager, from a checkout.

lmdeploy counts who has a block, and the trie is one of them. So an insert is a sequence that matches, is
given its caller's blocks for the rest, enters the trie and goes; a hold is a sequence that matched and stays.
Slots are those of physical blocks, and block 0 is the one that lmdeploy can reserve.

The trie never finds the last block of a sequence, whose last token is to be computed; our caller asks for
what may be computed already (R2). So each sequence has one token behind the key, and ``kv_token_limit``, by
which lmdeploy computes a long prompt in pieces, ends before it. There is no reset: all sequences end, and
what the trie has is evicted.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from pymllm.adapters.key_forms import read_namespace, spell_namespace
from pymllm.adapters.simple import PrefixAdapter, SlotAdapter, SlotCalls
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.projects import LMDEPLOY

_MORE = 3
"""The token behind every key."""


def load_lmdeploy(module: str) -> Any:
    """Import a module of lmdeploy's engine, such as ``"block"``, in the version that was tried."""
    LMDEPLOY.require_version()
    utils = ModuleType(f"{LMDEPLOY.alias}.utils")  # which wants transformers, and is asked only for a log
    utils.get_logger = lambda name: logging.getLogger(LMDEPLOY.alias)  # type: ignore[attr-defined]
    sys.modules.setdefault(utils.__name__, utils)
    return LMDEPLOY.load(f"lmdeploy.pytorch.{module}")


class _Blocks(SlotCalls):
    """The blocks of callers that first ask whether enough blocks are free."""

    def make_manager(self, pages: int) -> None:
        """Build a manager of some blocks, and of one more that is reserved."""
        module = load_lmdeploy("paging.block_manager.default_block_manager")
        self.manager = module.DefaultBlockManager(pages + 1, 0, num_gpu_reserved=1)
        self.logical: dict[int, int] = {}  # by physical block

    def alloc(self, tokens: int) -> list[int] | None:
        pages = -(-tokens // self.page_size)
        if pages > self.manager.get_num_free_gpu_blocks():
            return None
        logical = self.manager.allocator.allocate(pages)
        physical = self.manager.resolve_gpu_block_offsets(logical).tolist()
        self.logical.update(zip(physical, logical.tolist(), strict=True))
        return self.slots_of(physical)[:tokens]

    def free(self, slots: list[int]) -> None:
        self.manager.allocator.free(self.logical_of(slots))

    def logical_of(self, slots: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the logical blocks of some slots."""
        return np.array([self.logical[page] for page in self.pages_of(slots)], dtype=np.int64)

    def free_tokens(self) -> int:
        """Count the tokens of free blocks."""
        return int(self.manager.get_num_free_gpu_blocks()) * self.page_size


class LmdeployBlocks(_Blocks, SlotAdapter):
    """``LogicalAllocator``, which gives each logical block a physical one; misuse is undefined."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": page_size, "pages": 12} for page_size in (1, 4)
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.make_manager(self.number("pages"))

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    def sizes(self) -> dict[str, int]:
        return {"available_size": self.free_tokens()}


class LmdeployTrie(_Blocks, PrefixAdapter):
    """``BlockTrie``; a node is a block.

    lmdeploy keeps times in whole seconds, and of equally old leaves the one with the smaller address goes. So
    that a program means the same each time, a second passes here before each use (peers/findings). Two keys
    of a configuration are each for one program: ``also`` names capabilities that it does not promise, and
    with ``bare_clock`` time is what it is.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": page_size, "window": None, "pool": "token", "slots": slots, "splits": False}
        for page_size, slots in ((1, 24), (4, 48))
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.make_manager(self.number("slots") // self.page_size)
        self.trie = load_lmdeploy("paging.block_trie.trie").BlockTrie(
            allocator=self.manager.allocator, block_size=self.page_size, enabled=True
        )
        self._seconds = itertools.count()
        if not self.config.get("bare_clock"):
            self.manager.allocator.update_access_time = self._let_a_second_pass
        meta = load_lmdeploy("messages").SequenceMeta(self.page_size)
        self._session = SimpleNamespace(seq_meta=meta, session_id=0)
        self._counter = itertools.count()
        self._numbers: dict[int, int] = {}  # by logical block, of what it was cached for

    def claim(self) -> frozenset[str]:
        """Claim no order of evictions, since a release also renews; and no refusals."""
        also = str(self.config.get("also", "")).split()
        return frozenset({"pool", "engine", "extra_key", "inspect", "lean_matches", "node_ids", *also})

    def sizes(self) -> dict[str, int]:
        """Return the sizes in nodes, and the allocator's."""
        references = [self._references(node) for node in self._cached()]
        evictable = references.count(1)
        nodes = {
            "total_size": len(references),
            "evictable_size": evictable,
            "protected_size": len(references) - evictable,
        }
        sizes = {name: count * self.page_size for name, count in nodes.items()}
        return {**sizes, "available_size": self.free_tokens()}

    def _let_a_second_pass(self, blocks: np.ndarray[Any, Any]) -> None:
        """Set the time of a use in place of the allocator, whose clock cannot be set."""
        self.manager.allocator._log_mem.access_time[blocks] = next(self._seconds)

    def _references(self, node: Any) -> int:
        return int(self.manager.allocator.get_ref_count(node.block_id))

    def _cached(self) -> list[Any]:
        """Return every node but the roots, parents before their children."""
        found = [*self.trie._roots.values()]
        roots = len(found)
        for node in found:
            found += node.children.values()
        return found[roots:]

    # -- sequences -----------------------------------------------------------------------------------------

    def _sequence(self, key: ops.Key) -> Any:
        """Return a sequence for the whole blocks of a key, already matched as far as possible."""
        sequence = load_lmdeploy("strategies.ar.sequence").SchedulerSequenceDefault(
            0, self._session, adapter_name=spell_namespace(key.extra_key)
        )
        whole = self.whole(len(key.tokens))
        sequence.update_token_ids([*key.tokens[:whole], _MORE])
        sequence.kv_token_limit = whole
        self.trie.match(sequence)
        return sequence

    def _slots(self, sequence: Any) -> list[int]:
        return self.slots_of(self.manager.get_block_table(sequence).tolist())

    def match(self, key: ops.Key) -> tuple[list[int], ops.Key]:
        """Match by a sequence that arrives, finds no room and ends."""
        sequence = self._sequence(key)
        slots = self._slots(sequence)
        self.manager.free(sequence)
        return slots, ops.Key(key.tokens[: len(slots)], key.extra_key)

    def insert(self, key: ops.Key, slots: list[int]) -> tuple[int, ops.Key]:
        sequence, whole = self._sequence(key), self.whole(len(key.tokens))
        known: int = sequence.num_history_ids
        own = self.logical_of(slots[known:whole])
        sequence.logical_blocks.append(own)
        self.trie.allocate(sequence)
        self._numbers.update(zip(own.tolist(), self._counter, strict=False))
        self.manager.free(sequence)
        return known, ops.Key(key.tokens[:whole], key.extra_key)

    def evict(self, tokens: int) -> int:
        """Evict whole blocks for so many tokens, return the reported count, and record the freed blocks."""
        return self._evict(-(-tokens // self.page_size)) * self.page_size

    def _evict(self, pages: int) -> int:
        allocator = self.manager.allocator
        blocks = np.array([node.block_id for node in self._cached()], dtype=np.int64)
        count: int = self.trie.evict(pages)
        freed = blocks[allocator.get_ref_count(blocks) == 0]
        self.gave_back(self.slots_of(allocator.get_physical_blocks(freed).tolist()))
        return count

    def lock(self, node: Any) -> Any:
        """Let a sequence arrive that stays."""
        sequence = self._sequence(node)
        if sequence.num_history_ids != len(node.tokens):
            self.manager.free(sequence)
            raise RuntimeError("not all of it is cached")
        return sequence

    def unlock(self, node: Any, token: Any) -> None:
        self.manager.free(token)

    def reset(self) -> None:
        """End all sequences, whose blocks are already gone if they ended, and evict everything."""
        for _, sequence in self._holds.values():
            self.manager.free(sequence)
        self._evict(len(self._cached()))

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show each block as a node."""
        allocator = self.manager.allocator
        return out.Inspected(
            tuple(
                out.NodeView(
                    id=self._numbers[node.block_id],
                    parent=self._numbers.get(node.parent.block_id),
                    tokens=tuple(node.token_ids.tolist()),
                    extra_key=read_namespace(node.adapter_name),
                    slots=tuple(self.slots_of([int(allocator.get_physical_blocks(node.block_id))])),
                    lock_ref=self._references(node) - 1,
                    last_access=float(allocator.get_access_time(node.block_id)),
                )
                for node in self._cached()
            )
        )
