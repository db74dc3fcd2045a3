"""A rehearsal of a new adapter: a few simple steps show whether its results, effects and sizes agree.

A cache may be wrong in what it does. An adapter is wrong where it says two things at once: a size shows that
slots went back to the pool, and no effect tells of them; an allocation hands slots out, and no size ever
changes; a pool has more slots than the configuration that it was built from, or fewer. Only such
contradictions count here, and only those that no fault of a cache explains as well. Anything else is left to
the search, and so is whatever fails: the rehearsal ends there without a word.

Of a part of a page these are two: the whole page in the answer, and an error that changes nothing, where
the whole page is given next. One slot while the rest of its page stays free, no slot, ``None``, and a page
that does not come back by one of its slots may each be a class that rounds down, or an adapter that does not
round up for it. No answer tells the two apart: the search calls it a violation, and
`pymllm.search.doubts` has the adapter's half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pymllm.adapters.base import Adapter, BaseAdapter, place_of
from pymllm.adapters.simple import PrefixAdapter, SlotCalls
from pymllm.errors import AdapterError, InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.codec import fits, name_of
from pymllm.history.files import Config
from pymllm.history.operations import Key, Operation, Span
from pymllm.history.outcomes import Outcome
from pymllm.machines.adapter_calls import apply_step
from pymllm.machines.first_sizes import demand_first_sizes


@dataclass(slots=True)
class _Told:
    """One step with its outcome, and the number of free slots before and after."""

    operation: Operation
    outcome: Outcome
    before: int | None  # free slots before and after it, as far as sizes tell
    after: int | None
    slots: tuple[int, ...]  # that went back by an effect
    sayings: int  # how often the adapter itself said what went back, be it nothing
    node: object = None  # what a match or an insert gave, if it can change, and what was in it
    inside: tuple[object, ...] = ()

    @property
    def rise(self) -> int | None:
        """The increase in free slots."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(slots=True)
