"""All adapters by name: this package's and those of plug-ins."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pymllm.adapters.base import Adapter, AdapterClass
from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.plugins import find_plugins
from pymllm.adapters.process.command_name import PREFIX, split_command
from pymllm.errors import AdapterError, PymllmError, UsageError
from pymllm.history.files import Config
from pymllm.history.operations import KINDS
from pymllm.text_file import shown
from pymllm.torch_extra import PACKAGES, why_no_torch

_LONGEST = 60  # of a name that is shown again
_LONGEST_CONFIG = 300
_PACKAGE = Path(__file__).parents[1]


_OWN = {
    "token-slots": ("own_slots:TokenSlots", "TokenToKVPoolAllocator"),
    "swa-slots": ("own_slots:SWASlots", "SWATokenToKVPoolAllocator"),
    "rows": ("own_pools:Rows", "ReqToTokenPool"),
    "kv-buffers": ("own_pools:KVBuffers", "KVPool"),
    "gdn-states": ("own_pools:GDNStates", "GDNPool"),
    "hashes": ("own_pools:KeysAndHashes", "RadixKey and the hash functions"),
    "radix": ("own_caches:Radix", "RadixCache"),
    "radix-window": ("own_caches:WindowedRadix", "RadixCache with a sliding window"),
    "radix-policy": ("own_caches:RankedRadix", "RadixCache with each eviction policy but lru"),
    "mamba": ("own_caches:Mamba", "MambaRadixCache"),
    "chunk": ("own_caches:Chunk", "ChunkCache"),
    "blocks": ("own_blocks:Blocks", "KVBlockAllocator and MambaSlotAllocator"),
    "requests": ("own_requests:Requests", "DynamicInferenceContext"),
    "index-dict": ("own_index:IndexDict", "an index of who has which blocks, of plain dictionaries"),
    "index-events": ("own_index:IndexEvents", "the same, told events as servers number and repeat them"),
}
OWN: tuple[AdapterEntry, ...] = tuple(
    AdapterEntry(name, f"pymllm.adapters.{place}", summary, needs_torch=not name.startswith("index-"))
    for name, (place, summary) in _OWN.items()
)
"""The entries of this package's own classes, which ``pymllm verify`` examines by default."""

_NAMES = frozenset(entry.name for entry in OWN)


def adapters() -> tuple[AdapterEntry, ...]:
    """Return all adapters: this package's, then those of plug-ins, searched for on each call."""
    return (*OWN, *find_plugins(_NAMES).entries)


def plugin_problems() -> tuple[str, ...]:
    """Return a line for each plug-in that could not be read, with the reason."""
    return find_plugins(_NAMES).problems


def find_adapter(name: str) -> AdapterEntry:
    """Return the entry of a registry name, or a new one for ``module:Class`` or ``command:PROGRAM ARGS``.

    `UsageError` where there is no such name, a command names no program, or a file is named for its module.
    """
    if name.startswith(PREFIX):
        split_command(name)
        return AdapterEntry(name, name, "")
    module, colon, _ = name.partition(":")
    if colon and not module.endswith(".py"):
        return AdapterEntry(name, name, "")
    for entry in OWN:
        if entry.name == name:
            return entry
    entries = {entry.name: entry for entry in adapters()}
    if name in entries:
        return entries[name]
    unread = "".join(f"; {problem}" for problem in plugin_problems())
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    near = _guess_place(shown) or difflib.get_close_matches(shown, entries, n=3)
    raise UsageError(
        f"no adapter {shown!r}{_did_you_mean(near)}; pymllm adapters lists all; "
        f"name your own as module:Class or {PREFIX}PROGRAM ARGS{unread}"
    )


def _guess_place(name: str) -> list[str]:
    """Return ``toy:Toy`` for common misspellings: ``toy.Toy``, ``toy.py`` and ``toy.py:Toy``."""
    file = re.fullmatch(r"(?:\./)*(\w+(?:/\w+)*)\.py(?::(\w+))?", name)
    found = file or re.fullmatch(r"(\w+(?:\.\w+)*)\.(\w+)", name)
    return [f"{found[1].replace('/', '.')}:{found[2] or 'CLASS'}"] if found else []


def _did_you_mean(near: Iterable[str]) -> str:
    names = " or ".join(near)
    return f" (did you mean {names}?)" if names else ""


class KindError(AdapterError):
    """Raised for an adapter class with an unknown kind."""


_LENT: dict[str, AdapterClass] = {}


@contextmanager
def lend_adapter(name: str, adapter_class: AdapterClass) -> Iterator[None]:
    """Register a class of this process under a name ``module:Class`` during a ``with`` block."""
    before = _LENT.get(name)
    _LENT[name] = adapter_class
    try:
        yield
    finally:
        if before is None:
            del _LENT[name]
        else:
            _LENT[name] = before


