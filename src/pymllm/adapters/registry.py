"""The adapters there are, by name, each loaded only when asked for: a missing package matters no sooner."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass

from pymllm.adapters.base import Adapter, AdapterClass
from pymllm.errors import AdapterError, PymllmError, UsageError
from pymllm.oracle.history import Config
from pymllm.oracle.operations import KINDS

__all__ = ["FAULTY", "OWN", "AdapterEntry", "find_adapter", "load_adapter", "make_adapter"]


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """One line of the registry.

    Parameters
    ----------
    name : str
        What ``--adapter`` takes.
    place : str
        ``"module:Class"``.
    summary : str
        What it adapts.
    """

    name: str
    place: str
    summary: str


OWN: tuple[AdapterEntry, ...] = (
    AdapterEntry("token-slots", "pymllm.adapters.own_slots:TokenSlots", "TokenToKVPoolAllocator"),
    AdapterEntry("swa-slots", "pymllm.adapters.own_slots:SWASlots", "SWATokenToKVPoolAllocator"),
    AdapterEntry("rows", "pymllm.adapters.own_rows:Rows", "ReqToTokenPool"),
    AdapterEntry("kv-buffers", "pymllm.adapters.own_buffers:KVBuffers", "KVPool"),
    AdapterEntry("gdn-states", "pymllm.adapters.own_states:GDNStates", "GDNPool"),
    AdapterEntry("hashes", "pymllm.adapters.own_hashes:KeysAndHashes", "RadixKey and the hash functions"),
    AdapterEntry("radix", "pymllm.adapters.own_radix:Radix", "RadixCache"),
    AdapterEntry(
        "radix-window", "pymllm.adapters.own_radix:WindowedRadix", "RadixCache with a sliding window"
    ),
    AdapterEntry("chunk", "pymllm.adapters.own_chunk:Chunk", "ChunkCache"),
)
"""Our own classes; what ``pymllm verify`` examines by default."""

FAULTY: tuple[AdapterEntry, ...] = ()
"""Wrong on purpose, to see that they are caught (`pymllm.adapters.faulty`)."""


def find_adapter(name: str) -> AdapterEntry:
    """Return the entry of a registry name, or make one for ``module:Class``.

    Raises
    ------
    UsageError
        The registry has no such name.
    """
    if ":" in name:
        return AdapterEntry(name, name, "")
    for entry in (*OWN, *FAULTY):
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in (*OWN, *FAULTY))
    raise UsageError(f"no adapter {name!r}; there are {known}, or give module:Class")


def load_adapter(entry: AdapterEntry) -> AdapterClass:
    """Import an adapter's class.

    Raises
    ------
    AdapterError
        The module cannot be imported, or what the entry names is no adapter class.
    """
    module_name, _, class_name = entry.place.partition(":")
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
    """Build an adapter.

    Parameters
    ----------
    name : str
        A registry name or ``module:Class``.
    config : dict, optional
        What to build; by default the first of the class's `CONFIGURATIONS`.

    Raises
    ------
    UsageError
        There is no such name.
    AdapterError
        It cannot be loaded or built.
    """
    entry = find_adapter(name)
    adapter_class = load_adapter(entry)
    chosen = dict(adapter_class.CONFIGURATIONS[0]) if config is None else config
    try:
        return adapter_class(entry.name, chosen)
    except PymllmError:
        raise
    except Exception as error:
        raise AdapterError(entry.name, f"cannot be built with {chosen}: {error}") from error