class _Rehearsal:
    """A new adapter, and the steps of its rehearsal so far."""

    adapter: Adapter
    told: list[_Told] = field(default_factory=list)

    @property
    def page(self) -> int:
        """The number of slots in a page."""
        return _size_of(self.adapter, "page_size")

    @property
    def _times_told(self) -> int:
        return self.adapter.times_told if isinstance(self.adapter, SlotCalls) else 0

    def slots_of(self, step: int) -> tuple[int, ...]:
        """Return the slots that a step returned."""
        result = self.told[step - 1].outcome.result
        return result.slots if isinstance(result, out.Slots | out.Matched) else ()

    def pages_of(self, step: int) -> list[int]:
        """Return the pages of the slots that a step returned, in order."""
        return sorted({slot // self.page for slot in self.slots_of(step)})

    def try_step(self, number: int, operation: Operation) -> Outcome | None:
        """Carry out a step; return ``None`` if it fails or its outcome is invalid."""
        try:
            outcome = apply_step(self.adapter, number, operation)
        except (InvariantViolation, ProgramError):
            return None
        return outcome if type(outcome) is Outcome and fits(outcome) else None

    def play(self, steps: Sequence[Operation]) -> None:
        """Carry out steps and check each, up to the first that fails."""
        for number, operation in enumerate(steps, 1):
            said, outcome = self._times_told, self.try_step(number, operation)
            if outcome is None:
                return
            before = self.told[-1].after if self.told else None
            slots = tuple(slot for it in outcome.effects if it.call == "free" for slot in it.slots)
            after = outcome.sizes.get("available_size")
            told = _Told(operation, outcome, before, after, slots, self._times_told - said)
            told.node, told.inside = _node_of(self.adapter, number, operation)
            self.told.append(told)
            for look in _LOOKS:
                found = look(self, told)
                if found is not None:
                    raise self._fault(*found, f"step {number}, {name_of(type(operation))}, of a rehearsal")
            if isinstance(outcome.result, out.Failed | out.Unsupported):
                return
        self._demand_change()

    def _demand_change(self) -> None:
        """Raise an error if the free slots stayed constant, although two allocations got different slots."""
        sizes = [told.outcome.sizes for told in self.told]
        given = [told.outcome.result for told in self.told if isinstance(told.outcome.result, out.Slots)]
        first, second = ({*it.slots} for it in given[:2]) if len(given) > 1 else (set[int](), set[int]())
        if not (first and second and first.isdisjoint(second)) or "available_size" not in sizes[0]:
            return
        if all(it == sizes[0] for it in sizes):
            problem = (
                f"returned {sizes[0]} after each step, though slots were handed out and came back; count anew"
                " in each call, or leave out what the class cannot count"
            )
            raise self._fault("sizes", problem, f"{len(sizes)} steps of a rehearsal")

    @property
    def methods(self) -> Mapping[str, str]:
        """The methods of an object that needs no adapter, by operation; empty for a written adapter."""
        return self.adapter.METHODS if isinstance(self.adapter, BaseAdapter) else {}

    def line(self, advice: str) -> str:
        """Return advice about a line of a written adapter, or nothing for an object that needs no adapter."""
        return "" if self.methods else advice

    def _fault(self, method: str, problem: str, where: str) -> AdapterError:
        if self.methods:
            told = f"{self.methods[method]}: {problem} ({where}, with {self.adapter.config})"
            return AdapterError(self.adapter.name, told)
        written = method if isinstance(self.adapter, SlotCalls) or method == "sizes" else f"do_{method}"
        place = f"{written}{place_of(self.adapter, written)}"
        return AdapterError(self.adapter.name, f"{place}: {problem} ({where}, with {self.adapter.config})")


def _node_of(adapter: Adapter, number: int, operation: Operation) -> tuple[object, tuple[object, ...]]:
    """Return the node that a step returned, and its contents if the node is a mutable object."""
    if not isinstance(adapter, PrefixAdapter) or not isinstance(operation, ops.Match | ops.Insert):
        return None, ()
    with suppress(ProgramError):  # a step that failed gave none
        node = adapter.node_of(number)
        if isinstance(node, list | deque | set):
            return node, (*node,)
        if isinstance(node, dict):
            return node, (*node, *node.values())
        if type(node).__module__ == type(adapter).__module__ and hasattr(node, "__dict__"):
            return node, (*vars(node).values(),)
    return None, ()


def _size_of(adapter: Adapter, key: str) -> int:
    value = adapter.config.get(key)
    return value if type(value) is int and value > 0 else 0


# -- looks at one step ---------------------------------------------------------------------------------------
_Found = tuple[str, str] | None
"""The method to change, and what is wrong with it."""
_GIVES_BACK = {ops.Evict: "evict", ops.Reset: "reset"}


def _advice(rehearsal: _Rehearsal, method: str) -> str:
    if rehearsal.methods:
        return (
            f"let {method} give slots back by the pool's free, whose calls are watched, or write an adapter"
            " that tells of them (docs/verify.md)"
        )
    if isinstance(rehearsal.adapter, SlotCalls):
        return (
            f"call self.gave_back(slots) in {method},"
            ' or let self.calls.watch(pool, "free") in __init__ see what the cache frees'
        )
    return f'add Effect("free", slots) to the effects of {method}'


def _nothing_was_told(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find slots that no effect names, although a size or a count shows that they were freed."""
    method = _GIVES_BACK.get(type(told.operation))
    result, rise = told.outcome.result, told.rise or 0
    if method is None or told.slots or told.sayings or isinstance(result, out.Failed):
        return None
    if rise > 0:
        silence = (
            "no call of the pool's free was seen"
            if rehearsal.methods
            else "your adapter told of no slot given back"
        )
        seen = f"available_size rose by {rise}, and {silence}"
        remade = ""
        if method == "reset":
            remade = (
                ". A new pool reports nothing, and a watch of the old one sees nothing:"
                " empty the cache, give back what it had, and leave to the caller what is the caller's"
            )
        return method, f"{seen}; {_advice(rehearsal, method)}{remade}"
    count = result.full if isinstance(result, out.Evicted) else 0
    if method == "reset":
        count = _cached_at_reset(rehearsal)
    adapter = rehearsal.adapter
    if count <= 0 or not isinstance(adapter, SlotCalls) or adapter.can_tell:
        return None
    went = f"returned {count}" if method == "evict" else f"emptied a cache of {count} slots"
    return method, (
        f"{went}, and your adapter told of no slot given back, nor ever could; {_advice(rehearsal, method)}"
    )


def _a_part_was_told(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find an eviction whose effects name fewer slots than its count and a size agree on."""
    result = told.outcome.result
    if (
        not isinstance(result, out.Evicted)
        or not 0 < len(told.slots) < result.full
        or told.rise != result.full
    ):
        return None
    part = (
        f"pool.free was given only slots {told.slots}; {_advice(rehearsal, 'evict')}"
        if rehearsal.methods
        else f"your adapter told only of slots {told.slots}: it must tell of each slot"
    )
    return "evict", f"returned {result.full} and available_size rose by {told.rise}, but {part}"


def _slots_were_told_twice(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find slots that two lines of an adapter reported in one call, although they were freed once."""
    method, adapter = _GIVES_BACK.get(type(told.operation)), rehearsal.adapter
    if method is None or not isinstance(adapter, SlotCalls) or told.rise not in (len({*told.slots}), None):
        return None
    first: dict[int, str] = {}
    for line, slots in [*adapter.told_lately][-told.sayings :] if told.sayings else ():
        other = next((first[slot] for slot in slots if first.get(slot, line) != line), None)
        if other is not None:
            return method, (
                f"told of the same slot twice, {told.slots}: in {other}, and again in {line}; an effect is"
                " told once: leave one of the two away"
            )
        first.update(dict.fromkeys(slots, line))
    return None


def _cached_at_reset(rehearsal: _Rehearsal) -> int:
    """Return the number of slots inserted since the last eviction."""
    count = 0
    for told in rehearsal.told:
        result = told.outcome.result
        if isinstance(result, out.Inserted):
            count += sum(stop - start for start, stop in result.adopted)
        elif isinstance(result, out.Evicted):
            count = 0
    return count


def _pages_were_told(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find an eviction that reports pages instead of slots, or returns a count of pages."""
    result, page, told_slots = told.outcome.result, rehearsal.page, told.slots
    if not isinstance(result, out.Evicted) or page < 2 or not told_slots:
        return None
    cached = rehearsal.slots_of(1)
    if sorted(told_slots) == rehearsal.pages_of(1) and told.rise == len(cached):
        return "evict", (
            f"told of {told_slots} given back, which are pages; slots are asked for"
            f"{rehearsal.line(': self.gave_back(self.slots_of(pages))')}"
        )
    if sorted(told_slots) == sorted(cached) and result.full * page == len(told_slots):
        return "evict", (
            f"returned {result.full}, and {len(told_slots)} slots were given back; the count is of tokens,"
            f" not of pages{rehearsal.line(': return self.gave_back(slots)')}"
        )
    return None


def _pages_were_found(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find pages instead of slots in a match of a new key, or in the count of its insert."""
    result, page, given = told.outcome.result, rehearsal.page, rehearsal.slots_of(1)
    if page < 2 or len(rehearsal.told) > 5:
        return None
    if isinstance(result, out.Matched) and sorted(result.slots) == rehearsal.pages_of(1):
        return "match", (
            f"returned {result.slots} for {len(given)} tokens, which are pages; it must return a slot for"
            f" each token{rehearsal.line(': self.slots_of(pages)')}"
        )
    is_known = len(rehearsal.told) == 5 and rehearsal.slots_of(3) == given
    return _insert_counts_pages(rehearsal, told, len(given)) if is_known else None


def _insert_counts_pages(rehearsal: _Rehearsal, told: _Told, length: int) -> _Found:
    """Find an insert of a cached key that counts pages, perhaps without the last page."""
    result, page = told.outcome.result, rehearsal.page
    if not isinstance(result, out.Inserted) or result.prefix_len * page != length:
        return None
    if result.prefix_len + page == length:
        return None
    return "insert", (
        f"returned {result.prefix_len} for a key of {length} tokens that are all cached; it must return how"
        " many tokens it had, not pages: multiply by page_size"
    )


def _pages_were_counted_again(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find a second insert of a one-page key that counts pages; pages of two tokens leave this open."""
    number, page = len(rehearsal.told), rehearsal.page
    is_again = number in (_COUNT_OF_FIRST + 5, _COUNT_OF_FIRST + 11)
    if page < 2 or not is_again or rehearsal.slots_of(number - 2) != rehearsal.slots_of(number - 4):
        return None
    return _insert_counts_pages(rehearsal, told, page)


def _callers_slots_were_told(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find effects that report slots which the caller frees itself."""
    if not isinstance(told.operation, ops.Free) or not told.slots:
        return None
    return "free", (
        f"told of the slots {told.slots} as given back by the cache; what the caller frees is no effect:"
        " no gave_back here"
    )


def _insert_counts_afterwards(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find a first insert that reports its whole key as cached, although the next match returns its slots."""
    inserted = rehearsal.told[1].outcome.result if len(rehearsal.told) == 3 else None
    given = rehearsal.slots_of(1)
    if not isinstance(inserted, out.Inserted) or not given or rehearsal.slots_of(3) != given:
        return None
    if inserted.prefix_len != len(given):
        return None
    return "insert", (
        f"returned {inserted.prefix_len} for the first key of an empty cache, which a match finds now with"
        " its slots; it must return how many tokens were cached before: 0 here"
    )


def _alloc_has_another_form(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find an allocation that returns pages instead of slots, or reports a lack of room without ``None``."""
    operation, result, page = told.operation, told.outcome.result, rehearsal.page
    if not isinstance(operation, ops.Alloc):
        return None
    asked = operation.tokens
    if not asked and isinstance(result, out.Failed | out.NoRoom):
        said = (
            f"raised {result.error}: {result.message}" if isinstance(result, out.Failed) else "returned None"
        )
        return "alloc", f"{said} for 0 tokens, for which there is always room; it must return no slots: []"
    if isinstance(result, out.Slots) and page > 1 and result.slots:
        if asked % page == 0 and len(result.slots) * page == asked:
            way = rehearsal.line(": self.slots_of(pages)") or ", or write an adapter (docs/verify.md)"
            return "alloc", (
                f"returned {result.slots} for {asked} tokens; it must return a slot for each, not a page{way}"
            )
        if asked < page == len(result.slots):
            return "alloc", (
                f"returned {result.slots} for {asked} tokens; of the page it must return only the first"
                f" slots, one for each token: slots[:tokens]"
            )
    capacity = _capacity(rehearsal.adapter)
    given = {*result.slots} if isinstance(result, out.Slots) else set[int]()
    if asked > capacity and len(given) == asked and min(given) >= page:
        return "alloc", (
            f"handed out {asked} slots of a pool that has {capacity} by the configuration; build the pool"
            f" from the configuration{rehearsal.line(', self.number(...)')}, and its padding, page 0, on top"
            + (rehearsal.line("; if it takes pages, let free pass self.pages_of(slots)") if page > 1 else "")
        )
    if asked <= capacity or told.rise not in (0, None) or (told.before or 0) > capacity:
        return None  # with more that is free than there is, the pool is wrong, and may raise for this
    if isinstance(result, out.Failed):
        return "alloc", (
            f"raised {result.error}: {result.message} for {asked} tokens, which are more than there are;"
            " it must return None where there is too little room: catch this there"
        )
    if isinstance(result, out.Slots) and not result.slots:
        return "alloc", f"returned no slots for {asked} tokens; it must return None where there is no room"
    return None


def _blocks_were_given(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find block ids instead of slots in an allocation, which the reserved page 0 gives away.

    Only of an object that needs no adapter: who writes one has read what a slot is.
    """
    operation, result, page = told.operation, told.outcome.result, rehearsal.page
    if not rehearsal.methods or not isinstance(operation, ops.Alloc) or not isinstance(result, out.Slots):
        return None
    if 0 in result.slots or not (inside := [slot for slot in result.slots if 0 < slot < page]):
        return None
    return "alloc", (
        f"alloc({operation.tokens}) returned {inside[0]}, inside page 0: slots count tokens; if yours are"
        " blocks, give config={'page_size': 1} or write an adapter (docs/verify.md)"
    )


def _parts_are_refused(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find an error for a free of part of a page, where the next free of the whole page succeeds.

    A class may take whole pages alone, and say so. One that rounds down, or takes half a page, is another
    matter: that may be the class's bug.
    """
    operation, result, page = told.operation, told.outcome.result, rehearsal.page
    is_part = isinstance(operation, ops.Alloc) and operation.tokens == 1 < page
    if not is_part or not isinstance(result, out.Failed) or told.rise != 0:
        return None
    whole = rehearsal.try_step(len(rehearsal.told) + 1, ops.Alloc(page))
    if whole is None or not isinstance(whole.result, out.Slots) or len({*whole.result.slots}) != page:
        return None
    return "alloc", (
        f"raised {result.error}: {result.message} for 1 tokens, and gave the whole page when asked for"
        f" {page}; a class may refuse parts of pages, alloc must not: round up, and return slots[:tokens]"
    )


def _root_is_nothing(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find a match that returned ``None`` as its node, which cannot be held."""
    operation, result, adapter = told.operation, told.outcome.result, rehearsal.adapter
    if not isinstance(operation, ops.Lock | ops.Unlock) or not isinstance(result, out.Failed):
        return None
    match = operation.of if isinstance(operation, ops.Lock) else operation.lock - 1
    if not isinstance(adapter, PrefixAdapter) or adapter.node_of(match) is not None:
        return None
    method = "lock" if isinstance(operation, ops.Lock) else "unlock"
    match_, lock, unlock = (rehearsal.methods.get(it, it) for it in ("match", "lock", "unlock"))
    return method, (
        f"raised {result.error}: {result.message} for the node of a match that found nothing, which is None;"
        f" let {match_} return what your cache holds as its root, or let {lock} and {unlock} do nothing for"
        " None"
    )


def _node_is_used_again(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find one object returned as the node of two disjoint keys, with different contents."""
    operation, page = told.operation, rehearsal.page
    if not isinstance(operation, ops.Match | ops.Insert) or told.node is None:
        return None
    for before in rehearsal.told[_COUNT_OF_FIRST:-1]:
        result = before.outcome.result, told.outcome.result
        if before.node is not told.node or type(before.operation) is not type(operation):
            continue
        if before.operation.key == operation.key:
            continue
        if not all(isinstance(it, out.Inserted) or len(getattr(it, "slots", ())) == page for it in result):
            continue
        if [*map(id, before.inside)] != [*map(id, told.inside)]:
            return name_of(type(operation)), (
                f"returned the same {type(told.node).__name__} as the node of two keys, with something else"
                " in it the second time; who locks the first of them then holds the second: return a new one"
            )
    return None


def _capacity(adapter: Adapter) -> int:
    if adapter.kind == "slots":
        return _size_of(adapter, "pages") * _size_of(adapter, "page_size")
    return _size_of(adapter, "slots")


def _sizes_are_of_pages(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find a size in pages, from its change by an allocation of several pages and by their free."""
    page, rise = rehearsal.page, told.rise
    given = rehearsal.slots_of(len(rehearsal.told)) if isinstance(told.operation, ops.Alloc) else ()
    if page < 2 or rise is None or len(given) < page or len(given) % page:
        return None
    left = _capacity(rehearsal.adapter) // page - len(given) // page
    if rise * page != -len(given) or len(rehearsal.told) > 5 or (told.after or 0) > left:
        return None
    return "sizes", (
        f"available_size fell by {-rise} as {len(given)} slots were handed out; sizes count slots, not pages:"
        " multiply by page_size"
    )


def _counts_are_of_pages(rehearsal: _Rehearsal, told: _Told) -> _Found:
    """Find sizes of the cache in pages, after a first key of several pages."""
    page, length = rehearsal.page, len(rehearsal.slots_of(1))
    if page < 2 or length < 2 * page or len(rehearsal.told) != 2:
        return None
    for name in ("total_size", "evictable_size"):
        if told.outcome.sizes.get(name) == length // page:
            return "sizes", (
                f"{name} is {length // page} once {length} tokens are cached; sizes count tokens, not pages:"
                " multiply by page_size"
            )
    return None


_LOOKS: tuple[Callable[[_Rehearsal, _Told], _Found], ...] = (
    _nothing_was_told,
    _slots_were_told_twice,
    _pages_were_told,
    _a_part_was_told,
    _pages_were_found,
    _pages_were_counted_again,
    _callers_slots_were_told,
    _insert_counts_afterwards,
    _alloc_has_another_form,
    _blocks_were_given,
    _parts_are_refused,
    _root_is_nothing,
    _sizes_are_of_pages,
    _counts_are_of_pages,
    _node_is_used_again,
)


# -- steps ---------------------------------------------------------------------------------------------------
def _slot_steps(page: int, capacity: int) -> Iterator[Operation]:
    several = 2 * page
    yield ops.Alloc(several)
    yield ops.Alloc(1)
    yield ops.Free((Span(1, 0, several),))
    yield ops.Free((Span(2, 0, 1),))
    yield ops.Alloc(several)
    yield ops.Free((Span(5, 0, several),))
    yield ops.Alloc(0)
    yield ops.Alloc(capacity + page)


def _prefix_steps(page: int, capacity: int) -> Iterator[Operation]:
    length = page * (2 if capacity >= 5 * page else 1)
    key, other = Key(tuple(range(1, length + 1))), Key(tuple(range(11, length + 11)))
    yield ops.Alloc(length)
    yield ops.Insert(key, (Span(1, 0, length),))
    yield ops.Match(key)
    yield ops.Alloc(length)
    yield ops.Insert(key, (Span(4, 0, length),))
    yield ops.Free((Span(4, 0, length),))
    yield ops.Evict(length)
    yield ops.Alloc(length)
    yield ops.Insert(other, (Span(8, 0, length),))
    yield ops.Alloc(1)
    yield ops.Reset()
    yield ops.Free((Span(10, 0, 1),))
    yield ops.Alloc(length)
    yield ops.Insert(key, (Span(13, 0, length),))
    yield ops.Evict(length)
    yield ops.Alloc(0)
    yield ops.Match(Key(tuple(range(21, page + 21))))
    yield ops.Lock(17)
    yield ops.Unlock(18)
    yield ops.Alloc(capacity + page)
    for number, first in ((_COUNT_OF_FIRST, 31), (_COUNT_OF_FIRST + 6, 41)):
        key = Key(tuple(range(first, first + page)))
        yield ops.Alloc(page)
        yield ops.Insert(key, (Span(number + 1, 0, page),))
        yield ops.Match(key)
        yield ops.Alloc(page)
        yield ops.Insert(key, (Span(number + 4, 0, page),))
        yield ops.Free((Span(number + 4, 0, page),))


_COUNT_OF_FIRST = 20
"""The number of steps in `_prefix_steps` before its last keys, which are all cached at once."""


def rehearse(adapter: Adapter) -> None:
    """Play a few simple steps on a new adapter; raise `AdapterError` if its results contradict each other.

    Only allocators, and prefix caches over a plain pool that take keys without states, have such steps; of
    these, of tables of rows and of blocks the sizes are compared with the configuration first.
    """
    page, capacity = _size_of(adapter, "page_size"), _capacity(adapter)
    claims = adapter.capabilities
    if "pool" not in claims or not claims.isdisjoint({"swa", "mamba"}):
        return
    later = None
    if adapter.kind == "rows":
        later = demand_first_sizes(adapter, _size_of(adapter, "max_reqs"), 0)
    elif adapter.kind == "blocks":
        later = demand_first_sizes(adapter, _size_of(adapter, "blocks"), 0)
    elif 0 < 3 * page <= capacity and adapter.kind == "slots":
        later = demand_first_sizes(adapter, capacity, page)
        _Rehearsal(adapter).play([*_slot_steps(page, capacity)])
    elif adapter.kind == "slots" and getattr(adapter, "METHODS", None):
        _Rehearsal(adapter).play([ops.Alloc(page)])  # the form of the slots, of pools with no room for more
    elif 0 < 3 * page <= capacity and adapter.kind == "prefix" and _is_plain(adapter.config):
        if adapter.config.get("swa_slots") is None:  # of two pools the smaller one counts
            later = demand_first_sizes(adapter, capacity, page)
        _Rehearsal(adapter).play([*_prefix_steps(page, capacity)])
    if later is not None:
        raise later


def _is_plain(config: Config) -> bool:
    """Tell whether a cache keeps all inserted keys and takes its slots from the caller."""
    return (
        config.get("window") is None and config.get("capacity") is None and config.get("retains") is not False
    )
