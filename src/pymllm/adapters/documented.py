"""Adapters made for objects whose methods have the names of this package's documented interface.

The methods tell the kind, and the adapter of our own class of that kind makes the calls. What is claimed is
what the methods can do. A look from inside, faults and misuse need an adapter, or a claim of the caller's.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import index
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch

from pymllm.adapters.base import Adapter, AdapterClass, BaseAdapter, UnsupportedError
from pymllm.adapters.kept_numbers import KeptNumbers
from pymllm.adapters.own_caches import StatesOfCaller, path_length
from pymllm.adapters.own_pools import GDNStates, KVBuffers, Rows
from pymllm.adapters.own_prefix import OwnPrefixCache
from pymllm.adapters.own_slots import SWASlots, TokenSlots
from pymllm.adapters.simple import plain_numbers
from pymllm.errors import AdapterError, UsageError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm.mem_cache.base_prefix_cache import EvictResult, InsertResult, MatchResult
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
from pymllm.text_file import shown

Make = Callable[[Config], Any]
"""A function that makes a new object of the size in a configuration."""


_STEPS_APART = 4
"""The number of first steps after which the sample object must be unchanged."""


class Given(BaseAdapter):
    """The base class of adapters of given objects: how to make an object, and its claims."""

    MAKE: ClassVar[Make]
    CLAIMS: ClassVar[frozenset[str]]
    TOLD: ClassVar[frozenset[str]]
    """Keys of the configuration that the caller gave, and that the object does not show."""
    METHODS = MappingProxyType(
        {
            **{name: name for name in ("alloc", "free", "insert", "evict", "reset")},
            **{"match": "match_prefix", "lock": "inc_lock_ref", "unlock": "dec_lock_ref"},
            "sizes": "the size methods",
        }
    )
    LACKS: ClassVar[Mapping[type[ops.Operation], str]] = {}
    """Operations for which the object has no method, each with the reason in words."""
    SAMPLE: ClassVar[Any]
    """The object from which kind and sizes were read; no program uses it."""
    FIRST_SIZES: ClassVar[Mapping[str, int]]
    """The sizes of the sample object when it was new."""
    step = 0
    """The number of the current step."""

    def apply(self, step: int, operation: ops.Operation) -> out.Outcome:
        """Carry out an operation if the object has a method for it."""
        self.step = step
        lack = self.LACKS.get(type(operation))
        if lack is not None:
            return out.Outcome(out.Unsupported(lack), (), self.sizes())
        outcome = super().apply(step, operation)
        if step <= _STEPS_APART:
            self._demand_unused(self.SAMPLE)
        return outcome

    def make_pool(self) -> Any:
        """Make the pool of a new adapter."""
        return self.make_given()

    def make_given(self) -> Any:
        """Make a new object of the caller's.

        `UsageError` where it is of another size than the configuration says, `AdapterError` where it is not
        new: what programs before have done to it would be taken for faults, or hide them.
        """
        made = type(self).MAKE(self.config)
        try:
            demand_new(self.SAMPLE, made)
        except UsageError as error:
            raise AdapterError(self.name, str(error)) from None
        facts = {key: self.config[key] for key in self.TOLD if key in self.config}
        for key, value in sizes_of(made, self.config, facts).items():
            if self.config.get(key) != value and key not in self.TOLD:
                raise UsageError(
                    f"{type(made).__name__} is made with {key} {value}; {self.config.get(key)} is asked for."
                    " A class, or a function that takes the size, makes others"
                )
        self._demand_unused(made)
        return made

    def _demand_unused(self, other: Any) -> None:
        """Raise an error if a new object differs in size from the sample, or a program changed the sample."""
        for name, size in first_sizes_of(other).items():
            first = self.FIRST_SIZES.get(name, size)
            if size != first:
                raise AdapterError(
                    self.name,
                    f"a {type(other).__name__} that nobody has used yet has {name} {size}, and the first one"
                    f" had {first}: they share something, such as a pool; make all of it anew each time",
                )

    def claim(self) -> frozenset[str]:
        """Return the claims that the object's methods show, and those of the caller."""
        return self.CLAIMS

    def audit(self) -> Sequence[str]:
        """Check nothing inside the object."""
        return ()


