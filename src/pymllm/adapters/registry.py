"""The adapters there are, by name, each loaded only when asked for: a missing package matters no sooner."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pymllm.adapters.base import Adapter, AdapterClass
from pymllm.adapters.process.command_name import PREFIX, split_command
from pymllm.errors import AdapterError, PymllmError, UsageError
from pymllm.history.files import Config
from pymllm.history.operations import KINDS
from pymllm.torch_extra import why_no_torch

_LONGEST = 60  # of a name that is shown again
_LONGEST_CONFIG = 300


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """One line of the registry: what ``--adapter`` takes, ``"module:Class"``, and what it adapts.

    `package` has to be installed for it beyond what this package needs (empty for nothing), and `environment`
    of tox.ini installs that.
    """

    name: str
    place: str
    summary: str
    package: str = ""
    environment: str = ""

    def find_missing(self) -> str | None:
        """Say which package is not installed, and what brings it; ``None`` where nothing is missing."""
        if not self.package or importlib.util.find_spec(self.package) is not None:
            return None
        pins = "peers-older" if self.environment == "peers-older" else "peers-alone"
        return (
            f"{self.name} needs {self.package}, which is not installed; tox -e {self.environment} installs "
            f"it, or pip install -r constraints/peers.txt && pip install --no-deps -r constraints/{pins}.txt"
        )

    @property
    def is_of_torch(self) -> bool:
        """Whether it needs torch: whoever adapts our classes or sglang's does."""
        return self.place.startswith("pymllm.adapters.")


_OWN = {
    "token-slots": ("own_slots:TokenSlots", "TokenToKVPoolAllocator"),
    "swa-slots": ("own_slots:SWASlots", "SWATokenToKVPoolAllocator"),
    "rows": ("own_pools:Rows", "ReqToTokenPool"),
    "kv-buffers": ("own_pools:KVBuffers", "KVPool"),
    "gdn-states": ("own_pools:GDNStates", "GDNPool"),
    "hashes": ("own_pools:KeysAndHashes", "RadixKey and the hash functions"),
    "radix": ("own_caches:Radix", "RadixCache"),
    "radix-window": ("own_caches:WindowedRadix", "RadixCache with a sliding window"),
    "mamba": ("own_caches:Mamba", "MambaRadixCache"),
    "chunk": ("own_caches:Chunk", "ChunkCache"),
    "blocks": ("own_blocks:Blocks", "KVBlockAllocator and MambaSlotAllocator"),
    "requests": ("own_requests:Requests", "DynamicInferenceContext"),
}
_PEERS = {
    "sglang-radix": ("sglang.caches:SglangRadix", "sglang's RadixCache"),
    "sglang-unified": ("sglang.caches:SglangUnified", "sglang's unified tree in Python"),
    "sglang-unified-swa": (
        "sglang.caches:SglangUnifiedSWA",
        "sglang's unified tree in Python, with a sliding window",
    ),
    "sglang-rust": ("sglang.caches:SglangRust", "sglang's unified tree in Rust"),
    "sglang-rust-swa": (
        "sglang.caches:SglangRustSWA",
        "sglang's unified tree in Rust, with a sliding window",
    ),
    "sglang-unified-mamba": (
        "sglang.mamba:SglangUnifiedMamba",
        "sglang's unified tree in Python, with recurrent states",
    ),
    "sglang-rust-mamba": (
        "sglang.mamba:SglangRustMamba",
        "sglang's unified tree in Rust, with recurrent states",
    ),
    "sglang-mamba": ("sglang.mamba:SglangMamba", "MambaRadixCache of an older sglang (0.5.15)"),
    "sglang-swa": ("sglang.caches:SglangSWA", "SWARadixCache of an older sglang (0.5.15)"),
    "sglang-token": ("sglang.slots:SglangTokenSlots", "sglang's TokenToKVPoolAllocator"),
    "sglang-paged": ("sglang.slots:SglangPagedSlots", "sglang's PagedTokenToKVPoolAllocator"),
    "sglang-swa-allocator": ("sglang.slots:SglangSWASlots", "sglang's SWATokenToKVPoolAllocator"),
    "sglang-rows": ("sglang.slots:SglangRows", "sglang's ReqToTokenPool"),
}
_OLDER = ("sglang-mamba", "sglang-swa")

