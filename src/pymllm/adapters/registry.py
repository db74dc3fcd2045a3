"""The adapters there are, by name, each loaded only when asked for: a missing package matters no sooner."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
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
        return self.place.startswith(("pymllm.adapters.", "pymllm.faults."))


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


def faulty() -> tuple[AdapterEntry, ...]:
    """Give those that are wrong on purpose, each in one way; their table is read when somebody asks."""
    entries: tuple[AdapterEntry, ...] = importlib.import_module("pymllm.faults.adapters").FAULTY
    return entries


def find_adapter(name: str) -> AdapterEntry:
    """Return the entry of a registry name, or make one for ``module:Class`` or ``command:PROGRAM ARGS``.

    `UsageError` where the registry has no such name, or the command names no program.
    """
    if name.startswith(PREFIX):
        split_command(name)
    if ":" in name:
        return AdapterEntry(name, name, "")
    for entry in (*OWN, *PEERS):
        if entry.name == name:
            return entry
    for entry in faulty():
        if entry.name == name:
            return entry
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    names = [entry.name for entry in (*OWN, *PEERS, *faulty())]
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