class GivenSlots(Given, TokenSlots):
    """The adapter of a given slot allocator."""

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._kept_numbers = KeptNumbers()

    def audit(self) -> Sequence[str]:
        """Check that slots which were returned recently have not changed (X5)."""
        return self._kept_numbers.look()

    def _plain(self, law: str, slots: Any) -> tuple[int, ...]:
        """Return the numbers of slots from any container, unless forms are claimed."""
        if "forms" in self.capabilities and not isinstance(slots, torch.Tensor):
            raise TypeError(f"{shown(slots)} is no tensor")
        method = "alloc" if law == "A3" else "translate_to_swa"
        numbers = (
            super()._plain(law, slots)
            if "forms" in self.capabilities
            else _numbers_of(self.pool, method, slots)
        )
        self._kept_numbers.answered(f"{method} of step {self.step}", slots, numbers)
        return numbers


class GivenSWASlots(GivenSlots, SWASlots):
    """The adapter of a given slot allocator with SWA halves."""


class GivenRows(Given, Rows):
    """The adapter of a given pool of request rows."""

    def do_alloc_rows(self, step: int, operation: ops.AllocRows) -> out.Slots | out.NoRoom:
        """Allocate rows, returned in any container."""
        rows = self.pool.alloc(operation.count)
        return out.NoRoom() if rows is None else out.Slots(_numbers_of(self.pool, "alloc", rows, "rows"))

    def do_read_rows(self, step: int, operation: ops.ReadRows) -> out.Table:
        """Read the table, which is a tensor, an array, or a list of rows."""
        table = self.pool.req_to_token
        listed = table.tolist() if hasattr(table, "tolist") else table
        return out.Table(
            tuple(_numbers_of(self.pool, "req_to_token", row, "entries of a row") for row in listed)
        )


class GivenBuffers(Given, KVBuffers):
    """The adapter of given buffers of keys and values."""


class GivenStates(Given, GDNStates):
    """The adapter of a given pool of recurrent states."""

    def sizes(self) -> dict[str, int]:
        """Return the number of free track slots, if the object reports it."""
        return super().sizes() if hasattr(self.pool, "available_track_slots") else {}


def _numbers_of(owner: Any, method: str, answer: Any, words: str = "slots") -> tuple[int, ...]:
    """Return the integers of a result; raise `AdapterError` for others, about which there is no law."""
    try:
        return plain_numbers(answer)
    except (TypeError, ValueError):
        raise AdapterError(
            type(owner).__name__,
            f"{method} returned {shown(answer)}; {words} are integers, in a list, an array or a tensor",
        ) from None


_OF_WINDOWS = ("prev_prefix_len", "swa_evicted_seqlen")
_ANSWERS: Mapping[str, tuple[str, str]] = {
    "match_prefix": ("MatchResult", "indices, last_node and prefix_len"),
    "insert": ("InsertResult", "prefix_len and last_node"),
    "evict": ("EvictResult", "full_evicted"),
}
"""For each method of a cache, this package's record of its result, and the fields every cache fills."""