OWN: tuple[AdapterEntry, ...] = tuple(
    AdapterEntry(name, f"pymllm.adapters.{place}", summary) for name, (place, summary) in _OWN.items()
)
"""Our own classes; what ``pymllm verify`` examines by default."""

PEERS: tuple[AdapterEntry, ...] = tuple(
    AdapterEntry(
        name, f"pymllm.adapters.{place}", summary, "sglang", "peers-older" if name in _OLDER else "peers"
    )
    for name, (place, summary) in _PEERS.items()
)
"""Other people's, loaded when built: ``tox -e peers`` installs the package, ``peers-older`` an older one."""

_FAULTY = {
    "faulty_pools": {
        "SlotZero": "hands out slot 0",
        "BackwardSlots": "hands out the slots of a page backwards",
        "EagerReuse": "hands out what was freed last while older pages are free",
        "MergingFailure": "merges what is free before it finds that it does not suffice",
        "DoubleFree": "claims to refuse misuse, and takes back what was never handed out",
        "HalfHeardFrees": "frees only those pages whose first slot is named",
        "NestedGroups": "accepts a group inside a group",
        "UnsortedClear": "clears by freeing what is held, so that the next pages are not those of a new pool",
        "ForgottenRing": "clears a queue of pages and forgets its ring, which still has the pages of before",
        "ForgottenHalves": "frees slots and forgets to give their SWA halves back",
        "SharedHalves": "puts one SWA half behind all slots of an allocation",
        "RowZero": "hands out row 0",
        "DirtyRows": "frees rows without zeroing them",
        "WritesEverywhere": "writes rows into every layer",
        "SilentCasts": "casts rows of another dtype",
        "LostPadding": "drops what is written to slot 0",
        "WorkingSnapshots": "hands out a working row as a track slot",
        "OneLayerCopies": "copies the states of the first layer only",
        "SwappedHeads": "keeps the two dimensions of a head in the wrong order",
        "LostNamespace": "forgets the namespace of a key that is sliced",
        "UnsignedDigests": "turns a digest into an unsigned number",
    },
    "faulty_radix": {
        "LockedVictims": "evicts leaves without a look at their locks",
        "LostAncestors": "releases the nodes that a hold was taken on, and forgets what was split off since",
        "NamespaceFallback": "serves a namespace that has nothing cached from the plain one",
        "OrphanHashes": "hashes the pages of a node as if nothing came before them",
        "BareNamespaces": "seeds the hashes of a namespace with its name, be it a number or a text",
        "GreedyEviction": "evicts one token more than was asked for, and so now and then a leaf more",
        "OneByOne": "frees the victims of an eviction one by one",
        "RepeatedPages": "names a page once for each of its slots where the pool asks for each page once",
        "OpenCallbacks": "lets a callback call the cache",
        "LeavesOnly": "counts only leaves as evictable",
        "HeldSlotsLost": "resets without giving the slots of held nodes back",
        "GlobalIds": "numbers the nodes of all caches of a process together",
        "ShortMatches": "never matches the last token of a key",
        "BottomUpSlots": "gives the slots of a path node by node from its end to its start",
        "SilentHits": "begins to count the hits of the upper half of a split anew",
        "SplitViews": "splits the slots of a node into views, each of which keeps the whole alive",
        "SharedPages": "splits a list of pages and leaves the lower half its first ones, the upper half's",
        "FreedDuplicates": "frees the slots of what is cached already, although they are the caller's",
        "OverstatedAdoption": "tells that it adopted all of a key whose end was new",
        "ZeroPrefix": "tells that nothing of a key was cached before",
        "ShortValues": "cuts a key and its slots to the shorter of the two instead of refusing them",
        "EarlyRefusal": "caches as much of a key as there are slots for, and only then refuses it",
        "EmptyNodes": "adds an empty node below a leaf that is cached again",
        "DeadWindows": "matches prefixes whose last window is dead",
        "StaleMatches": "does not make what it matches recent",
        "ShortHolds": "protects one page less than a hold's window needs",
        "LowBoundaries": "leaves a window's boundary with the lower half of a split",
        "TwiceProtected": "counts a protected window once for each of its holds",
        "DeadLeaves": "leaves tombstones behind as leaves",
        "LivingTombstones": "frees the SWA half of a node that it still takes for alive",
        "OneWindowMore": "frees one window token more than was asked for, and so now and then a node more",
        "NoProtection": "ignores prev_prefix_len",
    },
    "faulty_mamba": {
        "InheritedStates": "tells that a state exists where only an ancestor has one",
        "StatelessMatches": "matches KV beyond the last state",
        "CopiedStates": "splits a node and leaves its state with both halves",
        "StolenLocks": "releases a hold and with it the states that others hold above it",
        "StatesAsTokens": "takes the number of states to evict for a number of tokens",
        "TokensAsStates": "counts the tokens of nodes with a state instead of the states",
        "FreedStates": "frees the track slot of a state that it has already, although it is the caller's",
        "UntouchedLists": "leaves a node where it is in the list of all nodes when it is used again",
        "OverwrittenStates": "copies each new state over that of the node above, too",
        "WipedStates": "zeroes a state when the last hold at its node is released",
    },
    "faulty_blocks": {
        "OldestBlocks": "evicts the oldest cached block, whatever was registered below it",
        "ReleasesOnce": "takes one reference from a block that is released twice in one call",
        "LastRegistrations": "lets a hash name the block that was registered with it last",
        "ForeignParents": "takes any block with the hash of a parent for the parent",
        "StaleIndex": "resets without forgetting which block had which hash",
        "PartialReleases": "releases blocks one by one, up to the one that must be refused",
        "FailingEvictions": "evicts what it can before it finds that it does not suffice",
        "EarlyObserver": "calls the observer before the books are written",
        "OpenObserver": "lets the observer call the allocator",
        "UnsettledErrors": "does not free what was released if the observer raises",
        "LoudReset": "tells the observer of the blocks that a reset takes from their holders",
        "UnheardBlocks": "does not tell the observer of blocks without a hash",
        "StaleSlots": "frees the slots of blocks, and leaves the slots with their blocks",
        "KeptNames": "frees the slots of blocks, and finds their states all the same",
        "ForeignNames": "forgets a hash that is deregistered, although it names another block's state",
        "EvictedBatch": "evicts slots of blocks that the same batch names",
        "LeakingBatches": "takes the free slots before it finds that they do not suffice",
        "YoungestSlots": "evicts the slots of those blocks that were used last",
        "OneLayerSaves": "saves the recurrent states of the first layer only",
        "RequestsAsRows": "restores a state to the row with the request's number, whoever has that row",
        "WipedLive": "zeroes a live state for which it finds no cached one",
        "StaleStates": "resets without zeroing the recurrent states",
    },
    "faulty_requests": {
        "BatchSnapshots": "stores the state of the first request of a batch for all whose prompts end",
        "PromptOffsets": "counts the ends of blocks in a later chunk as if the prompt began there",
        "TrunksFirst": "keeps the states inside of prompts before those at their ends",
        "UnfilledSlots": "keeps slots that a failing commit has not filled",
        "StaleRestores": "resumes behind a cached state without a copy of it",
        "BareHashes": "takes every block with the right hash for a hit",
        "FullHits": "leaves nothing to compute of a prompt that is cached as a whole",
        "UnheldHits": "holds what it has found only once the rest is allocated",
        "LeakyAdmissions": "keeps the shared blocks of a request that it could not take up",
        "SharedReleases": "gives a shared block up on behalf of two requests when one of them leaves",
        "LongRows": "leaves the blocks of a released request in the last row",
        "UnboundedPauses": "lets paused requests keep as many blocks as they have",
        "DurableHashes": "resets by releasing every request, so that what was cached is found again",
    },
}