def load_adapter(entry: AdapterEntry) -> AdapterClass:
    """Import an adapter's class, or start its program and read the introduction.

    `AdapterError` where the module cannot be imported, what the entry names is no adapter class, or the
    program cannot be started or does not introduce itself (`ConversationError`).
    """
    if entry.place.startswith(PREFIX):
        from pymllm.adapters.process.adapter import load_command  # needs msgspec, which our classes do not

        program: AdapterClass = load_command(entry.place)  # type: ignore[assignment]  # as below
        return program
    if entry.place in _LENT:
        return _LENT[entry.place]
    module_name, _, class_name = entry.place.partition(":")
    reason = why_no_torch() if entry.needs_torch else None
    if reason is not None:
        raise AdapterError(entry.name, reason)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a stranger's module may raise anything
        reason = why_no_torch() if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES else None
        if reason is not None:
            raise AdapterError(entry.name, reason) from error
        is_gone = "/" in module_name or (
            isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        )
        dotted = re.sub(r"^(\./)+", "", module_name).replace("/", ".")
        near = [f"{dotted}:{class_name}"] if "/" in module_name else []
        gone = f"no module of that name is in {Path.cwd()} or installed{_did_you_mean(near)}"
        why = gone if is_gone else _told(error)
        raise AdapterError(entry.name, f"cannot import {module_name}: {why}") from error
    found = getattr(module, class_name, None)
    if callable(found) and not (inspect.isclass(found) and _is_adapter(found)) and why_no_torch() is None:
        from pymllm.adapters.documented import GivenByName, is_documented  # loads torch

        if is_documented(found):
            try:
                return GivenByName(found)  # type: ignore[return-value]  # an object in place of a class
            except UsageError as error:
                raise AdapterError(entry.name, str(error)) from error
    if not inspect.isclass(found):
        classes = {name: it for name, it in vars(module).items() if inspect.isclass(it)}
        adapters = [name for name, it in classes.items() if _is_adapter(it)]
        near = difflib.get_close_matches(class_name, adapters or classes) or adapters[-1:]
        raise AdapterError(entry.name, f"{module_name} has no class {class_name!r}{_did_you_mean(near)}")
    if not _is_adapter(found):
        raise AdapterError(
            entry.name,
            f"{class_name} is no adapter; derive one from pymllm.adapters.base.BaseAdapter, which has apply, "
            "audit and close, and let it call your class (docs/verify.md shows how)",
        )
    kind = getattr(found, "KIND", None)
    if type(kind) is not str or kind not in KINDS:
        raise KindError(
            entry.name, f"{class_name}.KIND is {shown(kind)}; it must be one of {', '.join(KINDS)}"
        )
    adapter_class: AdapterClass = found  # type: ignore[assignment]  # the smoke test looks closer
    return adapter_class


def _is_adapter(found: type) -> bool:
    return all(callable(getattr(found, method, None)) for method in ("apply", "audit", "close"))


def make_adapter(name: str, config: Config | None = None) -> Adapter:
    """Return an adapter by name, as of `find_adapter`, by default with the first of `CONFIGURATIONS`.

    `UsageError` where there is no such name, `AdapterError` where it cannot be loaded or built.
    """
    entry = find_adapter(name)
    adapter_class = load_adapter(entry)
    chosen = dict(adapter_class.CONFIGURATIONS[0]) if config is None else config
    try:
        adapter = adapter_class(entry.name, chosen)
    except PymllmError:
        raise
    except Exception as error:
        why = _find_misfit(error, chosen, entry, adapter_class) or _told(error)
        raise AdapterError(entry.name, f"cannot be built with {_shown(chosen)}: {why}") from error
    if not hasattr(adapter, "capabilities"):
        raise AdapterError(
            entry.name, "its __init__ must call super().__init__(name, config) before the rest"
        )
    return adapter


def _shown(config: object) -> str:
    text = str(config)
    return text if len(text) <= _LONGEST_CONFIG else f"{text[:_LONGEST_CONFIG]}..."


def _find_misfit(
    error: Exception, config: Mapping[str, object], entry: AdapterEntry, adapter_class: AdapterClass
) -> str | None:
    """Return words for a key that a class reads and a configuration lacks, or ``None``."""
    own = [dict(one) for one in adapter_class.CONFIGURATIONS]
    lacking = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(lacking, str) or lacking in config:
        return None
    if not any(lacking in one for one in own):
        near = map(repr, difflib.get_close_matches(lacking, config, n=1))
        return (
            f"{_line_of(error)} asks for {lacking!r}, which is not in it{_did_you_mean(near)};"
            f" add it to {entry.place.rpartition(':')[2]}.CONFIGURATIONS"
        )
    unknown = [key for key in config if not any(key in one for one in own)]
    surplus = f", and no configuration of its own has {', '.join(map(repr, unknown))}" if unknown else ""
    return f"there is no {lacking!r} in it{surplus}; one of its own is {_shown(own[0])}"


def _told(error: Exception) -> str:
    """Return words for an error in outside code, with its line."""
    line = _line_of(error)
    words = error.msg if isinstance(error, SyntaxError) else error
    return f"{type(error).__name__}: {words}{f' ({line})' if line else ''}"


def _line_of(error: Exception) -> str:
    """Return file and line of the last frame in outside code, or in this package if there is none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        frames = [(error.filename, error.lineno)]
    else:
        tried = [(it.filename, it.lineno) for it in traceback.extract_tb(error.__traceback__)]
        frames = [it for it in tried if it[0] not in (__file__, importlib.__file__) and it[0][0] != "<"]
        frames = [it for it in frames if not Path(it[0]).is_relative_to(_PACKAGE)] or frames
    if not frames:
        return ""
    file, line = Path(frames[-1][0]), frames[-1][1]
    return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}, line {line}"