class _Told:
    """A wrapper of a cache that returns complete records, and omits arguments with default values.

    One without a window, and without states, hears of neither. ``length`` is how many tokens the last
    answer's node should stand behind.
    """

    def __init__(self, cache: Any, retains: bool) -> None:
        self._cache = cache
        self._retains = retains
        self._window = getattr(cache, "sliding_window_size", None)
        self._has_states = getattr(cache, "mamba_pool", None) is not None
        self._has_second = bool(self._window) or self._has_states
        self.length = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def _misfit(self, method: str, answer: Any, problem: str) -> AdapterError:
        """Return the error for a result of another form, about which there is no law."""
        record, fields = _ANSWERS[method]
        return AdapterError(
            type(self._cache).__name__,
            f"{method} returned {shown(answer)}, {problem}; return an object with {fields}, such as"
            f" {record} of pymllm.mem_cache.base_prefix_cache, or write an adapter (docs/verify.md)",
        )

    def _field(self, method: str, answer: Any, field: str) -> Any:
        """Return a field of a result; raise `AdapterError` if it is missing."""
        try:
            return getattr(answer, field)
        except AttributeError:
            raise self._misfit(method, answer, f"which has no {field}") from None

    def _count(self, method: str, answer: Any, field: str) -> int:
        """Return a field that counts tokens or states; raise `AdapterError` if it is no integer."""
        value = self._field(method, answer, field)
        try:
            return index(value)
        except TypeError:
            raise self._misfit(method, answer, f"whose {field} is {shown(value)} and no integer") from None

    def match_prefix(self, key: Any) -> MatchResult:
        result = self._cache.match_prefix(key)
        indices = self._field("match_prefix", result, "indices")
        try:
            slots = plain_numbers(indices)
        except (TypeError, ValueError):
            problem = f"whose indices are {shown(indices)} and no integers"
            raise self._misfit("match_prefix", result, problem) from None
        self.length = self._count("match_prefix", result, "prefix_len")
        return MatchResult(
            indices if isinstance(indices, torch.Tensor) else torch.tensor(slots, dtype=torch.int64),
            self._field("match_prefix", result, "last_node"),
            self.length,
            getattr(result, "mamba_branching_seqlen", None),
        )

    def insert(self, key: Any, value: Any, **more: Any) -> InsertResult:
        page_size = getattr(self._cache, "page_size", 1)
        self.length = len(key) // page_size * page_size
        said = {name: it for name, it in more.items() if isinstance(it, torch.Tensor) or it}
        if not self._window:
            said = {name: it for name, it in said.items() if name not in _OF_WINDOWS}
        result = self._cache.insert(key, value, **said)
        known = self._count("insert", result, "prefix_len")
        node = self._field("insert", result, "last_node")
        if node is None and self.length and self._retains:
            raise self._misfit(
                "insert",
                result,
                "whose last_node is None, though there is a key to hold (of a cache that keeps nothing, say"
                " config={'retains': False})",
            )
        adopted = getattr(result, "adopted", None)
        if adopted is None:
            if self._window:
                raise AdapterError(
                    type(self._cache).__name__,
                    "an insert into a cache with a window must tell in InsertResult.adopted which slots"
                    " it took",
                )
            adopted = ((known, self.length),) if known < self.length else ()
        return InsertResult(known, node, getattr(result, "mamba_exist", False), adopted)

    def evict(self, tokens: int, secondary: int) -> EvictResult:
        result = (
            self._cache.evict(tokens, secondary)
            if secondary and self._has_second
            else self._cache.evict(tokens)
        )
        return EvictResult(
            self._count("evict", result, "full_evicted"),
            self._count("evict", result, "swa_evicted") if self._window else 0,
            self._count("evict", result, "mamba_evicted") if self._has_states else 0,
        )

    def dec_lock_ref(self, node: Any, swa_boundary_id: Any = None) -> None:
        if swa_boundary_id is None:
            self._cache.dec_lock_ref(node)
        else:
            self._cache.dec_lock_ref(node, swa_boundary_id=swa_boundary_id)


class GivenCache(Given, OwnPrefixCache):
    """The adapter of a given prefix cache, over its own pool (whose methods are recorded) or without one."""

    def make_pool(self) -> Any:
        """Make the cache, and record the calls to its pool."""
        self._made = self.make_given()
        pool = getattr(self._made, "pool", None)
        if self.config["pool"] == "none":
            return None
        self.calls.watch(pool, "free")
        if hasattr(pool, "free_pages"):
            self.calls.watch(pool, "free_pages", read=self._slots_behind)
        if self.config["pool"] == "swa":
            self.calls.watch(pool, "free_swa", "free_swa")
            if hasattr(pool, "move_swa"):
                self.calls.watch(pool, "move_swa", "move_swa")
            if hasattr(pool, "free_swa_pages"):
                self.calls.watch(pool, "free_swa_pages", "free_swa", read=self._slots_behind)
        return SimpleNamespace(inner=pool, fault=None)

    def _slots_behind(self, starts: Any) -> tuple[int, ...]:
        page_size = self.page_size
        return tuple(start + at for start in plain_numbers(starts) for at in range(page_size))

    def make_cache(self, on_node_evict: Callable[[int], None]) -> Any:
        """Return the cache, set to call back if callbacks are claimed."""
        if "callbacks" in self.capabilities:
            self._made.on_node_evict = on_node_evict
        return _Told(self._made, self.config.get("retains") is not False)

    def node_length(self, node: Any, key: ops.Key) -> int | None:
        """Return a node's path length in tokens, from its ancestors or from the match that returned it.

        Only nodes with the documented attributes can be climbed.
        """
        root = getattr(self._made, "root_node", None)
        if root is not None and hasattr(node, "parent") and hasattr(node, "key"):
            return path_length(root, node, key)
        return None if node is None else self.cache.length

    def size_calls(self) -> list[tuple[str, Callable[[], int]]]:
        """Return the calls that read the available sizes."""
        inner = None if self.pool is None else self.pool.inner
        found = [(name, getattr(self._made, name, None)) for name in _CACHE_SIZES]
        found += [(name, getattr(inner, name, None)) for name in _POOL_SIZES]
        return [(name, ask) for name, ask in found if ask is not None]

    def do_alloc(self, step: int, operation: ops.Alloc) -> out.Result:
        """Allocate slots, returned in any container."""
        pool = self._pool_of_caller()
        slots = pool.alloc(operation.tokens)
        if slots is None:
            return out.NoRoom()
        halves = pool.translate_to_swa(slots) if self.config["pool"] == "swa" else ()
        return out.Slots(_numbers_of(pool, "alloc", slots), _numbers_of(pool, "translate_to_swa", halves))

    def do_free(self, step: int, operation: ops.Free) -> out.Result:
        """Free slots of the caller, without recording an effect of the cache."""
        with self.calls.unrecorded():
            return super().do_free(step, operation)

    def do_free_swa(self, step: int, operation: ops.FreeSWA) -> out.Result:
        """Free SWA halves of the caller, without recording an effect of the cache."""
        with self.calls.unrecorded():
            return super().do_free_swa(step, operation)

    def do_move_swa(self, step: int, operation: ops.MoveSWA) -> out.Result:
        """Move SWA halves of the caller, without recording an effect of the cache."""
        with self.calls.unrecorded():
            return super().do_move_swa(step, operation)

    def do_fault(self, step: int, operation: ops.Fault) -> out.Result:
        """Raise an error, since calls to the object's own pool cannot be made to fail."""
        raise UnsupportedError("faults need an adapter")