FAULTY: tuple[AdapterEntry, ...] = tuple(
    AdapterEntry(
        "faulty" + re.sub("([A-Z])", r"-\1", name).lower(), f"pymllm.adapters.{module}:{name}", summary
    )
    for module, summaries in _FAULTY.items()
    for name, summary in summaries.items()
)
"""Wrong on purpose, each in one way, to see that they are caught (`pymllm.adapters.faulty`)."""


def find_adapter(name: str) -> AdapterEntry:
    """Return the entry of a registry name, or make one for ``module:Class`` or ``command:PROGRAM ARGS``.

    `UsageError` where the registry has no such name, or the command names no program.
    """
    if name.startswith(PREFIX):
        split_command(name)
    if ":" in name:
        return AdapterEntry(name, name, "")
    for entry in (*OWN, *PEERS, *FAULTY):
        if entry.name == name:
            return entry
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    names = [entry.name for entry in (*OWN, *PEERS, *FAULTY)]
    near = difflib.get_close_matches(shown, names, n=3)
    question = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise UsageError(
        f"no adapter {shown!r}{question}; pymllm adapters lists them, "
        f"and module:Class or {PREFIX}PROGRAM ARGS names another one"
    )


def load_adapter(entry: AdapterEntry) -> AdapterClass:
    """Import an adapter's class, or start the program and hear what it is.

    `AdapterError` where the module cannot be imported, what the entry names is no adapter class, or the
    program cannot be started or does not introduce itself (`ConversationError`).
    """
    if entry.place.startswith(PREFIX):
        from pymllm.adapters.process.adapter import load_command  # needs msgspec, which our classes do not

        program: AdapterClass = load_command(entry.place)  # type: ignore[assignment]  # as below
        return program
    module_name, _, class_name = entry.place.partition(":")
    reason = why_no_torch() if entry.is_of_torch else None
    if reason is not None:
        raise AdapterError(entry.name, reason)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a stranger's module may raise anything
        raise AdapterError(entry.name, f"cannot import {module_name}: {error}") from error
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        raise AdapterError(entry.name, f"{module_name} has no class {class_name!r}")
    if getattr(found, "KIND", None) not in KINDS:
        raise AdapterError(entry.name, f"{class_name}.KIND must be one of {', '.join(KINDS)}")
    adapter_class: AdapterClass = found  # type: ignore[assignment]  # the smoke test looks closer
    return adapter_class


