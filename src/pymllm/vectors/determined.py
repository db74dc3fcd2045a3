"""The determined parts of one step, which are those whose variations the judge rejects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from pymllm import errors
from pymllm.history.operations import Alloc, Evict, Operation, ReadStates
from pymllm.history.outcomes import (
    Done,
    Effect,
    Evicted,
    Failed,
    Inspected,
    Matched,
    NodeView,
    NoRoom,
    Outcome,
    Slots,
)
from pymllm.vectors.names import Names, space_of
from pymllm.vectors.play import plain_outcome
from pymllm.vectors.variations import (
    FAR,
    Asker,
    joined,
    pages_of,
    regrouped,
    vary,
    ways_to_evict,
)

_ERRORS = (
    *("TypeError", "ValueError", "IndexError", "KeyError", "RuntimeError", "AttributeError", "InjectedFault"),
    *("OverflowError", "MemoryError", "AssertionError", "NotImplementedError"),
    *(name for name in errors.__all__),
)
"""Names of errors in laws, with one that no law knows to stand for any other."""

_UNTOLD = {"token", "message"}
"""Fields that are opaque, or only for readers."""

_Passes = Callable[[Any], bool | None]
FREE = {"$free": True}
_MOST_CHOICES = 3000
_MOST_OTHERS = 16
_AROUND = 40


OTHER_RESULTS = (Done(), NoRoom(), Failed("NoSuchError"), Slots(()))
"""Results of other types, any of which might also be right."""


class Expecter:
    """A maker of one step's expectation."""

    def __init__(
        self,
        asker: Asker,
        place: int,
        operation: Operation,
        outcome: Outcome,
        names: Names,
        config: Mapping[str, Any],
        by_place: frozenset[str],
        is_shaped: bool,
        has_order: bool,
    ) -> None:
        self._asker = asker
        self._by_place = by_place
        self._is_shaped = is_shaped  # whether the same was read before, so that its shape is the same
        self._has_order = has_order  # whether the vector is about how often a pool is called
        self._place = place
        self._operation = operation
        self._outcome = outcome
        self._names = names
        page = config.get("page_size", 1)
        self._page: int = page if isinstance(operation, Alloc) and isinstance(page, int) else 1
        self._page_size: int = page if isinstance(page, int) else 1
        self._has_pool = config.get("pool") not in (None, "none")
        self._has_window = config.get("window") is not None

    def expect(self) -> dict[str, Any]:
        """Return the expectation of the step."""
        result, effects = self._result(), self._effects()
        sizes = {
            name: size
            for name, size in self._outcome.sizes.items()
            if not any(
                self._passes(sizes={**self._outcome.sizes, name: other})
                for other in vary(size)
                if other != size
            )
        }
        expect = {"result": result}
        if effects is not None:
            expect["effects"] = effects
        if sizes:
            expect["sizes"] = sizes
        others = self._other_choices()
        if others is None:
            return {"$may": expect}
        return {"$may": expect, "or": others} if others else expect

    def _passes(self, **changes: Any) -> bool:
        return self._asker.lets_pass(self._place, msgspec.structs.replace(self._outcome, **changes))

    # -- results --
    def _result(self) -> Any:
        result = self._outcome.result
        plain = plain_outcome(self._outcome)["result"]
        if any(type(it) is not type(result) and self._passes(result=it) for it in OTHER_RESULTS):
            return {"$may": plain}
        if isinstance(result, Failed):
            return self._failure(result)
        made = {"is": plain.pop("is")}
        for name, value in plain.items():
            if name not in _UNTOLD:
                is_nodes = isinstance(result, Inspected)
                found = self._nodes(name) if is_nodes else self._field(name, value)
                if found is not _NOTHING:
                    made[name] = found
        return made

    def _nodes(self, name: str) -> Any:
        """Return the determined fields of each node, in any order and without node ids."""
        result = self._outcome.result
        assert isinstance(result, Inspected)
        if name != "nodes" or (result.nodes and self._passes(result=Inspected(result.nodes[:-1]))):
            return _NOTHING
        made = []
        for place, node in enumerate(result.nodes):
            fields: dict[str, Any] = {}
            for field, value in _plain_node(node).items():

                def passes(other: Any, field: str = field, place: int = place, node: NodeView = node) -> bool:
                    changed = msgspec.structs.replace(node, **{field: _tupled(other)})
                    nodes = (*result.nodes[:place], changed, *result.nodes[place + 1 :])
                    return self._passes(result=msgspec.structs.replace(result, nodes=nodes))

                if not any(passes(it) for it in vary(value) if it != value and type(it) is type(value)):
                    is_named = field == "slots" and value
                    fields[field] = self._names.of_or_plain(value) if is_named else value
                    if field == "state":
                        fields[field] = self._names.of((value,), "states")
            made.append(fields)
        return {"$set": made}

    def _failure(self, result: Failed) -> Any:
        if self._passes(result=Failed("NoSuchError")):
            return {"is": "failed"}
        known = sorted({name for name in _ERRORS if self._passes(result=Failed(name))} | {result.error})
        return {"is": "failed", "error": known[0] if len(known) == 1 else {"$any": known}}

    def _field(self, name: str, value: Any) -> Any:
        result: Any = self._outcome.result

        def passes(other: Any) -> bool | None:
            try:
                changed = msgspec.convert({name: other}, _only(type(result), name))
            except msgspec.ValidationError:
                return None  # nobody can answer so
            return self._passes(result=msgspec.structs.replace(result, **{name: getattr(changed, name)}))

        if isinstance(result, Slots | Matched) and name in ("slots", "swa_slots") and value:
            space = space_of(self._operation) if name == "slots" else "halves"
            if isinstance(result, Slots) and self._are_chosen(value, passes):
                return {"$may": value} if space in self._by_place else self._new(value, passes, space)
            if not any(passes(other) for other in vary(value) if other != value):
                return self._names.of_or_plain(value, space)
            return {"$may": value}
        if isinstance(self._operation, ReadStates) and not self._has_length():
            return self._read(name, value, passes)
        found = self._part(value, passes)
        if found == value and name == "state" and isinstance(result, Matched) and value is not None:
            return self._names.of((value,), "states")
        return _NOTHING if found == FREE else found

    def _has_length(self) -> bool:
        """Tell whether the number of states is determined, as a cache's own buffers may have more."""
        result: Any = self._outcome.result
        fewer = msgspec.structs.replace(result, recurrent=result.recurrent[:-1], conv=result.conv[:-1])
        return not self._passes(result=fewer)

    def _read(self, name: str, value: Any, passes: _Passes) -> Any:
        """Return the determined parts of the shape or rows of states in unknown number."""
        if name.endswith("_shape"):
            return value if self._is_shaped else {"$may": value}
        if not self._is_shaped or not isinstance(value, list):
            return _NOTHING
        rows = []
        for at, row in enumerate(value):
            of_row = partial(_with_place, passes, value, at)
            parts = [self._part(it, partial(_with_place, of_row, row, place)) for place, it in enumerate(row)]
            rows.append(FREE if all(it == FREE for it in parts) else parts)
        return rows

    def _part(self, value: Any, passes: _Passes) -> Any:
        """Return the determined part of a value; ``passes`` tells whether another value would be right."""
        if isinstance(value, dict):
            parts = {
                name: self._part(item, partial(_with_item, passes, value, name))
                for name, item in value.items()
            }
            return {name: part for name, part in parts.items() if part != FREE}
        if not isinstance(value, list) or not value:
            told = [right for other in vary(value) if other != value if (right := passes(other)) is not None]
            if any(told) and not all(told) and type(value) is int:
                return self._one_of(value, passes)
            return value if not any(told) else FREE if all(told) else {"$may": value}
        shorter_or_longer: tuple[list[Any], ...] = (value[:-1], value[1:], [*value, value[-1]], [])
        told = [right for other in shorter_or_longer if (right := passes(other)) is not None]
        if any(told):
            return FREE if all(told) else {"$may": value}
        turned = value[::-1]
        if turned != value and passes(turned):
            return {"$set": value}
        return [self._part(item, partial(_with_place, passes, value, at)) for at, item in enumerate(value)]

    def _one_of(self, value: int, passes: _Passes) -> dict[str, Any]:
        """Return a number with the other right numbers, if they are few."""
        right = [it for it in range(-_AROUND, value + _AROUND) if passes(it)]
        is_few = right and right[-1] < value + _AROUND - 1 and not passes(value + FAR)
        return {"$may": value, "or": [it for it in right if it != value]} if is_few else {"$may": value}

    def _are_chosen(self, value: list[int], passes: _Passes) -> bool:
        """Tell whether other numbers, or another order of the same ones, would also be right."""
        pages = pages_of(value, self._page)
        if len(pages) > 1 and self._outcome.result and passes(joined([*pages[1:], pages[0]], len(value))):
            return True
        return next(self._others(value, passes), None) is not None

    def _others(self, value: list[int], passes: _Passes) -> Iterator[int]:
        """Yield the pages that could replace the first page."""
        pages = pages_of(value, self._page)
        own = {page[0] // self._page for page in pages}
        first = len(pages[0])
        for page in range(max((*own, *(it // self._page for it in self._names.slots), 0)) + 40):
            start = page * self._page
            if page not in own and passes([*range(start, start + first), *value[first:]]):
                yield page

    def _new(self, value: list[int], passes: _Passes, space: str) -> Any:
        pages = pages_of(value, self._page)
        own = {page[0] // self._page for page in pages}
        others = set(self._others(value, passes))
        right = own | others
        top = max(right | {number // self._page for number in self._names.slots}) + 1
        named: dict[int, list[int]] = {}
        for page in range(top + 1):
            slots = [
                it for it in range(page * self._page, (page + 1) * self._page) if self._names.knows(it, space)
            ]
            if page not in right and slots:
                named[page] = slots
        known = right | set(named)
        if known != set(range(min(known), max(known) + 1)):
            return {"$may": value}
        if others == set() and len(pages) == 1:
            return self._names.of_or_plain(value, space)
        is_whole = len(value) == len(set(value)) and all(
            page
            == list(range(page[0] // self._page * self._page, page[0] // self._page * self._page + len(page)))
            for page in pages
        )
        if not is_whole or passes([*value[:-1], value[0]] if len(value) > 1 else [*value, *value]):
            return {"$may": value}
        least, most = min(known) * self._page, (max(known) + 1) * self._page - 1
        but = self._names.of([slot for page in sorted(named) for slot in named[page]], space)
        return {"$new": len(value), "page": self._page, "least": least, "most": most, "but": but}

    # -- effects --
    def _effects(self) -> Any:
        effects = self._outcome.effects
        if not effects:
            tries = [Effect("callback"), *(Effect("free", (it,)) for it in sorted(self._names.slots)[:4])]
            tries += [Effect("free_swa", (it,)) for it in sorted(self._names.slots)[:4]]
            return None if any(self._passes(effects=(it,)) for it in tries) else []
        bare = tuple(it for it in effects if it.call != "callback")
        is_bare = bare != effects and self._passes(effects=bare)  # nobody asks whether it called back
        told = bare if is_bare else effects
        if any(self._passes(effects=(*told[:at], *told[at + 1 :])) for at in range(len(told))):
            return None
        if is_bare or (
            not any(it.target for it in effects)
            and any(self._passes(effects=other) for other in regrouped(effects))
        ):
            return self._calls(told)
        return self._exact_effects()

    def _calls(self, effects: Sequence[Effect]) -> dict[str, Any]:
        calls: dict[str, Any] = {}
        for name in dict.fromkeys(it.call for it in effects):
            slots = [slot for it in effects if it.call == name for slot in it.slots]
            count = sum(it.call == name for it in effects)
            space = "states" if name == "free_state" else "slots"
            if self._has_order and len(slots) > count and not self._passes(effects=_split(effects, name)):
                calls[name] = count
                continue
            calls[name] = self._names.of(sorted(slots), space) if slots or name != "callback" else count
        inside = [it.sizes for it in effects if it.call == "callback"]
        sizes = {
            name: size
            for name, size in (inside[0] if inside else {}).items()
            if all(it.get(name) == size for it in inside) and not self._inside_passes(name)
        }
        return {"$calls": calls, "inside": sizes} if sizes else {"$calls": calls}

    def _inside_passes(self, name: str) -> bool:
        return any(
            self._changed_passes(place, it, "sizes", {**it.sizes, name: other})
            for place, it in enumerate(self._outcome.effects)
            if it.call == "callback"
            for other in (it.sizes[name] + 1, it.sizes[name] - 1)
        )

    def _exact_effects(self) -> list[Any]:
        exact = []
        for place, effect in enumerate(self._outcome.effects):
            made: dict[str, Any] = {"call": effect.call}
            if effect.slots and not self._changed_passes(place, effect, "slots", effect.slots[::-1]):
                made["slots"] = self._names.of_or_plain(effect.slots)
            if effect.target and not self._changed_passes(place, effect, "target", effect.target[::-1]):
                made["target"] = self._names.of_or_plain(effect.target)
            if not self._changed_passes(place, effect, "note", effect.note + "?"):
                made["note"] = effect.note
            sizes = {
                name: size
                for name, size in effect.sizes.items()
                if not self._changed_passes(place, effect, "sizes", {**effect.sizes, name: size + 1})
            }
            if sizes:
                made["sizes"] = sizes
            exact.append(made)
        return exact

    def _changed_passes(self, place: int, effect: Effect, name: str, value: Any) -> bool:
        if value == getattr(effect, name):
            return False
        changed = msgspec.structs.replace(effect, **{name: value})
        effects = self._outcome.effects
        return self._passes(effects=(*effects[:place], changed, *effects[place + 1 :]))

    # -- choices --
    def _other_choices(self) -> list[dict[str, Any]] | None:
        """Return the other right results of an eviction; ``None`` if there are too many to check."""
        outcome, operation = self._outcome, self._operation
        result: Any = outcome.result
        if not isinstance(operation, Evict) or isinstance(result, Failed):
            return []
        calls = range(1 + max(1, len(self._names.slots))) if outcome.effects else (0,)
        backs = {count: tuple(Effect("callback", node=FAR + it) for it in range(count)) for count in calls}
        found: list[dict[str, Any]] = []
        choices = ways_to_evict(
            outcome,
            self._names.slots,
            self._page_size,
            has_pool=self._has_pool,
            has_window=self._has_window,
        )
        for asked, (counts, freed) in enumerate(choices):
            if asked * len(calls) > _MOST_CHOICES or len(found) > _MOST_OTHERS:
                return None
            other = Evicted(*counts)
            if self._is_as_seen(other, freed):
                continue
            orders = ((*freed, *it) for it in backs.values())
            turned = ((*it, *freed) for it in backs.values() if it and freed)
            if any(
                self._passes(result=other, effects=effects, sizes={})
                for effects in itertools.chain(orders, turned)
            ):
                made = {"is": "evicted", "full": counts[0], "swa": counts[1], "states": counts[2]}
                named = {it.call: self._names.of(it.slots) for it in freed}
                found.append({"result": made, "effects": {"$calls": named}})
        return found

    def _is_as_seen(self, other: Evicted, freed: Sequence[Effect]) -> bool:
        seen = {(it.call, slot) for it in self._outcome.effects if it.call != "callback" for slot in it.slots}
        return (
            other == self._outcome.result and {(it.call, slot) for it in freed for slot in it.slots} == seen
        )


_NOTHING = object()


def _split(effects: Sequence[Effect], name: str) -> tuple[Effect, ...]:
    """Return effects with each call ``name`` of several slots split into one per slot."""
    split: list[Effect] = []
    for effect in effects:
        split += [Effect(name, (slot,)) for slot in effect.slots] if effect.call == name else [effect]
    return tuple(split)


def _plain_node(node: NodeView) -> dict[str, Any]:
    names = (
        *("tokens", "extra_key", "slots", "is_alive", "lock_ref", "swa_lock_ref", "hit_count"),
        *("kept_bytes", "state", "state_lock_ref", "page_hashes"),
    )
    told = {name: _listed(getattr(node, name)) for name in names}
    return {name: value for name, value in told.items() if value is not None}


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, tuple | list) else value


def _tupled(value: Any) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


def _only(kind: Any, name: str) -> Any:
    """Return a record with one field of another record, so that lists get that field's types."""
    field = next(it for it in msgspec.structs.fields(kind) if it.name == name)
    return msgspec.defstruct("Only", [(name, field.type)])


def _with_item(passes: _Passes, value: dict[str, Any], name: str, other: Any) -> bool | None:
    return passes({**value, name: other})


def _with_place(passes: _Passes, value: list[Any], at: int, other: Any) -> bool | None:
    return passes([*value[:at], other, *value[at + 1 :]])