_CACHE_SIZES = (
    *("evictable_size", "protected_size", "total_size", "swa_evictable_size", "swa_protected_size"),
    *("mamba_evictable_size", "mamba_protected_size"),
)
_POOL_SIZES = ("available_size", "full_available_size", "swa_available_size")


class GivenHybridCache(StatesOfCaller, GivenCache):
    """The adapter of a given prefix cache with states in a separate pool."""

    def make_cache(self, on_node_evict: Callable[[int], None]) -> Any:
        """Return the cache, and record the calls to its pool of states."""
        inner = self._made.mamba_pool
        self.calls.watch(inner, "free_track_slot", "free_state")
        self.states = SimpleNamespace(inner=inner, fault=None)
        return super().make_cache(on_node_evict)

    def size_calls(self) -> list[tuple[str, Callable[[], int]]]:
        """Return the calls that read the sizes of the cache and of both pools."""
        ask = getattr(self.states.inner, "available_track_slots", None)
        return [*super().size_calls(), *([] if ask is None else [("available_track_slots", ask)])]

    def do_free_track(self, step: int, operation: ops.FreeTrack) -> out.Result:
        """Free a track slot of the caller, without recording an effect of the cache."""
        with self.calls.unrecorded():
            return super().do_free_track(step, operation)


# -- kinds -------------------------------------------------------------------------------------------------


class DocumentedKind(NamedTuple):
    """A kind of object, recognised by its methods."""

    words: str
    marks: tuple[str, ...]  # any of these tells it from all kinds further down
    needs: tuple[str, ...]  # and it has all of these
    sizes: tuple[tuple[str, str], ...]  # keys of a configuration, and the attributes with their values
    adapter: type[Given]