def make_adapter(name: str, config: Config | None = None) -> Adapter:
    """Build an adapter by its name, as of `find_adapter`, by default with the first of its `CONFIGURATIONS`.

    `UsageError` where there is no such name, `AdapterError` where it cannot be loaded or built.
    """
    entry = find_adapter(name)
    adapter_class = load_adapter(entry)
    chosen = dict(adapter_class.CONFIGURATIONS[0]) if config is None else config
    try:
        return adapter_class(entry.name, chosen)
    except PymllmError:
        raise
    except Exception as error:
        why = _find_misfit(error, chosen, adapter_class.CONFIGURATIONS) or f"{type(error).__name__}: {error}"
        raise AdapterError(entry.name, f"cannot be built with {_shown(chosen)}: {why}") from error


def _shown(config: object) -> str:
    text = str(config)
    return text if len(text) <= _LONGEST_CONFIG else f"{text[:_LONGEST_CONFIG]}..."


def _find_misfit(
    error: Exception, config: Mapping[str, object], known: Iterable[Mapping[str, object]]
) -> str | None:
    """Say what a configuration lacks, and has too much, where a class looked for what is not in it."""
    own = [dict(one) for one in known]
    lacking = error.args[0] if isinstance(error, KeyError) and error.args else None
    if lacking in config or not any(lacking in one for one in own):
        return None
    unknown = [key for key in config if not any(key in one for one in own)]
    surplus = f", and no configuration of its own has {', '.join(map(repr, unknown))}" if unknown else ""
    return f"there is no {lacking!r} in it{surplus}; one of its own is {_shown(own[0])}"