_KINDS = (
    DocumentedKind(
        "a prefix cache",
        ("match_prefix", "inc_lock_ref", "dec_lock_ref"),
        ("match_prefix", "insert", "evict", "inc_lock_ref", "dec_lock_ref", "reset"),
        (("page_size", "page_size"), ("window", "sliding_window_size")),
        GivenCache,
    ),
    DocumentedKind(
        "a pool of keys and values",
        ("set_kv_buffer", "get_kv_buffer"),
        ("set_kv_buffer", "get_kv_buffer", "get_key_buffer", "get_value_buffer"),
        (
            *(("size", "size"), ("layers", "layer_num"), ("k_heads", "k_head_num"), ("k_dim", "k_head_dim")),
            *(("v_heads", "v_head_num"), ("v_dim", "v_head_dim"), ("dtype", "dtype")),
        ),
        GivenBuffers,
    ),
    DocumentedKind(
        "a pool of recurrent states",
        ("alloc_track_slot", "free_track_slot", "get_layer_state"),
        ("alloc_track_slot", "free_track_slot", "get_layer_state", "copy_states", "reset_states"),
        (
            *(("max_reqs", "max_reqs"), ("layers", "num_gdn_layers"), ("v_heads", "num_v_heads")),
            *(("k_dim", "head_k_dim"), ("v_dim", "head_v_dim"), ("conv_dim", "conv_dim")),
            *(("kernel", "conv_kernel_size"), ("dtype", "dtype"), ("track_slots", "max_track_slots")),
        ),
        GivenStates,
    ),
    DocumentedKind(
        "a pool of request rows",
        ("write", "req_to_token"),
        ("alloc", "free", "available_size", "write", "req_to_token"),
        (("max_reqs", "size"), ("max_context_len", "max_context_len")),
        GivenRows,
    ),
    DocumentedKind(
        "a slot allocator",
        ("alloc", "free"),
        ("alloc", "free", "available_size"),
        (("page_size", "page_size"),),
        GivenSlots,
    ),
)
_IN_A_CONTEXT = ("allocate_memory_blocks", "allocate_slots_batch")


def kind_of(given: object) -> DocumentedKind:
    """Return the kind that the methods of an object show.

    `UsageError` where they show none, or miss one of the kind: it names the closest ones.
    """
    if inspect.isclass(given):
        raise UsageError(f"{given.__name__} is a class; an object is asked for, so call it")
    name = type(given).__name__
    found = next((it for it in _KINDS if any(_has(given, mark) for mark in it.marks)), None)
    public = [it for it in dir(given) if not it.startswith("_")]
    if found is None:
        block = next((it for it in _IN_A_CONTEXT if _has(given, it)), None)
        if block is not None:
            raise UsageError(
                f"{name} has {block}, so it lives in an inference context, which check cannot make; derive an"
                " adapter from pymllm.adapters.simple.BlockAdapter (docs/verify.md)"
            )
        likely = {kind: sum(bool(_like(need, public)) for need in kind.needs) for kind in _KINDS}
        found = max(likely, key=lambda kind: likely[kind])
        if not likely[found]:
            kinds = "; ".join(f"{it.words}: {', '.join(it.needs)}" for it in _KINDS)
            raise UsageError(
                f"{name} has no method of the documented interface; these are looked for: {kinds}."
                " For other names, write an adapter (docs/verify.md)"
            )
    missing = [need for need in found.needs if not _has(given, need)]
    if missing:
        told = ", no ".join(f"{need}{_did_you_mean(_like(need, public))}" for need in missing)
        raise UsageError(
            f"{name} has no {told}; {found.words} needs {', '.join(found.needs)}."
            " Name it so, or write an adapter (docs/verify.md)"
        )
    return found


def _has(given: object, name: str) -> bool:
    return getattr(given, name, None) is not None


def _like(need: str, public: Sequence[str]) -> list[str]:
    """Return a name similar to a required one, or containing it."""
    longer = [it for it in public if need in it and it != need]
    return longer[:1] or difflib.get_close_matches(need, public, n=1, cutoff=0.75)


def _did_you_mean(near: Sequence[str]) -> str:
    return f" (is {near[0]} meant?)" if near else ""


def adapter_of(
    sample: Any,
    make: Make,
    facts: Mapping[str, int | str | bool | None] = MappingProxyType({}),
    fallback: Mapping[str, int | str | bool | None] = MappingProxyType({}),
) -> AdapterClass:
    """Return an adapter class for objects with the documented method names.

    Parameters
    ----------
    sample : object
        One of them, from which kind, sizes and claims are told; it stays as it is.
    make : callable
        Makes a new one for a configuration.
    facts : mapping, optional
        Keys of the configuration that cannot be told from the object, or are told wrongly. ``claims`` has
        words of `pymllm.history.claims.CLAIMS`, blanks between them: what is promised besides.
    fallback : mapping, optional
        Keys that count only where the object does not tell them.

    Raises
    ------
    UsageError
        Methods or sizes are missing.
    """
    kind = kind_of(sample)
    asked, calls = sample, _CALLS.get(kind.adapter.KIND, {})
    _demand_methods(
        sample, (*kind.needs, *calls.values(), *(_CACHE_SIZES if kind.adapter is GivenCache else ()))
    )
    if kind.adapter is GivenCache:
        _demand_methods(getattr(sample, "pool", None), ("alloc", "free", *_POOL_SIZES))
    adapter, config = kind.adapter, {**fallback, **sizes_of(sample, fallback, facts), **facts}
    shown_claims: set[str] = set()
    if adapter is GivenSlots:
        shown_claims = _claims_of_slots(sample)
        if "swa" in shown_claims:
            adapter = GivenSWASlots
    elif adapter in (GivenRows, GivenStates):
        shown_claims = {"pool"}
    elif adapter is GivenCache:
        shown_claims |= {"pool"} if config["pool"] != "none" else set()
        shown_claims |= {"swa"} if config.get("window") else set()
        if "track_slots" in config:
            shown_claims.add("mamba")
            adapter, asked, calls = GivenHybridCache, sample.mamba_pool, _CALLS_OF_STATES
    lacks = {
        it: f"{type(asked).__name__} has no {name}" for it, name in calls.items() if not _has(asked, name)
    }
    claims = {*str(config.get("claims", "")).split()}
    members = {
        "MAKE": staticmethod(make),
        "CLAIMS": frozenset(shown_claims | claims),
        "CONFIGURATIONS": (config,),
        "TOLD": frozenset(facts),
        "LACKS": lacks,
        "SAMPLE": sample,
        "FIRST_SIZES": first_sizes_of(sample),
        "__module__": __name__,
    }
    made: AdapterClass = type(adapter.__name__, (adapter,), members)  # type: ignore[assignment]
    return made


_CALLS_OF_STATES: Mapping[type[ops.Operation], str] = {
    ops.WriteState: "get_layer_state",
    ops.ReadStates: "get_layer_state",
}
_CALLS: Mapping[str, Mapping[type[ops.Operation], str]] = {
    "slots": {
        ops.Clear: "clear",
        ops.Merge: "merge_and_sort_free",
        ops.BeginGroup: "free_group_begin",
        ops.EndGroup: "free_group_end",
        ops.BeginTransfer: "begin_transfer",
        ops.EndTransfer: "end_transfer",
    },
    "rows": {ops.Clear: "clear"},
    "states": {ops.Clear: "clear"},
}
"""Operations whose method a class may lack, with the name of the method, by kind."""
_OF_SLOTS = {
    "merges": ("merge_and_sort_free",),
    "groups": ("free_group_begin", "free_group_end"),
    "transfers": ("begin_transfer", "end_transfer"),
    "swa": ("translate_to_swa", "free_swa", "move_swa", "full_available_size", "swa_available_size"),
}


def _claims_of_slots(sample: Any) -> set[str]:
    found = {claim for claim, names in _OF_SLOTS.items() if all(hasattr(sample, it) for it in names)}
    if "merges" in found and getattr(sample, "need_sort", False):
        found.add("sorted")
    return {"pool", *found}


_ARGUMENTS: Mapping[str, str] = {
    **{"alloc": "need_size", "free": "indices", "write": "index values", "match_prefix": "key"},
    **{"insert": "key value", "evict": "num_tokens", "inc_lock_ref": "node", "dec_lock_ref": "node"},
    **{"set_kv_buffer": "layer_id indices k v", "get_kv_buffer": "layer_id", "get_key_buffer": "layer_id"},
    **{"get_value_buffer": "layer_id", "get_layer_state": "layer_id", "free_track_slot": "slot"},
    **{"copy_states": "src_indices dst_indices", "reset_states": "indices", "begin_transfer": "indices"},
    "end_transfer": "transfer",
}
"""The arguments of every call, by method; a missing method takes none."""
_ATTRIBUTES = ("req_to_token",)


def _demand_methods(given: Any, names: Iterable[str]) -> None:
    """Raise `UsageError` for documented methods that cannot be called as documented."""
    for name in names:
        method = getattr(given, name, None)
        if method is None or name in _ATTRIBUTES:
            continue
        arguments = _ARGUMENTS.get(name, "").split()
        called = f"{name}({', '.join(arguments)})"
        if not callable(method):
            raise UsageError(
                f"{type(given).__name__}.{name} is {shown(method)}, of type {type(method).__name__}, and no"
                f" method; it is called as {called}"
            )
        try:
            taken = inspect.signature(method)
        except ValueError:  # of a method in C that does not say
            continue
        try:
            taken.bind(*arguments)
        except TypeError as error:
            raise UsageError(
                f"{type(given).__name__}.{name} cannot be called as {called}: {error}; let it take that, or"
                " write an adapter (docs/verify.md)"
            ) from None


def demand_new(first: Any, other: Any) -> None:
    """Raise `UsageError` if two made objects are the same, or two caches share a pool."""
    name = type(first).__name__
    if first is other:
        raise UsageError(f"the function made the same object twice, a {name}; return a new one each time")
    for part in ("pool", "mamba_pool") if kind_of(first).adapter is GivenCache else ():
        shared = getattr(first, part, None)
        if shared is not None and shared is getattr(other, part, None):
            raise UsageError(
                f"the function made two {name} over the same {part}, a {type(shared).__name__}; make a new"
                f" {part} each time, inside the function"
            )


def first_sizes_of(made: Any) -> dict[str, int]:
    """Return the available sizes of an object and its pools, ignoring errors, which the search will find."""
    sizes: dict[str, int] = {}
    for owner in (made, getattr(made, "pool", None), getattr(made, "mamba_pool", None)):
        for name in (*_CACHE_SIZES, *_POOL_SIZES, "available_track_slots"):
            with suppress(Exception):  # a stranger's method may raise anything
                sizes[name] = index(getattr(owner, name)())
    return sizes


def sizes_of(
    sample: Any, fallback: Mapping[str, Any], facts: Mapping[str, Any] = MappingProxyType({})
) -> Config:
    """Return the configuration that an object shows; raise `UsageError` for a missing size.

    Keys of ``fallback`` count where the object does not tell them, ``facts`` even where it does.
    """
    fallback = {**fallback, **facts}
    kind = kind_of(sample)
    config: Config = {}
    for key, attribute in kind.sizes:
        told = fallback.get(key, _DEFAULTS.get(key, _MISSING))
        value = told if key in facts else getattr(sample, attribute, told)
        if value is _MISSING:
            raise UsageError(
                f"{type(sample).__name__} has no {attribute}; {kind.words} is asked for that size. Give the"
                f" object {attribute}, or pass config={{{key!r}: ...}}"
            )
        config[key] = str(value).removeprefix("torch.") if key == "dtype" else value
    if kind.adapter is GivenSlots:
        page_size = int(config["page_size"] or 1)
        size = getattr(sample, "size", None)
        tokens = int(sample.available_size() if size is None else size)
        if 0 < tokens < page_size:
            raise UsageError(
                f"{type(sample).__name__} has {tokens} slots, less than a page of {page_size}: sizes count"
                " tokens; if yours count blocks, give config={'page_size': 1} or write an adapter"
                " (docs/verify.md)"
            )
        config["pages"] = tokens // page_size
        if hasattr(sample, "swa_size"):
            config["swa_pages"] = int(sample.swa_size) // page_size
        if hasattr(sample, "need_sort"):
            config["need_sort"] = bool(sample.need_sort)
    elif kind.adapter is GivenBuffers:
        config["page_size"] = len(sample.get_key_buffer(0)) - int(sample.size)
    elif kind.adapter is GivenCache:
        config |= _pools_of(sample, fallback)
    return config


_MISSING: Any = object()
_DEFAULTS: Mapping[str, Any] = {"page_size": 1, "window": None, "track_slots": 0}


def _pools_of(cache: Any, fallback: Mapping[str, Any]) -> Config:
    """Return the configuration keys of a cache's pools; a pool without allocation does not count.

    `UsageError` where it does not say whether there is one: unwatched, a pool is judged as if nobody had it.
    """
    if not hasattr(cache, "pool") and fallback.get("pool") != "none":
        name, held = type(cache).__name__, getattr(cache, "__dict__", {})
        near = [key for key, it in held.items() if hasattr(it, "alloc") and hasattr(it, "free")]
        raise UsageError(
            f"{name} has no pool{_did_you_mean(near)}; a prefix cache is asked for the allocator of its slots"
            " under that name, and for pool = None where the tokens are the slots. Give it that attribute, or"
            " pass config={'pool': 'none'} for None"
        )
    pool: Any = getattr(cache, "pool", None)
    states: Any = getattr(cache, "mamba_pool", None)
    config: Config = {"pool": "none"}
    if hasattr(pool, "alloc") and hasattr(pool, "free"):
        is_swa = hasattr(pool, "free_swa") and hasattr(pool, "translate_to_swa")
        size = getattr(pool, "size", None)
        slots = int(pool.available_size()) if size is None else int(size)
        config = {"pool": "swa" if is_swa else "token", "slots": slots}
        if is_swa:
            config["swa_slots"] = int(getattr(pool, "swa_size", slots))
    if states is not None:
        config["track_slots"] = int(states.max_track_slots)
    return config


# -- by what makes them ------------------------------------------------------------------------------------

SMALL: Config = {
    **{"page_size": 1, "pages": 12, "swa_pages": 8, "max_reqs": 3, "max_context_len": 5},
    **{"window": None, "pool": "token", "slots": 24, "track_slots": 3, "layers": 2, "k_heads": 1, "k_dim": 2},
    **{"v_heads": 2, "v_dim": 1, "conv_dim": 2, "kernel": 3, "dtype": "float32"},
}
"""The sizes for objects of a class given by name, small enough to run full."""


def maker_of(factory: Callable[..., Any]) -> Make:
    """Return a function that makes an object of a configuration, from a class or a function.

    Its parameters are given what the configuration says of documented ones of the same names.
    `UsageError` where it needs another one.
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # of a class in C that does not say
        return lambda config: factory()
    named = [it for it in parameters if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)]
    lacking = [it.name for it in named if it.default is it.empty and it.name not in _OFFERS]
    if lacking:
        name = getattr(factory, "__name__", shown(factory))
        raise UsageError(
            f"{name} takes {', '.join(lacking)}; pass, or name as module:FUNCTION, a function without"
            f" arguments that makes one, such as lambda: {name}(...)"
        )
    offered = [(it.name, _OFFERS[it.name]) for it in named if it.name in _OFFERS]

    def make(config: Config) -> Any:
        given = {name: offer(config) for name, offer in offered}
        return factory(**{name: it for name, it in given.items() if it is not _MISSING})

    return make


def _offer(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda config: config.get(key, _MISSING)


def _offer_size(config: Mapping[str, Any]) -> Any:
    return config["size"] if "size" in config else _pages_of("pages")(config)


def _pages_of(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda config: config[key] * config.get("page_size", 1) if key in config else _MISSING


def _offer_pool(config: Mapping[str, Any]) -> Any:
    """Make a pool of this package's, of the cache's own capacity, for a cache."""
    if config.get("pool", "none") == "none":
        return None
    page_size = config.get("page_size", 1)
    if config["pool"] == "swa":
        return SWATokenToKVPoolAllocator(config["slots"], config["swa_slots"], "cpu", page_size)
    return TokenToKVPoolAllocator(config["slots"], "cpu", page_size)


def _offer_states(config: Mapping[str, Any]) -> Any:
    if "track_slots" not in config:
        return None
    return GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=config["track_slots"])


_OFFERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    **{attribute: _offer(key) for kind in _KINDS for key, attribute in kind.sizes},
    "max_reqs": _offer("max_reqs"),
    "size": _offer_size,
    "swa_size": _pages_of("swa_pages"),
    "dtype": lambda config: getattr(torch, str(config["dtype"])) if "dtype" in config else _MISSING,
    "device": lambda config: "cpu",
    **dict.fromkeys(("token_to_kv_pool_allocator", "pool"), _offer_pool),
    "mamba_pool": _offer_states,
}
"""Values for parameters of documented constructors, by the names of the parameters."""


class GivenByName:
    """A substitute for an adapter class: a class or function, given by name, that makes objects.

    Kind, claims and sizes are told from one that it makes. A configuration's ``claims``, words with blanks
    between them, say what is promised besides.
    """

    def __init__(self, factory: Callable[..., Any]) -> None:
        self._make = maker_of(factory)
        sample = self._make(SMALL)
        adapter = adapter_of(sample, self._make)
        demand_new(sample, self._make(SMALL))
        self.KIND = adapter.KIND
        self.CONFIGURATIONS = adapter.CONFIGURATIONS

    def __call__(self, name: str, config: Mapping[str, int | str | bool | None]) -> Adapter:
        """Return an adapter of a new object."""
        asked = dict(config)
        return adapter_of(self._make(asked), self._make, fallback=asked)(name, asked)


def is_documented(found: object) -> bool:
    """Tell whether a class has the methods of a known kind, or is a function that may make an object."""
    if not inspect.isclass(found):
        return inspect.isfunction(found)
    return any(hasattr(found, mark) for kind in _KINDS for mark in kind.marks)
